"""Turn algorithms into messages: what a rank sends to another in one round, and what must have come before.

Chunks of one round between the same two nodes on one channel travel together. A port is where a node sends from on one
channel: of ranks that are linked to each other one link, else all links of the node. It sends round after round;
messages of one round run beside each other. A message starts when its port is at its round and all its chunks are
there: every write of an earlier round to what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from ridgeline.comm.algorithm import Algorithm
from ridgeline.comm.contract import Ints
from ridgeline.comm.graph import number_keys, ranges
from ridgeline.comm.simulation.path_choice import Ways
from ridgeline.core.arrays import Array, Index, Mask


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


Method = Literal["exact", "windows", "rounds"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MessageFlows:
    """What is simulated: messages, the way and the delay of each connection, rates of links, when ports open.

    rates     of the graph's links and of what caps ranks; the last entry is infinite and stands for none
    delay_s   of each connection; `out` where it leaves its node, see `messages`
    start_s   of each job; `late_s` of each connection, after that
    """

    messages: Messages
    ways: Ways
    rates: Array
    delay_s: Array
    out: Index
    start_s: Array
    late_s: Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FluidRun:
    """When each message arrived, in the order of `Messages`, how many moments were looked at, and how.

    method   exact: at max-min rates from moment to moment, or where nothing is shared; windows: what ends within a part
             of a message's time is looked at together; rounds: by the bytes of a round on a link
    """

    arrived_s: Array
    moments: int
    method: Method = "exact"


def port_of(messages: Messages, out: Index) -> tuple[Index, Ints]:
    """The port of each job's connection, by job * connections + connection, and that number for each message."""
    connections, places = len(out), int(out.max(initial=-1)) + 1
    jobs = int(messages.job.max(initial=0)) + 1
    if jobs == 1:  # every connection is some message's
        used, line = np.arange(connections), messages.connection
    else:
        used, line = number_keys(messages.job * np.int64(connections) + messages.connection, connections * jobs)
    connection = used % connections
    key = (used // connections * 256 + messages.channels[connection]) * places + out[connection]
    _, port = number_keys(key, jobs * 256 * places)
    return np.stack([port, connection]), line


def unshared_rates(flows: MessageFlows) -> tuple[Mask, Array]:
    """Connections that share no link with another port's, and the rate each connection has by itself."""
    links, none = flows.ways.links, len(flows.rates) - 1
    link_rate, share = flows.rates[links], flows.ways.share
    if share is not None:
        link_rate = np.where(links == none, np.inf, link_rate / np.where(share > 0, share, 1.0))
    (port, connection), _ = port_of(flows.messages, flows.out)
    over = links[connection]
    wide = np.broadcast_to(port[:, None], over.shape)
    someone, shared = np.full(none + 1, -1), np.zeros(none + 1, np.bool_)
    someone[over] = wide
    shared[over[someone[over] != wide]] = True
    shared[none] = False
    is_alone: Mask = ~np.asarray(shared[links].any(axis=1))
    return is_alone, np.asarray(link_rate.min(axis=1), np.float64)


def by_rounds(flows: MessageFlows) -> FluidRun | None:
    """Every message's arrival where no link is shared; None where one is, or a port sends two at once.

    arrives = max(its chunks are there, its port is free) + latency + bytes / rate
    """
    is_alone, rate = unshared_rates(flows)
    if not is_alone.all():
        return None
    messages = flows.messages
    (ports, _), line = port_of(messages, flows.out)
    cuts = np.searchsorted(messages.first, messages.rounds)
    turn = np.repeat(np.arange(len(cuts) - 1), np.diff(cuts))
    if len(np.unique(turn * (int(ports.max()) + 1) + ports[line])) < len(messages):
        return None
    lasts = messages.size_bytes / rate[messages.connection] + flows.delay_s[messages.connection]
    rounds = [slice(first, last) for first, last in pairwise(cuts.tolist())]
    return FluidRun(arrived_s=_arrivals(flows, rounds, lambda rows: lasts[rows]), moments=len(rounds))


def _arrivals(flows: MessageFlows, rounds: Sequence[slice | Index], lasts: Callable[[slice | Index], Array]) -> Array:
    """When messages arrive whose rounds follow each other."""
    messages = flows.messages
    (ports, connection), line = port_of(messages, flows.out)
    port, free = ports[line], np.zeros(int(ports.max(initial=-1)) + 1)  # when each port begins
    free[port] = flows.start_s[messages.job]
    free[ports] += flows.late_s[connection]
    if len(rounds) == 1:  # nothing that arrives is sent on
        return np.asarray(free[port] + lasts(rounds[0]))
    count, single = np.diff(messages.first), len(messages) == len(messages.read)
    there, arrival_s = np.zeros(messages.places), np.empty(len(messages))
    for rows in rounds:
        parts = count[:0] if single else count[rows]
        at = rows if single else ranges(messages.first[:-1][rows], parts)
        chunk_there_s = there[messages.read[at]]
        ready = chunk_there_s if single else np.maximum.reduceat(chunk_there_s, np.cumsum(parts) - parts)
        end = np.maximum(free[port[rows]], ready) + lasts(rows)
        arrival_s[rows] = end
        np.maximum.at(free, port[rows], end)
        np.maximum.at(there, messages.write[at], end if single else np.repeat(end, parts))
    return arrival_s


ALIKE = 1e-9  # relative difference of sizes and starts that counts as none


def jobs_in_step(flows: MessageFlows) -> bool:
    """Whether all jobs go through their rounds together: one, or several of as many rounds, bytes and one start."""
    messages = flows.messages
    jobs = len(flows.start_s)
    if jobs == 1:
        return True
    size = np.bincount(messages.job, messages.size_bytes, jobs)
    rounds = np.zeros(jobs)
    np.maximum.at(rounds, messages.job, messages.round.astype(np.float64))
    return all(np.ptp(column) <= ALIKE * np.abs(column).max() for column in (size, rounds, flows.start_s))


def by_shared_rounds(flows: MessageFlows) -> FluidRun:
    """Every message's arrival, rounds of all jobs side by side."""
    rounds = _Rounds(flows)
    order, cuts = rounds.order, pairwise(rounds.cuts.tolist())
    rows = [slice(low, high) if order is None else order[low:high] for low, high in cuts]
    arrival_s = _arrivals(flows, rows, rounds.lasts)
    return FluidRun(arrived_s=arrival_s, moments=len(rounds.known), method="rounds")


class _Rounds:
    """Where rounds begin and end, and how long their messages last; a set of connections is looked at once.

    order   of messages by round, None where they stand so
    """

    def __init__(self, flows: MessageFlows) -> None:
        self.flows, messages = flows, flows.messages
        self.order = np.argsort(messages.round, kind="stable") if len(flows.start_s) > 1 else None
        turn = messages.round if self.order is None else messages.round[self.order]
        self.cuts: Index = np.append(np.flatnonzero(np.append(True, turn[1:] != turn[:-1])), len(turn))
        self.columns = np.ascontiguousarray(flows.ways.links.T)
        self.share = None if flows.ways.share is None else np.ascontiguousarray(flows.ways.share.T)
        self.known: dict[bytes, Array] = {}

    def lasts(self, rows: slice | Index) -> Array:
        """Seconds of each message of a round, all beside each other."""
        over, size = self.flows.messages.connection[rows], self.flows.messages.size_bytes[rows]
        key = over.tobytes() + size.tobytes()
        lasts_s = self.known.get(key)
        if lasts_s is None:
            lasts_s = self.known[key] = self._lasts(over, size)
        return lasts_s

    def _lasts(self, over: Index | Ints, size: Array) -> Array:
        links = [column[over] for column in self.columns]
        shares = [1.0] * len(links) if self.share is None else [column[over] for column in self.share]
        load = np.zeros(len(self.flows.rates))
        for link, share in zip(links, shares, strict=True):
            load += np.bincount(link, size * share, len(load))
        busy = load / self.flows.rates
        busy[-1] = 0.0  # stands for none
        slowest = np.zeros(len(size))
        for link, share in zip(links, shares, strict=True):
            np.maximum(slowest, np.where(np.asarray(share) > 0, busy[link], 0.0), out=slowest)
        return slowest + self.flows.delay_s[over]
