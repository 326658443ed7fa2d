"""Decide what a layer saves for its backward: its largest activations in every set, and the best for a budget.

    save sets   of the k largest activations that the backward reads, all 2^k; the rest is saved. What is not saved is
                computed again from what is, ancestors and all
    front       sets that no other beats in both bytes and seconds
    plan        one set for each layer: least seconds added within the bytes of a budget, with a proven bound

The plan is a multiple-choice knapsack. Layers of one kind share a front; its convex hull gives the relaxed optimum,
whose one break leaves a few layers open: those are solved exactly, together; the bound says how far that can be off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.core.units import format_quantity
from ridgeline.ir.op_graph import GraphOp, OpGraph

LARGEST = 12  # activations of a layer that are decided on, beyond which sets are too many
OPEN_LAYERS = 10  # of each kind that are solved exactly around the relaxed optimum
MOST_SUMS = 12_000  # sums of open layers that are followed; more are thinned, and the bound says what that costs

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveSet:
    """What one layer saves, in bytes, and the seconds that its backward takes longer for computing the rest again.

    saved    names of what is saved, of those that were decided on
    """

    saved: tuple[str, ...]
    bytes: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFront:
    """A kind of layer, how many of it there are, and its save sets that no other beats: fewest bytes first."""

    path: str
    count: int
    sets: tuple[SaveSet, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavePlan:
    """How many layers of each kind use which save set.

    bound_s   seconds below which no plan of these sets comes within the budget
    counts    by layer path: index of a save set in its front -> layers
    """

    budget: float
    bytes: float
    seconds: float
    bound_s: float
    counts: Mapping[str, Mapping[int, int]]

    JSON = "* gap"

    @property
    def gap(self) -> float:
        """How far it may be from the best, as a share of its seconds."""
        return (self.seconds - self.bound_s) / self.seconds if self.seconds > 0 else 0.0


def layer_fronts(graph: OpGraph, op_seconds: Mapping[int, float]) -> tuple[LayerFront, ...]:
    """The front of each kind of layer; a graph without layers is one."""
    layers = [(layer.path, layer.count) for layer in graph.layers] or [("", 1)]
    return tuple(
        LayerFront(path=path, count=count, sets=save_front(graph, path, op_seconds)) for path, count in layers
    )  # fmt: skip


def save_front(graph: OpGraph, path: str, op_seconds: Mapping[int, float]) -> tuple[SaveSet, ...]:
    """Save sets of one layer that no other beats in bytes and seconds."""
    ops = [
        op
        for op in graph.ops
        if op.phase == "forward" and (not path or f"{op.module}.".startswith(f"{path}.")) and op.kind != "view"
    ]
    owners = [owner for owner in _saved_owners(graph, ops) if graph.tensors[owner].bytes]
    ends = _layer_results(graph, ops)
    owners.sort(key=lambda owner: (owner in ends, -graph.tensors[owner].bytes))
    inner = len(owners) - sum(owner in ends for owner in owners)
    chosen_owners, always = owners[: min(LARGEST, inner)], owners[min(LARGEST, inner) :]
    masks = np.arange(1 << len(chosen_owners))
    is_saved: dict[int, Flags] = {owner: (masks >> bit) & 1 == 1 for bit, owner in enumerate(chosen_owners)}
    is_saved |= {owner: np.ones(len(masks), bool) for owner in always}
    seconds = _recompute_seconds(graph, ops, is_saved, op_seconds, len(masks))
    sizes = np.full(len(masks), float(sum(graph.tensors[owner].bytes for owner in always)))
    for owner in chosen_owners:
        sizes += is_saved[owner] * graph.tensors[owner].bytes
    order = np.lexsort((seconds, sizes))
    best = np.minimum.accumulate(np.concatenate([[np.inf], seconds[order][:-1]]))
    names = [_tensor_name(graph, ops, owner) for owner in chosen_owners]
    return tuple(
        SaveSet(
            saved=tuple(name for bit, name in enumerate(names) if mask >> bit & 1), bytes=float(sizes[mask]),
            seconds=float(seconds[mask]),
        )
        for mask in order[seconds[order] < best].tolist()
    )  # fmt: skip


def _saved_owners(graph: OpGraph, ops: Sequence[GraphOp]) -> list[int]:
    """Memory that these ops wrote and the backward reads."""
    written = dict.fromkeys(graph.storage(tensor) for op in ops for tensor in op.outputs)
    return [owner for owner in written if graph.tensors[owner].saved and graph.tensors[owner].role == "activation"]


def _layer_results(graph: OpGraph, ops: Sequence[GraphOp]) -> set[int]:
    """Memory that ops after the layer read in the forward: without it the layers before would run again too."""
    own_ops = {op.id for op in ops}
    written = {graph.storage(tensor) for op in ops for tensor in op.outputs}
    later = [op for op in graph.ops if op.phase == "forward" and op.kind != "view" and op.id not in own_ops]
    return written & {graph.storage(tensor) for op in later for tensor in op.inputs}


def _tensor_name(graph: OpGraph, ops: Sequence[GraphOp], owner: int) -> str:
    """What a saved tensor is called: the op that wrote it, and its module."""
    maker = next(op for op in ops if any(graph.storage(tensor) == owner for tensor in op.outputs))
    return f"{maker.module} {maker.name.rpartition('.')[2]}".strip()


def _recompute_seconds(
    graph: OpGraph, ops: Sequence[GraphOp], is_saved: Mapping[int, Flags], op_seconds: Mapping[int, float], many: int
) -> NDArray[np.float64]:
    """Seconds of what each set computes again: ops whose results are asked for and not saved, last to first."""
    asked_owners = {owner: np.ones(many, bool) for owner in is_saved}
    seconds = np.zeros(many)
    for op in reversed(ops):
        redo = np.zeros(many, bool)
        for owner in {graph.storage(tensor) for tensor in op.outputs}:
            if owner in asked_owners:
                redo |= asked_owners[owner] & ~is_saved[owner] if owner in is_saved else asked_owners[owner]
        if not redo.any():
            continue
        seconds += redo * op_seconds.get(op.id, 0.0)
        for owner in {graph.storage(tensor) for tensor in op.inputs}:
            asked_owners[owner] = asked_owners.get(owner, np.zeros(many, bool)) | redo
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeAnswer:
    """What to save within a budget: the best sets of every layer, beside whole layers, which software has flags for.

    whole_layers   how many layers are computed again as a whole where the others save everything
    settings       the same as settings of a scenario, which `run` executes and `export` writes as launchers' flags
    """

    fronts: tuple[LayerFront, ...]
    plan: SavePlan
    whole_plan: SavePlan
    whole_layers: int

    JSON = "plan whole_plan whole_layers settings fronts"

    @property
    def settings(self) -> tuple[str, ...]:
        """Of a plan without a pipeline."""
        if not self.whole_layers:
            return ("plan.recompute.kind=none",)
        return ("plan.recompute.kind=full", f"plan.recompute.layers={self.whole_layers}")


def recompute_within(fronts: Sequence[LayerFront], budget: float) -> RecomputeAnswer:
    """The least seconds of computing again within a budget of bytes for the activations of all layers."""
    plan = plan_saves(fronts, budget)
    whole_fronts = [replace(front, sets=tuple(dict.fromkeys((front.sets[0], front.sets[-1])))) for front in fronts]
    coarse = plan_saves(whole_fronts, budget)
    if plan is None or coarse is None:
        least = format_quantity(sum(front.sets[0].bytes * front.count for front in fronts), "B")
        todo = "fewer tokens, or a plan that splits them"
        raise InputError(
            Problem(path="--budget", given=format_quantity(budget, "B"), expected=f"at least {least}", todo=todo)
        )
    whole_layers = sum(coarse.counts[front.path].get(0, 0) for front in whole_fronts if len(front.sets) > 1)
    return RecomputeAnswer(fronts=tuple(fronts), plan=plan, whole_plan=coarse, whole_layers=whole_layers)


def plan_stage_saves(
    stages: Sequence[Sequence[LayerFront]], budgets: Sequence[float]
) -> tuple[SavePlan | None, ...]:  # fmt: skip
    """A plan for each pipeline stage within its own budget: stages share no memory, so each is the best by itself."""
    return tuple(plan_saves(fronts, budget) for fronts, budget in zip(stages, budgets, strict=True))


# -- the plan ---------------------------------------------------------------------------------------------------------


def plan_saves(fronts: Sequence[LayerFront], budget: float) -> SavePlan | None:
    """The save set of every layer, for the least seconds within a budget of bytes; None where nothing fits.

    >>> sets = (SaveSet(saved=(), bytes=1.0, seconds=5.0), SaveSet(saved=("x",), bytes=3.0, seconds=0.0))
    >>> plan = plan_saves([LayerFront(path="layers.0", count=4, sets=sets)], 9.0)
    >>> plan.seconds, plan.bytes, dict(plan.counts["layers.0"])
    (10.0, 8.0, {0: 2, 1: 2})
    """
    least = sum(front.sets[0].bytes * front.count for front in fronts)
    if least > budget:
        return None
    hulls = [_hull(front.sets) for front in fronts]
    steps = _steps(fronts, hulls)
    relaxed_places, bound_s = _relaxed_plan(fronts, steps, budget)
    best: SavePlan | None = None
    open_counts = [min(OPEN_LAYERS, front.count) for front in fronts]
    sums = _open_sums(fronts, open_counts)
    for fixed in _fixed_choices(fronts, hulls, relaxed_places, open_counts):
        candidate = _complete(fronts, fixed, sums, budget, bound_s)
        if candidate is not None and (best is None or candidate.seconds < best.seconds):
            best = candidate
    return best


def _hull(sets: Sequence[SaveSet]) -> list[int]:
    """Sets of a front on its lower convex hull."""
    hull: list[int] = []
    for index, item in enumerate(sets):
        while len(hull) > 1:
            first, middle = sets[hull[-2]], sets[hull[-1]]
            slope = (middle.seconds - first.seconds) / (middle.bytes - first.bytes)
            if (item.seconds - first.seconds) / (item.bytes - first.bytes) > slope:
                break
            hull.pop()
        hull.append(index)
    return hull


Step = tuple[float, int, int, float, float]
"""Seconds gained for a byte (negative: sorts first), kind, place on its hull, bytes and seconds of one layer's step."""


