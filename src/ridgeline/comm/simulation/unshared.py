"""Messages on links that nobody shares: each has its rate, and times follow round by round, no moments needed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from ridgeline.comm.contract import Ints
from ridgeline.comm.simulation.messages import Messages, numbered
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
        used, line = numbered(messages.job * np.int64(connections) + messages.connection, connections * jobs)
    connection = used % connections
    key = (used // connections * 256 + messages.channels[connection]) * places + out[connection]
    _, port = numbered(key, jobs * 256 * places)
    return np.stack([port, connection]), line


def unshared(flows: Flows) -> tuple[Mask, Array]:
    """Connections that share no link with another port's, and the rate each connection has by itself."""
    links, none = flows.ways.links, len(flows.rates) - 1
    own, share = flows.rates[links], flows.ways.share
    if share is not None:
        own = np.where(links == none, np.inf, own / np.where(share > 0, share, 1.0))
    (port, connection), _ = port_of(flows.messages, flows.out)
    over = links[connection]
    wide = np.broadcast_to(port[:, None], over.shape)
    someone, shared = np.full(none + 1, -1), np.zeros(none + 1, np.bool_)
    someone[over] = wide
    shared[over[someone[over] != wide]] = True
    shared[none] = False
    alone: Mask = ~np.asarray(shared[links].any(axis=1))
    return alone, np.asarray(own.min(axis=1), np.float64)


def senders_meet(flows: Flows) -> bool:
    """Whether connections that leave by different ports share a link: then it needs no look at jobs and channels."""
    links, none = flows.ways.links, len(flows.rates) - 1
    sender = np.broadcast_to(flows.out[:, None], links.shape)
    someone = np.full(none + 1, -1)
    someone[links] = sender
    return bool(((someone[links] != sender) & (links < none)).any())


def by_rounds(flows: Flows) -> Run | None:
    """Every message's arrival where no link is shared; None where one is.

    arrives = max(its chunks are there, its port is free) + latency + bytes / rate
    """
    alone, rate = unshared(flows)
    if not alone.all():
        return None
    messages = flows.messages
    (port, connection), line = port_of(flows.messages, flows.out)
    lasts = messages.size_bytes / rate[messages.connection] + flows.delay_s[messages.connection]
    free = np.zeros(len(np.unique(port)))
    free[port] = flows.late_s[connection]
    begins = flows.start_s[messages.job[np.searchsorted(messages.first, messages.rounds[:-1])]]
    there, stamp = np.zeros(messages.places), np.full(len(free), -1)
    arrived = np.empty(len(messages))
    cuts = np.searchsorted(messages.first, messages.rounds)
    single = len(messages) == len(messages.read)
    for turn, ((low, high), (first, last)) in enumerate(zip(pairwise(messages.rounds), pairwise(cuts), strict=True)):
        mine = port[line[first:last]]
        stamp[mine] = np.arange(last - first)
        if (stamp[mine] != np.arange(last - first)).any():  # two at once on one port
            return None
        held = there[messages.read[low:high]]
        starts = messages.first[first:last] - low
        ready = np.maximum(free[mine], held if single else np.maximum.reduceat(held, starts))
        end = np.maximum(ready, begins[turn]) + lasts[first:last]
        arrived[first:last], free[mine] = end, end
        spread = end if single else np.repeat(end, np.diff(np.append(starts, high - low)))
        np.maximum.at(there, messages.write[low:high], spread)
    return Run(arrived_s=arrived, moments=len(cuts) - 1)
