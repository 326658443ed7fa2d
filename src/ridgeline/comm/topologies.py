"""Turn the name of a topology, or a system of the catalog, into a graph.

    mesh:AxB[xC]    a grid                        torus:AxB[xC]   a grid whose axes close (an axis of 2 has one link)
    ring:N          each rank and its neighbours  full:N          a link between each two ranks
    sharp:N         as switch, which adds up what passes (NVLS, SHARP)
    random:NxD[xS]  D links at each of N ranks, laid by seed S
    switch:N        one link a rank to a switch   dragonfly:GxRxP groups of routers with P ranks each: routers of a
                                                  group all linked, one link between each two groups
    domains:NxG     N switched domains of G ranks at `link`, rails between them at `outer` a rank (NVL racks)
    rails:NxGxS     the same with a leaf switch a rail and S spines: N / S is the oversubscription
    leafspine:LxDxS L leaves of D ranks and S spines: D / S is the oversubscription
    fattree:K       the K-ary fat tree of three tiers, K**3 / 4 ranks, K pods of K/2 edge and K/2 middle switches
    planes:NxP      N ranks with a port on the switch of each of P planes (CloudMatrix's UB planes)

The rate is that of one link in one direction. A hop through a switch pays its latency on the way in. A system has
data-sheet rates of one direction: its innermost tier as it is wired, the next ones as rails of switches; a tier without
a published latency counts HOP_S a hop.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import NamedTuple

import numpy as np

from ridgeline.comm.graph import Graph, graph_of, refusal, wrong_graph
from ridgeline.core.arrays import Index
from ridgeline.core.errors import InputError, not_among
from ridgeline.hardware.system import System, Tier
from ridgeline.hardware.topology import Ethernet, FatTree, FullMesh, Ring, Switched, Torus
from ridgeline.hardware.what_if import system_title

MOST_RANKS = 65_536
MOST_LINKS = 4_000_000
HOP_S = (1e-6, 5e-6)  # assumed: a hop inside a domain and one between domains
MOST_CHIPS = 16_384
_NAME = re.compile(r"([a-z]+):(\d{1,6}(?:x\d{1,6}){0,3})")

Links = list[tuple[Index, Index, float, float]]


class _Shape(NamedTuple):
    """What a topology is made of: its name, sizes, rate and latency of a link, rate of links between domains."""

    name: str
    sizes: tuple[int, ...]
    rate: float
    latency: float
    outer: float


def topology(text: str, bytes_per_s: float, latency_s: float = 0.0, outer_bytes_per_s: float | None = None) -> Graph:
    """The graph of a name such as mesh:8x8.

    >>> graph = topology("mesh:4x4", 50e9)
    >>> graph.ranks, graph.links, topology("torus:4x4", 50e9).links, topology("switch:8", 50e9).nodes
    (16, 48, 64, 9)
    """
    match = _NAME.fullmatch(text.strip())
    if match is None or match.group(1) not in _MAKERS:
        kind = text.split(":")[0]
        if kind in _MAKERS or (match is not None and not kind):
            raise wrong_graph(repr(text), "sizes such as mesh:8x8 or ring:16")
        raise InputError(not_among("topology", kind, _MAKERS, "write e.g. mesh:8x8, torus:4x4x4, ring:16, switch:8"))
    kind, sizes = match.group(1), tuple(int(part) for part in match.group(2).split("x"))
    sizes_counted = sizes[:1] if kind == "random" else sizes
    if min(sizes_counted) < 1 or prod(sizes_counted) > MOST_RANKS:
        raise wrong_graph(repr(text), f"sides of at least 1 and at most {MOST_RANKS} ranks")
    if not bytes_per_s > 0:
        raise wrong_graph(f"a link of {bytes_per_s} B/s", "a rate above 0", 'give --link "50 GB/s"')
    count, expectation = _SIZES.get(kind, (len(sizes), ""))
    if len(sizes) != count:
        raise wrong_graph(text, expectation)
    return _MAKERS[kind](_Shape(text, sizes, bytes_per_s, latency_s, outer_bytes_per_s or bytes_per_s))


def grid_graph(name: str, shape: tuple[int, ...], wraps: tuple[bool, ...], rate: float, latency: float) -> Graph:
    """A mesh, closed along the axes that wrap."""
    ranks = np.arange(prod(shape)).reshape(shape)
    links = []
    for axis, (size, closes) in enumerate(zip(shape, wraps, strict=True)):
        here = np.moveaxis(ranks, axis, 0)
        links.append((here[:-1], here[1:], rate, latency))
        if closes and size > 2:
            links.append((here[-1:], here[:1], rate, latency))
    return replace(graph_of(name, ranks.size, ranks.size, links), shape=shape, wraps=wraps)


def _grid(asked: _Shape) -> Graph:
    closes = not asked.name.strip().startswith("mesh")
    return grid_graph(
        asked.name, asked.sizes, tuple(closes and size > 2 for size in asked.sizes), asked.rate, asked.latency
    )


def _full(asked: _Shape) -> Graph:
    n = asked.sizes[0]
    if n * (n - 1) > MOST_LINKS:
        raise wrong_graph(f"{asked.name}, {n * (n - 1)} links", f"at most {MOST_LINKS} links")
    return graph_of(asked.name, n, n, [(*np.triu_indices(n, 1), asked.rate, asked.latency)])


def _switch(asked: _Shape) -> Graph:
    n = asked.sizes[0]
    return _switched(asked.name, n, n + 1, [(np.arange(n), np.full(n, n), asked.rate, asked.latency)])


def _sharp(asked: _Shape) -> Graph:
    return replace(_switch(asked), reducing=asked.sizes[0])


def _random(asked: _Shape) -> Graph:
    """Rings in random orders laid over each other; links that fall together count once."""
    sizes = asked.sizes
    if len(sizes) not in (2, 3) or sizes[0] < 3 or sizes[1] < 2 or sizes[1] % 2:
        raise wrong_graph(asked.name, "ranks x an even number of links[ x seed], as random:64x4 or random:64x4x7")
    n, random = sizes[0], np.random.default_rng(sizes[2] if len(sizes) == 3 else 0)
    ends = []
    for _ in range(sizes[1] // 2):
        order = random.permutation(n)
        ends.append(np.sort(np.stack([order, np.roll(order, 1)]), axis=0))
    a, b = np.unique(np.concatenate(ends, axis=1), axis=1)
    return graph_of(asked.name, n, n, [(a, b, asked.rate, asked.latency)])


def _dragonfly(asked: _Shape) -> Graph:
    name, (groups, routers, ranks_per_router), rate, latency, outer = asked
    n = groups * routers * ranks_per_router
    ranks = np.arange(n)
    a, b = np.triu_indices(routers, 1)
    g, h = np.triu_indices(groups, 1)
    base = n + np.arange(groups)[:, None] * routers
    between = n + g * routers + (h - 1) % routers, n + h * routers + g % routers
    links: Links = [
        (ranks, n + ranks // ranks_per_router, rate, latency),
        ((base + a).ravel(), (base + b).ravel(), rate * ranks_per_router, latency),
        (*between, outer * ranks_per_router, latency),
    ]
    return _switched(name, n, n + groups * routers, links, routers * ranks_per_router if groups > 1 else 0)


def _domains(asked: _Shape) -> Graph:
    """Switched domains, each rank with a port of its own on the rail of its place; a spine joins the rails' switches.

    A rail switch passes all its ports' rate, and as much on to the spine.
    """
    name, (n, rails), rate, latency, outer = asked
    p = n * rails
    ranks = np.arange(p)
    links = [(ranks, p + ranks // rails, rate, latency), (ranks, p + n + ranks % rails, outer, latency)]
    if rails > 1:
        links.append((p + n + np.arange(rails), np.full(rails, p + n + rails), p / rails * outer, 0.0))
    return _switched(name, p, p + n + rails + (rails > 1), links, rails)


def _rails(asked: _Shape) -> Graph:
    """Rail-optimised: rank g of each domain on rail g; rails meet at the spines."""
    name, (domains, ranks_per_domain, spines), rate, latency, outer = asked
    n = domains * ranks_per_domain
    ranks, leaves = np.arange(n), n + domains
    rail, spine = (part.ravel() for part in np.indices((ranks_per_domain, spines)))
    links = [
        (ranks, n + ranks // ranks_per_domain, rate, latency),
        (ranks, leaves + ranks % ranks_per_domain, outer, latency),
        (leaves + rail, leaves + ranks_per_domain + spine, outer, latency),
    ]
    return _switched(name, n, leaves + ranks_per_domain + spines, links, ranks_per_domain if domains > 1 else 0)


def _leaf_spine(asked: _Shape) -> Graph:
    """Two tiers; every link of one rate."""
    name, (leaves, down, spines), rate, latency, _ = asked
    n = leaves * down
    ranks = np.arange(n)
    leaf, spine = (part.ravel() for part in np.indices((leaves, spines)))
    links = [(ranks, n + ranks // down, rate, latency), (n + leaf, n + leaves + spine, rate, latency)]
    return _switched(name, n, n + leaves + spines, links, down if leaves > 1 else 0)


def _fat_tree(asked: _Shape) -> Graph:
    """Three tiers of switches with k ports: k**3 / 4 ranks, no oversubscription."""
    name, (k,), rate, latency, _ = asked
    if k < 2 or k % 2 or k**3 // 4 > MOST_RANKS:
        raise wrong_graph(name, f"an even number of ports a switch, and at most {MOST_RANKS} ranks, as fattree:16")
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
    return _switched(name, n, top + half * half, links, half)


def _planes(asked: _Shape) -> Graph:
    """Ranks joined by several switches side by side."""
    rank, plane = (part.ravel() for part in np.indices(asked.sizes))
    n, count = asked.sizes
    return _switched(asked.name, n, n + count, [(rank, n + plane, asked.rate, asked.latency)])


def _switched(name: str, ranks: int, nodes: int, links: Links, domain: int = 0) -> Graph:
    """A graph with switches: a hop through one pays its latency on the way in, not again on the way out."""
    graph = graph_of(name, ranks, nodes, links)
    leaves = (graph.head < ranks) & (graph.tail >= ranks)
    return replace(graph, latency_s=np.where(leaves, 0.0, graph.latency_s), domain=domain)


_MAKERS: dict[str, Callable[[_Shape], Graph]] = {
    "mesh": _grid,
    "torus": _grid,
    "ring": _grid,
    "full": _full,
    "switch": _switch,
    "sharp": _sharp,
    "random": _random,
    "dragonfly": _dragonfly,
    "domains": _domains,
    "rails": _rails,
    "leafspine": _leaf_spine,
    "fattree": _fat_tree,
    "planes": _planes,
}
_SIZES = {kind: (1, f"one size, as {kind}:16") for kind in ("ring", "full", "switch", "sharp", "fattree")} | {
    "dragonfly": (3, "groups x routers x ranks, as dragonfly:9x4x2"),
    "domains": (2, "domains x ranks, as domains:8x8"),
    "rails": (3, "domains x ranks x spines, as rails:16x8x16"),
    "leafspine": (3, "leaves x ranks x spines, as leafspine:8x16x8"),
    "planes": (2, "ranks x planes, as planes:48x7"),
}
"""How many sizes a topology has, where that is fixed, and in words."""


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


def graph_of_system(system: System) -> Graph:
    """The graph of a system's chips, domain by domain."""
    if system.chips > MOST_CHIPS:
        raise refusal("system", f"{system.chips} chips", f"at most {MOST_CHIPS} chips as a graph")
    if not system.tiers:
        none = np.zeros(0, np.int64)
        return graph_of(system_title(system), 1, 1, [(none, none, 1.0, 0.0)])
    first = system.tiers[0]
    inner, shape, wraps = _domain(first)
    size, count, nodes = first.chips, -(-system.chips // first.chips), system.chips
    number = np.arange(count)[:, None]
    links: Links = []
    for *ends, rate, latency in inner:
        a, b = (np.where(end >= size, nodes + number + end - size, number * size + end).ravel() for end in ends)
        links.append((a, b, rate, latency))
    nodes += count if isinstance(first.topology, Switched) else 0
    for depth, tier in enumerate(system.tiers[1:], 1):
        more, nodes = _outer(system, tier, system.tiers[depth - 1].chips, nodes)
        links += more
    graph = _switched(system_title(system), system.chips, nodes, links, size if count > 1 else 0)
    if count > 1 or len(system.tiers) > 1:
        return graph
    reduces = isinstance(first.topology, Switched) and first.topology.reduces
    return replace(graph, shape=shape, wraps=wraps, reducing=system.chips if reduces else -1)


def _domain(tier: Tier) -> tuple[Links, tuple[int, ...], tuple[bool, ...]]:
    """Links inside one domain of the innermost tier; node `chips` is its switch where it has one."""
    rate, n, latency = tier.need_bandwidth().value, tier.chips, HOP_S[0]
    shape: tuple[int, ...] = (n,)
    wraps: tuple[bool, ...] = (n > 2,)
    match tier.topology:
        case Switched() | FatTree() | Ethernet():
            return [(np.arange(n), np.full(n, n), rate, latency)], (), ()
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
