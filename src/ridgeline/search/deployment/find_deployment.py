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
from ridgeline.search.deployment.capacity import (
    FINER,
    HALVINGS,
    ROUGH,
    STABLE,
    Bench,
    Bound,
    Capacity,
    Load,
    bound_of,
    capacity,
    searched_load,
)
from ridgeline.search.deployment.fleet import (
    Candidate,
    Goal,
    Verified,
    fewest,
    fewest_pools,
    fullest,
    fullest_pools,
    is_allowed,
    order,
    verify_candidates,
)
from ridgeline.search.deployment.space import DeploymentSpace, Shape, shape_words, shapes
from ridgeline.search.progress import Progress, Watch, ignore_progress
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
        progress_words = Progress(phase="search", what=what, priced=self.bench.trials)
        self.stopped = self.stopped or self.watch(progress_words) is False
        return not self.stopped


def find_deployment(
    scenario: Scenario, space: DeploymentSpace, goal: Goal = "cost", priced: Priced | None = None,
    watch: Watch = ignore_progress,
) -> DeploymentSearch:  # fmt: skip
    """The deployments of a model on a system that keep the objective of a serve workload.

    goal   cost, chips: the fewest chips that hold the load; goodput: the highest rate that all chips hold
    """
    work = serving(scenario).workload
    bench = Bench(base=scenario, load=searched_load(work), objective=work.objective, priced=priced or Priced())
    watch(Progress(phase="search", what="best cases of every replica"))
    bounds = [bound_of(scenario, shape, bench.load, work.objective, bench.priced) for shape in shapes(scenario, space)]
    bounds.sort(key=lambda one: -one.rate / one.shape.chips)
    if goal == "goodput" and not bench.load.traced:
        bench = _busier(bench, bounds)
    candidate_value = _Work(bench=bench, space=space, goal=goal, rate=bench.load.rate, watch=watch)
    candidate_value.bounds = {bound.shape: bound for bound in bounds}
    with settled_heap():
        candidates = _candidates(candidate_value, _able(bounds, bench))
        fleets = _verify_candidates(candidate_value, candidates)
    return DeploymentSearch(
        scenario=bench.base,
        space=space,
        load=bench.load,
        goal=goal,
        rate=bench.load.rate,
        bounds=tuple(bounds),
        capacities=tuple(candidate_value.found.values()),
        candidates=tuple(candidates),
        verified=fleets,
        bench=bench,
        complete=not candidate_value.stopped,
    )


