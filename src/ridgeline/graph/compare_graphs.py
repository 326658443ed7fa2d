"""Compare two graphs of one program: what one compiler fused and the other did not, in seconds of a chip.

Both are brought to their normal form, whose products, attentions and memory regions are the same where the programs
are. What kernels of either compiler join is one row: how many kernels each runs for it, their bytes and their seconds.
Layouts that a compiler writes out, which no program asks for, are a row of their own.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property

from ridgeline.compilers import NormalOp, normal_form
from ridgeline.core.records import dataclass
from ridgeline.graph.compiled_kernels import compiled_kernels, compiled_seconds
from ridgeline.graph.joined_kernels import GraphKernel
from ridgeline.graph.kernel_time import GraphChip, KernelRates, shipped_rates
from ridgeline.hardware.chip import Chip
from ridgeline.ir.op_graph import OpGraph

LAYOUT = "layouts written out"
WORDS = 4  # of a row's ops that name it


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSide:
    """What one compiler runs for a row: kernels, bytes, and device seconds; all runs together.

    names   of its kernels
    """

    kernels: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedWork:
    """A part of the program, as either compiler runs it.

    work    what it is: its products, attentions and memory regions, and the ops that name it
    """

    work: str
    ops: str
    first: GraphSide
    second: GraphSide

    JSON = "* difference_s fuses_more"

    @property
    def difference_s(self) -> float:
        """Seconds of the second beyond those of the first."""
        return self.second.seconds - self.first.seconds

    @property
    def fuses_more(self) -> str:
        """Which of them joins more of it."""
        if self.first.kernels == self.second.kernels:
            return ""
        return "first" if self.first.kernels < self.second.kernels else "second"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphComparison:
    """Two graphs of one program on a chip."""

    first: OpGraph
    second: OpGraph
    chip: Chip
    rates: KernelRates | None = None

    JSON = """
        kind='graph-comparison' first=first.name second=second.name chip=chip.id first_s second_s difference_s
        low_s high_s same rows notes
    """

    @cached_property
    def rows(self) -> tuple[ComparedWork, ...]:
        """Parts of the program, the largest difference first."""
        return tuple(sorted(_compare(self), key=lambda row: -abs(row.difference_s)))

    @property
    def first_s(self) -> float:
        """Device seconds of the first."""
        return sum(row.first.seconds for row in self.rows)

    @property
    def second_s(self) -> float:
        """Device seconds of the second."""
        return sum(row.second.seconds for row in self.rows)

    @property
    def difference_s(self) -> float:
        """Seconds of the second beyond those of the first."""
        return self.second_s - self.first_s

    @cached_property
    def span(self) -> tuple[float, float]:
        """Around 1, where nine of ten measured kernels lie; wider by the share of work that nobody knows."""
        rates = self.rates or shipped_rates()
        unknown = sum(op.kind in ("unknown", "custom") for op in (*self.first.ops, *self.second.ops))
        return rates.span(self.chip, 1.0 + unknown / max(1, len(self.first.ops) + len(self.second.ops)))

    @property
    def low_s(self) -> float:
        """Of the difference, where both are as the rates say at most."""
        return self.difference_s * (self.span[0] if self.difference_s > 0 else self.span[1])

    @property
    def high_s(self) -> float:
        """Of the difference at the other end."""
        return self.difference_s * (self.span[1] if self.difference_s > 0 else self.span[0])

    @cached_property
    def same(self) -> bool:
        """Whether both compute the same: every part of one has its counterpart in the other."""
        first, second = (_Side(graph, self).units for graph in (self.first, self.second))
        return first.keys() == second.keys()

    @property
    def notes(self) -> tuple[str, ...]:
        """What was taken for granted, of both."""
        notes = [f"{graph.name}: {note}" for graph in (self.first, self.second) for note in graph.notes]
        if not self.same:
            notes.append("the programs are not the same: what has no counterpart is a row with one side")
        return tuple(notes)


def _compare(comparison: GraphComparison) -> list[ComparedWork]:
    """Rows: units of both normal forms matched by size, joined where a kernel of either runs several."""
    sides = [_Side(graph, comparison) for graph in (comparison.first, comparison.second)]
    keys = list(dict.fromkeys(key for side in sides for key in side.units))
    joint = {key: key for key in keys}

    def root(key: _Key) -> _Key:
        while joint[key] != key:
            key = joint[key]
        return key

    for side in sides:
        for group in side.groups:
            first, *later_keys = sorted(group)
            for other_key in later_keys:
                joint[root(other_key)] = root(first)
    members: dict[_Key, list[_Key]] = defaultdict(list)
    for key in keys:
        members[root(key)].append(key)
    rows = [_row(sides, group) for group in members.values()]
    layouts = [side.total(side.layouts) for side in sides]
    if any(layout.kernels for layout in layouts):
        rows.append(ComparedWork(work=LAYOUT, ops="", first=layouts[0], second=layouts[1]))
    return rows


_Key = tuple[str, float, int]
"""Kind of a unit, its flops (bytes where it has none), and which of several equal ones it is."""


class _Side:
    """One graph: the units of its normal form by key, and the kernels that run them."""

    def __init__(self, graph: OpGraph, comparison: GraphComparison) -> None:
        self.graph, self.on = graph, GraphChip(chip=comparison.chip)
        self.rates = comparison.rates or shipped_rates()
        self.kernels = compiled_kernels(graph)
        self.units: dict[_Key, NormalOp] = {}
        for unit in normal_form(graph).ops:
            place, size = 0, unit.flops * unit.count or unit.bytes * unit.count
            while (key := (unit.kind, size, place)) in self.units:
                place += 1
            self.units[key] = unit
        owners = {op: key for key, unit in self.units.items() for op in unit.ops}
        self.of_kernel = [sorted({owners[op] for op in kernel.ops if op in owners}) for kernel in self.kernels]

    @property
    def groups(self) -> Iterable[list[_Key]]:
        """Units that one kernel runs together."""
        return [keys for keys in self.of_kernel if keys]

    @property
    def layouts(self) -> list[GraphKernel]:
        """Kernels that run no unit at all."""
        return [kernel for kernel, keys in zip(self.kernels, self.of_kernel, strict=True) if not keys]

    def total(self, kernels: Iterable[GraphKernel]) -> GraphSide:
        """Several kernels together."""
        chosen = list(kernels)
        counts = [max(self.graph.ops[op].count for op in kernel.ops) for kernel in chosen]
        runs = list(zip(chosen, counts, strict=True))
        seconds = sum(compiled_seconds(self.graph, kernel, self.on, self.rates) * count for kernel, count in runs)
        return GraphSide(
            kernels=float(sum(counts)), bytes=sum(kernel.bytes * count for kernel, count in runs), seconds=seconds,
            names=tuple(kernel.name for kernel in chosen),
        )  # fmt: skip

    def side(self, keys: Iterable[_Key]) -> GraphSide:
        """The kernels that run any of these units."""
        row_keys = set(keys)
        return self.total(
            kernel
            for kernel, run_keys in zip(self.kernels, self.of_kernel, strict=True)
            if row_keys.intersection(run_keys)
        )

    def words(self, keys: Iterable[_Key]) -> str:
        """Ops that name a row."""
        ops = [self.graph.ops[op] for key in keys if key in self.units for op in self.units[key].ops]
        names = dict.fromkeys(op.name.rsplit(".", 1)[-1] for op in ops if op.kind not in ("view", "create", "copy"))
        return ", ".join(list(names)[:WORDS]) + (" ..." if len(names) > WORDS else "")


def _row(sides: list[_Side], keys: list[_Key]) -> ComparedWork:
    counts: Mapping[str, int] = {
        kind: sum(key[0] == kind for key in keys) for kind in dict.fromkeys(k[0] for k in keys)
    }
    work = " and ".join(kind if count == 1 else f"{count} x {kind}" for kind, count in counts.items())
    words = next((text for side in sides if (text := side.words(keys))), "")
    return ComparedWork(work=work, ops=words, first=sides[0].side(keys), second=sides[1].side(keys))
