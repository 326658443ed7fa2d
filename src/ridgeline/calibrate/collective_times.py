"""Turn measured collectives into predicted seconds: by numbers whose fit never saw their system, with an interval.

A bundled row is predicted without its system. Two exceptions are told apart (`cross_validated` is false): a host that
joins PCIe slots can only be known from rows of that very host, and rows of your own take the shipped numbers. Systems
that library times do not describe (meshes, tori, libraries that go level by level) take the formulas of links.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

import numpy as np

from ridgeline.calibrate.collectives import SIZES, WARMING, Measured, bundled_collectives
from ridgeline.calibrate.truth.csv_cells import Skipped
from ridgeline.calibrate.truth.rows import Row
from ridgeline.core.arrays import Array
from ridgeline.core.units import DECIMAL
from ridgeline.cost.library_times.formulas import Values, bare_link_seconds, harness_floor, library_seconds
from ridgeline.cost.library_times.parameters import shipped
from ridgeline.cost.library_times.question import Question, columns_of, describes

LARGE = DECIMAL["M"]  # bytes above which a payload counts as large
FEW = 20  # residuals that an interval needs at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A measured collective beside its prediction, in seconds; `left_out`: by numbers that never saw its system."""

    measured: Measured
    seconds: float
    low: float
    high: float
    left_out: bool


def timed_of(read: Sequence[Measured]) -> tuple[tuple[Timed, ...], tuple[Skipped, ...]]:
    """Every collective with its prediction, and those that tell nothing about a collective, each with why."""
    refused = {**_warming(read), **_hidden(read)}
    known = [item for item in read if id(item) not in refused]
    predicted, left_out = predictions(known)
    spread = _spread()
    timed = tuple(
        Timed(measured=item, seconds=float(seconds), low=float(seconds) * low, high=float(seconds) * high, left_out=out)
        for item, seconds, out in zip(known, predicted, left_out, strict=True)
        for low, high in (spread.around(item),)
    )
    return timed, tuple(refused.values())


def predictions(read: Sequence[Measured]) -> tuple[Array, list[bool]]:
    """Seconds of each collective, and whether its system took no part in the fit of the numbers used."""
    fit = shipped()
    known = bundled_ids()
    found, left_out = np.zeros(len(read)), [False] * len(read)
    by_fold: dict[str | None, list[int]] = defaultdict(list)
    for index, item in enumerate(read):
        if not describes(item.system):
            by_fold[None].append(index)
            continue
        system = item.row["system"]
        held = item.row.id in known and fit.without(system) is not None and not _only_here(item, fit.values)
        left_out[index] = held
        by_fold[system if held else ""].append(index)
    for fold, rows in by_fold.items():
        some = [read[index] for index in rows]
        if fold is None:
            found[rows] = bare_link_seconds([item.question for item in some])
        else:
            values = fit.without(fold) if fold else fit.values
            assert values is not None
            found[rows] = library_seconds(columns_of([item.question for item in some]), values)
    return found, left_out


def expected_seconds(question: Question) -> tuple[float, float, float]:
    """What a benchmark of a collective would measure, and where nine of ten would lie.

    >>> from ridgeline.hardware.load import system
    >>> asked = Question(kind="all-reduce", size=2**30, ranks=8, system=system("8xh100-sxm"))
    >>> [round(seconds * 1e3, 1) for seconds in expected_seconds(asked)]
    [4.1, 3.5, 5.1]
    """
    blank = Row(id="", table="", cells=MappingProxyType({}))
    item = Measured(row=blank, question=question, seconds=1.0, notes=())
    seconds = float(predictions([item])[0][0])
    low, high = _spread().around(item)
    return seconds, seconds * low, seconds * high


def _only_here(item: Measured, values: Values) -> bool:
    """Whether a number that only rows of this system can give decides its time."""
    return item.question.ranks > 2 and f"many.{item.system.template}" in values


def _warming(read: Iterable[Measured]) -> dict[int, Skipped]:
    """Rows that took longer than a larger payload of the same run: the run was still warming up."""
    series: dict[tuple[str, ...], list[Measured]] = defaultdict(list)
    for item in read:
        series[item.series].append(item)
    found = {}
    for items in series.values():
        items.sort(key=lambda item: -item.size)
        best, at = float("inf"), 0.0
        for item in items:
            if item.seconds > WARMING * best and item.size < at:
                told = f"{item.seconds * 1e6:.0f} us, and {best * 1e6:.0f} us for {at / item.size:.0f} times the bytes"
                found[id(item)] = Skipped(id=item.row.id, reason=f"latency_us: {told}: the run was warming up")
            elif item.seconds < best:
                best, at = item.seconds, item.size
    return found


def _hidden(read: Sequence[Measured]) -> dict[int, Skipped]:
    """Rows of a host-driven profiler whose collective is shorter than its own launches."""
    mine = [item for item in read if item.question.harness == "profiler" and describes(item.system)]
    if not mine:
        return {}
    values = shipped().values
    columns = columns_of([item.question for item in mine])
    floor = harness_floor(columns, values)
    bare = library_seconds(columns_of([replace(item.question, harness="") for item in mine]), values)
    why = "source: a host-driven profiler, whose launches take longer ({:.0f} us) than this collective ({:.0f} us)"
    return {
        id(item): Skipped(id=item.row.id, reason=why.format(least * 1e6, device * 1e6))
        for item, least, device in zip(mine, floor, bare, strict=True)
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


class _Spread:
    """log(measured / predicted) of the bundled collectives, each without its system."""

    def __init__(self) -> None:
        read = bundled_collectives()
        refused = {**_warming(read), **_hidden(read)}
        self.items = [item for item in read if id(item) not in refused]
        predicted, _ = predictions(self.items)
        self.logs = np.log([item.seconds for item in self.items]) - np.log(predicted)
        self.systems = np.array([item.row["system"] for item in self.items])
        self.classes = np.array([_interval_class(item) for item in self.items])
        self._known: dict[tuple[str, str], tuple[float, float]] = {}

    def around(self, item: Measured) -> tuple[float, float]:
        """Where nine of ten measurements lie around a prediction of 1 s: bundled ones of other systems."""
        key = (_interval_class(item), item.row["system"])
        if key not in self._known:
            others = self.logs[(self.classes == key[0]) & (self.systems != key[1])]
            others = others if len(others) >= FEW else self.logs[self.systems != key[1]]
            low, high = np.exp(np.quantile(others, [0.05, 0.95]))
            self._known[key] = (float(low), float(high))
        return self._known[key]


def _interval_class(item: Measured) -> str:
    """Rows whose residuals are alike: large or small, with or without experts, measured by what."""
    size = "large" if is_large(item.size) else "small"
    return "experts" if item.question.experts is not None else f"{size} {item.question.harness}".strip()


@cache
def _spread() -> _Spread:
    return _Spread()
