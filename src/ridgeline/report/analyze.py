"""Draw an Analysis: where the time went, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.core.encode import NANOSECONDS_PER_US
from ridgeline.core.units import DECIMAL, format_quantity, signed_share
from ridgeline.report.cells import BarRow, bar, bar_table, blocks, clean, grid, list_lines, time
from ridgeline.trace import Analysis, CounterFile, MemoryRecord, QueryAnswer

SHOWN = 8  # rows a page shows of a list
WIDE = 30  # cells of a bar
COLOURS = {"compute": "blue", "communication": "magenta", "copy": "green", "waiting": "yellow", "idle": "red"}


def draw_analysis(analysis: Analysis, console: Console) -> None:
    """Print what was read, where the time went, in which classes and ops, why the chip idled, and what to do."""
    depend = _path_lines(analysis) + _rank_lines(analysis) + _memory_lines(analysis)
    parts = (
        _headline(analysis), [_split(analysis)], [_by_class(analysis)], _idle(analysis), depend,
        _collective_lines(analysis), _inference_lines(analysis), _rates(analysis),
        _measured_lines(analysis), [_ops(analysis)], _finding_lines(analysis), _what_if_lines(analysis),
        _doubts(analysis),
    )  # fmt: skip
    console.print(blocks(*parts))


def _headline(analysis: Analysis) -> list[RenderableType]:
    ranks = analysis.rank_numbers
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks, mean"
    names = ", ".join(analysis.timeline.about.sources[:3]) or "a timeline"
    title = Text.assemble(clean(names), f"  {who}", f"  {analysis.chip_name or ''}", style="bold")
    policy = analysis.breakdown.policy
    return [title, Text.assemble(("counted ", "dim"), clean(f"{policy.name}: {policy.statement}"))]


def _split(analysis: Analysis) -> Table:
    total = analysis.breakdown.total
    span, overlap = total.span_ns or 1.0, total.overlap_fraction
    hidden = "" if overlap is None else f"{overlap:.1%} of communication is under compute"
    rows = (
        ("span", total.span_ns, "", "first start to last end"),
        ("idle", total.idle_ns, "idle", "nothing runs"),
        ("compute", total.compute_ns, "compute", "kernels that are not communication"),
        ("communication", total.communication_ns, "communication", hidden),
        ("  exposed", total.exposed_communication_ns, "communication", "not under any compute kernel"),
        ("copy", total.copy_ns, "copy", "memcpy and memset"),
    )
    lines: list[BarRow] = [
        (name, time(took), took / span, COLOURS.get(colour, ""), meaning) for name, took, colour, meaning in rows
    ]
    return bar_table(lines, WIDE)


def _by_class(analysis: Analysis) -> Table:
    chips = max(1, len(analysis.breakdown.chips))
    rows = (
        (one.id, time(one.union_ns / chips), f"{one.share:.1%}", bar(one.share, COLOURS[one.group], WIDE),
         f"{one.spans:,}", Text(one.what, style="dim"))
        for one in analysis.breakdown.classes[:16]
    )  # fmt: skip
    return grid("left", "right", "right", "left", "right", "left", rows=rows)


def _ops(analysis: Analysis) -> Table:
    chips = max(1, len(analysis.breakdown.chips))
    rows = (
        (time(one.total_ns / chips), f"{one.share:.1%}", f"{one.spans:,}", one.class_, _short(one.name, 96))
        for one in analysis.breakdown.names[:SHOWN]
    )
    return grid("right", "right", "right", "left", "left", rows=rows)


def _short(name: str, most: int) -> Text:
    text = clean(name)
    text.truncate(most, overflow="ellipsis")
    return text


def _idle(analysis: Analysis) -> list[RenderableType]:
    rows = (
        (cause.idle.cause, time(cause.idle_us * NANOSECONDS_PER_US), f"{cause.share_of_span:.1%}",
         bar(cause.share_of_span, COLOURS["idle"], WIDE), f"{cause.idle.gaps:,}", Text(cause.idle.meaning, style="dim"))
        for cause in analysis.idle_causes
    )  # fmt: skip
    table = grid("left", "right", "right", "left", "right", "left", rows=rows)
    lines: list[RenderableType] = [Text("idle because of", style="dim"), table] if analysis.idle_causes else []
    launches = dict.fromkeys(_launch_lines(analysis))
    who = f" on each of {len(analysis.launches)} chips" if len(launches) == 1 and len(analysis.launches) > 1 else ""
    return [*lines, *(Text.assemble((f"launches{who} ", "dim"), line) for line in list(launches)[:4])]


def _launch_lines(analysis: Analysis) -> Iterator[str]:
    for chip in analysis.launches:
        graphs = f", {chip.graph_spans:,} from {chip.graph_replays:,} graph replays" if chip.graph_replays else ""
        yield (
            f"{chip.spans:,} spans by {chip.calls:,} calls of {time(chip.call_ns)}{graphs}; started "
            f"{time(chip.delay_ns)} later, {chip.queue_depth:.1f} queued on average, "
            f"{chip.empty_queue:.0%} on an empty queue"
        )


def _rates(analysis: Analysis) -> list[RenderableType]:
    table = grid("left", "left", "left", "right", "right", "right", "right", "left")
    for rate in analysis.rates[:SHOWN]:
        share = "" if rate.efficiency is None else f"{rate.efficiency:.0%}"
        flops = f"{rate.flops_per_s / DECIMAL['T']:,.0f} TFLOP/s" if rate.flops else ""
        table.add_row(
            clean(rate.op), clean(rate.operands[:44]), rate.dtype, time(rate.total_ns), flops,
            f"{rate.bytes_per_s / DECIMAL['G']:,.0f} GB/s", share, f"of the {rate.bound} roof" if share else "",
        )  # fmt: skip
    chip = analysis.chip.id if analysis.chip else "no chip: name one with --chip"
    against = f"rates of ops with recorded shapes, against {chip}"
    return [Text(against, style="dim"), table] if analysis.rates else []


def _finding_lines(analysis: Analysis) -> list[RenderableType]:
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
    return [*rest, *list_lines("doubtful", analysis.warnings[:SHOWN], style="yellow")]


# -- dependencies -----------------------------------------------------------------------------------------------------


def _what_if_lines(analysis: Analysis) -> list[RenderableType]:
    """Questions and what replays answered."""
    rows = [
        (clean(answer.question), time(answer.after_ns), signed_share(-answer.gain) if answer.gain else "0.0%",
         Text(answer.meaning, style="dim"))
        for answer in analysis.what_if
    ]  # fmt: skip
    title = Text("what if, by replaying the dependencies", style="dim")
    return [title, grid("left", "right", "right", "left", rows=rows)] if rows else []


def _path_lines(analysis: Analysis) -> list[RenderableType]:
    """What the critical path consists of, in one line."""
    path = analysis.critical
    if path is None:
        return []
    parts = ", ".join(f"{part.id} {part.share:.0%}" for part in path.whole.parts[:7] if part.share >= 0.005)
    guessed = sum(edge.edges for edge in path.edges if not edge.recorded)
    every = sum(edge.edges for edge in path.edges)
    return [
        Text.assemble(("critical path ", "dim"), parts, (f"   {guessed:,} of {every:,} dependencies inferred", "dim"))
    ]


def _rank_lines(analysis: Analysis) -> list[RenderableType]:
    """Stragglers and bubbles."""
    every = analysis.ranks.collectives
    lines: list[RenderableType] = [
        Text.assemble(
            ("straggler ", "dim"),
            f"rank {straggler.rank} came last to {straggler.last:,} of {every:,} collectives; "
            f"the others waited {time(straggler.caused_ns)} for it",
        )
        for straggler in analysis.ranks.stragglers[:3]
        if straggler.caused_ns
    ]
    if analysis.ranks.bubbles:
        parts = ", ".join(f"{bubble.process} {bubble.share:.1%}" for bubble in analysis.ranks.bubbles[:SHOWN])
        lines.append(Text.assemble(("pipeline bubble ", "dim"), clean(parts)))
    return lines


def _collective_lines(analysis: Analysis) -> list[RenderableType]:
    """Collectives by type and size: how long, how fast, against the link, who came last."""
    sizes = analysis.collectives
    if not sizes:
        return []
    table = grid("left", "right", "right", "right", "right", "right", "left", "left")
    for one in sizes[:SHOWN]:
        rate, link = one.busbw, (one.link_bytes_per_s or 0.0) / DECIMAL["G"]
        share = f"{one.share_of_link:.0%} of {link:,.0f}" if one.share_of_link is not None else ""
        last = max(one.last.items(), key=lambda entry: entry[1], default=None)
        table.add_row(
            one.name, format_quantity(one.payload_bytes, "B", 3) if one.payload_bytes else "",
            f"{one.group_size} ranks" if one.group_size else "", f"{one.calls:,}", time(one.transfer_ns),
            f"{rate / DECIMAL['G']:,.0f} GB/s" if rate is not None else "", share,
            Text(f"rank {last[0]} last to {last[1]:,}" if last else "", style="dim"),
        )  # fmt: skip
    sentence = "collectives by type and size: calls, median transfer, bus bandwidth a rank, of the link"
    return [Text(sentence, style="dim"), table]


def _memory_lines(analysis: Analysis) -> list[RenderableType]:
    """The peak of each chip and what had grown until then."""
    lines: list[RenderableType] = []
    for one in analysis.memory[:4]:
        grown = ", ".join(f"{id} {format_quantity(size, 'B', 3)}" for id, size in list(one.growth_by_phase.items())[:3])
        lines.append(
            Text.assemble(
                ("memory ", "dim"), f"{format_quantity(one.peak_bytes, 'B', 4)} at most, in {one.phase}, at ",
                clean(one.op[:60]), (f"; grown since the trace began: {grown}" if grown else "", "dim"),
            )
        )  # fmt: skip
    return lines


# -- inference --------------------------------------------------------------------------------------------------------


def _inference_lines(analysis: Analysis) -> list[RenderableType]:
    """The engine's steps in words; nothing for a trace without."""
    lines: list[RenderableType] = []
    inference = analysis.inference
    if inference is not None:
        prefill, decode, mixed = inference.prefill_steps, inference.decode_steps, inference.mixed_steps
        counts = {"prefill": prefill, "decode": decode, "mixed": mixed}
        parts = [f"{count:,} {kind}" for kind, count in counts.items() if count]
        parts.append(f"{sum(step.tokens for step in inference.steps):,} tokens")
        parts.append(f"graph replayed in {inference.graph_hits:,} of {len(inference.steps):,}")
        if inference.mean_decode_batch:
            parts.append(f"{inference.mean_decode_batch:.1f} requests a decode step")
        if inference.tpot_ns:
            parts.append(f"{time(inference.tpot_ns)} a token and request (TPOT)")
        if inference.prefill_ns:
            parts.append(f"prefill {time(inference.prefill_ns)}")
        lines.append(Text.assemble(("engine steps ", "dim"), ", ".join(parts)))
    if analysis.model is not None:
        note = f"kernels without recorded operands are priced by the sizes of {analysis.model.name}"
        lines.append(Text(note, style="dim"))
    return lines


