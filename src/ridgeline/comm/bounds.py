"""Turn a graph, a collective and a size into times that no algorithm can beat.

M = size, N = ranks, B+(S), B-(S) = rate out of and into a set S of nodes, c = bytes of a chunk, C = chunks.

    all-gather        what S owns must leave it: M |S|/N / B+(S); what it lacks must enter it
    reduce-scatter    the same with the directions exchanged
    all-reduce        M / B+(S); and without sums inside the network 2 (|P| - 1) M / sum of B+ over the parts of a
                      partition P of the ranks: each part but one sends once towards the sum, and gets the sum once
                      (ranks one by one, domains, and on direct graphs of no known shape by lengths: below)
    broadcast         M / B+(S) for S that holds the root and not all ranks; reduce: M / B-(S)
    all-to-all        M |S| (N - |S|) / N / B+(S); bytes times hops over all links' rate; concurrent flow on any graph
    latency           the longest of the quickest paths between two ranks; of broadcast and reduce, from or to the root
    chunked           a link carries one chunk after the other, each in alpha + c/b: a rank that needs n chunks over d
                      equal links waits ceil(n/d) (alpha + c/b), as a set of ranks does that d links join to the rest;
                      for direct links and algorithms that send so

Sets tried: every rank alone, every domain, every slab of a mesh or torus, sweeps of other graphs. Each is a valid
bound, the largest is given. In-switch sums only help all-reduce: M / B.

All-reduce by lengths: by Nash-Williams and Tutte trees can carry tau = min over partitions P of (rate between parts) /
(|P| - 1), and an all-reduce takes M / tau at least. For any lengths of links

    tau <= (sum of rate x length) / (length of the shortest spanning tree)

so that every try is a bound. Lengths grow where shortest trees crowd, as multiplicative weights do. After some tens of
trees the most crowded links are those between the parts of the tightest partition: what is left without them, for each
degree of crowding, is a partition to try.

Concurrent flow: give every link a length l. What a chunk needs travels at least the distance between the two of its
ranks that are farthest apart, and a second moves at most sum of rate x l. Lengths grow where shortest ways crowd:

    T >= sum over chunks of bytes x distance / sum over links of rate l        for any lengths

Sweeps: nodes are put in order by an eigenvector of the graph's Laplacian (the Fiedler vector and the next), on large
graphs by what a random walk of many steps leaves of it, and by their distance from a node at the rim; every beginning
of such an order is a set.

Contracts of any shape (unequal sizes, a pair, MoE dispatch), for a rank or a domain S: a chunk that ends in S and has a
contribution from outside must enter S once, one that begins in S and ends outside must leave it once. The latency is
that of the quickest way between the farthest begin and end of a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, dijkstra, minimum_spanning_tree

from ridgeline.comm.contract import PLAIN_COLLECTIVES, Collective, Contract
from ridgeline.comm.graph import Graph, link_matrix, links_between, ranges, sums_by
from ridgeline.core.arrays import Array, Index, Mask

MOST_RANKS = 256
TREES = 120
STEEP = 12.0  # the most crowded link is e**STEEP as long as an idle one
LEVELS = 40  # degrees of crowding that are tried


@lru_cache(maxsize=4)
def trees_seconds(graph: Graph) -> float:
    """Seconds of an all-reduce of one byte that no algorithm beats; 0 on large graphs and through switches.

    >>> from ridgeline.comm.topologies import topology
    >>> round(trees_seconds(topology("mesh:8x8", 1.0)), 3)
    0.562
    """
    if not graph.direct or not 1 < graph.ranks <= MOST_RANKS:
        return 0.0
    low, high = np.minimum(graph.tail, graph.head), np.maximum(graph.tail, graph.head)
    pair, index = np.unique(low * graph.ranks + high, return_inverse=True)
    rate = np.bincount(index, graph.bytes_per_s) / 2  # of both directions
    ends, shape = (pair // graph.ranks, pair % graph.ranks), (graph.ranks, graph.ranks)
    load, best = np.zeros(len(pair)), 0.0
    for _ in range(TREES):
        crowd = load / rate
        length = np.exp(STEEP * (crowd / max(float(crowd.max()), 1e-300) - 1)) / (rate if not load.any() else 1.0)
        tree = minimum_spanning_tree(csr_array((length, ends), shape=shape)).tocoo()
        best = max(best, float(tree.data.sum() / (rate * length).sum()))
        load[np.searchsorted(pair, tree.row.astype(np.int64) * graph.ranks + tree.col)] += 1
    return max(best, _partition_rate(ends, rate, load / rate, graph.ranks))


def _partition_rate(ends: tuple[Index, Index], rate: Array, crowd: Array, ranks: int) -> float:
    """The tightest partition into what the less crowded links join."""
    best = 0.0
    for level in np.unique(np.round(crowd / crowd.max(), 3))[-LEVELS:]:
        loose = crowd < level * crowd.max() * (1 - 1e-3)
        inside = (ends[0][loose], ends[1][loose])
        parts, label = connected_components(csr_array((np.ones(int(loose.sum())), inside), shape=(ranks, ranks)), False)
        across = float(rate[label[ends[0]] != label[ends[1]]].sum())
        if parts > 1:
            best = max(best, (parts - 1) / across)
    return best


PASSES = 60
GROWTH = 2.0  # of the fullest link's length in a pass, falling


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trips:
    """Pairs of ranks between which a chunk must travel, chunk by chunk; `first` is where each chunk's pairs begin."""

    source: Index
    target: Index
    first: Index
    bytes: Array


