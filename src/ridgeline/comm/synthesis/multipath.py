"""Exchanges of any sizes on a direct graph over several ways at once: pairs that send, all-to-all of unequal parts.

What a pair sends is cut into pieces of about one size. Each piece is laid along the links that are least full with it,
and laid again once all the others lie: a single pair comes to use every way that adds rate, as maximum flow does, and
pairs that meet go round each other. `exchange_turns` says when each piece moves on.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.sparse.csgraph import dijkstra

from ridgeline.comm.algorithm import Algorithm
from ridgeline.comm.contract import Contract
from ridgeline.comm.graph import Graph
from ridgeline.comm.synthesis.exchange import links_back, weighted
from ridgeline.comm.synthesis.exchange_turns import by_hops, one_by_one
from ridgeline.core.arrays import Array, Index

PIECES = (32, 128, 512)  # in all, at least one a pair
MOST_PIECES = 4096
SWEEPS = 3
STEEP = 6.0  # a link as full as the fullest is avoided by e**STEEP


def multipath_exchanges(graph: Graph, asked: Contract, size_bytes: float) -> Iterator[Algorithm]:
    """Algorithms for the contract, whose chunks each go from one rank to another, in pieces of several sizes."""
    assert asked.begins is not None
    assert asked.ends is not None
    source, target = np.zeros(asked.chunks, np.int64), np.full(asked.chunks, -1, np.int64)
    source[asked.begins[:, 1]], target[asked.ends[:, 1]] = asked.begins[:, 0], asked.ends[:, 0]
    share = np.array(asked.shares(), np.float64)
    sent = np.flatnonzero((target >= 0) & (source != target) & (share > 0))
    before = 0
    for pieces in PIECES:
        each = share[sent].sum() / pieces
        count = np.maximum(1, np.ceil(share[sent] / each - 1e-9).astype(np.int64))
        if count.sum() > MOST_PIECES or count.sum() == before:
            continue
        before = int(count.sum())
        whole = _cut(asked, (source[sent], target[sent], share[sent]), count)
        ways = _ways(graph, whole)
        yield one_by_one(graph, ways, float(whole.shares().max()) * size_bytes, whole)
        yield by_hops(graph, ways, whole)


def _cut(asked: Contract, pairs: tuple[Index, Index, Array], count: Index) -> Contract:
    """The contract with a chunk for each piece."""
    source, target = (np.repeat(column, count) for column in pairs[:2])
    share: Array = np.repeat(pairs[2] / count, count)
    ids = np.arange(len(source))
    return Contract(
        collective=asked.collective,
        ranks=asked.ranks,
        chunks=len(ids),
        begins=np.stack([source, ids], axis=1),
        ends=np.stack([target, ids], axis=1),
        chunk_share=share,
    )


def _ways(graph: Graph, whole: Contract, seed: int = 0) -> Index:
    """(pieces, longest) links of each piece's way, -1 after the last."""
    assert whole.begins is not None
    assert whole.ends is not None
    source, target, size = whole.begins[:, 0], whole.ends[:, 0], whole.shares()
    at = np.full((graph.ranks, graph.ranks), -1, np.int64)
    at[graph.tail, graph.head] = np.arange(graph.links)
    cost = float(graph.bytes_per_s.max()) / graph.bytes_per_s
    load, found = np.zeros(graph.links), [np.zeros(0, np.int64)] * len(source)
    random = np.random.default_rng(seed)
    for _ in range(SWEEPS):
        for piece in random.permutation(len(source)):
            load[found[piece]] -= size[piece]
            full = (load + size[piece]) * cost
            weight = cost * np.exp(STEEP * full / full.max())
            last = dijkstra(weighted(graph, weight), indices=source[piece : piece + 1], return_predecessors=True)[1][0]
            found[piece] = links_back(at, last, int(target[piece]))
            load[found[piece]] += size[piece]
    ways = np.full((len(source), max(len(one) for one in found)), -1, np.int64)
    for piece, one in enumerate(found):
        ways[piece, : len(one)] = one
    return ways
