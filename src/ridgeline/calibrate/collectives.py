"""Turn measured collectives into seconds, beside what the formulas of links give with nothing else running.

all_reduce, all_gather, reduce_scatter, alltoall    size_bytes is the whole tensor, as nccl-tests counts it
measured                                            latency_us, else size / algbw, else size * factor / busbw
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

import numpy as np

from ridgeline.calibrate.truth.csv_cells import RowCells, Skipped, Unusable
from ridgeline.calibrate.truth.rows import COLLECTIVES as TABLE
from ridgeline.calibrate.truth.rows import TRUTH, Row, read_table
from ridgeline.core.arrays import Array
from ridgeline.core.errors import RidgelineError, near
from ridgeline.core.units import BINARY, DECIMAL
from ridgeline.cost.collectives.links import bare_links
from ridgeline.cost.collectives.price import KINDS, collective_seconds
from ridgeline.cost.machine import machines_of
from ridgeline.hardware.load import CHIPS, SYSTEMS, system
from ridgeline.hardware.system import System

GIGA, MICRO = DECIMAL["G"], DECIMAL["u"]
COLLECTIVES: Mapping[str, str] = MappingProxyType(
    {
        "all_reduce": "all-reduce",
        "all_gather": "all-gather",
        "reduce_scatter": "reduce-scatter",
        "alltoall": "all-to-all",
    }
)
LONGEST = 1e4  # seconds; no collective is beyond
LARGEST = DECIMAL["P"]  # bytes
SIZES = (
    (64 * BINARY["Ki"], "to 64 KiB"),
    (4 * BINARY["Mi"], "to 4 MiB"),
    (256 * BINARY["Mi"], "to 256 MiB"),
    (float("inf"), "larger"),
)
# what a row's text says against its chip: six and seven of eight chips at 365 GB/s are not a bridge of four
READ_AS: Mapping[tuple[str, str], str] = MappingProxyType({("h200-nvl", "H200 x8 NVLink4"): "h200-sxm"})
# rates that a site's chips have between domains where the catalog's differ: one 400 Gbit/s port per chip
FABRICS: Mapping[tuple[str, str], str] = MappingProxyType({("gb200-nvl72", "(CoreWeave)"): "400 Gbit/s"})
# text of a row -> why no formula here describes it
ELSEWHERE: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("notes", re.compile(r"\bSPEC\b"), "a data sheet's figure, not a measurement"),
    ("notes", re.compile(r"MSCCL\+\+"), "measured with MSCCL++, whose algorithms are written for one machine"),
    ("collective", re.compile(r"^moe_"), "expert dispatch: its GB/s are not bytes over time, and no size is given"),
    ("collective", re.compile(r"custom"), "a fused kernel of an engine, not a library's collective"),
    ("collective", re.compile(r"flat"), "ranks are devices, two to a chip, and whose payload it is is not said"),
    ("collective", re.compile(r"memcpy|^p2p"), "a copy between two places, not a collective"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A collective that somebody timed, as the formulas take it."""

    row: Row
    kind: str
    size: float
    ranks: int
    stride: int
    system: System
    seconds: float
    in_switch: bool
    notes: tuple[str, ...]


def measured_of(row: Row) -> Measured | Skipped:
    """What a row says, or why nothing can be predicted for it; never raises for what a row holds."""
    cells = RowCells(row=row)
    try:
        return _read(cells)
    except Unusable as wrong:
        return Skipped(id=row.id, reason=str(wrong))
    except RidgelineError as wrong:
        return Skipped(id=row.id, reason=str(wrong).splitlines()[0])


def _read(cells: RowCells) -> Measured:
    row = cells.row
    for column, pattern, why in ELSEWHERE:
        if pattern.search(row[column]):
            raise Unusable(column, why)
    kind = cells.word("collective", COLLECTIVES)
    if kind is None:
        raise Unusable("collective", "blank")
    ranks, nodes, size = cells.need("ranks"), cells.assume("nodes", 1), cells.number("size_bytes")
    if size is None:
        raise Unusable("size_bytes", "blank, and it cannot be guessed")
    if size > LARGEST:
        raise Unusable("size_bytes", f"got {size:.3g}, expected at most {LARGEST:.0e}")
    if ranks < 2 or ranks % nodes:
        raise Unusable("ranks, nodes", f"got {ranks} on {nodes}, expected two or more, equally on every node")
    if nodes > 1 and re.search(r"slow fabric", row["notes"]):
        raise Unusable("notes", "measured over another network than the chip's usual one")
    found = _system(cells, ranks, nodes)
    if ranks > found.chips:
        raise Unusable("ranks", f"got {ranks}, expected at most one per chip of {found.name} ({found.chips})")
    # ranks fill a node; fewer than its chips lie apart only when every node has one
    stride = found.node if ranks == nodes > 1 else 1
    return Measured(
        row=row,
        kind=kind,
        size=size,
        ranks=ranks,
        stride=stride,
        system=found,
        seconds=_seconds(cells, kind, ranks, size),
        in_switch="NVLS_ENABLE=0" not in row["notes"],
        notes=tuple(cells.notes),
    )


