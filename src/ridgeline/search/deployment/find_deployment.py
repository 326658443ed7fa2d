"""Turn a serve scenario without a plan into the deployments that keep its objective, best first.

space -> bound        every replica that fits: best-case TTFT, TPOT and requests/s; what misses is given up
      -> capacity     the most promising: the highest rate of one replica, simulated on a part of the load
      -> turn knobs   of the best: token budget, batch limit, formats, one after the other
      -> pools        prefill and decode apart: a capacity each, and the ratio that matches them
      -> verify       the first few as whole fleets: replicas are added or taken away until the objective just holds, on
                      the busiest part of the load first, then the best under all of it

The same scenario and seed give the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from math import ceil, inf

from ridgeline.core.records import dataclass
from ridgeline.plan.plan import Precision
from ridgeline.plan.scenario import Scenario, serving
from ridgeline.plan.serve import Objective
from ridgeline.search.deployment.bound import Bound, bound_of
from ridgeline.search.deployment.candidate import (
    Candidate,
    Goal,
    Verified,
    allowed,
    fewest,
    fewest_pools,
    fullest,
    fullest_pools,
    order,
)
from ridgeline.search.deployment.capacity import FINER, HALVINGS, ROUGH, STABLE, Capacity, capacity
from ridgeline.search.deployment.load import Load, searched_load
from ridgeline.search.deployment.shape import Shape, shape_words
from ridgeline.search.deployment.space import DeploymentSpace, shapes
from ridgeline.search.deployment.trial import Bench
from ridgeline.search.deployment.verify import verified
from ridgeline.search.progress import Progress, Watch, unwatched
from ridgeline.serving.deployment import Priced
from ridgeline.serving.fleet.event_loop import settled_heap
from ridgeline.serving.fleet.fleet_loop import Role

MESHES = 10  # kinds of degrees whose capacity is simulated
TURNED = 2  # of these, the best, whose settings are turned
POOLED = 4  # kinds of degrees that are tried for each pool
FINALISTS = 3  # deployments whose number of replicas is found by simulating all of them at once
GAINS = 1.02  # times the rate that a setting must gain
BUSY_S, MOST_MADE = 60.0, 20_000  # how long a generated load lasts at the highest rate, and its most requests


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentSearch:
    """What a search found.

    bounds      of every replica that can run, most requests a second and chip first
    capacities  of the replicas that were simulated
    candidates  deployments by what they hold on a shortened load, best first
    verified    the best of them as whole fleets, best first: under the whole load, others under its busiest part
    trials, requests   simulated in all
    """

    scenario: Scenario
    space: DeploymentSpace
    load: Load
    goal: Goal
    rate: float
    bounds: tuple[Bound, ...]
    capacities: tuple[Capacity, ...]
    candidates: tuple[Candidate, ...]
    verified: tuple[Verified, ...]
    bench: Bench
    complete: bool = True

    @property
    def best(self) -> Verified | None:
        """The deployment that is recommended; None where none keeps the objective."""
        return self.verified[0] if self.verified and self.verified[0].met else None


@dataclass(slots=True)
class _Work:
    """A search under way."""

    bench: Bench
    space: DeploymentSpace
    goal: Goal
    rate: float
    watch: Watch
    bounds: dict[Shape, Bound] = field(default_factory=dict)
    found: dict[tuple[Shape, Role], Capacity] = field(default_factory=dict)
    stopped: bool = False

    @property
    def chips(self) -> int:
        return self.bench.base.system.chips

    @property
    def halvings(self) -> int:
        return FINER if self.goal == "goodput" else HALVINGS

    def go_on(self, what: str) -> bool:
        """Tell what comes next; whether to."""
        said = Progress(phase="search", what=what, priced=self.bench.trials)
        self.stopped = self.stopped or self.watch(said) is False
        return not self.stopped


def find_deployment(
    scenario: Scenario, space: DeploymentSpace, goal: Goal = "cost", priced: Priced | None = None,
    watch: Watch = unwatched,
) -> DeploymentSearch:  # fmt: skip
    """The deployments of a model on a system that keep the objective of a serve workload.

    goal   cost, chips: the fewest chips that hold the load; goodput: the highest rate that all chips hold
    """
    work = serving(scenario).workload
    bench = Bench(base=scenario, load=searched_load(work), objective=work.objective, priced=priced or Priced())
    watch(Progress(phase="search", what="best cases of every replica"))
    bounds = [bound_of(scenario, one, bench.load, work.objective, bench.priced) for one in shapes(scenario, space)]
    bounds.sort(key=lambda one: -one.rate / one.shape.chips)
    if goal == "goodput" and not bench.load.traced:
        bench = _busier(bench, bounds)
    made = _Work(bench=bench, space=space, goal=goal, rate=bench.load.rate, watch=watch)
    made.bounds = {one.shape: one for one in bounds}
    with settled_heap():
        candidates = _candidates(made, _able(bounds, bench))
        fleets = _verified(made, candidates)
    return DeploymentSearch(
        scenario=bench.base,
        space=space,
        load=bench.load,
        goal=goal,
        rate=bench.load.rate,
        bounds=tuple(bounds),
        capacities=tuple(made.found.values()),
        candidates=tuple(candidates),
        verified=fleets,
        bench=bench,
        complete=not made.stopped,
    )


def _busier(bench: Bench, bounds: Sequence[Bound]) -> Bench:
    """A generated load of as many requests as keep all chips busy for a while."""
    chips, work = bench.base.system.chips, serving(bench.base).workload
    rate = max((one.rate * (chips // one.shape.chips) for one in bounds), default=0.0)
    many = int(min(max(rate * BUSY_S, len(bench.load.requests)), MOST_MADE))
    asked = replace(work, requests=many)
    return Bench(
        base=replace(bench.base, workload=asked), load=searched_load(asked), objective=bench.objective,
        priced=bench.priced,
    )  # fmt: skip


def keeps(bound: Bound, objective: Objective) -> bool:
    """Whether a replica could keep the objective without any load."""
    tpot = min(objective.tpot or inf, objective.itl or inf)
    return bound.rate > 0 and bound.ttft_s <= (objective.ttft or inf) and bound.tpot_s <= tpot


def _able(bounds: Sequence[Bound], bench: Bench) -> list[Bound]:
    """Replicas that could keep the objective of every request.

    Stages compete where they promise more than tensor ranks alone: more requests/s a chip than any replica without
    them, or a fit where nothing else fits. Otherwise they cost time to simulate and are seldom chosen.
    """
    longest = float((bench.load.prompts + bench.load.outputs - 1).max())
    able = [one for one in bounds if keeps(one, bench.objective) and longest <= one.longest]
    best = max((one.rate / one.shape.mesh.ranks for one in able if one.shape.mesh.pp == 1), default=0.0)
    return [one for one in able if one.shape.mesh.pp == 1 or one.rate / one.shape.mesh.ranks > best]


# ---- candidates


def _candidates(work: _Work, able: Sequence[Bound]) -> list[Candidate]:
    """Deployments by what their replicas hold on a shortened load, best first."""
    found: list[Candidate] = []
    if "aggregated" in work.space.split:
        found += _aggregated(work, able)
    if "disaggregated" in work.space.split:
        found += _disaggregated(work, able)
    found = [one for one in found if allowed(one, work.chips, work.space.replicas)]
    return sorted(found, key=lambda one: order(one, work.goal, work.rate))


def _aggregated(work: _Work, able: Sequence[Bound]) -> list[Candidate]:
    """Replicas that prefill and decode: the best degrees, then their settings."""
    seen: list[Capacity] = []
    tuned: Shape | None = None
    for bound in sorted(_by_mesh(able), key=lambda one: _fewest_chips(work, one))[:MESHES]:
        dear = _dear(work, bound, seen)
        if dear and not _faster(work, bound, seen):
            continue
        if not work.go_on(f"one replica of {shape_words(bound.shape)}"):
            break
        if tuned is None:
            tuned = _turned(work, bound, ("tokens",)).shape
        seen.append(_held(work, _with_knobs(work, bound, tuned), rough=dear))
    kept = sorted((one for one in seen if one.rate), key=lambda one: order(_filled(work, one), work.goal, work.rate))
    for one in kept[:TURNED]:
        if work.go_on(f"settings of {shape_words(one.shape)}"):
            _turned(work, work.bounds[one.shape], ("tokens", "seqs", "precision", "speculation", "prefix"))
    return [_filled(work, one) for one in work.found.values() if one.rate and one.role == "both"]


def _dear(work: _Work, bound: Bound, seen: Sequence[Capacity]) -> bool:
    """Whether a replica even at its best costs more than one that was simulated: it is not chosen."""
    held = [one for one in seen if one.rate]
    if not held:
        return False
    most, chips = STABLE * bound.rate, bound.shape.chips
    if work.goal == "goodput":
        return most * (work.chips // chips) < max(one.rate * (work.chips // one.shape.chips) for one in held)
    return _fewest_chips(work, bound) > min(fewest(one, work.rate).chips for one in held)


def _fewest_chips(work: _Work, bound: Bound) -> int:
    """Chips of as many replicas as hold the load at their best: none needs fewer. Goodput takes all chips there are."""
    if work.goal == "goodput":
        return work.chips
    return ceil(work.rate / (STABLE * bound.rate)) * bound.shape.chips


def _faster(work: _Work, bound: Bound, seen: Sequence[Capacity]) -> bool:
    """Whether a replica may serve a user faster than those that were simulated: it is a point of the frontier."""
    return bound.tpot_s < min(work.bounds[one.shape].tpot_s for one in seen if one.rate)


def _by_mesh(able: Iterable[Bound]) -> list[Bound]:
    """The first bound of every kind of degrees."""
    kept: dict[object, Bound] = {}
    for one in able:
        kept.setdefault(one.shape.mesh, one)
    return list(kept.values())


def _filled(work: _Work, one: Capacity) -> Candidate:
    return fullest(one, work.chips) if work.goal == "goodput" else fewest(one, work.rate)


def _with_knobs(work: _Work, bound: Bound, tuned: Shape) -> Bound:
    """The same degrees and formats with settings that proved good elsewhere."""
    return _bound(work, replace(bound.shape, knobs=tuned.knobs))


def _bound(work: _Work, shape: Shape) -> Bound:
    known = work.bounds.get(shape)
    if known is None:
        bench = work.bench
        known = work.bounds[shape] = bound_of(bench.base, shape, bench.load, bench.objective, bench.priced)
    return known


def _held(
    work: _Work, bound: Bound, role: Role = "both", near: Capacity | None = None, *, rough: bool = False
) -> Capacity:  # fmt: skip
    """The capacity of a replica; beside another's where one is known."""
    key = (bound.shape, role)
    if key not in work.found:
        work.found[key] = capacity(work.bench, bound, role, near=near, halvings=ROUGH if rough else work.halvings)
    return work.found[key]


