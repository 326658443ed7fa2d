"""Turn plans that somebody ran into their rank among all plans of their problem, and the seconds they lose to the best.

    problem     model, system, workload, engine, precision and switches: what the plans compared have in common
    rank        feasible plans predicted faster, of all feasible ones; the plan's own choices are always in the space
    gap         the plan's step less that of the best plan, by part of a step

A gap is what the search believes, no more: where the best plan lies within the interval of the plan's own prediction,
the two cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.records import dataclass
from ridgeline.cost import Calibration
from ridgeline.models.spec import Moe
from ridgeline.plan.capability import unsupported_decisions
from ridgeline.plan.plan import Plan
from ridgeline.plan.resolve import resolve
from ridgeline.plan.scenario import Scenario
from ridgeline.search.training.explain import difference
from ridgeline.search.training.plan_search import place_layers, supported_chunks, swept
from ridgeline.search.training.space import NO_PINS, Pins, Space, choice, space_of, widen_space
from ridgeline.search.training.sweep import PlanChunk, priced_grids
from ridgeline.sim import Prediction, capacity_of, default_calibration, predict

NEAR = 0.05  # share of feasible plans that may be faster than one that is near the top
EQUAL = 1e-9  # of a step: plans closer than this are equally fast
Verdict = Literal["near the top", "within the interval", "beyond the interval"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRank:
    """A plan among all plans of its problem.

    considered, feasible, faster   plans priced; those that fit; those of them predicted faster than this one
    best       the fastest plan that fits; None where none is faster
    gap_by_part   seconds that this plan spends beyond the best, by part of a step, largest first; may be negative
    changes    decisions in which the best plan differs: what they are here and there
    notes      what speaks against the comparison: the plan is predicted not to fit, its engine is not known to do it
    """

    own: Prediction
    considered: int
    feasible: int
    faster: int
    best: Prediction | None
    gap_by_part: tuple[tuple[str, float], ...]
    changes: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def share(self) -> float:
        """Feasible plans predicted faster, of all feasible ones."""
        return self.faster / self.feasible if self.feasible else 0.0

    @property
    def gap_s(self) -> float:
        """Seconds of a step that the best plan saves."""
        return self.own.step_time_s - self.best.step_time_s if self.best else 0.0

    @property
    def verdict(self) -> Verdict:
        """Near the top; or not, with a best plan inside or outside the interval of this one's prediction."""
        if self.share <= NEAR or self.best is None:
            return "near the top"
        inside = self.own.interval.low <= self.best.step_time_s
        return "within the interval" if inside else "beyond the interval"


def problem_of(scenario: Scenario) -> str:
    """What two scenarios must share for their plans to be compared, as a key."""
    plan = scenario.plan
    switches = replace(plan.switches, sequence_parallel=None, cp_kind="ring")
    return repr((scenario.model, scenario.system, scenario.workload, plan.engine, plan.precision, switches))


def plan_ranks(scenarios: Sequence[Scenario], calibration: Calibration | None = None) -> list[PlanRank | None]:
    """The rank of every scenario's plan, all of one problem, from one sweep; None for what cannot be predicted.

    >>> from ridgeline.plan.scenario_file import scenario
    >>> table = {"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 8192, "global_batch": 64}}
    >>> plans = ({"dp": 8, "shard": "zero3", "recompute": "full"}, {"tp": 8})
    >>> found = plan_ranks([scenario({**table, "plan": plan}) for plan in plans])
    >>> found[0].faster < found[1].faster < found[1].feasible
    True
    """
    used = calibration or default_calibration()
    predicted = [predict(_settled(scenario), used) for scenario in scenarios]
    own = [found for found in predicted if isinstance(found, Prediction)]
    if not own:
        return [None] * len(scenarios)
    base = own[0].scenario
    space = widen_space(space_of(base), [found.scenario.plan for found in own])
    steps: list[Array] = []
    capacity = capacity_of(base)
    pins = _opened(space, [found.scenario for found in own])
    chunks = supported_chunks(priced_grids(place_layers(base, pins), space, used), base, space, pins)
    found = swept(_tapped(chunks, capacity, steps), capacity)
    every = np.sort(np.concatenate(steps)) if steps else np.zeros(0)
    best = predict(replace(base, plan=found.best[0].plan), used) if found.best else None
    made: list[PlanRank | None] = []
    for single in predicted:
        if not isinstance(single, Prediction):
            made.append(None)
            continue
        faster = int(np.searchsorted(every, single.step_time_s * (1 - EQUAL)))
        ahead = best if faster and isinstance(best, Prediction) else None
        made.append(_ranked(single, ahead, (found.considered, found.feasible, faster)))
    return made


