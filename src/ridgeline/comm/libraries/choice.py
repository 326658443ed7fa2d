"""Turn a question (which collective, on what system, how large) into what a library would do, and why.

algbw = size / seconds: how fast the payload gets through. busbw = algbw x what a rank sends per byte of payload,
2 (N-1)/N for all-reduce and (N-1)/N for all-gather and reduce-scatter: comparable with a link's rate, whatever N is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Literal, cast

from ridgeline.comm.contract import bus_factor
from ridgeline.comm.graph import refusal
from ridgeline.comm.libraries.tuners import MODELS, ComparedOption, NotOffered
from ridgeline.core.errors import InputError, not_among
from ridgeline.core.units import format_quantity, parse_quantity
from ridgeline.hardware.load import system as system_named
from ridgeline.hardware.system import System

Library = Literal["nccl", "rccl", "hccl"]
LIBRARIES: tuple[Library, ...] = ("nccl", "rccl", "hccl")
LIBRARY_BY_VENDOR: Mapping[str, Library] = MappingProxyType({"NVIDIA": "nccl", "AMD": "rccl", "Huawei": "hccl"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkTime:
    """What a benchmark would measure, by the fit to measured collectives.

    seconds, low, high   the prediction, and where nine of ten measurements would lie
    """

    seconds: float
    low: float
    high: float
    algbw: float
    busbw: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One size of a sweep: what the library takes, by its own estimate, and what a benchmark would measure."""

    size_bytes: int
    algorithm: str
    protocol: str
    channels: int
    seconds: float
    busbw: float
    measured_seconds: float
    measured_busbw: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryChoice:
    """What a library would do (`--library nccl`).

    seconds, algbw, busbw    of the option taken, by the library's own cost model: size over time; times `bus_factor`
    bus_factor               what a rank sends per byte of size: 2 (N-1)/N for all-reduce, as nccl-tests counts
    options                  every algorithm and protocol compared, the one taken first
    not_offered              those it does not consider, each with why
    why                      what decides against the other algorithms
    ranges                   which option wins at which size
    measured                 what a benchmark would measure instead of the library's estimate
    assumptions              what the library would find in the machine and is assumed here

    `ridgeline.library_choice` fills in `measured` and `sweep`, which this room does not know.
    """

    JSON = """
        kind='library choice' possible=true library version collective topology=system.name ranks=system.chips
        size_bytes algorithm=chosen.algorithm protocol=chosen.protocol channels=chosen.channels seconds=chosen.seconds
        algbw busbw bus_factor options not_offered why ranges measured sweep assumptions=notes
    """
    library: Library
    version: str
    collective: str
    system: System
    size_bytes: float
    options: tuple[ComparedOption, ...]
    not_offered: tuple[NotOffered, ...]
    why: tuple[str, ...]
    ranges: tuple[Range, ...]
    notes: tuple[str, ...]
    measured: BenchmarkTime | None = None
    sweep: tuple[SweepPoint, ...] = ()

    @property
    def chosen(self) -> ComparedOption:
        return self.options[0]

    @property
    def algbw(self) -> float:
        """Bytes per second: size over time."""
        return self.chosen.algbw

    @property
    def bus_factor(self) -> float:
        """busbw over algbw: what a rank sends per byte of payload."""
        return bus_factor(self.collective, self.system.chips)

    @property
    def busbw(self) -> float:
        return self.chosen.busbw


def library_choice(name: str, *, on: str | System, size: str | float = "1 GB", library: str = "nccl") -> LibraryChoice:
    """What NCCL, RCCL or HCCL would do for a collective over all chips of a system, by its published cost model.

    >>> found = library_choice("allreduce", on="64xh100-sxm", size="1 GB")
    >>> found.chosen.name, found.chosen.channels
    ('nvls_tree/Simple', 16)
    >>> [found.chosen.name for found in [library_choice("allreduce", on="64xh100-sxm", size="8 kB")]]
    ['tree/LL']
    """
    _refuse_unknown(library, name)
    system = system_named(on) if isinstance(on, str) else on
    bytes_ = parse_quantity(size, "B") if isinstance(size, str) else float(size)
    if not 1 <= bytes_ < 2**50:
        raise refusal("--size", str(size), "1 B to 1 PB")
    model = MODELS[library][0](system, name)
    factor = bus_factor(name, system.chips)
    options = (replace(option, bus_factor=factor) for option in model.price(bytes_))
    options_by_time = tuple(sorted(options, key=lambda option: option.seconds))
    return LibraryChoice(
        library=cast(Library, library),
        version=model.version,
        collective=name,
        system=system,
        size_bytes=bytes_,
        options=options_by_time,
        not_offered=model.not_offered,
        why=_why(options_by_time),
        ranges=ranges_of(model.price),
        notes=model.notes,
    )


