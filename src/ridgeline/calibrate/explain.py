"""Turn a scenario and a trace of it into an account of the gap: what, how much, and whether model or machine is off.

    gap       measured - predicted, of one step; by phase and class, summing to the whole
    residual  predicted / measured - 1

Who has to change, for each part of the gap, says `verdict`. Residuals go to a table that validation and fits read
(`residuals`). This floor holds it because residuals are what calibration lives on, and it may know the simulator and
traces at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.calibrate.attribution import Reached, action, own_bytes, reached, verdict
from ridgeline.calibrate.compare import predicted_timeline
from ridgeline.calibrate.mismatch import contradictions, doubts
from ridgeline.core.errors import InputError
from ridgeline.core.files import read_table
from ridgeline.core.units import DECIMAL
from ridgeline.cost.calibration import Calibration, read_calibration
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import read_scenario, self_contained
from ridgeline.plan.settings import apply_settings
from ridgeline.sim import Impossible, Prediction, default_calibration, predict
from ridgeline.trace.analysis.exclusive_time import exclusive_time
from ridgeline.trace.analyze import Analysis, analyze
from ridgeline.trace.classes import Rules
from ridgeline.trace.diff import Diff, diff_timelines
from ridgeline.trace.policy import ALL
from ridgeline.trace.time_entries import TimeEntry, entries_of
from ridgeline.trace.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class GapPart:
    """One phase and class: predicted, measured, and who should change."""

    phase: str
    class_: str
    predicted_ns: float
    measured_ns: float
    share: float
    """Of the whole gap, with sign; parts that go the other way are negative."""
    efficiency: float | None
    """Measured, against the roofline of the scenario's chip."""
    bound: str | None
    change: str
    why: str
    action: str

    JSON = """
        phase class predicted_us measured_us gap_us share_of_gap=share residual efficiency bound change why action
    """

    @property
    def gap_ns(self) -> float:
        return self.measured_ns - self.predicted_ns

    @property
    def residual(self) -> float | None:
        """None where nothing was measured."""
        return self.predicted_ns / self.measured_ns - 1 if self.measured_ns > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassGap:
    """One class over all phases: what its parts add up to. Phases may cancel where model and trace split them apart."""

    class_: str
    predicted_ns: float
    measured_ns: float
    parts: tuple[GapPart, ...]

    JSON = "class predicted_us measured_us gap_us"

    @property
    def gap_ns(self) -> float:
        return self.measured_ns - self.predicted_ns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Explanation:
    """Why a trace took longer or shorter than its scenario predicts. The gaps of `parts` sum to the gap."""

    scenario: Scenario
    prediction: Prediction
    analysis: Analysis
    diff: Diff
    parts: tuple[GapPart, ...]
    """Largest first, whichever sign."""
    doubts: tuple[str, ...]
    """What makes the comparison unequal: another chip, another number of chips, other software, other sizes."""
    table: Mapping[str, Any] | None = None
    """The scenario as its file says it, with settings; None where it was given as a value."""

    JSON = """
        kind='explanation' scenario=scenario.name model=scenario.model.id system=scenario.system.name
        engine=scenario.plan.engine trace=analysis.timeline.about.sources predicted_us measured_us gap_us residual
        interval_us inside_interval=inside parts classes=by_class by_change=by_change_ns doubts causes=diff.causes
    """

    @property
    def residual(self) -> float | None:
        """Predicted over measured step, less one; None where nothing was measured."""
        return self.predicted_ns / self.measured_ns - 1 if self.measured_ns else None

    @property
    def interval_us(self) -> tuple[float, float]:
        """Microseconds between which the prediction expects the step."""
        return self.prediction.interval.low * DECIMAL["M"], self.prediction.interval.high * DECIMAL["M"]

    @property
    def predicted_ns(self) -> float:
        return self.diff.before.step_ns

    @property
    def measured_ns(self) -> float:
        return self.diff.after.step_ns

    @property
    def gap_ns(self) -> float:
        return self.diff.delta_ns

    @property
    def inside(self) -> bool:
        """Whether the measured step lies in the interval of the prediction."""
        return self.prediction.interval.low <= self.measured_ns / DECIMAL["G"] <= self.prediction.interval.high

    @property
    def by_change_ns(self) -> dict[str, float]:
        """Nanoseconds of the gap by who should change, with sign."""
        totals: dict[str, float] = {}
        for part in self.parts:
            totals[part.change] = totals.get(part.change, 0.0) + part.gap_ns
        return dict(sorted(totals.items(), key=lambda entry: -abs(entry[1])))

    @property
    def by_class(self) -> tuple[ClassGap, ...]:
        """The parts of each class together, the largest gap first; they sum to the gap too."""
        held: dict[str, list[GapPart]] = {}
        for part in self.parts:
            held.setdefault(part.class_, []).append(part)
        found = [
            ClassGap(
                class_=class_,
                predicted_ns=sum(part.predicted_ns for part in parts),
                measured_ns=sum(part.measured_ns for part in parts),
                parts=tuple(parts),
            )
            for class_, parts in held.items()
        ]
        return tuple(sorted(found, key=lambda one: -abs(one.gap_ns)))


