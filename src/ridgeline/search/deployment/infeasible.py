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
    fits = [one for one in search.bounds if one.fits]
    longest = float((search.load.prompts + search.load.outputs - 1).max())
    long_enough = [one for one in fits if one.longest >= longest]
    able = [one for one in long_enough if keeps(one, search.bench.objective)]
    if not search.bounds:
        given = f"{search.scenario.system.chips} chips with these pins"
        yield Problem(
            path="plan", given=given, expected="degrees that divide the model", where=where, todo="free a pin"
        )
    elif not fits:
        yield _too_large(search, where)
    elif not long_enough:
        most = max(one.longest for one in fits)
        given = f"a request of {longest + 1:,.0f} tokens"
        expected = f"at most {most:,} tokens, prompt and answer: what {search.scenario.model.id} can hold here"
        todo = "leave such requests out, or take a model of longer context or more chips"
        yield Problem(path="workload", given=given, expected=expected, where=where, todo=todo)
    elif not able:
        yield _too_strict(search, long_enough, where)
    else:
        yield _too_much(search, able, where)


def _too_large(search: DeploymentSearch, where: str) -> Problem:
    """The replica whose chips come nearest to holding the model."""
    least = min(search.bounds, key=lambda one: one.memory.weights + one.memory.activations)
    memory = least.memory
    used = memory.weights + memory.activations + memory.graphs + memory.runtime
    given = f"{format_gib(used)} a chip before any cache ({shape_words(least.shape)})"
    expected = f"less than the {format_gib(memory.capacity)} that a chip of {where} has, with room for a cache"
    return Problem(path="memory", given=given, expected=expected, todo="use more chips, or free plan.precision")


def _too_strict(search: DeploymentSearch, bounds: list[Bound], where: str) -> Problem:
    """The objective is below what a request takes that meets no other."""
    asked = search.bench.objective
    nearest = min(bounds, key=lambda one: _over(one, asked))
    found = {"ttft": nearest.ttft_s, "tpot": nearest.tpot_s, "itl": nearest.tpot_s}
    wanted = {name: max(limit, found.get(name, 0.0)) for name, limit in asked.limits.items()}
    given = f"{_limits(asked.limits)} at p{asked.percentile:g}"
    alone = f"TTFT {format_quantity(nearest.ttft_s, 's')}, TPOT {format_quantity(nearest.tpot_s, 's')}"
    expected = f"at least what a request takes alone on {where}: {alone} ({shape_words(nearest.shape)})"
    todo = f"the nearest objective that can be met, where requests hardly meet: {_limits(wanted)}"
    return Problem(path="objective", given=given, expected=expected, todo=todo)


def _over(bound: Bound, asked: Objective) -> float:
    """By how much the strictest limit is missed at best."""
    shares = [bound.ttft_s / asked.ttft] if asked.ttft else []
    shares += [bound.tpot_s / limit for limit in (asked.tpot, asked.itl) if limit]
    return max(shares, default=0.0)


def _too_much(search: DeploymentSearch, able: list[Bound], where: str) -> Problem:
    """Requests that the chips cannot hold within the objective: what they keep, and what would hold them."""
    chips, asked = search.scenario.system.chips, search.bench.objective
    held = [one for one in search.capacities if one.role == "both" and one.shape.chips <= chips]
    rated = [one for one in held if one.rate]
    helps = []
    if rated:
        best = max(rated, key=lambda one: one.rate * (chips // one.shape.chips))
        most, need = fullest(best, chips), fewest(best, search.rate)
        helps += [f"send at most {most.rate:.3g} requests/s", f"use about {need.chips} chips ({need.words})"]
    kept = _nearest(search, rated or held)
    helps += [f"the nearest objective that {where} keeps at this load: {_limits(kept)}"] if kept else []
    given = f"{search.rate:.3g} requests/s under {_limits(asked.limits)} at p{asked.percentile:g}"
    expected = f"what {chips} chips of {where} can hold ({len(able)} kinds of replica tried or bounded)"
    return Problem(path="objective", given=given, expected=expected, todo=", or ".join(helps) or "relax the objective")


def _nearest(search: DeploymentSearch, held: list[Capacity]) -> dict[str, float]:
    """The limits that all chips keep at this load, whichever kind of replica misses the objective least."""
    asked, chips = search.bench.objective.limits, search.scenario.system.chips
    best: dict[str, float] = {}
    for one in sorted(held, key=lambda one: -one.rate / one.shape.chips)[:3]:
        found = tried_at(search.bench, fullest(one, chips), search.rate)
        if found is not None:
            taken = {name: max(kept.found, asked[name]) for name, kept in found.prediction.kept.items()}
            if not best or _missed(taken, asked) < _missed(best, asked):
                best = taken
    return best


def _missed(taken: dict[str, float], asked: dict[str, float]) -> float:
    """By how much the limit that is missed most is missed."""
    return max((taken[name] / asked[name] for name in asked), default=0.0)


def _limits(limits: dict[str, float]) -> str:
    return ", ".join(f"{name.upper()} {format_quantity(value, 's', 3)}" for name, value in limits.items()) or "no limit"
