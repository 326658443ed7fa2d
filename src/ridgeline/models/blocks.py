"""What one layer of a model is, as frozen values: a sequence mixer, cross attention, a feed-forward part, their norms.

`ridgeline.models.spec` puts layers together and is where all of these are imported from.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from ridgeline.core.errors import Problem
from ridgeline.core.records import dataclass
from ridgeline.core.table import AtLeast, Count, Size

Positions = Literal["rope", "learned", "alibi", "relative", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """A normalisation over one vector. `bias` adds a second vector; `weight` is False for parameter-free norms."""

    kind: Literal["rms", "layer"] = "rms"
    bias: bool = False
    weight: bool = True

    def params(self, width: int) -> int:
        """Parameters of this norm over a vector of `width`."""
        return width * (int(self.weight) + int(self.bias))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Softmax attention with grouped keys: kv_heads = heads is MHA, 1 is MQA, between is GQA.

    window    tokens a query sees; 0 is all of them
    chunked   the window is a fixed block of the sequence rather than a sliding one
    qk_norm   norm of queries and keys: none, one vector per head size, one over all heads together
    gate      a sigmoid gate as wide as the queries multiplies the output
    sinks     one learned logit per head joins the softmax
    keys_as_values  values come from the key projection, so there is no third one
    softcap   scores are squashed by a tanh before the softmax
    causal    a query sees what comes before it; False: all of its sequence, as in an encoder
    key_bias  keys have a bias where `qkv_bias` says so; False: queries and values alone
    kv_shared keys and values are those of an earlier layer: no projections of them here, nothing cached
    """

    kind: Literal["attention"] = "attention"
    heads: Count
    kv_heads: Count
    head_dim: Count
    v_head_dim: Size = 0  # 0: as head_dim
    window: Size = 0
    chunked: bool = False
    positions: Positions = "rope"
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"
    gate: bool = False
    sinks: bool = False
    keys_as_values: bool = False
    softcap: bool = False
    causal: bool = True
    key_bias: bool = True
    kv_shared: bool = False

    @property
    def projected_kv(self) -> int:
        """Elements of keys and values that this layer projects for a token."""
        if self.kv_shared:
            return 0
        return self.kv_heads * (self.head_dim + (0 if self.keys_as_values else self.value_dim))

    @property
    def kv(self) -> int:
        """Elements of a token's keys and values."""
        return self.kv_heads * (self.head_dim + self.value_dim)

    @property
    def width(self) -> int:
        """Elements of a token's queries and outputs."""
        return self.heads * (self.head_dim + self.value_dim)

    @property
    def value_dim(self) -> int:
        """Width of one value head."""
        return self.v_head_dim or self.head_dim

    def problems(self) -> Iterable[Problem]:
        if self.heads % self.kv_heads:
            yield Problem(
                path="kv_heads",
                given=str(self.kv_heads),
                expected=f"a divisor of heads ({self.heads})",
                todo="give kv_heads = heads for plain multi-head attention",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """A light scorer that picks which `topk` tokens sparse attention looks at.

    shared    the choice of an earlier layer is used again, so this layer holds no scorer of its own
    """

    heads: Count
    head_dim: Count
    topk: Count
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (MLA): keys and values come from one small latent per token.

    q_rank    width of the query latent; 0 projects queries directly
    kv_rank   width of the key-value latent, which is what the cache holds together with rope_dim
    """

    kind: Literal["mla"] = "mla"
    heads: Count
    q_rank: Size
    kv_rank: Count
    nope_dim: Count
    rope_dim: Count
    v_dim: Count
    bias: bool = False
    indexer: Indexer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention:
    """Attention over one shared key-value head, near tokens as they are and far ones pooled (DeepSeek-V4).

    head_dim  of the single head that serves as key and as value
    q_rank    width of the query latent
    window    tokens before a query that it sees as they are
    rate      tokens that are pooled into one entry; 0: none, the window alone
    overlap   an entry pools the tokens of its neighbour too (CSA); its pooling is twice as wide
    indexer   picks which entries a query sees (CSA); None: all of them (HCA)
    o_groups  groups of heads that the output is projected down in, each to o_rank
    """

    kind: Literal["compressed"] = "compressed"
    heads: Count
    head_dim: Count
    q_rank: Count
    window: Count
    rate: Size = 0
    overlap: bool = False
    indexer: Indexer | None = None
    o_groups: Count = 1
    o_rank: Count

    @property
    def pooled(self) -> int:
        """Elements of a token that are pooled into entries: its values, twice where entries overlap."""
        return (2 if self.overlap else 1) * self.head_dim if self.rate else 0

    def problems(self) -> Iterable[Problem]:
        if self.heads % self.o_groups:
            yield Problem(path="o_groups", given=str(self.o_groups), expected=f"a divisor of heads ({self.heads})")
        if self.indexer and not self.rate:
            yield Problem(path="indexer", given="an indexer", expected="a rate: it picks among pooled entries")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """State-space mixer (SSD): inner width heads * head_dim, one state of head_dim x state per head.

    chunk     tokens that its scan works on at once, as attention; states travel between chunks
    gated_norm  a norm stands behind the scan and its gate; False: the gate alone
    """

    kind: Literal["mamba2"] = "mamba2"
    heads: Count
    head_dim: Count
    state: Count
    groups: Count = 1
    conv: Count = 4
    conv_bias: bool = True
    proj_bias: bool = False
    chunk: Count = 128
    gated_norm: bool = True

    @property
    def inner(self) -> int:
        """Width of the expanded stream."""
        return self.heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNet:
    """Linear attention with the gated delta rule: one key_dim x value_dim state per value head."""

    kind: Literal["gated-delta"] = "gated-delta"
    key_heads: Count
    value_heads: Count
    key_dim: Count
    value_dim: Count
    conv: Count = 4


RecurrentForm = Literal["selective", "lightning", "kda", "mlstm", "wkv", "short-conv"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """A recurrent mixer of another kind: a state of key_dim x value_dim numbers a head (`models.recurrent_parts`).

    form      selective   Mamba 1: every channel is a head, key_dim its state; steps of every token through `rank`
              lightning   MiniMax: linear attention whose state decays at a fixed rate, a norm and a gate behind it
              kda         Kimi delta attention: the delta rule with a decay of every channel, made through `rank`
              mlstm       xLSTM: matrix memory with an input and a forget gate of every head
              wkv         RWKV 4: a weighed mean of every channel, from a token and the one before it
              short-conv  LFM 2: nothing but a short convolution between two gates
    conv      tokens of a short causal convolution; 0: none
    chunk     tokens that its scan works on at once; 0: token by token
    bias      projections have a bias        inner_norms   of what steps are made of (Jamba)
    """

    kind: Literal["recurrence"] = "recurrence"
    form: RecurrentForm
    heads: Count
    key_dim: Count = 1
    value_dim: Count = 1
    rank: Size = 0
    conv: Size = 0
    conv_bias: bool = False
    bias: bool = False
    inner_norms: bool = False
    chunk: Size = 0

    @property
    def keys(self) -> int:
        """Width of all keys."""
        return self.heads * self.key_dim

    @property
    def inner(self) -> int:
        """Width of all values."""
        return self.heads * self.value_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """Dense feed-forward; gated has three matrices (up, gate, down), otherwise two."""

    kind: Literal["mlp"] = "mlp"
    hidden: Count
    gated: bool = True
    activation: str = "silu"
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """Mixture of experts.

    hidden         width inside one routed expert
    shared_hidden  total width of the experts every token visits; 0 for none
    shared_gate    a sigmoid gate of one output weighs the shared part
    groups         expert groups; routing first picks `group_topk` of them
    latent         width at which routed experts read and write; 0: the model's hidden
    idle           further choices of the router that do nothing (zero experts); `topk` counts real ones, on average
    """

    kind: Literal["moe"] = "moe"
    experts: Count
    topk: Count
    hidden: Count
    shared_hidden: Size = 0
    shared_gate: bool = False
    gated: bool = True
    activation: str = "silu"
    bias: bool = False
    router_bias: bool = False
    groups: Count = 1
    group_topk: Count = 1
    latent: Size = 0
    idle: Size = 0

    @property
    def choices(self) -> int:
        """Outputs of the router."""
        return self.experts + self.idle

    def problems(self) -> Iterable[Problem]:
        if self.topk > self.experts:
            yield Problem(path="topk", given=str(self.topk), expected=f"at most experts ({self.experts})")
        if self.experts % self.groups:
            yield Problem(path="groups", given=str(self.groups), expected=f"a divisor of experts ({self.experts})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A matrix product that a recorded forward ran: `rows` a token, each of `inputs` to `outputs` numbers.

    groups    such products side by side, each with a matrix of its own
    weights   one factor is a parameter; False: both are made of tokens
    """

    label: str
    inputs: Count
    outputs: Count
    rows: Annotated[float, AtLeast(0)] = 1.0
    groups: Count = 1
    weights: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """What a recorded forward of a layer did that no other part describes (`ridgeline.runtime.capture`).

    products     matrix products, those between activations included
    scores       softmax attention apart from its projections: heads, their sizes, window
    pair_flops   flops for each pair of a token and one that it sees, beside the scores
    scan_flops   flops a token of recurrences that ran token by token
    streams      elements a token that pointwise ops and reductions write, in `kernels` ops
    params       parameters, those of the products included
    saved        elements a token that the backward reads again
    cached       elements a token leaves in a cache
    mixes        tokens see each other in it: no tensor and context ranks split it
    """

    products: tuple[Product, ...] = ()
    scores: tuple[Attention, ...] = ()
    pair_flops: Annotated[float, AtLeast(0)] = 0.0
    scan_flops: Annotated[float, AtLeast(0)] = 0.0
    streams: Annotated[float, AtLeast(0)] = 0.0
    kernels: Annotated[float, AtLeast(0)] = 0.0
    params: Size = 0
    saved: Annotated[float, AtLeast(0)] = 0.0
    cached: Size = 0
    mixes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRecord:
    """That a description was recorded rather than read: by what, over how many tokens, and what could not be told."""

    by: str
    tokens: tuple[int, ...] = ()
    untold: tuple[str, ...] = ()


Mixer = Attention | LatentAttention | CompressedAttention | Mamba2 | GatedDeltaNet | Recurrence
Ffn = Mlp | Moe


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One layer: a sequence mixer, a feed-forward part, or both.

    norms     how many norms of the hidden width it holds (2 for pre-norm, 4 with norms after each part too)
    parallel  mixer and feed-forward read the same input and are added together
    beside    a second mixer that reads what the first one reads; their results are added (Falcon H1)
    cross     attention between the two parts, whose keys and values are made of the encoder's output
    extra     parameters that no part above describes (layer scales and such)
    captured  what a recorded forward did beside mixer and ffn, or instead of them
    streams   kinds of tokens with weights of their own that see each other (MMDiT: latents and text); a token passes
              through one of them
    modulation  vectors of the hidden width that scale, shift and gate its parts, made of the timestep once a sequence
    modulation_width  width of what they are made of; absent: hidden; 0: all layers share them, and each adds its own
    """

    mixer: Mixer | None
    ffn: Ffn | None
    norm: Norm = Norm()
    norms: Size = 2
    parallel: bool = False
    extra: Size = 0
    cross: Attention | None = None
    captured: Captured | None = None
    streams: Count = 1
    modulation: Size = 0
    modulation_width: Size | None = None
    beside: Mixer | None = None

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """Its sequence mixers, cross attention apart."""
        return tuple(mixer for mixer in (self.mixer, self.beside) if mixer is not None)
