"""Turn measured kernels into a Surface: efficiency over the logarithm of sizes, read between its points.

    log t(x) = log roof(x) + sum_i w_i log(t_i / roof_i) / sum_i w_i        w = exp(-(d^2 - d0^2) / 2 h^2) / (d^2 + e)

d = distance to a measured kernel in doublings of its sizes, d0 to the nearest. Weights are positive and sum to one, so
no efficiency leaves the range of its neighbours: larger work is never cheap because of a polynomial's swing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.dtype import element_bytes
from ridgeline.core.records import dataclass
from ridgeline.cost import kernel_roof as roofs
from ridgeline.cost.kernel_roof import Sheet
from ridgeline.cost.profile import Measurement
from ridgeline.ir.kernel import kernel_bytes, kernel_flops

NEAR = 0.5  # doublings over which neighbours share in an answer
NOTHING = -100.0  # exponents below add nothing; smaller ones make denormal numbers, which are slow
EXACT = 0.002  # squared doublings within which a measured kernel speaks for itself
BLOCK = 4_000_000  # distances worked out at once
SAME, REACH, END = 0.05, 1.5, 4.0  # doublings: the kernel itself; interpolated up to; nothing measured counts beyond
LAYOUTS: Mapping[str, tuple[float, float]] = {"torch_nn": (0.6, 0.0), "torch_nt": (0.0, 0.6)}
FROM_CACHE = 0.7
PRODUCTS = ("gemm", "grouped_gemm")
FLASH: Mapping[str, tuple[bool, ...]] = {
    "attention_forward": (False,),
    "attention_backward": (True,),
    "attention_both": (False, True),
}
"""Whether each pass of an op is a backward one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """Efficiencies of measured kernels of one op, format and implementation, in logarithms, by their coordinates."""

    points: Array
    ratios: Array
    rows: int

    def read(self, where: Array) -> tuple[Array, Array]:
        """Logarithm of seconds over roof at each place, and how far the nearest measured kernel is, in doublings."""
        ratios, distance = np.empty(len(where)), np.empty(len(where))
        step = max(1, BLOCK // max(1, len(self.points)))
        squares = (self.points**2).sum(1)
        for start in range(0, len(where), step):
            own = where[start : start + step]
            apart = np.maximum((own**2).sum(1)[:, None] + squares - 2 * own @ self.points.T, 0.0)
            least = apart.min(1)
            weight = (least[:, None] - apart) / (2 * NEAR**2)
            np.exp(np.maximum(weight, NOTHING, out=weight), out=weight)
            apart += EXACT
            weight /= apart
            ratios[start : start + step] = weight @ self.ratios / weight.sum(1)
            distance[start : start + step] = np.sqrt(least)
        return ratios, distance


def fitted_share(distance: Array) -> Array:
    """How much of an answer the fitted model gives: nothing up to `REACH` doublings away, all of it from `END` on."""
    return np.clip((distance - REACH) / (END - REACH), 0.0, 1.0)


def columns_of(rows: Sequence[Measurement]) -> dict[str, Array]:
    """Sizes of rows of one op as columns."""
    names = dict.fromkeys(name for row in rows for name in row.dims) or ("runs",)
    return {name: np.array([row.dims.get(name, 1) for row in rows], dtype=np.float64) for name in names}


def product_state(rows: Sequence[Measurement]) -> Array:
    """What makes products of one shape differ, as three more coordinates: which operand lies transposed, and whether
    operands were in the cache from the run before."""
    states = [(*LAYOUTS.get(row.impl, (0.0, 0.0)), FROM_CACHE * (row.figures.get("cold") == 0)) for row in rows]
    return np.array(states, dtype=np.float64).reshape(-1, 3)


def roof_and_place(op: str, dtype: str, dims: Mapping[str, Array], sheet: Sheet) -> tuple[Array, Array]:
    """Seconds of kernels at data-sheet rates, and their coordinates."""
    size = element_bytes(dtype)
    peak = sheet.peak(dtype)
    count = len(next(iter(dims.values())))
    wide = np.full(count, peak or np.nan)
    memory = np.full(count, sheet.memory)
    if op in PRODUCTS:
        groups = dims.get("groups", np.ones(count))
        sizes = np.stack([dims["m"], dims["n"], dims["k"], groups])
        traffic = kernel_bytes(op, dims, size)
        roof = roofs.product_roof(sizes, traffic, wide, memory, np.full(count, sheet.cores))
        place = roofs.product_coordinates(sizes, roofs.unaligned(sizes))
        return roof, place if op == "gemm" else np.column_stack([place, 0.4 * np.log2(groups)])
    if op in FLASH:
        return _flash(FLASH[op], dims, size, (wide, np.full(count, sheet.exponentials), memory))
    if op == "launch":
        return np.full(count, roofs.FLOOR), np.zeros((count, 1))
    moved = kernel_bytes(op, dims, size)
    if op == "attention_latent":
        flops = kernel_flops(op, dims)
        place = np.stack([np.log2(moved), np.log2(dims["batch"])], axis=1)
        return np.hypot(flops / wide, moved / sheet.memory) + roofs.FLOOR, place
    rate = sheet.host if op in ("h2d", "d2h") else sheet.memory
    return moved / rate + roofs.FLOOR, roofs.memory_coordinates(op, dims, moved)


def _flash(passes: tuple[bool, ...], dims: Mapping[str, Array], size: float, units: roofs.Units) -> tuple[Array, Array]:
    """Roof of the passes of flash attention one after the other; coordinates of the first."""
    each = [roofs.attention_work(dims, backward, size) for backward in passes]
    width = dims["head_dim"]
    backs = [np.full(len(width), float(backward)) for backward in passes]
    roof = sum(
        (roofs.attention_roof(*work, width, back, units) for work, back in zip(each, backs, strict=True)),
        start=np.zeros(len(width)),
    )
    return roof, roofs.attention_coordinates(*each[0], width)


def surface_of(rows: Sequence[Measurement], sheet: Sheet) -> Surface | None:
    """The surface of rows of one op and format; None where there are none, or the sheet lacks the format's peak."""
    if not rows:
        return None
    op, dtype = rows[0].op, rows[0].dtype
    roof, place = roof_and_place(op, dtype, columns_of(rows), sheet)
    if op == "gemm":
        place = np.column_stack([place, product_state(rows)])
    ratios = np.log([row.seconds for row in rows]) - np.log(roof)
    known = np.isfinite(ratios) & np.isfinite(place).all(1)
    return Surface(points=place[known], ratios=ratios[known], rows=len(rows)) if known.any() else None
