"""Turn a ModelSpec into its exact number of parameters, part by part.

A parameter is a trained tensor element: buffers that training only adjusts (a router's balancing bias) are not counted.
`ParamCount.total` leaves out multi-token prediction, as model cards and transformers do when they count the main model;
`total_with_mtp` has everything.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import assert_never

from ridgeline.models.compressed import compressed_vectors, compressed_weights
from ridgeline.models.recurrent import recurrent_parts
from ridgeline.models.spec import (
    Attention,
    Audio,
    Block,
    CompressedAttention,
    Encoder,
    Ffn,
    GatedDeltaNet,
    Indexer,
    LatentAttention,
    Mamba2,
    Mixer,
    Mlp,
    ModelSpec,
    Moe,
    Mtp,
    Norm,
    Recurrence,
    Vision,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamCount:
    """Parameters of a model by part; each tensor is in exactly one part.

    embedding       token and position rows, their projection and norm
    attention       every sequence mixer, its inner norms included: softmax, latent, state space, delta rule
    mlp             dense feed-forward
    experts         routed experts, all of them
    visited         the part of `experts` that one token passes through; not a further part of the sum
    shared_experts  experts that every token visits
    router          what stands around the experts: scores, gate of the shared part, projections to a latent width
    norms           norms of the hidden width, the final one included
    head            output matrix and bias; 0 when it is the embedding
    vision          image encoder and projector
    audio           audio encoder and projector
    companions      networks of the same file that take no part: an omni model's talker and vocoder
    encoder         the stack that cross attention reads; its layers, and what stands around them
    mtp             multi-token prediction
    extra           vectors that no other part describes, and what was captured beside the parts
    """

    embedding: int = 0
    attention: int = 0
    mlp: int = 0
    experts: int = 0
    visited: int = 0
    shared_experts: int = 0
    router: int = 0
    norms: int = 0
    head: int = 0
    vision: int = 0
    audio: int = 0
    companions: int = 0
    encoder: int = 0
    mtp: int = 0
    extra: int = 0

    @property
    def total_with_mtp(self) -> int:
        """All parts."""
        parts: tuple[int, ...] = astuple(self)
        return sum(parts) - self.visited

    @property
    def total(self) -> int:
        """All parts except multi-token prediction."""
        return self.total_with_mtp - self.mtp

    @property
    def active(self) -> int:
        """The part of `total` that takes part in one token: routed experts it does not visit are left out.

            total - experts + visited - companions

        Embedding and head count once each, as in `total`; encoders of images and sound and their projectors are
        included, what speaks an answer aloud is not.
        """
        return self.total - self.experts + self.visited - self.companions

    def __add__(self, other: ParamCount) -> ParamCount:
        names = [field.name for field in fields(self)]
        return ParamCount(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def times(self, count: int) -> ParamCount:
        """Every part that many times."""
        return ParamCount(**{field.name: getattr(self, field.name) * count for field in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeParams:
    """Parameters of one mixture of experts; `visited` is the part of `experts` that one token passes through."""

    experts: int
    visited: int
    shared_experts: int
    router: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.experts + self.shared_experts + self.router


def count(spec: ModelSpec) -> ParamCount:
    """Parameters of the whole model.

        embedding + sum over layers of (mixer + ffn + norms + extra) + final norm + head + vision + audio

    >>> from ridgeline.models.spec import Embedding
    >>> block = Block(mixer=Attention(heads=32, kv_heads=8, head_dim=128), ffn=Mlp(hidden=14336))
    >>> llama3_8b = ModelSpec(id="llama3-8b", name="Llama 3 8B", hidden=4096, vocab=128256,
    ...                       embedding=Embedding(), blocks=(block,), order=(0,) * 32)
    >>> count(llama3_8b).total
    8030261248
    """
    parts = ParamCount(
        embedding=_embedding_params(spec),
        head=_head_params(spec),
        norms=spec.norm.params(spec.hidden) if spec.norm else 0,
        vision=vision_params(spec.vision) if spec.vision else 0,
        audio=audio_params(spec.audio) if spec.audio else 0,
        companions=sum(one.params for one in spec.companions),
        encoder=encoder_params(spec.encoder) if spec.encoder else 0,
        mtp=mtp_params(spec.mtp, spec.hidden) if spec.mtp else 0,
    )
    for block, layers in spec.counts():
        parts = parts + block_parts(block, spec.hidden).times(layers)
    return parts


def block_params(block: Block, hidden: int) -> int:
    """Parameters of one layer, all experts included: mixer + ffn + norms + extra."""
    return block_parts(block, hidden).total


def block_parts(block: Block, hidden: int) -> ParamCount:
    """Parameters of one layer by part."""
    many = block.streams
    parts = ParamCount(
        attention=many * sum(mixer_params(mixer, hidden) for mixer in block.mixers)
        + (mixer_params(block.cross, hidden) if block.cross else 0),
        norms=many * block.norms * block.norm.params(hidden),
        extra=many * modulation_params(block, hidden) + block.extra + (block.captured.params if block.captured else 0),
    )
    match block.ffn:
        case None:
            return parts
        case Mlp():
            return parts + ParamCount(mlp=many * ffn_params(block.ffn, hidden))
        case Moe():
            moe = moe_params(block.ffn, hidden)
            return parts + ParamCount(
                experts=moe.experts, visited=moe.visited, shared_experts=moe.shared_experts, router=moe.router
            )
        case _:
            assert_never(block.ffn)


def modulation_params(block: Block, hidden: int) -> int:
    """Parameters of what makes a layer's modulation: m * (w * h + h); m = vectors, w = width of what makes them."""
    return block.modulation * (modulation_inputs(block, hidden) * hidden + hidden)


