"""Turn MoE dispatch and combine into seconds, as DeepEP runs them.

    normal        a token goes once to every rank that has an expert of it: N (1 - (1-1/N)^k) of N ranks that it may
                  reach; between domains once to every domain, then over links inside, both at once. Between domains
                  few cores forward all bytes: their time if that is longer
    version 2     the same with cores to spare
    low latency   every copy travels by itself, out of the domain through its own port: max of the two

What stays on the rank itself is not sent; a source's GB/s count it (`counted_bytes`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.units import DECIMAL
from ridgeline.cost.library_times.question import SOFTWARE, Columns

MICRO, GIGA = DECIMAL["u"], DECIMAL["G"]
WIDE = 4  # domains a token goes to, which the normal kernels are made for


def distinct(places: Array, copies: Array) -> Array:
    """Different places that so many copies of a token reach, each place being as likely.

    >>> round(float(distinct(np.array(8.0), np.array(8.0))), 2)
    5.25
    """
    found: Array = places * (1 - (1 - 1 / places) ** copies)
    return found


def counted_bytes(columns: Columns) -> Array:
    """Bytes that DeepEP's own GB/s count for one rank, what stays on it or in its domain included."""
    each = columns.tokens * columns.token_bytes
    quick = columns.software == SOFTWARE.index("deepep-ll")
    once = np.where(columns.domains > 1, distinct(columns.reach, columns.top_k), _ranks_reached(columns))
    return each * np.where(quick, columns.top_k, once)


def _ranks_reached(columns: Columns) -> Array:
    return distinct(columns.reach * columns.inside, columns.top_k)


def expert_seconds(columns: Columns, values: Mapping[str, float]) -> Array:
    """Seconds of dispatch or combine."""
    each = columns.tokens * columns.token_bytes
    up = each * _ranks_reached(columns) * (1 - 1 / columns.inside)
    out = each * distinct(columns.reach, columns.top_k) * (1 - 1 / columns.domains)
    wide = np.where(columns.reach > WIDE, values["expert_wide"], 1.0)
    up_s, out_s = up / (columns.link * values["expert_rate"]), out * wide / (columns.out * values["expert_out"])
    start = values["expert_start"] * MICRO
    second = start + np.maximum(up_s, out_s)
    cores_s = np.where(columns.domains > 1, (up + out) / (columns.cores * values["expert_core"] * GIGA), 0.0)
    normal = np.maximum(second, start + cores_s)
    return np.choose(
        np.clip(columns.software - SOFTWARE.index("deepep"), 0, 2), [normal, second, _quick(columns, values)]
    )


def _quick(columns: Columns, values: Mapping[str, float]) -> Array:
    every = columns.tokens * columns.token_bytes * columns.top_k
    up_s = every * (columns.inside - 1) / columns.ranks / (columns.link * values["quick_rate"])
    out_s = every * (1 - columns.inside / columns.ranks) / (columns.out * values["expert_out"])
    start = values["quick_start"] + np.where(columns.domains > 1, values["quick_hop"], 0.0)
    return start * MICRO + np.maximum(up_s, out_s)