def _turned(work: _Work, bound: Bound, axes: Iterable[str]) -> Capacity:
    """One setting after the other, each kept where a replica then holds more; the bound says where that is hopeless."""
    best = _held(work, bound)
    for axis in axes:
        start = best
        for value in work.space.of(axis) if axis != "prefix" or work.bench.load.hit_share else ():
            shape = start.shape.turned(axis, value)
            other = _bound(work, shape)
            if shape == start.shape or not other.fits or not keeps(other, work.bench.objective):
                continue
            if axis == "seqs" and value is not None and start.kept and value >= (start.kept.at_once or inf):
                continue  # so many were never there at once
            if other.rate * STABLE > start.rate * GAINS:
                found = _held(work, other, near=start)
                best = found if found.rate > best.rate * GAINS else best
    return best


# ---- pools


def _disaggregated(work: _Work, able: Sequence[Bound]) -> Iterator[Candidate]:
    """A pool that prefills and a pool that decodes, with the ratio that their capacities ask for."""
    if not work.go_on("prefill and decode apart"):
        return
    formats = _best_formats(work, able)
    alike = _by_mesh(one for one in able if one.shape.precision == formats and one.shape.chips < work.chips)
    prefill = sorted(alike, key=lambda one: -one.prefill_rate / one.shape.chips)[:POOLED]
    decode = sorted(alike, key=lambda one: -one.decode_rate / one.shape.chips)[:POOLED]
    firsts = [one for one in (_held(work, bound, "prefill") for bound in prefill) if one.rate]
    seconds = [one for one in (_held(work, bound, "decode") for bound in decode) if one.rate]
    for first in firsts:
        for second in seconds:
            if work.goal == "goodput":
                made = fullest_pools(first, second, work.chips)
                if made is not None:
                    yield made
            else:
                yield fewest_pools(first, second, work.rate)


def _best_formats(work: _Work, able: Sequence[Bound]) -> Precision | None:
    """The formats of the replica that holds most a chip; of the best case where none was simulated."""
    held = [one for one in work.found.values() if one.rate]
    if held:
        return max(held, key=lambda one: one.rate / one.shape.chips).shape.precision
    return able[0].shape.precision if able else None


# ---- the end


def _verified(work: _Work, candidates: Sequence[Candidate]) -> tuple[Verified, ...]:
    """The first candidates of different kinds as whole fleets."""
    kept: list[Candidate] = []
    for one in candidates:
        alike = [other for other in kept if other.disaggregated == one.disaggregated]
        if any(_meshes(one) == _meshes(other) for other in alike) or len(alike) == FINALISTS - 1:
            continue
        kept.append(one)
        if len(kept) == FINALISTS:
            break
    return verified(work.bench, kept, work.goal, work.space.replicas, work.go_on)


def _meshes(one: Candidate) -> list[object]:
    return [shape.mesh for shape in one.shapes]
