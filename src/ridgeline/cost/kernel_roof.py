"""Turn a kernel's sizes into its roof: seconds at data-sheet rates, and the coordinates its efficiency varies over.

    product      tiles of 64 x 64 on the cores, at least one wave; operands through memory; whichever is slower
    attention    the flash kernel's two units side by side; operands through memory
    rows         bytes of one pass over operands and results
    optimizer    bytes of weights, gradients and moments

A measured kernel over its roof is its efficiency, which varies little and smoothly; seconds vary by six orders.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.dtype import peak_key
from ridgeline.core.records import dataclass
from ridgeline.cost.kernels import TILES, flash_seconds
from ridgeline.cost.machine import PEAKS, exponentials_per_s
from ridgeline.hardware.chip import Chip
from ridgeline.ir.kernel import FLASH_BACKWARD, ROW_PASSES
from ridgeline.ir.ops import FLASH_EXTRA

# what sides are rounded up to; a last wave that is not full costs nothing beyond, split-K fills it
TILE = TILES[-1][:2]
START = 120.0  # depth that starting and ending a tile costs
ALIGNED = 8  # elements of a 16-byte read, of 16 bits each
UNALIGNED = 2.5  # doublings that a product with an odd side stands apart
SHARPNESS = 4.0  # how sharply the slower of products and traffic wins
FLOOR = 1.8e-6  # seconds of a kernel that does next to nothing


Units = tuple[Array, Array, Array]
"""Rates of the matrix unit, the exponential unit and memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """What a chip's data sheet says, as far as kernels need it: flops/s by peak, bytes/s, cores, exponentials/s."""

    peaks: tuple[tuple[str, float], ...]
    memory: float
    cores: float
    exponentials: float
    host: float

    def peak(self, dtype: str) -> float:
        """Flops/s of a format; 0 where nobody published it."""
        rates = dict(self.peaks)
        return rates.get(peak_key(dtype, rates), 0.0)


def sheet_of(chip: Chip) -> Sheet:
    """A chip's data sheet; `MissingNumber` where it lacks its memory's rate."""
    peaks = {key: chip.peak[key].value for key in PEAKS if key in chip.peak}
    return Sheet(
        peaks=tuple(peaks.items()),
        memory=chip.need("hbm.bandwidth").value,
        cores=chip.cores.value if chip.cores else 1.0,
        exponentials=exponentials_per_s(chip),
        host=chip.host.bandwidth.value if chip.host.bandwidth else float("inf"),
    )


def product_roof(sizes: Array, traffic: Array, peak: Array, memory: Array, cores: Array) -> Array:
    """Seconds of products at data-sheet rates once they are cut into tiles.

        t = (c^p + b^p)^(1/p) + floor        c = waves * tile * (k + k0) / peak        b = traffic / memory

    sizes = m, n, k, groups as rows; traffic in bytes.

    >>> side = np.full(1, 4096.0)
    >>> sizes, one = np.stack([side, side, side, np.ones(1)]), np.ones(1)
    >>> f"{product_roof(sizes, 3 * side**2 * 2, one * 989e12, one * 4.8e12, one * 132)[0]:.3g}"
    '0.000145'
    """
    m, n, k, groups = sizes
    tiles = groups * np.ceil(m / TILE[0]) * np.ceil(n / TILE[1])
    waves = np.maximum(tiles / cores, 1.0)
    compute = waves * cores * (2 * TILE[0] * TILE[1]) * (k + START) / peak
    through: Array = ((compute**SHARPNESS) + (traffic / memory) ** SHARPNESS) ** (1 / SHARPNESS) + FLOOR
    return through


def unaligned(sizes: Array) -> Array:
    """How often the rows of a product's matrices miss a multiple of `ALIGNED` elements, in halvings: 0 to 3."""
    sides = np.rint(sizes[1:3])
    missed: Array = (
        np.stack([np.mod(sides, ALIGNED // part) > 0 for part in (1, 2, 4)]).sum(0).max(0).astype(np.float64)
    )
    return missed


def product_coordinates(sizes: Array, missed: Array) -> Array:
    """Where a product stands among others: doublings of its rows, columns and depth; whether its rows are in eights,
    and how far its matrices' rows are from multiples of 16 bytes, without which kernels read element by element.

    missed = as `unaligned` counts it; none where a compiler pads them.
    """
    sides: Array = np.log2(sizes[:3]).T * np.array([1.0, 0.7, 0.7])
    odd = (sizes[0] >= TILE[0]) & (np.mod(np.rint(sizes[0]), ALIGNED) > 0)
    away = UNALIGNED * np.where(missed > 0, 1 + 0.3 * (missed - 1), 0.0)
    return np.column_stack([sides, 0.5 * odd, away])


def attention_work(dims: Mapping[str, Array], backward: bool, size: float) -> tuple[Array, Array]:
    """Flops and bytes of a flash kernel, as lowering counts them: masked parts of tiles among the flops."""
    queries, keys, width = dims["query"], dims["key"], dims["head_dim"]
    tokens = dims["batch"] * dims["heads"] * queries
    visible = np.where(dims["causal"] > 0, np.maximum(keys - queries, 0) + (np.minimum(queries, keys) + 1) / 2, keys)
    flops = 4 * tokens * width * (visible + FLASH_EXTRA[backward])
    moved = tokens * width * 4 * size
    return (flops * FLASH_BACKWARD, 3 * moved) if backward else (flops, moved)


def attention_roof(
    flops: Array, moved: Array, width: Array, backward: Array, units: tuple[Array, Array, Array]
) -> Array:
    """Seconds of flash attention at data-sheet rates of matrix unit, exponential unit and memory."""
    peak, exponentials, memory = units
    roof: Array = np.maximum(flash_seconds(flops, width, backward, peak, exponentials), moved / memory) + FLOOR
    return roof


def attention_coordinates(flops: Array, moved: Array, width: Array) -> Array:
    """Where attention stands among others: doublings of its keys, of its operands, and of the head's size."""
    return np.stack([np.log2(flops / moved), 0.35 * np.log2(moved), 2.0 * np.log2(width)], axis=1)


def decode_coordinates(moved: Array, caches: Array, sharing: Array, width: Array) -> Array:
    """Where a decode's attention stands among others: doublings of its bytes, of cached heads, of query heads that
    share one, and of the head's size."""
    size, many = np.log2(np.maximum(moved, 1.0)), np.log2(caches)
    return np.stack([size, 0.5 * many, 0.5 * np.log2(sharing), np.log2(width)], axis=1)


def memory_coordinates(op: str, dims: Mapping[str, Array], moved: Array) -> Array:
    """Where a kernel bound by memory stands among others: doublings of its bytes, and of what shapes it."""
    size = np.log2(np.maximum(moved, 1.0))
    if op == "attention_decode":
        caches, sharing = dims["batch"] * dims["kv_heads"], dims["heads"] / dims["kv_heads"]
        return decode_coordinates(moved, caches, sharing, dims["head_dim"])
    if op in ROW_PASSES:
        return np.stack([size, 0.4 * np.log2(dims["columns"])], axis=1)
    return size[:, None]
