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
from itertools import product
from math import ceil, inf

from ridgeline.core.records import dataclass
from ridgeline.plan.scenario import Scenario, serving
from ridgeline.plan.workload import Objective
from ridgeline.search.deployment.capacity import (
    FINER,
    HALVINGS,
    ROUGH,
    STABLE,
    Capacity,
    Load,
    ReplicaBound,
    TrialBench,
    bound_of,
    capacity,
    searched_load,
)
from ridgeline.search.deployment.fleet import (
    FleetCandidate,
    Goal,
    Verified,
    fewest,
    fullest,
    fullest_pools,
    is_allowed,
    order,
    verify_candidates,
)
from ridgeline.search.deployment.space import DeploymentSpace, Shape, shape_words, shapes
from ridgeline.search.progress import Progress, Stoppable, Watch, ignore_progress
from ridgeline.serving import Role, StepPricing
from ridgeline.serving.simulation import settled_heap

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
    bounds: tuple[ReplicaBound, ...]
    capacities: tuple[Capacity, ...]
    candidates: tuple[FleetCandidate, ...]
    verified: tuple[Verified, ...]
    bench: TrialBench
    complete: bool = True

    @property
    def best(self) -> Verified | None:
        """The deployment that is recommended; None where none keeps the objective."""
        return self.verified[0] if self.verified and self.verified[0].met else None


@dataclass(slots=True)
class _DeploymentWork:
    """A search under way."""

    bench: TrialBench
    space: DeploymentSpace
    goal: Goal
    rate: float
    go_on: Stoppable
    bounds: dict[Shape, ReplicaBound]
    capacities: dict[tuple[Shape, Role], Capacity] = field(default_factory=dict)

    @property
    def chips(self) -> int:
        return self.bench.base.system.chips

    def bound(self, shape: Shape) -> ReplicaBound:
        if shape not in self.bounds:
            self.bounds[shape] = bound_of(self.bench, shape)
        return self.bounds[shape]

    def capacity(
        self, bound: ReplicaBound, role: Role = "both", near: Capacity | None = None, *, rough: bool = False
    ) -> Capacity:
        """The capacity of a replica; beside another's where one is known."""
        key = (bound.shape, role)
        if key not in self.capacities:
            halvings = ROUGH if rough else FINER if self.goal == "goodput" else HALVINGS
            self.capacities[key] = capacity(self.bench, bound, role, near=near, halvings=halvings)
        return self.capacities[key]

    def fleet(self, replica: Capacity) -> FleetCandidate:
        """As many of a replica as are wanted."""
        return fullest(replica, self.chips) if self.goal == "goodput" else fewest((replica,), self.rate)


def find_deployment(
    scenario: Scenario, space: DeploymentSpace, goal: Goal = "cost", priced: StepPricing | None = None,
    watch: Watch = ignore_progress,
) -> DeploymentSearch:  # fmt: skip
    """The deployments of a model on a system that keep the objective of a serve workload.

    goal   cost, chips: the fewest chips that hold the load; goodput: the highest rate that all chips hold
    """
    work = serving(scenario).workload
    bench = TrialBench(
        base=scenario, load=searched_load(work), objective=work.objective, priced=priced or StepPricing()
    )
    watch(Progress(phase="search", what="best cases of every replica"))
    bounds = [bound_of(bench, shape) for shape in shapes(scenario, space)]
    bounds.sort(key=lambda bound: -bound.rate / bound.shape.chips)
    if goal == "goodput" and not bench.load.traced:
        bench = _busier(bench, bounds)
    go_on = Stoppable(watch, "search", lambda: bench.trials, lambda: _best_words(search))
    search = _DeploymentWork(
        bench=bench, space=space, goal=goal, rate=bench.load.rate, go_on=go_on,
        bounds={bound.shape: bound for bound in bounds},
    )  # fmt: skip
    with settled_heap():
        candidates = _candidates(search, _able(bounds, bench))
        fleets = verify_candidates(bench, _finalists(candidates), goal, space.replicas, go_on)
    return DeploymentSearch(
        scenario=bench.base,
        space=space,
        load=bench.load,
        goal=goal,
        rate=bench.load.rate,
        bounds=tuple(bounds),
        capacities=tuple(search.capacities.values()),
        candidates=tuple(candidates),
        verified=fleets,
        bench=bench,
        complete=not go_on.stopped,
    )


