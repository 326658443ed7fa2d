"""Find the regions of an op graph that fewer kernels could run, and price each on a chip, as it is and as it could be.

A region is what a compiler joins (`joined_kernels`), or a product with the pointwise chain behind it. Each has bytes,
launches and saved activations before and after. Seconds are of the device; the host's are beside them, because a queue
that is full hides them. Where fewer kernels take longer the region says so: it is not applied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from ridgeline.core.evidence import Evidence
from ridgeline.core.records import dataclass
from ridgeline.graph.implementations import IMPLEMENTATIONS, LAUNCH_US, Implementation, RegionKind
from ridgeline.graph.joined_kernels import GraphKernel, eager_kernels, joined_kernels
from ridgeline.graph.kernel_time import GraphChip, KernelRates, kernel_seconds
from ridgeline.ir.op_graph import GraphOp, OpGraph

US = 1e-6
WORTH = 0.02  # of a region's time that an implementation must gain before it is advised
ACTIVATIONS = frozenset(
    {"silu", "gelu", "relu", "sigmoid", "tanh", "silu_backward", "gelu_backward", "threshold_backward"}
)
NORMS = frozenset(
    {"rsqrt", "native_layer_norm", "_fused_rms_norm", "native_layer_norm_backward", "_fused_rms_norm_backward"}
)
CASTS = frozenset({"_to_copy", "clone", "copy_"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionCandidate:
    """An implementation of a region: seconds of the device and of the host for one run, and how well that is known."""

    implementation: str
    seconds: float
    host_s: float
    low_s: float
    high_s: float
    evidence: Evidence = Evidence.FITTED

    JSON = "* alone_s"

    @property
    def alone_s(self) -> float:
        """Of a run with nothing else in the queue: the slower of device and host."""
        return max(self.seconds, self.host_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class FusibleRegion:
    """Ops that fewer kernels could run, all runs of a step together in `gain_s`.

    count              how often it runs in a step
    launches           kernels of one run op by op
    bytes              they read and write
    saved_bytes        they leave for the backward
    after_launches     kernels of one run that a compiler joined; `after_bytes` and `after_saved_bytes` are theirs
    """

    kind: RegionKind
    module: str
    phase: str
    ops: tuple[str, ...]
    numbers: tuple[int, ...]
    count: int
    launches: int
    bytes: float
    saved_bytes: float
    after_launches: int
    after_bytes: float
    after_saved_bytes: float
    candidates: tuple[RegionCandidate, ...]

    JSON = "* -numbers best now_s gain_s loses"

    @property
    def now(self) -> RegionCandidate:
        """Op by op."""
        return self.candidates[0]

    @property
    def best_candidate(self) -> RegionCandidate:
        """The fastest one; what runs now unless another is worth the change."""
        fastest = min(self.candidates, key=lambda candidate: candidate.seconds)
        return fastest if fastest.seconds < self.now.seconds * (1 - WORTH) else self.now

    @property
    def best(self) -> str:
        """Its name."""
        return self.best_candidate.implementation

    @property
    def now_s(self) -> float:
        """Device seconds of a step, op by op."""
        return self.now.seconds * self.count

    @property
    def gain_s(self) -> float:
        """Device seconds of a step that the best one saves."""
        return (self.now.seconds - self.best_candidate.seconds) * self.count

    @property
    def loses(self) -> tuple[str, ...]:
        """Implementations that take longer than op by op."""
        limit = self.now.seconds * (1 + WORTH)
        return tuple(candidate.implementation for candidate in self.candidates[1:] if candidate.seconds > limit)


def fusible_regions(graph: OpGraph, on: GraphChip, rates: KernelRates) -> tuple[FusibleRegion, ...]:
    """Every region of a graph, the largest gain first."""
    eager_by_op = {kernel.ops[0]: kernel for kernel in eager_kernels(graph)}
    kernels = joined_kernels(graph)
    regions = [*_joined_regions(graph, kernels, eager_by_op, on, rates), *_epilogues(graph, kernels, on, rates)]
    return tuple(sorted(regions, key=lambda region: (-region.gain_s, -region.now_s, region.module)))


def _joined_regions(
    graph: OpGraph, joined: Sequence[GraphKernel], apart: Mapping[int, GraphKernel], on: GraphChip, rates: KernelRates
) -> Iterator[FusibleRegion]:
    for kernel in joined:
        ops = [graph.ops[number] for number in kernel.ops]
        if len(ops) < 2:
            continue
        span = rates.span(on.chip)
        eager = [apart[op.id] for op in ops]
        eager_s = sum(kernel_seconds(graph, single, "apart", on, rates) for single in eager)
        after_s = kernel_seconds(graph, kernel, "joined", on, rates)
        kind = region_kind(graph, ops)
        candidates = [
            _candidate("eager", eager_s, len(eager) * LAUNCH_US * US, span),
            _candidate("inductor", after_s, kernel.launches * LAUNCH_US * US, span),
        ]
        backward = ops[0].phase == "backward"
        candidates += [
            _library(item, after_s, kernel.launches, backward, span)
            for item in IMPLEMENTATIONS.values()
            if kind in item.kinds
        ]
        yield FusibleRegion(
            kind=kind, module=_common_module(ops), phase=ops[0].phase, numbers=kernel.ops,
            ops=tuple(dict.fromkeys(op.name for op in ops)), count=max(op.count for op in ops), launches=len(eager),
            bytes=sum(single.bytes for single in eager), saved_bytes=_saved_apart(graph, ops),
            after_launches=kernel.launches, after_bytes=kernel.bytes,
            after_saved_bytes=_saved_joined(graph, kernel, joined), candidates=tuple(candidates),
        )  # fmt: skip


def _candidate(
    name: str, seconds: float, host_s: float, span: tuple[float, float], evidence: Evidence = Evidence.FITTED
) -> RegionCandidate:
    return RegionCandidate(
        implementation=name, seconds=seconds, host_s=host_s, low_s=seconds * span[0], high_s=seconds * span[1],
        evidence=evidence,
    )  # fmt: skip


def _library(
    item: Implementation, joined_s: float, launches: int, backward: bool, span: tuple[float, float]
) -> RegionCandidate:
    """A library's kernel: the compiler's bytes at its share of the rate, with the host of its own calls."""
    host = item.backward_host_us if backward else item.host_us
    return _candidate(item.id, joined_s / item.share, (host + launches * LAUNCH_US) * US, span, item.evidence)


def _saved_apart(graph: OpGraph, ops: Sequence[GraphOp]) -> float:
    """Activations of these ops that the backward reads where nothing is joined."""
    forward = [op for op in ops if op.phase == "forward" and op.kind != "view"]
    owners = {graph.storage(tensor) for op in forward for tensor in op.outputs}
    return sum(graph.tensors[owner].bytes for owner in owners if graph.tensors[owner].saved)


def _saved_joined(graph: OpGraph, kernel: GraphKernel, joined: Sequence[GraphKernel]) -> float:
    """What of a joined kernel's results the backward's kernels read."""
    if graph.ops[kernel.ops[0]].phase != "forward":
        return 0.0
    backward_reads = {
        owner for reader in joined if graph.ops[reader.ops[0]].phase == "backward" for owner in reader.reads
    }
    return sum(size for owner, size in zip(kernel.writes, kernel.written, strict=False) if owner in backward_reads)


def _common_module(ops: Sequence[GraphOp]) -> str:
    """The innermost module that all ops with one are inside."""
    paths = [op.module.split(".") for op in ops if op.module]
    if not paths:
        return ""
    shared = paths[0]
    for path in paths[1:]:
        same = [left_word for left_word, right_word in zip(shared, path, strict=False) if left_word == right_word]
        shared = shared[: len(same)]
    return ".".join(shared)


def region_kind(graph: OpGraph, ops: Sequence[GraphOp]) -> RegionKind:
    """What a group of ops is, by the ops in it."""
    words = {op.name.rpartition(".")[2].rstrip("_") for op in ops}
    kinds = {op.kind for op in ops}
    if ops[0].phase == "optimizer":
        return "optimizer"
    if words & {"_log_softmax", "_log_softmax_backward_data", "nll_loss_forward", "nll_loss_backward"}:
        return "loss"
    if "sort" in kinds or ("softmax" in kinds and any("expert" in op.module or "router" in op.module for op in ops)):
        return "router"
    if words & NORMS or "norm" in kinds or any("norm" in op.module.rpartition(".")[2].lower() for op in ops):
        wide = [op for op in ops if op.name.endswith("add") and len(op.inputs) > 1]
        return "residual norm" if any(_is_residual(graph, op) for op in wide) else "norm"
    if words & {"neg", "sub"} and words & {"cat", "slice_backward", "copy_slice"}:
        return "rotary"
    if "random" in kinds:
        return "dropout"
    if words & ACTIVATIONS:
        return "gated activation" if "mul" in words else "activation"
    if "softmax" in kinds:
        return "softmax"
    if "gather" in kinds or "scatter" in kinds:
        return "permutation"
    return "cast" if words <= CASTS else "pointwise"


def _is_residual(graph: OpGraph, op: GraphOp) -> bool:
    """Whether it adds two whole activations."""
    sizes = [graph.tensors[tensor].elements for tensor in op.inputs]
    return len(sizes) == 2 and sizes[0] == sizes[1] > 1


def _epilogues(
    graph: OpGraph, joined: Sequence[GraphKernel], on: GraphChip, rates: KernelRates
) -> Iterator[FusibleRegion]:
    """A product and the chain that alone reads its result: what not writing it in between would gain."""
    readers: dict[int, list[GraphKernel]] = {}
    for kernel in joined:
        for owner in kernel.reads:
            readers.setdefault(owner, []).append(kernel)
    span = rates.span(on.chip)
    for product in joined:
        if product.access != "product" or len(product.writes) != 1:
            continue
        [owner] = product.writes
        behind = readers.get(owner, [])
        if len(behind) != 1 or behind[0].access != "stream" or behind[0].elements != product_elements(graph, owner):
            continue
        chain, size = behind[0], graph.tensors[owner].bytes
        product_s = kernel_seconds(graph, product, "joined", on, rates)
        chain_s = kernel_seconds(graph, chain, "joined", on, rates)
        saved_s = min(chain_s, chain_s * 2 * size / max(chain.bytes, 2 * size))
        before, after = product_s + chain_s, product_s + chain_s - saved_s
        ops = [graph.ops[number] for number in (*product.ops, *chain.ops)]
        yield FusibleRegion(
            kind="epilogue", module=_common_module(ops), phase=ops[0].phase, numbers=tuple(op.id for op in ops),
            ops=tuple(dict.fromkeys(op.name for op in ops)), count=max(op.count for op in ops),
            launches=1 + chain.launches, bytes=product.bytes + chain.bytes, saved_bytes=0.0, after_launches=1,
            after_bytes=product.bytes + chain.bytes - 2 * size, after_saved_bytes=0.0,
            candidates=(
                _candidate("inductor", before, 2 * LAUNCH_US * US, span),
                _candidate("vendor", after, LAUNCH_US * US, span, Evidence.ASSUMED),
                _candidate("triton product", product_s / TRITON_PRODUCT + chain_s - saved_s, LAUNCH_US * US, span,
                           Evidence.ASSUMED),
            ),
        )  # fmt: skip


TRITON_PRODUCT = 0.9  # of the vendor's rate that an autotuned Triton product reaches, which then has the epilogue


def product_elements(graph: OpGraph, owner: int) -> float:
    """Elements of a product's result."""
    return float(graph.tensors[owner].elements)


def fused_now(graph: OpGraph) -> Mapping[str, float]:
    """Library ops of a graph that are one kernel where a chain could be: name -> how often they run in a step."""
    counts: dict[str, float] = {}
    for op in graph.ops:
        if op.kind in ("norm", "softmax", "attention") or op.name == "optim.adamw":
            counts[op.name] = counts.get(op.name, 0.0) + op.count
    return MappingProxyType(counts)
