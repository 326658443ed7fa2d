"""Draw counters of kernels, alone or beside an analysis."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import DECIMAL
from ridgeline.report.cells import clean, time
from ridgeline.trace.analyze import Analysis
from ridgeline.trace.read.kernel_counters import CounterFile, KernelCounters

SHOWN = 12  # rows of a table beside an analysis
ALL = 60  # rows of a table alone
HEADS = ("time", "launches", "compute", "memory", "DRAM", "", "", "warps", "kernel")


def draw_counters(found: CounterFile, console: Console) -> None:
    """Print the table of counters without a timeline."""
    title = f"{found.sources[0]}  {found.format}: {found.launches:,} launches of {found.names:,} kernels"
    note = "counters of kernels, no timeline: pass the trace too, ridgeline analyze TRACE --counters FILE"
    kernels = [(one.duration_ns * one.launches, one.launches, one) for one in found.kernels[:ALL]]
    console.print(Group(Text.assemble(clean(title), style="bold"), Text(note, style="dim"), Text(""), _table(kernels)))


def measured_lines(analysis: Analysis) -> list[RenderableType]:
    """Lines of a page: measured kernels, and what was measured but is not in the trace."""
    found = analysis.measured
    lines: list[RenderableType] = []
    if found.kernels:
        kernels = [(one.total_ns, one.spans, one.counters) for one in found.kernels[:SHOWN]]
        lines += [Text("measured by counters, as shares of the peak", style="dim"), _table(kernels)]
    absent = found.absent_names
    if absent:
        names = ", ".join(name[:60] for name in absent[:6]) + (" …" if len(absent) > 6 else "")
        lines.append(
            Text.assemble((f"{len(absent)} kernels with counters are not in the trace: ", "dim"), clean(names))
        )
    return lines


def _table(kernels: Iterable[tuple[float, int, KernelCounters]]) -> Table:
    """A row for each kernel, behind its total in nanoseconds and its spans."""
    table = Table(box=None, show_header=True, pad_edge=False, header_style="dim")
    for head in HEADS:
        table.add_column(head, justify="left" if head == "kernel" else "right", no_wrap=head != "kernel")
    for total_ns, spans, one in kernels:
        name = clean(one.name)
        name.truncate(72, overflow="ellipsis")
        table.add_row(
            time(total_ns), f"{spans:,}",
            _share(one.compute), _share(one.memory), _share(one.dram),
            _rate(one.bytes_per_s, "G", "B/s"), _rate(one.flops_per_s, "T", "FLOP/s"), _share(one.occupancy), name,
        )  # fmt: skip
    return table


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _rate(value: float | None, prefix: str, unit: str) -> str:
    rate = 0.0 if value is None else value / DECIMAL[prefix]
    return "" if value is None else f"{rate:,.1f} {prefix}{unit}" if rate < 100 else f"{rate:,.0f} {prefix}{unit}"
