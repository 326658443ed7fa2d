"""Draw a GraphReport on a terminal: totals by pass, agreement with lowering, and what could be fused."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import format_quantity, signed_share
from ridgeline.graph import FusibleRegion, GraphReport, GraphTotal, RecomputeAnswer
from ridgeline.report.cells import DASH, blocks, clean, header_table, list_lines, percent

SHOWN = 16  # regions on a page
MODULES = 20  # modules on a page
DIFFERENCES = 6  # places where lowering counts otherwise


def draw_graph(report: GraphReport, console: Console) -> None:
    """Print the graph's totals, where lowering differs, and on a chip every region with its gain."""
    graph = report.graph
    sizes = ", ".join(f"{name} {size}" for name, size in report.sizes.items())
    title = f"{graph.name}, {sizes or 'a graph of a file'}: {len(graph.ops)} ops by {graph.source}"
    title_line = Text(clean(title).plain, style="bold")
    parts: list[list[Text | Table]] = [[title_line, _check_line(report)], [_phases(report)], [_modules(report)]]
    if report.chip is not None:
        parts += [[_gain_line(report)], [_regions(report)]]
    if report.recompute is not None:
        parts.append([_recompute(report.recompute)])
    console.print(blocks(*parts, list_lines("notes", report.notes)))


def _check_line(report: GraphReport) -> Text:
    if report.check is None:
        return Text("not held against lowering: no description of this module", style="dim")
    check = report.check
    totals = [format_quantity(flops, "FLOP", 4) for flops in (check.recorded_flops, check.lowered_flops)]
    words = f"{totals[0]}, lowering {totals[1]}"
    share = signed_share(check.share, digits=3) if check.rows else DASH
    lines = [f"flops {words}: {share}{'' if check.agrees else ', which is more than 0.5 % apart'}"]
    lines += [
        f"  {row.part}, {row.kind}, {row.phase}: {format_quantity(row.recorded_flops, 'FLOP', 4)}, lowering "
        f"{format_quantity(row.lowered_flops, 'FLOP', 4)}"
        for row in check.differences[:DIFFERENCES]
    ]
    return Text("\n".join(lines), style="" if check.agrees else "yellow")


def _totals(report: GraphReport, rows: tuple[GraphTotal, ...], name: str) -> Table:
    columns = ("ops", "kernels", "flops", "bytes", *(("time",) if report.chip else ()))
    table = header_table((name, *columns), right=columns)
    for row in rows:
        label = f"{row.module} {row.phase}" if row.module else row.phase
        seconds = [format_quantity(row.seconds, "s", 3)] if row.seconds is not None else []
        flops = format_quantity(row.flops, "FLOP", 4) if row.flops else DASH
        cells = (f"{row.ops:,.0f}", f"{row.kernels:,.0f}", flops, format_quantity(row.bytes, "B", 4), *seconds)
        table.add_row(clean(label), *cells)
    return table


def _phases(report: GraphReport) -> Table:
    return _totals(report, report.phases, "pass")


def _modules(report: GraphReport) -> Table:
    """The modules that take longest, or move most where there is no chip."""
    rows = sorted(report.modules, key=lambda row: -(row.seconds if row.seconds is not None else row.bytes))
    return _totals(report, tuple(rows[:MODULES]), "module")


def _gain_line(report: GraphReport) -> Text:
    apart_s, joined_s = report.apart_s or 0.0, report.joined_s or 0.0
    words = f"{format_quantity(apart_s, 's', 4)} op by op, {format_quantity(joined_s, 's', 4)} joined by a compiler"
    chip = report.chip.id if report.chip is not None else ""
    if report.compiled_s is not None:
        words += f", {format_quantity(report.compiled_s, 's', 4)} as {graph_compiler(report)} fused it"
    fused_names = ", ".join(f"{name} x{count:.0f}" for name, count in report.fused_now.items())
    gain = percent((apart_s - joined_s) / apart_s) if apart_s else DASH
    return Text(f"on {chip}: {words}, which gains {gain}\nfused already: {fused_names or 'nothing'}")


def graph_compiler(report: GraphReport) -> str:
    """Who fused a graph that a compiler wrote."""
    return next((fusion.by for fusion in report.graph.fusions if fusion.by), "its compiler")


def _regions(report: GraphReport) -> Table:
    columns = ("runs", "kernels", "bytes", "saved", "now", "gain")
    table = header_table(("could be fused", "where", *columns, "by", "loses"), right=columns)
    for region in report.regions[:SHOWN]:
        table.add_row(*_region_cells(region))
    return table


def _recompute(answer: RecomputeAnswer) -> Table:
    """Layers by what they save, then what whole layers would cost."""
    columns = ("layers", "saved of one", "again of one")
    table = header_table(("what to save within the budget", *columns, "of what could be saved"), right=columns)
    for front in answer.fronts:
        for place, layers in answer.plan.counts[front.path].items():
            item = front.sets[place]
            left_out = [name for name in front.sets[-1].saved if name not in item.saved]
            redone_words = f"all but {', '.join(left_out)}" if left_out else "everything"
            cells = (str(layers), format_quantity(item.bytes, "B", 3), format_quantity(item.seconds, "s", 3))
            table.add_row(clean(front.path or "all"), *cells, clean(redone_words[:100]))
    for name, plan in (("together", answer.plan), (" ".join(answer.settings), answer.whole_plan)):
        table.add_row(name, "", format_quantity(plan.bytes, "B", 3), format_quantity(plan.seconds, "s", 3), "")
    return table


def _region_cells(region: FusibleRegion) -> tuple[str | Text, ...]:
    return (
        Text(f"{region.kind}, {region.phase}"),
        clean(region.module or DASH),
        str(region.count),
        f"{region.launches} to {region.after_launches}",
        f"{format_quantity(region.bytes, 'B', 3)} to {format_quantity(region.after_bytes, 'B', 3)}",
        f"{format_quantity(region.saved_bytes, 'B', 3)} to {format_quantity(region.after_saved_bytes, 'B', 3)}",
        format_quantity(region.now_s, "s", 3),
        format_quantity(region.gain_s, "s", 3),
        region.best,
        ", ".join(region.loses) or DASH,
    )
