"""Turn rows beside their predictions into how far off they are together, and into the figures Ridgeline is judged by.

Everything here follows from the shipped files without a fit, so that a table in the documentation can be checked.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from ridgeline.calibrate.folds import FittedParameters, bundled_rows, takes_part
from ridgeline.calibrate.truth.rows import BUNDLED, WORDS, Kind, Row, Skipped, in_headline
from ridgeline.core.arrays import Array
from ridgeline.core.documents import JsonObject
from ridgeline.core.units import BINARY, DECIMAL
from ridgeline.cost import PARAMETERS, Calibration, Owners
from ridgeline.plan.engine import ENGINES, default_engine
from ridgeline.plan.scenario import Scenario
from ridgeline.sim import Prediction, predict

COLUMN = "x_peak_bytes"  # bytes the framework's allocator held at most, on the fullest chip
NOTED = re.compile(r"peak allocated (\d+(?:\.\d+)?) GiB")  # the same, as notes of own runs have it


LARGE = DECIMAL["M"]  # bytes above which a payload counts as large
SIZES = (
    (64 * BINARY["Ki"], "to 64 KiB"),
    (4 * BINARY["Mi"], "to 4 MiB"),
    (256 * BINARY["Mi"], "to 256 MiB"),
    (float("inf"), "larger"),
)


def is_large(size: float) -> bool:
    """Whether bytes decide, and not latency: above 1 MB."""
    return size > LARGE


def size_class(size: float) -> str:
    """Which of a few classes a payload falls in.

    >>> size_class(1024), size_class(1e9)
    ('to 64 KiB', 'larger')
    """
    return next(name for limit, name in SIZES if size <= limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """What the framework's allocator holds on the fullest chip, in bytes: without what driver and libraries take."""

    measured: float
    predicted: float

    @property
    def residual(self) -> float:
        """predicted / measured - 1."""
        return self.predicted / self.measured - 1


def peak_of(row: Row, scenario: Scenario) -> Peak | None:
    """Both peaks of a row; None where it states none that can be read, or the scenario cannot run."""
    measured_bytes = _stated_bytes(row)
    if not math.isfinite(measured_bytes) or measured_bytes <= 0:
        return None
    prediction = predict(scenario)
    if not isinstance(prediction, Prediction):
        return None
    return Peak(measured=measured_bytes, predicted=float(prediction.memory.allocated_bytes))


def _stated_bytes(row: Row) -> float:
    """Bytes that a row says were allocated at most, in its column or its notes; nan where it says nothing."""
    try:
        return float(row[COLUMN])
    except ValueError:
        match = NOTED.search(row["notes"])
        return float(match[1]) * BINARY["Gi"] if match else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakErrors:
    """How far off some peaks are together, as fractions.

    short  the largest shortfall: how much more a run held than was predicted
    """

    n: int
    mape: float
    bias: float
    short: float


