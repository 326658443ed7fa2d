"""Turn two predictions into what differs between them, by class of time: the changes sum to the whole difference.

    train            a step: matmul, attention, tp, pp, dp, bubble, ...      `Prediction.breakdown`
    prefill, decode  a prefill or a step: matmul, kv-cache, network, ...     `PhasePrediction.breakdown`
    serve            the mean request, sent until its last token: queue, prefill, decode, ...

Each class has what bounds it on either side, so that a faster memory shows where compute or the network takes over. Of
requests under load the bounds are those of a decode step at the batch and context that ran on average.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from ridgeline.calibrate.explain import Comparable, is_scenario_file
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.core.units import MILLION
from ridgeline.cost.step_part import Bound
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import read_scenario
from ridgeline.serving import MEANINGS, ServingPrediction, predict_serving
from ridgeline.serving.simulation import RunningBatch, running_batch
from ridgeline.sim import Impossible, Prediction, predict
from ridgeline.sim.forward_work import DecodeStep, PhasePrediction, predict_phase

StepPrediction = Prediction | PhasePrediction
METRICS = ("ttft", "tpot", "itl", "e2e")
TIME_OF: Mapping[str, str] = MappingProxyType(
    {"train": "a training step", "prefill": "a prefill", "decode": "a decode step", "serve": "an average request"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassChange:
    """Seconds of one class of time on both sides, and what bounds it there; no bound where it takes no time.

    meaning   what the class is
    """

    name: str
    before_s: float
    after_s: float
    before_bound: Bound | None
    after_bound: Bound | None
    meaning: str

    JSON = "name before_s after_s difference_s before_bound after_bound meaning"

    @property
    def difference_s(self) -> float:
        """Seconds that B takes more."""
        return self.after_s - self.before_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeChange:
    """A time on both sides, its classes with the largest change first, and seconds by what bounds them.

    before_bounds, after_bounds   the largest first; none of requests, which no single bound limits
    """

    before_s: float
    after_s: float
    classes: tuple[ClassChange, ...]
    before_bounds: Mapping[Bound, float]
    after_bounds: Mapping[Bound, float]

    JSON = "before_s after_s difference_s classes before_bounds after_bounds"

    @property
    def difference_s(self) -> float:
        """Seconds that B takes more."""
        return self.after_s - self.before_s


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureChange:
    """One figure on both sides; null where a side has none."""

    name: str
    unit: str
    before: float | None
    after: float | None

    JSON = "name unit before after ratio"

    @property
    def ratio(self) -> float | None:
        """How many times A's figure B's is; None where there is nothing to compare with."""
        return self.after / self.before if self.before and self.after is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricChange:
    """Mean and percentiles of a metric of requests on both sides, in seconds."""

    metric: str
    before_s: Mapping[str, float]
    after_s: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionSide:
    """One of the two predictions.

    fits        whether it has the memory it needs; a time without it is what it would take
    low_s, high_s   between which the time is expected, by the interval of its prediction; None of requests
    """

    label: str
    scenario: Scenario
    time_s: float
    fits: bool
    low_s: float | None = None
    high_s: float | None = None

    JSON = """
        label name=scenario.name model=scenario.model.id system=scenario.system.name chips=scenario.system.chips
        engine=scenario.plan.engine time_s low_s high_s fits
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingChange:
    """What requests under load see on both sides, and what runs for them.

    before, after   the batch that runs on average, its cache, and what makes requests wait
    metrics         TTFT, TPOT, ITL and E2E
    decode_step     a decode step at that batch and context; None where a side has none
    """

    before: RunningBatch
    after: RunningBatch
    metrics: tuple[MetricChange, ...]
    decode_step: TimeChange | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionDiff:
    """Why B's prediction takes longer than A's. `classes` of `time` sum to its difference.

    phase     train, prefill, decode or serve
    figures   speed, cost and memory beside it
    """

    phase: str
    before: PredictionSide
    after: PredictionSide
    time: TimeChange
    figures: tuple[FigureChange, ...]
    serving: ServingChange | None = None

    JSON = """
        kind='prediction diff' phase of before after difference_s=time.difference_s difference_share=slower
        classes=time.classes before_bounds=time.before_bounds after_bounds=time.after_bounds figures serving?
    """

    @property
    def of(self) -> str:
        """What the time is of."""
        return TIME_OF[self.phase]

    @property
    def slower(self) -> float:
        """How much longer B takes, as a share of A; negative where it is faster."""
        return self.time.difference_s / self.time.before_s if self.time.before_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionDiffs:
    """Several predictions, each compared with the first."""

    runs: tuple[PredictionDiff, ...]

    JSON = "kind='prediction diffs' runs"


