"""Turn a graph, a collective and a size into times that no algorithm can beat.

M = size, N = ranks, B+(S), B-(S) = rate out of and into a set S of nodes, c = bytes of a chunk, C = chunks.

    all-gather        what S owns must leave it: M |S|/N / B+(S); what it lacks must enter it
    reduce-scatter    the same with the directions exchanged
    all-reduce        M / B+(S); and without sums inside the network 2 (|P| - 1) M / sum of B+ over the parts of a
                      partition P of the ranks: each part but one sends once towards the sum, and gets the sum once
                      (ranks one by one, domains, and on direct graphs of no known shape by lengths: `tree_bound`)
    broadcast         M / B+(S) for S that holds the root and not all ranks; reduce: M / B-(S)
    all-to-all        M |S| (N - |S|) / N / B+(S); bytes times hops over all links' rate; concurrent flow on any graph
    latency           the longest of the quickest paths between two ranks; of broadcast and reduce, from or to the root
    chunked           a link carries one chunk after the other, each in alpha + c/b: a rank that needs n chunks over d
                      equal links waits ceil(n/d) (alpha + c/b), as a set of ranks does that d links join to the rest;
                      for direct links and algorithms that send so

Sets tried: every rank alone, every domain, every slab of a mesh or torus, sweeps of other graphs (`sweep_cuts`). Each
is a valid bound, the largest is given.
In-switch sums only help all-reduce: M / B.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.comm.concurrent_flow import exchange_seconds
from ridgeline.comm.contract import Collective
from ridgeline.comm.graph import Graph
from ridgeline.comm.sweep_cuts import sweep_cuts, tight_sets
from ridgeline.comm.tree_bound import trees_seconds
from ridgeline.core.arrays import Array, Index, Mask

FLOW_RANKS = 256  # ranks up to which an all-to-all's concurrent flow is bounded
ALL_SOURCES = 512  # ranks up to which all pairs are measured; beyond, a sample: still a bound
NO_LATENCY = 1e-200  # seconds of a link without latency: an entry of 0 would be no link at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Seconds that no algorithm beats; the larger of the two, as bandwidth or latency sets it."""

    bandwidth_s: float
    latency_s: float

    @property
    def seconds(self) -> float:
        return max(self.bandwidth_s, self.latency_s)

    @property
    def by(self) -> str:
        return "bandwidth" if self.bandwidth_s >= self.latency_s else "latency"


def lower_bound(graph: Graph, collective: Collective, size_bytes: float, root: int = 0) -> Bound:
    """The time that no algorithm beats on this graph, with chunks as fine as one likes.

    >>> from ridgeline.comm.topologies import topology
    >>> mesh, size = topology("mesh:8x8", 50e9), 50e9
    >>> [round(lower_bound(mesh, name, size).bandwidth_s, 4) for name in ("allgather", "allreduce", "alltoall")]
    [0.4922, 0.5625, 2.0]
    """
    if graph.ranks < 2:
        return Bound(bandwidth_s=0.0, latency_s=0.0)
    inside, out, into, rooted = _cuts(graph, root)
    part = _crossing(graph, collective, inside, out, into, rooted)
    best = float(np.max(part, initial=0.0))
    if collective == "allreduce" and graph.reducing < 0:
        best = max(best, _partitions(graph))
        if not graph.shape:
            best = max(best, trees_seconds(graph))
    if collective == "alltoall" and graph.direct:
        best = max(best, _flow(graph))
    return Bound(bandwidth_s=best * size_bytes, latency_s=_latency(graph, collective, root))


def _crossing(graph: Graph, collective: Collective, inside: Array, out: Array, into: Array, rooted: Mask) -> Array:
    """Seconds for M = 1 that each cut asks for."""
    n = graph.ranks
    share = inside / n
    split = (inside > 0) & (inside < n)
    with np.errstate(divide="ignore", invalid="ignore"):
        match collective:
            case "allgather":
                need = np.maximum(share / out, (1 - share) / into)
            case "reducescatter":
                need = np.maximum((1 - share) / out, share / into)
            case "allreduce":
                need = np.maximum(1 / out, 1 / into)
            case "broadcast":
                need = np.where(rooted, 1 / out, 1 / into)
            case "reduce":
                need = np.where(rooted, 1 / into, 1 / out)
            case "alltoall":
                need = share * (n - inside) * np.maximum(1 / out, 1 / into)
            case _:
                need = np.zeros(len(inside))
    return np.where(split, need, 0.0)


