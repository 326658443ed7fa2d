"""Draw what an analysis says about dependencies: critical path, ranks, memory, what-ifs."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from ridgeline.core.units import DECIMAL, format_quantity, signed_share
from ridgeline.report.cells import clean, grid, time
from ridgeline.trace.analyze import Analysis

SHOWN = 8


# -- the page ---------------------------------------------------------------------------------------------------------


def what_if_lines(analysis: Analysis) -> list[RenderableType]:
    """Questions and what replays answered."""
    if not analysis.what_if:
        return []
    table = grid("left", "right", "right", "left")
    for one in analysis.what_if:
        gain = signed_share(-one.gain) if one.gain else "0.0%"
        table.add_row(clean(one.question), time(one.after_ns), gain, Text(one.meaning, style="dim"))
    return [Text("what if, by replaying the dependencies", style="dim"), table]


def path_lines(analysis: Analysis) -> list[RenderableType]:
    """What the critical path consists of, in one line."""
    path = analysis.critical
    if path is None:
        return []
    parts = ", ".join(f"{part.id} {part.share:.0%}" for part in path.whole.parts[:7] if part.share >= 0.005)
    guessed = sum(one.edges for one in path.edges if not one.recorded)
    every = sum(one.edges for one in path.edges)
    return [
        Text.assemble(("critical path ", "dim"), parts, (f"   {guessed:,} of {every:,} dependencies inferred", "dim"))
    ]


def rank_lines(analysis: Analysis) -> list[RenderableType]:
    """Stragglers and bubbles."""
    every = analysis.ranks.collectives
    lines: list[RenderableType] = [
        Text.assemble(
            ("straggler ", "dim"),
            f"rank {one.rank} came last to {one.last:,} of {every:,} collectives; "
            f"the others waited {time(one.caused_ns)} for it",
        )
        for one in analysis.ranks.stragglers[:3]
        if one.caused_ns
    ]
    if analysis.ranks.bubbles:
        parts = ", ".join(f"{one.process} {one.share:.1%}" for one in analysis.ranks.bubbles[:SHOWN])
        lines.append(Text.assemble(("pipeline bubble ", "dim"), clean(parts)))
    return lines


def collective_lines(analysis: Analysis) -> list[RenderableType]:
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
    told = "collectives by type and size: calls, median transfer, bus bandwidth a rank, of the link"
    return [Text(told, style="dim"), table]


def memory_lines(analysis: Analysis) -> list[RenderableType]:
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
