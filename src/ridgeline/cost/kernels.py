"""Turn sizes and rates into seconds: one formula per op, for one op or for arrays of them."""

from __future__ import annotations

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.units import DECIMAL

# tiles a product may be cut into (rows, columns) and what share of the large tile's rate each reaches
TILES = ((256.0, 128.0, 1.0), (128.0, 128.0, 0.93), (64.0, 128.0, 0.78), (64.0, 64.0, 0.6))
# the same with products of few rows, whose operands engines swap: the weights' columns fill the tall side of the unit
SERVED_TILES = (*TILES, (16.0, 128.0, 0.45))
SPLITS = (1, 2, 4)  # parts of the depth that may run side by side when tiles alone do not fill the cores
HALF_DEPTH = 192.0  # depth at which a tile's start-up and write-back cost as much as its products


ALIGNED = 16.0  # bytes that rows must be a multiple of for whole loads into the matrix unit
# flops/s of one core whose operands arrive 4 or 2 bytes at a time; on an H200 (132 cores, cuBLAS 13) bf16 products of
# 8192 tokens with widths of 4098 and 4100 ran at 280 TFLOP/s, of 4095, 4097 and 50257 at 123, of 4104 and 4096 at 735
PAIRED, SINGLE = 2.1 * DECIMAL["T"], 0.93 * DECIMAL["T"]


def unaligned_rate(alignment: Array, cores: Array) -> Array:
    """Flops/s that products reach at most whose rows are not aligned to 16 bytes; infinite where they are.

    Loads limit it and not the matrix unit, so it goes with cores and not with the peak: odd widths lose a factor 6 on
    Hopper, less on older chips, and products that no matrix unit does (fp32) lose nothing. Machines without cores of
    that kind (a systolic array, cores = 1) have compilers that pad.

    >>> rows = unaligned_rate(np.array([16.0, 4.0, 2.0]), np.full(3, 132.0))
    >>> (rows / 1e12).round().tolist()
    [inf, 277.0, 123.0]
    """
    loaded = cores * np.where(alignment >= 4, PAIRED, SINGLE)
    return np.where((alignment >= ALIGNED) | (cores <= 1), np.inf, loaded)


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
    whole = cores > 1  # waves are whole where there are any
    for high, wide, share in tiled:
        tiles = rows[high] * columns[wide]
        for split, depth in zip(SPLITS, depths, strict=True):
            waves = tiles * split / cores
            waves = np.where(whole & (waves <= 12), np.ceil(waves), waves)
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
