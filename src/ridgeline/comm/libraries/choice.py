"""Turn a question (which collective, on what system, how large) into what a library would do, and why.

algbw = size / seconds: how fast the payload gets through. busbw = algbw x what a rank sends per byte of payload,
2 (N-1)/N for all-reduce and (N-1)/N for all-gather and reduce-scatter: comparable with a link's rate, whatever N is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, cast

from ridgeline.comm.contract import bus_factor
from ridgeline.comm.libraries import hccl, nccl, rccl
from ridgeline.comm.libraries.options import NotOffered, Option, Priced, Range, best, ranges_of
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.units import format_quantity, parse_quantity
from ridgeline.hardware.load import system as system_named
from ridgeline.hardware.system import System

Library = Literal["nccl", "rccl", "hccl"]
LIBRARIES: tuple[Library, ...] = ("nccl", "rccl", "hccl")
LIBRARY_BY_VENDOR: Mapping[str, Library] = MappingProxyType({"NVIDIA": "nccl", "AMD": "rccl", "Huawei": "hccl"})
COLLECTIVES = {"nccl": nccl.COLLECTIVES, "rccl": rccl.COLLECTIVES, "hccl": hccl.COLLECTIVES}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedOption:
    """One algorithm with one protocol, as a library prices it for itself.

    protocol    LL, LL128 or Simple; blank where the library has none
    latency_s   launch and hops, paid whatever the size
    bytes_s     the rest: bytes over rate
    channels    rings, trees or thread blocks at once; 0 where the library does not choose them here
    """

    algorithm: str
    protocol: str
    seconds: float
    latency_s: float
    bytes_s: float
    algbw: float
    busbw: float
    channels: int


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
        algbw busbw bus_factor options=compared not_offered why ranges measured sweep assumptions=notes
    """
    library: Library
    version: str
    collective: str
    system: System
    size_bytes: float
    options: tuple[Option, ...]
    not_offered: tuple[NotOffered, ...]
    why: tuple[str, ...]
    ranges: tuple[Range, ...]
    notes: tuple[str, ...]
    measured: BenchmarkTime | None = None
    sweep: tuple[SweepPoint, ...] = ()

    @property
    def compared(self) -> tuple[ComparedOption, ...]:
        """The options with their rates, the one taken first."""
        return tuple(
            ComparedOption(
                algorithm=option.algorithm,
                protocol=option.protocol,
                seconds=option.seconds,
                latency_s=option.latency_s,
                bytes_s=option.bytes_s,
                algbw=option.size_bytes / option.seconds,
                busbw=option.size_bytes / option.seconds * self.bus_factor,
                channels=option.channels,
            )
            for option in self.options
        )

    @property
    def chosen(self) -> Option:
        return self.options[0]

    @property
    def algbw(self) -> float:
        """Bytes per second: size over time."""
        return self.size_bytes / self.chosen.seconds

    @property
    def bus_factor(self) -> float:
        """busbw over algbw: what a rank sends per byte of payload."""
        return bus_factor(self.collective, self.system.chips)

    @property
    def busbw(self) -> float:
        return self.algbw * self.bus_factor


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
        raise InputError(Problem(path="--size", given=str(size), expected="1 B to 1 PB"))
    price, not_offered, version, notes = _model(cast(Library, library), name, system)
    options = tuple(sorted(price(bytes_), key=lambda option: option.seconds))
    return LibraryChoice(
        library=cast(Library, library),
        version=version,
        collective=name,
        system=system,
        size_bytes=bytes_,
        options=options,
        not_offered=not_offered,
        why=_why(options),
        ranges=ranges_of(price),
        notes=notes,
    )


def library_of(system: System) -> Library | None:
    """The communication library whose tuner is known for a system's chips.

    >>> library_of(system_named("8xh100-sxm")), library_of(system_named("64xtpu-v5p"))
    ('nccl', None)
    """
    return LIBRARY_BY_VENDOR.get(system.chip.vendor)


def chosen_option(name: str, system: System, size_bytes: float, library: Library) -> tuple[Option, str]:
    """What a library takes for a collective over all chips of a system, and the library's version."""
    _refuse_unknown(library, name)
    price, _, version, _ = _model(library, name, system)
    return best(price(size_bytes)), version


def _refuse_unknown(library: str, name: str) -> None:
    if library not in LIBRARIES:
        raise InputError(not_among("--library", library, LIBRARIES))
    if name in COLLECTIVES[library]:
        return
    if name == "alltoall":
        given_text, todo = f"{library} {name}", "leave --library out: it is grouped sends, there is nothing to choose"
        raise InputError(
            Problem(path="--library", given=given_text, expected="a collective with algorithms", todo=todo)
        )
    raise InputError(not_among("collective", name, COLLECTIVES[library]))


def _model(library: Library, name: str, system: System) -> tuple[Priced, tuple[NotOffered, ...], str, tuple[str, ...]]:
    if library == "nccl":
        comm = nccl.communicator(system)
        notes = (
            f"{comm.nodes} node(s) of {comm.ppn}, {comm.channels} channels, a host of {comm.host.title()}: assumed",
            "times are the tuner's own estimates, made to choose by; benchmarks differ, see `measured`",
        )
        return (
            lambda size: nccl.nccl_options(comm, name, size),
            nccl.not_offered(comm, name),
            nccl.constants()["version"],
            notes,
        )
    if library == "rccl":
        rocm = rccl.rocm_communicator(system)
        assumptions = ("tables of gfx94x at that commit, rings over all links of a chip: assumed",)
        not_offered = rccl.rccl_not_offered(name)
        return lambda size: rccl.rccl_options(rocm, name, size), not_offered, rccl.constants()["version"], assumptions
    servers = hccl.servers_of(system)
    step = f"steps of {hccl.STEP_S[0] * 1e6:.0f} us inside and {hccl.STEP_S[1] * 1e6:.0f} us between servers: assumed"
    not_offered = hccl.hccl_not_offered(servers)
    return lambda size: hccl.hccl_options(servers, name, size), not_offered, "09300b7", (step,)


def _why(options: Sequence[Option]) -> tuple[str, ...]:
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
