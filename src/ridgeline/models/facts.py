"""Turn a ModelSpec into what it asks of any machine: flops per token, cache bytes, and flops per byte.

Closed forms, no run and no chip in them. Two flops are one multiply-add; an element of a weight matrix is one
multiply-add a token. Not counted: the embedding lookup, norms, activations, softmax, rotations, biases.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import assert_never

from ridgeline.core.dtype import DType
from ridgeline.models.params import count, moe_params
from ridgeline.models.spec import (
    Attention,
    Block,
    Captured,
    Ffn,
    GatedDeltaNet,
    LatentAttention,
    Mamba2,
    Mixer,
    Mlp,
    ModelSpec,
    Moe,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopCount:
    """Flops of one token by part; the parts sum to `total`.

    projections  matrices of softmax and latent attention, an indexer's included
    scores       query x key and probability x value, and an indexer's own scores
    state        state-space and delta-rule mixers: matrices, convolution, recurrence
    mlp          dense feed-forward
    experts      routed experts one token visits, and shared ones
    router       router, gate of the shared part, projections to a latent width
    head         output matrix
    captured     what a recorded forward did beside the parts of its layers
    mtp          multi-token prediction: its blocks, projections and one head each
    """

    projections: float = 0.0
    scores: float = 0.0
    state: float = 0.0
    mlp: float = 0.0
    experts: float = 0.0
    router: float = 0.0
    head: float = 0.0
    captured: float = 0.0
    mtp: float = 0.0

    @property
    def total(self) -> float:
        """All parts."""
        return float(sum(getattr(self, field.name) for field in fields(self)))

    def __add__(self, other: FlopCount) -> FlopCount:
        names = [field.name for field in fields(self)]
        return FlopCount(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def times(self, factor: float) -> FlopCount:
        """Every part times a factor."""
        return FlopCount(**{field.name: getattr(self, field.name) * factor for field in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Intensity:
    """Flops of a pass and the bytes it moves at the least: weights once, cache as far as it is read or written."""

    flops: float
    weight_bytes: float
    cache_bytes: float

    @property
    def flops_per_byte(self) -> float:
        """Arithmetic intensity; a chip whose ridge lies above it is bound by memory."""
        return self.flops / (self.weight_bytes + self.cache_bytes)


@lru_cache(maxsize=256)
def forward_flops_per_token(spec: ModelSpec, context: int, causal: bool = True, source: int = 0) -> FlopCount:
    """Flops of one token in a forward pass over sequences of `context` tokens, averaged over the sequence.

    source   positions of an encoder's output that cross attention sees; what the encoder does is in `encoder_flops`

        2 * weights a token passes through  +  sum over attention layers of 2 * n * H * (d + v)  +  2 * hidden * vocab

    n = mean visible tokens (`mean_visible`), H = heads, d = size of a key, v = size of a value. Latent attention is in
    its expanded form, as trained. Multi-token prediction is not in here; images are in `tower_flops.image_flops`.

    >>> from ridgeline.models.load import model
    >>> f"{forward_flops_per_token(model('llama3-8b'), 8192).total:.4g}"
    '1.716e+10'
    """
    flops = FlopCount(head=_head_flops(spec) / (context if spec.head and spec.head.kind == "sequence" else 1))
    for block, layers in spec.counts():
        flops = flops + block_flops(block, spec.hidden, context, causal, source).times(layers)
    return flops


def training_flops_per_token(spec: ModelSpec, context: int, causal: bool = True, source: int = 0) -> FlopCount:
    """Flops of one token in a training step without recompute, multi-token prediction included.

        3 * (forward + mtp)          mtp = depth * (block + 2 * 2*h*h + head)

    h = hidden. Backward costs twice forward: a product for the input's gradient and one for the weight's. All weights
    are trained; the optimizer is not counted.

    >>> from ridgeline.models.load import model
    >>> gpt3 = training_flops_per_token(model("gpt3-175b"), 2048, causal=False)
    >>> f"{gpt3.total / 6 / 175e9:.3f}"  # the 6N rule of thumb
    '1.025'
    """
    flops = forward_flops_per_token(spec, context, causal, source)
    if spec.mtp:
        block = block_flops(spec.mtp.block, spec.hidden, context, causal).total
        extra = spec.mtp.depth * (block + 4 * spec.hidden**2 + _head_flops(spec))
        flops = flops + FlopCount(mtp=extra)
    return flops.times(3)


def mean_visible(
    context: int, window: int = 0, chunked: bool = False, causal: bool = True, queries: int | None = None
) -> float:
    """Tokens a query sees, averaged over a sequence, or over its last `queries` tokens.

        all, causal        s/2                       full  s
        sliding, causal    w - w*w/(2*s)             full  w               where w < s, else as above
        chunked, causal    (q*w*w + r*r) / (2*s)     full  twice that      q = s // w, r = s % w

    s = context, w = window (0: all). The diagonal counts half, as in published TFLOP/s: s/2, not (s+1)/2.
    The last q of s tokens see what all s see less what the first s - q see; one token that is written sees s.

    >>> mean_visible(8192), mean_visible(8192, 4096), mean_visible(8192, 4096, chunked=True)
    (4096.0, 3072.0, 2048.0)
    >>> mean_visible(8192, queries=1024), mean_visible(8192, 4096, queries=1), mean_visible(8192, queries=1)
    (7680.0, 4096.0, 8191.5)
    """
    if queries is not None and causal and queries < context:
        before = context - queries
        pairs = mean_visible(context, window, chunked) * context - mean_visible(before, window, chunked) * before
        return pairs / queries
    if not window or window >= context:
        return context / 2 if causal else float(context)
    if chunked:
        whole, rest = divmod(context, window)
        return (whole * window * window + rest * rest) / (2 * context if causal else context)
    return window - window * window / (2 * context) if causal else float(window)


def kv_cache_bytes_per_token(spec: ModelSpec, dtype: DType) -> float:
    """Bytes one more token adds to the cache of a sequence that is still inside every window.

        sum over layers of  G*(d + v)  or  c + r (+ i)      times bytes of an element

    G = kv_heads, d, v = size of a key and a value; c = kv_rank, r = rope_dim, i = an indexer's key. Values are kept
    even where they come from the key projection, since keys are rotated. State-space and delta-rule layers add nothing
    (see `state_bytes`); multi-token prediction is not counted.

    >>> from ridgeline.core.dtype import dtype
    >>> from ridgeline.models.load import model
    >>> kv_cache_bytes_per_token(model("deepseek-v3"), dtype("bf16"))  # 61 * (512 + 64) * 2
    70272.0
    """
    elements = sum(layers * (_cached(block.mixer) + _recorded(block)) for block, layers in spec.counts())
    return elements * dtype.bytes_per_element


def kv_cache_bytes(spec: ModelSpec, tokens: int, dtype: DType) -> float:
    """Bytes the cache of one sequence of `tokens` holds; a layer with a window keeps no more than its window.

    >>> from ridgeline.core.dtype import dtype
    >>> from ridgeline.models.load import model
    >>> gib = kv_cache_bytes(model("gpt-oss-120b"), 131072, dtype("bf16")) / 2**30
    >>> round(gib, 3)  # 18 of 36 layers keep 128 tokens
    4.504
    """
    elements = sum(
        layers * (_cached(block.mixer) * _kept(block.mixer, tokens) + _recorded(block) * tokens)
        for block, layers in spec.counts()
    )
    return elements * dtype.bytes_per_element


def state_bytes(spec: ModelSpec, dtype: DType) -> float:
    """Bytes of recurrent state one sequence holds, whatever its length.

        mamba2        H*p*s + (k - 1) * (H*p + 2*g*s)
        gated delta   Hv*dk*dv + (k - 1) * (2*Hk*dk + Hv*dv)

    H, p, s, g = heads, their size, state, groups; Hk, Hv, dk, dv = key and value heads and their sizes; k = conv.

    >>> from ridgeline.core.dtype import dtype
    >>> from ridgeline.models.load import model
    >>> round(state_bytes(model("mamba2-2.7b"), dtype("fp32")) / 2**20, 1)
    163.9
    """
    return sum(layers * _state_elements(block.mixer) for block, layers in spec.counts()) * dtype.bytes_per_element


def experts_touched(experts: int, topk: int, tokens: float) -> float:
    """Distinct experts that `tokens` visit on average when each picks `topk` at random: E * (1 - (1 - k/E)**B).

    >>> round(experts_touched(256, 8, 1), 6), round(experts_touched(256, 8, 64), 1)
    (8.0, 222.4)
    """
    return float(experts * (1 - (1 - topk / experts) ** tokens))


def arithmetic_intensity_prefill(spec: ModelSpec, tokens: int, dtype: DType) -> Intensity:
    """Prefill of one sequence: every layer on all tokens, the head on the last one, weights once, cache written once.

        flops / bytes = (tokens * (forward - head) + head) / (touched weights + kv_cache_bytes(tokens) + state_bytes)

    >>> from ridgeline.core.dtype import dtype
    >>> from ridgeline.models.load import model
    >>> round(arithmetic_intensity_prefill(model("llama3-8b"), 2048, dtype("bf16")).flops_per_byte)
    1943
    """
    forward = forward_flops_per_token(spec, tokens)
    return Intensity(
        flops=tokens * (forward.total - forward.head) + forward.head,
        weight_bytes=_touched_weights(spec, tokens) * dtype.bytes_per_element,
        cache_bytes=kv_cache_bytes(spec, tokens, dtype) + state_bytes(spec, dtype),
    )


def arithmetic_intensity_decode(spec: ModelSpec, batch: int, context: int, dtype: DType) -> Intensity:
    """One decode step of `batch` sequences that hold `context` tokens each.

        flops / bytes = batch * flops a token / (touched weights + batch * (cache read + one token + 2 * state))

    Latent attention is in its absorbed form (scores in the latent, 2*n*H*(2*c + r)) and sparse attention reads the
    tokens it picked and every indexer key. State is in `dtype` too.

    >>> from ridgeline.core.dtype import dtype
    >>> from ridgeline.models.load import model
    >>> steps = [arithmetic_intensity_decode(model("llama3-8b"), batch, 2048, dtype("bf16")) for batch in (1, 64)]
    >>> [round(step.flops_per_byte, 1) for step in steps]
    [1.1, 32.0]
    """
    flops, read = _head_flops(spec), 0.0
    for block, layers in spec.counts():
        layer = block_flops(block, spec.hidden, 0, causal=False).total + _decode_scores(block.mixer, context)
        flops += layers * layer
        read += layers * (_read(block.mixer, context) + _recorded(block) * context)
    cache = read * dtype.bytes_per_element + kv_cache_bytes_per_token(spec, dtype) + 2 * state_bytes(spec, dtype)
    weights = _touched_weights(spec, batch) * dtype.bytes_per_element
    return Intensity(flops=batch * flops, weight_bytes=weights, cache_bytes=batch * cache)


def _head_flops(spec: ModelSpec) -> float:
    width, own = spec.embedding.width, spec.head
    if own is not None and not spec.speaks:
        return 2.0 * (spec.hidden * own.outputs + own.dense)
    return 2.0 * (own.dense if own else 0) + 2.0 * (spec.vocab * (width or spec.hidden) + spec.hidden * width)


def block_flops(block: Block, hidden: int, context: int, causal: bool, source: int = 0) -> FlopCount:
    """Flops of one token in one layer; of cross attention what works on the layer's own tokens, keys and values not."""
    mixer = _mixer_flops(block.mixer, hidden, context, causal) if block.mixer else FlopCount()
    if block.cross is not None:
        wide = block.cross.heads * (block.cross.head_dim + block.cross.value_dim)
        mixer = mixer + FlopCount(projections=2.0 * hidden * wide, scores=2.0 * source * wide)
    rest = FlopCount(captured=captured_flops(block.captured, context, causal)) if block.captured else FlopCount()
    return mixer + (_ffn_flops(block.ffn, hidden) if block.ffn else FlopCount()) + rest


