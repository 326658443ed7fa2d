"""Turn a system of the catalog into its graph: the innermost tier as it is wired, the next one as rails of switches.

Rates are data-sheet rates of one direction; a tier without a published latency counts HOP_S a hop. CloudMatrix's UB
plane is its switched tier, its RDMA plane the next one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ridgeline.comm.graph import Graph, graph_of
from ridgeline.comm.topologies import grid_graph
from ridgeline.core.arrays import Index
from ridgeline.core.errors import InputError, Problem
from ridgeline.hardware.system import System, Tier
from ridgeline.hardware.topology import Ethernet, FatTree, FullMesh, Ring, Switched, Torus

HOP_S = (1e-6, 5e-6)  # assumed: a hop inside a domain and one between domains
MOST_CHIPS = 16_384

Links = list[tuple[Index, Index, float, float]]


def graph_of_system(system: System) -> Graph:
    """The graph of a system's chips, domain by domain."""
    if system.chips > MOST_CHIPS:
        given_text = f"{system.chips} chips"
        raise InputError(Problem(path="system", given=given_text, expected=f"at most {MOST_CHIPS} chips as a graph"))
    if not system.tiers:
        none = np.zeros(0, np.int64)
        return graph_of(system.name, 1, 1, [(none, none, 1.0, 0.0)])
    first = system.tiers[0]
    inner, shape, wraps = _domain(first)
    size, count = first.chips, -(-system.chips // first.chips)
    nodes = system.chips
    links: Links = []
    for a, b, rate, latency in inner:
        many = np.arange(count)[:, None]
        switch_a, switch_b = a >= size, b >= size
        links.append(
            (
                np.where(switch_a, nodes + many + a - size, many * size + a).ravel(),
                np.where(switch_b, nodes + many + b - size, many * size + b).ravel(),
                rate,
                latency,
            )
        )
    is_switched = isinstance(first.topology, Switched)
    nodes += count if is_switched else 0
    for depth, tier in enumerate(system.tiers[1:], 1):
        more, nodes = _outer(system, tier, system.tiers[depth - 1].chips, nodes)
        links += more
    graph = graph_of(system.name, system.chips, nodes, links)
    graph = replace(graph, latency_s=np.where(graph.head < graph.ranks, _inward(graph), graph.latency_s))
    one_domain = count == 1 and len(system.tiers) == 1
    return replace(
        graph,
        shape=shape if one_domain else (),
        wraps=wraps if one_domain else (),
        domain=size if count > 1 else 0,
        reducing=system.chips if one_domain and isinstance(first.topology, Switched) and first.topology.reduces else -1,
    )


def _inward(graph: Graph) -> np.ndarray:
    """A hop through a switch pays its latency on the way in, not again on the way out."""
    return np.where(graph.tail >= graph.ranks, 0.0, graph.latency_s)


def _domain(tier: Tier) -> tuple[Links, tuple[int, ...], tuple[bool, ...]]:
    """Links inside one domain of the innermost tier; node `chips` is its switch where it has one."""
    rate, n = tier.need_bandwidth().value, tier.chips
    latency = HOP_S[0]
    ranks = np.arange(n)
    shape: tuple[int, ...] = (n,)
    wraps: tuple[bool, ...] = (n > 2,)
    match tier.topology:
        case Switched() | FatTree() | Ethernet():
            return [(ranks, np.full(n, n), rate, latency)], (), ()
        case FullMesh():
            a, b = np.triu_indices(n, 1)
            return [(a, b, rate / (n - 1), latency)], (), ()
        case Ring():
            pass
        case Torus():
            shape, wraps = tier.topology.shape, tier.topology.wraps
    ways = sum(2 if closes else 1 for size, closes in zip(shape, wraps, strict=True) if size > 1)
    link = tier.link.value if tier.link else rate / max(2 * len(shape), ways)
    grid = grid_graph("", shape, wraps, link, latency)
    once = grid.tail < grid.head
    return [(grid.tail[once], grid.head[once], link, latency)], shape, wraps


def _outer(system: System, tier: Tier, inside: int, nodes: int) -> tuple[Links, int]:
    """A tier above: every chip's port on a rail switch, the rails of one instance joined by its spine."""
    rate = tier.need_bandwidth().value
    chips = np.arange(system.chips)
    wide = isinstance(tier.topology, FatTree)
    rails = min(tier.topology.rails, inside) if isinstance(tier.topology, FatTree) else 1
    over = tier.topology.oversubscription if isinstance(tier.topology, (FatTree, Ethernet)) else 1.0
    instances = -(-system.chips // tier.chips)
    which = chips // tier.chips
    leaf = nodes + which * rails + (chips % inside) % rails
    links: Links = [(chips, leaf, rate, HOP_S[1])]
    nodes += instances * rails
    if wide and rails > 1:
        leaves = np.arange(instances * rails)
        up = tier.chips / rails * rate / over
        links.append((nodes - instances * rails + leaves, nodes + leaves // rails, up, 0.0))
        nodes += instances
    return links, nodes
