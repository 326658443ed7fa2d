"""Turn residuals of cross-validated runs into the range a prediction is believed to lie in.

    measured / predicted = 1 / (1 + residual)

Two levels. One more run of a source that took part in the fit is off as other runs like it are (`interval`): the spread
within a source. A stranger's run is off by the spread between sources too (`new_source_interval`): as much as sources
were when the fit saw none of their rows; more where engine, family of chips or chip is none that was measured. The 5 %
and 95 % quantiles, taken further out the fewer runs there are, bound nine of ten measurements.

A scenario is a new configuration, not one more run of an old one, and runs of one configuration are off alike. So every
configuration has one vote, shared among its runs, and configurations are what is counted where few are few (two-layer
conformal prediction: Dunn, Wasserman and Ramdas, arXiv:1809.07441).
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from ridgeline.core.documents import JsonObject
from ridgeline.core.records import dataclass
from ridgeline.plan.unread import UnreadOptions, unread_distance

# written by `ridgeline fit` beside the calibration: the residuals, and what a prediction needs of them
SHIPPED_RESIDUALS = Path(__file__).parents[1] / "cost" / "residuals.json"
SHIPPED_SUMMARY = SHIPPED_RESIDUALS.with_name("residual_summary.json")
ENOUGH = 8  # configurations of a kind before it speaks for itself
COVERAGE = 0.9
TAIL = (1 - COVERAGE) / 2  # of measurements, on either side
ROUNDING = 1e-9  # of votes
UNKNOWN = 0.35  # either way, where no residuals are at hand
STRANGER_CHIP = 1.2  # wider, in logarithms, for a chip without a run in a family that has some
# how much further, in logarithms, a step may be off that is far from every run: assumed, as too few runs are
NEW_PRECISION = 0.12  # a number format that nobody measured on this family of chips
A_DOUBLING = 0.10  # of the sequence beyond the longest that was measured, or below the shortest
SOURCES = 5  # that say how far strangers are off before they are believed
UNSEEN = (
    1.4  # a source never seen is predicted this much worse than a new run of a known one (left-out sources, 9.3 / 6.6)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """How far off one held-out run was: predicted / measured - 1, what it ran on, and which configuration it measured.

    A run without a group is a configuration of its own.

    source, family                   the laboratory that measured it, and the family of its chip
    precision, seq                   number format of its products, and tokens of a sequence; empty and 0 where unknown
    without_source, _engine, _family   the residual where the fit saw nothing of its source, engine, family of chips
    """

    chip: str
    engine: str
    residual: float
    group: str = ""
    source: str = ""
    family: str = ""
    without_source: float | None = None
    without_engine: float | None = None
    without_family: float | None = None
    precision: str = ""
    seq: int = 0

    @property
    def log_ratio(self) -> float:
        """log(measured / predicted)."""
        return -math.log1p(self.residual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Seconds between which the measured step is expected with probability `coverage`, and the runs that say so."""

    low: float
    high: float
    coverage: float
    runs: int
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What residuals have seen: chips, engines, number formats by family of chips, shortest and longest sequence."""

    chips: tuple[str, ...]
    engines: tuple[str, ...]
    formats: Mapping[str, tuple[str, ...]]
    shortest: int
    longest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Outer quantiles of log(measured / predicted) over runs predicted without their source, engine or family."""

    low: float
    high: float
    runs: int
    sources: int


def interval(step_s: float, chip: str, engine: str, residuals: Sequence[Residual]) -> Interval:
    """The range of a step time from the runs most like it.

    Same chip and engine if there are enough of them, else same chip or same engine, else all; then the range is wider
    by as much as errors are on sources that no fit has seen.

    >>> runs = [Residual(chip="a", engine="x", residual=r / 100) for r in range(-10, 11)]
    >>> found = interval(1.0, "a", "x", runs)
    >>> round(found.low, 3), round(found.high, 3), found.basis
    (0.91, 1.11, '21 runs on a under x')
    """
    return _scaled(_factors(chip, engine, residuals), step_s)


def _scaled(factors: Interval, step_s: float) -> Interval:
    """The range around a step time, from that around one second."""
    return replace(factors, low=step_s * factors.low, high=step_s * factors.high)