def captured_flops(part: Captured, context: int, causal: bool = True) -> float:
    """Flops of a token in what a recorded forward did: products, scores, recurrences.

        sum of 2 * rows * groups * inputs * outputs  +  sum of 2 * n * H * (d + v)  +  n * pair_flops  +  scan_flops

    n = mean visible tokens, H = heads, d, v = size of a key and a value.

    >>> from ridgeline.models.spec import Product
    >>> captured_flops(Captured(products=(Product(label="mix", inputs=8, outputs=4),), pair_flops=2.0), 16)
    80.0
    """
    products = sum(2.0 * one.rows * one.groups * one.inputs * one.outputs for one in part.products)
    scores = sum(
        2.0
        * mean_visible(context, one.window, one.chunked, causal and one.causal)
        * one.heads
        * (one.head_dim + one.value_dim)
        for one in part.scores
    )
    return products + scores + mean_visible(context, causal=causal) * part.pair_flops + part.scan_flops


def _ffn_flops(ffn: Ffn, hidden: int) -> FlopCount:
    match ffn:
        case Mlp():
            return FlopCount(mlp=2.0 * (3 if ffn.gated else 2) * hidden * ffn.hidden)
        case Moe():
            matrices = 3 if ffn.gated else 2
            visited = ffn.topk * (ffn.latent or hidden) * ffn.hidden + hidden * ffn.shared_hidden
            around = hidden * (ffn.experts + ffn.shared_gate + 2 * ffn.latent)
            return FlopCount(experts=2.0 * matrices * visited, router=2.0 * around)
        case _:
            assert_never(ffn)


