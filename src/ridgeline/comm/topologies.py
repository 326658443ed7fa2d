"""Turn the name of a topology, a link's rate and its latency into a graph.

    mesh:AxB[xC]    a grid                        torus:AxB[xC]   a grid whose axes close (an axis of 2 has one link)
    ring:N          each rank and its neighbours  full:N          a link between each two ranks
    sharp:N         the same, and the switch adds up what passes (NVLS, SHARP)
    random:NxD[xS]  D links at each of N ranks, laid by seed S
    switch:N        one link a rank to a switch   dragonfly:GxRxP groups of routers with P ranks each: routers of a
                                                  group all linked, one link between each two groups
    domains:NxG     N switched domains of G ranks at `link`, rails between them at `outer` a rank (NVL racks)
    rails:NxGxS     the same with a leaf switch a rail and S spines: N / S is the oversubscription
    leafspine:LxDxS L leaves of D ranks and S spines: D / S is the oversubscription
    fattree:K       the K-ary fat tree of three tiers, K**3 / 4 ranks
    planes:NxP      N ranks with a port on the switch of each of P planes

The rate is that of one link in one direction. A hop through a switch pays its latency on the way in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np

from ridgeline.comm.graph import Graph, graph_of
from ridgeline.comm.switched_topologies import fat_tree, leaf_spine, planes, rails
from ridgeline.core.arrays import Index
from ridgeline.core.errors import InputError, Problem, not_among

MOST_RANKS = 65_536
MOST_LINKS = 4_000_000
_NAME = re.compile(r"([a-z]+):(\d{1,6}(?:x\d{1,6}){0,3})")


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
            raise _wrong(repr(text), "sizes such as mesh:8x8 or ring:16")
        raise InputError(not_among("topology", kind, _MAKERS, "write e.g. mesh:8x8, torus:4x4x4, ring:16, switch:8"))
    sizes = tuple(int(part) for part in match.group(2).split("x"))
    sizes_counted = sizes[:1] if match.group(1) == "random" else sizes
    if min(sizes_counted) < 1 or prod(sizes_counted) > MOST_RANKS:
        raise _wrong(repr(text), f"sides of at least 1 and at most {MOST_RANKS} ranks")
    if not bytes_per_s > 0:
        raise _wrong(f"a link of {bytes_per_s} B/s", "a rate above 0", 'give --link "50 GB/s"')
    return _MAKERS[match.group(1)](text, sizes, bytes_per_s, latency_s, outer_bytes_per_s or bytes_per_s)


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


def _mesh(name: str, sizes: tuple[int, ...], rate: float, latency: float, _outer: float) -> Graph:
    return grid_graph(name, sizes, (False,) * len(sizes), rate, latency)


def _torus(name: str, sizes: tuple[int, ...], rate: float, latency: float, _outer: float) -> Graph:
    return grid_graph(name, sizes, tuple(size > 2 for size in sizes), rate, latency)


def _ring(name: str, sizes: tuple[int, ...], rate: float, latency: float, _outer: float) -> Graph:
    _single_size(name, sizes)
    return grid_graph(name, sizes, (sizes[0] > 2,), rate, latency)


def _full(name: str, sizes: tuple[int, ...], rate: float, latency: float, _outer: float) -> Graph:
    n = _single_size(name, sizes)
    if n * (n - 1) > MOST_LINKS:
        raise _wrong(f"{name}, {n * (n - 1)} links", f"at most {MOST_LINKS} links")
    a, b = np.triu_indices(n, 1)
    return graph_of(name, n, n, [(a, b, rate, latency)])


def _switch(name: str, sizes: tuple[int, ...], rate: float, latency: float, _outer: float) -> Graph:
    n = _single_size(name, sizes)
    return _one_way_latency(graph_of(name, n, n + 1, [(np.arange(n), np.full(n, n), rate, latency)]))


def _sharp(name: str, sizes: tuple[int, ...], rate: float, latency: float, outer: float) -> Graph:
    return replace(_switch(name, sizes, rate, latency, outer), reducing=sizes[0])


def _random(name: str, sizes: tuple[int, ...], rate: float, latency: float, _outer: float) -> Graph:
    """Rings in random orders laid over each other; links that fall together count once."""
    if len(sizes) not in (2, 3) or sizes[0] < 3 or sizes[1] < 2 or sizes[1] % 2:
        raise _wrong(name, "ranks x an even number of links[ x seed], as random:64x4 or random:64x4x7")
    n, random = sizes[0], np.random.default_rng(sizes[2] if len(sizes) == 3 else 0)
    ends = []
    for _ in range(sizes[1] // 2):
        order = random.permutation(n)
        ends.append(np.sort(np.stack([order, np.roll(order, 1)]), axis=0))
    a, b = np.unique(np.concatenate(ends, axis=1), axis=1)
    return graph_of(name, n, n, [(a, b, rate, latency)])


def _dragonfly(name: str, sizes: tuple[int, ...], rate: float, latency: float, outer: float) -> Graph:
    if len(sizes) != 3:
        raise _wrong(name, "groups x routers x ranks, as dragonfly:9x4x2")
    groups, routers, ranks_per_router = sizes
    n = groups * routers * ranks_per_router
    ranks = np.arange(n)
    links: list[tuple[Index, Index, float, float]] = [(ranks, n + ranks // ranks_per_router, rate, latency)]
    a, b = np.triu_indices(routers, 1)
    base = n + np.arange(groups)[:, None] * routers
    links.append(((base + a).ravel(), (base + b).ravel(), rate * ranks_per_router, latency))
    g, h = np.triu_indices(groups, 1)
    links.append(
        (n + g * routers + (h - 1) % routers, n + h * routers + g % routers, outer * ranks_per_router, latency)
    )
    graph = _one_way_latency(graph_of(name, n, n + groups * routers, links))
    return replace(graph, domain=routers * ranks_per_router if groups > 1 else 0)


def _domains(name: str, sizes: tuple[int, ...], rate: float, latency: float, outer: float) -> Graph:
    if len(sizes) != 2:
        raise _wrong(name, "domains x ranks, as domains:8x8")
    return domain_graph(name, sizes, (rate, outer), (latency, latency), rails=sizes[1])


def _rails(name: str, sizes: tuple[int, ...], rate: float, latency: float, outer: float) -> Graph:
    domains, ranks_per_domain, spines = _three(name, sizes, "domains x ranks x spines, as rails:16x8x16")
    return rails(name, (domains, ranks_per_domain, spines), (rate, outer), latency)


def _leaf_spine(name: str, sizes: tuple[int, ...], rate: float, latency: float, _outer: float) -> Graph:
    return leaf_spine(name, _three(name, sizes, "leaves x ranks x spines, as leafspine:8x16x8"), rate, latency)


def _fat_tree(name: str, sizes: tuple[int, ...], rate: float, latency: float, _outer: float) -> Graph:
    k = _single_size(name, sizes)
    if k < 2 or k % 2 or k**3 // 4 > MOST_RANKS:
        raise _wrong(name, f"an even number of ports a switch, and at most {MOST_RANKS} ranks, as fattree:16")
    return fat_tree(name, k, rate, latency)


def _planes(name: str, sizes: tuple[int, ...], rate: float, latency: float, _outer: float) -> Graph:
    if len(sizes) != 2:
        raise _wrong(name, "ranks x planes, as planes:48x7")
    return planes(name, (sizes[0], sizes[1]), rate, latency)


def _three(name: str, sizes: tuple[int, ...], expected: str) -> tuple[int, int, int]:
    if len(sizes) != 3:
        raise _wrong(name, expected)
    return sizes[0], sizes[1], sizes[2]


def domain_graph(
    name: str,
    sizes: tuple[int, int],
    rates: tuple[float, float],
    latencies: tuple[float, float],
    *,
    rails: int = 1,
    oversubscription: float = 1.0,
) -> Graph:
    """Switched domains, each rank with a port of its own on rail `place % rails`; a spine joins the rails' switches.

    A rail switch passes all its ports' rate, and 1 / oversubscription of it on to the spine.
    """
    n, g = sizes
    p, rails = n * g, max(1, min(rails, g))
    ranks = np.arange(p)
    inner, rail, spine = p + ranks // g, p + n + (ranks % g) % rails, p + n + rails
    links = [(ranks, inner, rates[0], latencies[0]), (ranks, rail, rates[1], latencies[1])]
    if rails > 1:
        up = p / rails * rates[1] / oversubscription
        links.append((p + n + np.arange(rails), np.full(rails, spine), up, 0.0))
    graph = graph_of(name, p, p + n + rails + (rails > 1), links)
    return replace(_one_way_latency(graph), domain=g)


def _one_way_latency(graph: Graph) -> Graph:
    """Latency on the way into the network only: a hop from rank to rank pays it once."""
    return replace(graph, latency_s=np.where(graph.head < graph.ranks, 0.0, graph.latency_s))


def _single_size(name: str, sizes: tuple[int, ...]) -> int:
    if len(sizes) != 1:
        raise _wrong(name, f"one size, as {name.split(':')[0]}:16")
    return sizes[0]


_MAKERS: dict[str, Callable[[str, tuple[int, ...], float, float, float], Graph]] = {
    "mesh": _mesh,
    "torus": _torus,
    "ring": _ring,
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


def _wrong(given: str, expected: str, todo: str = "") -> InputError:
    return InputError(Problem(path="topology", given=given, expected=expected, todo=todo))
