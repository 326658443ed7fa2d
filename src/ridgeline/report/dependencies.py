"""Turn what an analysis says about dependencies into sheets and lines: critical path, ranks, memory, what-ifs."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from ridgeline.core.units import DECIMAL, format_quantity, signed_share
from ridgeline.report.cells import NANO, clean, grid, time
from ridgeline.report.sheets.analyze import AnalysisSheet
from ridgeline.report.sheets.dependencies import (
    CollectiveSizeSheet,
    CriticalPathSheet,
    DependenciesSheet,
    MemoryPeakSheet,
    PathSheet,
    WhatIfSheet,
)
from ridgeline.trace.analysis.collectives import CollectiveSize
from ridgeline.trace.analysis.critical_path import CriticalPath
from ridgeline.trace.analysis.memory_peaks import MemoryPeak
from ridgeline.trace.analysis.what_if import WhatIfAnswer
from ridgeline.trace.analyze import Analysis
from ridgeline.trace.timeline import Timeline

SHOWN = 8
SIZES = 100  # collectives by type and size in a sheet


def dependencies_sheet(found: Analysis) -> DependenciesSheet:
    """The keys of an analysis that rest on dependencies; times in microseconds."""
    ranks = found.ranks
    return {
        "critical_path": _critical(found),
        "collectives": {
            "by_size": [_size(one) for one in found.collectives[:SIZES]],
            "matched": ranks.collectives,
            "unmatched_parts": ranks.unmatched,
            "sends_matched": ranks.pairs,
            "sends_unmatched": ranks.alone,
            "by_skew": [
                {
                    "group": one.group, "name": one.name, "sequence": one.sequence, "skew_us": one.skew_ns / NANO,
                    "last_rank": one.last, "ranks": list(one.ranks), "wait_us": [wait / NANO for wait in one.waits_ns],
                    "transfer_us": one.transfer_ns / NANO, "span_ids": list(one.rows),
                }
                for one in ranks.arrivals
            ],
        },
        "stragglers": [
            {
                "rank": one.rank, "last": one.last, "caused_us": one.caused_ns / NANO,
                "waited_us": one.waited_ns / NANO, "clock_us": one.clock_ns / NANO,
            }
            for one in ranks.stragglers
        ],
        "pipeline": [
            {
                "process": one.process, "rank": one.rank, "window_us": one.window_ns / NANO,
                "bubble_us": one.bubble_ns / NANO, "bubble_share": one.share,
                "warm_up_us": one.warm_up_ns / NANO, "cool_down_us": one.cool_down_ns / NANO,
                "waits": [
                    {"rank": wait.rank, "waiting_us": wait.waiting_ns / NANO, "transfer_us": wait.transfer_ns / NANO}
                    for wait in one.waits
                ],
                "other_us": one.other_ns / NANO,
            }
            for one in ranks.bubbles
        ],
        "memory": [_memory(one) for one in found.memory],
        "what_if": [_answer(one) for one in found.what_if],
    }  # fmt: skip


def _size(one: CollectiveSize) -> CollectiveSizeSheet:
    link, rate, bound = one.link_bytes_per_s, one.busbw, one.bound_ns
    return {
        "name": one.name,
        "payload_bytes": one.payload_bytes,
        "group_size": one.group_size,
        "calls": one.calls,
        "total_us": one.total_ns / NANO,
        "transfer_us": one.transfer_ns / NANO,
        "fastest_us": one.fastest_ns / NANO,
        "wait_us": one.wait_ns / NANO,
        "matched": one.matched,
        "last_ranks": {str(rank): many for rank, many in one.last.items()},
        "busbw_gbytes_per_s": None if rate is None else rate / DECIMAL["G"],
        "link_gbytes_per_s": None if link is None else link / DECIMAL["G"],
        "share_of_link": one.share_of_link,
        "bound_us": None if bound is None else bound / NANO,
        "span_ids": list(one.rows),
    }


def _critical(found: Analysis) -> CriticalPathSheet | None:
    path = found.critical
    if path is None:
        return None
    return {
        **_path(path.whole, found.timeline),
        "steps": [_path(one, found.timeline) for one in path.steps],
        "slack": [
            {"class": one.id, "spans": one.spans, "critical": one.critical, "median_us": one.median_ns / NANO}
            for one in path.slack
        ],
        "dependencies": [{"kind": one.kind, "recorded": one.recorded, "edges": one.edges} for one in path.edges],
    }


def _path(one: CriticalPath, line: Timeline) -> PathSheet:
    sheet: PathSheet = {
        "length_us": one.length_ns / NANO,
        "spans_on_it": one.many,
        "parts": [
            {"part": part.id, "where": part.where, "us": part.ns / NANO, "share": part.share} for part in one.parts
        ],
        "streams": [{"stream": part.id, "us": part.ns / NANO, "share": part.share} for part in one.streams],
        "spans": [
            {"span_id": span.row, "name": line.names[int(line.name[span.row])], "us": span.ns / NANO}
            for span in one.spans
        ],
    }
    return sheet if one.step is None else {"step": one.step, **sheet}


def _memory(one: MemoryPeak) -> MemoryPeakSheet:
    return {
        "process": one.process,
        "rank": one.rank,
        "changes": one.changes,
        "first_bytes": one.first_bytes,
        "peak_bytes": one.peak_bytes,
        "peak_us": one.peak_ns / NANO,
        "reserved_bytes": one.reserved_bytes,
        "step": one.step,
        "phase": one.phase,
        "op": one.op,
        "span_id": one.row if one.row >= 0 else None,
        "growth_by_phase": {growth.id: growth.size_bytes for growth in one.phases},
        "growth_by_op": {growth.id: growth.size_bytes for growth in one.ops},
        "steps": [{"step": number, "peak_bytes": size} for number, size in one.steps],
    }


def _answer(one: WhatIfAnswer) -> WhatIfSheet:
    return {
        "what_if": one.question,
        "meaning": one.meaning,
        "spans": one.spans,
        "span_us": one.after_ns / NANO,
        "measured_span_us": one.before_ns / NANO,
        "gain": one.gain,
        "steps": [
            {"step": number, "measured_us": before / NANO, "us": after / NANO} for number, before, after in one.steps
        ],
    }


# -- the page ---------------------------------------------------------------------------------------------------------


def what_if_lines(sheet: AnalysisSheet) -> list[RenderableType]:
    """Questions and what replays answered."""
    if not sheet["what_if"]:
        return []
    table = grid("left", "right", "right", "left")
    for one in sheet["what_if"]:
        gain = signed_share(-one["gain"]) if one["gain"] else "0.0%"
        table.add_row(clean(one["what_if"]), time(one["span_us"]), gain, Text(one["meaning"], style="dim"))
    return [Text("what if, by replaying the dependencies", style="dim"), table]


def path_lines(sheet: AnalysisSheet) -> list[RenderableType]:
    """What the critical path consists of, in one line."""
    path = sheet["critical_path"]
    if path is None:
        return []
    parts = ", ".join(f"{part['part']} {part['share']:.0%}" for part in path["parts"][:7] if part["share"] >= 0.005)
    guessed = sum(one["edges"] for one in path["dependencies"] if not one["recorded"])
    every = sum(one["edges"] for one in path["dependencies"])
    return [
        Text.assemble(("critical path ", "dim"), parts, (f"   {guessed:,} of {every:,} dependencies inferred", "dim"))
    ]


def rank_lines(sheet: AnalysisSheet) -> list[RenderableType]:
    """Stragglers and bubbles."""
    every = sheet["collectives"]["matched"]
    lines: list[RenderableType] = [
        Text.assemble(
            ("straggler ", "dim"),
            f"rank {one['rank']} came last to {one['last']:,} of {every:,} collectives; "
            f"the others waited {time(one['caused_us'])} for it",
        )
        for one in sheet["stragglers"][:3]
        if one["caused_us"]
    ]
    if sheet["pipeline"]:
        parts = ", ".join(f"{one['process']} {one['bubble_share']:.1%}" for one in sheet["pipeline"][:SHOWN])
        lines.append(Text.assemble(("pipeline bubble ", "dim"), clean(parts)))
    return lines


def collective_lines(sheet: AnalysisSheet) -> list[RenderableType]:
    """Collectives by type and size: how long, how fast, against the link, who came last."""
    sizes = sheet["collectives"]["by_size"]
    if not sizes:
        return []
    table = grid("left", "right", "right", "right", "right", "right", "left", "left")
    for one in sizes[:SHOWN]:
        rate, link = one["busbw_gbytes_per_s"], one["link_gbytes_per_s"]
        share = f"{one['share_of_link']:.0%} of {link:,.0f}" if one["share_of_link"] is not None else ""
        last = max(one["last_ranks"].items(), key=lambda entry: entry[1], default=None)
        table.add_row(
            one["name"], format_quantity(one["payload_bytes"], "B", 3) if one["payload_bytes"] else "",
            f"{one['group_size']} ranks" if one["group_size"] else "", f"{one['calls']:,}", time(one["transfer_us"]),
            f"{rate:,.0f} GB/s" if rate is not None else "", share,
            Text(f"rank {last[0]} last to {last[1]:,}" if last else "", style="dim"),
        )  # fmt: skip
    told = "collectives by type and size: calls, median transfer, bus bandwidth a rank, of the link"
    return [Text(told, style="dim"), table]


def memory_lines(sheet: AnalysisSheet) -> list[RenderableType]:
    """The peak of each chip and what had grown until then."""
    lines: list[RenderableType] = []
    for one in sheet["memory"][:4]:
        grown = ", ".join(
            f"{id} {format_quantity(size, 'B', 3)}" for id, size in list(one["growth_by_phase"].items())[:3]
        )
        lines.append(
            Text.assemble(
                ("memory ", "dim"), f"{format_quantity(one['peak_bytes'], 'B', 4)} at most, in {one['phase']}, at ",
                clean(one["op"][:60]), (f"; grown since the trace began: {grown}" if grown else "", "dim"),
            )
        )  # fmt: skip
    return lines