def new_source_interval(
    step_s: float, chip: str, engine: str, residuals: Sequence[Residual], *, family: str = "", precision: str = "",
    seq: int = 0,
) -> Interval:  # fmt: skip
    """The range of a step time of somebody whose runs took no part in the fit.

    By runs predicted without their source; without their engine where this engine has none, without their family of
    chips where this one has none; the wider of both where neither has, since most runs without their family lost their
    engine with it. As `interval` where no such runs exist.
    Wider where nobody measured the number format on this family, or sequences of about this length.

    >>> ours = {"chip": "a", "engine": "x", "residual": 0.0}
    >>> runs = [Residual(**ours, source=str(r % 9), without_source=r / 100) for r in range(-30, 31)]
    >>> found = new_source_interval(1.0, "a", "x", runs)
    >>> round(found.low, 2), round(found.high, 2), found.basis
    (0.78, 1.39, '61 runs of 9 laboratories, each predicted without its laboratory')
    """
    measured = measured_by(residuals)
    factors = _stranger(chip, engine, family, measured, lambda part: spread_without(part, residuals))
    near = _scaled(factors or _factors(chip, engine, residuals), step_s)
    return widen_interval(near, step_s, distance_from(measured, precision=precision, seq=seq, family=family))


class Distance(NamedTuple):
    """How much further than alike runs a step may be off, in logarithms, and what it is far from."""

    log_width: float
    told: str


def distance_from(measured: Measured, *, precision: str, seq: int, family: str = "") -> Distance:
    """How far a number format and a sequence are from all runs: of the family of chips, of anything for lengths.

        width = hypot(new format, doublings beyond what was measured)

    >>> runs = [Residual(chip="a", engine="x", residual=0.0, family="f", precision="bf16", seq=4096)]
    >>> distance_from(measured_by(runs), precision="bf16", seq=4096, family="f").log_width
    0.0
    >>> distance_from(measured_by(runs), precision="fp8", seq=16384, family="f").told
    'fp8, which no run of f has; sequences 2 doublings from any run'
    """
    formats = measured.formats.get(family, ())
    strange = bool(formats) and bool(precision) and precision not in formats
    beyond = 0.0
    if measured.longest and seq:
        beyond = max(0.0, math.log2(seq / measured.longest), math.log2(measured.shortest / seq))
    reasons = [f"{precision}, which no run of {family} has"] if strange else []
    reasons += [f"sequences {beyond:.2g} doublings from any run"] if beyond else []
    return Distance(math.hypot(NEW_PRECISION * strange, A_DOUBLING * beyond), "; ".join(reasons))


def measured_by(residuals: Iterable[Residual]) -> Measured:
    """Chips, engines, formats and lengths of sequences that have residuals."""
    chips, engines, lengths = set(), set(), []
    formats: dict[str, set[str]] = {}
    for run in residuals:
        chips.add(run.chip)
        engines.add(run.engine)
        of_family = formats.setdefault(run.family, set())
        if run.precision:
            of_family.add(run.precision)
        if run.seq:
            lengths.append(run.seq)
    return Measured(
        chips=tuple(sorted(chips)),
        engines=tuple(sorted(engines)),
        formats={family: tuple(sorted(names)) for family, names in sorted(formats.items())},
        shortest=min(lengths, default=0),
        longest=max(lengths, default=0),
    )


def widen_interval(found: Interval, step_s: float, far: Distance) -> Interval:
    """The range of a step that is far from every run: both ends further out, as by an independent error.

    >>> near = Interval(low=0.8, high=1.25, coverage=0.9, runs=40, basis="40 runs")
    >>> wide = widen_interval(near, 1.0, Distance(0.1, "fp8, which no run of f has"))
    >>> round(wide.low, 3), round(wide.high, 3), wide.basis
    (0.783, 1.277, '40 runs, wider for fp8, which no run of f has')
    """
    if not far.log_width:
        return found
    low = step_s * math.exp(-math.hypot(min(0.0, math.log(found.low / step_s)), far.log_width))
    high = step_s * math.exp(math.hypot(max(0.0, math.log(found.high / step_s)), far.log_width))
    return replace(found, low=low, high=high, basis=f"{found.basis}, wider for {far.told}")


def widen_for_unread(found: Interval, step_s: float, unread: UnreadOptions) -> Interval:
    """The range of a step whose files hold options that nobody read: wider by what those may decide."""
    return widen_interval(found, step_s, Distance(*unread_distance(unread)))


