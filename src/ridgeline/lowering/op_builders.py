"""Build the ops of one rank: products and their gradients, memory-bound work, casts, adapters, borders of tensor ranks.

The border of a tensor-parallel part:

                    entry                                   exit
    sequence        all-gather of tokens                    reduce-scatter of tokens
      backward      all-gather again, reduce-scatter        all-gather of gradients
    without it      nothing                                 all-reduce
      backward      all-reduce of gradients                 nothing

A parallel block has one border around mixer and feed-forward: what both read is gathered once and the sum of both is
reduced once, so that each of them leaves out what the other one does.

A product whose outputs tensor ranks split needs nothing; one whose inputs they split is summed over ranks; one that
none splits runs whole on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from ridgeline.core.records import dataclass
from ridgeline.ir.forward_steps import ForwardSteps
from ridgeline.ir.fusions import op_passes
from ridgeline.ir.ops import Collective, CollectiveKind, MatMul, Num, Op, Stream
from ridgeline.lowering.context import LoweringContext
from ridgeline.models.parts import Columns, MixerParts, Projection
from ridgeline.plan.serving_plan import BARE

# kernels that scale rows, against those that scale a whole tensor: what torchao's runs of Llama-3-8B on eight H100
# leave of the gain in products once casts are counted, 0.7 to 0.85
ROW_SCALED = 0.75


Passes = tuple[Sequence[Op], Sequence[Op]]
"""Ops of the forward, and of the input gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SublayerOps:
    """Ops of one part of a layer for one microbatch on one rank.

    again   the forward ops that selective recompute of this part runs a second time
    saved   bytes saved for the backward; `saved_selective` when the part is recomputed selectively
    up      products out of a latent that recompute of `latent-up` runs a second time; `saved_up` the bytes it frees
    """

    forward: tuple[Op, ...] = ()
    backward_input: tuple[Op, ...] = ()
    backward_weight: tuple[Op, ...] = ()
    again: tuple[Op, ...] = ()
    saved: Num = 0
    saved_selective: Num = 0
    up: tuple[Op, ...] = ()
    saved_up: Num = 0
    params: Num = 0
    expert_params: Num = 0
    adapters: Num = 0


def together(*parts: SublayerOps) -> SublayerOps:
    """Parts that run one after the other; the backward runs them in reverse."""
    back = parts[::-1]
    return SublayerOps(
        forward=tuple(op for part in parts for op in part.forward),
        backward_input=tuple(op for part in back for op in part.backward_input),
        backward_weight=tuple(op for part in back for op in part.backward_weight),
        again=tuple(op for part in parts for op in part.again),
        saved=sum(part.saved for part in parts),
        saved_selective=sum(part.saved_selective for part in parts),
        up=tuple(op for part in parts for op in part.up),
        saved_up=sum(part.saved_up for part in parts),
        params=sum(part.params for part in parts),
        expert_params=sum(part.expert_params for part in parts),
        adapters=sum(part.adapters for part in parts),
    )


def row_alignment(n: Num, k: Num, bits: float) -> Num:
    """Bytes to which rows of n and of k elements are aligned, as far as libraries of products tell them apart.

        16   whole 16-byte loads: 8 elements of 16 bits, 16 of 8
        4    4-byte loads: pairs of 16-bit elements
        2    anything less

    The tokens of a microbatch never stand along a row. A share of a rank that is no whole number is rounded up.

    >>> row_alignment(4096, 50257, 16), row_alignment(4096, 50258, 16), row_alignment(4096, 50264, 16)
    (2.0, 4.0, 16.0)
    >>> row_alignment(np.array([4104.0, 4112.0]), 4096, 8).tolist()
    [4.0, 16.0]
    """
    fast, pairs = 128 / bits, max(32 / bits, 1.0)
    columns, right = np.ceil(n), np.ceil(k)
    ragged, odd_pairs = columns % fast + right % fast, columns % pairs + right % pairs
    if isinstance(ragged, np.ndarray):
        return np.where(ragged == 0, 16.0, np.where(odd_pairs == 0, 4.0, 2.0))
    return 16.0 if ragged == 0 else 4.0 if odd_pairs == 0 else 2.0


def _alignment(ctx: LoweringContext, n: Num, k: Num, bits: float) -> Num:
    """Of a product's rows; compilers pad what is not aligned: torch.compile (`shape_padding`) and XLA
    (`CublasPadForGemms`, and tiles on a TPU)."""
    return 16.0 if ctx.resolved.launch == "xla" or ctx.resolved.compiled else row_alignment(n, k, bits)