def explain(
    scenario: Scenario | Path | str,
    *traces: Path | str | Timeline,
    policy: str = ALL,
    classes: Path | None = None,
    settings: Sequence[str] = (),
    calibration: Calibration | Path | None = None,
    force: bool = False,
) -> Explanation:
    """Predict a scenario, compare it with a trace of it, and say what accounts for the gap.

    ``calibration``, or the file `ridgeline fit --with` wrote, takes the place of the shipped parameters. A trace that
    cannot be of the scenario is refused with the reasons; with ``force`` they are doubts.
    """
    built = scenario if isinstance(scenario, Scenario) else read_scenario(scenario, settings)
    used = read_calibration(calibration) if isinstance(calibration, Path) else calibration
    prediction = predict(built, used)
    if isinstance(prediction, Impossible):
        raise InputError(prediction.reasons)
    if not traces:
        raise InputError("a trace is needed to compare the scenario with")
    found = analyze(*traces, policy=policy, chip=built.system.chip.id, classes=classes)
    against = tuple(contradictions(built, found))
    if against and not force:
        raise InputError(against)
    drawn = predicted_timeline(built, found.rules, used)
    compared = diff_timelines(drawn, found.timeline, found.rules, policy, (built.name or "predicted", _source(found)))
    sides = [_by_part(line, found.rules, policy) for line in (drawn, found.timeline)]
    share = (used or default_calibration()).value("memory", built.system.chip, built.engine)
    moved = [side.get(("optimizer", "optimizer"), 0.0) for side in sides]
    rates = reached(found) | ({} if built.plan.offload.optimizer else own_bytes(moved[0], moved[1], share))
    return Explanation(
        scenario=built, prediction=prediction, analysis=found, diff=compared,
        parts=tuple(_parts(sides, compared, rates)), doubts=tuple(doubts(built, found)),
        table=None if isinstance(scenario, Scenario) else scenario_table(Path(scenario), settings),
    )  # fmt: skip


def _by_part(line: Timeline, rules: Rules, policy: str) -> dict[tuple[str, str], float]:
    """Own nanoseconds of a step by phase and class."""
    side: dict[tuple[str, str], float] = {}
    for entry in entries_of(exclusive_time(line, rules, policy), by_name=False):
        key = entry.phase, _class(entry)
        side[key] = side.get(key, 0.0) + entry.own_ns
    return side


def _source(found: Analysis) -> str:
    return ", ".join(found.timeline.about.sources[:2]) or "measured"


def _class(entry: TimeEntry) -> str:
    """Class of an entry; gaps by their cause, of which those between kernels are what a model calls per-kernel cost."""
    if entry.class_ != "idle":
        return entry.class_
    return "per-kernel" if entry.name == "between kernels" else f"idle, {entry.name}"


def _parts(sides: list[dict[tuple[str, str], float]], compared: Diff, rates: Mapping[str, Reached]) -> list[GapPart]:
    whole = compared.delta_ns or 1.0
    found = []
    for phase, class_ in dict.fromkeys([*sides[0], *sides[1]]):
        before, after = (side.get((phase, class_), 0.0) for side in sides)
        rate = rates.get(class_)
        change, why = verdict(class_, (before, after), rate, compared.after.step_ns)
        found.append(
            GapPart(
                phase=phase, class_=class_, predicted_ns=before, measured_ns=after, share=(after - before) / whole,
                efficiency=rate.efficiency if rate else None, bound=rate.bound if rate else None, change=change,
                why=why, action=action(change, class_.removeprefix("idle, ")),
            )
        )  # fmt: skip
    return sorted(found, key=lambda part: -abs(part.gap_ns))


def scenario_table(path: Path, settings: Iterable[str] = ()) -> dict[str, Any]:
    """The table of a scenario file with settings applied and the files it names written out.

    >>> scenario_table(Path("examples/llama3.2-1b-1xh200.toml"), ["plan.engine=torch-compile"])["plan"]["engine"]
    'torch-compile'
    """
    table = self_contained(read_table(path).data, path.parent)
    apply_settings(table, settings)
    return table
