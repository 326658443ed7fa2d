"""What `ridgeline graph` answers: a graph's totals by pass and module, beside lowering, and its regions on a chip."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property

from ridgeline.core.records import dataclass
from ridgeline.graph.compiled_kernels import compiled_kernels, compiled_seconds
from ridgeline.graph.fusible_regions import FusibleRegion, fused_now, fusible_regions
from ridgeline.graph.kernel_time import GraphChip, KernelRates, kernel_seconds, kernels_of, shipped_rates
from ridgeline.graph.lowering_check import LoweringCheck
from ridgeline.graph.save_sets import RecomputeAnswer, layer_fronts, recompute_within
from ridgeline.hardware.chip import Chip
from ridgeline.ir.op_graph import FREE_KINDS, OP_PHASES, GraphOp, OpGraph

OUTSIDE = "outside of modules"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphTotal:
    """Ops of one pass, or of one module in it: all runs of a step together.

    seconds   of the device where each op is a kernel of its own; None without a chip
    """

    module: str
    phase: str
    ops: float
    kernels: float
    flops: float
    bytes: float
    seconds: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphReport:
    """An op graph, how it agrees with lowering, and on a chip what could be fused and what that gains.

    budget  bytes that activations of all layers may take, for which save sets are chosen
    sizes   tokens of a sequence and sequences that were recorded; empty for a graph of a file
    """

    graph: OpGraph
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    check: LoweringCheck | None = None
    chip: Chip | None = None
    budget: float | None = None
    rates: KernelRates | None = None

    JSON = """
        kind='graph' name=graph.name source=graph.source sizes chip=chip.id flops=graph.flops launches=graph.launches
        saved_bytes=graph.saved_bytes phases modules check? apart_s joined_s compiled_s gain_s fused_now regions
        recompute? layers=graph.layers ops=graph.ops tensors=graph.tensors fusions=graph.fusions notes
    """

    @cached_property
    def on(self) -> GraphChip | None:
        """The chip as kernels see it."""
        return GraphChip(chip=self.chip) if self.chip is not None else None

    @cached_property
    def op_seconds(self) -> Mapping[int, float]:
        """Seconds of one run of each op as a kernel of its own; empty without a chip."""
        if self.on is None:
            return {}
        rates = self.rates or shipped_rates()
        kernels = kernels_of(self.graph, "apart")
        return {kernel.ops[0]: kernel_seconds(self.graph, kernel, "apart", self.on, rates) for kernel in kernels}

    @cached_property
    def apart_s(self) -> float | None:
        """Device seconds of a step op by op."""
        if self.on is None:
            return None
        return sum(seconds * self.graph.ops[op].count for op, seconds in self.op_seconds.items())

    @cached_property
    def joined_s(self) -> float | None:
        """Device seconds of a step where a compiler joins what it can."""
        if self.on is None:
            return None
        rates = self.rates or shipped_rates()
        return sum(
            kernel_seconds(self.graph, kernel, "joined", self.on, rates)
            * max(self.graph.ops[op].count for op in kernel.ops)
            for kernel in kernels_of(self.graph, "joined")
        )

    @cached_property
    def compiled_s(self) -> float | None:
        """Device seconds of a step as the compiler that wrote the graph fused it; None where it fused nothing."""
        if self.on is None or not self.graph.fusions:
            return None
        rates = self.rates or shipped_rates()
        return sum(
            compiled_seconds(self.graph, kernel, self.on, rates) * max(self.graph.ops[op].count for op in kernel.ops)
            for kernel in compiled_kernels(self.graph)
        )

    @property
    def gain_s(self) -> float | None:
        """What a compiler's joining gains, where it gains."""
        return None if self.apart_s is None or self.joined_s is None else self.apart_s - self.joined_s

    @cached_property
    def regions(self) -> tuple[FusibleRegion, ...]:
        """What fewer kernels could run; empty without a chip."""
        return () if self.on is None else fusible_regions(self.graph, self.on, self.rates or shipped_rates())

    @cached_property
    def recompute(self) -> RecomputeAnswer | None:
        """What to save within the budget, each op computed again as a kernel of its own; None without one."""
        if self.budget is None or self.on is None:
            return None
        return recompute_within(layer_fronts(self.graph, self.op_seconds), self.budget)

    @property
    def fused_now(self) -> Mapping[str, float]:
        """Library ops that are one kernel already, with their runs."""
        return fused_now(self.graph)

    @property
    def phases(self) -> tuple[GraphTotal, ...]:
        """Totals of each pass."""
        return tuple(
            self._total("", phase, [op for op in self.graph.ops if op.phase == phase])
            for phase in OP_PHASES
            if any(op.phase == phase for op in self.graph.ops)
        )

    @property
    def modules(self) -> tuple[GraphTotal, ...]:
        """Totals of each module that ops run in, in the order in which they first run."""
        groups: dict[tuple[str, str], list[GraphOp]] = {}
        for op in self.graph.ops:
            groups.setdefault((op.module or OUTSIDE, op.phase), []).append(op)
        return tuple(self._total(module, phase, ops) for (module, phase), ops in groups.items())

    def _total(self, module: str, phase: str, ops: list[GraphOp]) -> GraphTotal:
        seconds = sum(self.op_seconds.get(op.id, 0.0) * op.count for op in ops) if self.on is not None else None
        return GraphTotal(
            module=module, phase=phase, ops=float(sum(op.count for op in ops)),
            flops=sum(op.flops * op.count for op in ops),
            kernels=float(sum(op.count for op in ops if op.kind not in FREE_KINDS)),
            bytes=sum(op.bytes * op.count for op in ops), seconds=seconds,
        )  # fmt: skip

    @property
    def notes(self) -> tuple[str, ...]:
        """What was taken for granted."""
        unknown = sorted({op.name for op in self.graph.ops if op.kind == "unknown"})
        lines = [*self.graph.notes]
        if unknown:
            lines.append(f"ops that are not known, priced as slow reductions: {', '.join(unknown[:12])}")
        if self.chip is not None:
            lines.append("device seconds; the host's launches are hidden where the queue is full, and said by region")
            lines.append("the sum that ends a layer and the norm that begins the next one are counted apart")
        return tuple(lines)