def _best_words(work: _DeploymentWork) -> str:
    """The best deployment so far by what its replicas hold alone; pools apart are not among them."""
    replicas = (replica for replica in work.capacities.values() if replica.rate and replica.role == "both")
    able = [fleet for fleet in map(work.fleet, replicas) if is_allowed(fleet, work.chips, work.space.replicas)]
    best = min(able, key=lambda fleet: order(fleet, work.goal, work.rate), default=None)
    if best is None:
        return ""
    rate = f", {best.rate:.3g} requests/s" if work.goal == "goodput" else ""
    return f"{best.words} on {best.chips} chip{'s' * (best.chips > 1)}{rate}"


def _busier(bench: TrialBench, bounds: Sequence[ReplicaBound]) -> TrialBench:
    """A generated load of as many requests as keep all chips busy for a while."""
    chips, work = bench.base.system.chips, serving(bench.base).workload
    rate = max((bound.rate * (chips // bound.shape.chips) for bound in bounds), default=0.0)
    busy = replace(work, requests=int(min(max(rate * BUSY_S, len(bench.load.requests)), MOST_MADE)))
    base = replace(bench.base, workload=busy)
    return TrialBench(base=base, load=searched_load(busy), objective=bench.objective, priced=bench.priced)


def keeps(bound: ReplicaBound, objective: Objective) -> bool:
    """Whether a replica could keep the objective without any load."""
    tpot = min(objective.tpot or inf, objective.itl or inf)
    return bound.rate > 0 and bound.ttft_s <= (objective.ttft or inf) and bound.tpot_s <= tpot


def _able(bounds: Sequence[ReplicaBound], bench: TrialBench) -> list[ReplicaBound]:
    """Replicas that could keep the objective of every request.

    Stages compete where they promise more than tensor ranks alone: more requests/s a chip than any replica without
    them, or a fit where nothing else fits. Otherwise they cost time to simulate and are seldom chosen.
    """
    longest = float((bench.load.prompts + bench.load.outputs - 1).max())
    able = [bound for bound in bounds if keeps(bound, bench.objective) and longest <= bound.longest]
    best = max((bound.rate / bound.shape.mesh.ranks for bound in able if bound.shape.mesh.pp == 1), default=0.0)
    return [bound for bound in able if bound.shape.mesh.pp == 1 or bound.rate / bound.shape.mesh.ranks > best]


def _candidates(work: _DeploymentWork, able: Sequence[ReplicaBound]) -> list[FleetCandidate]:
    """Deployments by what their replicas hold on a shortened load, best first."""
    candidates: list[FleetCandidate] = []
    if "aggregated" in work.space.split:
        candidates += _aggregated_candidates(work, able)
    if "disaggregated" in work.space.split:
        candidates += _pool_candidates(work, able)
    candidates = [candidate for candidate in candidates if is_allowed(candidate, work.chips, work.space.replicas)]
    return sorted(candidates, key=lambda candidate: order(candidate, work.goal, work.rate))


def _aggregated_candidates(work: _DeploymentWork, able: Sequence[ReplicaBound]) -> list[FleetCandidate]:
    """Replicas that prefill and decode: the best degrees, then their settings."""
    capacities: list[Capacity] = []
    tuned: Shape | None = None
    for bound in sorted(_by_mesh(able), key=lambda bound: _fewest_chips(work, bound))[:MESHES]:
        rated_replicas = [replica for replica in capacities if replica.rate]
        dear = _dear(work, bound, rated_replicas)
        if dear and bound.tpot_s >= min(work.bounds[replica.shape].tpot_s for replica in rated_replicas):
            continue  # not chosen, and no user is served faster: no point of the frontier either
        if not work.go_on(f"one replica of {shape_words(bound.shape)}"):
            break
        if tuned is None:
            tuned = _tune_settings(work, bound, ("tokens",)).shape
        shape = replace(bound.shape, knobs=tuned.knobs)  # settings that proved good elsewhere
        capacities.append(work.capacity(work.bound(shape), rough=dear))
    rated_replicas = sorted(
        (replica for replica in capacities if replica.rate),
        key=lambda replica: order(work.fleet(replica), work.goal, work.rate),
    )
    for replica in rated_replicas[:TURNED]:
        if work.go_on(f"settings of {shape_words(replica.shape)}"):
            _tune_settings(work, work.bounds[replica.shape], ("tokens", "seqs", "precision", "speculation", "prefix"))
    return [work.fleet(replica) for replica in work.capacities.values() if replica.rate and replica.role == "both"]


def _dear(work: _DeploymentWork, bound: ReplicaBound, rated: Sequence[Capacity]) -> bool:
    """Whether a replica even at its best costs more than one that was simulated: it is not chosen."""
    if not rated:
        return False
    if work.goal == "goodput":
        most = max(replica.rate * (work.chips // replica.shape.chips) for replica in rated)
        return STABLE * bound.rate * (work.chips // bound.shape.chips) < most
    return _fewest_chips(work, bound) > min(fewest((replica,), work.rate).chips for replica in rated)


def _fewest_chips(work: _DeploymentWork, bound: ReplicaBound) -> int:
    """Chips of as many replicas as hold the load at their best: none needs fewer. Goodput takes all chips there are."""
    if work.goal == "goodput":
        return work.chips
    return ceil(work.rate / (STABLE * bound.rate)) * bound.shape.chips


def _by_mesh(able: Iterable[ReplicaBound]) -> list[ReplicaBound]:
    """The first bound of every kind of degrees."""
    table: dict[object, ReplicaBound] = {}
    for bound in able:
        table.setdefault(bound.shape.mesh, bound)
    return list(table.values())


def _tune_settings(work: _DeploymentWork, bound: ReplicaBound, axes: Iterable[str]) -> Capacity:
    """One setting after the other, each kept where a replica then holds more; the bound says where that is hopeless."""
    best = work.capacity(bound)
    for axis in axes:
        start = best
        for value in work.space.of(axis) if axis != "prefix" or work.bench.load.hit_share else ():
            shape = start.shape.with_setting(axis, value)
            alternative = work.bound(shape)
            if shape == start.shape or not alternative.fits or not keeps(alternative, work.bench.objective):
                continue
            if axis == "seqs" and value is not None and start.kept and value >= (start.kept.at_once or inf):
                continue  # so many were never there at once
            if alternative.rate * STABLE > start.rate * GAINS:
                replica = work.capacity(alternative, near=start)
                best = replica if replica.rate > best.rate * GAINS else best
    return best


def _pool_candidates(work: _DeploymentWork, able: Sequence[ReplicaBound]) -> Iterator[FleetCandidate]:
    """A pool that prefills and a pool that decodes, with the ratio that their capacities ask for.

    Their formats are those of the replica that holds most a chip; of the best case where none was simulated.
    """
    if not work.go_on("prefill and decode apart") or not able:
        return
    rated_replicas = [replica for replica in work.capacities.values() if replica.rate]
    best = max(rated_replicas, key=lambda replica: replica.rate_per_chip) if rated_replicas else able[0]
    formats = best.shape.precision
    peers = _by_mesh(bound for bound in able if bound.shape.precision == formats and bound.shape.chips < work.chips)
    prefill = sorted(peers, key=lambda bound: -bound.prefill_rate / bound.shape.chips)[:POOLED]
    decode = sorted(peers, key=lambda bound: -bound.decode_rate / bound.shape.chips)[:POOLED]
    firsts = [replica for replica in (work.capacity(bound, "prefill") for bound in prefill) if replica.rate]
    seconds = [replica for replica in (work.capacity(bound, "decode") for bound in decode) if replica.rate]
    for first, second in product(firsts, seconds):
        if work.goal != "goodput":
            yield fewest((first, second), work.rate)
        elif (candidate := fullest_pools(first, second, work.chips)) is not None:
            yield candidate


def _finalists(candidates: Sequence[FleetCandidate]) -> list[FleetCandidate]:
    """The first candidates of different kinds, for whole fleets."""
    finalists: list[FleetCandidate] = []
    for candidate in candidates:
        peers = [finalist for finalist in finalists if finalist.is_disaggregated == candidate.is_disaggregated]
        if len(peers) < FINALISTS - 1 and all(finalist.meshes != candidate.meshes for finalist in peers):
            finalists.append(candidate)
    return finalists[:FINALISTS]