def _steps(fronts: Sequence[LayerFront], hulls: Sequence[Sequence[int]]) -> list[Step]:
    steps: list[Step] = []
    for kind, (front, hull) in enumerate(zip(fronts, hulls, strict=True)):
        for place in range(1, len(hull)):
            before, after = front.sets[hull[place - 1]], front.sets[hull[place]]
            more, less = after.bytes - before.bytes, before.seconds - after.seconds
            steps.append((-less / more, kind, place, more, less))
    return sorted(steps)


def _relaxed_plan(fronts: Sequence[LayerFront], steps: Sequence[Step], budget: float) -> tuple[list[list[int]], float]:
    """Hull places of all layers after whole steps, and the seconds of the relaxed optimum."""
    places = [[0] * front.count for front in fronts]
    left_bytes = budget - sum(front.sets[0].bytes * front.count for front in fronts)
    seconds = sum(front.sets[0].seconds * front.count for front in fronts)
    for slope, kind, place, more, less in steps:
        layers = min(fronts[kind].count, int(left_bytes / more * (1 + 1e-12)))
        places[kind][:layers] = [place] * layers
        left_bytes -= layers * more
        seconds -= layers * less
        if layers < fronts[kind].count:
            return places, seconds + slope * left_bytes
    return places, seconds


