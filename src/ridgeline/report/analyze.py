"""Turn an Analysis into a sheet of facts, and the sheet into a page: where the time went, and what to do about it."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import DECIMAL
from ridgeline.report.cells import NANO, bar, blocks, clean, grid, listed, time
from ridgeline.report.counters import measured_lines, measured_sheet
from ridgeline.report.dependencies import (
    collective_lines,
    dependencies_sheet,
    memory_lines,
    path_lines,
    rank_lines,
    what_if_lines,
)
from ridgeline.report.inference import inference_lines, inference_sheet
from ridgeline.report.sheets.analyze import (
    AnalysisSheet,
    ClassTimesSheet,
    FindingSheet,
    GapSheet,
    IdleCauseSheet,
    LaunchesSheet,
    OpRateSheet,
    OpTimesSheet,
    PartSheet,
    RowTimesSheet,
    TimesSheet,
)
from ridgeline.trace.analysis.breakdown import Breakdown, BreakdownRow, BusyTimes, NameTime
from ridgeline.trace.analysis.idle import IdleCause
from ridgeline.trace.analysis.launches import Launches
from ridgeline.trace.analysis.roofline import OpRate
from ridgeline.trace.analyze import Analysis
from ridgeline.trace.findings.finding import Finding, GapEvidence
from ridgeline.trace.timeline import Timeline

OPS = 20  # names a sheet lists
RATES = 200  # ops with rates a sheet lists
SHOWN = 8  # rows a page shows of a list
WIDE = 30  # cells of a bar
COLOURS = {"compute": "blue", "communication": "magenta", "copy": "green", "waiting": "yellow", "idle": "red"}


def analysis_sheet(found: Analysis) -> AnalysisSheet:
    """Everything an analysis says; times in microseconds, as traces count."""
    parts, about = found.breakdown, found.timeline.about
    return {
        "kind": "analysis",
        "sources": list(about.sources),
        "format": about.format,
        "chip_name": about.chips[0] if about.chips else None,
        "chip": found.chip.id if found.chip else None,
        "ranks": sorted({row.rank for row in parts.chips}),
        **_times(parts.total),
        "policy": parts.policy.name,
        "policy_statement": parts.policy.statement,
        "counted_spans": parts.policy.counted,
        "classes": _classes(found, parts),
        "top_ops": [_name(one) for one in parts.names[:OPS]],
        "idle_causes": [_cause(one, parts) for one in found.idle],
        "findings": [_finding(one, found.timeline) for one in found.findings],
        **dependencies_sheet(found),
        "inference": inference_sheet(found.inference),
        "model": found.model.name if found.model else None,
        "op_rates": [_rate(one) for one in found.rates[:RATES]],
        **measured_sheet(found.measured),
        "launches": [_launches(one) for one in found.launches],
        "unknown_ops": [_name(one) for one in parts.unknown[:OPS]],
        "chips": [_row(row) for row in parts.chips],
        "steps": [_row(row) for row in parts.steps],
        "streams": [_row(row) for row in parts.streams],
        "kept": dict(about.kept),
        "dropped": dict(about.dropped),
        "warnings": [*about.warnings, *found.left_out],
    }


def _us(nanoseconds: int) -> float:
    return nanoseconds / NANO


def _times(times: BusyTimes) -> TimesSheet:
    return {
        "span_us": _us(times.span_ns),
        "busy_us": _us(times.busy_ns),
        "idle_us": _us(times.idle_ns),
        "compute_us": _us(times.compute_ns),
        "communication_us": _us(times.communication_ns),
        "copy_us": _us(times.copy_ns),
        "exposed_communication_us": _us(times.exposed_communication_ns),
        "overlap_fraction": times.overlap_fraction,
    }


def _row(row: BreakdownRow) -> RowTimesSheet:
    part: PartSheet = {"stream": row.stream} if row.stream else {}
    if row.step is not None:
        part["step"] = row.step
    return {"rank": row.rank, "process": row.process, **part, "spans": row.times.spans, **_times(row.times)}


def _classes(found: Analysis, parts: Breakdown) -> list[ClassTimesSheet]:
    return [
        {
            "class": one.id,
            "group": one.group,
            "what": found.rules.what(one.id) or ("no class matches these names" if one.id == "unknown" else ""),
            "spans": one.spans,
            "total_us": _us(one.total_ns),
            "union_us": _us(one.union_ns),
            "share_of_busy": one.share,
        }
        for one in parts.classes
    ]


def _name(one: NameTime) -> OpTimesSheet:
    return {
        "name": one.name,
        "class": one.class_,
        "spans": one.spans,
        "total_us": _us(one.total_ns),
        "longest_us": _us(one.longest_ns),
        "share_of_busy": one.share,
        "span_ids": list(one.rows),
    }


def _cause(one: IdleCause, parts: Breakdown) -> IdleCauseSheet:
    span = sum(row.times.span_ns for row in parts.chips) or 1
    return {
        "cause": one.cause,
        "meaning": one.meaning,
        "idle_us": _us(one.idle_ns) / len(parts.chips),
        "share_of_span": one.idle_ns / span,
        "gaps": one.gaps,
        "longest_us": _us(one.longest_ns),
        "span_ids": list(one.rows),
    }


def _finding(one: Finding, line: Timeline) -> FindingSheet:
    return {
        "rule": one.rule,
        "what": one.what,
        "evidence": [
            {
                "span_id": span.row,
                "name": span.name,
                "start_us": _us(span.start_ns),
                "duration_us": _us(span.duration_ns),
            }
            for span in one.evidence
        ],
        "share_of_step": one.share_of_step,
        "predicted_gain": one.predicted_gain,
        "action": one.action,
        "gap": None if one.gap is None else _gap(one.gap, line),
    }


def _gap(gap: GapEvidence, line: Timeline) -> GapSheet:
    return {
        "process": gap.process,
        "start_us": _us(gap.start_ns),
        "end_us": _us(gap.end_ns),
        "host": [
            {
                "span_id": row,
                "name": line.names[int(line.name[row])],
                "start_us": _us(int(line.start_ns[row])),
                "duration_us": _us(int(line.end_ns[row] - line.start_ns[row])),
            }
            for row in gap.host
        ],
    }


def _rate(one: OpRate) -> OpRateSheet:
    return {
        "op": one.op,
        "operands": one.operands,
        "dtype": one.dtype,
        "class": one.class_,
        "calls": one.calls,
        "total_us": _us(one.total_ns),
        "tflops_per_s": one.flops_per_s / DECIMAL["T"],
        "gbytes_per_s": one.bytes_per_s / DECIMAL["G"],
        "flops": one.flops,
        "bytes": one.size_bytes,
        "bound": one.bound,
        "efficiency": one.efficiency,
        "span_ids": list(one.rows),
        "by_model": one.by_model,
    }


def _launches(one: Launches) -> LaunchesSheet:
    return {
        "rank": one.rank,
        "process": one.process,
        "spans": one.spans,
        "calls": one.calls,
        "unlinked": one.unlinked,
        "call_us": _us(one.call_ns),
        "calls_total_us": _us(one.calls_total_ns),
        "delay_us": _us(one.delay_ns),
        "delay_p99_us": _us(one.delay_p99_ns),
        "queue_depth": one.queue_depth,
        "empty_queue_share": one.empty_queue,
        "graph_replays": one.graph_replays,
        "graph_spans": one.graph_spans,
        "short_spans": one.short_spans,
        "short_us": _us(one.short_ns),
    }


# -- the page ---------------------------------------------------------------------------------------------------------


def draw_analysis(sheet: AnalysisSheet, console: Console) -> None:
    """Print the page of an analysis."""
    console.print(page(sheet))


def page(sheet: AnalysisSheet) -> RenderableType:
    """What was read, where the time went, in which classes and ops, why the chip idled, and what to do."""
    depend = path_lines(sheet) + rank_lines(sheet) + memory_lines(sheet)
    return blocks(
        _headline(sheet), [_split(sheet)], [_by_class(sheet)], _idle(sheet), depend, collective_lines(sheet),
        inference_lines(sheet["inference"], sheet["model"]), _rates(sheet),
        measured_lines(sheet), [_ops(sheet)], _found(sheet), what_if_lines(sheet), _doubts(sheet),
    )  # fmt: skip


def _headline(sheet: AnalysisSheet) -> list[RenderableType]:
    ranks = sheet["ranks"]
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks, mean"
    names = ", ".join(sheet["sources"][:3]) or "a timeline"
    title = Text.assemble(clean(names), f"  {who}", f"  {sheet['chip_name'] or ''}", style="bold")
    return [title, Text.assemble(("counted ", "dim"), clean(f"{sheet['policy']}: {sheet['policy_statement']}"))]


def _split(sheet: AnalysisSheet) -> Table:
    table, span = grid("left", "right", "right", "left", "left"), sheet["span_us"] or 1.0
    overlap = sheet["overlap_fraction"]
    hidden = "" if overlap is None else f"{overlap:.1%} of communication is under compute"
    rows = (
        ("span", sheet["span_us"], "", "first start to last end"),
        ("idle", sheet["idle_us"], "idle", "nothing runs"),
        ("compute", sheet["compute_us"], "compute", "kernels that are not communication"),
        ("communication", sheet["communication_us"], "communication", hidden),
        ("  exposed", sheet["exposed_communication_us"], "communication", "not under any compute kernel"),
        ("copy", sheet["copy_us"], "copy", "memcpy and memset"),
    )
    for name, took, colour, meaning in rows:
        share = took / span
        shown = bar(share, COLOURS[colour], WIDE) if colour else Text("")
        table.add_row(name, time(took), f"{share:.1%}", shown, Text(meaning, style="dim"))
    return table


def _by_class(sheet: AnalysisSheet) -> Table:
    table, chips = grid("left", "right", "right", "left", "right", "left"), max(1, len(sheet["chips"]))
    for one in sheet["classes"][:16]:
        table.add_row(
            one["class"], time(one["union_us"] / chips), f"{one['share_of_busy']:.1%}",
            bar(one["share_of_busy"], COLOURS[one["group"]], WIDE), f"{one['spans']:,}", Text(one["what"], style="dim"),
        )  # fmt: skip
    return table


def _ops(sheet: AnalysisSheet) -> Table:
    table, chips = grid("right", "right", "right", "left", "left"), max(1, len(sheet["chips"]))
    for one in sheet["top_ops"][:SHOWN]:
        name = clean(one["name"])
        name.truncate(96, overflow="ellipsis")
        took = time(one["total_us"] / chips)
        table.add_row(took, f"{one['share_of_busy']:.1%}", f"{one['spans']:,}", one["class"], name)
    return table


def _idle(sheet: AnalysisSheet) -> list[RenderableType]:
    table = grid("left", "right", "right", "left", "right", "left")
    for one in sheet["idle_causes"]:
        share = one["share_of_span"]
        table.add_row(
            one["cause"], time(one["idle_us"]), f"{share:.1%}", bar(share, COLOURS["idle"], WIDE), f"{one['gaps']:,}",
            Text(one["meaning"], style="dim"),
        )  # fmt: skip
    lines: list[RenderableType] = [Text("idle because of", style="dim"), table] if sheet["idle_causes"] else []
    told = dict.fromkeys(_launch_line(one) for one in sheet["launches"])
    who = f" on each of {len(sheet['launches'])} chips" if len(told) == 1 and len(sheet["launches"]) > 1 else ""
    return [*lines, *(Text.assemble((f"launches{who} ", "dim"), one) for one in list(told)[:4])]


def _launch_line(one: LaunchesSheet) -> str:
    graphs = f", {one['graph_spans']:,} from {one['graph_replays']:,} graph replays" if one["graph_replays"] else ""
    return (
        f"{one['spans']:,} spans by {one['calls']:,} calls of {time(one['call_us'])}{graphs}; started "
        f"{time(one['delay_us'])} later, {one['queue_depth']:.1f} queued on average, "
        f"{one['empty_queue_share']:.0%} on an empty queue"
    )


def _rates(sheet: AnalysisSheet) -> list[RenderableType]:
    table = grid("left", "left", "left", "right", "right", "right", "right", "left")
    for one in sheet["op_rates"][:SHOWN]:
        share = "" if one["efficiency"] is None else f"{one['efficiency']:.0%}"
        flops = f"{one['tflops_per_s']:,.0f} TFLOP/s" if one["flops"] else ""
        table.add_row(
            clean(one["op"]), clean(one["operands"][:44]), one["dtype"], time(one["total_us"]), flops,
            f"{one['gbytes_per_s']:,.0f} GB/s", share, f"of the {one['bound']} roof" if share else "",
        )  # fmt: skip
    against = f"rates of ops with recorded shapes, against {sheet['chip'] or 'no chip: name one with --chip'}"
    return [Text(against, style="dim"), table] if sheet["op_rates"] else []


def _found(sheet: AnalysisSheet) -> list[RenderableType]:
    """Findings with what they gain in front; below each what to do, and the spans that prove it."""
    table = grid("right", "right", "left")
    for place, one in enumerate(sheet["findings"][:SHOWN], 1):
        spans = ", ".join(f"#{span['span_id']} {span['name'][:40]}" for span in one["evidence"][:2])
        table.add_row(
            f"{place}.", Text(f"{one['predicted_gain']:.1%}", style="bold"),
            Text.assemble(
                clean(one["what"]), (f"; {one['share_of_step']:.1%} of the span\n", "dim"),
                "→ ", clean(one["action"]), "\n", (f"see {clean(spans)}", "dim"),
            ),
        )  # fmt: skip
    if not sheet["findings"]:
        return [Text("findings: nothing that costs more than 1% of the span", style="dim")]
    rest = len(sheet["findings"]) - SHOWN
    more = [Text(f"and {rest} more with --json or --html", style="dim")] if rest > 0 else []
    return [Text("findings, by what they could gain", style="dim"), table, *more]


def _doubts(sheet: AnalysisSheet) -> list[RenderableType]:
    dropped = ", ".join(f"{count:,} {what}" for what, count in sheet["dropped"].items())
    rest: list[RenderableType] = [Text(f"not kept: {dropped}", style="dim")] if dropped else []
    return [*rest, *listed("doubtful", sheet["warnings"][:SHOWN], style="yellow")]
