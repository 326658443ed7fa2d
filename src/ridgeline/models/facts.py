"""Turn a ModelSpec into what it asks of any machine: flops per token, cache bytes, and flops per byte.

Closed forms, no run and no chip in them: flops of a token and of encoders, what a sequence leaves behind for tokens to
come (keys and values, or a state) and what a pass moves at the least.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import lru_cache

from ridgeline.core.dtype import DType
from ridgeline.core.records import dataclass
from ridgeline.models.media_tokens import image_input
from ridgeline.models.mixer_parts import mixer_parts
from ridgeline.models.params import count, modulation_inputs, moe_params
from ridgeline.models.parts import CacheRow, MixerParts, ffn_parts
from ridgeline.models.sizing import EncoderInput
from ridgeline.models.spec import Attention, Block, Captured, Ffn, ModelSpec, Moe


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
        windows, remainder = divmod(context, window)
        return (windows * window * window + remainder * remainder) / (2 * context if causal else context)
    return window - window * window / (2 * context) if causal else float(window)


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
    embedding    further matrices before or behind all layers
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
    embedding: float = 0.0
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
    once = context if spec.head and spec.head.kind == "sequence" else 1
    flops = FlopCount(head=head_flops(spec) / once, embedding=2.0 * spec.embedding.further_weights)
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
        extra = spec.mtp.depth * (block + 4 * spec.hidden**2 + head_flops(spec))
        flops = flops + FlopCount(mtp=extra)
    return flops.times(3)


def head_flops(spec: ModelSpec) -> float:
    """Flops of one token behind the last layer."""
    width, head = spec.embedding.width, spec.head
    if head is not None and not spec.speaks:
        return 2.0 * (spec.hidden * head.outputs + head.dense)
    return 2.0 * (head.dense if head else 0) + 2.0 * (spec.vocab * (width or spec.hidden) + spec.hidden * width)


def block_flops(block: Block, hidden: int, context: int, causal: bool, source: int = 0) -> FlopCount:
    """Flops of one token in one layer; of cross attention what works on the layer's own tokens, keys and values not."""
    mixer = FlopCount()
    for block_mixer in block.mixers:
        mixer = mixer + _mixer_flops(mixer_parts(block_mixer, hidden), context, causal)
    if block.cross is not None:
        wide = block.cross.width
        mixer = mixer + FlopCount(projections=2.0 * hidden * wide, scores=2.0 * source * wide)
    further = FlopCount(captured=captured_flops(block.captured, context, causal)) if block.captured else FlopCount()
    return mixer + (_ffn_flops(block.ffn, hidden) if block.ffn else FlopCount()) + further


def captured_flops(part: Captured, context: int, causal: bool = True) -> float:
    """Flops of a token in what a recorded forward did: products, scores, recurrences.

        sum of 2 * rows * groups * inputs * outputs  +  sum of 2 * n * H * (d + v)  +  n * pair_flops  +  scan_flops

    n = mean visible tokens, H = heads, d, v = size of a key and a value.

    >>> from ridgeline.models.spec import Product
    >>> captured_flops(Captured(products=(Product(label="mix", inputs=8, outputs=4),), pair_flops=2.0), 16)
    80.0
    """
    products = sum(2.0 * product.rows * product.groups * product.inputs * product.outputs for product in part.products)
    scores = sum(
        2.0
        * mean_visible(context, attention.window, attention.chunked, causal and attention.causal)
        * attention.heads
        * (attention.head_dim + attention.value_dim)
        for attention in part.scores
    )
    return products + scores + mean_visible(context, causal=causal) * part.pair_flops + part.scan_flops


def _ffn_flops(ffn: Ffn, hidden: int) -> FlopCount:
    """Two for each element of the matrices that a token passes: all dense ones, `topk` of the experts."""
    parts = ffn_parts(ffn, hidden)
    dense = parts.dense.up.elements + parts.dense.down.elements if parts.dense else 0
    if not isinstance(ffn, Moe):
        return FlopCount(mlp=2.0 * dense)
    expert = sum(weight.elements for weight in parts.experts) // ffn.experts
    router = sum(weight.elements for weight in parts.router)
    return FlopCount(experts=2.0 * (ffn.topk * expert + dense), router=2.0 * router)


def _mixer_flops(parts: MixerParts, context: int, causal: bool) -> FlopCount:
    """Two for each element of its matrices, and those of its scores or its recurrence.

    scores   sum of 2 * n * H * w        n = entries that a query sees, H = heads, w = widths of a score's products
    """
    products = 2.0 * parts.matrix_elements
    if parts.recurrent is not None:
        return FlopCount(state=products + parts.recurrent.flops)
    scores = 0.0
    for attended_part in parts.attended:
        entries = sum(
            mean_visible(context, span.window, span.chunked, causal and span.causal) / span.rate
            for span in attended_part.spans
        )
        scores += 2.0 * entries * attended_part.heads * attended_part.width
    return FlopCount(projections=products, scores=scores)


