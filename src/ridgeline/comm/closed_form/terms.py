"""Turn a group of ranks on its links into the closed-form terms of an algorithm, and say where it is on offer.

`comm.library.table` names the algorithms that these closed forms belong to.
P = payload, R = ranks, r = ranks of the group in one domain, n = domains it lies in. A formula's rates are those of one
chip; scale-up is inside a domain, scale-out beyond it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ridgeline.comm.closed_form.links import Links, TorusSpan, span_of
from ridgeline.core.arrays import Array, Index, Mask
from ridgeline.core.records import dataclass

Offer = Mask | bool  # where an algorithm can run: everywhere, nowhere, or on some rows
# from measured collectives of NCCL; docs/concepts/collectives.md has the table
TREE = 0.92  # of a ring's rate
IN_SWITCH = (
    0.84  # of a ring's rate: Hopper 0.68 of the link where rings reach 0.81, Blackwell 0.61 where they reach 0.75
)
DIRECT_STEPS = 3.5  # hops that an all-to-all takes longer to start than a ring


class Routing(NamedTuple):
    """How tokens of an all-to-all are routed, where a domain is sent one copy of each; a number, or one by row.

    copies           experts each token goes to; 0: every copy travels by itself
    chosen, groups   groups of experts that a token goes to, of how many (node-limited routing); 0: any
    """

    copies: Array | float = 0.0
    chosen: Array | float = 0.0
    groups: Array | float = 0.0

    def at(self, rows: Index) -> Routing:
        """Those of some rows."""
        return Routing(*(part[rows] if isinstance(part, np.ndarray) else part for part in self))


UNROUTED = Routing()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """A group of ranks on its links.

    inside, domains    ranks in one domain, and domains that the group lies in
    scale_up, hops     bytes/s of one rank inside a domain; hops until a shard has been everywhere in it
    span               what the group spans of a torus
    wider              ranks in one instance of the second tier, where there is a third
    """

    payload: Array
    ranks: Array
    links: Links
    routing: Routing
    inside: Array
    domains: Array
    scale_up: Array
    hops: Array
    many: bool  # some group lies in several domains
    span: TorusSpan | None
    wider: Array | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Seconds of one algorithm: bytes inside domains and between them, each slice's latency, and what is paid once."""

    scale_up: Array
    scale_out: Array | float
    slice: Array
    once: Array | float
    serial: bool = False  # inside and between take turns; otherwise they overlap

    @property
    def seconds(self) -> Array:
        """The time of the whole collective, ranks arriving together."""
        wire = self.scale_up + self.scale_out if self.serial else np.maximum(self.scale_up, self.scale_out)
        total: Array = wire + self.slice + 2 * np.sqrt(wire * self.slice) + self.once
        return total

    def twice(self) -> Terms:
        """There and back, as a reduce-scatter and an all-gather, started once."""
        return replace(self, scale_up=2 * self.scale_up, scale_out=2 * self.scale_out, once=2 * self.once)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedForm:
    """Seconds of an algorithm as terms, and where it is on offer (True: everywhere; an array: on some rows)."""

    terms: Callable[[RankGroup], Terms]
    offer: Callable[[RankGroup], Offer] = lambda _group: True


def group_of(payload: Array, ranks: Array, stride: Array, links: Links, routing: Routing = UNROUTED) -> RankGroup:
    """Ranks at a distance from each other as a group on its links: how many share a domain, and what it spans."""
    topology = links.topology
    inside = np.minimum(ranks, np.maximum(1.0, np.floor(links.domain / stride)))
    domains = ranks / inside
    scale_up, hops, span = links.scale_up, ranks - domains, None
    if topology.peers is not None:
        scale_up = scale_up * np.minimum(1.0, np.maximum(inside - 1, 1.0) / topology.peers)
    if topology.axes is not None:
        span = span_of(inside, stride, topology)
        scale_up = np.where(span.torus, links.scale_up * span.rate, scale_up)
        hops = np.where(span.torus, span.hops, hops)
    wider = None
    if topology.reach is not None:
        wider = np.minimum(ranks, np.maximum(inside, np.floor(topology.reach / stride)))
    return RankGroup(
        payload=payload,
        ranks=ranks,
        links=links,
        routing=routing,
        inside=inside,
        domains=domains,
        scale_up=scale_up,
        hops=hops,
        many=bool((domains > 1).any()),
        span=span,
        wider=wider,
    )


def ring_bytes(payload: Array, ranks: Array) -> Array:
    """Bytes that each rank of a ring all-gather sends: P (R-1)/R; a ring all-reduce sends twice that."""
    sent: Array = payload * (1 - 1 / ranks)
    return sent


