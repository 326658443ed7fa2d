"""Turn an algorithm, a graph and a size into seconds: alpha-beta on every link, shared by the steps of a round.

A step takes the latency of its way and the time of the busiest link on it, which carries the bytes of all steps of the
round that use it:

    end = start + sum of latencies + max over its links of (bytes of the round on the link / rate)

It starts when its chunk is there and its links are done with the rounds before; nobody waits for a whole round. On
direct links and one chunk a link and round this is rounds x (chunk / b + alpha). A link is busy for the latency too.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ridgeline.comm.algorithm import Algorithm
from ridgeline.comm.graph import Graph
from ridgeline.comm.routes import routes
from ridgeline.core.arrays import Array, Index

DENSE = 1 << 27  # places (node, chunk) that are kept as one array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timing:
    """Seconds of a collective, when each round was over, bytes of each link, the most steps on a link in a round."""

    seconds: float
    round_ends: Array
    link_bytes: Array
    crowding: int


def time_algorithm(algorithm: Algorithm, graph: Graph, size_bytes: float) -> Timing:
    """Seconds of an algorithm on a graph.

    >>> from ridgeline.comm.library.gathers import ring_allgather
    >>> from ridgeline.comm.topologies import topology
    >>> round(time_algorithm(ring_allgather(8), topology("ring:8", 50e9, 1e-6), 8e6).seconds * 1e6, 3)
    147.0
    """
    steps = algorithm.steps
    if not len(steps):
        return Timing(seconds=0.0, round_ends=np.zeros(0), link_bytes=np.zeros(graph.links), crowding=0)
    ways, way_of = _ways(algorithm, graph)
    alpha = np.where(ways >= 0, graph.latency_s[ways], 0.0).sum(axis=1)
    read, write, places = _places(algorithm)
    shares = algorithm.contract.chunk_share * size_bytes
    there, free = np.zeros(places), np.zeros(graph.links + 1)
    total, ends = np.zeros(graph.links), []
    starts = steps.starts()
    last, crowding = 0.0, 0
    rate = np.append(graph.bytes_per_s, np.inf)
    for low, high in pairwise(starts):
        way = way_of[low:high]
        over = ways[way]
        size = shares if len(shares) == 1 else shares[steps.chunk[low:high]]
        spread = np.broadcast_to(size, (high - low,))
        load, most = _loads(over, spread, graph.links)
        crowding = max(crowding, most)
        total += load[:-1]
        begin = np.maximum(there[read[low:high]], free[over].max(axis=1))
        end = begin + alpha[way] + (load / rate)[over].max(axis=1)
        np.maximum.at(there, write[low:high], end)
        for hop in range(over.shape[1]):
            np.maximum.at(free, over[:, hop], end)
        free[-1] = 0.0
        last = max(last, float(end.max()))
        ends.append(last)
    return Timing(seconds=last, round_ends=np.array(ends), link_bytes=total, crowding=crowding)


def _ways(algorithm: Algorithm, graph: Graph) -> tuple[Index, Index]:
    """The routes of all pairs that send, and which one each step takes."""
    key = algorithm.steps.source.astype(np.int64) * graph.nodes + algorithm.steps.target
    seen = np.zeros(graph.nodes * graph.nodes, np.bool_) if graph.nodes <= 1 << 13 else None
    if seen is None:
        pairs, way_of = np.unique(key, return_inverse=True)
    else:
        seen[key] = True
        pairs = np.flatnonzero(seen)
        number = np.zeros(len(seen), np.int32)
        number[pairs] = np.arange(len(pairs), dtype=np.int32)
        way_of = number[key].astype(np.int64)
    return routes(graph, pairs // graph.nodes, pairs % graph.nodes), way_of


def _places(algorithm: Algorithm) -> tuple[Index, Index, int]:
    chunks = np.int64(algorithm.contract.chunks)
    read = algorithm.steps.source * chunks + algorithm.steps.chunk
    write = algorithm.steps.target * chunks + algorithm.steps.chunk
    if algorithm.nodes * chunks <= DENSE:
        return read, write, int(algorithm.nodes * chunks)
    known, index = np.unique(np.concatenate([read, write]), return_inverse=True)
    return index[: len(read)], index[len(read) :], len(known)


def _loads(over: Index, size: Array, links: int) -> tuple[Array, int]:
    """Bytes on each link in a round (the last entry stands for none), and the most steps on one."""
    load, count = np.zeros(links + 1), np.zeros(links + 1, np.int64)
    for hop in range(over.shape[1]):
        load += np.bincount(over[:, hop] + (over[:, hop] < 0) * (links + 1), size, links + 1)
        count += np.bincount(over[:, hop] + (over[:, hop] < 0) * (links + 1), minlength=links + 1)
    load[-1] = 0.0
    return load, int(count[:-1].max(initial=0))
