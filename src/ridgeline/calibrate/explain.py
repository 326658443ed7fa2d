"""Turn a scenario and a trace of it into an account of the gap: what, how much, and whether model or machine is off.

    gap       measured - predicted, of one step; by phase and class, summing to the whole
    residual  predicted / measured - 1

Who has to change, for each part of the gap:

    measured faster than predicted          the model: nothing runs faster than it can
    slower, and near the roofline           the model: it promises more than the chip gives
    slower, and far below the roofline      the machine: these kernels can be better
    idle, copies, waiting for other ranks   the machine: the plan does not ask for them
    slower, and no shapes were recorded     unclear

Near means 75 % of the compute roof or 80 % of the memory roof, as `trace.findings` takes it. Residuals go to a table
that validation and fits read (`residuals`). This floor holds it because residuals are what calibration lives on, and it
may know the simulator and traces at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.calibrate.compare import predicted_timeline
from ridgeline.calibrate.doubts import doubts
from ridgeline.calibrate.residuals import self_contained
from ridgeline.core.errors import InputError
from ridgeline.core.units import DECIMAL
from ridgeline.cost.parameters import Calibration, read_calibration
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import read_scenario
from ridgeline.sim.predict import default_calibration, predict
from ridgeline.sim.prediction import Impossible, Prediction
from ridgeline.trace.analyze import Analysis, analyze
from ridgeline.trace.breakdown import ALL
from ridgeline.trace.classes import Rules
from ridgeline.trace.diff import Diff, Entry, coarse, diff_timelines, entries_of
from ridgeline.trace.findings import REACHABLE
from ridgeline.trace.ledger import ledger
from ridgeline.trace.timeline import Timeline

MODEL, MACHINE, UNCLEAR, NOTHING = "model", "machine", "unclear", "nothing"
SMALL = 0.005  # of the measured step: a part of the gap below is nothing to act on
ACTIONS = {
    "host": "graphs, compilation or fewer and larger kernels",
    "between kernels": "fewer kernels: fuse, compile",
    "synchronisation": "remove what makes the host wait (.item(), .cpu(), prints)",
    "data loading": "more loader workers, prefetching",
    "start-up": "record after warm-up",
    "memory-bound": "fuse kernels bound by memory: torch.compile, fused norms, activations and losses",
    "matmul": "shapes that fill tiles, another library, lower precision",
    "attention": "another attention kernel (flash, cuDNN), larger heads",
    "optimizer": "a fused optimizer (fused=True); where it is one, fewer bytes: states in 8 or 16 bits, sharded",
    "communication": "overlap it, or check the links",
    "copy": "keep data on the chip; pinned memory and streams for the rest",
}


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

    def by_change(self) -> dict[str, float]:
        """Nanoseconds of the gap by who should change, with sign."""
        totals: dict[str, float] = {}
        for part in self.parts:
            totals[part.change] = totals.get(part.change, 0.0) + part.gap_ns
        return dict(sorted(totals.items(), key=lambda entry: -abs(entry[1])))

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
) -> Explanation:
    """Predict a scenario, compare it with a trace of it, and say what accounts for the gap.

    ``calibration``, or the file `ridgeline fit --with` wrote, takes the place of the shipped parameters.
    """
    built = scenario if isinstance(scenario, Scenario) else read_scenario(scenario, settings)
    used = read_calibration(calibration) if isinstance(calibration, Path) else calibration
    prediction = predict(built, used)
    if isinstance(prediction, Impossible):
        raise InputError(prediction.reasons)
    if not traces:
        raise InputError("a trace is needed to compare the scenario with")
    found = analyze(*traces, policy=policy, chip=built.system.chip.id, classes=classes)
    drawn = predicted_timeline(built, found.rules, used)
    compared = diff_timelines(drawn, found.timeline, found.rules, policy, (built.name or "predicted", _source(found)))
    sides = [_by_part(line, found.rules, policy) for line in (drawn, found.timeline)]
    share = (used or default_calibration()).value("memory", built.system.chip.id, built.plan.engine)
    rates = _efficiencies(found) | _own_bytes(sides, share, built)
    return Explanation(
        scenario=built, prediction=prediction, analysis=found, diff=compared,
        parts=tuple(_parts(sides, compared, rates)), doubts=tuple(doubts(built, found)),
        table=None if isinstance(scenario, Scenario) else self_contained(Path(scenario), settings),
    )  # fmt: skip


def _by_part(line: Timeline, rules: Rules, policy: str) -> dict[tuple[str, str], float]:
    """Own nanoseconds of a step by phase and class."""
    side: dict[tuple[str, str], float] = {}
    for entry in entries_of(ledger(line, rules, policy), by_name=False):
        key = entry.phase, _class(entry)
        side[key] = side.get(key, 0.0) + entry.own_ns
    return side


def _source(found: Analysis) -> str:
    return ", ".join(found.timeline.about.sources[:2]) or "measured"


def _class(entry: Entry) -> str:
    """Class of an entry; gaps by their cause, of which those between kernels are what a model calls per-kernel cost."""
    if entry.class_ != "idle":
        return entry.class_
    return "per-kernel" if entry.name == "between kernels" else f"idle, {entry.name}"


def _efficiencies(found: Analysis) -> dict[str, tuple[float, str]]:
    """By coarse class, time the roofline allows over time taken, and the bound of most of it."""
    line = found.timeline
    totals: dict[str, dict[str, list[float]]] = {}
    for rate in found.rates:
        if rate.roof_ns is None or rate.bound is None:
            continue
        own = totals.setdefault(coarse(line, line.classes.index(rate.class_)), {}).setdefault(rate.bound, [0.0, 0.0])
        own[0] += min(rate.roof_ns, rate.total_ns)
        own[1] += rate.total_ns
    return {
        class_: (
            sum(roof for roof, _ in bounds.values()) / sum(total for _, total in bounds.values()),
            max(bounds, key=lambda bound: bounds[bound][1]),
        )
        for class_, bounds in totals.items()
    }


def _own_bytes(
    sides: list[dict[tuple[str, str], float]], share: float, built: Scenario
) -> dict[str, tuple[float, str]]:
    """Efficiency of the optimizer, whose shapes no profiler records: the scenario knows the bytes it moves.

    efficiency = sustained share of the memory's rate the model takes * predicted / measured
    """
    at = ("optimizer", "optimizer")
    predicted, measured = (side.get(at, 0.0) for side in sides)
    if not predicted or not measured or built.plan.offload.optimizer:
        return {}
    return {"optimizer": (min(1.0, share * predicted / measured), "memory")}


def _parts(
    sides: list[dict[tuple[str, str], float]], compared: Diff, rates: dict[str, tuple[float, str]]
) -> list[GapPart]:
    whole = compared.delta_ns or 1.0
    found = []
    for phase, class_ in dict.fromkeys([*sides[0], *sides[1]]):
        before, after = (side.get((phase, class_), 0.0) for side in sides)
        efficiency, bound = rates.get(class_, (None, None))
        change, why = _verdict(class_, before, after, (efficiency, bound), compared.after.step_ns)
        word = class_.removeprefix("idle, ")
        found.append(
            GapPart(
                phase=phase, class_=class_, predicted_ns=before, measured_ns=after, share=(after - before) / whole,
                efficiency=efficiency, bound=bound, change=change, why=why, action=_action(change, word),
            )
        )  # fmt: skip
    return sorted(found, key=lambda part: -abs(part.gap_ns))


def _verdict(
    class_: str, before: float, after: float, rate: tuple[float | None, str | None], step: float
) -> tuple[str, str]:
    """Who should change, and why."""
    gap = after - before
    efficiency, bound = rate
    if abs(gap) < SMALL * step:
        return NOTHING, "less than 0.5% of the step"
    if class_.startswith("idle") or class_ in ("copy", "per-kernel"):
        if gap < 0:
            return MODEL, "less of it than the model adds"
        return MACHINE, "time in which the plan asks for nothing"
    if class_ == "waiting":
        return MODEL, "the model adds waiting this run did not have" if gap < 0 else "waiting the model does not know"
    if gap < 0:
        return MODEL, "it ran faster than the model believes it can"
    if efficiency is None or bound is None:
        return UNCLEAR, "no shapes were recorded, so the roofline cannot tell"
    if efficiency >= REACHABLE[bound]:
        return MODEL, f"it runs at {efficiency:.0%} of the {bound} roof: the model asks for more"
    return MACHINE, f"it runs at {efficiency:.0%} of the {bound} roof; {REACHABLE[bound]:.0%} is within reach"


def _action(change: str, word: str) -> str:
    if change == MODEL:
        return "fit the residuals (-o FILE.csv, then `ridgeline fit --with FILE.csv`), or name the engine that ran"
    if change == UNCLEAR:
        return "record with shapes (record_shapes=True)"
    return ACTIONS.get(word, "look at its spans with `ridgeline analyze`") if change == MACHINE else ""