def matmul(ctx: LoweringContext, label: str, m: Num, n: Num, k: Num, groups: Num = 1) -> MatMul:
    """A forward product in the plan's compute format."""
    compute = ctx.precision.compute
    return MatMul(
        label=label,
        m=m,
        n=n,
        k=k,
        groups=groups,
        peak=compute.peak,
        in_bytes=compute.bytes_per_element,
        out_bytes=ctx.element_bytes,
        alignment=_alignment(ctx, n, k, compute.bits),
        share=ROW_SCALED if ctx.precision.scaling == "row" else 1.0,
        weight_bytes=_weight_bytes(ctx),
    )


def _weight_bytes(ctx: LoweringContext) -> float:
    """Bytes of a weight that a product reads, over those of what it multiplies: training casts weights beforehand, an
    engine that serves stores them as they are read."""
    if ctx.forward is None:
        return 1.0
    return ctx.precision.weights.bytes_per_element / ctx.precision.compute.bytes_per_element


def plain_matmul(ctx: LoweringContext, label: str, m: Num, n: Num, k: Num) -> MatMul:
    """A product kept in the stored format even in a narrow recipe: router, output head."""
    storage = ctx.precision.activations
    return MatMul(
        label=label, m=m, n=n, k=k, peak=storage.peak, in_bytes=storage.bytes_per_element, out_bytes=2.0,
        alignment=_alignment(ctx, n, k, storage.bits),
    )  # fmt: skip


def input_gradient(op: MatMul) -> MatMul:
    """dX = dY W^T of a forward product."""
    return _gradient(op, f"{op.label} dX", (op.m, op.k, op.n), op.out_bytes)


def weight_gradient(op: MatMul, gradient_bytes: float) -> MatMul:
    """dW = X^T dY of a forward product, written or added into the gradient buffer."""
    return _gradient(op, f"{op.label} dW", (op.k, op.n, op.m), gradient_bytes)


def _gradient(op: MatMul, label: str, sides: tuple[Num, Num, Num], out_bytes: float) -> MatMul:
    """A product with other sides; written out, as it is the most frequent op of a search."""
    m, n, k = sides
    return MatMul(
        label=label, m=m, n=n, k=k, groups=op.groups, peak=op.peak, in_bytes=op.in_bytes, out_bytes=out_bytes,
        alignment=op.alignment, launches=op.launches, share=op.share, weight_bytes=op.weight_bytes,
    )  # fmt: skip


# products an adapter's target names, by label; routed experts get none, and embedding rows are looked up (`ends`)
TARGETS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "qkv": frozenset({"qkv", "latent down", "query up", "key-value up", "state in", "delta in"}),
        "out": frozenset({"attention out", "state out", "delta out"}),
        "up": frozenset({"up"}),
        "gate": frozenset({"up"}),
        "down": frozenset({"down"}),
        "router": frozenset({"router"}),
        "head": frozenset({"logits"}),
    }
)


def adapters(ctx: LoweringContext, products: list[MatMul]) -> tuple[list[MatMul], Num]:
    """Low-rank products beside the targeted ones, forward order, and their parameters; nothing without adapters."""
    if ctx.lora is None:
        return [], 0
    labels = {label for target in ctx.lora.targets for label in TARGETS.get(target, ())}
    low_rank: list[MatMul] = []
    params: Num = 0
    for op in products:
        if op.label in labels:
            rank = ctx.lora.rank
            low_rank.append(plain_matmul(ctx, f"{op.label} adapter in", op.m, rank, op.k))
            low_rank.append(plain_matmul(ctx, f"{op.label} adapter out", op.m, op.n, rank))
            params = params + rank * (op.k + op.n)
    return low_rank, params


def stream(ctx: LoweringContext, label: str, elements: Num, passes: float, kernels: Num = 1.0) -> Stream:
    """Memory-bound work that reads and writes `passes` times the elements in the stored format."""
    return Stream(label=label, stream_bytes=elements * passes * ctx.element_bytes, kernels=kernels)


def bias_gradients(ctx: LoweringContext, products: Sequence[MatMul]) -> list[Op]:
    """Summing the gradients that arrive at biased products over tokens: each is read once more.

    XLA sums where it makes the gradient, and a cast to a narrow format does too (Transformer Engine). TorchInductor
    does not gain by it: biases cost a compiled GPT-1.3B on an H200 4.2 ms a step, of the 3.8 that such reads take.
    """
    if ctx.frozen or ctx.low_precision or ctx.resolved.launch == "xla":
        return []
    return [stream(ctx, f"{op.label} bias dW", op.m * op.n * op.groups, 1.0) for op in products]


def tensor_collective(ctx: LoweringContext, label: str, kind: CollectiveKind, elements: Num) -> Collective:
    """Communication of activations over the tensor-parallel ranks."""
    size = ctx.element_bytes
    return Collective(label=label, kind=kind, axis="tp", payload_bytes=elements * size, ranks=ctx.degrees.tp)