def modulation_inputs(block: Block, hidden: int) -> int:
    """Width of what a layer's modulation is made of: hidden unless the block says otherwise."""
    return hidden if block.modulation_width is None else block.modulation_width


def mixer_params(mixer: Mixer, hidden: int) -> int:
    """Parameters of one sequence mixer, its inner norms included."""
    match mixer:
        case Attention():
            return _attention_params(mixer, hidden)
        case LatentAttention():
            return _latent_params(mixer, hidden)
        case Mamba2():
            return _mamba2_params(mixer, hidden)
        case GatedDeltaNet():
            return _delta_params(mixer, hidden)
        case Recurrence():
            return recurrent_parts(mixer, hidden).params
        case CompressedAttention():
            return compressed_weights(mixer, hidden) + compressed_vectors(mixer)
        case _:
            assert_never(mixer)


def ffn_params(ffn: Ffn, hidden: int) -> int:
    """Parameters of one feed-forward part, all experts included.

        mlp:  m*h*f + bias*((m-1)*f + h)          moe: see `moe_params`

    h = hidden, f = width inside, m = 3 matrices when gated and 2 when not.

    >>> ffn_params(Mlp(hidden=14336), 4096)
    176160768
    """
    match ffn:
        case Mlp():
            return _matrices(hidden, ffn.hidden, ffn.gated, ffn.bias)
        case Moe():
            return moe_params(ffn, hidden).total
        case _:
            assert_never(ffn)


def moe_params(moe: Moe, hidden: int) -> MoeParams:
    """Parameters of one mixture of experts.

        one expert  m*l*f + bias*((m-1)*f + l)        experts  E * one expert         visited  K * one expert
        shared      m*h*s                             router   h*C + router_bias*C + shared_gate*h + latent*2*h*l

    h = hidden, l = latent width or h, f = width inside an expert, s = width of the shared part, E = experts, K = topk,
    C = E and choices that do nothing, m = 3 matrices when gated and 2 when not. The shared part has no biases.

    >>> mixtral = moe_params(Moe(experts=8, topk=2, hidden=14336), 4096)
    >>> mixtral.experts, mixtral.visited, mixtral.router
    (1409286144, 352321536, 32768)
    """
    expert = _matrices(moe.latent or hidden, moe.hidden, moe.gated, moe.bias)
    router = hidden * moe.choices + moe.choices * moe.router_bias
    return MoeParams(
        experts=moe.experts * expert,
        visited=moe.topk * expert,
        shared_experts=_matrices(hidden, moe.shared_hidden, moe.gated, False),
        router=router + hidden * moe.shared_gate + 2 * hidden * moe.latent,
    )


