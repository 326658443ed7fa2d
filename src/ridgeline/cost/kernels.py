"""Turn sizes and rates into seconds: one formula per op for what chips sustain, and one roof per measured kernel.

    padded_flops, flash_seconds    what products and attention cost once cut into tiles
    product_roof, attention_roof   seconds at data-sheet rates, over which a measured kernel's efficiency is read:
        product      the smallest tiles on the cores, at least one wave; operands through memory; whichever is slower
        attention    the flash kernel's two units side by side; operands through memory
    ..._coordinates                where a kernel stands among measured ones: doublings of its sizes

A measured kernel over its roof is its efficiency, which varies little and smoothly; seconds vary by six orders.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.dtype import PEAKS, peak_key
from ridgeline.core.records import dataclass
from ridgeline.core.units import DECIMAL
from ridgeline.cost.machine import FLOOR, exponentials_per_s
from ridgeline.hardware.chip import Chip
from ridgeline.ir.kernel import FLASH_BACKWARD, ROW_PASSES
from ridgeline.ir.ops import ALIGNED, FLASH_EXTRA

# tiles a product may be cut into (rows, columns) and what share of the large tile's rate each reaches
TILES = ((256.0, 128.0, 1.0), (128.0, 128.0, 0.93), (64.0, 128.0, 0.78), (64.0, 64.0, 0.6))
# the same with products of few rows, whose operands engines swap: the weights' columns fill the tall side of the unit
SERVED_TILES = (*TILES, (16.0, 128.0, 0.45))
SPLITS = (1, 2, 4)  # parts of the depth that may run side by side when tiles alone do not fill the cores
HALF_DEPTH = 192.0  # depth at which a tile's start-up and write-back cost as much as its products


# flops/s of one core whose operands arrive 4 or 2 bytes at a time; on an H200 (132 cores, cuBLAS 13) bf16 products of
# 8192 tokens with widths of 4098 and 4100 ran at 280 TFLOP/s, of 4095, 4097 and 50257 at 123, of 4104 and 4096 at 735
PAIRED, SINGLE = 2.1 * DECIMAL["T"], 0.93 * DECIMAL["T"]


def load_rate(alignment: float) -> float | None:
    """Flops/s of one core whose matrices have rows of this alignment, in bytes; None where loads do not limit it."""
    if alignment >= ALIGNED:
        return None
    return PAIRED if alignment >= 4 else SINGLE


def unaligned_rate(alignment: Array, cores: Array) -> Array:
    """Flops/s that products reach at most whose rows are not aligned to 16 bytes; infinite where they are.

    Loads limit it and not the matrix unit, so it goes with cores and not with the peak: odd widths lose a factor 6 on
    Hopper, less on older chips, and products that no matrix unit does (fp32) lose nothing. Machines without cores of
    that kind (a systolic array, cores = 1) have compilers that pad.

    >>> rows = unaligned_rate(np.array([16.0, 4.0, 2.0]), np.full(3, 132.0))
    >>> (rows / 1e12).round().tolist()
    [inf, 277.0, 123.0]
    """
    load_rate = cores * np.where(alignment >= 4, PAIRED, SINGLE)
    return np.where((alignment >= ALIGNED) | (cores <= 1), np.inf, load_rate)


def padded_flops(
    m: Array, n: Array, k: Array, groups: Array, cores: Array, tiled: tuple[tuple[float, float, float], ...] = TILES
) -> Array:
    """Flops that `groups` products (m x k) by (k x n) cost once cut into tiles; over the sustained rate, their time.

        tiles  = groups * ceil(m / a) * ceil(n / b)               a x b = a tile; the best of a few is taken
        padded = ceil(tiles / cores) * cores * 2 a b (k + k0)

    k0 = what starting a tile costs, in depth. Many waves hide the last one. A machine without waves (a systolic array)
    has cores = 1 and pays for padding only.

    >>> side = np.array([4096.0])
    >>> round(float(padded_flops(side, side, side, np.ones(1), np.array([132.0]))[0]) / (2 * 4096**3), 3)
    1.08
    """
    best = np.full(np.broadcast(m, n, k).shape, np.inf)
    depths = [k / split + HALF_DEPTH * (1 if split == 1 else 1.5) for split in SPLITS]
    rows = {high: groups * np.ceil(m / high) for high in {tile[0] for tile in tiled}}
    columns = {wide: np.ceil(n / wide) for wide in {tile[1] for tile in tiled}}
    has_waves = cores > 1  # waves are whole where there are any
    for high, wide, share in tiled:
        tiles = rows[high] * columns[wide]
        for split, depth in zip(SPLITS, depths, strict=True):
            waves = tiles * split / cores
            waves = np.where(has_waves & (waves <= 12), np.ceil(waves), waves)
            waves *= cores
            waves *= 2 * high * wide / share
            np.minimum(best, waves * depth, out=best)
    return best


def flash_seconds(flops: Array, head_dim: Array, backward: Array, products: Array, exponentials: Array) -> Array:
    """Time of a flash kernel, whose matrix unit and exponential unit work side by side but wait for each other.

        t = sqrt((flops / p)^2 + (scores / e)^2)        scores = flops / (4 d) forward, flops / (7 d) backward

    p = flops/s and e = exponentials/s that the kernel sustains, d = head_dim. Two products and one exponential a score
    forward; five backward, and beside the exponential 0.4 of its time on vector units: dS = P (dP - D), and P and dS
    are cast for the next products. So FlashAttention-2, forward and backward together, loses as much from heads of 128
    to heads of 64 as was measured: 0.12 of its rate on an H100, 0.11 on an A100. The square root stands between perfect
    overlap and none: with it kernels measured at head sizes 64 and 128 on H100, B200 and B300 reach the same share of
    both units within 8 %.

    >>> one = np.ones(1)
    >>> wide, narrow = (flash_seconds(one * 1e12, one * d, one * 0, one * 989e12, one * 4.19e12)[0] for d in (128, 64))
    >>> round(float(wide / narrow), 2)  # FlashAttention-3 measured 0.76, cuDNN 0.72
    0.81
    """
    scores = flops / (head_dim * np.where(backward > 0, 7.0, 4.0))
    return np.hypot(flops / products, scores / exponentials)


# what sides are rounded up to; a last wave that is not full costs nothing beyond, split-K fills it
TILE = TILES[-1][:2]
START = 120.0  # depth that starting and ending a tile costs
ALIGNED_ELEMENTS = 8  # elements of a 16-byte read, of 16 bits each
UNALIGNED = 2.5  # doublings that a product with an odd side stands apart
SHARPNESS = 4.0  # how sharply the slower of products and traffic wins


Units = tuple[Array, Array, Array]
"""Rates of the matrix unit, the exponential unit and memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipRates:
    """What a chip's data sheet says, as far as kernels need it: flops/s by peak, bytes/s, cores, exponentials/s."""

    peaks: tuple[tuple[str, float], ...]
    memory: float
    cores: float
    exponentials: float
    host: float

    @classmethod
    def of(cls, chip: Chip) -> ChipRates:
        """A chip's data sheet; `MissingNumber` where it lacks its memory's rate."""
        peaks = {key: chip.peak[key].value for key in PEAKS if key in chip.peak}
        return cls(
            peaks=tuple(peaks.items()),
            memory=chip.need("hbm.bandwidth").value,
            cores=chip.cores.value if chip.cores else 1.0,
            exponentials=exponentials_per_s(chip),
            host=chip.host.bandwidth.value if chip.host.bandwidth else float("inf"),
        )

    def peak(self, dtype: str) -> float:
        """Flops/s of a format; 0 where nobody published it."""
        rates = dict(self.peaks)
        return rates.get(peak_key(dtype, rates), 0.0)