def exchange_seconds(graph: Graph, passes: int = PASSES) -> float:
    """Seconds that no all-to-all of M = 1 byte a rank beats on a graph of direct links.

    >>> from ridgeline.comm.topologies import topology
    >>> round(exchange_seconds(topology("ring:8", 1.0)), 3)  # M p / 8 b
    1.0
    """
    n = graph.ranks
    source, target = np.nonzero(~np.eye(n, dtype=np.bool_))
    pairs = np.arange(len(source))
    return flow_seconds(
        graph, Trips(source=source, target=target, first=pairs, bytes=np.full(len(pairs), 1 / n)), passes
    )


def flow_seconds(graph: Graph, trips: Trips, passes: int = PASSES) -> float:
    """Seconds that nothing beats that makes these trips, through switches or not."""
    if not len(trips.first):
        return 0.0
    rate = graph.bytes_per_s
    starts, row = np.unique(trips.source, return_inverse=True)
    length, best = 1 / rate, 0.0
    for step in range(passes):
        far, last = dijkstra(link_matrix(graph, length), indices=starts, return_predecessors=True)
        distance = far[row, trips.target]
        longest = np.maximum.reduceat(distance, trips.first)
        best = max(best, float((trips.bytes * longest).sum() / (rate * length).sum()))
        sent = np.zeros(far.shape)
        chunk = np.repeat(np.arange(len(trips.first)), np.diff(np.append(trips.first, len(distance))))
        np.add.at(sent, (row, trips.target), np.where(distance >= longest[chunk], trips.bytes[chunk], 0.0))
        full = _loads(graph, far, last.astype(np.int64), sent) / rate
        length = length * np.exp(GROWTH / (1 + step / 4) * full / full.max())
        length /= length.max()
    return best


def _loads(graph: Graph, far: Array, last: Index, sent: Array) -> Array:
    """Bytes on each link when all go the shortest ways: by source and node what is sent there."""
    rows, below = np.arange(len(far)), sent.copy()
    load = np.zeros(graph.links)
    finite_far = np.where(np.isfinite(far), far, -1.0)
    for node in np.argsort(-finite_far, axis=1).T:  # farthest first, of every source at once
        before = last[rows, node]
        goes = before >= 0
        carried_bytes = below[rows, node]
        np.add.at(below, (rows[goes], before[goes]), carried_bytes[goes])
        load += np.bincount(links_between(graph, before[goes], node[goes]), carried_bytes[goes], graph.links)
    return load


