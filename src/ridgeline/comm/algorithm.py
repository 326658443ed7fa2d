"""A collective algorithm as a value: which rank sends which chunk to whom in which round, to be copied or added there.

A step is one chunk's way from one node to another: a send on one side, and on the other a receive that stores (`COPY`)
or adds (`REDUCE`). Steps are columns, so that a million of them is cheap. What a step depends on follows from its
round: it sends what its source holds when all earlier rounds are done. A channel is a connection of its own between two
ranks, in order. Nodes from `ranks` on are switches that add up or copy what passes through them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.comm.contract import Collective, Contract, Ints, contract
from ridgeline.comm.graph import Graph
from ridgeline.core.arrays import Index

COPY, REDUCE = 0, 1
STEP_COLUMNS = ("round", "source", "target", "chunk", "op", "channel")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """Columns of one length, ordered by round: round, sending node, receiving node, chunk, COPY or REDUCE, channel."""

    round: Ints
    source: Ints
    target: Ints
    chunk: Ints
    op: NDArray[np.int8]
    channel: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.round)

    @property
    def adds(self) -> NDArray[np.bool_]:
        """Whether the receiver adds what comes; else it stores it."""
        mask: NDArray[np.bool_] = self.op == REDUCE
        return mask

    def take(self, rows: Index | NDArray[np.bool_]) -> Steps:
        """Some of the steps, in the order asked for."""
        return Steps(**{name: getattr(self, name)[rows] for name in STEP_COLUMNS})

    def starts(self) -> Index:
        """Where each round with steps begins, and the end of the last: row numbers."""
        first = np.flatnonzero(self.round[1:] != self.round[:-1]) + 1
        return np.concatenate([[0], first, [len(self)]]).astype(np.int64) if len(self) else np.zeros(1, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Algorithm:
    """Steps that are to fulfil a contract; `nodes` counts ranks and the switches that take part."""

    name: str
    contract: Contract
    nodes: int
    steps: Steps

    @property
    def ranks(self) -> int:
        return self.contract.ranks

    @property
    def step_count(self) -> int:
        return len(self.steps)

    @property
    def rounds(self) -> int:
        return int(self.steps.round[-1]) + 1 if len(self.steps) else 0


def algorithm_of(
    name: str, collective: Collective, ranks: int, chunks: int, steps: Steps, *, root: int = 0
) -> Algorithm:
    """An algorithm of ranks alone for a collective of equal chunks."""
    return Algorithm(name=name, contract=contract(collective, ranks, chunks, root), nodes=ranks, steps=steps)


def no_floor(_size_bytes: float) -> float:
    """Nothing is known."""
    return 0.0


class CollectiveTask(NamedTuple):
    """A collective of all ranks of a graph; broadcasts and reduces have a root."""

    graph: Graph
    collective: Collective
    root: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An algorithm that could run: its name, how many steps it has, how it is made, and what it cannot beat.

    floor   a lower bound of its seconds for a size; 0 where nothing is known without making it
    quick   the same, sooner known and lower
    exact   the floor is its time
    """

    name: str
    steps: int
    make: Callable[[], Algorithm]
    floor: Callable[[float], float] = no_floor
    quick: Callable[[float], float] = no_floor
    exact: bool = False


def finished_candidate(algorithm: Algorithm) -> Candidate:
    """An algorithm that is made already."""
    return Candidate(name=algorithm.name, steps=len(algorithm.steps), make=lambda: algorithm)


def steps_of(
    round: Index | Ints,
    source: Index | Ints,
    target: Index | Ints,
    chunk: Index | Ints,
    op: int | NDArray[np.int8] = COPY,
    channel: int | NDArray[np.int8] = 0,
) -> Steps:
    """Columns of steps from any integers, sorted by round."""
    order = slice(None) if np.all(round[1:] >= round[:-1]) else _by_round(round)
    size = len(round)
    return Steps(
        round=np.ascontiguousarray(round[order], np.int32),
        source=np.ascontiguousarray(source[order], np.int32),
        target=np.ascontiguousarray(target[order], np.int32),
        chunk=np.ascontiguousarray(chunk[order], np.int32),
        op=np.ascontiguousarray(np.broadcast_to(np.asarray(op, np.int8), (size,))[order]),
        channel=np.ascontiguousarray(np.broadcast_to(np.asarray(channel, np.int8), (size,))[order]),
    )


def copies_of(round: Ints, source: Ints, target: Ints, chunk: Ints) -> Steps:
    """Steps that copy, by round already, on one channel."""
    none = np.zeros(len(round), np.int8)
    return Steps(round=round, source=source, target=target, chunk=chunk, op=none, channel=none)


def _by_round(round: Index | Ints) -> Index:
    """Rows by round, rows of one round as they stand; numbers of 16 bits are dealt to places instead of compared."""
    few = int(round.min()) >= 0 and int(round.max()) < 1 << 15
    return np.argsort(round.astype(np.int16) if few else round, kind="stable")


def merge_steps(parts: Sequence[Steps]) -> Steps:
    """All steps of several tables, by round."""
    return steps_of(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in STEP_COLUMNS})


def reversed_algorithm(algorithm: Algorithm, name: str = "") -> Algorithm:
    """The reversed algorithm: last round first, receivers send, and copies become sums.

    An all-gather becomes the reduce-scatter of the same time, a broadcast a reduce, MoE dispatch its combine.
    """
    steps = algorithm.steps
    back = steps_of(
        (algorithm.rounds - 1 - steps.round)[::-1],
        steps.target[::-1],
        steps.source[::-1],
        steps.chunk[::-1],
        (REDUCE - steps.op)[::-1].astype(np.int8),
        steps.channel[::-1],
    )
    return replace(algorithm, name=name or algorithm.name, contract=algorithm.contract.reverse(), steps=back)


def reduce_then_gather(gather: Algorithm) -> Algorithm:
    """The all-reduce whose halves are the reverse of an all-gather and the all-gather."""
    steps, size, rounds = gather.steps, len(gather.steps), gather.rounds

    def concatenated_columns(back: NDArray[np.int32], forth: NDArray[np.int32]) -> Ints:
        column = np.empty(2 * size, np.int32)
        column[:size], column[size:] = back[::-1], forth
        return column

    op = np.zeros(2 * size, np.int8)
    op[:size] = REDUCE
    steps_both_ways = Steps(
        round=concatenated_columns(np.int32(rounds - 1) - steps.round, steps.round + np.int32(rounds)),
        source=concatenated_columns(steps.target, steps.source),
        target=concatenated_columns(steps.source, steps.target),
        chunk=concatenated_columns(steps.chunk, steps.chunk),
        op=op,
        channel=np.concatenate([steps.channel[::-1], steps.channel]),
    )
    outcome = contract("allreduce", gather.ranks, gather.contract.chunks)
    return replace(gather, contract=outcome, steps=steps_both_ways)


def parallel_gathers(parts: Sequence[Algorithm], name: str) -> Algorithm:
    """All-gathers of one chunk a rank at once, each with its part of the data and a channel of its own."""
    renumbered_steps = [
        replace(
            part.steps,
            chunk=part.steps.chunk * np.int32(len(parts)) + np.int32(index),
            channel=np.full(len(part.steps), index, np.int8),
        )
        for index, part in enumerate(parts)
    ]
    n = parts[0].ranks
    return algorithm_of(name, "allgather", n, n * len(parts), merge_steps(renumbered_steps))