def _mixer_flops(mixer: Mixer, hidden: int, context: int, causal: bool) -> FlopCount:
    match mixer:
        case Attention():
            wide = mixer.heads * (mixer.head_dim * (2 if mixer.gate else 1) + mixer.value_dim)
            keys = mixer.kv_heads * (mixer.head_dim + (0 if mixer.keys_as_values else mixer.value_dim))
            seen = mean_visible(context, mixer.window, mixer.chunked, causal and mixer.causal)
            scores = 2 * seen * mixer.heads * (mixer.head_dim + mixer.value_dim)
            return FlopCount(projections=2.0 * hidden * (wide + keys), scores=scores)
        case LatentAttention():
            return _latent_flops(mixer, hidden, context, causal)
        case Mamba2():
            states = 2 * mixer.groups * mixer.state
            matrices = hidden * (3 * mixer.inner + states + mixer.heads)
            conv = mixer.conv * (mixer.inner + states)
            # a state element decays (1), takes up the token (2) and is read (2); chunked kernels do more
            return FlopCount(state=2.0 * (matrices + conv) + 5.0 * mixer.inner * mixer.state)
        case GatedDeltaNet():
            keys, values = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
            matrices = hidden * (2 * keys + 3 * values + 2 * mixer.value_heads)
            conv = mixer.conv * (2 * keys + values)
            # as above, and the delta rule first reads what the key holds (2)
            return FlopCount(state=2.0 * (matrices + conv) + 7.0 * values * mixer.key_dim)
        case _:
            assert_never(mixer)