def pointwise(ctx: LoweringContext, op: str, elements: Num, *, label: str = "", modules: Num = 1.0) -> Stream:
    """An op of `ir.fusions.POINTWISE` over so many elements in the forward, as far as the software joins it; kernels
    for each of its modules."""
    cost = op_passes(ctx.resolved.fuses, op)
    return stream(ctx, label or op, elements, cost.forward, modules * cost.kernels)


def pointwise_back(ctx: LoweringContext, op: str, elements: Num, *, label: str = "", modules: Num = 1.0) -> Stream:
    """The backward of an op of `ir.fusions.POINTWISE`."""
    cost = op_passes(ctx.resolved.fuses, op)
    return stream(ctx, label or f"{op} dX", elements, cost.backward, modules * cost.backward_kernels)


def casts(ctx: LoweringContext, products: Sequence[MatMul], written: bool = False) -> list[Op]:
    """Casting the inputs of narrow products: read wide, write narrow twice (as it is and transposed); once where no
    gradient will read them.

    A norm that is one kernel, or a product's epilogue, writes narrow at once: nothing is read again (`written`). Where
    experts are multiplied one by one they are cast one by one, too.
    """
    if not ctx.low_precision:
        return []
    passes = _cast_passes(ctx, written)
    return [stream(ctx, f"cast for {op.label}", op.m * op.k * op.groups, passes, op.launches) for op in products]


def gradient_casts(ctx: LoweringContext, products: Sequence[MatMul], written: bool = False) -> list[Op]:
    """Casting the gradients that arrive at narrow products, for both of their own products."""
    if not ctx.low_precision:
        return []
    passes = _cast_passes(ctx, written)
    return [stream(ctx, f"cast for {op.label} dX", op.m * op.n * op.groups, passes, op.launches) for op in products]


def _cast_passes(ctx: LoweringContext, written: bool) -> float:
    wide, narrow = ctx.element_bytes, ctx.precision.compute.bytes_per_element
    reads = 0.0 if written else 2.0 if ctx.precision.scaling == "row" else 1.0
    return (2 if ctx.forward is None else 1) * narrow / wide + reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Which sides of its border a part communicates at itself; the other part of a parallel block does the rest."""

    entry: bool = True
    exit: bool = True


BOTH = Sides()


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """Collectives of a part, in the order of their pass: entry and exit forward, exit and entry backward."""

    entry: tuple[Op, ...] = ()
    exit: tuple[Op, ...] = ()
    exit_gradient: tuple[Op, ...] = ()
    entry_gradient: tuple[Op, ...] = ()


def tensor_boundary(ctx: LoweringContext, sides: Sides = BOTH, width: int = 0) -> Boundary:
    """The border of one part; `width` of what enters it, or hidden. Nothing for a single tensor rank.

    With sequence parallelism the input is gathered once more in the backward, for the weight gradient, unless the
    software keeps it. A gather follows what its ranks scattered before, with a norm between, so that they arrive
    together; a sum or a scatter follows products, and waits for the last. What is gathered again and the gradient of
    the input can travel beside products.
    """
    if isinstance(ctx.degrees.tp, int) and ctx.degrees.tp == 1:
        return Boundary()
    entering, leaving = ctx.tokens * (width or ctx.model.hidden), ctx.tokens * ctx.model.hidden
    if not ctx.sequence_parallel:
        return Boundary(
            exit=(tensor_collective(ctx, "sum over ranks", "all-reduce", leaving),) if sides.exit else (),
            entry_gradient=(run_beside_product(tensor_collective(ctx, "sum gradients", "all-reduce", entering)),)
            if sides.entry
            else (),
        )
    inputs_saved = ctx.frozen or ctx.engine.exchanges.inputs_kept
    again = tensor_collective(ctx, "gather tokens again", "all-gather", entering)
    gather_twice = () if inputs_saved else (run_beside_product(again),)
    scatter = run_beside_product(tensor_collective(ctx, "scatter gradients", "reduce-scatter", entering))
    gather = tensor_collective(ctx, "gather tokens", "all-gather", entering)
    gather_gradients = tensor_collective(ctx, "gather gradients", "all-gather", leaving)
    return Boundary(
        entry=(replace(gather, aligned=1.0),) if sides.entry else (),
        exit=(tensor_collective(ctx, "scatter tokens", "reduce-scatter", leaving),) if sides.exit else (),
        exit_gradient=(replace(gather_gradients, aligned=1.0),) if sides.exit else (),
        entry_gradient=(*gather_twice, scatter) if sides.entry else (),
    )


def run_beside_product(op: Collective) -> Collective:
    """The collective as software can run it: beside a product."""
    return replace(op, beside=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreOps:
    """A mixer between its norm and its residual; passes are forward and backward.

    into, out      products before and behind the core, in the form it wants them
    before, behind pointwise work between the products and the core
    core           scores or scan
    exchange       communication of context ranks, or sums over tensor ranks that the core needs
    saved          bytes saved for the backward, score matrices apart, which are `score_bytes`
    up, saved_up   ops out of a latent that recompute of `latent-up` runs again, and the bytes it frees
    """

    into: Sequence[MatMul]
    out: Sequence[MatMul]
    core: Passes
    before: Passes = ((), ())
    behind: Passes = ((), ())
    exchange: Passes = ((), ())
    saved: Num = 0
    score_bytes: Num = 0
    up: tuple[Op, ...] = ()
    saved_up: Num = 0


def steps_of(ctx: LoweringContext) -> ForwardSteps:
    """The steps of a context that has them."""
    assert ctx.forward is not None
    return ctx.forward.steps


def rank_cores(ctx: LoweringContext) -> int:
    """Cores of a chip that are tensor ranks of their own in an engine's step."""
    return 1 if ctx.forward is None else (ctx.engine.serves or BARE).rank_cores


