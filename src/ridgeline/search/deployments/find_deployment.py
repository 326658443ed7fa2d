"""Turn a serve scenario without a plan into the deployments that keep its objective, best first.

space -> bound        every replica that fits: best-case TTFT, TPOT and requests/s; what misses is given up
      -> capacity     the most promising: the highest rate of one replica, simulated on a part of the load
      -> turn knobs   of the best: token budget, batch limit, formats, one after the other
      -> pools        prefill and decode apart: a capacity each, and the ratio that matches them
      -> verify       the first few as whole fleets under the whole load; replicas are added until it holds

The same scenario and seed give the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from ridgeline.plan.scenario import Scenario
from ridgeline.plan.serve import Objective, Serve
from ridgeline.search.deployments.bound import Bound, bound_of
from ridgeline.search.deployments.candidate import (
    Candidate,
    Goal,
    Verified,
    fewest,
    fewest_pools,
    fullest,
    fullest_pools,
    order,
)
from ridgeline.search.deployments.capacity import Capacity, capacity
from ridgeline.search.deployments.load import Load, searched_load
from ridgeline.search.deployments.shape import Shape, shape_words
from ridgeline.search.deployments.space import DeploymentSpace, shapes
from ridgeline.search.deployments.trial import Bench
from ridgeline.search.progress import Progress, Watch, unwatched
from ridgeline.serving.deployment import Priced, fleet_of, instances_of
from ridgeline.serving.serving_prediction import ServingPrediction

MESHES = 12  # kinds of degrees whose capacity is simulated
TURNED = 3  # of these, the best, whose settings are turned
POOLED = 4  # kinds of degrees that are tried for each pool
VERIFIED = 2  # deployments that are simulated under the whole load, besides those that it takes to find the best
NEARER = 3  # bisections when a setting is turned
SLOWER = 0.96  # of the rate, where a fleet misses the objective at the rate of its replicas together
MOST_TRIES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentSearch:
    """What a search found.

    bounds      of every replica that can run, most requests a second and chip first
    capacities  of the replicas that were simulated
    candidates  deployments by what they hold on a shortened load, best first
    verified    the best of them under the whole load, best first; the first keeps the objective if any does
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
    found: dict[tuple[Shape, str], Capacity] = field(default_factory=dict)
    stopped: bool = False

    @property
    def chips(self) -> int:
        return self.bench.base.system.chips

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
    work = scenario.workload
    assert isinstance(work, Serve)
    bench = Bench(base=scenario, load=searched_load(work), objective=work.objective, priced=priced or Priced())
    made = _Work(bench=bench, space=space, goal=goal, rate=bench.load.rate, watch=watch)
    made.go_on("best cases")
    bounds = [bound_of(scenario, one, bench.load, work.objective, bench.priced) for one in shapes(scenario, space)]
    bounds.sort(key=lambda one: -one.rate / one.shape.chips)
    made.bounds = {one.shape: one for one in bounds}
    able = [one for one in bounds if keeps(one, work.objective) and _long_enough(one, bench.load)]
    candidates = _candidates(made, able)
    return DeploymentSearch(
        scenario=scenario,
        space=space,
        load=bench.load,
        goal=goal,
        rate=bench.load.rate,
        bounds=tuple(bounds),
        capacities=tuple(made.found.values()),
        candidates=tuple(candidates),
        verified=tuple(_verified(made, candidates)),
        bench=bench,
        complete=not made.stopped,
    )


def keeps(bound: Bound, objective: Objective) -> bool:
    """Whether a replica could keep the objective without any load."""
    tpot = min(objective.tpot or inf, objective.itl or inf)
    return bound.rate > 0 and bound.ttft_s <= (objective.ttft or inf) and bound.tpot_s <= tpot


def _long_enough(bound: Bound, load: Load) -> bool:
    return bool((load.prompts + load.outputs - 1).max() <= bound.longest)


# ---- candidates


def _candidates(work: _Work, able: Sequence[Bound]) -> list[Candidate]:
    """Deployments by what their replicas hold on a shortened load, best first."""
    found: list[Candidate] = []
    if "aggregated" in work.space.split:
        found += _aggregated(work, able)
    if "disaggregated" in work.space.split:
        found += _disaggregated(work, able)
    found = [one for one in found if _allowed(work, one)]
    return sorted(found, key=lambda one: order(one, work.goal, work.rate))


def _allowed(work: _Work, one: Candidate) -> bool:
    pinned = work.space.replicas
    return 0 < one.chips <= work.chips and min(one.replicas) > 0 and (pinned is None or sum(one.replicas) in pinned)


def _aggregated(work: _Work, able: Sequence[Bound]) -> list[Candidate]:
    """Replicas that prefill and decode: the best degrees, then their settings."""
    seen: list[Capacity] = []
    tuned: Shape | None = None
    for bound in _by_mesh(able)[:MESHES]:
        if not work.go_on(f"one replica of {shape_words(bound.shape)}"):
            break
        if tuned is None:
            tuned = _turned(work, bound, ("tokens",)).shape
        seen.append(_held(work, _with_knobs(work, bound, tuned)))
    kept = sorted((one for one in seen if one.rate), key=lambda one: order(_filled(work, one), work.goal, work.rate))
    for one in kept[:TURNED]:
        if work.go_on(f"settings of {shape_words(one.shape)}"):
            _turned(work, work.bounds[one.shape], ("tokens", "seqs", "precision", "speculation", "prefix"))
    return [_filled(work, one) for one in work.found.values() if one.rate and one.role == "both"]


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


