"""What the parts of a layer consist of: one description, of which everything else about a layer is a sum or a walk.

    Projection   a product with weights, and what tensor ranks split of it
    core         what stands between the projections of a mixer: scores or a scan
    Weight       a parameter tensor, vectors among them, with its dims and splits
    Attended     what a query sees, and the flops of seeing it
    CacheRow     what a token leaves behind for tokens to come; `Recurrent` what a sequence does
    RankSplits   what tensor and context ranks may share

Parameters, flops, caches, possible degrees, placements, and the ops of training and serving follow from these values.
`mixer_parts` and `ridgeline.models.parts` are where a kind of layer is described.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from math import prod
from typing import Literal, assert_never

from ridgeline.core.records import dataclass
from ridgeline.models.blocks import Attention, Ffn, Indexer, Mamba2, Mlp, Moe

SplitAxis = Literal["tp", "ep", "etp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A parameter tensor.

    splits   dims that ranks of an axis split; none: every rank holds all of it
    units    heads that the split dim consists of, which ranks beyond them hold copies of; 0: any share
    """

    name: str
    dims: tuple[int, ...]
    splits: tuple[tuple[int, SplitAxis], ...] = ()
    units: int = 0

    @property
    def elements(self) -> int:
        """Parameters of the whole tensor."""
        return prod(self.dims)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Outputs of a projection that are one weight.

    heads          heads they consist of where ranks may pad them; 0: never padded
    shared_heads   key-value heads they consist of, which tensor ranks beyond them hold copies of
    """

    name: str
    outputs: int
    heads: int = 0
    shared_heads: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A product with weights; numbers of one token.

    split     tensor ranks split its outputs (column parallel), its inputs (row parallel, then summed over ranks), its
              groups, or nothing
    groups    such products side by side, each with a matrix of its own
    heads     heads its inputs consist of where ranks may pad them; 0: never padded
    biased    the gradient of its bias is summed apart
    dealt     every tensor rank works on its own tokens where sequence parallelism deals them
    joins     widths of the modules that software may run instead of one product
    """

    label: str
    inputs: int
    columns: tuple[Columns, ...]
    split: Literal["outputs", "inputs", "groups", "none"] = "outputs"
    groups: int = 1
    heads: int = 0
    biased: bool = False
    dealt: bool = False
    joins: tuple[int, ...] = ()

    @property
    def outputs(self) -> int:
        """Elements that it makes of a token, in one group."""
        return sum(part.outputs for part in self.columns)

    @property
    def elements(self) -> int:
        """Elements of its matrices."""
        return self.inputs * self.outputs * self.groups

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Its matrices as tensors, outputs first."""
        dim: tuple[tuple[int, SplitAxis], ...] = () if self.split == "none" else ((int(self.split == "inputs"), "tp"),)
        return tuple(
            Weight(name=part.name, dims=(self.groups * part.outputs, self.inputs), splits=dim, units=part.shared_heads)
            for part in self.columns
            if part.outputs
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossCore:
    """Softmax attention whose keys and values are made of `source` positions of an encoder's output."""

    attention: Attention
    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentCore:
    """Attention over latents (MLA): keys and values expanded for every head, or queries moved into the latent."""

    heads: int
    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    indexer: Indexer | None = None

    @property
    def key_dim(self) -> int:
        """Width of an expanded key."""
        return self.nope_dim + self.rope_dim

    @property
    def latents(self) -> int:
        """Elements of a token's latents: of queries, of keys and values, and the rotary key."""
        return self.kv_rank + self.rope_dim + self.q_rank

    @property
    def absorbed(self) -> int:
        """Widths of a score's two products in the latent."""
        return 2 * self.kv_rank + self.rope_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledCore:
    """Attention over a window and pooled entries that share one head; fields as in `CompressedAttention`.

    pooled, index_pooled   elements of a token that are pooled into entries, and into an indexer's own
    """

    heads: int
    head_dim: int
    q_rank: int
    window: int
    rate: int
    pooled: int
    index_pooled: int
    indexer: Indexer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaScan:
    """A delta rule in chunks: one state of key_dim x value_dim a head."""

    heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScan:
    """Linear attention with a decay, in chunks; 0: the kernel's own size."""

    heads: int
    key_dim: int
    value_dim: int
    chunk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelScan:
    """A recurrence of every channel by itself, token after token: its flops a token, and numbers all channels share."""

    flops: float
    channels: int
    shared: int


Scan = Mamba2 | DeltaScan | LinearScan | ChannelScan
Core = Attention | CrossCore | LatentCore | PooledCore | Scan