MOST_NODES = 512  # eigenvectors of more take seconds
VECTORS = 4
WALKS, WALKED = 2, 80  # random walks on larger graphs, and their steps


def sweep_cuts(graph: Graph, root: int) -> tuple[Array, Array, Array, Mask]:
    """For each set: ranks in it, rate out of it and into it, and whether the root is in it.

    >>> from ridgeline.comm.graph import without
    >>> from ridgeline.comm.topologies import topology
    >>> bridged = without(topology("mesh:2x6", 1.0), ["link:2-3"])  # one link between halves is left
    >>> inside, out, _, _ = sweep_cuts(bridged, 0)
    >>> float((inside / out).max())
    6.0
    """
    if graph.nodes < 4:
        none = np.zeros(0)
        return none, none, none, none.astype(np.bool_)
    parts = [_swept(graph, order, root) for order in _orders(graph)]
    inside, out, into, holds_root = (np.concatenate(column) for column in zip(*parts, strict=True))
    return inside, out, into, holds_root


@lru_cache(maxsize=4)
def tight_sets(graph: Graph) -> list[Mask]:
    """Of each sweep the set with most ranks for the rate out of it, counted from its smaller side; none of one rank."""
    sets: list[Mask] = []
    if graph.nodes < 4:
        return sets
    for order in _orders(graph):
        inside, out, _, _ = _swept(graph, order, 0)
        ranks = np.minimum(inside, graph.ranks - inside)
        with np.errstate(divide="ignore", invalid="ignore"):
            tight = np.where(ranks > 1, ranks / out, 0.0)
        best = int(tight.argmax())
        if tight[best] > 0:
            mask = np.zeros(graph.nodes, np.bool_)
            mask[order[: best + 1]] = True
            sets.append(mask)
    return sets


@lru_cache(maxsize=4)
def _orders(graph: Graph) -> list[Index]:
    """Nodes in the order of the Laplacian's first eigenvectors after the constant one."""
    if graph.nodes > MOST_NODES:
        return _walk_orders(graph)
    weight = np.zeros((graph.nodes, graph.nodes))
    np.add.at(weight, (graph.tail, graph.head), graph.bytes_per_s / graph.bytes_per_s.max())
    weight = weight + weight.T
    laplacian = np.diag(weight.sum(axis=1)) - weight
    _, vectors = np.linalg.eigh(laplacian)
    return [np.argsort(vectors[:, column], kind="stable") for column in range(1, min(1 + VECTORS, graph.nodes))]


def _walk_orders(graph: Graph) -> list[Index]:
    """Nodes by what is slow to even out in a lazy random walk, and by their distance from a rim."""
    ends = (np.concatenate([graph.tail, graph.head]), np.concatenate([graph.head, graph.tail]))
    weight = np.tile(graph.bytes_per_s / graph.bytes_per_s.max(), 2)
    matrix = coo_array((weight, ends), shape=(graph.nodes, graph.nodes)).tocsr()
    total = np.asarray(matrix.sum(axis=1)).ravel()
    walk_mass = np.random.default_rng(0).standard_normal((graph.nodes, WALKS))
    for _ in range(WALKED):
        walk_mass -= (total @ walk_mass) / total.sum()
        walk_mass = (walk_mass + (matrix @ walk_mass) / total[:, None]) / 2
    rim = int(breadth_first_order(matrix, 0, return_predecessors=False)[-1])
    by_distance = breadth_first_order(matrix, rim, return_predecessors=False).astype(np.int64)
    walks = [np.argsort(walk_mass[:, column], kind="stable") for column in range(WALKS)]
    return [*walks, by_distance] if len(by_distance) == graph.nodes else walks


def _swept(graph: Graph, order: Index, root: int) -> tuple[Array, Array, Array, Mask]:
    """The same for every beginning of an order, shortest first."""
    place = np.empty(graph.nodes, np.int64)
    place[order] = np.arange(graph.nodes)
    low, high = place[graph.tail], place[graph.head]
    inside = np.cumsum(order < graph.ranks)[:-1]
    out = _prefix_rates(low, high, graph.bytes_per_s, graph.nodes)
    into = _prefix_rates(high, low, graph.bytes_per_s, graph.nodes)
    return inside.astype(np.float64), out, into, np.arange(graph.nodes - 1) >= place[root]


