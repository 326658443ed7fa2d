"""All-gather on any graph of direct links, event by event in a compiled core: `arrivals` at links' own times.

A link that is free takes, of the first chunks of its sender that its rank lacks, the one that fewest ranks have. It
takes none that would come later than all could be there: a slow link leaves its last chunks to quicker ones. Rounds
keep to what a step needs, so that links of a hundred rates make no more of them than equal ones.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.comm.algorithm import Algorithm, Steps
from ridgeline.comm.bounds import chunked_bound, lower_bound
from ridgeline.comm.contract import Ints, contract
from ridgeline.comm.graph import Graph
from ridgeline.comm.simulation.compiled import library
from ridgeline.comm.synthesis.matching import SYNTHESIZED

SOURCES = Path(__file__).parent / "native"


class EventGather:
    """The search of one graph, number of chunks and size; `made` runs it once for a seed."""

    def __init__(self, graph: Graph, per_rank: int, size_bytes: float) -> None:
        self.graph, self.per_rank, n = graph, per_rank, graph.ranks
        chunks = n * per_rank
        self.tail, self.head = graph.tail.astype(np.int32), graph.head.astype(np.int32)
        self.out = np.argsort(self.tail, kind="stable").astype(np.int32)
        self.first_out = np.concatenate([[0], np.cumsum(np.bincount(self.tail, minlength=n))]).astype(np.int32)
        self.seconds = np.ascontiguousarray(size_bytes / chunks / graph.bytes_per_s + graph.latency_s)
        least = lower_bound(graph, "allgather", size_bytes).seconds
        self.bound = max(chunked_bound(graph, "allgather", size_bytes, chunks), least)

    def made(self, seed: int, width: int, slack: float = 1.0) -> tuple[Algorithm, float]:
        """An all-gather and its seconds: of `width` chunks one is taken, and all are due by `slack` times the bound.

        Only where `offered` is true.
        """
        core, n, chunks = _core(), self.graph.ranks, self.graph.ranks * self.per_rank
        assert core is not None
        count = n * (chunks - self.per_rank)
        source, target, chunk, round = (np.empty(count, np.int32) for _ in range(4))
        took = ctypes.c_double()
        given = (self.tail, self.head, self.first_out, self.out, self.seconds)
        made = core.gather(
            *(ctypes.c_int32(value) for value in (n, self.graph.links, self.per_rank, width)),
            *(_pointer(one) for one in given),
            ctypes.c_double(self.bound * slack),
            ctypes.c_uint64(seed + 1),
            *(_pointer(one) for one in (source, target, chunk, round)),
            ctypes.byref(took),
        )
        if made != count:
            raise MemoryError(f"an all-gather of {count} steps")
        steps = _in_rounds(source, target, chunk, round)
        shape = contract("allgather", n, chunks)
        return Algorithm(name=SYNTHESIZED, contract=shape, nodes=n, steps=steps), took.value


def offered() -> bool:
    """Whether there is a core: a compiler, or what it built before."""
    return _core() is not None


def _core() -> ctypes.CDLL | None:
    found = library(SOURCES, "gather")
    if found is not None:
        found.gather.restype = ctypes.c_int64
    return found


def _pointer(values: np.ndarray[Any, Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.ctypes.data)


def _in_rounds(source: Ints, target: Ints, chunk: Ints, round: Ints) -> Steps:
    if (round[1:] < round[:-1]).any():
        order = np.argsort(round, kind="stable")
        source, target, chunk, round = source[order], target[order], chunk[order], round[order]
    none = np.zeros(len(round), np.int8)
    return Steps(round=round, source=source, target=target, chunk=chunk, op=none, channel=none)