def _latent_flops(mixer: LatentAttention, hidden: int, context: int, causal: bool) -> FlopCount:
    """Expanded form: 2*(q path + h*(c+r) + c*H*(n+v) + H*v*h) and 2*seen*H*(n+r+v); the indexer scores all tokens."""
    key = mixer.nope_dim + mixer.rope_dim
    queries = mixer.q_rank * (hidden + mixer.heads * key) if mixer.q_rank else hidden * mixer.heads * key
    latent = hidden * (mixer.kv_rank + mixer.rope_dim)
    expand = mixer.kv_rank * mixer.heads * (mixer.nope_dim + mixer.v_dim)
    projections = 2.0 * (queries + latent + expand + mixer.heads * mixer.v_dim * hidden)
    topk = mixer.indexer.topk if mixer.indexer else 0
    scores = 2.0 * mean_visible(context, topk, causal=causal) * mixer.heads * (key + mixer.v_dim)
    if mixer.indexer and not mixer.indexer.shared:
        index = mixer.indexer.heads * mixer.indexer.head_dim
        key_and_weights = hidden * (mixer.indexer.head_dim + mixer.indexer.heads)
        projections += 2.0 * ((mixer.q_rank or hidden) * index + key_and_weights)
        scores += 2.0 * mean_visible(context, causal=causal) * index
    return FlopCount(projections=projections, scores=scores)