def narrow_interval(found: Interval, step_s: float, ratio: float, runs: int) -> Interval:
    """The range of a step that runs of the same user anchored: both ends nearer, in logarithms, by a ratio.

        ratio = standard deviation after the runs / before them         at most 1

    >>> wide = Interval(low=0.8, high=1.25, coverage=0.9, runs=40, basis="40 runs")
    >>> near = narrow_interval(wide, 1.0, 0.5, 2)
    >>> round(near.low, 3), round(near.high, 3), near.basis
    (0.894, 1.118, '40 runs, narrowed to 50 % by 2 of your own')
    """
    ratio = min(ratio, 1.0)
    told = f"{found.basis}, narrowed to {ratio * 100:.0f} % by {runs} of your own"
    low, high = (step_s * (end / step_s) ** ratio for end in (found.low, found.high))
    return replace(found, low=low, high=high, basis=told)


def shipped_interval(
    step_s: float, chip: str, engine: str, family: str = "", precision: str = "", seq: int = 0
) -> Interval:
    """The same from the residuals that come with Ridgeline."""
    return _scaled(_shipped_factors(chip, engine, family, precision, seq), step_s)


@cache
def _shipped_factors(chip: str, engine: str, family: str, precision: str, seq: int) -> Interval:
    measured, spreads = shipped_summary()
    factors = _stranger(chip, engine, family, measured, spreads.get)
    near = factors or _factors(chip, engine, shipped_residuals())
    return widen_interval(near, 1.0, distance_from(measured, precision=precision, seq=seq, family=family))


def _stranger(
    chip: str, engine: str, family: str, measured: Measured, spread: Callable[[str], Spread | None]
) -> Interval | None:
    """The range around a second of a stranger's prediction; None without runs that can say."""
    known_chip = chip in measured.chips
    known_family = known_chip or (bool(family) and family in measured.formats)
    missing = [] if engine in measured.engines else ["engine"]
    missing += [] if known_family else ["family"]
    parts = missing or ["source"]
    spreads = [found for part in parts if (found := spread(part)) is not None]
    if len(spreads) < len(parts):
        return None
    wider = 1.0 if known_chip or not known_family else STRANGER_CHIP
    low, high = wider * max(abs(end.low) for end in spreads), wider * max(abs(end.high) for end in spreads)
    runs, sources = spreads[-1].runs, spreads[-1].sources
    words = " and without its ".join("laboratory" if part == "source" else part for part in parts)
    basis = f"{runs} runs of {sources} laboratories, each predicted without its {words}"
    return Interval(low=math.exp(-low), high=math.exp(high), coverage=COVERAGE, runs=runs, basis=basis)


def spread_without(part: str, residuals: Iterable[Residual]) -> Spread | None:
    """How far runs are off that were predicted without their source, engine or family; None of too few sources."""
    held_out = [(run, off) for run in residuals if (off := getattr(run, f"without_{part}")) is not None and off > -1]
    sources = len({run.source for run, _ in held_out})
    if sources < SOURCES:
        return None
    votes = _source_votes([run for run, _ in held_out])
    ratios = sorted((-math.log1p(off), vote) for (_, off), vote in zip(held_out, votes, strict=True))
    mirrored = [(-ratio, vote) for ratio, vote in reversed(ratios)]
    return Spread(low=_outer(ratios, TAIL), high=-_outer(mirrored, TAIL), runs=len(held_out), sources=sources)


def _source_votes(runs: Sequence[Residual]) -> list[float]:
    """What each run counts: configurations as in `_votes`, those of a source as their number to the power of 2/3."""
    each = _votes(runs)
    total: dict[str, float] = {}
    for run, vote in zip(runs, each, strict=True):
        total[run.source] = total.get(run.source, 0.0) + vote
    return [vote / total[run.source] ** (1 / 3) for run, vote in zip(runs, each, strict=True)]


def _factors(chip: str, engine: str, residuals: Sequence[Residual]) -> Interval:
    """The range around a predicted second."""
    if sum(_votes(residuals)) < ENOUGH:
        basis = f"assumed: {UNKNOWN:.0%} either way, no runs at hand"
        return Interval(low=1 / (1 + UNKNOWN), high=1 + UNKNOWN, coverage=COVERAGE, runs=0, basis=basis)
    chosen, basis, wider = _similar(chip, engine, residuals)
    ratios = sorted(zip((run.log_ratio for run in chosen), _votes(chosen), strict=True))
    low, high = _outer(ratios, TAIL), -_outer([(-ratio, vote) for ratio, vote in reversed(ratios)], TAIL)
    low, high, basis = math.exp(wider * min(low, 0.0)), math.exp(wider * max(high, 0.0)), f"{len(chosen)} runs {basis}"
    return Interval(low=low, high=high, coverage=COVERAGE, runs=len(chosen), basis=basis)


