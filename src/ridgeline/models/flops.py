"""Turn a ModelSpec into the flops of one token, part by part: forward, and of a training step.

Closed forms. Two flops are one multiply-add; an element of a weight matrix is one multiply-add a token. Recurrences are
counted token by token, as published MFU does: what a chunked kernel does more is priced, not counted here. Not counted:
the embedding lookup, norms, activations, softmax, rotations, biases.
"""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from typing import assert_never

from ridgeline.core.records import dataclass
from ridgeline.models.compressed import compressed_weights
from ridgeline.models.recurrent import recurrent_parts
from ridgeline.models.spec import (
    Attention,
    Block,
    Captured,
    CompressedAttention,
    Ffn,
    GatedDeltaNet,
    LatentAttention,
    Mamba2,
    Mixer,
    Mlp,
    ModelSpec,
    Moe,
    Recurrence,
)
from ridgeline.models.visible import mean_entries, mean_visible


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
    width, own = spec.embedding.width, spec.head
    if own is not None and not spec.speaks:
        return 2.0 * (spec.hidden * own.outputs + own.dense)
    return 2.0 * (own.dense if own else 0) + 2.0 * (spec.vocab * (width or spec.hidden) + spec.hidden * width)


def block_flops(block: Block, hidden: int, context: int, causal: bool, source: int = 0) -> FlopCount:
    """Flops of one token in one layer; of cross attention what works on the layer's own tokens, keys and values not."""
    mixer = FlopCount()
    for one in block.mixers:
        mixer = mixer + _mixer_flops(one, hidden, context, causal)
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
            around = hidden * (ffn.choices + ffn.shared_gate + 2 * ffn.latent)
            return FlopCount(experts=2.0 * matrices * visited, router=2.0 * around)
        case _:
            assert_never(ffn)


def _mixer_flops(mixer: Mixer, hidden: int, context: int, causal: bool) -> FlopCount:
    match mixer:
        case Attention():
            wide = mixer.heads * (mixer.head_dim * (2 if mixer.gate else 1) + mixer.value_dim)
            keys = mixer.projected_kv
            seen = mean_visible(context, mixer.window, mixer.chunked, causal and mixer.causal)
            scores = 2 * seen * mixer.heads * (mixer.head_dim + mixer.value_dim)
            return FlopCount(projections=2.0 * hidden * (wide + keys), scores=scores)
        case LatentAttention():
            return _latent_flops(mixer, hidden, context, causal)
        case CompressedAttention():
            return _compressed_flops(mixer, hidden, context, causal)
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
        case Recurrence():
            parts = recurrent_parts(mixer, hidden)
            return FlopCount(state=2.0 * parts.weights + parts.scan_flops)
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


def _compressed_flops(mixer: CompressedAttention, hidden: int, context: int, causal: bool) -> FlopCount:
    """2 * weights of its products, 2*n*H*2*d of the entries it attends to, 2*n'*I*i of those an indexer scores."""
    near, pooled, scored = mean_entries(mixer, context, causal)
    index = mixer.indexer.heads * mixer.indexer.head_dim if mixer.indexer else 0
    scores = 4.0 * (near + pooled) * mixer.heads * mixer.head_dim + 2.0 * scored * index
    return FlopCount(projections=2.0 * compressed_weights(mixer, hidden), scores=scores)