def _prefix_rates(begin: Index, end: Index, rate: Array, nodes: int) -> Array:
    """Rate of links that begin inside and end outside of each beginning."""
    leaves = begin < end
    opening = np.bincount(begin[leaves], rate[leaves], nodes)
    closing = np.bincount(end[leaves], rate[leaves], nodes)
    return np.maximum(np.cumsum(opening - closing)[:-1], 0.0)


FLOW_RANKS = 256  # ranks up to which an all-to-all's concurrent flow is bounded
ALL_SOURCES = 512  # ranks up to which all pairs are measured; beyond, a sample: still a bound
NO_LATENCY = 1e-200  # seconds of a link without latency: an entry of 0 would be no link at all


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBound:
    """Seconds that no algorithm beats; the larger of the two, as bandwidth or latency sets it."""

    bandwidth_s: float
    latency_s: float

    @property
    def seconds(self) -> float:
        return max(self.bandwidth_s, self.latency_s)

    @property
    def by(self) -> str:
        return "bandwidth" if self.bandwidth_s >= self.latency_s else "latency"


def lower_bound(graph: Graph, collective: Collective, size_bytes: float, root: int = 0) -> TimeBound:
    """The time that no algorithm beats on this graph, with chunks as fine as one likes.

    >>> from ridgeline.comm.topologies import topology
    >>> mesh, size = topology("mesh:8x8", 50e9), 50e9
    >>> [round(lower_bound(mesh, name, size).bandwidth_s, 4) for name in ("allgather", "allreduce", "alltoall")]
    [0.4922, 0.5625, 2.0]
    """
    if graph.ranks < 2:
        return TimeBound(bandwidth_s=0.0, latency_s=0.0)
    inside, out, into, holds_root = _cuts(graph, root)
    part = _crossing(graph, collective, inside, out, into, holds_root)
    best = float(np.max(part, initial=0.0))
    if collective == "allreduce" and graph.reducing < 0:
        # 2 (|P| - 1) over the rates out of the parts: ranks one by one, or domains
        best = max(best, 2 * (graph.ranks - 1) / float(graph.out_bytes_per_s()[: graph.ranks].sum()))
        masks = domain_sets(graph)
        if len(masks) > 1:
            best = max(best, 2 * (len(masks) - 1) / sum(_crossing_rates(graph, masks)[0]))
        if not graph.shape:
            best = max(best, trees_seconds(graph))
    if collective == "alltoall" and graph.direct:
        best = max(best, _flow(graph))
    return TimeBound(bandwidth_s=best * size_bytes, latency_s=_latency(graph, collective, root))


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
    masks, ranks = domain_sets(graph), graph.ranks
    for axis, size in enumerate(graph.shape):  # the first planes of a grid along each axis
        place = np.indices(graph.shape)[axis].ravel()
        masks += [place < cut for cut in range(1, size)]
    inside = np.concatenate([np.ones(ranks), [mask[: graph.ranks].sum() for mask in masks]])
    leaves, enters = _crossing_rates(graph, masks)
    out = np.concatenate([graph.out_bytes_per_s()[:ranks], leaves])
    into = np.concatenate([graph.in_bytes_per_s()[:ranks], enters])
    holds_root = np.concatenate([np.arange(ranks) == root, [mask[root] for mask in masks]]).astype(np.bool_)
    if graph.shape:
        return inside, out, into, holds_root
    tried = zip((inside, out, into, holds_root), sweep_cuts(graph, root), strict=True)
    inside, out, into, holds_root = (np.concatenate(pair) for pair in tried)
    return inside, out, into, holds_root


