"""Turn a collective's sizes and the links under it into seconds: the fastest algorithm the machine offers.

    seconds = once + W + L + 2 sqrt(W L) + skew * log2(R)

W = time of the bytes on the slowest link, L = what every slice of the payload costs, once = latency that is paid once,
R = ranks, which do not arrive together. A payload is cut into slices that follow each other; with the best number of
them, sqrt(W / L), the total is the above. A small payload so gets a short wait and little of the link's rate, a large
one nearly all of it: the protocols of a library (LL, LL128, Simple) are points of that curve. W, L and once of every
algorithm come from the table of algorithms (`comm.library.table`); rates and skew from the calibration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np

from ridgeline.comm import closed_forms
from ridgeline.comm.closed_form import UNROUTED, ClosedForm, Links, RankGroup, Routing, group_of
from ridgeline.core.arrays import Array, Index
from ridgeline.core.records import dataclass
from ridgeline.cost.machine import Machines, ParameterColumns

ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, SEND = range(4)  # a reduce-scatter costs what an all-gather costs
KINDS = dict(zip(("all-reduce", "all-gather", "all-to-all", "send"), range(4), strict=True)) | {
    "reduce-scatter": ALL_GATHER
}
CLOSED_FORMS: Mapping[int, tuple[tuple[str, ClosedForm], ...]] = MappingProxyType(
    dict(enumerate(closed_forms(kind) for kind in ("all-reduce", "all-gather", "all-to-all", "send")))
)
# shares of the data sheet's rate that large collectives reach where nothing else runs: inside a domain A100 0.76,
# Hopper 0.82, Blackwell 0.78; between domains 0.96 and 1.0 of 400 Gbit/s a chip
BARE_SCALE_UP, BARE_SCALE_OUT = 0.79, 0.95


def links_of(machines: Machines, rates: ParameterColumns) -> Links:
    """Links as a step finds them: the calibrated shares of their rates, and ranks that do not arrive together."""
    return _links(machines, rates["near"], rates["far"], rates["meet"])


def bare_links(machines: Machines) -> Links:
    """Links as a benchmark finds them: nothing else runs, and ranks arrive together."""
    return _links(machines, BARE_SCALE_UP, BARE_SCALE_OUT, np.zeros_like(machines.scale_up))


def _links(machines: Machines, scale_up: Array | float, scale_out: Array | float, skew: Array) -> Links:
    return Links(
        scale_up=machines.scale_up * scale_up,
        scale_out=machines.scale_out * scale_out,
        domain=machines.domain,
        skew=skew,
        topology=machines.topology,
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
    seconds = np.zeros(len(kind))
    for index in CLOSED_FORMS:
        rows = np.flatnonzero(kind == index)
        if rows.size:
            sizes = (payload[rows], ranks[rows], stride[rows])
            seconds[rows] = _fastest(index, *sizes, links.at(rows), routing.at(rows))
    return seconds


def _fastest(
    kind: int, payload: Array, ranks: Array, stride: Array, links: Links, routing: Routing
) -> Array:  # fmt: skip
    group = group_of(payload, ranks, stride, links, routing)
    best: Array | None = None
    for _, form in CLOSED_FORMS[kind]:
        offer = form.offer(group)
        if offer is False:
            continue
        seconds = form.terms(group).seconds
        if offer is not True:
            seconds = np.where(offer, seconds, np.inf)
        best = seconds if best is None else np.minimum(best, seconds)
    assert best is not None
    doublings = np.log2(ranks) if kind != SEND else 1.0
    return np.where(ranks > 1, best + links.skew * doublings, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedAlgorithm:
    """One algorithm of one collective, in seconds: in all, bytes inside domains and between them, and waiting."""

    algorithm: str
    seconds: float
    near_s: float
    far_s: float
    wait_s: float


def explain_collective(
    kind: int, payload: float, ranks: float, stride: float, links: Links, routing: Routing = UNROUTED
) -> tuple[PricedAlgorithm, ...]:
    """What each algorithm on offer takes over the first row of links, fastest first, which is the one priced."""
    size, count, distance = (np.array([float(value)]) for value in (payload, ranks, stride))
    group = group_of(size, count, distance, links.at(np.array([0])), routing)
    return tuple(sorted(_options(kind, group), key=lambda option: option.seconds)) if ranks > 1 else ()


def _options(kind: int, group: RankGroup) -> Iterator[PricedAlgorithm]:
    skew = float(group.links.skew[0]) * (1.0 if kind == SEND else float(np.log2(group.ranks[0])))
    for name, form in CLOSED_FORMS[kind]:
        if not np.all(form.offer(group)):
            continue
        terms = form.terms(group)
        scale_up, scale_out = (float(np.ravel(part)[0]) for part in (terms.scale_up, terms.scale_out))
        seconds = float(terms.seconds[0]) + skew
        wire = scale_up + scale_out if terms.serial else max(scale_up, scale_out)
        yield PricedAlgorithm(algorithm=name, seconds=seconds, near_s=scale_up, far_s=scale_out, wait_s=seconds - wire)