def image_flops(spec: ModelSpec, seen: EncoderInput | None = None) -> float:
    """Flops of the image encoder and projector for what it reads, forward; for one image of its own size unless given.

        P * (2*c*e + layers * 2*W) + layers * 4*P*n*e + 2 * projected * projector weights

    P = views * positions, c = numbers of a patch, e = encoder width, W = weights of one encoder layer, n = patches that
    one sees: all of its view, less in windowed layers. The image's tokens in the language model are counted there.

    >>> from ridgeline.models.load import model
    >>> f"{image_flops(model('llava-1.5-7b')):.3g}"
    '4.05e+11'
    """
    vision = spec.vision
    if vision is None:
        return 0.0
    seen = image_input(vision) if seen is None else seen
    full_flops = _layer_flops(without_window(vision.block), vision.hidden, seen.positions)
    window_flops = _layer_flops(without_window(vision.block), vision.hidden, seen.window)
    layers = (vision.layers - vision.windowed) * full_flops + vision.windowed * window_flops
    embed = 2 * vision.patch_inputs * vision.hidden
    return seen.total * (embed + layers) + 2 * seen.projected * vision.projector_params


def audio_flops(spec: ModelSpec, heard: EncoderInput) -> float:
    """Flops of the audio encoder and projector for what it reads, forward.

        P * (2 * front + layers * (2*W + 4*n*e)) + 2 * projected * projector weights

    Letters as in `image_flops`; front = multiply-adds of a position in the convolutions before the layers.
    """
    audio = spec.audio
    if audio is None:
        return 0.0
    layer = _layer_flops(without_window(audio.block), audio.hidden, heard.positions)
    return heard.total * (2.0 * audio.front + audio.layers * layer) + 2 * heard.projected * audio.projector_params


def _layer_flops(block: Block, hidden: int, seen: float) -> float:
    """Flops of one position in a layer where it sees so many, both ways."""
    none, pair = (block_flops(block, hidden, size, causal=False).total for size in (1, 2))
    return none + (pair - none) * (seen - 1)


def without_window(block: Block) -> Block:
    """The layer without its window."""
    return replace(block, mixer=replace(block.mixer, window=0)) if isinstance(block.mixer, Attention) else block


def encoder_flops(spec: ModelSpec, source: int) -> float:
    """Flops of the encoder for one sequence of `source` positions, forward, and of what cross attention makes of them.

        s * (2 * front + layers * block) + s * cross layers * 2 * e * G * (d + v)

    s = source, e = encoder width, G * (d + v) = keys and values of one cross attention; front = multiply-adds of a
    position in convolutions. Positions see each other both ways.

    >>> from ridgeline.models.hf import from_config
    >>> f"{encoder_flops(from_config({'model_type': 'whisper'}), 1500):.3g}"
    '4.05e+10'
    """
    encoder = spec.encoder
    if encoder is None:
        return 0.0
    layer = block_flops(encoder.block, encoder.hidden, source, causal=False).total
    layers_flops = source * (2.0 * encoder.front + encoder.layers * layer)
    return layers_flops + _crossing(spec, encoder.hidden, source)


def _crossing(spec: ModelSpec, width: int, source: int) -> float:
    """Keys and values that cross attention of every layer makes of a source."""
    wide = sum(layers * block.cross.kv for block, layers in spec.counts() if block.cross is not None)
    return 2.0 * source * width * wide


def latent_flops(spec: ModelSpec, seq: int) -> float:
    """Flops of one sequence of a diffusion transformer beside its layers, forward.

        2 * (seq * inputs * h + text * per_text + per_step + modulation) and keys and values of text in cross attention

    h = hidden; modulation = sum over layers of vectors * h * the width that they are made of.
    """
    space = spec.latent_space
    if space is None:
        return 0.0
    vectors = sum(
        layers * block.streams * block.modulation * modulation_inputs(block, spec.hidden)
        for block, layers in spec.counts()
    )
    once = space.per_step + vectors * spec.hidden
    read = 0 if space.joint else space.text
    end_flops = 2.0 * (seq * space.inputs * spec.hidden + space.text * space.per_text + once)
    return end_flops + _crossing(spec, spec.hidden, read)


def kv_cache_bytes_per_token(spec: ModelSpec, dtype: DType) -> float:
    """Bytes one more token adds to the cache of a sequence that is still inside every window.

        sum over layers of  G*(d + v)  or  c + r (+ i)  or  d + (d + i) / m      times bytes of an element

    G = kv_heads, d, v = size of a key and a value; c = kv_rank, r = rope_dim, i = an indexer's key, m = tokens of a
    pooled entry. Values are kept even where they come from the key projection, since keys are rotated. Layers that use
    another's keys and values and recurrent ones (see `state_bytes`) add nothing; multi-token prediction is not counted.

    >>> from ridgeline.core.dtype import dtype
    >>> from ridgeline.models.load import model
    >>> kv_cache_bytes_per_token(model("deepseek-v3"), dtype("bf16"))  # 61 * (512 + 64) * 2
    70272.0
    """
    elements = sum(layers * cached_elements(block, spec.hidden) for block, layers in spec.counts())
    return elements * dtype.bytes_per_element