def product_roof(
    sizes: Array, traffic: Array, peak: Array, memory: Array, cores: Array, floor: Array | float = FLOOR
) -> Array:
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
    through: Array = ((compute**SHARPNESS) + (traffic / memory) ** SHARPNESS) ** (1 / SHARPNESS) + floor
    return through


def halvings_to_align(sizes: Array) -> Array:
    """How often the rows of a product's matrices miss `ALIGNED_ELEMENTS`, in halvings: 0 to 3."""
    sides = np.rint(sizes[1:3])
    halvings: Array = (
        np.stack([np.mod(sides, ALIGNED_ELEMENTS // part) > 0 for part in (1, 2, 4)]).sum(0).max(0).astype(np.float64)
    )
    return halvings


def product_coordinates(sizes: Array, missed: Array) -> Array:
    """Where a product stands among others: doublings of its rows, columns and depth; whether its rows are in eights,
    and how far its matrices' rows are from multiples of 16 bytes, without which kernels read element by element.

    missed = as `unaligned` counts it; none where a compiler pads them.
    """
    sides: Array = np.log2(sizes[:3]).T * np.array([1.0, 0.7, 0.7])
    odd = (sizes[0] >= TILE[0]) & (np.mod(np.rint(sizes[0]), ALIGNED_ELEMENTS) > 0)
    alignment_distance = UNALIGNED * np.where(missed > 0, 1 + 0.3 * (missed - 1), 0.0)
    return np.column_stack([sides, 0.5 * odd, alignment_distance])


def attention_work(dims: Mapping[str, Array], backward: bool, size: float) -> tuple[Array, Array]:
    """Flops and bytes of a flash kernel, as lowering counts them: masked parts of tiles among the flops."""
    queries, keys, width = dims["query"], dims["key"], dims["head_dim"]
    tokens = dims["batch"] * dims["heads"] * queries
    visible = np.where(dims["causal"] > 0, np.maximum(keys - queries, 0) + (np.minimum(queries, keys) + 1) / 2, keys)
    flops = 4 * tokens * width * (visible + FLASH_EXTRA[backward])
    traffic = tokens * width * 4 * size
    return (flops * FLASH_BACKWARD, 3 * traffic) if backward else (flops, traffic)


def attention_roof(
    flops: Array,
    moved: Array,
    width: Array,
    backward: Array,
    units: tuple[Array, Array, Array],
    floor: Array | float = FLOOR,
) -> Array:
    """Seconds of flash attention at data-sheet rates of matrix unit, exponential unit and memory."""
    peak, exponentials, memory = units
    roof: Array = np.maximum(flash_seconds(flops, width, backward, peak, exponentials), moved / memory) + floor
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