def peak_errors(peaks: Sequence[Peak]) -> PeakErrors | None:
    """Mean |residual|, mean residual and the largest shortfall; None without any peak.

    >>> peak_errors([Peak(measured=4.0, predicted=3.0), Peak(measured=4.0, predicted=7.0)])
    PeakErrors(n=2, mape=0.5, bias=0.25, short=0.25)
    """
    if not peaks:
        return None
    residuals = np.array([peak.residual for peak in peaks])
    return PeakErrors(
        n=len(peaks),
        mape=float(np.abs(residuals).mean()),
        bias=float(residuals.mean()),
        short=float(max(0.0, -residuals.min())),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseCheck:
    """One phase of a step, in seconds."""

    measured: float
    predicted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two rows that differ in one decision, and the ratio of their times.

    In placement: the one that overlaps over the one that does not. In whether a compiler joined a region's ops: the
    compiled one over the eager one.
    """

    pair: str
    sync: str
    other: str
    measured_ratio: float
    predicted_ratio: float

    JSON = "* agrees"

    @property
    def agrees(self) -> bool:
        """Whether both say that the same one is faster."""
        return (self.measured_ratio < 1) == (self.predicted_ratio < 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationCase:
    """One row beside its prediction, in seconds, or in the unit of `metric` where it names one.

    low_s, high_s    where nine of ten measurements are expected
    cross_validated  a bundled row, predicted with parameters whose fit never saw its group
    parts            what the prediction consists of
    peak             memory, where the row states it
    known_as         what calibrations know its chip and engine by
    size             bytes of a collective
    metric           the column that was measured, where a row has several; the figures are then in its unit
    phases           of a step of post-training, by column
    """

    row: Row
    chip: str
    engine: str
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float
    cross_validated: bool
    parts: Mapping[str, float]
    assumptions: tuple[str, ...] = ()
    peak: Peak | None = None
    known_as: Owners | None = None
    size: float | None = None
    metric: str = ""
    phases: Mapping[str, PhaseCheck] | None = None

    JSON = """
        id=row.id measured=measured_s predicted=predicted_s residual low=low_s high=high_s cross_validated
        peak_memory_bytes=peak metric? phases?
    """

    @classmethod
    def of(
        cls, row: Row, measured: float, predicted: float, span: tuple[float, float], *, part: str = "", **more: Any
    ) -> ValidationCase:
        """A case whose interval is a span around a prediction of 1; of one part where that is named."""
        if part:
            more["parts"] = MappingProxyType({part: predicted})
        low, high = (predicted * end for end in span)
        return cls(row=row, measured_s=measured, predicted_s=predicted, low_s=low, high_s=high, **more)

    @property
    def residual(self) -> float:
        """predicted / measured - 1."""
        return self.predicted_s / self.measured_s - 1

    @property
    def covered(self) -> bool:
        """Whether the measurement lies in the interval."""
        return self.low_s <= self.measured_s <= self.high_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """How far off some cases are together, as fractions; None where there is no case."""

    n: int
    mape: float | None = None
    median_ape: float | None = None
    p90_ape: float | None = None
    bias: float | None = None
    coverage90: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupError:
    """Cases of one group, and their mean absolute residual."""

    n: int
    mape: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownEngine:
    """What `x_engine` names and no engine is, the engine that took its place, and in how many rows."""

    given: str
    taken: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Every case of a table, and the rows nothing could be predicted for."""

    kind: Kind
    cases: tuple[ValidationCase, ...]
    skipped: tuple[Skipped, ...]
    pairs: tuple[Pair, ...] = ()

    JSON = """
        kind rows predicted skipped mape=errors.mape median_ape=errors.median_ape p90_ape=errors.p90_ape
        bias=errors.bias coverage90=errors.coverage90 memory unknown_engines groups cases pairs?
    """

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return len(self.cases) + len(self.skipped)

    @property
    def predicted(self) -> int:
        """Rows, or metrics of rows, with a prediction."""
        return len(self.cases)

    @property
    def unknown_engines(self) -> tuple[UnknownEngine, ...]:
        """Engines of rows that Ridgeline does not have."""
        counts = Counter((case.row["x_engine"], case.engine) for case in self.cases if case.row["x_engine"])
        return tuple(
            UnknownEngine(given=given_text, taken=engine_id, rows=count)
            for (given_text, engine_id), count in counts.most_common()
            if ENGINES.resolve(given_text) is None
        )

    @property
    def groups(self) -> dict[str, dict[str, GroupError]]:
        """Errors by grouping and group."""
        return {
            grouping: {name: GroupError(n=errors.n, mape=errors.mape) for name, errors in self.by(grouping).items()}
            for grouping in self.groupings
        }

    @property
    def errors(self) -> Errors:
        """All cases together."""
        return errors_of(self.cases)

    @property
    def memory(self) -> PeakErrors | None:
        """The peaks of all cases that state one."""
        return peak_errors([case.peak for case in self.cases if case.peak])

    @property
    def groupings(self) -> tuple[str, ...]:
        """What cases of this kind of table are told apart by."""
        return GROUPINGS_OF_KIND[self.kind]

    def cases_by(self, grouping: str) -> dict[str, list[ValidationCase]]:
        """Cases by one of the table's groupings (`accelerator`, `source`, ...), most cases first."""
        groups: dict[str, list[ValidationCase]] = {}
        for case in self.cases:
            groups.setdefault(GROUPINGS[grouping](case), []).append(case)
        return dict(sorted(groups.items(), key=lambda entry: (-len(entry[1]), entry[0])))

    def by(self, grouping: str) -> dict[str, Errors]:
        """Errors by one of the table's groupings, most cases first."""
        return {name: errors_of(cases) for name, cases in self.cases_by(grouping).items()}


def _cell(name: str, case: ValidationCase) -> str:
    return case.row[name]


GROUPINGS: Mapping[str, Callable[[ValidationCase], str]] = MappingProxyType(
    {
        "accelerator": lambda case: case.chip,
        "source": lambda case: case.row.source,
        **dict.fromkeys(("framework", "library", "engine"), lambda case: case.engine),
        "arch": lambda case: case.row["arch"] or "unstated",
        "collective": lambda case: case.row["collective"],
        "size": lambda case: size_class(case.size or 0.0),
        "metric": lambda case: case.metric,
        "flag": lambda case: case.row["x_flag"] or "none",
        "model": lambda case: case.row["x_model"],
        "family": lambda case: case.row["x_family"],
        **dict.fromkeys(("kind", "op"), lambda case: next(iter(case.parts))),
        **{name: partial(_cell, name) for name in ("variant", "direction")},
        "priced by": lambda case: case.assumptions[0],
    }
)
GROUPINGS_OF_KIND: Mapping[Kind, tuple[str, ...]] = MappingProxyType(
    {
        "training": ("accelerator", "source", "framework", "arch"),
        "collectives": ("accelerator", "source", "collective", "library", "size"),
        "serving": ("metric", "flag", "model", "accelerator"),
        "rl": ("family", "metric", "model", "accelerator"),
        "inference": ("kind", "metric", "engine", "accelerator", "source"),
        "kernels": ("accelerator", "source", "library", "op", "priced by"),
        "fusion": ("op", "variant", "direction", "accelerator"),
    }
)


def quantile_span(logs: Sequence[float] | Array) -> tuple[float, float]:
    """Where nine of ten measurements lie around a prediction of 1, by log(measured / predicted) of others."""
    low, high = np.exp(np.quantile(logs, [0.05, 0.95]))
    return float(low), float(high)


def errors_of(cases: Sequence[ValidationCase]) -> Errors:
    """Mean, median and 90 % quantile of |residual|, mean residual, and the share of measurements in the interval."""
    if not cases:
        return Errors(n=0)
    residuals = np.array([case.residual for case in cases])
    off = np.abs(residuals)
    return Errors(
        n=len(cases),
        mape=float(off.mean()),
        median_ape=float(np.median(off)),
        p90_ape=float(np.quantile(off, 0.9)),
        bias=float(residuals.mean()),
        coverage90=sum(case.covered for case in cases) / len(cases),
    )


FEW = 8  # runs of a chip or an engine below which its own parameters are hardly known
SUSPECTS: Mapping[str, tuple[float, str]] = WORDS["suspects"]


def runs_known(parameters: FittedParameters) -> Counter[str]:
    """How many fitted runs each chip and each engine has."""
    return Counter(name for _, item in parameters.residuals for name in (item.chip, item.engine))


def likely(case: ValidationCase, known: Counter[str], most: int = 2) -> str:
    """A guess why a case is off: the first few reasons that apply, most telling first. It names where to look first."""
    return "; ".join(islice(_reasons(case, known), most)) or "nothing unusual about it: mostly matrix products"


def _reasons(case: ValidationCase, known: Counter[str]) -> Iterator[str]:
    if case.row["x_flag"]:
        yield "flagged in the table"
    if case.row["x_launch_blocking"] in ("1", "1.0", "true"):
        yield "every launch was waited for, which is not modelled"
    for note in case.assumptions:
        if re.match(r"recompute\b", note):
            yield "recompute was assumed"
        elif note.startswith("lora"):
            yield "adapter sizes were assumed"
    if case.row["arch"] == "hybrid":
        yield "hybrid model: few such runs in the fit"
    for name in (case.chip, case.engine):
        if known[name] < FEW:
            yield f"{name} has {'no' if not known[name] else 'few'} measured runs in the fit"
    total = sum(case.parts.values()) or 1.0
    shares = {name: case.parts.get(name, 0.0) / total for name in SUSPECTS}
    over = [name for name, share in shares.items() if share >= SUSPECTS[name][0]]
    for name in sorted(over, key=lambda name: -shares[name] / SUSPECTS[name][0]):
        yield f"{SUSPECTS[name][1]} {shares[name]:.0%} of the prediction"
    if case.row["x_trust"] == "C":
        yield "read from a chart"
    if case.row["x_trust"] == "B-":
        yield "the plan was joined from a script"


ENOUGH = 8  # rows an accelerator needs before its mean says something
Sheet = JsonObject
Measure = Literal["mape", "median_ape", "coverage90"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """A set of rows and the range its figure should lie in."""

    name: str
    measure: Measure
    low: float
    high: float
    holds: Callable[[ValidationCase], bool]


def _in_headline(case: ValidationCase) -> bool:
    return in_headline(case.row)


def _cites(name: str) -> Callable[[ValidationCase], bool]:
    return lambda case: case.row.source == "misc" and case.row["source"].startswith(name)


AIMS: tuple[Aim, ...] = (
    Aim(name="headline", measure="mape", low=0, high=0.06, holds=_in_headline),
    Aim(name="headline", measure="median_ape", low=0, high=0.038, holds=_in_headline),
    Aim(name="headline", measure="coverage90", low=0.85, high=0.95, holds=_in_headline),
    Aim(name="Megatron SC'21", measure="mape", low=0, high=0.06, holds=_cites("Narayanan")),
    Aim(name="Korthikanti 2022", measure="mape", low=0, high=0.06, holds=_cites("Korthikanti")),
    Aim(name="single node A100", measure="mape", low=0, high=0.07, holds=lambda case: case.row.table == BUNDLED[1]),
    Aim(name="own H200", measure="mape", low=0, high=0.025, holds=lambda case: case.row.source == "h200"),
)


def _arch(*names: str) -> Callable[[ValidationCase], bool]:
    return lambda case: case.row["arch"] in names


@cache
def _fitted_sources() -> frozenset[str]:
    return frozenset(row.source for row in bundled_rows().values() if takes_part(row))


# what a headline does not tell: every set over all rows that are predicted, headline or not
BESIDE: Mapping[str, Callable[[ValidationCase], bool]] = MappingProxyType(
    {
        "headline": _in_headline,
        "dense": _arch("dense"),
        "mixture of experts": _arch("moe", "mla_moe"),
        "hybrid": _arch("hybrid"),
        "default engine": lambda case: case.engine == default_engine(None),
        "unseen sources": lambda case: not case.metric and case.row.source not in _fitted_sources(),
        "unflagged": lambda case: bool(case.metric) and not case.row["x_flag"],
    }
)
# of collectives: rows predicted without their system, and those that only their own system tells about, by size
COLLECTIVES_BESIDE: Mapping[str, Callable[[ValidationCase], bool]] = MappingProxyType(
    {
        "left out, above 1 MB": lambda case: case.cross_validated and is_large(case.size or 0.0),
        "left out, to 1 MB": lambda case: case.cross_validated and not is_large(case.size or 0.0),
        "own system, above 1 MB": lambda case: not case.cross_validated and is_large(case.size or 0.0),
        "own system, to 1 MB": lambda case: not case.cross_validated and not is_large(case.size or 0.0),
        "experts": lambda case: case.engine.startswith("deepep"),
    }
)
EACH_CHIP = 0.14  # mean of every accelerator with enough headline rows
Left = Literal["laboratory", "engine", "family"]
# mean where all of the row's laboratory, engine or family of chips was left out, and how many intervals should hold
LEFT_OUT: Mapping[Left, float] = MappingProxyType({"laboratory": 0.12, "engine": 0.13, "family": 0.12})
COVERED = (0.87, 0.93)
ANCHORED = 0.09  # mean on the rest of a source that was left out, after one run of the same software and machine


def errors_by_set(validation: Validation) -> dict[str, Errors]:
    """All rows, and each set that is some of them: the headline beside what it leaves out."""
    cases = validation.cases
    among = COLLECTIVES_BESIDE if validation.kind == "collectives" else BESIDE
    sets = {name: [case for case in cases if holds(case)] for name, holds in among.items()}
    some = {name: errors_of(set_cases) for name, set_cases in sets.items() if 0 < len(set_cases) < len(cases)}
    return {"all": errors_of(cases), **some}


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport:
    """Predictions of a table's rows against what was measured.

    sets   errors of all rows, and of each set that is some of them
    """

    validation: Validation

    JSON = "*validation sets"

    @property
    def sets(self) -> dict[str, Errors]:
        return errors_by_set(self.validation)


def figures(validation: Validation) -> list[Sheet]:
    """One line per aim: set, rows, measure, target, reached, met."""
    lines = [_line(aim, [case for case in validation.cases if aim.holds(case)]) for aim in AIMS]
    headline_cases = [case for case in validation.cases if _in_headline(case)]
    counts = Counter(case.chip for case in headline_cases)
    for chip, count in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])):
        if count >= ENOUGH:
            aim = Aim(name=chip, measure="mape", low=0, high=EACH_CHIP, holds=_in_headline)
            lines.append(_line(aim, [case for case in headline_cases if case.chip == chip]))
    return lines