def diff_predictions(
    before: Comparable, sides: Sequence[Comparable | None], settings: Sequence[str] = (), *, policy: str = "all",
    classes: Path | None = None,
) -> PredictionDiff | PredictionDiffs:  # fmt: skip
    """What differs between the prediction of one scenario and those of others; None is the first with `settings`.

    policy, classes   how spans of a trace are counted and classed: refused, since predictions have none

    >>> found = diff_predictions("examples/llama3-70b-decode-4xh100.toml", [None], ['chip.hbm.bandwidth="6.7 TB/s"'])
    >>> changes = {change.name: change.difference_s for change in found.time.classes}
    >>> abs(sum(changes.values()) - found.time.difference_s) < 1e-12, min(changes, key=changes.get)
    (True, 'matmul')
    """
    for option, value in (("--policy", "" if policy == "all" else policy), ("--classes", classes)):
        if value:
            todo = f"leave {option} out"
            raise InputError(Problem(path=option, given=str(value), expected="a trace among A and B", todo=todo))
    if None in sides and not settings:
        expected_text = "--set KEY=VALUE, which changes A, or another trace or scenario"
        raise InputError(Problem(path="B", given="nothing", expected=expected_text))
    first = _read(before, settings if None not in sides else ())
    label = _label(before, "A")
    scenarios = [
        (", ".join(settings), _read(before, settings)) if side is None else (_label(side, "B"), _read(side, settings))
        for side in sides
    ]
    for name, scenario in scenarios:
        _refuse_other_kind((label, first), (name, scenario))
    shared = _predict(first, label)
    runs = tuple(_diff(shared, _predict(scenario, name), (label, name)) for name, scenario in scenarios)
    return runs[0] if len(runs) == 1 else PredictionDiffs(runs=runs)


def _refuse_other_kind(before: tuple[str, Scenario], after: tuple[str, Scenario]) -> None:
    """Refuse a training step beside a decode step: they do not do the same work."""
    kinds = [scenario.workload.kind for _, scenario in (before, after)]
    if kinds[0] != kinds[1]:
        given = f"{kinds[0]} in {before[0]}, {kinds[1]} in {after[0]}"
        todo = "compare scenarios of one kind; `ridgeline predict` prints each alone"
        raise InputError(Problem(path="workload.kind", given=given, expected="the same on both sides", todo=todo))


def _read(what: Comparable, settings: Sequence[str]) -> Scenario:
    if isinstance(what, Scenario):
        return what
    assert isinstance(what, (str, Path))
    return read_scenario(what, settings)


def _label(what: Comparable, otherwise: str) -> str:
    if isinstance(what, Scenario):
        return what.name or otherwise
    return Path(what).name if isinstance(what, (str, Path)) else otherwise


def is_scenario(what: Comparable) -> bool:
    """Whether a side is predicted: a scenario, or the file of one."""
    return isinstance(what, Scenario) or is_scenario_file(what)


def _predict(scenario: Scenario, label: str) -> StepPrediction | ServingPrediction:
    """The prediction of a side; the reasons why there is none name the side."""
    kind = scenario.workload.kind
    prediction = (
        predict(scenario) if kind == "train"
        else predict_serving(scenario, sample=True) if kind == "serve"
        else predict_phase(scenario)
    )  # fmt: skip
    if isinstance(prediction, Impossible):
        raise InputError([replace(reason, where=reason.where or label) for reason in prediction.reasons])
    return prediction


def _diff(
    before: StepPrediction | ServingPrediction, after: StepPrediction | ServingPrediction, labels: tuple[str, str]
) -> PredictionDiff:
    phase = before.scenario.workload.kind
    if isinstance(before, ServingPrediction):
        assert isinstance(after, ServingPrediction)
        batches = running_batch(before), running_batch(after)
        return PredictionDiff(
            phase=phase,
            before=_served_side(before, labels[0]),
            after=_served_side(after, labels[1]),
            time=_request_change(before, after),
            figures=_served_figures((before, after), batches),
            serving=_serving_change(before, after, batches),
        )
    assert not isinstance(after, ServingPrediction)
    return PredictionDiff(
        phase=phase,
        before=_step_side(before, labels[0]),
        after=_step_side(after, labels[1]),
        time=_step_change(before, after),
        figures=tuple(_figures(_step_figures(before), _step_figures(after))),
    )


def _step_side(step: StepPrediction, label: str) -> PredictionSide:
    low, high = step.interval.low, step.interval.high
    return PredictionSide(
        label=label, scenario=step.scenario, time_s=step.step_time_s, fits=step.fits, low_s=low, high_s=high
    )


def _served_side(served: ServingPrediction, label: str) -> PredictionSide:
    return PredictionSide(label=label, scenario=served.scenario, time_s=served.metrics.e2e.mean, fits=True)


