"""Turn a scenario and a trace of it into an account of the gap: what, how much, and whether model or machine is off.

    gap       measured - predicted, of one step; by phase and class, summing to the whole
    residual  predicted / measured - 1

Who has to change, for each part of the gap, says `verdict`. Residuals go to a table that validation and fits read. This
floor holds it, and the diff of any two of traces and scenarios, because it may know the simulator and traces at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline import trace
from ridgeline.calibrate.gap_verdict import (
    MissingRoof,
    action,
    measured_host,
    missing_roof,
    own_bytes,
    reached_by_class,
    verdict,
)
from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import BIGGEST_FILE, read_table
from ridgeline.core.units import DECIMAL, format_quantity
from ridgeline.cost import Calibration, Profile
from ridgeline.models.facts import training_flops_per_token
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import apply_settings, read_scenario, self_contained
from ridgeline.plan.workload import Train
from ridgeline.sim import Impossible, Prediction, default_calibration, predict, timeline

SCENARIOS = (".toml", ".yaml", ".yml")
PARTS = frozenset({"system", "workload", "plan"})  # beside a model, what makes a JSON file a scenario and no trace
Comparable = Path | str | trace.Timeline | Scenario


def diff(
    before: Comparable,
    after: Comparable | None = None,
    *,
    policy: str = "all",
    classes: Path | None = None,
    settings: Sequence[str] = (),
) -> trace.Diff:
    """Why a step of ``after`` takes longer than one of ``before``: causes that sum to the difference.

    Either is a trace file or folder, a scenario file (TOML, YAML, JSON; it is predicted, with ``settings`` applied), or
    such a thing already read. Two scenarios are `calibrate.prediction_diff`'s.
    """
    if after is None:
        expected_text = "two of them, or a scenario file and --set"
        raise InputError(
            Problem(path="B", given="one trace alone", expected=expected_text, todo="name what to compare it with")
        )
    if settings and not any(is_scenario_file(side) for side in (before, after)):
        raise InputError(Problem(path="--set", given=settings[0], expected="a scenario among A and B; both are traces"))
    rules = trace.Rules.read(classes)
    sides = [side_of(side, rules, settings) for side in (before, after)]
    labels = (_label(before, "A"), _label(after, "B"))
    return trace.diff_timelines(sides[0], sides[1], rules, policy, labels)


def side_of(what: Comparable, rules: trace.Rules, settings: Sequence[str] = ()) -> trace.Timeline:
    """The classified timeline of one side."""
    if isinstance(what, trace.Timeline):
        return trace.classify(what, rules)
    if isinstance(what, Scenario):
        return predicted_timeline(what, rules)
    path = Path(what)
    if is_scenario_file(path):
        return predicted_timeline(read_scenario(path, settings), rules)
    return trace.read_timeline(path, rules=rules)


def is_scenario_file(what: Comparable) -> bool:
    """Whether settings apply to it: a scenario file that can still be read otherwise."""
    if not isinstance(what, (Path, str)):
        return False
    path = Path(what)
    try:
        if not path.is_file():
            return False
    except (OSError, ValueError):  # a name no file system takes
        return False
    return path.suffix.lower() in SCENARIOS or (path.suffix.lower() == ".json" and _says_scenario(path))


def _says_scenario(path: Path) -> bool:
    """Whether a JSON file holds a scenario: a page with a model and one of its other parts."""
    if path.stat().st_size > BIGGEST_FILE:
        return False
    try:
        table = read_table(path).data
    except InputError:
        return False
    return "model" in table and bool(PARTS & set(table))


def predicted_timeline(
    scenario: Scenario, rules: trace.Rules, calibration: Calibration | None = None
) -> trace.Timeline:
    """One predicted step, classified; an `InputError` with the reasons when there is none."""
    drawn = timeline(scenario, calibration)
    if isinstance(drawn, Impossible):
        raise InputError(drawn.reasons)
    return trace.classify(drawn, rules)


def _label(what: Comparable, otherwise: str) -> str:
    if isinstance(what, Scenario):
        return what.name or otherwise
    return otherwise if isinstance(what, trace.Timeline) else Path(what).name


GENERATED = ("triton_poi_", "triton_red_", "triton_per_", "triton_tem_")  # names torch.compile gives its kernels
KNOWN = 0.9  # of the time of matrix products must have shapes before their flops are compared
APART = 0.05  # flops that differ by more may be another workload
OTHER = 1.5  # times as many or as few flops are one
OTHER_RANK = 3.0  # the same of one rank of several: stages differ, and layers may be computed again
BACKWARD_OF_INPUTS = 2 / 3  # of the products: forward, and the gradients that even frozen weights pass on
FORCE = "name the scenario of this run, or add --force to compare them all the same"


def contradictions(built: Scenario[Train], found: trace.Analysis) -> Iterator[Problem]:
    """What rules out that the trace is of the scenario."""
    about = found.timeline.about
    ran_on, world = found.ran_on, about.world_size
    host = built.system.chip.vendor == "host"  # a process without an accelerator: its ops are the work
    if not host and not found.timeline.predicted and not found.timeline.of_kind("kernel").any():
        yield _against("a trace without a kernel", "kernels of a training step on a chip")
        return
    if ran_on is not None and ran_on.id != built.system.chip.id:
        yield _against(f"a trace of {ran_on.id}", f"{built.system.chip.id}, the scenario's chip")
    if world and world != built.system.chips:
        yield _against(f"a trace of {world} ranks", f"{built.system.chips}, the scenario's chips")
    flops, chips = _step_flops(built), built.system.chips
    ran = _products(found)
    largest_share = OTHER if chips == 1 and built.plan.recompute.kind == "none" else OTHER_RANK
    if ran is not None and not flops / chips / largest_share < ran < flops / chips * largest_share:
        flops_text = f"about {format_quantity(flops / chips, 'FLOP', 3)}, as the scenario's model and batch ask for"
        yield _against(f"{format_quantity(ran, 'FLOP', 3)} of matrix products a chip and step", flops_text)
    if host:  # the catalog's peak is of another CPU
        return
    peak = built.system.chip.peak_flops_per_s(built.plan.precision.compute).value
    least = flops * BACKWARD_OF_INPUTS / (chips * peak)
    steps = max(1, len(found.breakdown.steps))
    took = found.breakdown.total.span_ns / steps / DECIMAL["G"]
    if took < least:
        least_text = f"at least {format_quantity(least, 's', 3)}, which the scenario's products take at the chips' peak"
        yield _against(f"steps of {format_quantity(took, 's', 3)}", least_text)


def _against(given: str, expected: str) -> Problem:
    return Problem(path="trace", given=given, expected=expected, todo=FORCE)


def doubts(built: Scenario[Train], found: trace.Analysis) -> Iterator[str]:
    """What makes a comparison of the two unequal, in words; most decisive first."""
    about, chips = found.timeline.about, len(found.breakdown.chips)
    ran_on = found.ran_on
    if ran_on is not None and ran_on.id != built.system.chip.id:
        yield f"the trace ran on {ran_on.id}, the scenario is about {built.system.chip.id}"
    world = about.world_size or chips
    if world != built.system.chips:
        yield f"the trace says {world} ranks, the scenario has {built.system.chips} chips"
    yield from _other_sizes(built, found)
    if not found.timeline.predicted:
        spans = sum(part.spans for part in found.breakdown.names if part.name.startswith(GENERATED))
        switch = {"torch-eager": "torch-compile", "torch-compile": "torch-eager"}.get(built.plan.engine, "")
        if switch and bool(spans) == (built.plan.engine == "torch-eager"):
            what = f"{spans:,} kernels" if spans else "no kernel"
            said = f"{what} of torch.compile, the scenario says {built.plan.engine}"
            yield f"the trace has {said}: --set plan.engine={switch}"
    if not found.breakdown.steps:
        yield "the trace marks no steps: all of it counts as one"


def _other_sizes(built: Scenario[Train], found: trace.Analysis) -> Iterator[str]:
    """Products of a step, by recorded shapes, against 3 x forward of the scenario; one chip, nothing recomputed."""
    if built.system.chips != 1 or built.plan.recompute.kind != "none":
        return
    ran, step_flops = _products(found), _step_flops(built)
    if ran is not None and abs(ran / step_flops - 1) > APART:
        statement = f"{format_quantity(ran, 'FLOP', 3)} of matrix products a step, the scenario asks for"
        yield f"the trace has {statement} {format_quantity(step_flops, 'FLOP', 3)}: another model or batch"


def _step_flops(built: Scenario[Train]) -> float:
    """Matrix products of a step over all chips: 3 x forward, without the scores of attention."""
    token_flops = training_flops_per_token(built.model, built.workload.seq)
    return (token_flops.total - token_flops.scores) * built.workload.tokens


def _products(found: trace.Analysis) -> float | None:
    """Flops of matrix products of a chip in a step, by recorded shapes; None where too few are recorded."""
    rates = [rate for rate in found.rates if rate.class_ == "matmul"]
    time = sum(class_time.total_ns for class_time in found.breakdown.classes if class_time.id == "matmul")
    if not time or sum(rate.total_ns for rate in rates) < KNOWN * time:
        return None
    steps = max(1, len(found.breakdown.steps)) * max(1, len(found.breakdown.chips))
    return sum(rate.flops * rate.calls for rate in rates) / steps


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
    parts: tuple[GapPart, ...]

    JSON = "class predicted_us measured_us gap_us"

    @property
    def predicted_ns(self) -> float:
        return sum(part.predicted_ns for part in self.parts)

    @property
    def measured_ns(self) -> float:
        return sum(part.measured_ns for part in self.parts)

    @property
    def gap_ns(self) -> float:
        return self.measured_ns - self.predicted_ns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Explanation:
    """Why a trace took longer or shorter than its scenario predicts. The gaps of `parts` sum to the gap."""

    scenario: Scenario
    prediction: Prediction
    analysis: trace.Analysis
    diff: trace.Diff
    parts: tuple[GapPart, ...]
    """Largest first, whichever sign."""
    doubts: tuple[str, ...]
    """What makes the comparison unequal: another chip, another number of chips, other software, other sizes."""
    table: JsonMapping | None = None
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
        parts_of: dict[str, list[GapPart]] = {}
        for part in self.parts:
            parts_of.setdefault(part.class_, []).append(part)
        rows = [ClassGap(class_=class_, parts=tuple(parts)) for class_, parts in parts_of.items()]
        return tuple(sorted(rows, key=lambda row: -abs(row.gap_ns)))


def explain(
    scenario: Scenario | Path | str,
    *traces: Path | str | trace.Timeline,
    policy: str = "all",
    classes: Path | None = None,
    settings: Sequence[str] = (),
    calibration: Calibration | Path | None = None,
    profile: Profile | None = None,
    force: bool = False,
) -> Explanation:
    """Predict a scenario, compare it with a trace of it, and say what accounts for the gap.

    ``calibration``, or the file `ridgeline fit --with` wrote, takes the place of the shipped parameters. ``profile`` is
    what was measured of a CPU: the roofs of its trace. A trace that cannot be of the scenario is refused with the
    reasons; with ``force`` they are doubts.
    """
    built = scenario if isinstance(scenario, Scenario) else read_scenario(scenario, settings)
    used = Calibration.read(calibration) if isinstance(calibration, Path) else calibration
    prediction = predict(built, used)
    if isinstance(prediction, Impossible):
        raise InputError(prediction.reasons)
    chip = built.system.chip
    is_host = chip.vendor == "host"
    roofs = measured_host(chip, profile) if is_host and profile is not None else chip
    analysis = trace.analyze(*traces, policy=policy, chip=roofs, classes=classes)
    against = tuple(contradictions(prediction.scenario, analysis))
    if against and not force:
        raise InputError(against)
    drawn = predicted_timeline(built, analysis.rules, used)
    labels = (built.name or "predicted", ", ".join(analysis.timeline.about.sources[:2]) or "measured")
    difference = trace.diff_timelines(drawn, analysis.timeline, analysis.rules, policy, labels)
    sides = [_by_part(line, analysis.rules, policy) for line in (drawn, analysis.timeline)]
    unmeasured_host = is_host and profile is None
    rates = {} if unmeasured_host else _rates(built, analysis, sides, used or default_calibration())
    missing = {class_: missing_roof(class_, analysis, unmeasured_host) for side in sides for _, class_ in side}
    return Explanation(
        scenario=built, prediction=prediction, analysis=analysis, diff=difference,
        parts=tuple(_parts(sides, difference, rates, missing)), doubts=tuple(doubts(prediction.scenario, analysis)),
        table=None if isinstance(scenario, Scenario) else scenario_table(Path(scenario), settings),
    )  # fmt: skip


def _rates(
    built: Scenario, found: trace.Analysis, sides: Sequence[Mapping[tuple[str, str], float]], calibration: Calibration
) -> dict[str, trace.ClassRate]:
    """How near its roof each class ran: of ops with shapes, and of the optimizer, whose bytes the scenario counts."""
    times_ns: dict[str, float] = {}
    for (_, class_), own_ns in sides[1].items():
        times_ns[class_] = times_ns.get(class_, 0.0) + own_ns
    rates = reached_by_class(found, times_ns)
    if built.plan.offload.optimizer:
        return rates
    share = calibration.value("memory", built.system.chip, built.engine)
    before_ns, after_ns = (side.get(("optimizer", "optimizer"), 0.0) for side in sides)
    return rates | own_bytes(before_ns, after_ns, share)


def _by_part(line: trace.Timeline, rules: trace.Rules, policy: str) -> dict[tuple[str, str], float]:
    """Own nanoseconds of a step by phase and class.

    Gaps are classed by their cause, of which those between kernels are what a model calls per-kernel cost.
    """
    side: dict[tuple[str, str], float] = {}
    for entry in trace.exclusive_time(line, rules, policy).entries(by_name=False):
        idle = "per-kernel" if entry.name == "between kernels" else f"idle, {entry.name}"
        key = entry.phase, idle if entry.class_ == "idle" else entry.class_
        side[key] = side.get(key, 0.0) + entry.own_ns
    return side


def _parts(
    sides: list[dict[tuple[str, str], float]], compared: trace.Diff, rates: Mapping[str, trace.ClassRate],
    missing: Mapping[str, MissingRoof],
) -> list[GapPart]:  # fmt: skip
    total_ns = compared.delta_ns or 1.0
    parts = []
    for phase, class_ in dict.fromkeys([*sides[0], *sides[1]]):
        before, after = (side.get((phase, class_), 0.0) for side in sides)
        rate = rates.get(class_)
        change, why = verdict(class_, (before, after), rate, compared.after.step_ns, missing[class_])
        parts.append(
            GapPart(
                phase=phase, class_=class_, predicted_ns=before, measured_ns=after, share=(after - before) / total_ns,
                efficiency=rate.efficiency if rate else None, bound=rate.bound if rate else None, change=change,
                why=why, action=action(change, class_.removeprefix("idle, "), missing[class_]),
            )
        )  # fmt: skip
    return sorted(parts, key=lambda part: -abs(part.gap_ns))


def scenario_table(path: Path, settings: Iterable[str] = ()) -> JsonObject:
    """The table of a scenario file with settings applied and the files it names written out.

    >>> scenario_table(Path("examples/llama3.2-1b-1xh200.toml"), ["plan.engine=torch-compile"])["plan"]["engine"]
    'torch-compile'
    """
    table = self_contained(read_table(path).data, path.parent)
    apply_settings(table, settings)
    return table
