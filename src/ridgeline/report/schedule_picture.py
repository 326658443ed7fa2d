"""Turn an algorithm on a graph into a picture of its schedule: rounds from left to right, links from top to bottom.

A cell is as dark as the busiest cell is full of bytes; large schedules are drawn with several rounds or links a cell.
PNG and SVG are the picture alone, and with a selector by size its chart below; HTML is a page with figures and tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ridgeline.comm import Algorithm, CollectiveTime, Graph, SizeRange, shortest_routes
from ridgeline.core.arrays import Array
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import write_bytes, write_text
from ridgeline.core.units import format_quantity
from ridgeline.report import html
from ridgeline.report.collective import crossing_marks, crossing_table
from ridgeline.report.raster import Canvas

MOST_LINKS, MOST_ROUNDS = 256, 512  # cells
PAGE_LINKS, PAGE_ROUNDS = 96, 160  # cells of a page, each of which tells what it is
LEFT, TOP, EDGE = 24, 34, 12
CHART = 300  # pixels of the chart by size
PAPER, INK, FULL = (252, 252, 250), (29, 39, 51), (47, 111, 178)
WRITERS = (".png", ".svg", ".html")


def heat(algorithm: Algorithm, graph: Graph, most_links: int, most_rounds: int) -> Array:
    """Bytes on each link in each round as a share of the most; several in a cell where there are more."""
    steps = algorithm.steps
    rows, columns = min(most_links, graph.links), min(most_rounds, algorithm.rounds)
    shares = np.zeros((rows, columns))
    if not len(steps) or not graph.links:
        return shares
    pairs, which = np.unique(steps.source.astype(np.int64) * graph.nodes + steps.target, return_inverse=True)
    ways = shortest_routes(graph, pairs // graph.nodes, pairs % graph.nodes)
    size = np.broadcast_to(algorithm.contract.shares(), (algorithm.contract.chunks,))[steps.chunk]
    for hop in range(ways.shape[1]):
        link = ways[which, hop]
        on = link >= 0
        at = (link[on] * rows // graph.links, steps.round[on].astype(np.int64) * columns // algorithm.rounds)
        np.add.at(shares, at, size[on])
    return shares / (shares.max() or 1.0)


def refuse_unknown_picture(path: Path) -> None:
    """An `InputError` for a name that is no picture's."""
    if path.suffix.lower() not in WRITERS:
        expected_text = f"a name ending in {', '.join(WRITERS[:-1])} or {WRITERS[-1]}"
        raise InputError(Problem(path="--picture", given=path.name, expected=expected_text))


def write_picture(found: CollectiveTime, path: Path, by_size: Sequence[SizeRange] = ()) -> None:
    """Write the picture as PNG, SVG or a page of HTML, by the name's ending."""
    refuse_unknown_picture(path)
    kind = path.suffix.lower()
    if kind == ".html":
        write_text(path, page(found, by_size))
        return
    shares = heat(found.algorithm, found.graph, MOST_LINKS, MOST_ROUNDS)
    if kind == ".png":
        write_bytes(path, _png(shares, _side(shares), _title(found)))
    else:
        write_text(path, _svg(shares, _side(shares), _title(found), by_size))


def _title(found: CollectiveTime) -> str:
    algorithm = found.algorithm
    return f"{algorithm.contract.collective} by {algorithm.name} on {found.graph.name}: rounds across, links down"


