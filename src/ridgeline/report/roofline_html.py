"""Draw a Roofline as a page or a picture: roofs, and every op as a dot whose area is its share of the time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import write_bytes, write_text
from ridgeline.core.units import format_duration, format_quantity
from ridgeline.hardware.what_if import chip_title
from ridgeline.report import html
from ridgeline.report.cells import DASH
from ridgeline.report.chart import BLUE, GREEN, ORANGE, POINT_AT, label_marks, legend_marks
from ridgeline.report.chart import LOOK as CHART_LOOK
from ridgeline.report.drawing import ChartPoint, Label, Line, Look, Mark, png_marks, standalone_svg, svg_marks
from ridgeline.report.html import Scale
from ridgeline.report.labels import Box, NamedPoint, dot_box, line_boxes
from ridgeline.report.skeleton import PageHead, page_document, prediction_evidence, scenario_facts
from ridgeline.sim.roofline import PlacedOp, Roofline

WIDE, TALL = 1100, 560  # pixels
LEFT, RIGHT, TOP, BOTTOM = 110, 24, 56, 56
NAMED = 10  # ops whose names are tried to place, those that take longest
ABOVE = 11  # pixels from a roof to the middle of its name
LARGEST = 22  # pixels of the radius of an op that takes all the time, beyond the smallest
LOOK: Look = {
    **CHART_LOOK, "sheet": (BLUE, 2.0), "real": (ORANGE, 2.0), "compute": (BLUE, 0.0), "memory": (GREEN, 0.0),
}  # fmt: skip
WRITERS = (".svg", ".png", ".html", ".htm")
STYLE = (
    ".sheet { stroke: var(--in); fill: none; stroke-width: 2; } .real { stroke: var(--out); fill: none;"
    " stroke-dasharray: 6 4; stroke-width: 2; } circle.compute, circle.memory { fill-opacity: .65; }"
)
PHASES = {"train": "training", "prefill": "prefill of", "decode": "decode of"}


def span_of(roofline: Roofline) -> tuple[float, float, float, float]:
    """Least and most intensity, least and most flops/s of a chart that holds all ops and roofs."""
    peak = max(roofline.peaks.values(), default=1.0)
    memory = roofline.memory["hbm"]
    known = [spot for spot in roofline.placed_ops if spot.op.flops]
    low = min([spot.op.intensity for spot in known] + [peak / memory / 30])
    high = max([spot.op.intensity for spot in known] + [peak / memory * 8])
    slow = min([spot.op.flops_per_s for spot in known] + [low * memory])
    return 10 ** math.floor(math.log10(low)), high * 2.5, slow * 0.6, peak * 1.8


def marks(roofline: Roofline) -> Iterator[Mark]:
    """The chart: axes, roofs, ops, and the names that have room; places in pixels."""
    low, high, slow, fast = span_of(roofline)
    across = Scale(low=low, high=high, start=LEFT, end=WIDE - RIGHT, log=True)
    up = Scale(low=slow, high=fast, start=TALL - BOTTOM, end=TOP, log=True)
    yield from _axes(across, up)
    full_boxes: list[Box] = []
    barriers: list[Box] = []
    names: list[NamedPoint] = []
    for lines, name in _roofs(roofline, across, up):
        yield from lines
        for line in lines:
            barriers += line_boxes(line.start, line.end, every=3.0)
        ridge = lines[-1].start
        side = -ABOVE if lines[0].kind == "sheet" else ABOVE  # above its roof, or below
        names.append(NamedPoint(text=name, x=ridge[0] + 8, y=ridge[1] + side))
    for spot in roofline.placed_ops:
        if spot.op.flops and spot.op.seconds:
            point = _dot(spot, across, up)
            full_boxes.append(dot_box(point.x, point.y, point.radius))
            yield point
    for spot in sorted(roofline.placed_ops, key=lambda spot: -spot.share)[:NAMED]:
        if spot.op.flops and spot.op.seconds:
            point = _dot(spot, across, up)
            names.append(NamedPoint(text=spot.op.label, x=point.x, y=point.y, radius=point.radius))
    frame = Box(left=LEFT, top=TOP - 6, right=WIDE - RIGHT, bottom=TALL - BOTTOM)
    yield from label_marks(names, frame, full_boxes, barriers)
    yield from legend_marks((("compute", "limited by compute"), ("memory", "limited by memory")), WIDE - RIGHT, 16)


def _dot(spot: PlacedOp, across: Scale, up: Scale) -> ChartPoint:
    op = spot.op
    note = f"{op.label} ({op.phase}): {spot.share:.1%} of the time, {spot.roof:.0%} of its roof"
    radius = 3 + LARGEST * math.sqrt(spot.share)
    return ChartPoint(kind=op.bound, x=across(op.intensity), y=up(op.flops_per_s), radius=radius, told=note)


def _axes(across: Scale, up: Scale) -> Iterator[Mark]:
    bottom = TALL - BOTTOM
    for value in across.ticks(14):
        yield Line(kind="rule", start=(across(value), TOP), end=(across(value), bottom))
        yield Label(text=f"{value:,.4g}", x=across(value), y=bottom + 18, anchor="middle")
    for value in up.ticks(10):
        yield Line(kind="rule", start=(LEFT, up(value)), end=(WIDE - RIGHT, up(value)))
        yield Label(text=format_quantity(value, "FLOP/s", 3), x=LEFT - 8, y=up(value) + 4, anchor="end")
    yield Label(text="FLOP per byte of memory traffic, logarithmic", x=(LEFT + WIDE - RIGHT) / 2, y=TALL - 12,
                anchor="middle")  # fmt: skip
    yield Label(text="FLOP/s, logarithmic", x=LEFT, y=TOP - 18)


def _roofs(roofline: Roofline, across: Scale, up: Scale) -> Iterator[tuple[list[Line], str]]:
    """The lines of every roof with its name."""
    memory = roofline.memory["hbm"]
    real = roofline.measured_memory.get("hbm")
    for name, peak in roofline.peaks.items():
        yield _roof("sheet", peak, memory, (across, up)), f"{name}, data sheet {format_quantity(peak, 'FLOP/s', 3)}"
        best = roofline.measured_peaks.get(name)
        if best and real:
            yield _roof("real", best, real, (across, up)), f"{name}, measured {format_quantity(best, 'FLOP/s', 3)}"


def _roof(kind: str, peak: float, memory: float, scales: tuple[Scale, Scale]) -> list[Line]:
    across, up = scales
    ridge = min(max(peak / memory, across.low), across.high)
    first = max(across.low, up.low / memory)
    slope = Line(kind=kind, start=(across(first), up(first * memory)), end=(across(ridge), up(ridge * memory)))
    level = Line(kind=kind, start=(across(ridge), up(peak)), end=(across(across.high), up(peak)))
    return [slope, level] if first < ridge else [level]


def svg(roofline: Roofline) -> str:
    """The chart as the content of an SVG element."""
    return svg_marks(marks(roofline), WIDE, TALL, "Ops on the roofline of the chip")


def svg_file(roofline: Roofline) -> str:
    """The chart as a file of its own, light and dark as the reader's screen is."""
    return standalone_svg(svg(roofline), html.picture_style() + STYLE) + "\n"


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:.0f}"