def _held(work: _Work, bound: Bound, role: str = "both", near: float = 0.0) -> Capacity:
    """The capacity of a replica; near a rate where one is known."""
    key = (bound.shape, role)
    if key not in work.found:
        between = (near, near * 1.6) if near else None
        many = NEARER if near else 5
        work.found[key] = capacity(work.bench, bound, role, between=between, halvings=many)  # type: ignore[arg-type]
    return work.found[key]


def _turned(work: _Work, bound: Bound, axes: Iterable[str]) -> Capacity:
    """One setting after the other, each kept where a replica then holds more."""
    best = _held(work, bound)
    for axis in axes:
        start = best
        for value in work.space.of(axis):
            shape = start.shape.turned(axis, value)
            other = _bound(work, shape)
            if shape == start.shape or not other.fits or not keeps(other, work.bench.objective):
                continue
            found = _held(work, other, near=start.rate)
            best = found if found.rate > best.rate * 1.001 else best
    return best


# ---- pools


def _disaggregated(work: _Work, able: Sequence[Bound]) -> Iterator[Candidate]:
    """A pool that prefills and a pool that decodes, with the ratio that their capacities ask for."""
    if not work.go_on("prefill and decode apart"):
        return
    formats = _best_formats(work, able)
    alike = [one for one in _by_mesh(one for one in able if one.shape.precision == formats)]
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


def _best_formats(work: _Work, able: Sequence[Bound]):  # type: ignore[no-untyped-def]
    """The formats of the replica that holds most a chip; of the best case where none was simulated."""
    held = [one for one in work.found.values() if one.rate]
    if held:
        return max(held, key=lambda one: one.rate / one.shape.chips).shape.precision
    return able[0].shape.precision if able else None


# ---- verification


def _verified(work: _Work, candidates: Sequence[Candidate]) -> list[Verified]:
    """The first candidates under the whole load; replicas are added, or the rate lowered, until the objective holds."""
    found: list[Verified] = []
    for one in candidates:
        enough = len([done for done in found if done.met]) >= VERIFIED
        best = min((done.candidate.chips for done in found if done.met), default=work.chips + 1)
        hopeless = work.goal != "goodput" and one.chips > best and enough
        if hopeless or (enough and work.goal == "goodput") or len(found) >= MOST_TRIES:
            break
        if any(_alike(one, done.candidate) for done in found):
            continue
        if not work.go_on(f"all requests on {one.words}"):
            break
        made = _raised(work, one) if work.goal == "goodput" else _grown(work, one)
        found += [made] if made is not None else []
    return sorted(found, key=lambda done: (not done.met, *_rank(work, done)))


def _rank(work: _Work, done: Verified) -> tuple[float, float]:
    if work.goal == "goodput":
        return -done.goodput, float(done.candidate.chips)
    return float(done.candidate.chips), -done.candidate.rate


def _alike(one: Candidate, other: Candidate) -> bool:
    return [shape.mesh for shape in one.shapes] == [shape.mesh for shape in other.shapes]


def _run(work: _Work, one: Candidate, rate: float) -> Verified | None:
    bench = work.bench
    scenario = one.scenario(bench.base, router_of(bench.base, bench.load))
    roles = ("prefill", "decode") if one.disaggregated else ("both",)
    instances = tuple(
        replace(bench.instance(shape), role=role, count=many)  # type: ignore[arg-type]
        for shape, role, many in zip(one.shapes, roles, one.replicas, strict=True)
    )
    found = bench.run(scenario, instances, bench.load.at(rate))
    return None if found is None else Verified(candidate=one, prediction=found, rate=rate)


def router_of(base: Scenario, load: Load) -> str:
    """Who deals requests: as the plan says; by load where it says nothing, and by prefix where prompts share them."""
    if base.plan.serving.router != "round-robin":
        return base.plan.serving.router
    return "prefix-aware" if load.hit_share > 0 else "least-loaded"


def _grown(work: _Work, one: Candidate) -> Verified | None:
    """With a replica fewer where that holds; else with more until it does or the chips are used up."""
    found = _run(work, one, work.rate)
    if found is None:
        return None
    while found.met:
        less = _smaller(one)
        tried = _run(work, less, work.rate) if less is not None and _allowed(work, less) else None
        if tried is None or not tried.met:
            return found
        one, found = tried.candidate, tried
    for _ in range(MOST_TRIES):
        more = _larger(one, found)
        if not _allowed(work, more):
            return found
        tried = _run(work, more, work.rate)
        if tried is None or tried.met:
            return tried or found
        one, found = more, tried
    return found


def _smaller(one: Candidate) -> Candidate | None:
    """One replica fewer, of the pool that has most to spare."""
    spare = [held.rate * (many - 1) for held, many in zip(one.capacities, one.replicas, strict=True)]
    place = spare.index(max(spare))
    if one.replicas[place] == 1:
        return None
    return one.with_replicas(*(many - (at == place) for at, many in enumerate(one.replicas)))


def _larger(one: Candidate, found: Verified) -> Candidate:
    """One replica more, or a twentieth; of the pool whose limit is missed most."""
    place = 0
    if one.disaggregated:
        over = {name: kept.found / kept.limit for name, kept in found.prediction.kept.items()}
        place = int(max(over, key=lambda name: over[name], default="tpot") != "ttft")
    more = [many + (max(many // 20, 1) if at == place else 0) for at, many in enumerate(one.replicas)]
    return one.with_replicas(*more)


def _raised(work: _Work, one: Candidate) -> Verified | None:
    """At the rate that its replicas hold together, less until the objective holds."""
    rate = one.rate
    found = None
    for _ in range(MOST_TRIES):
        found = _run(work, one, rate)
        if found is None or found.met:
            return found
        rate *= SLOWER
    return found


__all__ = ["DeploymentSearch", "ServingPrediction", "find_deployment", "fleet_of", "instances_of", "keeps"]
