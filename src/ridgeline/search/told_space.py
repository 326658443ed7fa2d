"""Turn a space of plans into that of the plans which a target of an export can be told.

A choice that the target cannot be told in the plainest plan that has it is left out (`told_space`): what is added to a
plan makes none of its decisions tellable. Where a target does by itself what a plan leaves to its engine's habit, the
plan states it (`with_habits`): a run of DeepSpeed without ZeRO reduces gradients after the backward pass, though the
engine overlaps them as a habit. What is left are choices that exclude each other; `told_plans` asks about those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ridgeline.core.dtype import dtype
from ridgeline.plan.engine import Shard
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.plan import Plan, Precision, Schedule, Sharding, Switches
from ridgeline.plan.scenario import Scenario
from ridgeline.search.plan_target import AskedTarget
from ridgeline.search.space import Pins, Space

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


def told_space(space: Space, scenario: Scenario, pins: Pins, asked: AskedTarget) -> Space:
    """The space of what the target can be told; a choice that is pinned stays, and is told about when nothing is left.

    An axis of which nothing can be told stays as it is too: then no plan can be told, and the plans say why.
    """
    space = with_habits(space, scenario, asked)
    for axis in ("shard", *(name for name in OWN if name != "shard")):
        kept = tuple(one for one in getattr(space, axis) if can_be_told(scenario, space, axis, one, asked))
        if kept and (axis not in pins.pinned or axis in ("switches", "precision")):
            narrowed: dict[str, Any] = {axis: kept}
            space = replace(space, **narrowed)
    return space


def can_be_told(scenario: Scenario, space: Space, axis: str, choice: Any, asked: AskedTarget) -> bool:
    """Whether the target can be told a choice along an axis in the plainest plan that has it, under some sharding."""
    if axis in (*AXES, "etp") and choice == 1:
        return True
    enough = all if axis == "switches" else any
    for shard in (choice,) if axis == "shard" else space.shard:
        probes = list(_probes(scenario, space, shard, axis, choice))
        if not probes or enough(not _loses(asked, scenario, plan, OWN[axis]) for plan in probes):
            return True
    return False


def _loses(asked: AskedTarget, scenario: Scenario, plan: Plan, paths: tuple[str, ...]) -> bool:
    """Whether one of these decisions of a plan cannot be told, or the target would run another engine.

    Switches say nothing where the axis that they are about is not there: a dispatcher without experts on other ranks.
    """
    lost = {one.path for one in asked.untold(replace(scenario, plan=plan))}
    lost -= {DISPATCH} if plan.mesh.ep == 1 else set()
    if paths == OWN["switches"] and lost & RANKS:
        return False
    return ENGINE in lost or any(path.startswith(paths) for path in lost)


def _probes(scenario: Scenario, space: Space, shard: Shard, axis: str, choice: Any) -> Iterator[Plan]:
    """The plainest plans that have a choice: of context ranks one for each way they exchange keys, of switches one for
    each axis of ranks that these may be about."""
    if axis == "switches":
        for other in ("", *AXES):
            if other != "pp":
                yield from _probe(scenario, space, shard, {other: _least(space, other)}, {"switches": choice})
    elif axis == "cp":
        for switches in {one.cp_kind: one for one in space.switches}.values():
            yield from _probe(scenario, space, shard, {axis: choice}, {"switches": switches})
    elif axis in AXES:
        yield from _probe(scenario, space, shard, {axis: choice}, {})
    elif axis == "etp":
        yield from _probe(scenario, space, shard, {"tp": choice, "etp": choice}, {})
    else:
        staged = axis == "schedule" and choice != Schedule()
        made = {} if axis == "shard" else {axis: choice}
        yield from _probe(scenario, space, shard, {"pp": _least(space, "pp")} if staged else {}, made)


def plain_plans(scenario: Scenario, space: Space) -> Iterator[Plan]:
    """Of every sharding the plainest plan, and the plainest with ranks along each axis."""
    for shard in space.shard:
        yield from _probe(scenario, space, shard, {}, {})
        for axis in AXES:
            yield from _probe(scenario, space, shard, {axis: _least(space, axis)}, {})


def _least(space: Space, axis: str) -> int:
    """The fewest ranks of an axis that are more than one; 1 where there are none."""
    return min((size for size in getattr(space, axis) if size > 1), default=1) if axis else 1


def _probe(
    scenario: Scenario, space: Space, shard: Shard, degrees: Mapping[str, int], made: Mapping[str, Any]
) -> Iterator[Plan]:
    """A plan with these degrees on the chips, and nothing but these choices; none where they do not divide them."""
    chips = scenario.system.chips
    own: dict[str, Any] = {axis: size for axis, size in degrees.items() if axis}
    inner = own.get("tp", 1) * own.get("cp", 1) * own.get("pp", 1)
    if chips % inner or any(size == 1 for size in own.values()) or chips % (own.get("ep", 1) * own.get("etp", 1)):
        return
    plain: dict[str, Any] = {
        "mesh": Mesh(**{"dp": chips // inner, **own}),
        "microbatch": 1,
        "recompute": space.recompute[0],
        "sharding": Sharding(shard=shard),
        "schedule": Schedule(),
        "placement": (),
        "switches": space.switches[0],
        "precision": space.precision[0],
    }
    yield replace(scenario.plan, **{**plain, **made})


def with_habits(space: Space, scenario: Scenario, asked: AskedTarget) -> Space:
    """The space with the switches and formats beside its own that the target has where a plan leaves them open."""
    own = scenario.plan
    found = list(_habits(space, scenario, asked))
    switches = [*space.switches, *(_thrown(one, own.switches, told) for told in found for one in space.switches)]
    formats = [*space.precision, *(_reduced(one, told) for told in found for one in space.precision)]
    return replace(space, switches=tuple(_once(switches)), precision=tuple(_once(formats)))


def _habits(space: Space, scenario: Scenario, asked: AskedTarget) -> Iterator[Mapping[str, Any]]:
    """What the target does by itself under each sharding: of plans that have one axis each, taken together.

    What it does of dispatch where no expert is on another rank stands apart: elsewhere it may take another.
    """
    kinds = {one.cp_kind: one for one in space.switches}
    for shard in space.shard:
        found: dict[str, Any] = {}
        idle: dict[str, Any] = {}
        for axis in ("", *AXES):
            for switches in kinds.values() if axis == "cp" else (space.switches[0],):
                degrees = {axis: _least(space, axis)} if axis else {}
                for plan in _probe(scenario, space, shard, degrees, {"switches": switches}):
                    told = dict(asked.habits(replace(scenario, plan=plan)))
                    if plan.mesh.ep == 1 and DISPATCH in told:
                        idle[DISPATCH] = told.pop(DISPATCH)
                    found = {**told, **found}
        yield from (one for one in (found, {**idle, **found}) if one)


def _thrown(switches: Switches, stated: Switches, told: Mapping[str, Any]) -> Switches:
    """Switches with what the target does in place of those that the plan does not state."""
    overlap = {path.removeprefix(OVERLAP): on for path, on in told.items() if path.startswith(OVERLAP)}
    kept = {word: on for word, on in overlap.items() if word not in stated.overlap}
    other: dict[str, Any] = {
        OPEN[path]: value for path, value in told.items() if path in OPEN and getattr(stated, OPEN[path]) is None
    }
    if SEQUENCE_PARALLEL in told and stated.sequence_parallel is None:
        other["sequence_parallel"] = told[SEQUENCE_PARALLEL]
    return replace(switches, overlap=MappingProxyType({**switches.overlap, **kept}), **other)


def _reduced(precision: Precision, told: Mapping[str, Any]) -> Precision:
    """Formats with the one that the target reduces gradients in, where the plan does not state it."""
    if GRADIENTS not in told or precision.gradients is not None:
        return precision
    return replace(precision, gradients=dtype(told[GRADIENTS]))


def _once(choices: Iterable[Any]) -> list[Any]:
    """The choices without repetition; one may hold a mapping, so equality decides."""
    found: list[Any] = []
    for choice in choices:
        if choice not in found:
            found.append(choice)
    return found
