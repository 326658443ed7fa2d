"""Turn candidates into verified deployments: whole fleets simulated, with just as many replicas as it takes.

Numbers of replicas are found on the busiest part of the load, which asks for at least as many as all of it; the best is
then simulated under all requests, and with a replica fewer where it has some to spare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ridgeline.core.records import dataclass
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.serve import Objective
from ridgeline.search.deployment.candidate import Candidate, Goal, Verified, is_allowed
from ridgeline.search.deployment.load import Load
from ridgeline.search.deployment.trial import Bench
from ridgeline.search.progress import GoOn
from ridgeline.serving.fleet.fleet_loop import Role
from ridgeline.serving.fleet.slo_abort import Hopeless

PART = 3000  # requests of the busiest part
SLOWER = 0.96  # of the rate, where a fleet misses the objective at the rate of its replicas together
MOST_TRIES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Check:
    """Where fleets are simulated, and what is allowed."""

    bench: Bench
    goal: Goal
    replicas: tuple[int, ...] | None

    def allowed(self, one: Candidate) -> bool:
        return is_allowed(one, self.bench.base.system.chips, self.replicas)

    def kept(self, one: Candidate | None, rate: float, *, whole: bool) -> Verified | None:
        """A fleet at a rate, if it is allowed and keeps the objective; given up as soon as it does not."""
        if one is None or not self.allowed(one):
            return None
        try:
            outcome = self.run(one, rate, whole=whole, give_up=self.bench.objective)
        except Hopeless:
            return None
        return outcome if outcome is not None and outcome.met else None

    def run(self, one: Candidate, rate: float, *, whole: bool, give_up: Objective | None = None) -> Verified | None:
        """A fleet at a rate, under all requests or the busiest part."""
        bench = self.bench
        scenario = one.scenario(bench.base, router_of(bench.base, bench.load))
        roles: tuple[Role, ...] = ("prefill", "decode") if one.disaggregated else ("both",)
        instances = tuple(
            replace(bench.instance(shape), role=role, count=many)
            for shape, role, many in zip(one.shapes, roles, one.replicas, strict=True)
        )
        all_of_it = whole or len(bench.load.requests) <= PART
        requests = bench.load.at(rate) if all_of_it else bench.load.part(rate, PART)
        outcome = bench.run(scenario, instances, requests, give_up=give_up)
        return None if outcome is None else Verified(candidate=one, prediction=outcome, rate=rate, whole=all_of_it)


def router_of(base: Scenario, load: Load) -> str:
    """Who deals requests: as the plan says; by load where it says nothing, and by prefix where prompts share them."""
    if base.plan.serving.router != "round-robin":
        return base.plan.serving.router
    return "prefix-aware" if load.hit_share > 0 else "least-loaded"


def verify_candidates(
    bench: Bench, candidates: Sequence[Candidate], goal: Goal, replicas: tuple[int, ...] | None, go_on: GoOn
) -> tuple[Verified, ...]:  # fmt: skip
    """The candidates as whole fleets, the best first and under all requests."""
    check = _Check(bench=bench, goal=goal, replicas=replicas)
    found: list[Verified] = []
    for candidate in candidates:
        if goal != "goodput" and outdone(candidate, found):
            continue
        if not go_on(f"the busiest requests on {candidate.words}"):
            break
        candidate_value = (
            _raise_rate(check, candidate, candidate.rate, whole=False)
            if goal == "goodput"
            else _size_fleet(check, candidate)
        )
        found += [candidate_value] if candidate_value is not None else []
    found.sort(key=lambda one: _rank(check, one))
    for place, fleet in enumerate(found):
        if fleet.whole or not go_on(f"all requests on {fleet.candidate.words}"):
            break
        done = _under_all(check, fleet)
        if done is not None:
            found[place] = done
            if done.met:
                break
    return tuple(sorted(found, key=lambda fleet: (not fleet.whole, _rank(check, fleet))))


def outdone(one: Candidate, found: Sequence[Verified]) -> bool:
    """Whether two deployments hold the load on no more chips than one replica of each of its pools takes: it is neither
    the best nor the next best."""
    least = sum(shape.chips for shape in one.shapes)
    return sum(done.met and done.candidate.chips <= least for done in found) > 1


def _rank(check: _Check, done: Verified) -> tuple[float, ...]:
    if check.goal == "goodput":
        return not done.met, -done.rate, done.candidate.chips
    return not done.met, done.candidate.chips, -done.candidate.rate


def _under_all(check: _Check, one: Verified) -> Verified | None:
    """A fleet under all requests: more replicas or a lower rate where it misses, fewer where it has some to spare."""
    if check.goal == "goodput":
        return _raise_rate(check, one.candidate, one.rate, whole=True)
    rate = check.bench.load.rate
    less = None if one.candidate.disaggregated else _smaller(one.candidate)
    selection = check.kept(less, rate, whole=True)
    if selection is not None:
        return selection
    outcome = check.run(one.candidate, rate, whole=True)
    return outcome if outcome is None or outcome.met else _grown(check, outcome, whole=True)


def _size_fleet(check: _Check, one: Candidate) -> Verified | None:
    """With replicas taken away as long as the objective holds, or added until it does."""
    outcome = check.run(one, check.bench.load.rate, whole=False)
    if outcome is None or not outcome.met:
        return outcome and _grown(check, outcome, whole=False)
    while (fewer := check.kept(_smaller(outcome.candidate), outcome.rate, whole=False)) is not None:
        outcome = fewer
    return outcome


def _grown(check: _Check, found: Verified, *, whole: bool) -> Verified:
    """With replicas added until the objective holds or the chips are used up."""
    for _ in range(MOST_TRIES):
        more = _larger(found)
        attempt = check.run(more, found.rate, whole=whole) if check.allowed(more) else None
        if attempt is None:
            return found
        found = attempt
        if found.met:
            return found
    return found


def _smaller(one: Candidate) -> Candidate | None:
    """One replica fewer, of the pool that has most to spare."""
    spare = [capacity.rate * (many - 1) for capacity, many in zip(one.capacities, one.replicas, strict=True)]
    place = spare.index(max(spare))
    if one.replicas[place] == 1:
        return None
    return one.with_replicas(*(many - (at == place) for at, many in enumerate(one.replicas)))


def _larger(found: Verified) -> Candidate:
    """One replica more, or a twentieth; of the pool whose limit is missed most."""
    item, place = found.candidate, 0
    if item.disaggregated:
        over = {name: item.found / item.limit for name, item in found.prediction.kept.items()}
        place = int(max(over, key=lambda name: over[name], default="tpot") != "ttft")
    more = [many + (max(many // 20, 1) if at == place else 0) for at, many in enumerate(item.replicas)]
    return item.with_replicas(*more)


def _raise_rate(check: _Check, one: Candidate, rate: float, *, whole: bool) -> Verified | None:
    """At a rate, or less until the objective holds."""
    result = None
    for _ in range(MOST_TRIES):
        result = check.run(one, rate, whole=whole)
        if result is None or result.met:
            return result
        rate *= SLOWER
    return result


def tried_at(bench: Bench, one: Candidate, rate: float) -> Verified | None:
    """A fleet under the busiest part of the load, whether or not it keeps the objective."""
    return _Check(bench=bench, goal="cost", replicas=None).run(one, rate, whole=False)