def _line(aim: Aim, cases: Sequence[ValidationCase]) -> Sheet:
    value = getattr(errors_of(cases), aim.measure)
    return line(aim.name, len(cases), aim.measure, (aim.low, aim.high), value)


def _beside_line(name: str, errors: Errors) -> Sheet:
    measures = ("mape", "median_ape", "p90_ape", "bias", "coverage90")
    values = {measure: getattr(errors, measure) for measure in measures}
    return {"set": name, "rows": errors.n, **{key: value and round(value, 4) for key, value in values.items()}}


def line(name: str, rows: int, measure: Measure, target: tuple[float, float], value: float | None) -> Sheet:
    """A figure beside its target.

    >>> line("mine", 3, "mape", (0, 0.07), 0.052)["met"]
    True
    """
    met = value is not None and target[0] <= value <= target[1]
    reached = None if value is None else round(value, 4)
    return {"set": name, "rows": rows, "measure": measure, "target": list(target), "reached": reached, "met": met}


def parameter_sheet(calibration: Calibration, known: Sequence[Owners]) -> list[Sheet]:
    """Every fitted parameter: common value, and the range over the chips and engines that took part."""
    lines = []
    for name, item in PARAMETERS.items():
        values = [calibration.owner_value(name, owner) for owner in dict.fromkeys(known)]
        lines.append(
            {
                "name": name,
                "unit": item.unit,
                "group": item.group,
                "per": ", ".join(item.per),
                "value": _short(item.value(calibration.offsets.get(name, 0.0))),
                "range": [_short(min(values)), _short(max(values))] if item.per and values else [],
                "plausible": [item.low, item.high],
                "meaning": item.meaning,
            }
        )
    return lines