def _crossing_rates(graph: Graph, masks: list[Mask]) -> tuple[list[float], list[float]]:
    """Rate out of each set of nodes, and into it."""
    rate, tail, head = graph.bytes_per_s, graph.tail, graph.head
    out = [float(rate[mask[tail] & ~mask[head]].sum()) for mask in masks]
    return out, [float(rate[~mask[tail] & mask[head]].sum()) for mask in masks]


def domain_sets(graph: Graph) -> list[Mask]:
    """Each scale-up domain with the switches that only it has."""
    if not graph.domain:
        return []
    sets = []
    of_tail = np.where(graph.tail < graph.ranks, graph.tail // graph.domain, -1)
    for domain in range(-(-graph.ranks // graph.domain)):
        mask = np.zeros(graph.nodes, np.bool_)
        mask[domain * graph.domain : min((domain + 1) * graph.domain, graph.ranks)] = True
        foreign = np.zeros(graph.nodes, np.bool_)
        foreign[graph.head[of_tail != domain]] = True
        mask[graph.ranks :] = ~foreign[graph.ranks :]
        sets.append(mask)
    return sets


def _distances(graph: Graph, weight: Array, sources: Index, *, turned: bool = False) -> Array:
    """From each source to every rank, or from every rank to it; 0 where no way leads."""
    distances = dijkstra(link_matrix(graph, weight, turned=turned), indices=sources)[:, : graph.ranks]
    return np.where(np.isfinite(distances), distances, 0.0)


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
    distances = _distances(graph, np.ones(graph.links), _sources(graph))
    return float(distances.sum() / graph.ranks / graph.bytes_per_s.sum())


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
    chunk_s = size_bytes / chunks / graph.bytes_per_s + graph.latency_s
    lacks = {"allgather": chunks - chunks // n, "reducescatter": chunks - chunks // n}.get(collective, chunks)
    if collective not in ("allgather", "reducescatter", "allreduce", "broadcast", "reduce"):
        return 0.0
    outward = collective in ("reducescatter", "reduce")
    best = _slowest_port(graph.tail if outward else graph.head, chunk_s, lacks, n)
    if collective == "allreduce":
        best = max(best, _soonest(chunk_s, 2 * (n - 1) * chunks))
    if collective in ("allgather", "reducescatter", "allreduce") and not graph.shape:
        best = max(best, _slowest_cut(graph, chunk_s, collective, chunks))
    return best


def _slowest_cut(graph: Graph, each: Array, collective: Collective, chunks: int) -> float:
    """The same for sets of ranks that few links join to the rest: what they own leaves, and what they lack enters."""
    best = 0.0
    for mask in tight_sets(graph):
        chunks_inside = int(mask[: graph.ranks].sum()) * (chunks // graph.ranks)
        out, into = mask[graph.tail] & ~mask[graph.head], ~mask[graph.tail] & mask[graph.head]
        leaves, enters = chunks_inside, chunks // graph.ranks * graph.ranks - chunks_inside
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


MOST_PAIRS = 4_000_000  # of a begin and an end that are looked at for the latency
FLOW_NODES, FLOW_PAIRS = 320, 400_000  # up to which the concurrent flow is bounded


def time_bound(graph: Graph, contract: Contract, size_bytes: float) -> TimeBound:
    """The bound of a contract: that of its collective where chunks are equal."""
    if contract.collective in PLAIN_COLLECTIVES:
        return lower_bound(graph, contract.collective, size_bytes, contract.root)
    return contract_bound(graph, contract, size_bytes)


def contract_bound(graph: Graph, contract: Contract, size_bytes: float) -> TimeBound:
    """Seconds that no algorithm for this contract beats on this graph.

    >>> from ridgeline.comm.contract import point_to_point
    >>> from ridgeline.comm.topologies import topology
    >>> pair = point_to_point(4, np.array([0]), np.array([2]))
    >>> contract_bound(topology("ring:4", 2.0), pair, 4.0).seconds  # by both links of the sender
    1.0
    """
    flat = contract.begin_places(), contract.end_places()
    begins, ends = (np.stack(np.divmod(places, contract.chunks), axis=1) for places in flat)
    bytes_ = contract.shares() * size_bytes
    sets = [(np.arange(graph.ranks), graph.out_bytes_per_s()[: graph.ranks], graph.in_bytes_per_s()[: graph.ranks])]
    masks = domain_sets(graph)
    if 1 < len(masks) < graph.ranks:
        domain = np.argmax([mask[: graph.ranks] for mask in masks], axis=0)
        sets.append((domain, *map(np.array, _crossing_rates(graph, masks))))
    best = 0.0
    for group, out, into in sets:
        leave, enter = _crossing_bytes(group, begins, ends, bytes_), _crossing_bytes(group, ends, begins, bytes_)
        with np.errstate(divide="ignore", invalid="ignore"):
            need = np.concatenate([np.where(leave > 0, leave / out, 0.0), np.where(enter > 0, enter / into, 0.0)])
        best = max(best, float(need.max(initial=0.0)))
    pairs = _pairs(begins, ends)
    if pairs is None:
        return TimeBound(bandwidth_s=best, latency_s=0.0)
    if graph.nodes <= FLOW_NODES and len(pairs[0]) <= FLOW_PAIRS:
        best = max(best, flow_seconds(graph, _trips(*pairs, bytes_)))
    return TimeBound(bandwidth_s=best, latency_s=_farthest(graph, *pairs[:2]))


def _crossing_bytes(group: Index, here: Index, there: Index, bytes_: Array) -> Array:
    """Bytes of chunks with a place `here` in a group and one `there` outside of it, each once a group."""
    count, chunks = int(group.max()) + 1, len(bytes_)
    begin_keys = np.unique(group[here[:, 0]] * chunks + here[:, 1])
    end_keys = np.unique(group[there[:, 0]] * chunks + there[:, 1])
    groups_of_chunk = np.bincount(end_keys % chunks, minlength=chunks)
    outside = groups_of_chunk[begin_keys % chunks] - np.isin(begin_keys, end_keys) > 0
    return sums_by(begin_keys[outside] // chunks, bytes_[begin_keys[outside] % chunks], count)


def _pairs(begins: Index, ends: Index) -> tuple[Index, Index, Index] | None:
    """Source, target and chunk of every begin and end of a chunk, by chunk; None where they are very many."""
    order = np.argsort(ends[:, 1], kind="stable")
    begins = begins[np.argsort(begins[:, 1], kind="stable")]
    count = np.bincount(ends[:, 1], minlength=int(begins[:, 1].max()) + 1)
    if not len(begins) or int(count[begins[:, 1]].sum()) > MOST_PAIRS:
        return None
    many = count[begins[:, 1]]
    first = (np.cumsum(count) - count)[begins[:, 1]]
    source, target = np.repeat(begins[:, 0], many), ends[order, 0][ranges(first, many)]
    return source, target, np.repeat(begins[:, 1], many)


def _trips(source: Index, target: Index, chunk: Index, bytes_: Array) -> Trips:
    """What must travel, without what stays; chunks of one way together."""
    moves = source != target
    source, target, chunk = source[moves], target[moves], chunk[moves]
    first = np.flatnonzero(np.append(True, chunk[1:] != chunk[:-1])) if len(chunk) else np.zeros(0, np.int64)
    sizes = bytes_[chunk[first]]
    if len(first) < len(chunk):
        return Trips(source=source, target=target, first=first, bytes=sizes)
    width = int(max(source.max(initial=0), target.max(initial=0))) + 1
    way, row = np.unique(source * width + target, return_inverse=True)
    total = sums_by(row, sizes, len(way))
    return Trips(source=way // width, target=way % width, first=np.arange(len(way)), bytes=total)


def _farthest(graph: Graph, source: Index, target: Index) -> float:
    """The latency between the two ranks of a chunk that are farthest apart."""
    tiny = 1e-15  # an entry of 0 would be no link at all
    starts, row = np.unique(source, return_inverse=True)
    distances = dijkstra(link_matrix(graph, graph.latency_s + tiny), indices=starts)
    longest = float(distances[row, target].max(initial=0.0))
    return longest if longest > tiny * graph.nodes else 0.0
