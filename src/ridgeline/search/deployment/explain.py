"""Turn a finished search into why: what limits the winner, what each knob would change, or what bars every replica."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from ridgeline.core.errors import Problem
from ridgeline.core.records import dataclass
from ridgeline.core.units import format_gib, format_quantity
from ridgeline.ir.forward_steps import forward_steps
from ridgeline.plan.serve import Objective
from ridgeline.plan.serving_settings import Speculation
from ridgeline.search.deployment.capacity import STABLE, Bound, Capacity, bound_of, capacity
from ridgeline.search.deployment.find_deployment import DeploymentSearch, keeps
from ridgeline.search.deployment.fleet import Candidate, Verified, fewest, fullest, tried_at
from ridgeline.search.deployment.space import AXES, Shape, choice_words, precision_words, shape_words
from ridgeline.sim import price_forward

SAME = 0.005  # of a rate: not a difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """The best replica that decides one thing otherwise.

    rate     requests per second of one replica under the objective, on the shortened load; 0: it keeps it at none
    change   of requests per second and chip, against the winner's replica
    breaks   the limit that it misses first
    """

    axis: str
    choice: str
    shape: Shape
    rate: float
    change: float
    breaks: str

    JSON = "axis choice words rate change breaks"

    @property
    def words(self) -> str:
        """The replica in one line."""
        return shape_words(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Why a deployment.

    breaks      the limit that is missed first when the rate rises, by pool
    in_flight   requests that a replica decodes at once, on average
    step        seconds of such a decode step by part
    next_best   the best deployment of another kind; None where there is none
    knobs       by axis, of the pool that decodes
    held        the replica's own rate on the shortened load, which knobs are compared with
    """

    breaks: tuple[str, ...]
    in_flight: float
    step: Mapping[str, float]
    next_best: Verified | None
    knobs: tuple[Knob, ...]
    held: float


def explain_deployment(search: DeploymentSearch) -> Explained:
    """The reasons for the best deployment of a search."""
    best = search.best
    assert best is not None
    capacity = best.candidate.capacities[-1]
    flight = _in_flight(best)
    return Explained(
        breaks=tuple(capacity.breaks for capacity in best.candidate.capacities),
        in_flight=flight,
        step=_step(search, capacity.shape, flight),
        next_best=_next(search, best),
        knobs=tuple(sorted(_knobs(search, capacity), key=lambda one: -one.change)),
        held=capacity.rate,
    )


def _next(search: DeploymentSearch, best: Verified) -> Verified | None:
    return next(
        (candidate for candidate in search.verified if candidate.candidate is not best.candidate and candidate.met),
        None,
    )


def _in_flight(best: Verified) -> float:
    """Little's law: requests a second times the time from first token to last."""
    words = best.prediction.metrics
    ranks = best.candidate.replicas[-1] * best.candidate.shapes[-1].mesh.dp
    return best.rate * max(words.e2e.mean - words.ttft.mean, 0.0) / ranks


def _step(search: DeploymentSearch, shape: Shape, many: float) -> Mapping[str, float]:
    """Seconds by part of a decode step of so many requests."""
    context = float(search.load.prompts.mean() + search.load.outputs.mean() / 2)
    instance = search.bench.instance(shape)
    batch = max(round(many), 1)
    steps = forward_steps(decodes=float(batch), kv_tokens=batch * context)
    prices = price_forward(instance.scenario, steps, search.bench.priced.calibration, search.bench.priced.serving)
    return MappingProxyType({name: float(value[0]) for name, value in prices.parts.items() if value[0] > 0})


def _knobs(search: DeploymentSearch, held: Capacity) -> Iterator[Knob]:
    """Of everything simulated, the best replica with another choice along each axis."""
    peers = [capacity for capacity in search.capacities if capacity.role == held.role]
    for axis in AXES:
        current_choice = held.shape.choice(axis)
        by_choice: dict[str, Capacity] = {}
        for item in peers:
            words = choice_words(item.shape, axis)
            catalog_entry = by_choice.get(words)
            if item.shape.choice(axis) != current_choice and (
                catalog_entry is None or _rate_per_chip(item) > _rate_per_chip(catalog_entry)
            ):
                by_choice[words] = item
        for words, item in by_choice.items():
            yield _knob(axis, words, item, held)
    yield from _speculation_gain(search, held)
    yield from _formats(search, held)


