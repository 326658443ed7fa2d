"""Messages that share links, a round at a time: what crosses a link in a round takes the time of all its bytes.

    lasts   = latency + max over the links of its way of (bytes of the round on the link / rate)
    arrives = max(its chunks are there, its port is free) + lasts

Every message of a round is taken to meet all others of it. Of equal messages that begin together that gives the end of
the round exactly, since the fullest link is busy until then; a message elsewhere is late by what it would have gained
when others had ended. Rounds overlap only through what waits for what. Times are exact where no link is shared.
Each set of connections is looked at once, however many rounds repeat it: no moments, no rates to settle.

Messages on links that nobody shares: each has its rate, and times follow round by round, no moments needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from ridgeline.comm.contract import Ints
from ridgeline.comm.simulation.messages import Messages, number_keys, ranges
from ridgeline.comm.simulation.path_choice import Ways
from ridgeline.core.arrays import Array, Index, Mask

Method = Literal["exact", "windows", "rounds"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flows:
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
class Run:
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


def unshared_rates(flows: Flows) -> tuple[Mask, Array]:
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


def by_rounds(flows: Flows) -> Run | None:
    """Every message's arrival where no link is shared; None where one is.

    arrives = max(its chunks are there, its port is free) + latency + bytes / rate
    """
    is_alone, rate = unshared_rates(flows)
    if not is_alone.all():
        return None
    messages = flows.messages
    (port, connection), line = port_of(flows.messages, flows.out)
    lasts = messages.size_bytes / rate[messages.connection] + flows.delay_s[messages.connection]
    free = np.zeros(len(np.unique(port)))
    free[port] = flows.late_s[connection]
    begins = flows.start_s[messages.job[np.searchsorted(messages.first, messages.rounds[:-1])]]
    there, stamp = np.zeros(messages.places), np.full(len(free), -1)
    arrival_s = np.empty(len(messages))
    cuts = np.searchsorted(messages.first, messages.rounds)
    single = len(messages) == len(messages.read)
    for turn, ((low, high), (first, last)) in enumerate(zip(pairwise(messages.rounds), pairwise(cuts), strict=True)):
        round_ports = port[line[first:last]]
        stamp[round_ports] = np.arange(last - first)
        if (stamp[round_ports] != np.arange(last - first)).any():  # two at once on one port
            return None
        chunk_there_s = there[messages.read[low:high]]
        starts = messages.first[first:last] - low
        ready = np.maximum(free[round_ports], chunk_there_s if single else np.maximum.reduceat(chunk_there_s, starts))
        end = np.maximum(ready, begins[turn]) + lasts[first:last]
        arrival_s[first:last], free[round_ports] = end, end
        chunk_end_s = end if single else np.repeat(end, np.diff(np.append(starts, high - low)))
        np.maximum.at(there, messages.write[low:high], chunk_end_s)
    return Run(arrived_s=arrival_s, moments=len(cuts) - 1)


ALIKE = 1e-9  # relative difference of sizes and starts that counts as none


def jobs_in_step(flows: Flows) -> bool:
    """Whether all jobs go through their rounds together: one, or several of as many rounds, bytes and one start."""
    messages = flows.messages
    jobs = len(flows.start_s)
    if jobs == 1:
        return True
    size = np.bincount(messages.job, messages.size_bytes, jobs)
    rounds = np.zeros(jobs)
    np.maximum.at(rounds, messages.job, messages.round.astype(np.float64))
    return all(np.ptp(column) <= ALIKE * np.abs(column).max() for column in (size, rounds, flows.start_s))


def by_shared_rounds(flows: Flows) -> Run:
    """Every message's arrival, rounds of all jobs side by side."""
    messages = flows.messages
    (ports, connection), line = port_of(flows.messages, flows.out)
    port = ports[line]
    free = np.zeros(int(ports.max(initial=-1)) + 1)
    free[ports] = flows.late_s[connection] + float(flows.start_s[0])
    rounds = _Rounds(flows)
    if len(rounds.cuts) == 2:  # nothing that arrives is sent on
        return Run(arrived_s=free[port] + rounds.lasts(slice(None)), moments=1, method="rounds")
    order = rounds.order
    count, single = np.diff(messages.first), len(messages) == len(messages.read)
    there = np.zeros(messages.places)
    arrival_s = np.empty(len(messages))
    for low, high in pairwise(rounds.cuts.tolist()):
        rows = slice(low, high) if order is None else order[low:high]
        lasts = rounds.lasts(rows)
        parts = count[:0] if single else count[rows]
        at = rows if single else ranges(messages.first[:-1][rows], parts)
        chunk_there_s = there[messages.read[at]]
        ready = chunk_there_s if single else np.maximum.reduceat(chunk_there_s, np.cumsum(parts) - parts)
        round_ports = port[rows]
        end = np.maximum(free[round_ports], ready) + lasts
        arrival_s[rows] = end
        np.maximum.at(free, round_ports, end)
        np.maximum.at(there, messages.write[at], end if single else np.repeat(end, parts))
    return Run(arrived_s=arrival_s, moments=len(rounds.known), method="rounds")


class _Rounds:
    """Where rounds begin and end, and how long their messages last; a set of connections is looked at once.

    order   of messages by round, None where they stand so
    """

    def __init__(self, flows: Flows) -> None:
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
