"""Turn counters of kernels and a timeline into kernels of the timeline with what their counters say."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.trace.counters import KernelCounters
from ridgeline.trace.timeline import KERNEL, Mask, Timeline

_RETURNS = re.compile(r"^(?:void|bool|int|float|double) ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A kernel of the timeline with its counters."""

    counters: KernelCounters
    names: tuple[str, ...]
    """Names in the timeline that the counters' name means."""
    class_: str
    spans: int
    total_ns: int
    rows: tuple[int, ...]
    """The longest, as rows of the timeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Counters with a place in the timeline, and those without one."""

    kernels: tuple[Measured, ...] = ()
    absent: tuple[KernelCounters, ...] = ()


def join_counters(line: Timeline, counted: Mask, counters: Sequence[KernelCounters]) -> Joined:
    """Kernels of the timeline by name: whole, without parameters, or the function's own name, the first that fits."""
    rows = np.flatnonzero(counted & line.of_kind(KERNEL))
    codes = np.unique(line.name[rows]).tolist()
    levels = [_by(level, line, codes) for level in LEVELS]
    found, absent = [], []
    for one in counters:
        fits = (known.get(level(one.name)) for level, known in zip(LEVELS, levels, strict=True))
        own = next((codes for codes in fits if codes), None)
        if own is None:
            absent.append(one)
        else:
            found.append(_measured(line, rows, own, one))
    return Joined(kernels=tuple(sorted(found, key=lambda one: -one.total_ns)), absent=tuple(absent))


def _by(level: Callable[[str], str], line: Timeline, codes: Sequence[int]) -> dict[str, list[int]]:
    known: dict[str, list[int]] = {}
    for code in codes:
        known.setdefault(level(line.names[code]), []).append(code)
    return known


def _measured(line: Timeline, rows: np.ndarray, codes: list[int], one: KernelCounters) -> Measured:
    own = rows[np.isin(line.name[rows], codes)]
    duration = (line.end_ns - line.start_ns)[own]
    longest = own[np.argsort(-duration, kind="stable")[:3]]
    return Measured(
        counters=one,
        names=tuple(line.names[code] for code in codes),
        class_=line.classes[int(line.class_[longest[0]])],
        spans=len(own),
        total_ns=int(duration.sum()),
        rows=tuple(longest.tolist()),
    )


def whole(name: str) -> str:
    """The name without what it returns."""
    return _RETURNS.sub("", name.split(" [", 1)[0].strip())


def without_parameters(name: str) -> str:
    """The name up to its parameters; parentheses inside template arguments are not those.

    >>> without_parameters("void at::native::copy<(int)4, f()>(int, char*)")
    'at::native::copy<(int)4, f()>'
    """
    name, depth = whole(name), 0
    for place, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth <= 0 and place and not name.startswith("(anonymous", place):
            return name[:place]
    return name


def function(name: str) -> str:
    """The function's own name: no namespaces, no template arguments, no parameters.

    >>> function("void at::native::copy<(int)4, a::b>(int, char*)")
    'copy'
    """
    return without_parameters(name).split("<", 1)[0].rpartition("::")[2]


LEVELS: tuple[Callable[[str], str], ...] = (whole, without_parameters, function)