def _decode_scores(mixer: Mixer | None, context: int) -> float:
    """Score flops of one new token that sees a cache of `context` tokens."""
    match mixer:
        case Attention():
            return 2.0 * _kept(mixer, context) * mixer.heads * (mixer.head_dim + mixer.value_dim)
        case LatentAttention():
            picked = min(context, mixer.indexer.topk) if mixer.indexer else context
            index = mixer.indexer.heads * mixer.indexer.head_dim if mixer.indexer and not mixer.indexer.shared else 0
            return 2.0 * picked * mixer.heads * (2 * mixer.kv_rank + mixer.rope_dim) + 2.0 * context * index
        case Mamba2() | GatedDeltaNet() | None:
            return 0.0
        case _:
            assert_never(mixer)


def _cached(mixer: Mixer | None) -> int:
    """Elements one token leaves in a layer's cache; a query that sees what comes behind it leaves none to wait for."""
    match mixer:
        case Attention():
            if not mixer.causal:
                return 0
            return mixer.kv_heads * (mixer.head_dim + mixer.value_dim)
        case LatentAttention():
            return mixer.kv_rank + mixer.rope_dim + _index_key(mixer)
        case Mamba2() | GatedDeltaNet() | None:
            return 0
        case _:
            assert_never(mixer)


def _recorded(block: Block) -> int:
    """Elements one token leaves in the cache of what was captured of a layer."""
    return block.captured.cached if block.captured else 0


def _index_key(mixer: LatentAttention) -> int:
    return mixer.indexer.head_dim if mixer.indexer and not mixer.indexer.shared else 0


def _kept(mixer: Mixer | None, tokens: int) -> int:
    """Tokens a layer's cache keeps of a sequence."""
    return min(tokens, mixer.window) if isinstance(mixer, Attention) and mixer.window else tokens


def _read(mixer: Mixer | None, context: int) -> float:
    """Cache elements one decode step of one sequence reads in a layer."""
    if isinstance(mixer, LatentAttention) and mixer.indexer:
        picked = min(context, mixer.indexer.topk)
        return float(picked * (mixer.kv_rank + mixer.rope_dim) + context * _index_key(mixer))
    return float(_cached(mixer) * _kept(mixer, context))


def _state_elements(mixer: Mixer | None) -> int:
    match mixer:
        case Mamba2():
            mixed = mixer.inner + 2 * mixer.groups * mixer.state
            return mixer.inner * mixer.state + (mixer.conv - 1) * mixed
        case GatedDeltaNet():
            mixed = 2 * mixer.key_heads * mixer.key_dim + mixer.value_heads * mixer.value_dim
            return mixer.value_heads * mixer.value_dim * mixer.key_dim + (mixer.conv - 1) * mixed
        case Attention() | LatentAttention() | None:
            return 0
        case _:
            assert_never(mixer)


def _touched_weights(spec: ModelSpec, tokens: int) -> float:
    """Parameters a pass over `tokens` reads: all but images, experts nobody picked, and embedding rows looked up."""
    parts = count(spec)
    touched = float(parts.total - parts.experts - parts.vision - parts.audio - parts.companions - parts.encoder)
    if not spec.embedding.tied:
        touched -= parts.embedding
    for block, layers in spec.counts():
        if isinstance(block.ffn, Moe):
            one = moe_params(block.ffn, spec.hidden).experts / block.ffn.experts
            touched += layers * one * experts_touched(block.ffn.experts, block.ffn.topk, tokens)
    return touched
