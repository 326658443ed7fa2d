"""Turn a collective's sizes and the links under it into seconds, for one collective or for arrays of them."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, SEND = range(4)  # a reduce-scatter costs what an all-gather costs
KINDS = {
    "all-reduce": ALL_REDUCE,
    "all-gather": ALL_GATHER,
    "reduce-scatter": ALL_GATHER,
    "all-to-all": ALL_TO_ALL,
    "send": SEND,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What connects the chips, one entry per row.

    near, far              bytes/s one chip sustains inside the innermost domain, and beyond it
    domain                 chips of the innermost domain
    near_step, far_step    seconds of one step of a small collective
    """

    near: Array
    far: Array
    domain: Array
    near_step: Array
    far_step: Array

    def at(self, rows: NDArray[np.int64]) -> Links:
        """The links of these rows, in this order; one entry is the same for all rows."""
        if len(self.near) == 1:
            return self
        return Links(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


def collective_seconds(
    kind: NDArray[np.int64] | int,
    payload: Array,
    ranks: Array,
    stride: Array,
    links: Links,
    spread: Array | float = 0.0,
) -> Array:
    """Time of a collective over a group that lies in one or several innermost domains.

        inside a domain lie   r = min(R, max(1, D / stride)) ranks of the group
        all-gather            max(P (R-1)/R / near,  P (R-r)/R / (r far)) + steps
        all-reduce            twice that;  all-to-all:  max(P (r-1)/R / near,  P (R-r)/R / far) + steps

    P = payload, R = ranks, D = chips of a domain, near and far = bytes/s of one chip.
    """
    inside = np.minimum(ranks, np.maximum(1.0, np.floor(links.domain / stride)))
    beyond = ranks - inside
    ring = np.maximum(
        np.where(inside > 1, payload * (ranks - 1) / ranks / links.near, 0.0),
        payload * beyond / ranks / (inside * links.far),
    )
    domains = ranks / inside
    copies = np.maximum(spread, 1.0)
    once = np.where(np.asarray(spread) > 0, domains * (1 - (1 - 1 / domains) ** copies) / copies, 1.0)
    cross = np.maximum(payload * (inside - 1) / ranks / links.near, payload * beyond / ranks * once / links.far)
    send = np.where(beyond > 0, payload / links.far, payload / links.near)
    moved = np.choose(kind, [2 * ring, ring, cross, send])
    hops = np.choose(kind, [2.0, 1.0, 1.0, 1.0])
    wait = hops * (
        links.near_step * np.log2(np.maximum(inside, 1) + 1)
        + np.where(beyond > 0, links.far_step * np.log2(ranks / inside + 1), 0)
    )
    return np.where(ranks > 1, moved + wait, 0.0)
