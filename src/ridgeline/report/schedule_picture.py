"""Turn an algorithm on a graph into a picture of its schedule: rounds from left to right, links from top to bottom.

A cell is as dark as the busiest cell is full of bytes; large schedules are drawn with several rounds or links a cell.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ridgeline.comm.algorithm import Algorithm
from ridgeline.comm.graph import Graph
from ridgeline.comm.routes import routes
from ridgeline.core.arrays import Array
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import write_bytes, write_text
from ridgeline.report import html
from ridgeline.report.raster import Canvas

MOST_LINKS, MOST_ROUNDS = 256, 512  # cells
LEFT, TOP, EDGE = 24, 34, 12
PAPER, INK, FULL = (252, 252, 250), (29, 39, 51), (47, 111, 178)
WRITERS = (".png", ".svg")


def heat(algorithm: Algorithm, graph: Graph, most_links: int, most_rounds: int) -> Array:
    """Bytes on each link in each round as a share of the most; several in a cell where there are more."""
    steps = algorithm.steps
    rows, columns = min(most_links, graph.links), min(most_rounds, algorithm.rounds)
    filled = np.zeros((rows, columns))
    if not len(steps) or not graph.links:
        return filled
    pairs, which = np.unique(steps.source.astype(np.int64) * graph.nodes + steps.target, return_inverse=True)
    ways = routes(graph, pairs // graph.nodes, pairs % graph.nodes)
    size = np.broadcast_to(algorithm.contract.shares(), (algorithm.contract.chunks,))[steps.chunk]
    for hop in range(ways.shape[1]):
        link = ways[which, hop]
        on = link >= 0
        at = (link[on] * rows // graph.links, steps.round[on].astype(np.int64) * columns // algorithm.rounds)
        np.add.at(filled, at, size[on])
    return filled / (filled.max() or 1.0)


def write_picture(algorithm: Algorithm, graph: Graph, path: Path) -> None:
    """Write the picture as PNG or SVG, by the name's ending."""
    kind = path.suffix.lower()
    if kind not in WRITERS:
        raise InputError(
            Problem(path="--picture", given=path.name, expected=f"a name ending in {' or '.join(WRITERS)}")
        )
    filled = heat(algorithm, graph, MOST_LINKS, MOST_ROUNDS)
    side = int(np.clip(900 // max(filled.shape[1], 1), 1, 16)), int(np.clip(600 // max(filled.shape[0], 1), 2, 16))
    title = f"{algorithm.contract.collective} by {algorithm.name} on {graph.name}: rounds across, links down"
    if kind == ".png":
        write_bytes(path, _png(filled, side, title))
    else:
        write_text(path, _svg(filled, side, title))


def _size(filled: Array, side: tuple[int, int]) -> tuple[int, int]:
    return max(LEFT + filled.shape[1] * side[0] + EDGE, 760), TOP + filled.shape[0] * side[1] + EDGE


def _png(filled: Array, side: tuple[int, int], title: str) -> bytes:
    canvas = Canvas(*_size(filled, side), PAPER)
    canvas.text(title, LEFT, 20, INK, "start")
    cells = np.kron(filled, np.ones((side[1], side[0])))[..., None]
    drawn = np.array(PAPER) + cells * (np.array(FULL, float) - np.array(PAPER, float))
    canvas.pixels[TOP : TOP + cells.shape[0], LEFT : LEFT + cells.shape[1]] = drawn.astype(np.uint8)
    return canvas.png()


def _svg(filled: Array, side: tuple[int, int], title: str) -> str:
    colour = "#" + "".join(f"{one:02x}" for one in FULL)
    marks = [html.label(title, LEFT, 20)]
    for row, column in zip(*np.nonzero(filled), strict=True):
        x, y = LEFT + int(column) * side[0], TOP + int(row) * side[1]
        strength = f"{filled[row, column]:.2f}"
        marks.append(
            f'<rect x="{x}" y="{y}" width="{side[0]}" height="{side[1]}" fill="{colour}" fill-opacity="{strength}"/>'
        )
    inner = html.svg(*_size(filled, side), marks)
    return inner.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n"
