"""Turn measured collectives into predicted seconds: by numbers whose fit never saw their system, with an interval.

A bundled row is predicted without its system. Two exceptions are told apart (`cross_validated` is false): a host that
joins PCIe slots can only be known from rows of that very host, and rows of your own take the shipped numbers. Systems
that library times do not describe (meshes, tori, libraries that go level by level) take the formulas of links.

Turn the bundled collectives into the numbers of library times: one fit of all, and one without each system.

    minimise  sum over rows of rho((log predicted - log measured) / 0.15)  +  sum of ((log x - log prior) / spread)^2

rho is soft-l1, so that single rows that tell of something else do not bend the rest. A family's number is drawn to that
of all families. A measurement that two systems report alike is left out with either.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ridgeline.calibrate.collectives import SIZES, WARMING, MeasuredCollective, bundled_collectives
from ridgeline.calibrate.truth.csv_cells import Skipped
from ridgeline.calibrate.truth.rows import Row
from ridgeline.comm.libraries import BenchmarkTime, LibraryChoice, SweepPoint, chosen_option
from ridgeline.core.arrays import Array
from ridgeline.core.files import write_text
from ridgeline.core.units import DECIMAL
from ridgeline.cost import SHIPPED_LIBRARY_TIMES as SHIPPED
from ridgeline.cost.library_times import (
    BY_FAMILY,
    MEASURED_FAMILIES,
    PRIORS,
    CollectiveQuestion,
    LibraryParameters,
    QuestionColumns,
    Values,
    bare_link_seconds,
    describes,
    harness_floor,
    library_seconds,
    parameter_names,
    prior_values,
    question_columns,
    shipped_parameters,
)
from ridgeline.cost.library_times import QuestionKind as Kind

SWEEP = tuple(4**power for power in range(5, 17))  # bytes: 1 KiB to 4 GiB
BENCHMARKS: Mapping[str, Kind] = MappingProxyType(
    {"allreduce": "all-reduce", "allgather": "all-gather", "reducescatter": "reduce-scatter"}
)
LARGE = DECIMAL["M"]  # bytes above which a payload counts as large
SCATTER = 0.15  # of a row, as a logarithm
LOOSE = 1.0  # of what all families share
DIGITS = 5

Progress = Callable[[str, int, int], None]


def fit_collectives(progress: Progress | None = None) -> LibraryParameters:
    """The numbers fitted to all bundled rows, and those fitted without each system."""
    rows = [item for item in bundled_collectives() if describes(item.system)]
    systems = sorted({item.row["system"] for item in rows})
    tell = progress or (lambda *_: None)
    tell("all systems", 0, len(systems) + 1)
    full_fit = _fit_values(rows, prior_values())
    folds = {}
    for index, system in enumerate(systems):
        tell(f"without {system}", index + 1, len(systems) + 1)
        folds[system] = _fit_values(_without(rows, system), full_fit)
    return LibraryParameters(values=full_fit, folds=folds)


def write_collectives(found: LibraryParameters, path: Path = SHIPPED) -> None:
    """Write the numbers with their units and meaning."""
    about = {
        name: {"prior": prior.value, "spread": prior.spread, "unit": prior.unit, "what": prior.what}
        for name, prior in {**BY_FAMILY, **PRIORS}.items()
    }
    source = "truth/collectives.csv, by `ridgeline fit --collectives`"
    data = {"source": source, "mape": in_sample(found), "about": about, "all": found.values, "without": found.folds}
    write_text(path, json.dumps(data, indent=1) + "\n")


def in_sample(found: LibraryParameters) -> dict[str, float]:
    """Mean |residual| of the rows that were fitted: what is left where a system is known."""
    rows = [item for item in bundled_collectives() if describes(item.system)]
    predicted_s = library_seconds(question_columns([item.question for item in rows]), found.values)
    off = np.abs(predicted_s / np.array([item.seconds for item in rows]) - 1)
    large = np.array([item.size > LARGE for item in rows])
    return {"known, above 1 MB": float(off[large].mean()), "known, to 1 MB": float(off[~large].mean())}


def _without(rows: Sequence[MeasuredCollective], system: str) -> list[MeasuredCollective]:
    figures = {_figure(item) for item in rows if item.row["system"] == system}
    return [item for item in rows if item.row["system"] != system and _figure(item) not in figures]


def _figure(item: MeasuredCollective) -> tuple[object, ...]:
    question = item.question
    return (question.kind, question.software, question.ranks, question.size, item.seconds)


def _fit_values(rows: Sequence[MeasuredCollective], start: Mapping[str, float]) -> dict[str, float]:
    from scipy.optimize import least_squares

    columns = question_columns([item.question for item in rows])
    log_seconds = np.log([item.seconds for item in rows])
    names = parameter_names()
    prior = _Pulled(names)

    def residuals(x: Array) -> Array:
        return np.concatenate([_off(columns, names, x) / SCATTER - log_seconds / SCATTER, prior(x)])

    begin = np.log([start[name] for name in names])
    solution = least_squares(residuals, begin, loss="soft_l1", f_scale=1.0, max_nfev=60)
    return {name: float(f"{value:.{DIGITS}g}") for name, value in zip(names, np.exp(solution.x), strict=True)}


def _off(columns: QuestionColumns, known: Sequence[str], x: Array) -> NDArray[np.float64]:
    values = dict(zip(known, np.exp(x).tolist(), strict=True))
    log_predicted: NDArray[np.float64] = np.log(library_seconds(columns, values))
    return log_predicted


class _Pulled:
    """How far each number is from what is believed of it, in spreads."""

    def __init__(self, known: Sequence[str]) -> None:
        at = {name: index for index, name in enumerate(known)}
        self.shared = np.array([at[name] for name in BY_FAMILY])
        self.shared_means = np.log([prior.value for prior in BY_FAMILY.values()])
        pairs = [(at[f"{name}.{family}"], at[name], prior.spread) for name, prior in BY_FAMILY.items()
                 for family in MEASURED_FAMILIES]  # fmt: skip
        self.own, self.of, self.spreads = (np.array(part) for part in zip(*pairs, strict=True))
        self.rest = np.array([at[name] for name in PRIORS])
        self.rest_means = np.log([prior.value for prior in PRIORS.values()])
        self.rest_spreads = np.array([prior.spread for prior in PRIORS.values()])

    def __call__(self, x: Array) -> Array:
        return np.concatenate(
            [
                (x[self.shared] - self.shared_means) / LOOSE,
                (x[self.own] - x[self.of]) / self.spreads,
                (x[self.rest] - self.rest_means) / self.rest_spreads,
            ]
        )


FEW = 20  # residuals that an interval needs at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A measured collective beside its prediction, in seconds; `left_out`: by numbers that never saw its system."""

    measured: MeasuredCollective
    seconds: float
    low: float
    high: float
    left_out: bool