def in_switch_bytes(payload: Array, inside: Array) -> Array:
    """Bytes that each chip exchanges with a switch that adds up: P (1 + 1/r)."""
    sent: Array = payload * (1 + 1 / inside)
    return sent


def exchange_bytes(payload: Array, inside: Array, ranks: Array) -> Array:
    """Bytes that each rank of an all-to-all sends inside its domain: P (r-1)/R."""
    sent: Array = payload * (inside - 1) / ranks
    return sent


def _across(group: RankGroup, through: Array) -> Array | float:
    """Seconds in which the payload leaves each domain once, through so many of its chips.

        P (1 - 1/n) / (through x scale-out),  and beyond the second tier  P (1 - w/R) / (through x top)

    n = domains, w = ranks inside the second tier.
    """
    if not group.many:
        return 0.0
    share = 1 - 1 / group.domains
    if group.wider is not None and group.links.topology.top is not None:
        share = np.maximum(share, (1 - group.wider / group.ranks) / group.links.topology.top)
    return group.payload * share / (through * group.links.scale_out)


def _within(group: RankGroup) -> Array | float:
    """Hops inside one domain: a ring's, or those of the axes of a torus."""
    if group.span is None:
        return group.inside - 1
    return np.where(group.span.torus, group.span.hops, group.inside - 1)


def _climb(group: RankGroup) -> Array | float:
    """Seconds up a tree of domains."""
    return group.links.topology.scale_out_step * np.log2(group.domains) if group.many else 0.0


def _ring(group: RankGroup) -> Terms:
    """Shards go round: P (R-1)/R on every link, R-1 hops."""
    topology = group.links.topology
    return Terms(
        scale_up=np.where(group.inside > 1, ring_bytes(group.payload, group.ranks) / group.scale_up, 0.0),
        scale_out=_across(group, np.minimum(group.inside, topology.exits)),
        slice=topology.start,
        once=group.hops * topology.hop_s + (group.domains - 1) * topology.scale_out_step,
    )


def _tree(group: RankGroup) -> Terms:
    """Two binary trees over domains, a chain inside each; slices follow each other up and down."""
    topology = group.links.topology
    inner = np.where(group.inside > 1, 2 * group.payload / group.scale_up / TREE, 0.0)
    return Terms(
        scale_up=inner,
        scale_out=2 * _across(group, np.minimum(group.inside, topology.exits)) / TREE,
        slice=topology.start + 2 * ((group.inside - 1) * topology.hop_s + _climb(group)),
        once=0.0,
    )


def _in_switch(group: RankGroup) -> Terms:
    """Switches add up and copy: P (1 + 1/r) per chip inside a domain, a tree across."""
    topology = group.links.topology
    return Terms(
        scale_up=in_switch_bytes(group.payload, group.inside) / (group.scale_up * IN_SWITCH),
        scale_out=2 * _across(group, np.minimum(group.inside, topology.exits)),
        slice=topology.start + 2 * _climb(group),
        once=group.links.topology.switch_s,
    )


def _in_fabric(group: RankGroup) -> Terms:
    """Reduce-scatter inside, the fabric adds up: every byte leaves a domain once and returns once."""
    topology = group.links.topology
    leaving = (
        _across(group, np.minimum(group.inside, topology.exits)) * group.domains / np.maximum(group.domains - 1, 1e-9)
    )
    return Terms(
        scale_up=2 * ring_bytes(group.payload, group.inside) / group.scale_up,
        scale_out=leaving,
        slice=topology.start + 2 * ((group.inside - 1) * topology.hop_s + topology.scale_out_step),
        once=0.0,
    )


def _two_level(group: RankGroup) -> Terms:
    """Inside every domain, then between chips at the same place of each, one after the other."""
    topology = group.links.topology
    return Terms(
        scale_up=ring_bytes(group.payload, group.inside) / group.scale_up,
        scale_out=_across(group, group.inside),
        slice=topology.start,
        once=_within(group) * topology.hop_s + (group.domains - 1) * topology.scale_out_step,
        serial=True,
    )


def _multicast(group: RankGroup) -> Terms:
    """Switches copy shards to, or add them up for, all chips of one domain."""
    return Terms(
        scale_up=ring_bytes(group.payload, group.ranks) / (group.scale_up * IN_SWITCH),
        scale_out=0.0,
        slice=group.links.topology.start,
        once=group.links.topology.switch_s,
    )