def kv_cache_bytes(spec: ModelSpec, tokens: int, dtype: DType) -> float:
    """Bytes the cache of one sequence of `tokens` holds; a layer with a window keeps no more than its window.

    >>> from ridgeline.core.dtype import dtype
    >>> from ridgeline.models.load import model
    >>> gib = kv_cache_bytes(model("gpt-oss-120b"), 131072, dtype("bf16")) / 2**30
    >>> round(gib, 3)  # 18 of 36 layers keep 128 tokens
    4.504
    """
    elements = sum(layers * resident_elements(block, spec.hidden, tokens) for block, layers in spec.counts())
    return elements * dtype.bytes_per_element


def state_bytes(spec: ModelSpec, dtype: DType) -> float:
    """Bytes of recurrent state one sequence holds, whatever its length.

        mamba2        H*p*s + (k - 1) * (H*p + 2*g*s)
        gated delta   Hv*dk*dv + (k - 1) * (2*Hk*dk + Hv*dv)
        others        `ridgeline.models.recurrent_parts`

    H, p, s, g = heads, their size, state, groups; Hk, Hv, dk, dv = key and value heads and their sizes; k = conv.

    >>> from ridgeline.core.dtype import dtype
    >>> from ridgeline.models.load import model
    >>> round(state_bytes(model("mamba2-2.7b"), dtype("fp32")) / 2**20, 1)
    163.9
    """
    elements = sum(
        layers * sum(mixer_parts(mixer, spec.hidden).state for mixer in block.mixers) for block, layers in spec.counts()
    )
    return elements * dtype.bytes_per_element


def cached_elements(block: Block, hidden: int) -> float:
    """Elements one more token leaves in the caches of a layer that is still inside its window."""
    return sum(row.elements / row.rate for row in _written(block, hidden)) + _captured_cache(block)


def resident_elements(block: Block, hidden: int, tokens: int) -> float:
    """Elements that the caches of a layer hold of a sequence of `tokens`."""
    return sum(row.elements * row.tokens(tokens) for row in _written(block, hidden)) + _captured_cache(block) * tokens


def read_elements(block: Block, hidden: int, context: int) -> float:
    """Cache elements one decode step of one sequence reads in a layer; of shared keys and values another's."""
    rows = _rows(block, hidden)
    return sum(row.elements * row.tokens(context, read=True) for row in rows) + _captured_cache(block) * context


def _rows(block: Block, hidden: int) -> list[CacheRow]:
    return [row for mixer in block.mixers for row in mixer_parts(mixer, hidden).cache]


def _written(block: Block, hidden: int) -> list[CacheRow]:
    return [row for row in _rows(block, hidden) if row.written]


def _captured_cache(block: Block) -> int:
    """Elements a token leaves behind in what was captured of a layer."""
    return block.captured.cached if block.captured else 0


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
    flops, read = head_flops(spec) + 2.0 * spec.embedding.further_weights, 0.0
    for block, layers in spec.counts():
        layer = block_flops(block, spec.hidden, 0, causal=False).total
        parts = [mixer_parts(mixer, spec.hidden) for mixer in block.mixers]
        flops += layers * (layer + sum(_decode_scores(mixer, context) for mixer in parts))
        read += layers * read_elements(block, spec.hidden, context)
    cache = read * dtype.bytes_per_element + kv_cache_bytes_per_token(spec, dtype) + 2 * state_bytes(spec, dtype)
    weights = _touched_weights(spec, batch) * dtype.bytes_per_element
    return Intensity(flops=batch * flops, weight_bytes=weights, cache_bytes=batch * cache)


def _decode_scores(parts: MixerParts, context: int) -> float:
    """Score flops of one new token that sees a cache of `context` tokens."""
    flops = 0.0
    for scores in parts.attended:
        entries = sum((min(context, span.window) if span.window else context) / span.rate for span in scores.spans)
        flops += 2.0 * entries * scores.heads * scores.decode_width
    return flops


def _touched_weights(spec: ModelSpec, tokens: int) -> float:
    """Parameters a pass over `tokens` reads: all but images, experts nobody picked, and embedding rows looked up."""
    parts = count(spec)
    weights = float(parts.total - parts.experts - parts.vision - parts.encoder - spec.embedding.further_rows)
    weights -= parts.audio + parts.companions
    if not spec.embedding.tied:
        weights -= parts.embedding - spec.embedding.further_rows - spec.embedding.further_weights
    for block, layers in spec.counts():
        if isinstance(block.ffn, Moe):
            expert = moe_params(block.ffn, spec.hidden).experts / block.ffn.experts
            weights += layers * expert * experts_touched(block.ffn.experts, block.ffn.topk, tokens)
    return weights