def _seconds(cells: RowCells, kind: str, ranks: int, size: float) -> float:
    """Seconds as measured.

    factor    all-reduce 2 (R-1)/R,  the others (R-1)/R
    """
    taken, plain, bus = (cells.number(column) for column in ("latency_us", "algbw_GBps", "busbw_GBps"))
    factor = (2 if kind == "all-reduce" else 1) * (ranks - 1) / ranks
    if taken is not None:
        seconds = taken * MICRO
    elif plain is not None:
        seconds = size / (plain * GIGA)
    elif bus is not None:
        seconds = size * factor / (bus * GIGA)
    else:
        raise Unusable("latency_us, algbw_GBps, busbw_GBps", "all blank")
    if not 0 < seconds < LONGEST:
        raise Unusable("latency_us, algbw_GBps, busbw_GBps", f"{seconds:.3g} s is not believable")
    return seconds


def _system(cells: RowCells, ranks: int, nodes: int) -> System:
    chip = cells.text("x_chip")
    for (id, text), other in READ_AS.items():
        if chip == id and cells.text("system") == text:
            cells.note(f"x_chip = {other}: {text!r} is not a system of {chip}")
            chip = other
    if chip not in CHIPS:
        close = near(chip, list(CHIPS)) if chip else ()
        raise Unusable("x_chip", f"got {chip[:40]!r}, expected {' or '.join(close) or 'a chip of the catalog'}")
    rate = next((rate for (id, text), rate in FABRICS.items() if chip == id and text in cells.text("system")), "")
    if rate and nodes > 1:
        cells.note(f"{rate} a chip between domains, as at this site")
    return _built(chip, max(ranks, nodes * SYSTEMS[CHIPS[chip].system].node), rate if nodes > 1 else "")


@cache
def _built(chip: str, chips: int, rate: str) -> System:
    """The system of that many chips, its innermost domains full where they can be; `rate` is that of the outer tier."""
    tiers = SYSTEMS[CHIPS[chip].system].tier
    table: dict[str, object] = {"base": f"{chips}x{chip}"}
    domain = tiers[0].chips
    if domain is not None and chips > domain and chips % domain == 0:
        table["domain"] = domain
    if rate and len(tiers) > 1:
        table["tier"] = {tiers[1].name: {"bandwidth": rate}}
    made = system(table)
    machines_of([made])  # a rate that nobody published is named here
    return made


def predicted_s(measured: Sequence[Measured]) -> Array:
    """Seconds of each collective with the chips to itself, all priced at once."""
    if not measured:
        return np.zeros(0)
    links = bare_links(machines_of([item.system for item in measured]))
    topology = links.topology
    if topology.in_switch is not None:
        able = topology.in_switch * np.array([item.in_switch for item in measured])
        links = replace(links, topology=replace(topology, in_switch=able))
    columns = [[item.size for item in measured], [item.ranks for item in measured], [item.stride for item in measured]]
    size, ranks, stride = (np.array(column, dtype=np.float64) for column in columns)
    kinds = np.array([KINDS[item.kind] for item in measured], dtype=np.int64)
    return collective_seconds(kinds, size, ranks, stride, links)


def size_class(size: float) -> str:
    """Which of a few classes a payload falls in.

    >>> size_class(1024), size_class(1e9)
    ('to 64 KiB', 'larger')
    """
    return next(name for limit, name in SIZES if size <= limit)


@cache
def _spread() -> Mapping[str, tuple[tuple[str, float], ...]]:
    """By class of sizes, chip and log(measured / predicted) of the bundled collectives."""
    read = [measured_of(row) for row in read_table(TRUTH / TABLE, ("collectives",))[1]]
    known = [item for item in read if isinstance(item, Measured)]
    logs = np.log([item.seconds for item in known]) - np.log(predicted_s(known))
    found: dict[str, list[tuple[str, float]]] = {}
    for item, log in zip(known, logs, strict=True):
        found.setdefault(size_class(item.size), []).append((item.system.chip.id, float(log)))
    return MappingProxyType({name: tuple(pairs) for name, pairs in found.items()})


@cache
def _quantiles(chip: str, size: str) -> tuple[float, float]:
    others = [log for owner, log in _spread().get(size, ()) if owner != chip]
    low, high = np.exp(np.quantile(others, [0.05, 0.95])) if others else (0.5, 2.0)
    return float(low), float(high)


def around(item: Measured) -> tuple[float, float]:
    """Where nine of ten measurements lie around a prediction of 1 s: bundled ones of that size on other chips."""
    return _quantiles(item.system.chip.id, size_class(item.size))