def _direct(group: RankGroup) -> Terms:
    """Every rank sends to every other: P (r-1)/R inside, P (R-r)/R through its own way out, a message per peer."""
    links, topology = group.links, group.links.topology
    scale_up = exchange_bytes(group.payload, group.inside, group.ranks) / group.scale_up
    if group.span is not None:
        across = group.payload * group.inside / group.ranks / (links.scale_up * group.span.cross)
        scale_up = np.where(group.span.torus & (group.inside > 1), across, scale_up)
    scale_up = scale_up * _sent_once(group, group.ranks)
    once = np.zeros_like(group.ranks) + DIRECT_STEPS * topology.hop_s
    if group.many:
        beyond = group.ranks - group.inside
        once = once + np.where(beyond > 0, topology.scale_out_step + beyond * topology.hop_s, 0.0)
    return Terms(
        scale_up=scale_up, scale_out=_across(group, np.ones_like(group.ranks)), slice=topology.start, once=once
    )


def _sent_once(group: RankGroup, places: Array) -> Array | float:
    """Of a token's copies, those that travel where a place (a rank, or a domain) gets each token once.

    of s copies   l (1 - (1 - 1/l)^s) / s   are sent, l = min(n, t max(1, n / g))

    n = places, t = groups of experts that a token goes to, of g: node-limited routing, a group being one place or
    several. l = n without it. Dispatchers without such a rule (an all-to-all of permuted tokens) send every copy.
    """
    copies, chosen, groups = (np.asarray(part) for part in group.routing)
    if not copies.any():
        return 1.0
    count, reach = np.maximum(copies, 1.0), places
    if chosen.any():
        least = chosen * np.maximum(1.0, places / np.maximum(groups, 1.0))
        reach = np.where(chosen > 0, np.minimum(places, least), places)
    return np.where(copies > 0, reach * (1 - (1 - 1 / reach) ** count) / count, 1.0)


def _forwarded_terms(group: RankGroup) -> Terms:
    """One message per domain, handed on inside it; tokens that go to several experts of a domain travel once.

    Inside it, too, a token reaches a rank once, whichever of its experts are there.
    """
    topology = group.links.topology
    scale_out = _across(group, np.ones_like(group.ranks)) * _sent_once(group, group.domains)
    return Terms(
        scale_up=group.payload * (1 - 1 / group.inside) / group.scale_up * _sent_once(group, group.ranks),
        scale_out=scale_out,
        slice=topology.start,
        once=DIRECT_STEPS * topology.hop_s + topology.scale_out_step + (group.domains - 1) * topology.hop_s,
    )


def _to_neighbour(group: RankGroup) -> Terms:
    """One link carries it: of a torus or mesh one of several, otherwise all that a chip has."""
    links, topology = group.links, group.links.topology
    scale_up = links.scale_up
    if topology.peers is not None:
        scale_up = scale_up / topology.peers
    if group.span is not None:
        scale_up = scale_up * group.span.link
    leaves = group.domains > 1
    rate = np.where(leaves, links.scale_out, scale_up)
    if group.wider is not None and topology.top is not None:
        rate = np.where(group.wider < group.ranks, links.scale_out * np.minimum(topology.top, 1.0), rate)
    return Terms(
        scale_up=group.payload / rate,
        scale_out=0.0,
        slice=topology.start,
        once=np.where(leaves, topology.scale_out_step, topology.hop_s),
    )


def _flat_across(group: RankGroup) -> Offer:
    """Between domains, where the software does not go level by level."""
    if not group.many:
        return False
    two_level = group.links.topology.two_level
    leaves: Mask = group.domains > 1
    return leaves if two_level is None else leaves & (two_level == 0)


def _levels(group: RankGroup) -> Offer:
    two_level = group.links.topology.two_level
    return False if two_level is None or not group.many else (group.domains > 1) & (two_level > 0)


def _switches(group: RankGroup) -> Offer:
    able = group.links.topology.in_switch
    return False if able is None else (able > 0) & (group.inside > 2)


def _one_domain(group: RankGroup) -> Offer:
    able = _switches(group)
    return able if isinstance(able, bool) else able & (group.domains == 1)


def _fabric(group: RankGroup) -> Offer:
    able = group.links.topology.in_fabric
    return False if able is None or not group.many else (able > 0) & (group.domains > 1)


RING = ClosedForm(terms=_ring)
RING_TWICE = ClosedForm(terms=lambda group: _ring(group).twice())
TREES = ClosedForm(terms=_tree, offer=_flat_across)
SWITCH_SUM = ClosedForm(terms=_in_switch, offer=_switches)
SWITCH_COPY = ClosedForm(terms=_multicast, offer=_one_domain)
FABRIC_SUM = ClosedForm(terms=_in_fabric, offer=_fabric)
LEVELS = ClosedForm(terms=_two_level, offer=_levels)
LEVELS_TWICE = ClosedForm(terms=lambda group: _two_level(group).twice(), offer=_levels)
DIRECT = ClosedForm(terms=_direct)
FORWARDED = ClosedForm(terms=_forwarded_terms, offer=lambda group: (group.domains > 1) if group.many else False)
NEIGHBOUR = ClosedForm(terms=_to_neighbour)