def vision_params(vision: Vision) -> int:
    """Parameters of the image encoder and the projector: layers * block + what stands around them."""
    blocks = vision.layers * block_params(vision.block, vision.hidden)
    return blocks + vision.projector_params + vision.other_params


def audio_params(audio: Audio) -> int:
    """Parameters of the audio encoder and the projector: layers * block + what stands around them."""
    blocks = audio.layers * block_params(audio.block, audio.hidden)
    return blocks + audio.projector_params + audio.other_params


def encoder_params(encoder: Encoder) -> int:
    """Parameters of the stack that cross attention reads: layers * block + what stands around them."""
    return encoder.layers * block_params(encoder.block, encoder.hidden) + encoder.other_params


def mtp_params(mtp: Mtp, hidden: int) -> int:
    """Parameters of multi-token prediction: depth * (block + 2*h*h + three norms). Embedding and head are the model's.

    >>> mtp_params(Mtp(depth=1, block=Block(mixer=None, ffn=Mlp(hidden=4), norms=1)), 2)
    40
    """
    return mtp.depth * (block_params(mtp.block, hidden) + 2 * hidden * hidden + 3 * mtp.block.norm.params(hidden))


def _matrices(width: int, inner: int, gated: bool, bias: bool) -> int:
    into = 2 if gated else 1
    return (into + 1) * width * inner + (into * inner + width if bias else 0)


def _embedding_params(spec: ModelSpec) -> int:
    """vocab * w + positions * h + (w * h when w is not h) + norm + further rows and weights; w = width of a row,
    h = hidden. What embeds latents, text and timestep instead where it has no words."""
    embedding = spec.embedding
    if spec.latent_space is not None:
        return spec.latent_space.other_params
    rows = spec.vocab * (embedding.width or spec.hidden) + embedding.positions * spec.hidden
    norm: Norm | None = embedding.norm
    further = embedding.further_rows + embedding.further_weights
    return rows + embedding.width * spec.hidden + (norm.params(spec.hidden) if norm else 0) + further


def _head_params(spec: ModelSpec) -> int:
    """(vocab * w unless tied) + (h * w when w is not h) + bias; w = width of a row, h = hidden.

    Another head: h * outputs + its dense layers, biases and norms; before logits, these beside them.
    """
    embedding, own = spec.embedding, spec.head
    dense = own.dense + own.extra if own else 0
    if own is not None and not spec.speaks:
        return spec.hidden * own.outputs + dense
    matrix = 0 if embedding.tied else spec.vocab * (embedding.width or spec.hidden)
    return matrix + spec.hidden * embedding.width + spec.vocab * embedding.head_bias + dense


def _attention_params(mixer: Attention, hidden: int) -> int:
    """Parameters of softmax attention.

        weights   h*(H*d*(1 + gate) + G*(d + v)) + H*v*h
        biases    qkv_bias*(H*d*(1 + gate) + G*(d + v)) + out_bias*h
        qk_norm   head: 2*d      full: (H + G)*d
        sinks     H

    h = hidden, H = heads, G = kv_heads, d = head_dim, v = value head_dim; G*d instead of G*(d + v) with keys_as_values,
    nothing for keys and values with kv_shared, whose head norm is of queries alone; G*v in biases without key_bias.

    >>> _attention_params(Attention(heads=32, kv_heads=8, head_dim=128), 4096)
    41943040
    """
    queries = mixer.heads * mixer.head_dim * (2 if mixer.gate else 1)
    projected = queries + mixer.projected_kv
    norms = normed_vectors(mixer) * mixer.head_dim
    biases = (projected - unbiased(mixer)) * mixer.qkv_bias + hidden * mixer.out_bias
    return hidden * projected + mixer.heads * mixer.value_dim * hidden + biases + norms + mixer.heads * mixer.sinks