def _short(value: float) -> float:
    """Three figures: more would claim what the rows do not know."""
    return float(f"{value:.3g}")


def accuracy_of(validation: Validation, parameters: FittedParameters) -> Sheet:
    """The part of `docs/accuracy.json` that follows from the shipped files."""
    cases = validation.cases
    fitted_cases = [case for case in cases if takes_part(case.row)]
    fitted = Validation(kind="training", cases=tuple(fitted_cases), skipped=())
    return {
        "source": parameters.full.source,
        "rows": len(cases) + len(validation.skipped),
        "predicted": len(cases),
        "fitted": len(fitted_cases),
        "sets": figures(validation),
        "beside": [_beside_line(name, errors) for name, errors in errors_by_set(validation).items()],
        "groups": {
            grouping: {
                name: {"n": item.n, "mape": round(item.mape or 0.0, 4)} for name, item in fitted.by(grouping).items()
            }
            for grouping in fitted.groupings
        },
        "parameters": parameter_sheet(parameters.full, [case.known_as for case in fitted_cases if case.known_as]),
    }


def differences(old: object, new: object, path: str = "") -> list[str]:
    """Where two sheets differ, by path; numbers may differ in the last figure that is written.

    >>> differences({"a": [1.0, 2]}, {"a": [1.00001, 3]})
    ['a[1]: 2 is now 3']
    """
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        return [line for key in keys for line in differences(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [line for index, (a, b) in pairs for line in differences(a, b, f"{path}[{index}]")]
    if isinstance(old, (int, float)) and isinstance(new, (int, float)) and abs(old - new) <= max(2e-4, 5e-3 * abs(old)):
        return []
    return [] if old == new else [f"{path}: {old} is now {new}"]
