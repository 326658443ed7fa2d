"""Turn a group of ranks on a torus into the axes it spans: the rate of its rings, their hops, and its bisection.

Ranks fill the innermost axis first, then the next. A group of r ranks at distance s spans, of an axis of a chips with A
chips on the axes inside it,

    e = min(s r, A a) / max(s, A)    chips, between 1 and a

Every axis with e > 1 carries a share of the payload at the same time. An axis that closes sends both ways round, an
open one is as slow as its last link. A group of four or more that fills no axis is laid out as a square over two of
them, as software that splits axes does.
"""

from __future__ import annotations

import numpy as np

from ridgeline.core.arrays import Array, Mask
from ridgeline.core.records import dataclass
from ridgeline.cost.topology_columns import TopologyColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What a group spans of its torus; rates are shares of all links of a chip.

    rate    links that carry a ring collective at once        hops    until a shard has passed every axis
    cross   payload of one rank over this = an all-to-all, as the tightest cut allows
    link    one link, which is all that two neighbours share
    """

    torus: Mask
    rate: Array
    hops: Array
    cross: Array
    link: Array


def span_of(ranks: Array, stride: Array, topology: TopologyColumns) -> Span:
    """The span of each group.

        rings         sum over spanned axes of link * (2 if closed else 1)
        all-to-all    half of every payload crosses the middle of each axis:   seconds = P e / (4 w link)

    e = chips of the group along an axis, w = 2 if closed else 1, P = what one rank sends.
    """
    axes, wraps, link = topology.axes, topology.wraps, topology.axis
    assert axes is not None
    assert wraps is not None
    assert link is not None
    below = np.ones_like(ranks)
    end = stride * ranks
    rate, hops, tight = np.zeros_like(ranks), np.zeros_like(ranks), np.zeros_like(ranks)
    square = np.sqrt(np.where((ranks >= 4) & (end < axes[0]) & (axes[1] > 1), ranks, 1.0))
    for size, closed, each in zip(axes, wraps, link, strict=True):
        above = below * np.maximum(size, 1.0)
        extent = np.clip(np.minimum(end, above) / np.maximum(stride, below), 1.0, np.maximum(size, 1.0))
        ways = 1.0 + closed * (extent >= size)
        rate = rate + (extent > 1) * each * ways
        hops = hops + (extent - 1) / ways
        tight = np.maximum(tight, np.where(extent > 1, extent / (4 * ways * np.where(each > 0, each, 1.0)), 0.0))
        below = above
    one = link[0]
    torus = axes[0] > 0
    if (square > 1).any():
        rate = np.where(square > 1, 2 * one, rate)
        hops = np.where(square > 1, 2 * (square - 1), hops)
        tight = np.where(square > 1, square / (4 * np.where(torus, one, 1.0)), tight)
    return Span(
        torus=torus,
        rate=np.maximum(rate, np.where(torus, one, 1.0)),
        hops=hops,
        cross=1 / np.maximum(tight, 1e-12),
        link=np.where(torus, one, 1.0),
    )
