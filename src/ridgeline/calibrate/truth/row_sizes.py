"""Turn a model's width and parameters into the heads, feed-forward width and layers that its row leaves blank.

    heads   h / 128, or h / 64 where 128 does not divide h
    ffn     4 h; with a gate 8/3 h, rounded up to a multiple of 256
    layers  (P - v h) / (4 h^2 + m h f)       m = 2 matrices of the feed-forward part, 3 with a gate

h = hidden, v = vocabulary, f = ffn, P = parameters. What most models do; every use is noted.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from ridgeline.calibrate.truth.csv_cells import RowCells, Unusable
from ridgeline.core.units import DECIMAL


def assumed_sizes(cells: RowCells, gated: bool) -> RowCells:
    """The row with heads, ffn_hidden and layers filled in where they are blank; notes are shared with the given one."""
    hidden, found = cells.need("hidden"), {}
    if cells.count("heads") is None:
        found["heads"] = hidden // (64 if hidden % 128 else 128) or 1
    if cells.count("ffn_hidden") is None and not cells.size("experts"):
        found["ffn_hidden"] = -(-hidden * 8 // 3 // 256) * 256 if gated else 4 * hidden
    if cells.count("layers") is None:
        found["layers"] = _layers(cells, gated, found.get("ffn_hidden") or cells.count("ffn_hidden"))
    for column, value in found.items():
        cells.note(f"{column} = {value}: blank in the table; what width and parameters suggest")
    filled = {**cells.row.cells, **{column: str(value) for column, value in found.items()}}
    return replace(cells, row=replace(cells.row, cells=MappingProxyType(filled))) if found else cells


def _layers(cells: RowCells, gated: bool, ffn: int | None) -> int:
    """Layers that the published size leaves room for; only a dense model's can be told from it."""
    total, hidden = cells.number("params_b"), cells.need("hidden")
    if total is None or ffn is None or cells.size("experts"):
        raise Unusable("layers", "blank, and params_b cannot tell them; fill it in")
    each = 4 * hidden**2 + (3 if gated else 2) * hidden * ffn
    return max(1, round((total * DECIMAL["G"] - cells.need("vocab") * hidden) / each))
