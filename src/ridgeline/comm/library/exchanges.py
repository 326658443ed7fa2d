"""All-to-all, point to point, and the exchanges of mixture-of-experts layers.

pairwise     n - 1 rounds, in round t rank i sends to i + t        all-pairs   the same in one round
bruck        ceil(log2 n) rounds, a chunk moves by the bits of its distance
forwarded    inside the domain to the chip of the target's rail, then along the rail: one message a domain
             dispatch: along the rail to every domain that has an expert of the token, then inside it
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline.comm.algorithm import Algorithm, merge_steps, steps_of
from ridgeline.comm.contract import Contract, contract, dispatch, exchange, point_to_point
from ridgeline.core.arrays import Array, Index


def pairwise(n: int, made: Contract | None = None, *, at_once: bool = False) -> Algorithm:
    """All-to-all, every chunk straight to its target; `at_once`: all in one round."""
    t, i = (part.ravel() for part in np.indices((n - 1, n)))
    j = (i + t + 1) % n
    rounds = np.zeros_like(t) if at_once else t
    name = "all-pairs" if at_once else "pairwise"
    outcome = made or contract("alltoall", n, n * n)
    return Algorithm(name=name, contract=outcome, nodes=n, steps=steps_of(rounds, i, j, i * n + j))


def alltoallv(sizes: Array, *, at_once: bool = False) -> Algorithm:
    """All-to-all of unequal sizes: `sizes[i][j]` from rank i to rank j; nothing is sent where it is 0."""
    outcome = exchange(sizes)
    full = pairwise(len(sizes), outcome, at_once=at_once)
    sent = full.steps.take(np.flatnonzero(outcome.chunk_share[full.steps.chunk] > 0))
    nonzero_contract = Contract(
        collective="alltoallv",
        ranks=outcome.ranks,
        chunks=outcome.chunks,
        begins=outcome.begins,
        ends=outcome.ends[outcome.chunk_share > 0] if outcome.ends is not None else None,
        chunk_share=outcome.chunk_share,
    )
    return Algorithm(name=full.name, contract=nonzero_contract, nodes=full.nodes, steps=sent)


def bruck_alltoall(n: int) -> Algorithm:
    """Bruck: in round s every chunk whose distance has bit s moves on by 2**s."""
    i, j = (part.ravel() for part in np.indices((n, n)))
    distance = (j - i) % n
    parts = []
    for step in range((n - 1).bit_length()):
        moves = np.flatnonzero(distance >> step & 1)
        here = (i + (distance & ((1 << step) - 1))) % n
        parts.append(
            steps_of(np.full(len(moves), step), here[moves], ((here + (1 << step)) % n)[moves], (i * n + j)[moves])
        )
    return Algorithm(name="bruck", contract=contract("alltoall", n, n * n), nodes=n, steps=merge_steps(parts))


def forwarded_alltoall(n: int, domain: int) -> Algorithm:
    """Two-level all-to-all: to the chip of one's own domain on the target's rail, then to the target's domain."""
    i, j = (part.ravel() for part in np.indices((n, n)))
    chunk = i * n + j
    relay = i // domain * domain + j % domain
    first = relay != i
    second = relay != j
    parts = [
        steps_of(np.zeros(int(first.sum()), np.int64), i[first], relay[first], chunk[first]),
        steps_of(np.ones(int(second.sum()), np.int64), relay[second], j[second], chunk[second]),
    ]
    return Algorithm(name="forwarded", contract=contract("alltoall", n, n * n), nodes=n, steps=merge_steps(parts))


def sends(n: int, sources: Index, targets: Index) -> Algorithm:
    """Pairs that send at once: a permutation, an incast."""
    ids = np.arange(len(sources), dtype=np.int64)
    steps = steps_of(np.zeros_like(ids), sources, targets, ids)
    return Algorithm(name="direct", contract=point_to_point(n, sources, targets), nodes=n, steps=steps)


def moe_dispatch(experts: NDArray[np.int64], ranks: int, experts_per_rank: int, *, at_once: bool = False) -> Algorithm:
    """MoE dispatch: token t of `experts` (tokens, top_k) goes once to every rank that holds one of its experts.

    Tokens are dealt to ranks in equal shares. Reversed it is the combine, which adds up what the experts made of a
    token: see `algorithm.reversed_algorithm`.
    """
    outcome, token, source, target = _dispatch_routes(experts, ranks, experts_per_rank)
    distance = (target - source) % ranks
    steps = steps_of(distance * 0 if at_once else distance - 1, source, target, token)
    name = "all-pairs" if at_once else "pairwise"
    return Algorithm(name=name, contract=outcome, nodes=ranks, steps=steps)


def forwarded_dispatch(experts: NDArray[np.int64], ranks: int, experts_per_rank: int, domain: int) -> Algorithm:
    """MoE dispatch as DeepEP's normal kernels do it: a token leaves once for every other domain, on its own rail.

    There the rank of that rail hands it on to those that hold its experts.
    """
    outcome, token, source, target = _dispatch_routes(experts, ranks, experts_per_rank)
    relay = np.where(source // domain == target // domain, source, target // domain * domain + source % domain)
    out = np.flatnonzero(relay != source)
    leaving = np.unique(token[out] * ranks + relay[out])
    onward = relay != target
    rounds = np.where(relay == source, 0, 1)[onward]
    sender = leaving // ranks // (len(experts) // ranks)
    steps = steps_of(
        np.concatenate([np.zeros_like(leaving), rounds]),
        np.concatenate([sender, relay[onward]]),
        np.concatenate([leaving % ranks, target[onward]]),
        np.concatenate([leaving // ranks, token[onward]]),
    )
    return Algorithm(name="forwarded", contract=outcome, nodes=ranks, steps=steps)


def _dispatch_routes(
    experts: NDArray[np.int64], ranks: int, experts_per_rank: int
) -> tuple[Contract, Index, Index, Index]:
    """The contract, and each token that leaves its rank with where it is and where it must go."""
    tokens = len(experts)
    sends = np.zeros((tokens, ranks), np.bool_)
    sends[np.arange(tokens)[:, None], experts // experts_per_rank] = True
    outcome = dispatch(sends, tokens // ranks)
    token, target = np.nonzero(sends)
    source = token // (tokens // ranks)
    leaves = source != target
    return outcome, token[leaves], source[leaves], target[leaves]
