"""Messages as flows that share links fairly, from one moment at which something ends to the next.

    a message    waits for its port's round and its chunks, flows at its max-min rate, arrives a latency later
    a port       goes on to its next round when all messages of this one have arrived

Every message keeps its own times. What ends within a window of the first, a share of how long messages take, is looked
at together: rates of what shares a link change at the end of a window, so that a late start and a late end are off by
less than a window and cancel on the mean. Where nothing is shared the window does not matter, times are exact, and a
round takes latency + bytes / rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.comm.simulation.max_min import max_min
from ridgeline.comm.simulation.messages import Messages
from ridgeline.comm.simulation.path_choice import Ways
from ridgeline.comm.simulation.ports import Ports, ranges
from ridgeline.core.arrays import Array, Index, Mask

WINDOW = 0.05  # of the time that messages take
WIDE = 0.5  # the same where no link is shared
REMEMBERED = 512  # sets of flows whose rates are kept


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
    """When each message arrived, in the order of `Messages`, and how many moments were looked at."""

    arrived_s: Array
    moments: int


def run(flows: Flows, window: float = WINDOW) -> Run:
    """Simulate to the end."""
    if not len(flows.messages):
        return Run(arrived_s=np.zeros(0), moments=0)
    return _Fluid(flows, window).run()


class _Fluid:
    """The state at a moment; rows are messages in the order of ports."""

    def __init__(self, flows: Flows, window: float) -> None:
        self.ports, self.flows = Ports(flows.messages, flows.out), flows
        messages, order = flows.messages, self.ports.order
        self.connection = messages.connection[order]
        self.size = messages.size_bytes[order]
        self.single = len(messages) == len(messages.read)  # one chunk a message
        self.first = order if self.single else messages.first[:-1][order]
        self.chunks = order[:0] if self.single else np.diff(messages.first)[order]
        self.come, self.there = np.zeros(messages.places, np.int32), np.zeros(messages.places)
        self.waiting = np.zeros(0, np.int64)
        self.flowing, self.left, self.rate = np.zeros(0, np.int64), np.zeros(0), np.zeros(0)
        self.coming, self.due = np.zeros(0, np.int64), np.zeros(0)
        self.arrived_s = np.zeros(len(messages))
        self.share = None if flows.ways.single else flows.ways.share
        self.alone, self.own_rate = _alone(flows, self.ports)
        self.window = WIDE if self.alone.all() else window
        self.known: dict[bytes, Array] = {}
        self.moments, self.now = 0, 0.0

    def run(self) -> Run:
        begun = self.ports.order[self.ports.first]
        opens = self.flows.start_s[self.flows.messages.job[begun]]
        opens = opens + self.flows.late_s[self.flows.messages.connection[begun]]
        self.ports.free[:] = opens
        later = np.argsort(opens, kind="stable")
        times = opens[later]
        while True:
            due = int(np.searchsorted(times, self.now, side="right"))
            if due:
                self._wait_for(self.ports.opened(later[:due]))
                later, times = later[due:], times[due:]
            self._start()
            if not self._advance(float(times[0]) if len(times) else np.inf):
                break
            self.moments += 1
        if len(self.waiting):
            raise ValueError(f"{len(self.waiting)} messages wait for chunks that never come")
        whole = np.empty(len(self.arrived_s))
        whole[self.ports.order] = self.arrived_s
        return Run(arrived_s=whole, moments=self.moments)

    def _wait_for(self, rows: Index) -> None:
        self.waiting = np.concatenate([self.waiting, rows]) if len(self.waiting) else rows

    def _start(self) -> None:
        """Let everything flow that waits for nothing any more, from the time on at which that was so."""
        if not len(self.waiting):
            return
        ready, since = self._ready(self.waiting)
        if ready.all():
            started, self.waiting = self.waiting, self.waiting[:0]
        elif ready.any():
            started, since, self.waiting = self.waiting[ready], since[ready], self.waiting[~ready]
        else:
            return
        before = len(self.flowing)
        self.flowing = np.concatenate([self.flowing, started]) if before else started
        self._share()
        begun = self.size[started] - self.rate[before:] * (self.now - since)
        self.left = np.concatenate([self.left, begun]) if before else begun

    def _ready(self, rows: Index) -> tuple[Mask, Array]:
        """Which messages have all their chunks at an open port, and since when."""
        read, needed = self.flows.messages.read, self.flows.messages.needed
        free = self.ports.free[self.ports.port[rows]]
        if self.single:
            at = self.first[rows]
            place = read[at]
            return self.come[place] >= needed[at], np.maximum(free, self.there[place])
        count = self.chunks[rows]
        at, starts = ranges(self.first[rows], count), np.cumsum(count) - count
        place = read[at]
        lacks = np.logical_or.reduceat(self.come[place] < needed[at], starts)
        return ~lacks, np.maximum(free, np.maximum.reduceat(self.there[place], starts))

    def _share(self) -> None:
        """The rates of all that flows; a set of connections seen before keeps its rates."""
        over = self.connection[self.flowing]
        if self.alone.all():
            self.rate = self.own_rate[over]
        else:
            key = over.tobytes()
            known = self.known.get(key)
            if known is None:
                known = self._fair(over)
                if len(self.known) < REMEMBERED:
                    self.known[key] = known
            self.rate = known
        self.pace = self.rate / self.size[self.flowing]

    def _fair(self, over: Index) -> Array:
        links = self.flows.ways.links
        met = np.flatnonzero(~self.alone[over])
        if len(met) == len(over):
            return max_min(links[over], None if self.share is None else self.share[over], self.flows.rates)
        rate = self.own_rate[over]
        if len(met):
            row = over[met]
            rate[met] = max_min(links[row], None if self.share is None else self.share[row], self.flows.rates)
        return rate

    def _advance(self, opens: float) -> bool:
        """Go on to the end of the window of what ends next; False when nothing is under way."""
        flowing, coming = len(self.flowing) > 0, len(self.due) > 0
        if not (flowing or coming or opens < np.inf):
            return False
        soon = opens
        if flowing:
            ends = self.now + self.left / self.rate
            soon = min(soon, float(ends.min()))
        if coming:
            soon = min(soon, float(self.due.min()))
        wide = self.window / float(self.pace.mean()) if flowing else 0.0
        if flowing:
            self._flowed(ends, max(self.now, min(soon + wide, opens)))
        else:
            self.now = max(self.now, soon)
        if len(self.due):
            self._arrive(self.now if len(self.flowing) else max(self.now, min(opens, float(self.due.min()) + wide)))
        return True

    def _flowed(self, ends: Array, until: float) -> None:
        """Take out what has flowed by then; it arrives its delay later."""
        over = ends <= until
        if over.all():
            self._come(self.flowing, ends)
            self.flowing, self.left = self.flowing[:0], self.left[:0]
            self.now = max(self.now, float(ends.max()))
            return
        self.left = self.left - self.rate * (until - self.now)
        self.now = until
        if over.any():
            self._come(self.flowing[over], ends[over])
            stay = ~over
            self.flowing, self.left = self.flowing[stay], self.left[stay]
            self._share()

    def _come(self, rows: Index, ends: Array) -> None:
        due = ends + self.flows.delay_s[self.connection[rows]]
        if len(self.coming):
            rows, due = np.concatenate([self.coming, rows]), np.concatenate([self.due, due])
        self.coming, self.due = rows, due

    def _arrive(self, until: float) -> None:
        """Hand over what is due by then: chunks to their places, ports to their next round."""
        self.now = max(self.now, until)
        near = self.due <= until
        if near.all():
            rows, due = self.coming, self.due
            self.coming, self.due = rows[:0], due[:0]
        elif near.any():
            late = ~near
            rows, due = self.coming[near], self.due[near]
            self.coming, self.due = self.coming[late], self.due[late]
        else:
            return
        self.arrived_s[rows] = due
        if self.single:
            place, when = self.flows.messages.write[self.first[rows]], due
        else:
            place = self.flows.messages.write[ranges(self.first[rows], self.chunks[rows])]
            when = np.repeat(due, self.chunks[rows])
        np.add.at(self.come, place, np.int32(1))
        np.maximum.at(self.there, place, when)
        self._wait_for(self.ports.opened(self.ports.arrived(rows, due)))


def _alone(flows: Flows, ports: Ports) -> tuple[Mask, Array]:
    """Connections that share no link with another port's, and the rate each connection has by itself."""
    links, none = flows.ways.links, len(flows.rates) - 1
    own = np.where(links == none, np.inf, flows.rates[links] / np.where(flows.ways.share > 0, flows.ways.share, 1.0))
    if not ports.lone:
        return np.zeros(len(links), np.bool_), own.min(axis=1)
    port = ports.of_connection(len(links))
    least, most = np.full(none + 1, ports.count), np.full(none + 1, -1)
    wide = np.broadcast_to(port[:, None], links.shape).ravel()
    np.minimum.at(least, links.ravel(), wide)
    np.maximum.at(most, links.ravel(), wide)
    shared = (least != most) & (np.arange(none + 1) < none)
    return ~shared[links].any(axis=1) & (port >= 0), own.min(axis=1)
