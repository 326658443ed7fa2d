"""Draw an Analysis: where the time went, and what to do about it."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.core.encode import NANOSECONDS_PER_US
from ridgeline.core.units import DECIMAL
from ridgeline.report.cells import bar, blocks, clean, grid, listed, time
from ridgeline.report.counters import measured_lines
from ridgeline.report.dependencies import (
    collective_lines,
    memory_lines,
    path_lines,
    rank_lines,
    what_if_lines,
)
from ridgeline.report.inference import inference_lines
from ridgeline.trace.analysis.launches import Launches
from ridgeline.trace.analyze import Analysis

SHOWN = 8  # rows a page shows of a list
WIDE = 30  # cells of a bar
COLOURS = {"compute": "blue", "communication": "magenta", "copy": "green", "waiting": "yellow", "idle": "red"}


# -- the page ---------------------------------------------------------------------------------------------------------


def draw_analysis(analysis: Analysis, console: Console) -> None:
    """Print the page of an analysis."""
    console.print(page(analysis))


def page(analysis: Analysis) -> RenderableType:
    """What was read, where the time went, in which classes and ops, why the chip idled, and what to do."""
    depend = path_lines(analysis) + rank_lines(analysis) + memory_lines(analysis)
    return blocks(
        _headline(analysis), [_split(analysis)], [_by_class(analysis)], _idle(analysis), depend,
        collective_lines(analysis),
        inference_lines(analysis.inference, analysis.model.name if analysis.model else None), _rates(analysis),
        measured_lines(analysis), [_ops(analysis)], _found(analysis), what_if_lines(analysis), _doubts(analysis),
    )  # fmt: skip


def _headline(analysis: Analysis) -> list[RenderableType]:
    ranks = analysis.rank_numbers
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks, mean"
    names = ", ".join(analysis.timeline.about.sources[:3]) or "a timeline"
    title = Text.assemble(clean(names), f"  {who}", f"  {analysis.chip_name or ''}", style="bold")
    policy = analysis.breakdown.policy
    return [title, Text.assemble(("counted ", "dim"), clean(f"{policy.name}: {policy.statement}"))]


def _split(analysis: Analysis) -> Table:
    total = analysis.breakdown.total
    table, span = grid("left", "right", "right", "left", "left"), total.span_ns or 1.0
    overlap = total.overlap_fraction
    hidden = "" if overlap is None else f"{overlap:.1%} of communication is under compute"
    rows = (
        ("span", total.span_ns, "", "first start to last end"),
        ("idle", total.idle_ns, "idle", "nothing runs"),
        ("compute", total.compute_ns, "compute", "kernels that are not communication"),
        ("communication", total.communication_ns, "communication", hidden),
        ("  exposed", total.exposed_communication_ns, "communication", "not under any compute kernel"),
        ("copy", total.copy_ns, "copy", "memcpy and memset"),
    )
    for name, took, colour, meaning in rows:
        share = took / span
        shown = bar(share, COLOURS[colour], WIDE) if colour else Text("")
        table.add_row(name, time(took), f"{share:.1%}", shown, Text(meaning, style="dim"))
    return table


def _by_class(analysis: Analysis) -> Table:
    table, chips = grid("left", "right", "right", "left", "right", "left"), max(1, len(analysis.breakdown.chips))
    for one in analysis.breakdown.classes[:16]:
        table.add_row(
            one.id, time(one.union_ns / chips), f"{one.share:.1%}",
            bar(one.share, COLOURS[one.group], WIDE), f"{one.spans:,}", Text(one.what, style="dim"),
        )  # fmt: skip
    return table


def _ops(analysis: Analysis) -> Table:
    table, chips = grid("right", "right", "right", "left", "left"), max(1, len(analysis.breakdown.chips))
    for one in analysis.breakdown.names[:SHOWN]:
        name = clean(one.name)
        name.truncate(96, overflow="ellipsis")
        took = time(one.total_ns / chips)
        table.add_row(took, f"{one.share:.1%}", f"{one.spans:,}", one.class_, name)
    return table


def _idle(analysis: Analysis) -> list[RenderableType]:
    table = grid("left", "right", "right", "left", "right", "left")
    for one in analysis.idle_causes:
        share = one.share_of_span
        table.add_row(
            one.idle.cause, time(one.idle_us * NANOSECONDS_PER_US), f"{share:.1%}", bar(share, COLOURS["idle"], WIDE),
            f"{one.idle.gaps:,}",
            Text(one.idle.meaning, style="dim"),
        )  # fmt: skip
    lines: list[RenderableType] = [Text("idle because of", style="dim"), table] if analysis.idle_causes else []
    told = dict.fromkeys(_launch_line(one) for one in analysis.launches)
    who = f" on each of {len(analysis.launches)} chips" if len(told) == 1 and len(analysis.launches) > 1 else ""
    return [*lines, *(Text.assemble((f"launches{who} ", "dim"), one) for one in list(told)[:4])]


def _launch_line(one: Launches) -> str:
    graphs = f", {one.graph_spans:,} from {one.graph_replays:,} graph replays" if one.graph_replays else ""
    return (
        f"{one.spans:,} spans by {one.calls:,} calls of {time(one.call_ns)}{graphs}; started "
        f"{time(one.delay_ns)} later, {one.queue_depth:.1f} queued on average, "
        f"{one.empty_queue:.0%} on an empty queue"
    )


def _rates(analysis: Analysis) -> list[RenderableType]:
    table = grid("left", "left", "left", "right", "right", "right", "right", "left")
    for one in analysis.rates[:SHOWN]:
        share = "" if one.efficiency is None else f"{one.efficiency:.0%}"
        flops = f"{one.flops_per_s / DECIMAL['T']:,.0f} TFLOP/s" if one.flops else ""
        table.add_row(
            clean(one.op), clean(one.operands[:44]), one.dtype, time(one.total_ns), flops,
            f"{one.bytes_per_s / DECIMAL['G']:,.0f} GB/s", share, f"of the {one.bound} roof" if share else "",
        )  # fmt: skip
    chip = analysis.chip.id if analysis.chip else "no chip: name one with --chip"
    against = f"rates of ops with recorded shapes, against {chip}"
    return [Text(against, style="dim"), table] if analysis.rates else []


def _found(analysis: Analysis) -> list[RenderableType]:
    """Findings with what they gain in front; below each what to do, and the spans that prove it."""
    table = grid("right", "right", "left")
    for place, one in enumerate(analysis.findings[:SHOWN], 1):
        spans = ", ".join(f"#{span.row} {span.name[:40]}" for span in one.evidence[:2])
        table.add_row(
            f"{place}.", Text(f"{one.predicted_gain:.1%}", style="bold"),
            Text.assemble(
                clean(one.what), (f"; {one.share_of_step:.1%} of the span\n", "dim"),
                "→ ", clean(one.action), "\n", (f"see {clean(spans)}", "dim"),
            ),
        )  # fmt: skip
    if not analysis.findings:
        return [Text("findings: nothing that costs more than 1% of the span", style="dim")]
    rest = len(analysis.findings) - SHOWN
    more = [Text(f"and {rest} more with --json or --html", style="dim")] if rest > 0 else []
    return [Text("findings, by what they could gain", style="dim"), table, *more]


def _doubts(analysis: Analysis) -> list[RenderableType]:
    dropped = ", ".join(f"{count:,} {what}" for what, count in analysis.timeline.about.dropped.items())
    rest: list[RenderableType] = [Text(f"not kept: {dropped}", style="dim")] if dropped else []
    return [*rest, *listed("doubtful", analysis.warnings[:SHOWN], style="yellow")]