def _cells(spot: PlacedOp) -> tuple[str, ...]:
    """A line of the table of ops."""
    op = spot.op
    intensity = f"{op.intensity:,.0f}" if op.intensity >= 10 else f"{op.intensity:.2g}"
    spent = (f"{op.count:.0f}", format_duration(op.seconds), f"{spot.share:.1%}", intensity if op.flops else DASH)
    return (f"{op.label} ({op.phase})", *spent, f"{spot.roof:.0%}", op.bound, op.evidence.label)


def roofline_page(roofline: Roofline, command: str = "") -> str:
    """The chart with its figures, as one file."""
    shares = [(f"{share:.1%}", f"under the roof of {name}") for name, share in roofline.bounds.items()]
    ridges = [
        (ridge.dtype, ridge.level, _number(ridge.intensity), _number(ridge.measured)) for ridge in roofline.ridges
    ]
    ops = [_cells(spot) for spot in roofline.placed_ops]
    caption = "Solid: data sheet. Dashed: measured. Area of a dot: share of the time. The table names every op."
    body = "".join(
        (
            html.facts([(format_duration(roofline.seconds, 4), "of kernels"), *shares]),
            f"<figure data-chart>{svg(roofline)}<figcaption>{caption}</figcaption>"
            f'<p class="told">{POINT_AT}</p></figure>',
            html.section(
                "Ridge points, FLOP for a byte", ("format", "memory", "data sheet", "measured"), ridges, text=(1,)
            ),
            "<h2>Ops</h2>",
            html.table(("op", "runs", "time", "share", "FLOP/B", "of its roof", "limit", "evidence"), ops, text=(6, 7)),
            html.list_items("Notes", roofline.notes),
        )
    )
    return page_document(_head(roofline, command), body, script=html.page_part("plan.js"), style=STYLE)


def _head(roofline: Roofline, command: str) -> PageHead:
    scenario = roofline.scenario
    name, share = max(roofline.bounds.items(), key=lambda bound: bound[1])
    longest = max(roofline.placed_ops, key=lambda spot: spot.share)
    measured_share = sum(spot.share for spot in roofline.placed_ops if spot.op.evidence.label == "measured")
    work = scenario.workload
    return PageHead(
        verb="roofline",
        question=f"What limits {PHASES[roofline.phase]} {scenario.model.id} on one {chip_title(scenario.system.chip)}?",
        answer=f"{share:.0%} of {format_duration(roofline.seconds, 4)} of kernels is under the roof of {name}; "
        f"{longest.op.label} ({longest.op.phase}) takes most of it, {longest.share:.0%}, "
        f"at {longest.roof:.0%} of its roof.",
        certainty=f"{measured_share:.0%} of the time is of ops whose shapes were measured; the rest is fitted or "
        "computed, as the column of evidence says. There is no interval: these are kernels, not a step.",
        subject=(
            *scenario_facts(scenario, machine=f"one {chip_title(scenario.system.chip)}", plan=""),
            ("Workload", f"{roofline.phase}, {work.sequences:,} × {work.seq:,} tokens"),
        ),
        evidence=prediction_evidence(),
        command=command,
    )


def write_chart(roofline: Roofline, path: Path, command: str = "") -> None:
    """Write the chart as its suffix says: .svg, .png or .html."""
    suffix = path.suffix.lower()
    if suffix not in WRITERS:
        raise InputError(
            Problem(path="-o", given=repr(path.name)[:60], expected="a file ending in .svg, .png or .html")
        )
    if suffix == ".png":
        write_bytes(path, png_marks(marks(roofline), WIDE, TALL, LOOK))
    else:
        write_text(path, svg_file(roofline) if suffix == ".svg" else roofline_page(roofline, command))