def _cuts(graph: Graph, root: int) -> tuple[Array, Array, Array, Mask]:
    """For each set tried: ranks in it, rate out of it and into it, and whether the root is in it."""
    masks = domain_sets(graph) + _slabs(graph)
    alone = graph.ranks
    inside = np.concatenate([np.ones(alone), [mask[: graph.ranks].sum() for mask in masks]])
    leaves = [float(graph.bytes_per_s[mask[graph.tail] & ~mask[graph.head]].sum()) for mask in masks]
    enters = [float(graph.bytes_per_s[~mask[graph.tail] & mask[graph.head]].sum()) for mask in masks]
    out = np.concatenate([graph.out_bytes_per_s()[:alone], leaves])
    into = np.concatenate([graph.in_bytes_per_s()[:alone], enters])
    rooted = np.concatenate([np.arange(alone) == root, [mask[root] for mask in masks]]).astype(np.bool_)
    if graph.shape:
        return inside, out, into, rooted
    swept = sweep_cuts(graph, root)
    return (
        np.concatenate([inside, swept[0]]),
        np.concatenate([out, swept[1]]),
        np.concatenate([into, swept[2]]),
        np.concatenate([rooted, swept[3]]),
    )


def domain_sets(graph: Graph) -> list[Mask]:
    """Each scale-up domain with the switches that only it has."""
    if not graph.domain:
        return []
    made = []
    of_tail = np.where(graph.tail < graph.ranks, graph.tail // graph.domain, -1)
    for domain in range(-(-graph.ranks // graph.domain)):
        mask = np.zeros(graph.nodes, np.bool_)
        mask[domain * graph.domain : min((domain + 1) * graph.domain, graph.ranks)] = True
        foreign = np.zeros(graph.nodes, np.bool_)
        foreign[graph.head[of_tail != domain]] = True
        mask[graph.ranks :] = ~foreign[graph.ranks :]
        made.append(mask)
    return made


def _slabs(graph: Graph) -> list[Mask]:
    """The first planes of a grid along each axis."""
    made = []
    for axis, size in enumerate(graph.shape):
        place = np.indices(graph.shape)[axis].ravel()
        made += [place < cut for cut in range(1, size)]
    return made


def _partitions(graph: Graph) -> float:
    """2 (|P| - 1) / sum of rates out of the parts: ranks one by one, or domains."""
    best = 2 * (graph.ranks - 1) / float(graph.out_bytes_per_s()[: graph.ranks].sum())
    masks = domain_sets(graph)
    if len(masks) > 1:
        out = sum(float(graph.bytes_per_s[mask[graph.tail] & ~mask[graph.head]].sum()) for mask in masks)
        best = max(best, 2 * (len(masks) - 1) / out)
    return best


def _distances(graph: Graph, weight: Array, sources: Index, *, turned: bool = False) -> Array:
    """From each source to every rank, or from every rank to it; 0 where no way leads."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import dijkstra

    ends = (graph.head, graph.tail) if turned else (graph.tail, graph.head)
    matrix = coo_array((weight, ends), shape=(graph.nodes, graph.nodes)).tocsr()
    found = dijkstra(matrix, indices=sources)[:, : graph.ranks]
    return np.where(np.isfinite(found), found, 0.0)


def _sources(graph: Graph) -> Index:
    """Ranks that distances are measured from: all, or a few of very many."""
    n = graph.ranks
    return np.arange(n) if n <= ALL_SOURCES else np.unique([0, n // 2, n - 1])


def _latency(graph: Graph, collective: Collective, root: int) -> float:
    """The longest of the quickest paths that data must take: between any two ranks, or from or to the root."""
    weight = np.maximum(graph.latency_s, NO_LATENCY)
    sources = np.array([root]) if collective in ("broadcast", "reduce") else _sources(graph)
    longest = float(_distances(graph, weight, sources, turned=collective == "reduce").max(initial=0.0))
    return longest if longest > NO_LATENCY * graph.nodes else 0.0


def _flow(graph: Graph) -> float:
    """All-to-all: each pair's bytes take a link's time on every hop; on small graphs of no known shape by lengths."""
    if not graph.shape and graph.ranks <= FLOW_RANKS:
        return exchange_seconds(graph)
    if graph.ranks > ALL_SOURCES:
        return 0.0
    found = _distances(graph, np.ones(graph.links), _sources(graph))
    return float(found.sum() / graph.ranks / graph.bytes_per_s.sum())


def chunked_bound(graph: Graph, collective: Collective, size_bytes: float, chunks: int) -> float:
    """Seconds that no algorithm with chunks of that size beats when a link carries one after the other.

    0 where it does not apply: through switches, or for collectives other than these.

    >>> from ridgeline.comm.topologies import topology
    >>> chunked_bound(topology("mesh:4x4", 1.0), "allgather", 16.0, 16)
    8.0
    """
    n = graph.ranks
    if not graph.direct or n < 2:
        return 0.0
    each = size_bytes / chunks / graph.bytes_per_s + graph.latency_s
    lacks = {"allgather": chunks - chunks // n, "reducescatter": chunks - chunks // n}.get(collective, chunks)
    if collective not in ("allgather", "reducescatter", "allreduce", "broadcast", "reduce"):
        return 0.0
    outward = collective in ("reducescatter", "reduce")
    best = _slowest_port(graph.tail if outward else graph.head, each, lacks, n)
    if collective == "allreduce":
        best = max(best, _soonest(each, 2 * (n - 1) * chunks))
    if collective in ("allgather", "reducescatter", "allreduce") and not graph.shape:
        best = max(best, _slowest_cut(graph, each, collective, chunks))
    return best


def _slowest_cut(graph: Graph, each: Array, collective: Collective, chunks: int) -> float:
    """The same for sets of ranks that few links join to the rest: what they own leaves, and what they lack enters."""
    best = 0.0
    for mask in tight_sets(graph):
        own = int(mask[: graph.ranks].sum()) * (chunks // graph.ranks)
        out, into = mask[graph.tail] & ~mask[graph.head], ~mask[graph.tail] & mask[graph.head]
        leaves, enters = own, chunks // graph.ranks * graph.ranks - own
        if collective == "reducescatter":
            leaves, enters = enters, leaves
        elif collective == "allreduce":
            leaves = enters = chunks
        best = max(best, _soonest(each[out], leaves), _soonest(each[into], enters))
    return best


def sequence_bound(graph: Graph, size_bytes: float, chunks: int) -> float:
    """The chunked bound of an all-reduce that is a reduce-scatter and then an all-gather."""
    first = chunked_bound(graph, "reducescatter", size_bytes, chunks)
    return first + chunked_bound(graph, "allgather", size_bytes, chunks)


def _slowest_port(end: Index, each: Array, lacks: int, ranks: int) -> float:
    degree = np.bincount(end, minlength=ranks)
    if np.ptp(each) == 0:
        return float(-(-lacks // int(degree.min())) * each[0])
    order = np.argsort(end, kind="stable")
    parts = np.split(each[order], np.cumsum(degree)[:-1])
    total = np.bincount(end, 1 / each, ranks)
    slow = np.argsort(total)[: max(8, ranks // 64)]
    return max(_soonest(parts[int(node)], lacks) for node in slow)


def _soonest(each: Array, count: int) -> float:
    """When links that take `each` seconds a chunk have carried `count` chunks."""
    if np.ptp(each) == 0:
        return float(-(-count // len(each)) * each[0])
    low, high = count / float((1 / each).sum()), (count / len(each) + 1) * float(each.max())
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if np.floor(middle / each + 1e-9).sum() >= count else (middle, high)
    return high