def _busier(bench: Bench, bounds: Sequence[Bound]) -> Bench:
    """A generated load of as many requests as keep all chips busy for a while."""
    chips, work = bench.base.system.chips, serving(bench.base).workload
    rate = max((bound.rate * (chips // bound.shape.chips) for bound in bounds), default=0.0)
    many = int(min(max(rate * BUSY_S, len(bench.load.requests)), MOST_MADE))
    question = replace(work, requests=many)
    return Bench(
        base=replace(bench.base, workload=question), load=searched_load(question), objective=bench.objective,
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
    able = [bound for bound in bounds if keeps(bound, bench.objective) and longest <= bound.longest]
    best = max((bound.rate / bound.shape.mesh.ranks for bound in able if bound.shape.mesh.pp == 1), default=0.0)
    return [bound for bound in able if bound.shape.mesh.pp == 1 or bound.rate / bound.shape.mesh.ranks > best]


# ---- candidates


def _candidates(work: _Work, able: Sequence[Bound]) -> list[Candidate]:
    """Deployments by what their replicas hold on a shortened load, best first."""
    candidates: list[Candidate] = []
    if "aggregated" in work.space.split:
        candidates += _aggregated_candidates(work, able)
    if "disaggregated" in work.space.split:
        candidates += _pool_candidates(work, able)
    candidates = [item for item in candidates if is_allowed(item, work.chips, work.space.replicas)]
    return sorted(candidates, key=lambda one: order(one, work.goal, work.rate))


def _aggregated_candidates(work: _Work, able: Sequence[Bound]) -> list[Candidate]:
    """Replicas that prefill and decode: the best degrees, then their settings."""
    capacities: list[Capacity] = []
    tuned: Shape | None = None
    for bound in sorted(_by_mesh(able), key=lambda one: _fewest_chips(work, one))[:MESHES]:
        dear = _dear(work, bound, capacities)
        if dear and not _faster(work, bound, capacities):
            continue
        if not work.go_on(f"one replica of {shape_words(bound.shape)}"):
            break
        if tuned is None:
            tuned = _tune_settings(work, bound, ("tokens",)).shape
        capacities.append(_capacity_of(work, _with_knobs(work, bound, tuned), rough=dear))
    selection = sorted(
        (capacity for capacity in capacities if capacity.rate),
        key=lambda one: order(_fill_chips(work, one), work.goal, work.rate),
    )
    for item in selection[:TURNED]:
        if work.go_on(f"settings of {shape_words(item.shape)}"):
            _tune_settings(work, work.bounds[item.shape], ("tokens", "seqs", "precision", "speculation", "prefix"))
    return [_fill_chips(work, item) for item in work.found.values() if item.rate and item.role == "both"]


def _dear(work: _Work, bound: Bound, seen: Sequence[Capacity]) -> bool:
    """Whether a replica even at its best costs more than one that was simulated: it is not chosen."""
    capacity = [capacity for capacity in seen if capacity.rate]
    if not capacity:
        return False
    maximum, chips = STABLE * bound.rate, bound.shape.chips
    if work.goal == "goodput":
        return maximum * (work.chips // chips) < max(
            capacity.rate * (work.chips // capacity.shape.chips) for capacity in capacity
        )
    return _fewest_chips(work, bound) > min(fewest(capacity, work.rate).chips for capacity in capacity)


def _fewest_chips(work: _Work, bound: Bound) -> int:
    """Chips of as many replicas as hold the load at their best: none needs fewer. Goodput takes all chips there are."""
    if work.goal == "goodput":
        return work.chips
    return ceil(work.rate / (STABLE * bound.rate)) * bound.shape.chips


def _faster(work: _Work, bound: Bound, seen: Sequence[Capacity]) -> bool:
    """Whether a replica may serve a user faster than those that were simulated: it is a point of the frontier."""
    return bound.tpot_s < min(work.bounds[capacity.shape].tpot_s for capacity in seen if capacity.rate)


def _by_mesh(able: Iterable[Bound]) -> list[Bound]:
    """The first bound of every kind of degrees."""
    table: dict[object, Bound] = {}
    for bound in able:
        table.setdefault(bound.shape.mesh, bound)
    return list(table.values())


def _fill_chips(work: _Work, one: Capacity) -> Candidate:
    return fullest(one, work.chips) if work.goal == "goodput" else fewest(one, work.rate)


def _with_knobs(work: _Work, bound: Bound, tuned: Shape) -> Bound:
    """The same degrees and formats with settings that proved good elsewhere."""
    return _bound(work, replace(bound.shape, knobs=tuned.knobs))


def _bound(work: _Work, shape: Shape) -> Bound:
    catalog_entry = work.bounds.get(shape)
    if catalog_entry is None:
        bench = work.bench
        catalog_entry = work.bounds[shape] = bound_of(bench.base, shape, bench.load, bench.objective, bench.priced)
    return catalog_entry


def _capacity_of(
    work: _Work, bound: Bound, role: Role = "both", near: Capacity | None = None, *, rough: bool = False
) -> Capacity:  # fmt: skip
    """The capacity of a replica; beside another's where one is known."""
    key = (bound.shape, role)
    if key not in work.found:
        work.found[key] = capacity(work.bench, bound, role, near=near, halvings=ROUGH if rough else work.halvings)
    return work.found[key]


def _tune_settings(work: _Work, bound: Bound, axes: Iterable[str]) -> Capacity:
    """One setting after the other, each kept where a replica then holds more; the bound says where that is hopeless."""
    best = _capacity_of(work, bound)
    for axis in axes:
        start = best
        for value in work.space.of(axis) if axis != "prefix" or work.bench.load.hit_share else ():
            shape = start.shape.with_setting(axis, value)
            alternative = _bound(work, shape)
            if shape == start.shape or not alternative.fits or not keeps(alternative, work.bench.objective):
                continue
            if axis == "seqs" and value is not None and start.kept and value >= (start.kept.at_once or inf):
                continue  # so many were never there at once
            if alternative.rate * STABLE > start.rate * GAINS:
                result = _capacity_of(work, alternative, near=start)
                best = result if result.rate > best.rate * GAINS else best
    return best


# ---- pools


def _pool_candidates(work: _Work, able: Sequence[Bound]) -> Iterator[Candidate]:
    """A pool that prefills and a pool that decodes, with the ratio that their capacities ask for."""
    if not work.go_on("prefill and decode apart"):
        return
    formats = _best_formats(work, able)
    peers = _by_mesh(bound for bound in able if bound.shape.precision == formats and bound.shape.chips < work.chips)
    prefill = sorted(peers, key=lambda one: -one.prefill_rate / one.shape.chips)[:POOLED]
    decode = sorted(peers, key=lambda one: -one.decode_rate / one.shape.chips)[:POOLED]
    firsts = [item for item in (_capacity_of(work, bound, "prefill") for bound in prefill) if item.rate]
    seconds = [item for item in (_capacity_of(work, bound, "decode") for bound in decode) if item.rate]
    for first in firsts:
        for second in seconds:
            if work.goal == "goodput":
                candidate_value = fullest_pools(first, second, work.chips)
                if candidate_value is not None:
                    yield candidate_value
            else:
                yield fewest_pools(first, second, work.rate)


def _best_formats(work: _Work, able: Sequence[Bound]) -> Precision | None:
    """The formats of the replica that holds most a chip; of the best case where none was simulated."""
    capacity = [item for item in work.found.values() if item.rate]
    if capacity:
        return max(capacity, key=lambda one: one.rate / one.shape.chips).shape.precision
    return able[0].shape.precision if able else None


# ---- the end


def _verify_candidates(work: _Work, candidates: Sequence[Candidate]) -> tuple[Verified, ...]:
    """The first candidates of different kinds as whole fleets."""
    kept: list[Candidate] = []
    for candidate in candidates:
        peers = [alternative for alternative in kept if alternative.disaggregated == candidate.disaggregated]
        if any(_meshes(candidate) == _meshes(alternative) for alternative in peers) or len(peers) == FINALISTS - 1:
            continue
        kept.append(candidate)
        if len(kept) == FINALISTS:
            break
    return verify_candidates(work.bench, kept, work.goal, work.space.replicas, work.go_on)


def _meshes(one: Candidate) -> list[object]:
    return [shape.mesh for shape in one.shapes]
