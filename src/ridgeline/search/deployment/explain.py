"""Turn a finished search into why: what limits the winner, what the next best loses, what each knob would change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from ridgeline.core.records import dataclass
from ridgeline.ir.forward_steps import forward_steps
from ridgeline.plan.serving_settings import Speculation
from ridgeline.search.deployment.bound import bound_of
from ridgeline.search.deployment.candidate import Candidate, Verified
from ridgeline.search.deployment.capacity import STABLE, Capacity, capacity
from ridgeline.search.deployment.find_deployment import DeploymentSearch, keeps
from ridgeline.search.deployment.shape import AXES, Shape, choice_words, precision_words, shape_words
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
