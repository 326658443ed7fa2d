"""Turn a search without an answer into reasons: what bars every replica, and the nearest objective that can be met."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.core.errors import Problem
from ridgeline.core.units import format_gib, format_quantity
from ridgeline.plan.serve import Objective
from ridgeline.search.deployment.bound import Bound
from ridgeline.search.deployment.candidate import fewest, fullest
from ridgeline.search.deployment.capacity import Capacity
from ridgeline.search.deployment.find_deployment import DeploymentSearch, keeps
from ridgeline.search.deployment.shape import shape_words
from ridgeline.search.deployment.verify import tried_at


def why_no_deployment(search: DeploymentSearch) -> Iterator[Problem]:
    """Why no deployment is recommended; nothing where one is, or where the search was stopped before."""
    if search.best is not None or not search.complete:
        return
    where = search.scenario.system.name
    fits = [bound for bound in search.bounds if bound.fits]
    longest = float((search.load.prompts + search.load.outputs - 1).max())
    long_enough = [bound for bound in fits if bound.longest >= longest]
    able = [bound for bound in long_enough if keeps(bound, search.bench.objective)]
    if not search.bounds:
        got = f"{search.scenario.system.chips} chips with these pins"
        yield Problem(path="plan", given=got, expected="degrees that divide the model", where=where, todo="free a pin")
    elif not fits:
        yield _too_large(search, where)
    elif not long_enough:
        maximum = max(bound.longest for bound in fits)
        got = f"a request of {longest + 1:,.0f} tokens"
        expectation = f"at most {maximum:,} tokens, prompt and answer: what {search.scenario.model.id} can hold here"
        todo = "leave such requests out, or take a model of longer context or more chips"
        yield Problem(path="workload", given=got, expected=expectation, where=where, todo=todo)
    elif not able:
        yield _too_strict(search, long_enough, where)
    else:
        yield _too_much(search, able, where)


def _too_large(search: DeploymentSearch, where: str) -> Problem:
    """The replica whose chips come nearest to holding the model."""
    least = min(search.bounds, key=lambda one: one.memory.weights + one.memory.activations)
    memory = least.memory
    used = memory.weights + memory.activations + memory.graphs + memory.runtime
    got = f"{format_gib(used)} a chip before any cache ({shape_words(least.shape)})"
    expectation = f"less than the {format_gib(memory.capacity)} that a chip of {where} has, with room for a cache"
    return Problem(path="memory", given=got, expected=expectation, todo="use more chips, or free plan.precision")


def _too_strict(search: DeploymentSearch, bounds: list[Bound], where: str) -> Problem:
    """The objective is below what a request takes that meets no other."""
    question = search.bench.objective
    nearest = min(bounds, key=lambda one: _over(one, question))
    result = {"ttft": nearest.ttft_s, "tpot": nearest.tpot_s, "itl": nearest.tpot_s}
    wanted = {name: max(limit, result.get(name, 0.0)) for name, limit in question.limits.items()}
    got = f"{_limits(question.limits)} at p{question.percentile:g}"
    single = f"TTFT {format_quantity(nearest.ttft_s, 's')}, TPOT {format_quantity(nearest.tpot_s, 's')}"
    expectation = f"at least what a request takes alone on {where}: {single} ({shape_words(nearest.shape)})"
    todo = f"the nearest objective that can be met, where requests hardly meet: {_limits(wanted)}"
    return Problem(path="objective", given=got, expected=expectation, todo=todo)


def _over(bound: Bound, asked: Objective) -> float:
    """By how much the strictest limit is missed at best."""
    shares = [bound.ttft_s / asked.ttft] if asked.ttft else []
    shares += [bound.tpot_s / limit for limit in (asked.tpot, asked.itl) if limit]
    return max(shares, default=0.0)


def _too_much(search: DeploymentSearch, able: list[Bound], where: str) -> Problem:
    """Requests that the chips cannot hold within the objective: what they keep, and what would hold them."""
    chips, question = search.scenario.system.chips, search.bench.objective
    capacity = [capacity for capacity in search.capacities if capacity.role == "both" and capacity.shape.chips <= chips]
    rated = [capacity for capacity in capacity if capacity.rate]
    helps = []
    if rated:
        best = max(rated, key=lambda one: one.rate * (chips // one.shape.chips))
        maximum, need = fullest(best, chips), fewest(best, search.rate)
        helps += [f"send at most {maximum.rate:.3g} requests/s", f"use about {need.chips} chips ({need.words})"]
    selection = _nearest(search, rated or capacity)
    helps += [f"the nearest objective that {where} keeps at this load: {_limits(selection)}"] if selection else []
    got = f"{search.rate:.3g} requests/s under {_limits(question.limits)} at p{question.percentile:g}"
    expectation = f"what {chips} chips of {where} can hold ({len(able)} kinds of replica tried or bounded)"
    return Problem(path="objective", given=got, expected=expectation, todo=", or ".join(helps) or "relax the objective")


def _nearest(search: DeploymentSearch, held: list[Capacity]) -> dict[str, float]:
    """The limits that all chips keep at this load, whichever kind of replica misses the objective least."""
    question, chips = search.bench.objective.limits, search.scenario.system.chips
    best: dict[str, float] = {}
    for item in sorted(held, key=lambda one: -one.rate / one.shape.chips)[:3]:
        result = tried_at(search.bench, fullest(item, chips), search.rate)
        if result is not None:
            shares = {name: max(item.found, question[name]) for name, item in result.prediction.kept.items()}
            if not best or _worst_miss(shares, question) < _worst_miss(best, question):
                best = shares
    return best


def _worst_miss(taken: dict[str, float], asked: dict[str, float]) -> float:
    """By how much the limit that is missed most is missed."""
    return max((taken[name] / asked[name] for name in asked), default=0.0)


def _limits(limits: dict[str, float]) -> str:
    return ", ".join(f"{name.upper()} {format_quantity(value, 's', 3)}" for name, value in limits.items()) or "no limit"
