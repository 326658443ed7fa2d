"""Turn a space of plans into that of the plans which a target of an export can express.

A choice that the target does not support in the plainest plan that has it is left out (`expressible_space`): what is
added to a plan makes none of its decisions supported. Where a target does by itself what a plan leaves to its engine's
habit, the plan states it (`with_target_defaults`): a run of DeepSpeed without ZeRO reduces gradients after the backward
pass, though the engine overlaps them as a habit. What is left are choices that exclude each other, which
`ExpressiblePlans` leaves out plan by plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from ridgeline.core.arrays import Index
from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.dtype import dtype
from ridgeline.plan.capability import Capability, PlanFacts, UnsupportedDecision
from ridgeline.plan.engine import Shard
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.plan import Plan, Schedule, Sharding, Switches
from ridgeline.plan.resolve import PlanSizes
from ridgeline.plan.scenario import Scenario
from ridgeline.search.choices import distinct_choices
from ridgeline.search.target import ExportTarget
from ridgeline.search.training.shortlist import PricedEntry
from ridgeline.search.training.space import Pins, Space
from ridgeline.search.training.sweep import PlanChunk

OVERLAP, GRADIENTS = "plan.overlap.", "plan.precision.gradients"
SEQUENCE_PARALLEL = "plan.sequence_parallel"
# switches that a plan may leave to its engine, by the decision they are
OPEN = MappingProxyType({f"plan.{name}": name for name in ("attention", "graph", "moe_dispatch", "compiled")})
AXES = ("tp", "cp", "pp", "ep")
# axis of the space -> the decisions that are its own; a choice that needs another engine is none
OWN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **{axis: (f"plan.{axis}",) for axis in (*AXES, "etp", "shard")},
        "schedule": ("plan.schedule.name", "plan.schedule.chunks"),
        "recompute": ("plan.recompute.",),
        "offload": ("plan.offload.",),
        "precision": ("plan.precision.",),
        "switches": (OVERLAP, SEQUENCE_PARALLEL, "plan.cp_kind", *OPEN),
    }
)
ENGINE, DISPATCH = "plan.engine", "plan.moe_dispatch"
RANKS = frozenset(f"plan.{axis}" for axis in AXES)


def expressible_space(space: Space, scenario: Scenario, pins: Pins, capability: Capability) -> Space:
    """The space of what the target supports; a choice that is pinned stays, and is refused when nothing is left.

    An axis of which nothing is supported stays as it is too: then no plan can be expressed, and the plans say why.
    """
    space = with_target_defaults(space, scenario, capability)
    for axis in ("shard", *(name for name in OWN if name != "shard")):
        choices = tuple(
            choice for choice in getattr(space, axis) if is_expressible(scenario, space, axis, choice, capability)
        )
        if choices and (axis not in pins.pinned or axis in ("switches", "precision")):
            narrow_axis: JsonObject = {axis: choices}
            space = replace(space, **narrow_axis)
    return space


def is_expressible(scenario: Scenario, space: Space, axis: str, choice: Any, capability: Capability) -> bool:
    """Whether a choice along an axis is supported in the plainest plan that has it, under some sharding."""
    if axis in (*AXES, "etp") and choice == 1:
        return True
    enough = all if axis == "switches" else any
    for shard in (choice,) if axis == "shard" else space.shard:
        probes = list(_probes(scenario, space, shard, axis, choice))
        if not probes or enough(not _loses(capability, scenario, plan, OWN[axis]) for plan in probes):
            return True
    return False


def _loses(capability: Capability, scenario: Scenario, plan: Plan, paths: tuple[str, ...]) -> bool:
    """Whether one of these decisions of a plan is not supported, or the target would run another engine.

    Switches say nothing where the axis that they are about is not there: a dispatcher without experts on other ranks.
    """
    lost = {f"plan.{limit.decision}" for limit in capability.unsupported_decisions(replace(scenario, plan=plan))}
    lost -= {DISPATCH} if plan.mesh.ep == 1 else set()
    if paths == OWN["switches"] and lost & RANKS:
        return False
    return ENGINE in lost or any(path.startswith(paths) for path in lost)


def _probes(scenario: Scenario, space: Space, shard: Shard, axis: str, choice: Any) -> Iterator[Plan]:
    """The plainest plans that have a choice: of context ranks one for each way they exchange keys, of switches one for
    each axis of ranks that these may be about."""
    if axis == "switches":
        for rank_axis in ("", *AXES):
            if rank_axis != "pp":
                yield from _probe(scenario, space, shard, {rank_axis: _least(space, rank_axis)}, {"switches": choice})
    elif axis == "cp":
        for switches in {switches.cp_kind: switches for switches in space.switches}.values():
            yield from _probe(scenario, space, shard, {axis: choice}, {"switches": switches})
    elif axis in AXES:
        yield from _probe(scenario, space, shard, {axis: choice}, {})
    elif axis == "etp":
        yield from _probe(scenario, space, shard, {"tp": choice, "etp": choice}, {})
    else:
        needs_stages = axis == "schedule" and choice != Schedule()
        choices = {} if axis == "shard" else {axis: choice}
        yield from _probe(scenario, space, shard, {"pp": _least(space, "pp")} if needs_stages else {}, choices)


def plain_plans(scenario: Scenario, space: Space) -> Iterator[Plan]:
    """Of every sharding the plainest plan, and the plainest with ranks along each axis."""
    for shard in space.shard:
        yield from _probe(scenario, space, shard, {}, {})
        for axis in AXES:
            yield from _probe(scenario, space, shard, {axis: _least(space, axis)}, {})


def unsupported_question(scenario: Scenario, space: Space, target: ExportTarget) -> tuple[UnsupportedDecision, ...]:
    """What of the model or the workload stands against every plain plan that the target can express; else nothing."""
    items: tuple[UnsupportedDecision, ...] = ()
    for plan in plain_plans(scenario, space):
        attempt = replace(scenario, plan=plan)
        if target.capability.unsupported_decisions(attempt):
            continue
        decisions = target.unsupported_decisions(attempt)
        if not decisions:
            return ()
        items = items or decisions
    return items


def _least(space: Space, axis: str) -> int:
    """The fewest ranks of an axis that are more than one; 1 where there are none."""
    return min((size for size in getattr(space, axis) if size > 1), default=1) if axis else 1


def _probe(
    scenario: Scenario, space: Space, shard: Shard, degrees: Mapping[str, int], made: JsonMapping
) -> Iterator[Plan]:
    """A plan with these degrees on the chips, and nothing but these choices; none where they do not divide them."""
    chips = scenario.system.chips
    sizes: JsonObject = {axis: size for axis, size in degrees.items() if axis}
    inner = sizes.get("tp", 1) * sizes.get("cp", 1) * sizes.get("pp", 1)
    if 1 in sizes.values() or chips % inner or chips % (sizes.get("ep", 1) * sizes.get("etp", 1)):
        return
    plain: JsonObject = {
        "mesh": Mesh(**{"dp": chips // inner, **sizes}),
        "microbatch": 1,
        "recompute": space.recompute[0],
        "sharding": Sharding(shard=shard),
        "schedule": Schedule(),
        "placement": (),
        "switches": space.switches[0],
        "precision": space.precision[0],
    }
    yield replace(scenario.plan, **{**plain, **made})


def with_target_defaults(space: Space, scenario: Scenario, capability: Capability) -> Space:
    """The space with the switches and formats beside its own that the target has where a plan leaves them open."""
    plan = scenario.plan
    defaults = list(_defaults(space, scenario, capability))
    switches = [
        *space.switches,
        *(_with_defaults(item, plan.switches, some) for some in defaults for item in space.switches),
    ]
    formats = [
        *space.precision,
        *(
            replace(formats, gradients=dtype(some[GRADIENTS]))
            for some in defaults
            for formats in space.precision
            if GRADIENTS in some and formats.gradients is None
        ),
    ]
    return replace(space, switches=tuple(distinct_choices(switches)), precision=tuple(distinct_choices(formats)))


def _defaults(space: Space, scenario: Scenario, capability: Capability) -> Iterator[JsonMapping]:
    """What the target does by itself under each sharding: of plans that have one axis each, taken together.

    What it does of dispatch where no expert is on another rank is yielded by itself: elsewhere it may take another.
    """
    exchanges = {switches.cp_kind: switches for switches in space.switches}
    for shard in space.shard:
        values: JsonObject = {}
        idle: JsonObject = {}
        for axis in ("", *AXES):
            for switches in exchanges.values() if axis == "cp" else (space.switches[0],):
                degrees = {axis: _least(space, axis)} if axis else {}
                for plan in _probe(scenario, space, shard, degrees, {"switches": switches}):
                    done = target_defaults(replace(scenario, plan=plan), capability)
                    if plan.mesh.ep == 1 and DISPATCH in done:
                        idle[DISPATCH] = done.pop(DISPATCH)
                    values = {**done, **values}
        yield from (some for some in (values, {**idle, **values}) if some)


def target_defaults(scenario: Scenario, capability: Capability) -> JsonObject:
    """What the target does of switches and formats that it cannot express as the scenario has them.

    Of a plan whose ranks it does not have, or that another engine would run, that says nothing.
    """
    done = {f"plan.{decision}": value for decision, value in capability.replacements(scenario).items()}
    if done.keys() & {ENGINE, *RANKS}:
        return {}
    habits = (*OPEN, GRADIENTS, SEQUENCE_PARALLEL)
    return {path: value for path, value in done.items() if path.startswith(OVERLAP) or path in habits}


def _with_defaults(switches: Switches, stated: Switches, values: JsonMapping) -> Switches:
    """Switches with what the target does in place of those that the plan does not state."""
    overlap = {path.removeprefix(OVERLAP): on for path, on in values.items() if path.startswith(OVERLAP)}
    open_overlap = {word: on for word, on in overlap.items() if word not in stated.overlap}
    changes: JsonObject = {
        OPEN[path]: value for path, value in values.items() if path in OPEN and getattr(stated, OPEN[path]) is None
    }
    if SEQUENCE_PARALLEL in values and stated.sequence_parallel is None:
        changes["sequence_parallel"] = values[SEQUENCE_PARALLEL]
    return replace(switches, overlap=MappingProxyType({**switches.overlap, **open_overlap}), **changes)


class ExpressiblePlans:
    """The plans of one search that a target supports: its table, held against columns of plans."""

    def __init__(self, capability: Capability, scenario: Scenario) -> None:
        self._capability, self._scenario = capability, scenario

    def keep(self, chunk: PlanChunk) -> PlanChunk:
        """Those of a chunk's plans that can be expressed."""
        structure = chunk.grid.structure[chunk.cell]
        able = np.empty(len(structure), dtype=np.bool_)
        for index in np.unique(structure):
            rows = np.flatnonzero(structure == index)
            facts = PlanFacts.of(_of_structure(chunk, int(index)), _sizes(chunk, rows))
            able[rows] = self._capability.supported(facts)
        return chunk if able.all() else chunk.taken(np.flatnonzero(able))

    def can(self, entry: PricedEntry) -> bool:
        """Whether this very plan can be expressed."""
        return not self._capability.unsupported_decisions(replace(self._scenario, plan=entry.plan))

    def plainest(self, entry: PricedEntry) -> PricedEntry:
        """The entry without switches for ranks that are not there, where it can still be expressed."""
        switches, mesh = entry.plan.switches, entry.plan.mesh
        plain: JsonObject = {"cp_kind": "ring"} if mesh.cp == 1 else {}
        plain |= {"sequence_parallel": self._scenario.plan.switches.sequence_parallel} if mesh.tp == 1 else {}
        plainer = replace(entry, plan=replace(entry.plan, switches=replace(switches, **plain)))
        return plainer if plainer.plan != entry.plan and self.can(plainer) else entry


def _of_structure(chunk: PlanChunk, structure: int) -> Scenario:
    """The scenario that a chunk's plans of one structure share, but for their sizes."""
    scenario = chunk.grid.scenarios[structure]
    plan = replace(
        scenario.plan,
        mesh=Mesh(pp=chunk.pp, order=scenario.plan.mesh.order),
        schedule=chunk.schedule,
        sharding=Sharding(shard=chunk.shard),
        offload=chunk.offload,
    )
    return replace(scenario, plan=plan)


def _sizes(chunk: PlanChunk, rows: Index) -> PlanSizes:
    """The sizes of some of a chunk's plans, as columns."""
    cell = chunk.cell[rows]
    degrees: JsonObject = {
        name: np.asarray(getattr(chunk.grid.degrees, name))[cell] for name in ("tp", "cp", "ep", "etp", "microbatch")
    }
    return PlanSizes(pp=chunk.pp, dp=chunk.dp[rows], shard_degree=chunk.degree[rows], **degrees)