# -- counters ---------------------------------------------------------------------------------------------------------


COUNTERS_SHOWN = 12  # rows of a table beside an analysis
ALL = 60  # rows of a table alone
HEADS = ("time", "launches", "compute", "memory", "DRAM", "", "", "warps", "kernel")


def draw_counters(found: CounterFile, console: Console) -> None:
    """Print the table of counters without a timeline."""
    title = f"{found.sources[0]}  {found.format}: {found.launches:,} launches of {found.names:,} kernels"
    note = "counters of kernels, no timeline: pass the trace too, ridgeline analyze TRACE --counters FILE"
    head = Text.assemble(clean(title), style="bold")
    console.print(Group(head, Text(note, style="dim"), Text(""), _counter_table(found)))


def _measured_lines(analysis: Analysis) -> list[RenderableType]:
    """Lines of a page: measured kernels, and what was measured but is not in the trace."""
    found = analysis.measured
    lines: list[RenderableType] = []
    if found.kernels:
        lines += [Text("measured by counters, as shares of the peak", style="dim"), _counter_table(analysis)]
    absent = found.absent_names
    if absent:
        names = ", ".join(name[:60] for name in absent[:6]) + (" …" if len(absent) > 6 else "")
        lines.append(
            Text.assemble((f"{len(absent)} kernels with counters are not in the trace: ", "dim"), clean(names))
        )
    return lines