def _settled(scenario: Scenario) -> Scenario:
    """The scenario with its dispatcher and the overlap of dispatch said, which a search would choose otherwise."""
    own, now = scenario.plan.switches, resolve(scenario)
    if not any(isinstance(block.ffn, Moe) for block in scenario.model.blocks):
        return scenario
    overlap = MappingProxyType({**own.overlap, "moe": now.overlap.moe})
    return replace(
        scenario, plan=replace(scenario.plan, switches=replace(own, moe_dispatch=now.moe_dispatch, overlap=overlap))
    )


def _tapped(chunks: Iterable[PlanChunk], capacity: float, steps: list[Array]) -> Iterator[PlanChunk]:
    """The chunks as they are, with the steps of their feasible plans noted on the way."""
    for chunk in chunks:
        steps.append(chunk.step_s[chunk.peak_bytes <= capacity])
        yield chunk


def _ranked(own: Prediction, best: Prediction | None, counts: tuple[int, int, int]) -> PlanRank:
    scenario = own.scenario
    notes = list(unsupported_decisions(scenario))
    if not own.fits:
        notes.append(f"predicted not to fit by {-own.memory.headroom_bytes:.3g} bytes")
    if scenario.plan.placement:
        notes.append("stages as placed by hand; the space has balanced ones")
    considered, feasible, faster = counts
    return PlanRank(
        own=own,
        considered=considered,
        feasible=feasible,
        faster=faster,
        best=best,
        gap_by_part=_gap_by_part(own, best) if best else (),
        changes=tuple(_changes(scenario.plan, best.scenario.plan)) if best else (),
        notes=tuple(notes),
    )


def _gap_by_part(own: Prediction, best: Prediction) -> tuple[tuple[str, float], ...]:
    """Seconds by part beyond the best plan's."""
    return tuple(sorted(difference(own, best).items(), key=lambda item: -item[1]))


def _changes(own: Plan, best: Plan) -> Iterator[str]:
    """Decisions that differ, as `what: here -> there`."""
    for axis in Space.__slots__:
        here, there = choice(own, axis), choice(best, axis)
        if here != there:
            yield f"{axis}: {_told(axis, here)} -> {_told(axis, there)}"


def _told(axis: str, choice: Any) -> str:
    """A choice in a word or two."""
    match axis:
        case "schedule":
            return f"{choice.name} x{choice.chunks}" if choice.chunks > 1 else str(choice.name)
        case "recompute":
            some = f" of {choice.layers} layers" if choice.layers is not None else ""
            return f"{choice.kind}{some}" + (f" ({', '.join(choice.parts)})" if choice.kind == "selective" else "")
        case "offload":
            return f"activations {choice.activations:g}, optimizer {choice.optimizer:g}"
        case "switches":
            return f"sequence parallel {choice.sequence_parallel is not False}, {choice.cp_kind}"
        case "shard_degree":
            return str(choice or "all")
        case _:
            return str(choice)


def _opened(space: Space, scenarios: Sequence[Scenario]) -> Pins:
    """Axes along which somebody ran what the search would leave out: all their choices are compared then."""
    able, pins = scenarios[0].engine.supports, NO_PINS
    staged = [scenario.plan for scenario in scenarios if scenario.plan.mesh.pp > 1]
    if any(plan.schedule.name not in able.schedules for plan in staged):
        pins = replace(pins, schedule=space.schedule)
    late = any(scenario.plan.sharding.shard == "zero2" and scenario.microbatches > 1 for scenario in scenarios)
    if late or any(plan.sharding.shard not in able.pipelined_shard for plan in staged):
        pins = replace(pins, shard=space.shard)
    return pins