def timed_of(read: Sequence[MeasuredCollective]) -> tuple[tuple[Timed, ...], tuple[Skipped, ...]]:
    """Every collective with its prediction, and those that tell nothing about a collective, each with why."""
    refusals = {**_warming(read), **_hidden(read)}
    usable = [item for item in read if id(item) not in refusals]
    predicted_s, left_out = predictions(usable)
    intervals = _bundled_spread()
    answers = tuple(
        Timed(measured=item, seconds=float(seconds), low=float(seconds) * low, high=float(seconds) * high, left_out=out)
        for item, seconds, out in zip(usable, predicted_s, left_out, strict=True)
        for low, high in (intervals.interval_of(item),)
    )
    return answers, tuple(refusals.values())


def predictions(read: Sequence[MeasuredCollective]) -> tuple[Array, list[bool]]:
    """Seconds of each collective, and whether its system took no part in the fit of the numbers used."""
    fit = shipped_parameters()
    bundled_row_ids = bundled_ids()
    seconds, left_out = np.zeros(len(read)), [False] * len(read)
    by_fold: dict[str | None, list[int]] = defaultdict(list)
    for index, item in enumerate(read):
        if not describes(item.system):
            by_fold[None].append(index)
            continue
        system = item.row["system"]
        is_left_out = item.row.id in bundled_row_ids and system in fit.folds and not _only_here(item, fit.values)
        left_out[index] = is_left_out
        by_fold[system if is_left_out else ""].append(index)
    for fold, rows in by_fold.items():
        some = [read[index] for index in rows]
        if fold is None:
            seconds[rows] = bare_link_seconds([item.question for item in some])
        else:
            values = fit.folds[fold] if fold else fit.values
            seconds[rows] = library_seconds(question_columns([item.question for item in some]), values)
    return seconds, left_out


def expected_seconds(question: CollectiveQuestion) -> tuple[float, float, float]:
    """What a benchmark of a collective would measure, and where nine of ten would lie.

    >>> from ridgeline.hardware.load import system
    >>> question = CollectiveQuestion(kind="all-reduce", size=2**30, ranks=8, system=system("8xh100-sxm"))
    >>> [round(seconds * 1e3, 1) for seconds in expected_seconds(question)]
    [4.1, 3.5, 5.1]
    """
    blank = Row(id="", table="", cells=MappingProxyType({}))
    item = MeasuredCollective(row=blank, question=question, seconds=1.0, notes=())
    seconds = float(predictions([item])[0][0])
    low, high = _bundled_spread().interval_of(item)
    return seconds, seconds * low, seconds * high


def with_benchmark(choice: LibraryChoice) -> LibraryChoice:
    """A library's choice beside what a benchmark would measure, at its size and over a sweep of sizes."""
    benchmark = _benchmark(choice, choice.size_bytes)
    return replace(choice, measured=benchmark, sweep=tuple(_sweep_point(choice, size) for size in SWEEP))


