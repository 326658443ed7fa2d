"""Turn counters of kernels into a sheet, alone or beside an analysis, and into a table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import DECIMAL
from ridgeline.report.cells import NANO, clean, time
from ridgeline.report.sheets.analyze import (
    AnalysisSheet,
    CountersSheet,
    JoinedCountersSheet,
    KernelCountersSheet,
    MeasuredSheet,
)
from ridgeline.trace.analysis.join_counters import JoinedCounters
from ridgeline.trace.read import ascend
from ridgeline.trace.read.kernel_counters import FORMAT, KernelCounters, read_counters
from ridgeline.trace.read.source import Source

SHOWN = 12  # rows of a table beside an analysis
ALL = 60  # rows of a table alone
LISTED = 200
HEADS = ("time", "launches", "compute", "memory", "DRAM", "", "", "warps", "kernel")


def counters_sheet(path: Path) -> CountersSheet:
    """What a file of counters says, without a timeline."""
    kernels = read_counters(path)
    told = ascend.FORMAT if ascend.recognises(Source(path).head()) else FORMAT
    return {
        "kind": "kernel-counters",
        "sources": [path.name],
        "format": told,
        "launches": sum(one.launches for one in kernels),
        "kernel_counters": [_counters(one) for one in kernels[:LISTED]],
        "names": len(kernels),
    }


def measured_sheet(found: JoinedCounters) -> MeasuredSheet:
    """Counters beside an analysis: kernels of the timeline, and names that are not in it."""
    if not found.kernels and not found.absent:
        return {}
    return {
        "kernel_counters": [
            {
                **_counters(one.counters),
                "class": one.class_,
                "spans": one.spans,
                "total_us": one.total_ns / NANO,
                "span_ids": list(one.rows),
            }
            for one in found.kernels[:LISTED]
        ],
        "counters_not_in_trace": [one.name for one in found.absent[:LISTED]],
    }


def _counters(one: KernelCounters) -> KernelCountersSheet:
    return {
        "name": one.name,
        "launches": one.launches,
        "duration_us": one.duration_ns / NANO,
        "compute_share": one.compute,
        "memory_share": one.memory,
        "dram_share": one.dram,
        "occupancy": one.occupancy,
        "gbytes_per_s": None if one.bytes_per_s is None else one.bytes_per_s / DECIMAL["G"],
        "tflops_per_s": None if one.flops_per_s is None else one.flops_per_s / DECIMAL["T"],
        "registers": one.registers,
        "launch": one.launch,
    }


def draw_counters(sheet: CountersSheet, console: Console) -> None:
    """Print the table of counters without a timeline."""
    title = f"{sheet['sources'][0]}  {sheet['format']}: {sheet['launches']:,} launches of {sheet['names']:,} kernels"
    note = "counters of kernels, no timeline: pass the trace too, ridgeline analyze TRACE --counters FILE"
    kernels = [(one["duration_us"] * one["launches"], one["launches"], one) for one in sheet["kernel_counters"][:ALL]]
    console.print(Group(Text.assemble(clean(title), style="bold"), Text(note, style="dim"), Text(""), _table(kernels)))


def measured_lines(sheet: AnalysisSheet) -> list[RenderableType]:
    """Lines of a page: measured kernels, and what was measured but is not in the trace."""
    if "kernel_counters" not in sheet:
        return []
    lines: list[RenderableType] = []
    if sheet["kernel_counters"]:
        kernels = [(one["total_us"], one["spans"], one) for one in sheet["kernel_counters"][:SHOWN]]
        lines += [Text("measured by counters, as shares of the peak", style="dim"), _table(kernels)]
    absent = sheet["counters_not_in_trace"]
    if absent:
        names = ", ".join(name[:60] for name in absent[:6]) + (" …" if len(absent) > 6 else "")
        lines.append(
            Text.assemble((f"{len(absent)} kernels with counters are not in the trace: ", "dim"), clean(names))
        )
    return lines


def _table(kernels: Iterable[tuple[float, int, KernelCountersSheet | JoinedCountersSheet]]) -> Table:
    """A row for each kernel, behind its total in microseconds and its spans."""
    table = Table(box=None, show_header=True, pad_edge=False, header_style="dim")
    for head in HEADS:
        table.add_column(head, justify="left" if head == "kernel" else "right", no_wrap=head != "kernel")
    for total_us, spans, one in kernels:
        name = clean(one["name"])
        name.truncate(72, overflow="ellipsis")
        table.add_row(
            time(total_us), f"{spans:,}",
            _share(one["compute_share"]), _share(one["memory_share"]), _share(one["dram_share"]),
            _rate(one["gbytes_per_s"], "GB/s"), _rate(one["tflops_per_s"], "TFLOP/s"), _share(one["occupancy"]), name,
        )  # fmt: skip
    return table


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _rate(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:,.1f} {unit}" if value < 100 else f"{value:,.0f} {unit}"
