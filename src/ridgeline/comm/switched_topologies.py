"""Networks of switches with several ways between two ranks, so that the choice of paths matters.

    leaf-spine    L leaves of D ranks, a link from every leaf to every one of S spines: D / S is the oversubscription
    fat tree      the K-ary one of three tiers: K pods of K/2 edge and K/2 middle switches, (K/2)**2 at the top
    rails         N domains of G ranks with a scale-up switch each; rank g of every domain on rail g's leaf, and a link
                  from every leaf to every one of S spines: N / S is the oversubscription
    planes        every rank has a port on the switch of each of P planes (CloudMatrix's UB planes)

A hop from a rank pays its latency on the way in; hops between switches pay theirs too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ridgeline.comm.graph import Graph, graph_of

Rates = tuple[float, float]


def leaf_spine(name: str, sizes: tuple[int, int, int], rate: float, latency: float) -> Graph:
    """Two tiers; every link of one rate."""
    leaves, down, spines = sizes
    n = leaves * down
    ranks = np.arange(n)
    leaf, spine = (part.ravel() for part in np.indices((leaves, spines)))
    links = [(ranks, n + ranks // down, rate, latency), (n + leaf, n + leaves + spine, rate, latency)]
    return replace(_inward(graph_of(name, n, n + leaves + spines, links)), domain=down if leaves > 1 else 0)


def fat_tree(name: str, k: int, rate: float, latency: float) -> Graph:
    """Three tiers of switches with k ports: k**3 / 4 ranks, no oversubscription."""
    half = k // 2
    n, edges = k * half * half, k * half
    ranks = np.arange(n)
    pod, edge, middle = (part.ravel() for part in np.indices((k, half, half)))
    first, second, top = n, n + edges, n + 2 * edges
    links = [
        (ranks, first + ranks // half, rate, latency),
        (first + pod * half + edge, second + pod * half + middle, rate, latency),
        (second + pod * half + edge, top + edge * half + middle, rate, latency),
    ]
    return replace(_inward(graph_of(name, n, top + half * half, links)), domain=half)


def rails(name: str, sizes: tuple[int, int, int], rates: Rates, latency: float) -> Graph:
    """Rail-optimised: rank g of each domain on rail g; rails meet at the spines."""
    domains, ranks_per_domain, spines = sizes
    n = domains * ranks_per_domain
    ranks = np.arange(n)
    leaves = n + domains
    rail, spine = (part.ravel() for part in np.indices((ranks_per_domain, spines)))
    links = [
        (ranks, n + ranks // ranks_per_domain, rates[0], latency),
        (ranks, leaves + ranks % ranks_per_domain, rates[1], latency),
        (leaves + rail, leaves + ranks_per_domain + spine, rates[1], latency),
    ]
    rail_graph = _inward(graph_of(name, n, leaves + ranks_per_domain + spines, links))
    return replace(rail_graph, domain=ranks_per_domain if domains > 1 else 0)


def planes(name: str, sizes: tuple[int, int], rate: float, latency: float) -> Graph:
    """Ranks joined by several switches side by side."""
    n, count = sizes
    rank, plane = (part.ravel() for part in np.indices((n, count)))
    return _inward(graph_of(name, n, n + count, [(rank, n + plane, rate, latency)]))


def split_spines(graph: Graph, ways: int) -> Graph:
    """The graph with each switch that only switches reach drawn as `ways` of them, links divided among them.

    A graph of the catalog draws a spine as one; flows that choose a path choose one of its switches.
    """
    switch = np.arange(graph.nodes) >= graph.ranks
    is_leaf = np.zeros(graph.nodes, np.bool_)
    is_leaf[graph.head[graph.tail < graph.ranks]] = True
    spines = np.flatnonzero(switch & ~is_leaf)
    if not len(spines) or ways < 2:
        return graph
    at_tail, at_head = np.isin(graph.tail, spines), np.isin(graph.head, spines)
    if (at_tail & at_head).any():
        return graph
    many = np.where(at_tail | at_head, ways, 1)
    row = np.repeat(np.arange(graph.links), many)
    copy = np.arange(len(row)) - np.repeat(np.cumsum(many) - many, many)
    new_number = np.zeros(graph.nodes, np.int64)
    new_number[spines] = graph.nodes + np.arange(len(spines)) * (ways - 1) - 1  # copy 0 keeps its number
    tail, head = graph.tail[row], graph.head[row]
    return replace(
        graph,
        nodes=graph.nodes + len(spines) * (ways - 1),
        tail=np.where(at_tail[row] & (copy > 0), new_number[tail] + copy, tail),
        head=np.where(at_head[row] & (copy > 0), new_number[head] + copy, head),
        bytes_per_s=(graph.bytes_per_s / many)[row],
        latency_s=graph.latency_s[row],
    )


def _inward(graph: Graph) -> Graph:
    return replace(graph, latency_s=np.where(graph.head < graph.ranks, 0.0, graph.latency_s))