def _step_change(before: StepPrediction | DecodeStep, after: StepPrediction | DecodeStep) -> TimeChange:
    """Two steps class by class; a class that one side lacks takes no time there."""
    changes = []
    for name in dict.fromkeys([*before.parts, *after.parts]):
        old, new = before.parts.get(name), after.parts.get(name)
        meaning = (new or before.parts[name]).meaning
        changes.append(
            ClassChange(
                name=name, before_s=old.seconds if old else 0.0, after_s=new.seconds if new else 0.0,
                before_bound=old.bound if old else None, after_bound=new.bound if new else None, meaning=meaning,
            )
        )  # fmt: skip
    return TimeChange(
        before_s=before.step_time_s, after_s=after.step_time_s, classes=_by_size(changes),
        before_bounds=before.bounds, after_bounds=after.bounds,
    )  # fmt: skip


def _request_change(before: ServingPrediction, after: ServingPrediction) -> TimeChange:
    """The mean request's time by where it went."""
    old, new = before.metrics.time, after.metrics.time
    changes = (
        ClassChange(
            name=name, before_s=old[name], after_s=new[name], before_bound=None, after_bound=None,
            meaning=MEANINGS[name],
        )
        for name in old
        if old[name] or new[name]
    )  # fmt: skip
    return TimeChange(
        before_s=before.metrics.e2e.mean, after_s=after.metrics.e2e.mean, classes=_by_size(changes),
        before_bounds={}, after_bounds={},
    )  # fmt: skip


def _by_size(changes: Iterable[ClassChange]) -> tuple[ClassChange, ...]:
    return tuple(sorted(changes, key=lambda change: -abs(change.difference_s)))


Figures = Mapping[str, tuple[str, float | None]]
"""By name: unit and value."""


def _figures(before: Figures, after: Figures) -> Iterator[FigureChange]:
    for name, (unit, value) in before.items():
        other = after[name][1]
        if value is not None or other is not None:
            yield FigureChange(name=name, unit=unit, before=value, after=other)


def _step_figures(step: StepPrediction) -> Figures:
    per_chip = "tokens/s/chip", step.tokens_per_s_per_chip
    if isinstance(step, PhasePrediction):
        return {
            "speed of a user": ("tokens/s/user", step.tokens_per_s_per_user),
            "speed of a chip": per_chip,
            "cost of a million tokens": ("USD", step.cost_per_million_tokens_usd if step.fits else None),
            "tokens that the cache holds": ("tokens", float(max(step.memory.tokens, 0))),
            "weights of a chip": ("B", step.memory.weights),
        }
    cost = step.bill.cost_usd
    per_million = cost / step.scenario.workload.tokens * MILLION if cost is not None and step.fits else None
    return {
        "speed of a chip": per_chip,
        "MFU": ("", step.utilization.mfu),
        "memory of the fullest chip": ("B", step.memory.peak_bytes),
        "cost of a million tokens": ("USD", per_million),
    }


def _served_figures(
    sides: tuple[ServingPrediction, ServingPrediction], batches: tuple[RunningBatch, RunningBatch]
) -> tuple[FigureChange, ...]:
    def figures(served: ServingPrediction, running: RunningBatch) -> Figures:
        metrics = served.metrics
        return {
            "throughput": ("requests/s", metrics.requests_per_s),
            "output": ("tokens/s", metrics.output_tokens_per_s),
            "output of a chip": ("tokens/s", served.tokens_per_s_per_chip),
            "goodput": ("requests/s", metrics.goodput),
            "cost of a million output tokens": ("USD", served.cost_per_million_tokens_usd),
            "chips": ("", float(served.run.chips)),
            "batch of a replica, on average": ("requests", running.batch),
            "context of a decode, on average": ("tokens", running.context),
            "longest queue of a replica": ("requests", float(running.longest_queue)),
            "cache of a replica": ("tokens", float(max(instance.memory.tokens for instance in served.instances))),
            "cache in use, on average": ("%", running.cache_held * 100),
            "cache in use, at most": ("%", running.cache_peak * 100),
            "prefix hits": ("%", metrics.hit_share * 100),
            "preemptions": ("", float(served.preemptions)),
        }

    return tuple(_figures(*(figures(served, running) for served, running in zip(sides, batches, strict=True))))


def _serving_change(
    before: ServingPrediction, after: ServingPrediction, batches: tuple[RunningBatch, RunningBatch]
) -> ServingChange:
    metrics = []
    for name in METRICS:
        old, new = (getattr(side.metrics, name).figures for side in (before, after))
        both = [head for head in old if head in new]
        metrics.append(
            MetricChange(
                metric=name, before_s={head: old[head] for head in both}, after_s={head: new[head] for head in both}
            )
        )
    old_step, new_step = (running.step for running in batches)
    step = _step_change(old_step, new_step) if old_step is not None and new_step is not None else None
    return ServingChange(before=batches[0], after=batches[1], metrics=tuple(metrics), decode_step=step)