def _counter_table(found: CounterFile | Analysis) -> Table:
    """A row for each kernel, behind its total time and its launches, in a trace those that are in it."""
    if isinstance(found, CounterFile):
        kernels = [(kernel.duration_ns * kernel.launches, kernel.launches, kernel) for kernel in found.kernels[:ALL]]
    else:
        in_trace = found.measured.kernels[:COUNTERS_SHOWN]
        kernels = [(kernel.total_ns, kernel.spans, kernel.counters) for kernel in in_trace]
    table = Table(box=None, show_header=True, pad_edge=False, header_style="dim")
    for head in HEADS:
        table.add_column(head, justify="left" if head == "kernel" else "right", no_wrap=head != "kernel")
    for total_ns, spans, one in kernels:
        table.add_row(
            time(total_ns), f"{spans:,}",
            _share(one.compute), _share(one.memory), _share(one.dram),
            _rate(one.bytes_per_s, "G", "B/s"), _rate(one.flops_per_s, "T", "FLOP/s"), _share(one.occupancy),
            _short(one.name, 72),
        )  # fmt: skip
    return table


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _rate(value: float | None, prefix: str, unit: str) -> str:
    rate = 0.0 if value is None else value / DECIMAL[prefix]
    return "" if value is None else f"{rate:,.1f} {prefix}{unit}" if rate < 100 else f"{rate:,.0f} {prefix}{unit}"


