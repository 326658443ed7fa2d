"""The sheets of `ridgeline validate --json` and `ridgeline fit --with --json`; fractions and seconds."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict


class SkippedSheet(TypedDict):
    """A row that could not be predicted."""

    id: str
    reason: str


class GroupSheet(TypedDict):
    """Rows that share something, and their mean |residual|."""

    n: int
    mape: float | None


class SetSheet(TypedDict):
    """How far off some rows are together."""

    n: int
    mape: float | None
    median_ape: float | None
    p90_ape: float | None
    bias: float | None
    coverage90: float | None


class UnknownEngineSheet(TypedDict):
    """An engine that a table names and Ridgeline does not know, and the one that was taken in its place."""

    given: str
    taken: str
    rows: int


class PeakErrorsSheet(TypedDict):
    """How far off peaks of memory are.

    short   the largest shortfall: how much more a run held than was predicted
    """

    n: int
    mape: float
    bias: float
    short: float


class PeakSheet(TypedDict):
    """Bytes of the fullest chip."""

    measured: float
    predicted: float


class CaseSheet(TypedDict):
    """A measured run beside its prediction.

    measured, predicted   seconds, or the unit of the column that `metric` names
    low, high         the 90 % interval
    cross_validated   whether its own group was left out of the fit
    metric            what was measured, where a table has several: numbers are then in its unit, else in seconds
    """

    id: str
    measured: float
    predicted: float
    residual: float
    low: float
    high: float
    cross_validated: bool
    peak_memory_bytes: PeakSheet | None
    metric: NotRequired[str]


class ValidationSheet(TypedDict):
    """Predictions against measured runs.

    mape, median_ape, p90_ape   of |residual|: mean, median, nine of ten within
    coverage90                  share of runs inside their 90 % interval
    groups                      by what they share, then by its value
    sets                        all rows, and those sets that are some of them: the headline beside what it leaves out
    unknown_engines             what `x_engine` names and no engine is
    """

    kind: str
    rows: int
    predicted: int
    skipped: list[SkippedSheet]
    mape: float | None
    median_ape: float | None
    p90_ape: float | None
    bias: float | None
    coverage90: float | None
    memory: PeakErrorsSheet | None
    sets: dict[str, SetSheet]
    unknown_engines: list[UnknownEngineSheet]
    groups: dict[str, dict[str, GroupSheet]]
    cases: list[CaseSheet]


class FittedCaseSheet(TypedDict):
    """A run of the user's under three sets of parameters: shipped, fitted without it, fitted with it."""

    id: str
    measured_s: float
    before_s: float
    held_out_s: float
    after_s: float
    residual: dict[str, float]


class CandidateSheet(TypedDict):
    """Something that could be measured, and what it would tell about a scenario.

    what           `run` or `kernel`
    pins           parameters it says most about
    interval       of the scenario's step after it: low and high, seconds
    width          of that interval over the present one, in logarithms
    chip_seconds   it takes, roughly
    """

    what: Literal["run", "kernel"]
    name: str
    how: str
    pins: list[str]
    interval: list[float]
    width: float
    chip_seconds: float


class NextSheet(TypedDict):
    """`validate --next SCENARIO`: what to measure next, the narrowest interval first.

    interval   of the scenario's step now: low and high, seconds
    """

    kind: Literal["next measurement"]
    scenario: str
    step_time_s: float
    interval: list[float]
    candidates: list[CandidateSheet]


class FitWithSheet(TypedDict):
    """Parameters anchored on the user's own runs (`fit --with`).

    mape      mean |residual| with the prior, held out, and after
    offsets   what `--calibration` reads
    """

    kind: Literal["own fit"]
    source: str
    rows: int
    mape: dict[str, float]
    cases: list[FittedCaseSheet]
    skipped: list[SkippedSheet]
    offsets: dict[str, float]