def padded_heads(ctx: LoweringContext, heads: int) -> Num:
    """Query heads of all ranks together: padded to a multiple of them where tensor ranks are cores of a chip."""
    ranks = ctx.degrees.tp * rank_cores(ctx)
    return heads if rank_cores(ctx) == 1 else np.ceil(heads / ranks) * ranks


def head_copies(ctx: LoweringContext, kv_heads: int) -> Num:
    """How often every key-value head is held: ranks beyond the heads hold a whole one each, and so does every core
    where tensor ranks are cores of a chip."""
    ranks = ctx.degrees.tp * rank_cores(ctx)
    if rank_cores(ctx) == 1:
        return np.maximum(1.0, ranks / kv_heads)
    return np.ceil(kv_heads / ranks) * ranks / kv_heads


def product(ctx: LoweringContext, projection: Projection, rows: Num | None = None) -> MatMul:
    """A projection on one rank, over all its tokens unless `rows` says which."""
    tp, dealt = ctx.degrees.tp, projection.dealt and ctx.forward is None
    if rows is None:
        rows = ctx.split_tokens if dealt else ctx.tokens
    outputs: Num = sum(_width(ctx, part) for part in projection.columns)
    inputs: Num = projection.inputs
    if projection.heads:
        inputs = inputs * padded_heads(ctx, projection.heads) / projection.heads
    match projection.split:
        case "outputs":
            return matmul(ctx, projection.label, rows, outputs / tp, inputs)
        case "inputs":
            return matmul(ctx, projection.label, rows, outputs, inputs / tp)
        case "groups":
            return matmul(ctx, projection.label, rows, outputs, inputs, projection.groups / tp)
        case "none":
            return matmul(ctx, projection.label, rows, outputs, inputs)


def _width(ctx: LoweringContext, part: Columns) -> Num:
    """Outputs of all ranks together, padded or copied heads among them."""
    if part.shared_heads:
        return part.outputs * head_copies(ctx, part.shared_heads)
    return part.outputs * padded_heads(ctx, part.heads) / part.heads if part.heads else part.outputs


def saved_bytes(ctx: LoweringContext, parts: MixerParts) -> Num:
    """Bytes that the backward reads again, as the parts of a mixer say."""
    elements_saved, tp = parts.saved, ctx.degrees.tp
    copies = head_copies(ctx, parts.shared[1]) if elements_saved.kv else 0
    split = ctx.tokens * (elements_saved.split + elements_saved.kv * copies) / tp
    dealt = ctx.tokens if ctx.engine.exchanges.inputs_kept else ctx.split_tokens
    elements = dealt * elements_saved.latents + split + ctx.tokens * elements_saved.whole
    return elements * ctx.element_bytes


def resident_params(ctx: LoweringContext, parts: MixerParts) -> Num:
    """Parameters of a mixer on one tensor rank: its share, and copies of what ranks hold alike.

        (all + (c - 1) s + (tp - 1) w) / tp

    c = max(1, tp / G): ranks with the same of G key-value heads, s = parameters of those heads, w = parameters that
    every rank holds.
    """
    tp, (shared, heads) = ctx.degrees.tp, parts.shared
    more = np.maximum(0.0, tp / heads - 1) * shared + (tp - 1) * parts.replicated
    return (parts.params + more) / tp


def where_any(size: Num) -> Num:
    """1 where there is something to do, else 0."""
    return np.where(np.asarray(size) > 0, 1.0, 0.0)


def running(op: MatMul, active: Num | None = None) -> MatMul:
    """A product that steps without rows, or those that are not `active`, do not run."""
    there = where_any(op.m) if active is None else active
    return replace(op, m=np.maximum(op.m, 1.0), groups=op.groups * there, launches=op.launches * there)