def library_of(system: System) -> Library | None:
    """The communication library whose tuner is known for a system's chips.

    >>> library_of(system_named("8xh100-sxm")), library_of(system_named("64xtpu-v5p"))
    ('nccl', None)
    """
    return LIBRARY_BY_VENDOR.get(system.chip.vendor)


def chosen_option(name: str, system: System, size_bytes: float, library: Library) -> tuple[ComparedOption, str]:
    """What a library takes for a collective over all chips of a system, and the library's version."""
    _refuse_unknown(library, name)
    model = MODELS[library][0](system, name)
    return best(model.price(size_bytes)), model.version


def _refuse_unknown(library: str, name: str) -> None:
    if library not in LIBRARIES:
        raise InputError(not_among("--library", library, LIBRARIES))
    model = MODELS[library][1]
    if name in model:
        return
    if name == "alltoall":
        raise refusal(
            "--library",
            f"{library} {name}",
            "a collective with algorithms",
            todo="leave --library out: it is grouped sends, there is nothing to choose",
        )
    raise InputError(not_among("collective", name, model))


def _why(options: Sequence[ComparedOption]) -> tuple[str, ...]:
    """What decides against the best form of every other algorithm: latency, or bytes."""
    first = options[0]
    lines, algorithms_seen = [], {first.algorithm}
    for option in options[1:]:
        if option.algorithm in algorithms_seen:
            continue
        algorithms_seen.add(option.algorithm)
        slower = option.seconds - first.seconds
        more_latency, more_bytes = option.latency_s - first.latency_s, option.bytes_s - first.bytes_s
        part = "latency" if more_latency >= more_bytes else "bytes"
        back = min(more_latency, more_bytes)
        line = (
            f"{first.name} and not {option.name}: {_s(slower)} less, {_s(max(more_latency, more_bytes))} of it {part}"
        )
        lines.append(line + (f", {_s(-back)} given back" if back < 0 else ""))
    return tuple(lines)


def _s(seconds: float) -> str:
    return format_quantity(seconds, "s", 3)


SMALLEST, LARGEST = 256, 2**36  # bytes that a sweep covers


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Sizes for which one option wins; `max_bytes` is the last of them."""

    min_bytes: int
    max_bytes: int
    algorithm: str
    protocol: str
    channels: int


Priced = Callable[[float], Sequence[ComparedOption]]


def ranges_of(priced: Priced) -> tuple[Range, ...]:
    """Which option wins at which size: powers of two are tried, and borders halved to the byte."""
    sizes = [2**power for power in range(SMALLEST.bit_length() - 1, LARGEST.bit_length())]
    ranges: list[Range] = []
    low, current = SMALLEST, best(priced(SMALLEST))
    for before, after in pairwise(sizes):
        there = best(priced(after))
        while there.name != current.name:
            low_size, border = before, after  # the first size at which another option wins
            while border - low_size > 1:
                middle = (low_size + border) // 2
                is_same = best(priced(middle)).name == current.name
                low_size, border = (middle, border) if is_same else (low_size, middle)
            ranges.append(_range(low, border - 1, priced))
            low, current, before = border, best(priced(border)), border
    ranges.append(_range(low, LARGEST, priced))
    return tuple(ranges)


def _range(low: int, high: int, priced: Priced) -> Range:
    winner = best(priced(high))
    return Range(
        min_bytes=low, max_bytes=high, algorithm=winner.algorithm, protocol=winner.protocol, channels=winner.channels
    )


def best(options: Sequence[ComparedOption]) -> ComparedOption:
    """The fastest by the library's own estimate; the first of equals, as libraries take it."""
    return min(options, key=lambda option: option.seconds)