def _benchmark(choice: LibraryChoice, size: float) -> BenchmarkTime:
    kind = BENCHMARKS.get(choice.collective, "all-gather")  # a broadcast moves what an all-gather does: all to all
    question = CollectiveQuestion(kind=kind, size=size, ranks=choice.system.chips, system=choice.system)
    seconds, low, high = expected_seconds(question)
    algbw = size / seconds
    return BenchmarkTime(seconds=seconds, low=low, high=high, algbw=algbw, busbw=algbw * choice.bus_factor)


def _sweep_point(choice: LibraryChoice, size: int) -> SweepPoint:
    option, _ = chosen_option(choice.collective, choice.system, float(size), choice.library)
    benchmark = _benchmark(choice, float(size))
    return SweepPoint(
        size_bytes=size,
        algorithm=option.algorithm,
        protocol=option.protocol,
        channels=option.channels,
        seconds=option.seconds,
        busbw=float(size) / option.seconds * choice.bus_factor,
        measured_seconds=benchmark.seconds,
        measured_busbw=benchmark.busbw,
    )


def _only_here(item: MeasuredCollective, values: Values) -> bool:
    """Whether a number that only rows of this system can give decides its time."""
    return item.question.ranks > 2 and f"many.{item.system.template}" in values


def _warming(read: Iterable[MeasuredCollective]) -> dict[int, Skipped]:
    """Rows that took longer than a larger payload of the same run: the run was still warming up."""
    series: dict[tuple[str, ...], list[MeasuredCollective]] = defaultdict(list)
    for item in read:
        series[item.series].append(item)
    reasons = {}
    for items in series.values():
        items.sort(key=lambda item: -item.size)
        best, at = float("inf"), 0.0
        for item in items:
            if item.seconds > WARMING * best and item.size < at:
                reason = (
                    f"{item.seconds * 1e6:.0f} us, and {best * 1e6:.0f} us for {at / item.size:.0f} times the bytes"
                )
                reasons[id(item)] = Skipped(id=item.row.id, reason=f"latency_us: {reason}: the run was warming up")
            elif item.seconds < best:
                best, at = item.seconds, item.size
    return reasons


def _hidden(read: Sequence[MeasuredCollective]) -> dict[int, Skipped]:
    """Rows of a host-driven profiler whose collective is shorter than its own launches."""
    profiler_rows = [item for item in read if item.question.harness == "profiler" and describes(item.system)]
    if not profiler_rows:
        return {}
    values = shipped_parameters().values
    columns = question_columns([item.question for item in profiler_rows])
    floor = harness_floor(columns, values)
    bare = library_seconds(question_columns([replace(item.question, harness="") for item in profiler_rows]), values)
    why = "source: a host-driven profiler, whose launches take longer ({:.0f} us) than this collective ({:.0f} us)"
    return {
        id(item): Skipped(id=item.row.id, reason=why.format(least * 1e6, device * 1e6))
        for item, least, device in zip(profiler_rows, floor, bare, strict=True)
        if device < least
    }


def is_large(size: float) -> bool:
    """Whether bytes decide, and not latency: above 1 MB."""
    return size > LARGE


def size_class(size: float) -> str:
    """Which of a few classes a payload falls in.

    >>> size_class(1024), size_class(1e9)
    ('to 64 KiB', 'larger')
    """
    return next(name for limit, name in SIZES if size <= limit)


@cache
def bundled_ids() -> frozenset[str]:
    """Ids of the rows that the fit has seen."""
    return frozenset(item.row.id for item in bundled_collectives())


class _CollectiveIntervals:
    """log(measured / predicted) of the bundled collectives, each without its system."""

    def __init__(self) -> None:
        read = bundled_collectives()
        refusals = {**_warming(read), **_hidden(read)}
        self.items = [item for item in read if id(item) not in refusals]
        predicted_s, _ = predictions(self.items)
        self.logs = np.log([item.seconds for item in self.items]) - np.log(predicted_s)
        self.systems = np.array([item.row["system"] for item in self.items])
        self.classes = np.array([_interval_class(item) for item in self.items])
        self._known: dict[tuple[str, str], tuple[float, float]] = {}

    def interval_of(self, item: MeasuredCollective) -> tuple[float, float]:
        """Where nine of ten measurements lie around a prediction of 1 s: bundled ones of other systems."""
        key = (_interval_class(item), item.row["system"])
        if key not in self._known:
            other_logs = self.logs[(self.classes == key[0]) & (self.systems != key[1])]
            other_logs = other_logs if len(other_logs) >= FEW else self.logs[self.systems != key[1]]
            low, high = np.exp(np.quantile(other_logs, [0.05, 0.95]))
            self._known[key] = (float(low), float(high))
        return self._known[key]


def _interval_class(item: MeasuredCollective) -> str:
    """Rows whose residuals are alike: large or small, with or without experts, measured by what."""
    size = "large" if is_large(item.size) else "small"
    return "experts" if item.question.experts is not None else f"{size} {item.question.harness}".strip()


@cache
def _bundled_spread() -> _CollectiveIntervals:
    return _CollectiveIntervals()