# -- query ------------------------------------------------------------------------------------------------------------


WIDEST = 100  # characters of a cell
TOGETHER = 500  # rows of a table, behind which the clock is looked at
QUERY_SHOWN = 12  # holders of a chip


def draw_query(answer: QueryAnswer, console: Console) -> None:
    """Print an answer as a table."""
    until, row_count = monotonic() + answer.draws_s, 0
    for first in range(0, max(1, len(answer.rows)), TOGETHER):
        if first and monotonic() > until:
            break
        rows = answer.rows[first : first + TOGETHER]
        console.print(_rows_table(answer, rows))
        row_count = first + len(rows)
    for line in answer.warnings:
        console.print(Text(f"warning: {clean(line)}", style="yellow"))
    if row_count < len(answer.rows):
        text = f"{row_count:,} of {len(answer.rows):,} rows printed in the time that --seconds allows: --json has all"
        console.print(Text(text, style="yellow"))
    elif answer.truncated:
        more = "there are more" if answer.total is None else f"{answer.total - row_count:,} more"
        console.print(Text(f"{row_count:,} rows shown, {more}: --limit N, or --json for all", style="dim"))


def _rows_table(answer: QueryAnswer, rows: Sequence[Sequence[object]]) -> Table:
    """Some rows of an answer under their heads."""
    table = Table(box=None, pad_edge=False)
    for place, column in enumerate(answer.columns):
        numbers = all(isinstance(row[place], int | float | None) for row in answer.rows[:50])
        table.add_column(clean(column), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    return table


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return "" if value is None else str(clean(str(value)[:WIDEST]))


def draw_memory(record: MemoryRecord, console: Console) -> None:
    """Print who held the peak of every chip."""
    for line in record.warnings:
        console.print(Text(f"warning: {line}", style="yellow"))
    for device in record.devices:
        console.print(
            Text(f"chip {device.device}: {format_quantity(device.peak_bytes, 'B')} at the peak", style="bold")
        )
        sentence = f"{device.events:,} events"
        if device.before_bytes:
            sentence += f"; {format_quantity(device.before_bytes, 'B')} were allocated before the history began"
        if device.reserved_bytes:
            reserved = format_quantity(device.reserved_bytes, "B")
            sentence += f"; at the end {device.fragmentation:.0%} of {reserved} reserved unused"
        if device.out_of_memory:
            sentence += f"; {device.out_of_memory:,} allocations failed"
        console.print(Text(sentence, style="dim"))
        rows = (
            (format_quantity(one.size_bytes, "B"), f"{one.size_bytes / max(1, device.peak_bytes):.1%}", clean(one.what))
            for one in device.holders[:QUERY_SHOWN]
        )
        console.print(grid("right", "right", "left", rows=rows))
