"""Turn the name of a collective and its ranks into a contract: what each rank begins with and what it must end with.

A collective moves C chunks. A chunk begins as a contribution on some ranks and must end on some ranks as the sum of all
its contributions, each exactly once (a chunk that begins on one rank is only copied).

    allgather      a chunk begins on its owner, ends everywhere   reducescatter  begins everywhere, ends on its owner
    broadcast      begins on the root, ends everywhere            reduce         begins everywhere, ends on the root
    allreduce      begins and ends everywhere                     alltoall       begins on one rank, ends on another
    sendrecv       as alltoall, one pair                          dispatch       begins on one rank, ends on several
                                                                  combine        the reverse of dispatch

The owner of chunk c of C is rank c // (C / ranks). Sizes: `chunk_share` is a chunk's part of M, the collective's size.
M is the all-reduce vector, the all-gather output, the reduce-scatter input, and for all-to-all what one rank sends,
its own part included.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.arrays import Array, Index

Ints = NDArray[np.int32]
Collective = Literal[
    "allreduce",
    "allgather",
    "reducescatter",
    "broadcast",
    "reduce",
    "alltoall",
    "alltoallv",
    "sendrecv",
    "dispatch",
    "combine",
]
COLLECTIVES: tuple[str, ...] = get_args(Collective)
PLAIN_COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall")
"""Collectives whose chunks are equal."""
BUS = MappingProxyType({"allreduce": 2.0, "allgather": 1.0, "reducescatter": 1.0, "alltoall": 1.0, "alltoallv": 1.0})


def bus_factor(collective: str, ranks: int) -> float:
    """busbw over algbw, as nccl-tests counts: what a rank sends per byte of size.

    >>> bus_factor("allreduce", 8), bus_factor("broadcast", 8)
    (1.75, 1.0)
    """
    return BUS[collective] * (ranks - 1) / ranks if collective in BUS else 1.0


_COPIES: dict[Collective, Collective] = {"allgather": "reducescatter", "broadcast": "reduce", "dispatch": "combine"}
REVERSED = _COPIES | {sums: copies for copies, sums in _COPIES.items()}
"""What a collective becomes when every send is turned round and every copy becomes a sum."""


@dataclass(frozen=True, slots=True, eq=False)
class Contract:
    """Places (rank, chunk) that hold a contribution at first and those that must hold the whole chunk at last.

    begins, ends   (places, 2) arrays of rank and chunk; None: every rank, every chunk
    chunk_share    one number for all chunks, or one each: the chunk's part of the size M
    """

    collective: Collective
    ranks: int
    chunks: int
    begins: Index | None
    ends: Index | None
    chunk_share: Array

    @property
    def reduces(self) -> bool:
        """Whether contributions are added up, so that a copy alone could not do it."""
        return self.begins is None or self.collective in ("reduce", "reducescatter", "combine")

    @property
    def root(self) -> int:
        """The rank that a broadcast begins on or a reduce ends on; 0 of other collectives."""
        places = {"broadcast": self.begins, "reduce": self.ends}.get(self.collective)
        return int(places[0, 0]) if places is not None and len(places) else 0

    def begin_places(self) -> Index:
        """Places with a contribution, as rank * chunks + chunk."""
        return _flat(self.begins, self.ranks, self.chunks)

    def end_places(self) -> Index:
        """Places that must hold the whole chunk, as rank * chunks + chunk."""
        return _flat(self.ends, self.ranks, self.chunks)

    def shares(self) -> Array:
        """The part of M that each chunk is."""
        return np.broadcast_to(self.chunk_share, (self.chunks,))

    def reverse(self) -> Contract:
        """The contract of the reversed collective: what it ends with, this one begins with."""
        return replace(self, collective=REVERSED[self.collective], begins=self.ends, ends=self.begins)


def _flat(places: Index | None, ranks: int, chunks: int) -> Index:
    if places is None:
        return np.arange(ranks * chunks, dtype=np.int64)
    return places[:, 0] * chunks + places[:, 1]


def _pairs(ranks: Index, chunks: Index) -> Index:
    return np.stack([ranks, chunks], axis=1).astype(np.int64)


def contract(collective: Collective, ranks: int, chunks: int, root: int = 0) -> Contract:
    """The contract of a collective whose chunks are equal; of all-gather and reduce-scatter `ranks` divides `chunks`.

    >>> contract("allgather", 2, 4).begin_places().tolist(), contract("reduce", 2, 3, root=1).end_places().tolist()
    ([0, 1, 6, 7], [3, 4, 5])
    """
    ids = np.arange(chunks, dtype=np.int64)
    begins: Index | None = None
    ends: Index | None = None
    if collective in ("allgather", "reducescatter"):
        owned_places = _pairs(ids // (chunks // ranks), ids)
        begins, ends = (owned_places, None) if collective == "allgather" else (None, owned_places)
    elif collective in ("broadcast", "reduce"):
        owned_places = _pairs(np.full(chunks, root), ids)
        begins, ends = (owned_places, None) if collective == "broadcast" else (None, owned_places)
    elif collective == "alltoall":
        sent = chunks // ranks  # by each rank, in equal pieces
        begins, ends = _pairs(ids // sent, ids), _pairs(ids % sent // (sent // ranks), ids)
        return Contract(collective, ranks, chunks, begins, ends, np.full(1, 1.0 / sent))
    elif collective != "allreduce":
        raise ValueError(f"{collective} needs its pairs: exchange, point_to_point or dispatch makes it")
    return Contract(collective, ranks, chunks, begins, ends, np.full(1, 1.0 / chunks))


def exchange(sizes: Array) -> Contract:
    """All-to-all with a size for each pair (alltoallv): chunk i * ranks + j goes from rank i to rank j.

    `sizes` counts in units of M, the most that one rank sends.
    """
    ranks = len(sizes)
    ids = np.arange(ranks * ranks, dtype=np.int64)
    largest = float(sizes.sum(axis=1).max()) or 1.0
    begins, ends = _pairs(ids // ranks, ids), _pairs(ids % ranks, ids)
    return Contract("alltoallv", ranks, len(ids), begins, ends, np.asarray(sizes, float).ravel() / largest)


def point_to_point(ranks: int, sources: Index, targets: Index) -> Contract:
    """Pairs of ranks that each send M: chunk k goes from `sources[k]` to `targets[k]`."""
    ids = np.arange(len(sources), dtype=np.int64)
    return Contract("sendrecv", ranks, len(ids), _pairs(sources, ids), _pairs(targets, ids), np.ones(1))


def dispatch(sends: NDArray[np.bool_], per_rank: int) -> Contract:
    """MoE dispatch: chunk t of rank t // per_rank goes to every rank where `sends[t]` is true; M is a rank's part."""
    chunks, ranks = sends.shape
    ids = np.arange(chunks, dtype=np.int64)
    which, where = np.nonzero(sends)
    begins, ends = _pairs(ids // per_rank, ids), _pairs(where, which)
    return Contract("dispatch", ranks, chunks, begins, ends, np.full(1, 1.0 / per_rank))