def _formats(search: DeploymentSearch, held: Capacity) -> Iterator[Knob]:
    """Formats whose best case was not worth a simulation: what they could hold at most."""
    simulated_formats = {
        precision_words(capacity.shape.precision) for capacity in search.capacities if capacity.role == held.role
    }
    bench = search.bench
    for precision in search.space.precision if held.role == "both" else ():
        if precision_words(precision) in simulated_formats:
            continue
        bound = bound_of(
            bench.base, held.shape.with_setting("precision", precision), bench.load, bench.objective, bench.priced
        )
        change = STABLE * bound.rate / max(held.rate, 1e-12) - 1.0
        words = f"{precision_words(precision)} (best case)"
        yield Knob(
            axis="precision", choice=words, shape=bound.shape, rate=STABLE * bound.rate, change=change, breaks=""
        )


def _speculation_gain(search: DeploymentSearch, held: Capacity) -> Iterator[Knob]:
    """What speculation would do, where it was not searched; how many drafts are accepted is assumed."""
    if held.role != "both" or search.space.speculation != (None,) or not held.rate:
        return
    alternative = held.shape.with_setting(
        "speculation", Speculation(draft="mtp" if search.scenario.model.mtp else "eagle")
    )
    bench = search.bench
    bound = bound_of(bench.base, alternative, bench.load, bench.objective, bench.priced)
    if keeps(bound, bench.objective):
        words = choice_words(alternative, "speculation") + " (assumed)"
        yield _knob("speculation", words, capacity(bench, bound, near=held), held)


def _knob(axis: str, words: str, one: Capacity, held: Capacity) -> Knob:
    return Knob(
        axis=axis, choice=words, shape=one.shape, rate=one.rate, breaks=one.breaks,
        change=_rate_per_chip(one) / max(_rate_per_chip(held), 1e-12) - 1.0,
    )  # fmt: skip


def _rate_per_chip(one: Capacity) -> float:
    return one.rate / one.shape.chips


def lost(best: Candidate, other: Candidate) -> int:
    """Chips that another deployment takes more."""
    return other.chips - best.chips


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """One replica at one rate, simulated on a shortened load, its limit of TTFT kept.

    user_speed   tokens per second of a typical request: 1 / median TPOT
    cost         of a million output tokens in USD; None without a price
    """

    system: str
    shape: Shape
    rate: float
    user_speed: float
    tokens_per_s_per_chip: float
    cost: float | None
    met: bool

    JSON = "system words rate user_tokens_per_s=user_speed tokens_per_s_per_chip cost_per_million_tokens_usd=cost met"

    @property
    def words(self) -> str:
        """The replica in one line."""
        return shape_words(self.shape)


def frontier(searches: Iterable[DeploymentSearch]) -> tuple[FrontierPoint, ...]:
    """No other replica serves a user faster and costs less, or makes more of a chip where a price is not known."""
    points = [point for search in searches for point in _points(search)]

    def dear(point: FrontierPoint) -> float:
        return point.cost if point.cost is not None else 1.0 / point.tokens_per_s_per_chip

    kept: list[FrontierPoint] = []
    least = float("inf")
    for point in sorted(points, key=lambda one: (-one.user_speed, dear(one))):
        if dear(point) < least:
            kept.append(point)
            least = dear(point)
    return tuple(kept)


def _points(search: DeploymentSearch) -> Iterable[FrontierPoint]:
    system = search.scenario.system
    price = system.chip.price.value if system.chip.price else None
    for replica in search.capacities:
        if replica.role != "both":
            continue
        for trial in replica.tried:
            if trial.taken.get("ttft", 0.0) <= 1.0 and trial.user_speed > 0:
                yield FrontierPoint(
                    system=system.name,
                    shape=replica.shape,
                    rate=trial.rate,
                    user_speed=trial.user_speed,
                    tokens_per_s_per_chip=trial.output_tokens_per_s / trial.chips,
                    cost=trial.cost_per_million_tokens(price),
                    met=trial.met,
                )