def normed_vectors(mixer: Attention) -> int:
    """Vectors of a head's size that norms of queries and keys hold; keys of another layer are normed there."""
    own = 0 if mixer.kv_shared else 1
    return {"none": 0, "head": 1 + own, "full": mixer.heads + own * mixer.kv_heads}[mixer.qk_norm]


def unbiased(mixer: Attention) -> int:
    """Projected elements that have no bias though queries have one: keys, where `key_bias` says so."""
    return 0 if mixer.key_bias else mixer.kv_heads * mixer.head_dim


def _latent_params(mixer: LatentAttention, hidden: int) -> int:
    """Parameters of latent attention, its two latent norms and its indexer.

        queries    h*q + q + q*H*(n + r)        without a query latent: h*H*(n + r)
        keys       h*(c + r) + c + c*H*(n + v)
        output     H*v*h
        biases     q + (c + r) + h
        indexer    q*I*i + h*i + 2*i + h*I

    h = hidden, H = heads, q = q_rank, c = kv_rank, n = nope_dim, r = rope_dim, v = v_dim, I = indexer heads of size i.

    >>> _latent_params(LatentAttention(heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128), 7168)
    187107328
    """
    wide = mixer.heads * (mixer.nope_dim + mixer.rope_dim)
    rank, cached = mixer.q_rank, mixer.kv_rank + mixer.rope_dim
    queries = hidden * rank + rank + rank * wide if rank else hidden * wide
    keys = hidden * cached + mixer.kv_rank + mixer.kv_rank * mixer.heads * (mixer.nope_dim + mixer.v_dim)
    biases = rank + cached + hidden if mixer.bias else 0
    return queries + keys + mixer.heads * mixer.v_dim * hidden + biases + indexer_params(mixer.indexer, rank, hidden)


def indexer_params(indexer: Indexer | None, rank: int, hidden: int) -> int:
    """Parameters of the scorer of sparse attention: q*I*i + h*i + 2*i + h*I, as in `_latent_params`."""
    if indexer is None or indexer.shared:
        return 0
    dim = indexer.head_dim
    return (rank or hidden) * indexer.heads * dim + hidden * dim + 2 * dim + hidden * indexer.heads


def _mamba2_params(mixer: Mamba2, hidden: int) -> int:
    """Parameters of a state-space mixer.

        in      h*(2*e + 2*g*s + H)  + proj_bias*(2*e + 2*g*s + H)
        conv    (e + 2*g*s) * (k + conv_bias)
        heads   3*H                             decay, step bias and skip
        norm    e, if any
        out     e*h + proj_bias*h

    h = hidden, H = heads, e = H * head_dim, g = groups, s = state, k = conv.

    >>> _mamba2_params(Mamba2(heads=128, head_dim=64, state=128, groups=8), 4096)
    109635968
    """
    inner, states = mixer.inner, 2 * mixer.groups * mixer.state
    wide = 2 * inner + states + mixer.heads
    conv = (inner + states) * (mixer.conv + mixer.conv_bias)
    biases = (wide + hidden) * mixer.proj_bias
    return hidden * wide + conv + 3 * mixer.heads + inner * mixer.gated_norm + inner * hidden + biases


def _delta_params(mixer: GatedDeltaNet, hidden: int) -> int:
    """Parameters of a gated delta-rule mixer.

        in      h*(2*K + 2*V + 2*Hv)            queries, keys, values, output gate; step size and decay per value head
        conv    (2*K + V) * k
        heads   2*Hv                            decay and step bias
        norm    value_dim
        out     V*h

    h = hidden, K = key_heads * key_dim, V = value_heads * value_dim, Hv = value_heads, k = conv.

    >>> _delta_params(GatedDeltaNet(key_heads=16, value_heads=32, key_dim=128, value_dim=128), 2048)
    33718464
    """
    keys, values = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
    projected = 2 * keys + 2 * values + 2 * mixer.value_heads
    conv = (2 * keys + values) * mixer.conv
    return hidden * projected + conv + 2 * mixer.value_heads + mixer.value_dim + values * hidden
