"""Turn a collective's sizes and the links under it into seconds: the fastest algorithm the machine offers.

    seconds = once + W + L + 2 sqrt(W L) + skew * log2(R)

W = time of the bytes on the slowest link, L = what every slice of the payload costs, once = latency that is paid once,
R = ranks, which do not arrive together. A payload is cut into slices that follow each other; with the best number of
them, sqrt(W / L), the total is the above. A small payload so gets a short wait and little of the link's rate, a large
one nearly all of it: the protocols of a library (LL, LL128, Simple) are points of that curve.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np

from ridgeline.core.arrays import Array, Index
from ridgeline.core.records import dataclass
from ridgeline.cost.collectives.algorithms import (
    FOR_ALL_GATHER,
    FOR_ALL_REDUCE,
    FOR_ALL_TO_ALL,
    FOR_SEND,
    UNROUTED,
    Algorithm,
    Group,
    Routing,
    group_of,
)
from ridgeline.cost.collectives.links import Links

ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, SEND = range(4)  # a reduce-scatter costs what an all-gather costs
KINDS = {
    "all-reduce": ALL_REDUCE,
    "all-gather": ALL_GATHER,
    "reduce-scatter": ALL_GATHER,
    "all-to-all": ALL_TO_ALL,
    "send": SEND,
}
ALGORITHMS: Mapping[int, tuple[Algorithm, ...]] = MappingProxyType(
    {ALL_REDUCE: FOR_ALL_REDUCE, ALL_GATHER: FOR_ALL_GATHER, ALL_TO_ALL: FOR_ALL_TO_ALL, SEND: FOR_SEND}
)


def collective_seconds(
    kind: Index | int,
    payload: Array,
    ranks: Array,
    stride: Array,
    links: Links,
    routing: Routing = UNROUTED,
) -> Array:
    """Time of a collective over a group that lies in one or several innermost domains.

    payload   bytes of the whole tensor (all-to-all, send: what one rank sends)
    stride    distance in rank numbers between members; neighbours share a domain
    routing   of an all-to-all of tokens that sends a domain one copy of each
    """
    if isinstance(kind, int):
        return _fastest(kind, payload, ranks, stride, links, routing)
    found = np.zeros(len(kind))
    for each in ALGORITHMS:
        mine = np.flatnonzero(kind == each)
        if mine.size:
            own = routing.at(mine)
            found[mine] = _fastest(each, payload[mine], ranks[mine], stride[mine], links.at(mine), own)
    return found


def _fastest(
    kind: int, payload: Array, ranks: Array, stride: Array, links: Links, routing: Routing
) -> Array:  # fmt: skip
    group = group_of(payload, ranks, stride, links, routing)
    best: Array | None = None
    for algorithm in ALGORITHMS[kind]:
        offered = algorithm.offered(group)
        if offered is False:
            continue
        seconds = algorithm.terms(group).seconds
        if offered is not True:
            seconds = np.where(offered, seconds, np.inf)
        best = seconds if best is None else np.minimum(best, seconds)
    assert best is not None
    doublings = np.log2(ranks) if kind != SEND else 1.0
    return np.where(ranks > 1, best + links.skew * doublings, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One algorithm of one collective, in seconds: in all, bytes inside domains and between them, and waiting."""

    algorithm: str
    seconds: float
    near_s: float
    far_s: float
    wait_s: float


def explain_collective(
    kind: int, payload: float, ranks: float, stride: float, links: Links, routing: Routing = UNROUTED
) -> tuple[Option, ...]:
    """What each algorithm on offer takes over the first row of links, fastest first, which is the one priced."""
    size, many, apart = (np.array([float(value)]) for value in (payload, ranks, stride))
    group = group_of(size, many, apart, links.at(np.array([0])), routing)
    return tuple(sorted(_options(kind, group), key=lambda option: option.seconds)) if ranks > 1 else ()


def _options(kind: int, group: Group) -> Iterator[Option]:
    skew = float(group.links.skew[0]) * (1.0 if kind == SEND else float(np.log2(group.ranks[0])))
    for algorithm in ALGORITHMS[kind]:
        if not np.all(algorithm.offered(group)):
            continue
        terms = algorithm.terms(group)
        scale_up, scale_out = (float(np.ravel(part)[0]) for part in (terms.scale_up, terms.scale_out))
        seconds = float(terms.seconds[0]) + skew
        wire = scale_up + scale_out if terms.serial else max(scale_up, scale_out)
        yield Option(algorithm=algorithm.name, seconds=seconds, near_s=scale_up, far_s=scale_out, wait_s=seconds - wire)
