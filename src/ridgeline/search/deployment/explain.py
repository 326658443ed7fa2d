"""Turn a finished search into why: what limits the winner, what each knob would change, or what bars every replica."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from ridgeline.core.errors import Problem
from ridgeline.core.records import dataclass
from ridgeline.core.units import format_gib, format_quantity
from ridgeline.ir.forward_steps import forward_steps
from ridgeline.plan.serving_plan import Speculation
from ridgeline.search.deployment.capacity import STABLE, Capacity, ReplicaBound, bound_of, capacity
from ridgeline.search.deployment.find_deployment import DeploymentSearch, keeps
from ridgeline.search.deployment.fleet import fewest, fullest, tried_at
from ridgeline.search.deployment.space import AXES, Shape, choice_words, precision_words, shape_words
from ridgeline.search.recommendation import pareto_front
from ridgeline.sim import price_forward


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
class DeploymentReasons:
    """Why a deployment.

    breaks      the limit that is missed first when the rate rises, by pool
    in_flight   requests that a replica decodes at once, on average
    step        seconds of such a decode step by part
    knobs       by axis, of the pool that decodes
    """

    breaks: tuple[str, ...]
    in_flight: float
    step: Mapping[str, float]
    knobs: tuple[Knob, ...]


def explain_deployment(search: DeploymentSearch) -> DeploymentReasons:
    """The reasons for the best deployment of a search."""
    best = search.best
    assert best is not None
    candidate, metrics = best.candidate, best.prediction.metrics
    decoder, ranks = candidate.capacities[-1], candidate.replicas[-1] * candidate.shapes[-1].mesh.dp
    # Little's law: requests a second times the time from first token to last
    in_flight = best.rate * max(metrics.e2e.mean - metrics.ttft.mean, 0.0) / ranks
    return DeploymentReasons(
        breaks=tuple(replica.breaks for replica in candidate.capacities),
        in_flight=in_flight,
        step=_step(search, decoder.shape, in_flight),
        knobs=tuple(sorted(_knobs(search, decoder), key=lambda knob: -knob.change)),
    )


def _step(search: DeploymentSearch, shape: Shape, many: float) -> Mapping[str, float]:
    """Seconds by part of a decode step of so many requests."""
    bench, batch = search.bench, max(round(many), 1)
    context = float(search.load.prompts.mean() + search.load.outputs.mean() / 2)
    steps = forward_steps(decodes=float(batch), kv_tokens=batch * context)
    scenario = bench.instance(shape).scenario
    prices = price_forward(scenario, steps, bench.priced.calibration, bench.priced.serving)
    return MappingProxyType({name: float(value[0]) for name, value in prices.parts.items() if value[0] > 0})


def _knobs(search: DeploymentSearch, winner: Capacity) -> Iterator[Knob]:
    """Of everything simulated, the best replica with another choice along each axis; speculation and formats else."""
    bench, shape = search.bench, winner.shape
    peers = [replica for replica in search.capacities if replica.role == winner.role]

    def knob(axis: str, words: str, replica: Capacity) -> Knob:
        change = replica.rate_per_chip / max(winner.rate_per_chip, 1e-12) - 1.0
        return Knob(
            axis=axis, choice=words, shape=replica.shape, rate=replica.rate, breaks=replica.breaks, change=change
        )

    for axis in AXES:
        by_choice: dict[str, Capacity] = {}
        for replica in peers:
            words = choice_words(replica.shape, axis)
            rival = by_choice.get(words)
            if replica.shape.choice(axis) != shape.choice(axis) and (
                rival is None or replica.rate_per_chip > rival.rate_per_chip
            ):
                by_choice[words] = replica
        yield from (knob(axis, words, replica) for words, replica in by_choice.items())
    if winner.role != "both":
        return
    if search.space.speculation == (None,) and winner.rate:  # how many drafts are accepted is assumed
        draft = Speculation(draft="mtp" if search.scenario.model.mtp else "eagle")
        bound = bound_of(bench, shape.with_setting("speculation", draft))
        if keeps(bound, bench.objective):
            words = choice_words(bound.shape, "speculation") + " (assumed)"
            yield knob("speculation", words, capacity(bench, bound, near=winner))
    simulated_formats = {precision_words(replica.shape.precision) for replica in peers}
    for precision in search.space.precision:
        words = precision_words(precision)
        if words not in simulated_formats:  # not worth a simulation: what it could hold at most
            bound = bound_of(bench, shape.with_setting("precision", precision))
            rate, words = STABLE * bound.rate, f"{words} (best case)"
            change = rate / max(winner.rate, 1e-12) - 1.0
            yield Knob(axis="precision", choice=words, shape=bound.shape, rate=rate, change=change, breaks="")


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
    nearest = min(search.bounds, key=lambda bound: bound.memory.weights + bound.memory.activations)
    memory = nearest.memory
    used_bytes = memory.weights + memory.activations + memory.graphs + memory.runtime
    got = f"{format_gib(used_bytes)} a chip before any cache ({shape_words(nearest.shape)})"
    expectation = f"less than the {format_gib(memory.capacity)} that a chip of {where} has, with room for a cache"
    return Problem(path="memory", given=got, expected=expectation, todo="use more chips, or free plan.precision")


def _too_strict(search: DeploymentSearch, bounds: list[ReplicaBound], where: str) -> Problem:
    """The objective is below what a request takes that meets no other."""
    objective = search.bench.objective
    limits = objective.limits

    def at_best(bound: ReplicaBound) -> dict[str, float]:
        return {"ttft": bound.ttft_s, "tpot": bound.tpot_s, "itl": bound.tpot_s}

    def worst_miss(bound: ReplicaBound) -> float:
        return max((best_s / limits[name] for name, best_s in at_best(bound).items() if name in limits), default=0.0)

    nearest = min(bounds, key=worst_miss)
    wanted = {name: max(limit, at_best(nearest).get(name, 0.0)) for name, limit in limits.items()}
    alone = f"TTFT {format_quantity(nearest.ttft_s, 's')}, TPOT {format_quantity(nearest.tpot_s, 's')}"
    expectation = f"at least what a request takes alone on {where}: {alone} ({shape_words(nearest.shape)})"
    todo = f"the nearest objective that can be met, where requests hardly meet: {_limit_words(wanted)}"
    given_text = f"{_limit_words(limits)} at p{objective.percentile:g}"
    return Problem(path="objective", given=given_text, expected=expectation, todo=todo)


def _too_much(search: DeploymentSearch, able: list[ReplicaBound], where: str) -> Problem:
    """Requests that the chips cannot hold within the objective: what they keep, and what would hold them."""
    chips, objective = search.scenario.system.chips, search.bench.objective
    simulated = [replica for replica in search.capacities if replica.role == "both" and replica.shape.chips <= chips]
    rated_replicas = [replica for replica in simulated if replica.rate]
    helps = []
    if rated_replicas:
        best = max(rated_replicas, key=lambda replica: replica.rate * (chips // replica.shape.chips))
        maximum, need = fullest(best, chips), fewest((best,), search.rate)
        helps += [f"send at most {maximum.rate:.3g} requests/s", f"use about {need.chips} chips ({need.words})"]
    if limits := _nearest_objective(search, rated_replicas or simulated):
        helps.append(f"the nearest objective that {where} keeps at this load: {_limit_words(limits)}")
    got = f"{search.rate:.3g} requests/s under {_limit_words(objective.limits)} at p{objective.percentile:g}"
    expectation = f"what {chips} chips of {where} can hold ({len(able)} kinds of replica tried or bounded)"
    return Problem(path="objective", given=got, expected=expectation, todo=", or ".join(helps) or "relax the objective")


def _nearest_objective(search: DeploymentSearch, replicas: list[Capacity]) -> dict[str, float]:
    """The limits that all chips keep at this load, whichever kind of replica misses the objective least."""
    asked, chips = search.bench.objective.limits, search.scenario.system.chips
    misses: list[tuple[float, dict[str, float]]] = []
    for replica in sorted(replicas, key=lambda replica: -replica.rate_per_chip)[:3]:
        fleet = tried_at(search.bench, fullest(replica, chips), search.rate)
        if fleet is not None:
            limits = {name: max(item.found, asked[name]) for name, item in fleet.prediction.kept.items()}
            misses.append((max((limits[name] / asked[name] for name in asked), default=0.0), limits))
    return min(misses, key=lambda miss: miss[0])[1] if misses else {}


def _limit_words(limits: dict[str, float]) -> str:
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

    def amounts(point: FrontierPoint) -> tuple[float, float]:
        return -point.user_speed, 1.0 / point.tokens_per_s_per_chip if point.cost is None else point.cost

    return pareto_front((point for search in searches for point in _points(search)), amounts)


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
