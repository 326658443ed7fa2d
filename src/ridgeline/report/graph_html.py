"""Draw an op graph as one HTML file: modules that unfold to ops, coloured by bound, regions outlined; or two beside.

The tree is drawn by the page's own script as it is unfolded, a few hundred lines at a time, so that a graph of tens of
thousands of ops opens at once. Totals and regions are tables, which need no script.
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.core.documents import JsonObject
from ridgeline.core.units import format_quantity, signed_quantity, signed_share
from ridgeline.graph import ComparedWork, FusibleRegion, GraphComparison, GraphReport, GraphTotal
from ridgeline.hardware.what_if import chip_title
from ridgeline.ir.op_graph import GraphOp, OpGraph
from ridgeline.report import html
from ridgeline.report.cells import DASH, percent
from ridgeline.report.skeleton import PageHead, page_document

MOST_REGIONS = 40
BOUND = {"product": "compute", "attention": "compute", "collective": "network"}
EVIDENCE = "Kernels are priced by rates fitted to measured regions of an H200; chips are as data sheets say."


def graph_page(report: GraphReport, command: str = "") -> str:
    """The page of one graph."""
    parts = [
        html.facts(_figures(report)),
        html.section("Passes", _total_head(report), [_total_row(report, row) for row in report.phases]),
        '<h2 id="modules">Modules and ops</h2><p class="key">' + _legend() + "</p>"
        '<div id="tree" role="tree" aria-labelledby="modules"></div>'
        '<p id="told" role="status" aria-live="polite">Unfold a module to see its parts and ops.</p>',
        _region_section(report.regions),
        _difference_section(report),
        html.list_items("Notes", report.notes) if report.notes else "",
    ]
    script = f"const graph = {html.as_data(_data(report))};{html.page_part('graph.js')}"
    return page_document(_head(report, command), "".join(parts), "graph", script=script)


def comparison_page(comparison: GraphComparison, command: str = "") -> str:
    """The page of two graphs of one program: what either joins and the other does not."""
    first, second = comparison.first, comparison.second
    difference = signed_quantity(comparison.difference_s, "s")
    head = PageHead(
        verb="graph",
        question=f"What does {second.source} fuse otherwise than {first.source}?",
        answer=f"On {chip_title(comparison.chip)} the second takes {difference} beside "
        f"{format_quantity(comparison.first_s, 's')} of the first.",
        certainty=f"{format_quantity(comparison.low_s, 's')} to {format_quantity(comparison.high_s, 's')} for the "
        "difference, by regions that no fit saw.",
        subject=(("First", f"{first.name}, {first.source}"), ("Second", f"{second.name}, {second.source}")),
        evidence=EVIDENCE,
        command=command,
    )
    names = ("work", "ops", "kernels", "", "bytes", "", "time", "", "difference", "fuses more")
    rows = [_compared_row(row) for row in sorted(comparison.rows, key=lambda row: -abs(row.difference_s))]
    body = html.section("Part by part, the first and the second", names, rows, text=(0, 1, 9))
    notes = html.list_items("Notes", comparison.notes) if comparison.notes else ""
    return page_document(head, body + notes, "graph")


def _compared_row(row: ComparedWork) -> tuple[object, ...]:
    sides = (row.first, row.second)
    kernels = [f"{side.kernels:,.0f}" for side in sides]
    moved = [format_quantity(side.bytes, "B", 3) for side in sides]
    times = [format_quantity(side.seconds, "s", 3) for side in sides]
    return (row.work, row.ops, *kernels, *moved, *times, signed_quantity(row.difference_s, "s"), row.fuses_more or DASH)


def _head(report: GraphReport, command: str) -> PageHead:
    graph, chip = report.graph, report.chip
    answer = f"{len(graph.ops):,} ops run as {graph.launches:,.0f} kernels"
    certainty = "Flops and bytes follow from shapes; without a chip there are no times."
    subject = [("Graph", f"{graph.name}, {graph.source}")]
    subject += [("Sizes", ", ".join(f"{name} {size}" for name, size in report.sizes.items()))]
    if chip is not None and report.apart_s and report.joined_s is not None:
        gain = percent((report.apart_s - report.joined_s) / report.apart_s)
        answer += f"; op by op they take {format_quantity(report.apart_s, 's')}, and a compiler's fusing gains {gain}"
        subject.append(("Chip", chip_title(chip)))
        certainty = "Each region's interval holds nine of ten measured regions that its fit did not see."
    return PageHead(
        verb="graph", question=f"What could be fused in {graph.name}, and what would it gain?", answer=f"{answer}.",
        certainty=certainty, subject=tuple(subject), evidence=EVIDENCE, command=command,
    )  # fmt: skip


def _figures(report: GraphReport) -> list[tuple[str, str]]:
    graph = report.graph
    figures = [
        (f"{len(graph.ops):,}", "ops"), (f"{graph.launches:,.0f}", "kernels of a step"),
        (format_quantity(graph.flops, "FLOP", 4), "of products and attention"),
        (format_quantity(graph.saved_bytes, "B", 3), "saved for the backward"),
    ]  # fmt: skip
    if report.check is not None:
        figures.append((signed_share(report.check.share, 3), "flops beside lowering's"))
    return figures


def _total_head(report: GraphReport) -> tuple[str, ...]:
    return ("pass", "ops", "kernels", "flops", "bytes", *(("time",) if report.chip is not None else ()))


def _total_row(report: GraphReport, row: GraphTotal) -> tuple[str, ...]:
    seconds = (format_quantity(row.seconds, "s", 3),) if report.chip is not None and row.seconds is not None else ()
    flops = format_quantity(row.flops, "FLOP", 4) if row.flops else DASH
    return (row.phase, f"{row.ops:,.0f}", f"{row.kernels:,.0f}", flops, format_quantity(row.bytes, "B", 4), *seconds)


def _legend() -> str:
    words = {"compute": "products and attention", "memory": "bound by memory", "network": "collectives"}
    marks = "".join(f'<span><i class="swatch {name}"></i>{text}</span>' for name, text in words.items())
    return f'{marks}<span><i class="swatch outlined"></i>one kernel, if fused</span>'


def _region_section(regions: Sequence[FusibleRegion]) -> str:
    head = ("region", "where", "pass", "runs", "kernels", "bytes", "saved", "now", "gain", "by", "loses")
    rows = [
        (
            region.kind, region.module or DASH, region.phase, str(region.count),
            f"{region.launches} to {region.after_launches}",
            f"{format_quantity(region.bytes, 'B', 3)} to {format_quantity(region.after_bytes, 'B', 3)}",
            f"{format_quantity(region.saved_bytes, 'B', 3)} to {format_quantity(region.after_saved_bytes, 'B', 3)}",
            format_quantity(region.now_s, "s", 3), format_quantity(region.gain_s, "s", 3), region.best,
            ", ".join(region.loses) or DASH,
        )
        for region in regions[:MOST_REGIONS]
    ]  # fmt: skip
    return html.section("What could be fused, the largest gain first", head, rows, text=(0, 1, 2, 9, 10))


def _difference_section(report: GraphReport) -> str:
    if report.check is None:
        return ""
    rows = [
        (row.part, row.kind, row.phase, format_quantity(row.recorded_flops, "FLOP", 4),
         format_quantity(row.lowered_flops, "FLOP", 4), signed_share(row.share, 2))
        for row in report.check.differences
    ]  # fmt: skip
    head = ("part", "kind", "pass", "recorded", "lowering", "difference")
    return html.section("Where lowering counts otherwise", head, rows, text=(0, 1, 2))


def _data(report: GraphReport) -> JsonObject:
    """What the script draws: names once, and a short list for each op."""
    graph = report.graph
    region_of = {op: place for place, region in enumerate(report.regions) for op in region.numbers[::-1]}
    if not report.regions:
        region_of = {op: fusion.id for fusion in graph.fusions for op in fusion.ops}
    names = list(dict.fromkeys(op.name for op in graph.ops))
    modules = list(dict.fromkeys(op.module for op in graph.ops))
    name_places, module_places = ({name: place for place, name in enumerate(list_)} for list_ in (names, modules))
    return {
        "names": [html.printable(name) for name in names],
        "modules": [html.printable(module) for module in modules],
        "timed": report.chip is not None,
        "regions": _region_names(report, graph),
        "ops": [
            [
                name_places[op.name], module_places[op.module], op.phase, BOUND.get(op.kind, "memory"), op.count,
                _weight(report, op), region_of.get(op.id, -1), _shapes(graph, op), op.bytes, op.flops,
            ]
            for op in graph.ops
            if op.kind != "view"
        ],
    }  # fmt: skip


def _region_names(report: GraphReport, graph: OpGraph) -> list[str]:
    if report.regions:
        return [f"{region.kind}, gains {format_quantity(region.gain_s, 's', 3)}" for region in report.regions]
    return [html.printable(fusion.name) for fusion in graph.fusions]


def _weight(report: GraphReport, op: GraphOp) -> float:
    """Seconds of all runs of an op, or bytes where there is no chip."""
    return (report.op_seconds.get(op.id, 0.0) if report.chip is not None else op.bytes) * op.count


def _shapes(graph: OpGraph, op: GraphOp) -> str:
    """What it writes: shape and format."""
    tensors = [graph.tensors[number] for number in op.outputs[:2]]
    return html.printable(", ".join(f"{tensor.dtype}{list(tensor.shape)}" for tensor in tensors), 80)
