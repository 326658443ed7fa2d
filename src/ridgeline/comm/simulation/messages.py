"""Turn algorithms into messages: what a rank sends to another in one round, and what must have come before.

Chunks of one round between the same two nodes on one channel travel together. A port is where a node sends from on one
channel: of ranks that are linked to each other one link, else all links of the node. It sends round after round;
messages of one round run beside each other. A message starts when its port is at its round and all its chunks are
there: every write of an earlier round to what it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ridgeline.comm.algorithm import Algorithm
from ridgeline.comm.contract import Ints
from ridgeline.core.arrays import Array, Index

DENSE = 1 << 26  # keys that are numbered by a table, not by sorting


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """A collective that runs: its algorithm, its size M, the node of each of its ranks, and when it begins."""

    algorithm: Algorithm
    size_bytes: float
    ranks: Index | None = None
    start_s: float = 0.0

    @property
    def name(self) -> str:
        return self.algorithm.contract.collective


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Messages:
    """Messages of all jobs as columns, by job and round; their chunks as rows of `read` and `write`.

    connection   number in `sources`, `targets`, `channels`
    first        where the chunks of each message begin, and the end of the last
    read, write  places (node, chunk) that a chunk leaves and reaches
    rounds       where the rounds of each job begin, rows of `read`, and the end of the last
    relayed      whether some chunk is sent twice, so that messages may wait for others
    """

    job: Ints
    round: Ints
    connection: Ints
    size_bytes: Array
    first: Index
    read: Index | Ints
    write: Index | Ints
    rounds: Index
    places: int
    sources: Index
    targets: Index
    channels: Index
    relayed: bool = True

    def __len__(self) -> int:
        return len(self.round)


def messages_of(jobs: Sequence[Job], nodes: int) -> Messages:
    """The messages of all jobs on a graph of that many nodes."""
    parts, places, steps = [], 0, 0
    channels = 1 + max((int(job.algorithm.steps.channel.max(initial=0)) for job in jobs), default=0)
    for number, job in enumerate(jobs):
        parts.append(_of_job(job, (number, places, steps), nodes, channels))
        places += job.algorithm.nodes * job.algorithm.contract.chunks
        steps += len(job.algorithm.steps)
    columns = [np.concatenate(column) if len(parts) > 1 else column[0] for column in zip(*parts, strict=True)]
    job_, round_, key, size, first, read, write, rounds = columns
    connection_keys, connection = number_keys(key, nodes * nodes * channels)
    return Messages(
        job=job_,
        round=round_,
        connection=connection,
        size_bytes=size,
        first=np.append(first, steps),
        read=read,
        write=write,
        rounds=np.append(rounds, steps),
        places=places,
        sources=connection_keys // channels // nodes,
        targets=connection_keys // channels % nodes,
        channels=connection_keys % channels,
        relayed=any(_relays(job.algorithm) for job in jobs),
    )


def _relays(algorithm: Algorithm) -> bool:
    """Whether some chunk is sent twice."""
    chunk = algorithm.steps.chunk
    if len(chunk) > algorithm.contract.chunks:
        return True
    is_received = np.zeros(algorithm.contract.chunks, np.bool_)
    is_received[chunk] = True
    return int(is_received.sum()) < len(chunk)


def _of_job(job: Job, before: tuple[int, int, int], nodes: int, channels: int) -> tuple[np.ndarray, ...]:
    """Columns of one job after so many jobs, places and steps."""
    number, places, rows = before
    steps, contract = job.algorithm.steps, job.algorithm.contract
    wide = np.int32 if places + job.algorithm.nodes * contract.chunks < 2**31 else np.int64
    read, write = (at * wide(contract.chunks) + steps.chunk for at in (steps.source, steps.target))
    new = np.zeros(len(steps), np.bool_)
    new[:1] = True
    for column in (steps.round, steps.source, steps.target, steps.channel):
        new[1:] |= column[1:] != column[:-1]
    first = np.flatnonzero(new)
    node = np.arange(job.algorithm.nodes) if job.ranks is None else job.ranks
    key = (node[steps.source[first]] * nodes + node[steps.target[first]]) * channels + steps.channel[first]
    share = contract.chunk_share * job.size_bytes
    if len(share) == 1:
        size = np.diff(np.append(first, len(steps))) * share[0]
    else:
        size = np.add.reduceat(share[steps.chunk], first) if len(first) else np.zeros(0)
    job_number = np.full(len(first), number, np.int32)
    if places:
        read, write = read + wide(places), write + wide(places)
    return job_number, steps.round[first], key, size, first + rows, read, write, steps.starts()[:-1] + rows


def needed_writes(messages: Messages) -> Ints:
    """How many writes of earlier rounds come to the place that each chunk is read from."""
    count = np.zeros(messages.places, np.int32)
    writes = np.empty(len(messages.read), np.int32)
    for low, high in pairwise(messages.rounds.tolist()):
        writes[low:high] = count[messages.read[low:high]]
        np.add.at(count, messages.write[low:high], np.int32(1))
    return writes


def number_keys(keys: Index, limit: int) -> tuple[Index, Ints]:
    """The distinct keys in order, and the number of each entry's; by a table where that is small."""
    if limit > DENSE or not len(keys):
        distinct_keys, number = np.unique(keys, return_inverse=True)
        return distinct_keys.astype(np.int64), number.astype(np.int32)
    is_used = np.zeros(limit, np.bool_)
    is_used[keys] = True
    distinct_keys = np.flatnonzero(is_used)
    table = np.zeros(limit, np.int32)
    table[distinct_keys] = np.arange(len(distinct_keys), dtype=np.int32)
    return distinct_keys, table[keys]


def ranges(low: Index, count: Index) -> Index:
    """low[0], low[0] + 1, ... count[0] of them, then those of the next."""
    if (count == 1).all():
        return low
    ends = np.cumsum(count)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(low - (ends - count), count) + np.arange(total)