@dataclass(frozen=True, slots=True, kw_only=True)
class AttendedSpan:
    """What a query sees of a sequence: all of it, or the last `window` tokens, `rate` of them in one entry."""

    window: int = 0
    chunked: bool = False
    causal: bool = True
    rate: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Attended:
    """Scores over the entries of some spans: 2 n H w flops of a query, n = entries it sees.

    heads, width    H, and the widths of a score's products together
    decode_width    the same for a new token that reads the cache
    """

    heads: int
    width: int
    decode_width: int
    spans: tuple[AttendedSpan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRow:
    """What a token leaves in a cache.

    elements   of an entry, which stands for `rate` tokens
    window     tokens a layer needs of it; 0: all
    rolling    no engine holds more than the window
    picked     tokens a decode reads at most; 0: all
    heads      key-value heads that tensor ranks split, a whole one at least each; 0: every rank holds all of it
    narrow     held in 8 bits whatever the format of the cache
    written    False: the layer reads the row of another one
    """

    elements: int
    window: int = 0
    rolling: bool = False
    picked: int = 0
    rate: int = 1
    heads: int = 0
    narrow: bool = False
    written: bool = True

    def tokens(self, context: int, *, read: bool = False) -> float:
        """Entries of a sequence of `context` tokens: those it holds, or those that a decode reads."""
        limit = self.window or (self.picked if read else 0)
        return (min(context, limit) if limit else context) / self.rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent:
    """What a mixer with a state has beside its products; numbers of one token unless they say otherwise.

    state        elements that a sequence holds whatever its length, read and written for every token
    conv_state   elements of the convolution's window where kernels keep them apart from the state
    flops        of the recurrence and the convolution, token by token
    convolved    elements that pass through the convolution
    gated        elements behind the scan that a norm or a gate works on
    """

    state: int
    conv_state: int = 0
    flops: float
    convolved: int
    gated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Elements of a token that the backward reads again, inputs of the layer apart.

    split    those that tensor ranks share      kv   of key-value heads, which ranks beyond them hold copies of
    whole    those that every rank holds        latents   those of a rank's own tokens, where they are dealt
    """

    split: int = 0
    kv: int = 0
    whole: int = 0
    latents: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadCount:
    """A count that tensor ranks must divide; a `shared` one may divide them instead, and is then replicated."""

    count: int
    name: str
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSplits:
    """What ranks may share of a mixer.

    tensor     counts that come out even over tensor ranks
    context    heads that context ranks exchange for sequence; 0: context ranks cannot share it
    traded     context ranks exchange heads whatever the plan says, as a recurrence needs all tokens
    whole      name of a mixer that no framework splits over tensor ranks
    recurrence name of a mixer that no framework splits over context ranks
    """

    tensor: tuple[HeadCount, ...] = ()
    context: int = 0
    traded: bool = False
    whole: str = ""
    recurrence: str = ""


@dataclass(frozen=True, kw_only=True)
class MixerParts:
    """A sequence mixer between its norm and its residual; sums over its parts are worked out once.

    name         first word of its tensors' names
    title        what it is, in a few words
    into, out    products before and behind the core
    index        products of an indexer that picks what the core sees
    core         scores or a scan; None: nothing but pointwise work
    vectors      parameters that are no matrices of products
    entering     elements of a token that tensor ranks exchange where they enter; 0: the model's hidden
    output       elements of a token that attention hands to its output product; 0: no attention
    widest       elements of a token that stand beside each other at the worst moment of a forward
    """

    name: str
    title: str
    into: tuple[Projection, ...]
    out: tuple[Projection, ...]
    core: Core | None
    splits: RankSplits
    index: tuple[Projection, ...] = ()
    vectors: tuple[Weight, ...] = ()
    attended: tuple[Attended, ...] = ()
    cache: tuple[CacheRow, ...] = ()
    recurrent: Recurrent | None = None
    saved: Saved = Saved()
    entering: int = 0
    output: int = 0
    widest: int = 0

    @cached_property
    def products(self) -> tuple[Projection, ...]:
        """All products, an indexer's among them."""
        return (*self.into, *self.index, *self.out)

    @cached_property
    def weights(self) -> tuple[Weight, ...]:
        """All parameters."""
        return (*(weight for product in self.products for weight in product.weights), *self.vectors)

    @cached_property
    def matrix_elements(self) -> int:
        """Elements of all matrices: multiply-adds of a token."""
        return sum(product.elements for product in self.products)

    @cached_property
    def params(self) -> int:
        """Number of all parameters."""
        return sum(weight.elements for weight in self.weights)

    @cached_property
    def replicated(self) -> int:
        """Parameters that every tensor rank holds; the few of a state-space or delta-rule layer count as split."""
        if self.splits.traded:
            return 0
        return sum(weight.elements for weight in self.weights if not weight.splits)

    @cached_property
    def shared(self) -> tuple[int, int]:
        """Parameters of key-value heads, and how many such heads there are (1 where there are none)."""
        rows = [weight for weight in self.weights if weight.units]
        return sum(weight.elements for weight in rows), rows[0].units if rows else 1

    @property
    def inner(self) -> int:
        """Width of what the core hands to the products behind it."""
        return self.out[0].inputs * self.out[0].groups

    @property
    def state(self) -> int:
        """Elements of recurrent state that one sequence holds, the convolution's window included."""
        return self.recurrent.state + self.recurrent.conv_state if self.recurrent else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseParts:
    """Up, activation, down; tensor ranks split the width inside.

    width   inside       gated   two products up instead of one, joined
    """

    name: str
    width: int
    gated: bool
    activation: str
    up: Projection
    down: Projection
    vectors: tuple[Weight, ...] = ()

    @property
    def weights(self) -> tuple[Weight, ...]:
        """All parameters."""
        return (*self.up.weights, *self.down.weights, *self.vectors)

    @property
    def biased(self) -> bool:
        """Whether its products have biases."""
        return self.up.biased

    @property
    def params(self) -> int:
        """Number of all parameters."""
        return sum(weight.elements for weight in self.weights)

    @property
    def replicated(self) -> int:
        """Parameters that every tensor rank holds: the bias of the output."""
        return sum(weight.elements for weight in self.weights if not weight.splits)


@dataclass(frozen=True, slots=True, kw_only=True)
class FfnParts:
    """A feed-forward part.

    dense     what every token passes: an MLP, or the shared experts beside routed ones
    moe       routed experts; None: there are none
    experts   matrices of routed experts, all of them        expert_biases   beside these
    router    what stands around the experts: scores, gate of the shared part, projections to a latent width
    router_bias   of the scores
    widest    elements of a token that stand beside each other at the worst moment of a forward
    """

    dense: DenseParts | None = None
    moe: Moe | None = None
    experts: tuple[Weight, ...] = ()
    expert_biases: tuple[Weight, ...] = ()
    router: tuple[Weight, ...] = ()
    router_bias: tuple[Weight, ...] = ()
    widest: int = 0

    @property
    def weights(self) -> tuple[Weight, ...]:
        """All parameters."""
        dense = self.dense.weights if self.dense else ()
        return (*self.router, *self.router_bias, *self.experts, *self.expert_biases, *dense)


@lru_cache(maxsize=1024)
def ffn_parts(ffn: Ffn, hidden: int) -> FfnParts:
    """The parts of a feed-forward part in a model of width `hidden`.

        mlp   m*h*f + bias*((m-1)*f + h)        h = hidden, f = width inside, m = 3 matrices when gated and 2 when not

    >>> sum(weight.elements for weight in ffn_parts(Mlp(hidden=14336), 4096).weights)
    176160768
    """
    match ffn:
        case Mlp():
            dense = _dense("mlp", hidden, ffn.hidden, ffn.gated, ffn.activation, bias=ffn.bias)
            return FfnParts(dense=dense, widest=ffn.hidden * (2 + ffn.gated))
        case Moe():
            return _routed_parts(ffn, hidden)
        case _:
            assert_never(ffn)


def _dense(name: str, hidden: int, width: int, gated: bool, activation: str, *, bias: bool = False) -> DenseParts:
    into = width * (1 + gated)
    up, down = Columns(name=f"{name}.up.weight", outputs=into), Columns(name=f"{name}.down.weight", outputs=hidden)
    vectors = (
        Weight(name=f"{name}.up.bias", dims=(into,), splits=((0, "tp"),)),
        Weight(name=f"{name}.down.bias", dims=(hidden,)),
    )
    return DenseParts(
        name=name,
        width=width,
        gated=gated,
        activation=activation,
        up=Projection(label="up", inputs=hidden, columns=(up,), biased=bias, joins=(1, 1) if gated else ()),
        down=Projection(label="down", inputs=width, columns=(down,), split="inputs", biased=bias),
        vectors=vectors if bias else (),
    )


def _routed_parts(moe: Moe, hidden: int) -> FfnParts:
    """A mixture of experts.

        one expert  m*l*f + bias*((m-1)*f + l)        experts  E * one expert         visited  K * one expert
        shared      m*h*s                             router   h*C + router_bias*C + shared_gate*h + latent*2*h*l

    h = hidden, l = latent width or h, f = width inside an expert, s = width of the shared part, E = experts, K = topk,
    C = E and choices that do nothing, m = 3 matrices when gated and 2 when not. The shared part has no biases.
    """
    inner, wide = moe.latent or hidden, moe.hidden * (1 + moe.gated)
    expert: tuple[int, SplitAxis] = (0, "ep")
    router = [Weight(name="router.weight", dims=(moe.choices, hidden))]
    if moe.latent:
        router.append(Weight(name="experts.latent.weight", dims=(2, moe.latent, hidden)))
    if moe.shared_gate:
        router.append(Weight(name="shared_expert.gate.weight", dims=(1, hidden)))
    biases = (
        Weight(name="experts.up.bias", dims=(moe.experts, wide), splits=(expert, (1, "etp"))),
        Weight(name="experts.down.bias", dims=(moe.experts, inner), splits=(expert,)),
    )
    shared = _dense("shared_expert", hidden, moe.shared_hidden, moe.gated, moe.activation)
    return FfnParts(
        dense=shared if moe.shared_hidden else None,
        moe=moe,
        experts=(
            Weight(name="experts.up.weight", dims=(moe.experts, wide, inner), splits=(expert, (1, "etp"))),
            Weight(name="experts.down.weight", dims=(moe.experts, inner, moe.hidden), splits=(expert, (2, "etp"))),
        ),
        expert_biases=biases if moe.bias else (),
        router=tuple(router),
        router_bias=(Weight(name="router.bias", dims=(moe.choices,)),) if moe.router_bias else (),
        widest=moe.topk * (moe.hidden * (2 + moe.gated) + hidden),
    )
