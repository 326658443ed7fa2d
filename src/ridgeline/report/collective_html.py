"""Draw the schedule of a collective: how busy every link is over time, as a PNG, an SVG or a page with its figures.

Links are lines from top to bottom, time goes from left to right. A cell is as dark as the link is busy in it: bytes
over what its rate would carry meanwhile. A round's bytes lie evenly between the end of the round before and its own
end, so that cells do not depend on how rounds fall into them. Where there are more links than lines, a line is the mean
of as many neighbours as all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ridgeline.comm import CollectiveTime, SizeRange, shortest_routes
from ridgeline.core.arrays import Array
from ridgeline.core.files import write_bytes, write_text
from ridgeline.core.records import dataclass
from ridgeline.core.units import format_duration, format_quantity
from ridgeline.report import html
from ridgeline.report.chart import Chart, ChartAxis, Curve, chart_svg, seconds_axis
from ridgeline.report.collective import POINTS, range_ends
from ridgeline.report.drawing import INK, PAPER, RULE, Canvas, Colour, standalone_svg
from ridgeline.report.html import Scale
from ridgeline.report.skeleton import PageHead, page_document

MOST_LINKS = 96  # lines of a picture
BINS = 300  # cells across
CELL = 3  # pixels of a cell
LEFT, TOP, BOTTOM, RIGHT = 150, 30, 44, 24
LEVELS = 12  # shades
NAME_EVERY = 13  # pixels between the names of two lines
FULL: Colour = (31, 90, 158)
STYLE = (
    ".lane { fill: var(--band); } .busy { fill: var(--in); } .lane.row { fill: transparent; }"
    " .between { stroke: var(--paper); stroke-width: .5; }"
)
SERIES = 6  # colours of algorithms


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """How busy links are: a share of the link's rate by line and cell, what each line is, and all seconds."""

    shares: Array
    names: tuple[str, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def side(self) -> int:
        """Pixels of a line's height."""
        return int(np.clip(620 // max(len(self.names), 1), 5, 16))

    @property
    def size(self) -> tuple[int, int]:
        """Pixels of the whole drawing."""
        return LEFT + BINS * CELL + RIGHT, TOP + self.side * len(self.names) + BOTTOM


def link_use(found: CollectiveTime) -> LinkUse:
    """How busy the links of a schedule are over its time."""
    graph, steps = found.graph, found.algorithm.steps
    if not len(steps) or not graph.links:
        return LinkUse(shares=np.zeros((0, BINS)), names=(), notes=(), seconds=found.seconds)
    together = -(-graph.links // MOST_LINKS)
    rows = -(-graph.links // together)
    numbers, round_of = np.unique(steps.round, return_inverse=True)
    carried = np.zeros((rows, len(numbers) + 1))
    pairs, which = np.unique(steps.source.astype(np.int64) * graph.nodes + steps.target, return_inverse=True)
    ways = shortest_routes(graph, pairs // graph.nodes, pairs % graph.nodes)
    contract = found.algorithm.contract
    sizes = np.broadcast_to(contract.shares(), (contract.chunks,))[steps.chunk] * found.size_bytes
    for hop in range(ways.shape[1]):
        link = ways[which, hop]
        on = link >= 0
        np.add.at(carried, (link[on] // together, round_of[on] + 1), sizes[on])
    ends = np.array(found.timing.round_ends_s)
    if len(ends) != len(numbers):
        ends = np.linspace(0.0, found.seconds, len(numbers) + 1)[1:]
    edges = np.linspace(0.0, found.seconds, BINS + 1)
    total = np.cumsum(carried, axis=1)
    rate = np.add.reduceat(graph.bytes_per_s, np.arange(0, graph.links, together))
    instants = np.concatenate([[0.0], ends])
    moved = np.stack([np.diff(np.interp(edges, instants, row)) for row in total])
    shares = np.minimum(moved / (rate[:, None] * (found.seconds / BINS or 1.0)), 1.0)
    return LinkUse(shares=shares, names=_names(found, together), notes=_notes(found, together), seconds=found.seconds)


def _names(found: CollectiveTime, together: int) -> tuple[str, ...]:
    graph = found.graph
    firsts = range(0, graph.links, together)
    many = "" if together == 1 else f", {together} links"
    return tuple(f"{_node(found, int(graph.tail[at]))} to {_node(found, int(graph.head[at]))}{many}" for at in firsts)


def _node(found: CollectiveTime, node: int) -> str:
    """A rank by its number, a switch as one."""
    return str(node) if node < found.graph.ranks else f"switch {node - found.graph.ranks}"


def _notes(found: CollectiveTime, together: int) -> tuple[str, ...]:
    graph = found.graph
    busy = found.timing.link_bytes / graph.bytes_per_s / (found.seconds or 1.0)
    notes = []
    for name, low in zip(_names(found, together), range(0, graph.links, together), strict=True):
        mean = busy[low : low + together].mean()
        rate = format_quantity(float(graph.bytes_per_s[low]), "B/s", 3)
        notes.append(f"link {name}: busy {mean:.0%} of the time, {rate}")
    return tuple(notes)


# -- drawing ----------------------------------------------------------------------------------------------------------


def write_schedule_picture(found: CollectiveTime, path: Path, command: str = "") -> None:
    """Write the picture as PNG, SVG or a page of HTML, by the name's ending."""
    kind = path.suffix.lower()
    if kind == ".html":
        write_text(path, collective_page(found, command))
    elif kind == ".png":
        write_bytes(path, _png(link_use(found), _picture_title(found)))
    else:
        write_text(path, _svg_file(found))


def _picture_title(found: CollectiveTime) -> str:
    algorithm = found.algorithm
    return f"{algorithm.contract.collective} by {algorithm.name} on {found.graph.name}: how busy links are over time"


def _axis_marks(use: LinkUse) -> Iterator[tuple[str, float]]:
    """Round instants and where they stand."""
    axis = seconds_axis("", use.seconds)
    scale = Scale(low=0.0, high=use.seconds or 1.0, start=LEFT, end=LEFT + BINS * CELL)
    for value in scale.ticks(8, axis.unit):
        yield axis.form(value), scale(value)


def _visible_names(use: LinkUse) -> Iterator[tuple[str, float]]:
    """The names that have room, and the middle of their lines."""
    every = -(-NAME_EVERY // use.side)
    for place in range(0, len(use.names), every):
        yield use.names[place], TOP + place * use.side + use.side / 2


def _png(use: LinkUse, title: str) -> bytes:
    width, height = use.size
    canvas = Canvas(width, height, PAPER)
    canvas.text(title, LEFT, 20, INK, "start")
    cells = np.kron(use.shares, np.ones((use.side, CELL)))[..., None]
    lane = np.array(RULE, float)
    drawn = lane + cells * (np.array(FULL, float) - lane)
    canvas.pixels[TOP : TOP + cells.shape[0], LEFT : LEFT + cells.shape[1]] = drawn.astype(np.uint8)
    for name, y in _visible_names(use):
        canvas.text(name, LEFT - 8, y + 5, INK, "end")
    for word, x in _axis_marks(use):
        canvas.text(word, x, height - BOTTOM + 20, INK, "middle")
    return canvas.png()


def use_marks(use: LinkUse) -> list[str]:
    """Lines, cells of one shade as one path, names at the left, the time below."""
    side, bottom = use.side, TOP + use.side * len(use.names)
    wide = BINS * CELL
    marks = [f'<rect class="lane" x="{LEFT}" y="{TOP}" width="{wide}" height="{bottom - TOP}"/>']
    level = np.rint(use.shares * LEVELS).astype(int)
    for shade in range(1, LEVELS + 1):
        path = "".join(_runs(level == shade, side))
        if path:
            marks.append(f'<path class="busy" fill-opacity="{shade / LEVELS:.2f}" d="{path}"/>')
    rows = "".join(f"M{LEFT} {TOP + place * side}h{wide}" for place in range(1, len(use.names)))
    marks.append(f'<path class="between" d="{rows}"/>')
    for place, note in enumerate(use.notes):
        shape = f'x="{LEFT}" y="{TOP + place * side}" width="{wide}" height="{side}"'
        marks.append(f'<rect class="lane row" {shape}><title>{html.escape_text(note)}</title></rect>')
    marks += [html.label(name, LEFT - 8, y + 4, anchor="end", faint=False) for name, y in _visible_names(use)]
    for word, x in _axis_marks(use):
        marks.append(html.rule(f"M{x:.1f} {bottom}v5"))
        marks.append(html.label(word, x, bottom + 18, anchor="middle"))
    marks.append(html.label("time", LEFT + wide / 2, bottom + 36, anchor="middle"))
    marks.append(html.label("link", LEFT - 8, TOP - 10, anchor="end"))
    return marks


def _runs(mask: Array, side: int) -> Iterator[str]:
    """Cells of one shade as rectangles of a path, neighbours of a line in one; equal lines below each other in one."""
    row = 0
    while row < len(mask):
        below = row + 1
        while below < len(mask) and np.array_equal(mask[below], mask[row]):
            below += 1
        changes = np.flatnonzero(np.diff(np.concatenate([[0], mask[row].astype(int), [0]])))
        for begin, end in zip(changes[::2], changes[1::2], strict=True):
            high = (below - row) * side
            yield f"M{LEFT + begin * CELL} {TOP + row * side}h{(end - begin) * CELL}v{high}h-{(end - begin) * CELL}z"
        row = below


def _svg_file(found: CollectiveTime) -> str:
    use = link_use(found)
    width, height = use.size
    marks = [html.label(_picture_title(found), LEFT, 16, faint=False), *use_marks(use)]
    if found.by_size:
        chart = chart_svg(crossing_chart(found.by_size))
        marks.append(f'<g transform="translate(0 {height})">{chart}</g>')
        height += crossing_chart(found.by_size).tall
    return standalone_svg(html.svg(width, height, marks), html.picture_style() + STYLE + series_style()) + "\n"


def series_style() -> str:
    """Colours of algorithms in the chart by size."""
    colours = ("#2f6fb2", "#c05410", "#3f8f4f", "#8c56a8", "#b3394a", "#5f7a86")
    return "".join(f".series{place} {{ stroke: {colour}; stroke-width: 2; }} " for place, colour in enumerate(colours))


def crossing_chart(ranges: Sequence[SizeRange]) -> Chart:
    """Who is fastest at which size, beside the bound."""
    curves = []
    for place, part in enumerate(ranges):
        first, last = range_ends(part, "bytes")
        sizes = np.geomspace(first, last, 3 * POINTS)
        bound = np.interp(sizes, (first, last), range_ends(part, "bound_seconds"))
        seconds = np.interp(sizes, (first, last), range_ends(part, "seconds"))
        positive = [(float(size), float(time)) for size, time in zip(sizes, bound, strict=True) if time > 0]
        curves.append(Curve(points=positive, kind="line"))
        points = [(float(size), float(time)) for size, time in zip(sizes, seconds, strict=True) if time > 0]
        curves.append(Curve(points=points, kind=f"series{place % SERIES}", name=part.algorithm))
    most = max(max(range_ends(part, "seconds")) for part in ranges)
    return Chart(
        across=ChartAxis(name="size", form=lambda value: format_quantity(value, "B", 3)),
        up=seconds_axis("time; dashed: bound", most),
        curves=[curve for curve in curves if curve.points],
    )


def crossing_table(ranges: Sequence[SizeRange]) -> str:
    """The ranges as a table of a page."""
    rows = [
        (part.algorithm, part.chunks, *(format_quantity(value, "B", 3) for value in range_ends(part, "bytes")),
         *(format_duration(value) for value in range_ends(part, "seconds")))
        for part in ranges
    ]  # fmt: skip
    return html.table(("fastest", "chunks", "from", "to", "takes at first", "takes at last"), rows, text=(0,))


# -- page -------------------------------------------------------------------------------------------------------------


def collective_page(found: CollectiveTime, command: str = "") -> str:
    """A page: time beside its bound, the schedule, the busiest links, and who is fastest at which size."""
    algorithm, by_size = found.algorithm, found.by_size
    pairs = [
        (format_duration(found.seconds, 4), f"by {algorithm.name}"),
        (format_duration(found.bound.seconds, 4), f"bound, by {found.bound.by}"),
        (f"{found.ratio_to_bound:.3f}", "times the bound of its chunks"),
        (format_quantity(found.busbw, "B/s", 4), "busbw"),
        (f"{algorithm.rounds:,}", "rounds"),
        (f"{len(algorithm.steps):,}", "steps, verified" if found.verification.ok else "steps, NOT verified"),
    ]
    use = link_use(found)
    body = html.facts(pairs)
    if use.names:
        drawing = html.svg(*use.size, use_marks(use), "How busy each link is over time")
        caption = "The darker, the busier the link; the darkest carries all its rate can. Point at a line for its link."
        body += f"<h2>Links over time</h2>{_scale_key()}<figure>{drawing}<figcaption>{caption}</figcaption></figure>"
    body += _busiest(found)
    if by_size:
        body += f"<h2>By size</h2><figure>{chart_svg(crossing_chart(by_size))}</figure>{crossing_table(by_size)}"
    if found.verification.problems:
        rows = [(str(problem),) for problem in found.verification.problems]
        body += html.section("What is wrong", ("step, rank",), rows, text=(0,))
    return page_document(_head(found, command), body, style=STYLE + series_style())


def _scale_key() -> str:
    shades = "".join(
        f'<span><svg class="swatch" viewBox="0 0 1 1" aria-hidden="true"><rect class="lane" width="1" height="1"/>'
        f'<rect class="busy" fill-opacity="{share}" width="1" height="1"/></svg>{share:.0%}</span>'
        for share in (0, 0.25, 0.5, 0.75, 1)
    )
    return f'<p class="key">busy: {shades}</p>'


def _head(found: CollectiveTime, command: str) -> PageHead:
    algorithm, graph = found.algorithm, found.graph
    size = format_quantity(found.size_bytes, "B", 4)
    how = "a synthesized algorithm" if found.synthesis_seconds is not None else algorithm.name
    proof = (
        "Every output was proven to hold every contribution exactly once; the time is exact for ideal links, whose "
        "rates and latencies are given. What libraries and contention add is not in it."
        if found.verification.ok
        else "The algorithm is NOT right: see what is wrong below."
    )
    if found.contention is not None:
        proof += f" Simulated with contention it takes {format_duration(found.contention.seconds, 4)}."
    return PageHead(
        verb="collective",
        question=f"How long does {found.collective} of {size} take on {graph.name}?",
        answer=f"{format_duration(found.seconds, 4)} by {how} on ideal links, {found.ratio_to_bound:.3f} "
        f"times what no algorithm beats ({found.bound.by}).",
        certainty=proof,
        subject=(
            ("Collective", f"{found.collective} of {size}"),
            ("Topology", f"{graph.name}: {graph.ranks:,} ranks, {graph.links:,} links"),
            ("Algorithm", f"{how}: {algorithm.rounds:,} rounds, {algorithm.step_count:,} steps"),
        ),
        evidence="Rates and latencies of links are those given, or of the catalog's data sheets.",
        command=command,
    )


def _busiest(found: CollectiveTime) -> str:
    graph, carried_bytes = found.graph, found.timing.link_bytes
    if not graph.links or not found.seconds:
        return ""
    busy = carried_bytes / graph.bytes_per_s / found.seconds
    rows = [
        (f"{_node(found, int(graph.tail[link]))} to {_node(found, int(graph.head[link]))}",
         format_quantity(float(carried_bytes[link]), "B", 3), f"{busy[link]:.1%}")
        for link in np.argsort(-busy, kind="stable")[:8]
    ]  # fmt: skip
    return html.section("Busiest links", ("link", "bytes", "of the time"), rows, text=(0,))
