"""Turn a graph and a contract of any shape (unequal sizes, a pair, MoE dispatch) into a time that nothing beats.

For a rank or a domain S: a chunk that ends in S and has a contribution from outside must enter S once, one that begins
in S and ends outside must leave it once.

    T >= bytes that must enter S / rate into S,    bytes that must leave S / rate out of S
    T >= what all chunks' ways take of all links (`concurrent_flow`), on graphs of up to 320 nodes
    T >= the quickest way from a rank that contributes to a chunk to one where it must end, of the farthest such pair
"""

from __future__ import annotations

import numpy as np

from ridgeline.comm.bounds import Bound, Trips, domain_sets, flow_seconds
from ridgeline.comm.contract import Contract
from ridgeline.comm.graph import Graph, sums_by
from ridgeline.core.arrays import Array, Index

MOST_PAIRS = 4_000_000  # of a begin and an end that are looked at for the latency
FLOW_NODES, FLOW_PAIRS = 320, 400_000  # up to which the concurrent flow is bounded


def contract_bound(graph: Graph, contract: Contract, size_bytes: float) -> Bound:
    """Seconds that no algorithm for this contract beats on this graph.

    >>> from ridgeline.comm.contract import point_to_point
    >>> from ridgeline.comm.topologies import topology
    >>> pair = point_to_point(4, np.array([0]), np.array([2]))
    >>> contract_bound(topology("ring:4", 2.0), pair, 4.0).seconds  # by both links of the sender
    1.0
    """
    begins, ends = _places(contract.begins, contract), _places(contract.ends, contract)
    bytes_ = contract.shares() * size_bytes
    sets = [np.arange(graph.ranks), *_group_numbers(graph)]
    best = 0.0
    for group in sets:
        out, into = _rates(graph, group)
        leave, enter = _crossing(group, begins, ends, bytes_), _crossing(group, ends, begins, bytes_)
        with np.errstate(divide="ignore", invalid="ignore"):
            need = np.concatenate([np.where(leave > 0, leave / out, 0.0), np.where(enter > 0, enter / into, 0.0)])
        best = max(best, float(need.max(initial=0.0)))
    pairs = _pairs(begins, ends)
    if pairs is None:
        return Bound(bandwidth_s=best, latency_s=0.0)
    if graph.nodes <= FLOW_NODES and len(pairs[0]) <= FLOW_PAIRS:
        best = max(best, flow_seconds(graph, _trips(*pairs, bytes_)))
    return Bound(bandwidth_s=best, latency_s=_farthest(graph, *pairs[:2]))


def _places(places: Index | None, contract: Contract) -> Index:
    if places is not None:
        return places
    rank, chunk = (part.ravel() for part in np.indices((contract.ranks, contract.chunks)))
    return np.stack([rank, chunk], axis=1)


def _group_numbers(graph: Graph) -> list[Index]:
    """The domain of each rank, where there are several."""
    masks = domain_sets(graph)
    if len(masks) < 2:
        return []
    number = np.zeros(graph.ranks, np.int64)
    for index, mask in enumerate(masks):
        number[mask[: graph.ranks]] = index
    return [number]


def _rates(graph: Graph, group: Index) -> tuple[Array, Array]:
    """Rate out of and into each group of ranks, with the switches that only it has."""
    count = int(group.max()) + 1
    if count == graph.ranks:
        return graph.out_bytes_per_s()[: graph.ranks], graph.in_bytes_per_s()[: graph.ranks]
    masks = domain_sets(graph)
    out = [float(graph.bytes_per_s[mask[graph.tail] & ~mask[graph.head]].sum()) for mask in masks]
    into = [float(graph.bytes_per_s[~mask[graph.tail] & mask[graph.head]].sum()) for mask in masks]
    return np.array(out), np.array(into)


def _crossing(group: Index, here: Index, there: Index, bytes_: Array) -> Array:
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
    place = np.arange(int(many.sum())) - np.repeat(np.cumsum(many) - many, many)
    source, target = np.repeat(begins[:, 0], many), ends[order, 0][np.repeat(first, many) + place]
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
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import dijkstra

    tiny = 1e-15  # an entry of 0 would be no link at all
    shape = (graph.nodes, graph.nodes)
    matrix = coo_array((graph.latency_s + tiny, (graph.tail, graph.head)), shape=shape).tocsr()
    starts, row = np.unique(source, return_inverse=True)
    longest = float(dijkstra(matrix, indices=starts)[row, target].max(initial=0.0))
    return longest if longest > tiny * graph.nodes else 0.0