def _side(filled: Array) -> tuple[int, int]:
    """Pixels of a cell."""
    return int(np.clip(900 // max(filled.shape[1], 1), 1, 16)), int(np.clip(600 // max(filled.shape[0], 1), 2, 16))


def _size(filled: Array, side: tuple[int, int]) -> tuple[int, int]:
    return max(LEFT + filled.shape[1] * side[0] + EDGE, 760), TOP + filled.shape[0] * side[1] + EDGE


def _png(filled: Array, side: tuple[int, int], title: str) -> bytes:
    canvas = Canvas(*_size(filled, side), PAPER)
    canvas.text(title, LEFT, 20, INK, "start")
    cells = np.kron(filled, np.ones((side[1], side[0])))[..., None]
    drawn = np.array(PAPER) + cells * (np.array(FULL, float) - np.array(PAPER, float))
    canvas.pixels[TOP : TOP + cells.shape[0], LEFT : LEFT + cells.shape[1]] = drawn.astype(np.uint8)
    return canvas.png()


def _cells(filled: Array, side: tuple[int, int], told: Sequence[str] = ()) -> list[str]:
    """A rectangle for each cell with bytes, which tells what it is where texts for links are given."""
    colour = "#" + "".join(f"{channel:02x}" for channel in FULL)
    marks = []
    for row, column in zip(*np.nonzero(filled), strict=True):
        x, y = LEFT + int(column) * side[0], TOP + int(row) * side[1]
        place = f'x="{x}" y="{y}" width="{side[0]}" height="{side[1]}"'
        fill = f'fill="{colour}" fill-opacity="{filled[row, column]:.2f}"'
        tip = f"<title>{html.escape_text(told[row])}</title>" if told else ""
        marks.append(f"<rect {place} {fill}>{tip}</rect>" if tip else f"<rect {place} {fill}/>")
    return marks


def _svg(filled: Array, side: tuple[int, int], title: str, by_size: Sequence[SizeRange]) -> str:
    marks = [html.label(title, LEFT, 20), *_cells(filled, side)]
    width, height = _size(filled, side)
    if by_size:
        marks.append(f'<g transform="translate(0 {height})">{"".join(crossing_marks(by_size, width, CHART))}</g>')
        height += CHART
    style = "<style>text{font:11px sans-serif;fill:#1d2733}.rule{stroke:#dfe3e8;fill:none}.line{stroke:#8a94a0;"
    style += "stroke-dasharray:4 3;fill:none}</style>"
    inner = html.svg(width, height, [style, *marks])
    return inner.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n"


def page(found: CollectiveTime, by_size: Sequence[SizeRange] = ()) -> str:
    """A page: time beside its bound, the schedule, the busiest links, and who is fastest at which size."""
    algorithm, graph = found.algorithm, found.graph
    size = format_quantity(found.size_bytes, "B", 4)
    title = f"{found.collective} of {size} on {graph.name}"
    pairs = [
        (format_quantity(found.seconds, "s", 4), f"by {algorithm.name}"),
        (format_quantity(found.bound.seconds, "s", 4), f"bound, by {found.bound.by}"),
        (f"{found.ratio_to_bound:.3f}", "times the bound of its chunks"),
        (format_quantity(found.busbw, "B/s", 4), "busbw"),
        (f"{algorithm.rounds:,}", "rounds"),
        (f"{len(algorithm.steps):,}", "steps, verified" if found.verification.ok else "steps, NOT verified"),
    ]
    shares = heat(algorithm, graph, PAGE_LINKS, PAGE_ROUNDS)
    body = f"<h1>{html.escape_text(title)}</h1>{html.facts(pairs)}<h2>Schedule</h2><figure>"
    side = _side(shares)
    body += html.svg(
        *_size(shares, side), [*_axes(shares, side, algorithm.rounds), *_cells(shares, side, _links(found, shares))]
    )
    body += (
        "<figcaption>Darker: more bytes in these rounds on these links; the darkest cell is the fullest.</figcaption>"
    )
    body += f"</figure>{_busiest(found)}"
    if by_size:
        chart = html.svg(760, CHART, crossing_marks(by_size, 760, CHART))
        body += f"<h2>By size</h2><figure>{chart}</figure>{crossing_table(by_size)}"
    if found.verification.problems:
        rows = [(str(problem),) for problem in found.verification.problems]
        body += f"<h2>What is wrong</h2>{html.table(('step, rank',), rows, text=(0,))}"
    return html.document(title=title, body=body, style=html.HOUSE)


def _axes(filled: Array, side: tuple[int, int], rounds: int) -> list[str]:
    right = LEFT + filled.shape[1] * side[0]
    ends = [html.label("round 1", LEFT, TOP - 8), html.label(f"round {rounds}", right, TOP - 8, anchor="end")]
    return ends if rounds > 1 else ends[:1]


def _links(found: CollectiveTime, filled: Array) -> list[str]:
    """What each row of cells stands for."""
    graph, rows = found.graph, filled.shape[0]
    busy = found.timing.link_bytes / graph.bytes_per_s / (found.seconds or 1.0)
    labels = []
    for row in range(rows):
        low, high = -(-row * graph.links // rows), -(-(row + 1) * graph.links // rows)
        ends = f"{graph.tail[low]} to {graph.head[low]}"
        many = f"{high - low} links from {ends} on" if high - low > 1 else f"link {ends}"
        labels.append(f"{many}, busy {busy[low:high].mean():.0%} of the time")
    return labels


def _busiest(found: CollectiveTime) -> str:
    graph, carried_bytes = found.graph, found.timing.link_bytes
    if not graph.links or not found.seconds:
        return ""
    busy = carried_bytes / graph.bytes_per_s / found.seconds
    rows = [
        (
            f"{graph.tail[link]} to {graph.head[link]}",
            format_quantity(float(carried_bytes[link]), "B", 3),
            f"{busy[link]:.1%}",
        )
        for link in np.argsort(-busy, kind="stable")[:8]
    ]
    return f"<h2>Busiest links</h2>{html.table(('link', 'bytes', 'of the time'), rows, text=(0,))}"
