"""Draw a Roofline on a terminal: roofs, ridges and ops."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import write_bytes, write_text
from ridgeline.core.units import format_quantity, signed_share
from ridgeline.cost import ProfileDiff, ProfileReport
from ridgeline.hardware.what_if import chip_title
from ridgeline.report import html
from ridgeline.report.cells import DASH, blocks, clean, facts, header_table, list_lines, percent
from ridgeline.report.drawing import RULE, ChartPoint, Label, Line, Look, Mark, png_marks, standalone_svg, svg_marks
from ridgeline.report.html import Scale
from ridgeline.sim.roofline import PlacedOp, Roofline

SHOWN = 24  # ops on a page


def draw_roofline(roofline: Roofline, console: Console) -> None:
    """Print the roofs, what is under each, and every op."""
    scenario, seconds = roofline.scenario, format_quantity(roofline.seconds, "s", 4)
    title = f"{scenario.model.id} on {chip_title(scenario.system.chip)}, {roofline.phase}: {seconds} of kernels"
    under = "   ".join(f"{name} {percent(share)}" for name, share in roofline.bounds.items())
    console.print(
        blocks(
            [Text.assemble(clean(title), style="bold"), Text.assemble(("under the roof of ", "dim"), under)],
            [_roofs(roofline)],
            [_ops(roofline)],
            list_lines("notes", roofline.notes),
        )
    )


def _roofs(roofline: Roofline) -> Table:
    columns = ("data sheet", "measured", "ridge", "measured ridge")
    table = header_table(("roof", *columns), right=columns)
    for name, rate in roofline.peaks.items():
        best = roofline.measured_peaks.get(name)
        ridges = [ridge for ridge in roofline.ridges if ridge.dtype == name and ridge.level == "hbm"]
        at = [_per_byte(ridges[0].intensity), _per_byte(ridges[0].measured)] if ridges else [DASH, DASH]
        table.add_row(name, format_quantity(rate, "FLOP/s", 4), _rate(best, "FLOP/s"), *at)
    for level in dict.fromkeys((*roofline.memory, *roofline.measured_memory)):
        rates = (_rate(roofline.memory.get(level), "B/s"), _rate(roofline.measured_memory.get(level), "B/s"))
        table.add_row(f"memory, {level}", *rates, "", "")
    return table


def _rate(value: float | None, unit: str) -> str:
    return DASH if value is None else format_quantity(value, unit, 4)


def _per_byte(value: float | None) -> str:
    return DASH if value is None else f"{value:.0f} FLOP/B"


def _ops(roofline: Roofline) -> Table:
    columns = ("runs", "time", "share", "FLOP/B", "rate", "of its roof")
    table = header_table(("op", *columns, "limit", "evidence"), right=columns)
    ops = roofline.placed_ops
    for placed in ops[:SHOWN]:
        op = placed.op
        rate = format_quantity(op.flops_per_s, "FLOP/s", 3)
        if not op.flops:
            rate = format_quantity(op.moved_bytes / op.seconds, "B/s", 3) if op.seconds else DASH
        table.add_row(
            clean(f"{op.label} ({op.phase})"), f"{op.count:.0f}", format_quantity(op.seconds, "s", 3),
            percent(placed.share), f"{op.intensity:.3g}" if op.flops else DASH, rate, percent(placed.roof), op.bound,
            op.evidence.label,
        )  # fmt: skip
    if len(ops) > SHOWN:
        rest = sum(placed.share for placed in ops[SHOWN:])
        table.add_row(Text(f"… {len(ops) - SHOWN} more with --json", style="dim"), "", "", percent(rest))
    return table


def span_of(roofline: Roofline) -> tuple[float, float, float, float]:
    """Least and most intensity, least and most flops/s of a chart that holds all ops and roofs."""
    peak = max(roofline.peaks.values(), default=1.0)
    memory = roofline.memory["hbm"]
    known = [placed for placed in roofline.placed_ops if placed.op.flops]
    low = min([placed.op.intensity for placed in known] + [peak / memory / 30])
    high = max([placed.op.intensity for placed in known] + [peak / memory * 8])
    slow = min([placed.op.flops_per_s for placed in known] + [low * memory])
    return 10 ** math.floor(math.log10(low)), high * 1.5, slow * 0.6, peak * 1.8


# -- roofline chart ---------------------------------------------------------------------------------------------------


WIDE, TALL = 920, 520  # pixels
LEFT, RIGHT, TOP, BOTTOM = 110, 24, 34, 46
LOOK: Look = {
    "rule": (RULE, 1.0), "sheet": ((47, 111, 178), 2.0), "real": ((209, 102, 31), 2.0),
    "compute": ((47, 111, 178), 0.0), "memory": ((46, 139, 87), 0.0),
}  # fmt: skip
WRITERS = (".svg", ".png", ".html", ".htm")
STYLE = (
    ".sheet { stroke: var(--in); fill: none; stroke-width: 2; } .real { stroke: var(--out); fill: none;"
    " stroke-dasharray: 6 4; stroke-width: 2; } .compute { fill: var(--in); fill-opacity: .6; }"
    " .memory { fill: #2e8b57; fill-opacity: .6; }"
)


def marks(roofline: Roofline) -> Iterator[Mark]:
    """The chart: axes, roofs, ops; places in pixels."""
    low, high, slow, fast = span_of(roofline)
    across = Scale(low=low, high=high, start=LEFT, end=WIDE - RIGHT, log=True)
    up = Scale(low=slow, high=fast, start=TALL - BOTTOM, end=TOP, log=True)
    scenario = roofline.scenario
    yield Label(text=f"{scenario.model.id} on {chip_title(scenario.system.chip)}, {roofline.phase}", x=LEFT, y=20)
    yield from _axes(across, up)
    memory = roofline.memory["hbm"]
    real = roofline.measured_memory.get("hbm")
    for name, peak in roofline.peaks.items():
        yield from _roof("sheet", peak, memory, (across, up), f"{name} {format_quantity(peak, 'FLOP/s', 3)}")
        best = roofline.measured_peaks.get(name)
        if best and real:
            yield from _roof("real", best, real, (across, up), f"measured {format_quantity(best, 'FLOP/s', 3)}")
    for placed in roofline.placed_ops:
        if placed.op.flops and placed.op.seconds:
            figures = (
                f"{placed.op.label} ({placed.op.phase}): {placed.share:.1%} of the time, {placed.roof:.0%} of its roof"
            )
            x, y = across(placed.op.intensity), up(placed.op.flops_per_s)
            yield ChartPoint(kind=placed.op.bound, x=x, y=y, radius=3 + 22 * math.sqrt(placed.share), told=figures)
    for placed in sorted(roofline.placed_ops, key=lambda placed: -placed.share)[:6]:
        if placed.op.flops and placed.op.seconds:
            yield Label(text=placed.op.label, x=across(placed.op.intensity) + 8, y=up(placed.op.flops_per_s) - 6)


def _axes(across: Scale, up: Scale) -> Iterator[Mark]:
    bottom = TALL - BOTTOM
    for power in range(math.ceil(math.log10(across.low)), math.floor(math.log10(across.high)) + 1):
        x = across(10.0**power)
        yield Line(kind="rule", start=(x, TOP), end=(x, bottom))
        yield Label(text=f"{10.0**power:g}", x=x, y=bottom + 16, anchor="middle")
    for power in range(math.ceil(math.log10(up.low)), math.floor(math.log10(up.high)) + 1):
        y = up(10.0**power)
        yield Line(kind="rule", start=(LEFT, y), end=(WIDE - RIGHT, y))
        yield Label(text=format_quantity(10.0**power, "FLOP/s", 3), x=LEFT - 6, y=y + 4, anchor="end")
    yield Label(text="FLOP/B", x=WIDE - RIGHT, y=TALL - 8, anchor="end")


def _roof(kind: str, peak: float, memory: float, scales: tuple[Scale, Scale], told: str) -> Iterator[Mark]:
    across, up = scales
    ridge = min(max(peak / memory, across.low), across.high)
    first = max(across.low, up.low / memory)
    if first < ridge:
        yield Line(kind=kind, start=(across(first), up(first * memory)), end=(across(ridge), up(ridge * memory)))
    yield Line(kind=kind, start=(across(ridge), up(peak)), end=(across(across.high), up(peak)))
    yield Label(text=told, x=across(across.high), y=up(peak) - 6, anchor="end")


def svg(roofline: Roofline) -> str:
    """The chart as the content of an SVG element."""
    return svg_marks(marks(roofline), WIDE, TALL)


def svg_file(roofline: Roofline) -> str:
    """The chart as a file of its own, light and dark as the reader's page is."""
    return (
        standalone_svg(svg(roofline), (html.page_style() + STYLE).replace(":root", "svg").replace("body {", "svg {"))
        + "\n"
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def _cells(placed: PlacedOp) -> tuple[str, ...]:
    """A line of the table of ops."""
    op = placed.op
    spent = (f"{op.count:.0f}", format_quantity(op.seconds, "s", 3), f"{placed.share:.1%}", f"{op.intensity:.3g}")
    return (f"{op.label} ({op.phase})", *spent, f"{placed.roof:.0%}", op.bound, op.evidence.label)


def page(roofline: Roofline) -> str:
    """The chart with its figures, as one file."""
    title = f"Roofline: {roofline.scenario.model.id} on {chip_title(roofline.scenario.system.chip)}, {roofline.phase}"
    shares = [(f"{share:.1%}", f"under the roof of {name}") for name, share in roofline.bounds.items()]
    ridges = [
        (ridge.dtype, ridge.level, _number(ridge.intensity), _number(ridge.measured)) for ridge in roofline.ridges
    ]
    ops = [_cells(placed) for placed in roofline.placed_ops]
    body = "".join(
        (
            f"<h1>{html.escape_text(title)}</h1>",
            html.facts([(format_quantity(roofline.seconds, "s", 4), "of kernels"), *shares]),
            f"<figure>{svg(roofline)}<figcaption>Solid: data sheet. Dashed: measured. Area of a dot: share of the time."
            "</figcaption></figure>",
            "<h2>Ridge points, FLOP for a byte</h2>",
            html.table(("format", "memory", "data sheet", "measured"), ridges, text=(1,)),
            "<h2>Ops</h2>",
            html.table(("op", "runs", "time", "share", "FLOP/B", "of its roof", "limit", "evidence"), ops, text=(6, 7)),
            "".join(f"<p>{html.escape_text(note)}</p>" for note in roofline.notes),
        )
    )
    return html.document(title=title, body=body, style=html.page_style() + STYLE)


def write_chart(roofline: Roofline, path: Path) -> None:
    """Write the chart as its suffix says: .svg, .png or .html."""
    suffix = path.suffix.lower()
    if suffix not in WRITERS:
        raise InputError(
            Problem(path="-o", given=repr(path.name)[:60], expected="a file ending in .svg, .png or .html")
        )
    if suffix == ".png":
        write_bytes(path, png_marks(marks(roofline), WIDE, TALL, LOOK))
    else:
        write_text(path, svg_file(roofline) if suffix == ".svg" else page(roofline))


# -- profile ----------------------------------------------------------------------------------------------------------


PROFILE_SHOWN = 20  # kernels that differ, on a page


def draw_profile(report: ProfileReport, console: Console) -> None:
    """Print what was measured, its ceilings, and the chips that are slow."""
    figures = [f"{op} {count}" for op, count in report.rows.items()]
    chip = report.chip_id or "not of the catalog"
    head = facts(("chip", chip), ("taken", report.profile.taken), ("rows", ", ".join(figures)))
    slow = [
        f"rank {one.rank} loses {percent(one.loses)} over {one.kernels} kernels,"
        f" {one.deviations:.0f} deviations from its peers; most on {one.worst} ({percent(one.worst_loses)})"
        for one in report.slow
    ]
    failures = [f"{name}: {why}" for name, why in report.failed.items()]
    console.print(
        blocks(
            [Text.assemble(clean(report.profile.title), style="bold"), head],
            [_ceilings(report)],
            list_lines("slow chips", slow, style="bold yellow"),
            list_lines("did not run", failures, most=5),
        )
    )


def _ceilings(report: ProfileReport) -> Table:
    columns = ("measured", "data sheet", "share", "energy")
    table = header_table(("ceiling", *columns, "reached by"), right=columns)
    for ceiling in report.ceilings:
        sheet_rate = DASH if ceiling.datasheet is None else format_quantity(ceiling.datasheet, ceiling.unit, 4)
        per = {"FLOP/s": "J/FLOP", "B/s": "J/B"}.get(ceiling.unit, "J")
        energy = DASH if ceiling.joules is None else f"{ceiling.joules * 1e12:.3g} p{per}"
        rate = format_quantity(ceiling.measured, ceiling.unit, 4)
        table.add_row(clean(ceiling.name), rate, sheet_rate, percent(ceiling.share), energy, clean(ceiling.where))
    return table


def draw_profile_diff(diff: ProfileDiff, console: Console) -> None:
    """Print what differs between two profiles."""
    title = Text.assemble(clean(f"{diff.before}  ->  {diff.after}"), style="bold")
    changed = [f"{name}: {before} -> {after}" for name, (before, after) in diff.facts.items()]
    figures, times = ("kernels", "B / A", "slower", "faster"), ("A", "B", "B / A")
    counts = (
        (group.name, str(group.rows), signed_share(group.ratio - 1, unit=" %"), str(group.slower), str(group.faster))
        for group in diff.groups
    )
    groups = header_table(("group", *figures), counts, right=figures)
    cells = (
        (clean(row.name), format_quantity(row.before_s, "s", 4), format_quantity(row.after_s, "s", 4),
         signed_share(row.ratio - 1, unit=" %"))
        for row in diff.different[:PROFILE_SHOWN]
    )  # fmt: skip
    rows = [header_table(("beyond their spread", *times), cells, right=times)] if diff.different else []
    only = [f"{diff.only[0]} rows in A alone, {diff.only[1]} in B alone"] if any(diff.only) else []
    console.print(
        blocks(
            [title], list_lines("changed", changed), [groups], rows, list_lines("ran in one only", diff.failed, most=5),
            list_lines("not compared", only),
        )
    )  # fmt: skip