def _fixed_choices(
    fronts: Sequence[LayerFront], hulls: Sequence[Sequence[int]], taken: Sequence[Sequence[int]], open_: Sequence[int]
) -> list[list[dict[int, int]]]:
    """Counts by set of the layers that are not open: those of the relaxed optimum, the break moved by some layers."""
    choices: list[list[dict[int, int]]] = []
    for shift in range(-OPEN_LAYERS, OPEN_LAYERS + 1):
        row: list[dict[int, int]] = []
        for front, hull, places, few in zip(fronts, hulls, taken, open_, strict=True):
            start = max(0, min(front.count - few, places.count(places[0]) - few // 2 + shift))
            rest = list(places[:start]) + list(places[start + few :])
            counts: dict[int, int] = {}
            for place in rest:
                counts[hull[place]] = counts.get(hull[place], 0) + 1
            row.append(counts)
        if row not in choices:
            choices.append(row)
    return choices


OpenSum = tuple[NDArray[np.float64], NDArray[np.float64], list[tuple[int, ...]]]
"""Bytes, seconds and chosen sets of open layers, fewest bytes first, none beaten by another."""


def _open_sums(fronts: Sequence[LayerFront], open_counts: Sequence[int]) -> OpenSum:
    """Every sum of the open layers of all kinds that no other beats."""
    empty: OpenSum = (np.zeros(1), np.zeros(1), [()])
    layers = [front.sets for front, many in zip(fronts, open_counts, strict=True) for _ in range(many)]
    return reduce(_add_layer, layers, empty)


def _add_layer(sums: OpenSum, sets: Sequence[SaveSet]) -> OpenSum:
    sizes, seconds, chosen_sets = sums
    more, longer = np.array([item.bytes for item in sets]), np.array([item.seconds for item in sets])
    total, times = (sizes[:, None] + more).ravel(), (seconds[:, None] + longer).ravel()
    order = np.lexsort((times, total))
    best = np.minimum.accumulate(np.concatenate([[np.inf], times[order][:-1]]))
    order = order[times[order] < best]
    if len(order) > MOST_SUMS:
        order = order[np.unique(np.linspace(0, len(order) - 1, MOST_SUMS).round().astype(np.int64))]
    rows, columns = np.divmod(order, len(sets))
    chosen = [(*chosen_sets[row], column) for row, column in zip(rows.tolist(), columns.tolist(), strict=True)]
    return total[order], times[order], chosen


def _complete(
    fronts: Sequence[LayerFront], fixed: Sequence[Mapping[int, int]], sums: OpenSum, budget: float, bound_s: float
) -> SavePlan | None:
    """A plan of layers that are fixed and the best sum of the open ones that still fits."""
    pairs = [
        (front.sets[place], many) for front, counts in zip(fronts, fixed, strict=True) for place, many in counts.items()
    ]
    used = sum(item.bytes * many for item, many in pairs)
    sizes, seconds, chosen_sets = sums
    place = int(np.searchsorted(sizes, (budget - used) * (1 + 1e-12), side="right")) - 1
    if place < 0:
        return None
    counts = [dict(item) for item in fixed]
    open_kinds = [kind for kind, front in enumerate(fronts) for _ in range(min(OPEN_LAYERS, front.count))]
    for kind, index in zip(open_kinds, chosen_sets[place], strict=True):
        counts[kind][index] = counts[kind].get(index, 0) + 1
    return SavePlan(
        budget=budget, bytes=used + float(sizes[place]), bound_s=max(0.0, bound_s),
        seconds=sum(item.seconds * many for item, many in pairs) + float(seconds[place]),
        counts=MappingProxyType(
            {
                front.path: MappingProxyType(dict(sorted(table.items())))
                for front, table in zip(fronts, counts, strict=True)
            }
        ),
    )  # fmt: skip