def _votes(runs: Sequence[Residual]) -> list[float]:
    """What each run counts: the runs of a configuration one together, so that the sum is that of configurations."""
    often = Counter(run.group for run in runs)
    return [1 / often[run.group] if run.group else 1.0 for run in runs]


def _similar(chip: str, engine: str, residuals: Sequence[Residual]) -> tuple[list[Residual], str, float]:
    """The runs most like this one, which they are, and how much further than theirs its error may reach."""
    both = [run for run in residuals if run.chip == chip and run.engine == engine]
    if _enough(both):
        return both, f"on {chip} under {engine}", 1.0
    either = [run for run in residuals if run.chip == chip or run.engine == engine]
    if _enough(either):
        return either, f"on {chip} or under {engine}", UNSEEN
    return list(residuals), "of all kinds", UNSEEN


def _enough(runs: Sequence[Residual]) -> bool:
    return round(sum(_votes(runs))) >= ENOUGH


def _outer(ordered: Sequence[tuple[float, float]], tail: float) -> float:
    """The lower `tail` quantile of values with votes, conservatively for n votes: what a new configuration falls below
    with that chance.

        place = tail (n + 1) votes from below;  before the first value it is extended by the spacing it would take

    With n = 8 there is no fifth percentile among the values; the smallest is moved out by the mean gap of the lower
    half for each missing vote.

    >>> _outer([(float(value), 1.0) for value in range(1, 20)], 0.05)
    1.0
    >>> _outer([(1.0, 0.5), (1.5, 0.5), *((float(value), 1.0) for value in range(2, 20))], 0.05)
    1.5
    """
    values = [value for value, _ in ordered]
    below = list(accumulate(vote for _, vote in ordered))
    place = tail * (below[-1] + 1)
    if place < below[0]:
        half = max(1, round(below[-1]) // 2)
        middle = min(bisect_right(below, half + ROUNDING), len(values) - 1)
        return values[0] - (below[0] - place) * (values[middle] - values[0]) / half
    at = bisect_right(below, place + ROUNDING) - 1
    after = min(at + 1, len(values) - 1)
    step = below[after] - below[at]
    return values[at] + ((place - below[at]) / step * (values[after] - values[at]) if step else 0.0)


_WORDS = ("chip", "engine", "group", "source", "family", "precision")
_WITHOUT = ("without_source", "without_engine", "without_family")


def read_residuals(rows: Iterable[object]) -> tuple[Residual, ...]:
    """Rows of a residual table; what is not one, or not a number above -1, is left out."""
    residuals: list[Residual] = []
    for row in rows:
        value = row.get("residual") if isinstance(row, dict) else None
        if isinstance(row, dict) and isinstance(value, (int, float)) and math.isfinite(value) and value > -1:
            facts: JsonObject = {name: str(row.get(name, "")) for name in _WORDS}
            facts |= {name: _number(row.get(name)) for name in _WITHOUT}
            residuals.append(Residual(residual=value, seq=int(_number(row.get("seq")) or 0), **facts))
    return tuple(residuals)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


@cache
def shipped_residuals() -> tuple[Residual, ...]:
    """The residuals that come with Ridgeline; none before the first fit."""
    if not SHIPPED_RESIDUALS.exists():
        return ()
    return read_residuals(json.loads(SHIPPED_RESIDUALS.read_text(encoding="utf-8")).get("rows", ()))


@cache
def shipped_summary() -> tuple[Measured, Mapping[str, Spread]]:
    """What the shipped residuals have seen and how far they spread, from a file of its own: they are many."""
    if not SHIPPED_SUMMARY.exists():
        return measured_by(()), {}
    table = json.loads(SHIPPED_SUMMARY.read_text(encoding="utf-8"))
    measured = Measured(
        chips=tuple(table["chips"]),
        engines=tuple(table["engines"]),
        formats={family: tuple(names) for family, names in table["formats"].items()},
        shortest=table["shortest"],
        longest=table["longest"],
    )
    return measured, {part: Spread(**values) for part, values in table["without"].items()}


def summary_text(residuals: Sequence[Residual]) -> str:
    """The summary of residuals as its file holds it."""
    spreads = {part: spread_without(part, residuals) for part in ("source", "engine", "family")}
    without = {part: asdict(spread) for part, spread in spreads.items() if spread is not None}
    return json.dumps({**asdict(measured_by(residuals)), "without": without}, indent=1) + "\n"
