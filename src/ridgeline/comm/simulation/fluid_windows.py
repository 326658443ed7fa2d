"""Messages as flows that share links fairly, from one moment at which something ends to the next.

    a message    waits for its port's round and its chunks, flows at its max-min rate, arrives a latency later
    a port       goes on to its next round when all messages of this one have arrived

Every message keeps its own times. What ends within a window of the first, a share of how long messages take, is looked
at together: rates of what shares a link change at the end of a window, so that a late start and a late end are off by
less than a window and cancel on the mean. Where nothing is shared the window does not matter, times are exact, and a
round takes latency + bytes / rate.

Turn messages into queues by port: which belong to a port's round, and which round is next.

Max-min fair rates of flows that share links: nobody gets more where that would give less to one who has less.

Links are filled together. A link is tight when it is the scarcest of every flow on it; its flows get equal parts of it
and leave the rest of their way to the others. All tight links are settled at once, so few passes are needed; where a
thousand links each have a load of their own, from the eighth pass on links are taken as tight that are nearly so. No
link is ever overfull.
"""

from __future__ import annotations

import numpy as np

from ridgeline.comm.contract import Ints
from ridgeline.comm.simulation.conditions import Sharing
from ridgeline.comm.simulation.fluid_exact import Prepared, exact_arrivals, senders_share
from ridgeline.comm.simulation.message_rounds import (
    Flows,
    Run,
    by_rounds,
    by_shared_rounds,
    jobs_in_step,
    port_of,
    senders_meet,
    shares,
    unshared_rates,
)
from ridgeline.comm.simulation.messages import needed_writes, ranges
from ridgeline.core.arrays import Array, Index, Mask


class Ports:
    """Where each port is in its rounds; rows are messages in the order of ports, `order` maps them back.

    free   when the round before was over; `lone`: every port sends one message a round
    """

    def __init__(self, flows: Flows) -> None:
        messages = flows.messages
        (pair_port, _), line = port_of(flows.messages, flows.out)
        self.count = int(pair_port.max(initial=-1)) + 1
        port = (pair_port.astype(np.uint16) if self.count <= 1 << 16 else pair_port)[line]
        self.order = np.argsort(port, kind="stable")
        self.port = port[self.order].astype(np.int32)
        round_ = messages.round[self.order]
        new = np.ones(len(port), np.bool_)
        new[1:] = (self.port[1:] != self.port[:-1]) | (round_[1:] != round_[:-1])
        self.group_first = np.append(np.flatnonzero(new), len(port))
        self.lone = bool(new.all())
        group_port = self.port[self.group_first[:-1]]
        self.next = np.searchsorted(group_port, np.arange(self.count))
        self.last = np.searchsorted(group_port, np.arange(self.count), side="right")
        self.first = self.group_first[self.next]
        self.under_way = np.zeros(self.count, np.int64)
        self.free = np.zeros(self.count)

    def open_rounds(self, ports: Index) -> Index:
        """The messages of the next round of each of these ports, those that have one."""
        ports = ports[self.next[ports] < self.last[ports]]
        group = self.next[ports]
        self.next[ports] += 1
        low = self.group_first[group]
        if self.lone:
            return low
        count = self.group_first[group + 1] - low
        self.under_way[ports] = count
        return ranges(low, count)

    def finish_messages(self, rows: Index, when: Array) -> Index:
        """Ports whose round is over now that these messages have arrived."""
        ports: Index = self.port[rows].astype(np.int64)
        if self.lone:
            self.free[ports] = when
            return ports
        np.maximum.at(self.free, ports, when)
        np.subtract.at(self.under_way, ports, np.int64(1))
        over = ports[self.under_way[ports] == 0]
        return np.unique(over) if len(over) > 1 else over


CLOSE = 1e-12
EXACT = 8  # passes; then what counts as equal doubles from NEAR with each
NEAR = 1e-3
FLOOR = 1e-9  # of a link, whatever rounding leaves


def max_min(links: Index, share: Array | None, rates: Array) -> Array:
    """Bytes per second of each flow.

    links   (most links, flows) numbers of links, len(rates) - 1 for none, whose rate is infinite
    share   the part of the flow on each link; None: all of it

    >>> max_min(np.array([[0, 0, 1], [2, 1, 2]]), None, np.array([4.0, 10.0, np.inf])).tolist()
    [2.0, 2.0, 8.0]
    """
    size, flows = len(rates), links.shape[1]
    fair_rates, rate_left = np.zeros(flows), rates
    open_: Index | None = None  # all of them
    passes = 0
    while True:
        passes += 1
        close = CLOSE if passes <= EXACT else NEAR * 2 ** (passes - EXACT - 1)
        flat = links.ravel()
        load = np.bincount(flat, None if share is None else share.ravel(), size)
        with np.errstate(divide="ignore", invalid="ignore"):
            scarce = rate_left / load
        offer = scarce[links] if share is None else np.where(share > 0, scarce[links], np.inf)
        best = offer.min(axis=0)
        spare = offer > best * (1 + close)
        tight = np.bincount(flat[spare.ravel()], minlength=size) == 0  # the scarcest link of every flow on it
        tight[-1] = False
        done = tight[links] & ~spare
        is_settled = done.any(axis=0)
        if is_settled.all() or not is_settled.any():  # not any: links without a limit alone
            fair_rates[slice(None) if open_ is None else open_] = best
            return fair_rates
        rows = np.flatnonzero(is_settled)
        fair_rates[rows if open_ is None else open_[rows]] = best[rows]
        used = np.broadcast_to(best[rows], (len(links), len(rows))) if share is None else best[rows] * share[:, rows]
        used_rate = np.bincount(links[:, rows].ravel(), used.ravel(), size)
        rate_left = np.maximum(rate_left - used_rate, FLOOR * rates)
        rate_left[-1] = np.inf
        open_flows = np.flatnonzero(~is_settled)
        open_ = open_flows if open_ is None else open_[open_flows]
        links, share = links[:, open_flows], None if share is None else share[:, open_flows]


WINDOW = 0.1  # of the time that messages take
WIDE = 0.5  # the same where no link is shared
MANY = 100_000  # messages that share links: from here on by rounds unless asked otherwise
CROWDED, SOME = 32, 20_000  # messages that a port sends at once, in all: each end moves the rates of all others
REMEMBERED = 512  # sets of flows whose rates are kept
_NONE = np.zeros(0, np.bool_)


def run(flows: Flows, window: float | None = None, sharing: Sharing = "auto", core: Prepared | None = None) -> Run:
    """Simulate to the end: exactly where nothing is shared, and by the compiled core where that can be had.

    Without it, and for very many messages all at once, from moment to moment in windows, or by rounds, which gives the
    end of equal messages that begin together exactly. A `window` asks for windows.
    """
    messages = flows.messages
    if not len(messages):
        return Run(arrived_s=np.zeros(0), moments=0)
    shared = senders_share(flows)
    unshared_run = None if (senders_meet(flows) if shared is None else shared) else by_rounds(flows)
    if unshared_run is not None:
        return unshared_run
    turns = core.turns() if core is not None and window is None and sharing != "rounds" else None
    exact = None if turns is None else exact_arrivals(flows, turns)
    if exact is not None:
        return exact
    queues = core.queues() if core is not None and window is None and sharing != "rounds" else None
    is_crowded = queues is not None and len(messages) >= SOME and queues.at_once >= CROWDED * queues.ports
    many = len(messages) >= MANY and (queues is None or is_crowded)
    if (sharing == "rounds" or (sharing == "auto" and many)) and jobs_in_step(flows) and shares(flows):
        return by_shared_rounds(flows)
    if core is not None and window is None and (sharing != "auto" or not is_crowded):
        queues = core.queues()
        exact = None if queues is None else exact_arrivals(flows, queues)
        if exact is not None:
            return exact
    return _Fluid(flows, window or WINDOW).run()


class _Fluid:
    """The state at a moment; rows are messages in the order of ports."""

    def __init__(self, flows: Flows, window: float) -> None:
        self.ports, self.flows = Ports(flows), flows
        messages, order = flows.messages, self.ports.order
        self.connection = messages.connection[order]
        self.size = messages.size_bytes[order]
        self.single = len(messages) == len(messages.read)  # one chunk a message
        self.first = order if self.single else messages.first[:-1][order]
        self.chunks = order[:0] if self.single else np.diff(messages.first)[order]
        self.watch = self.first.copy()  # of each message a chunk that it lacks, as far as known
        self.come, self.there = np.zeros(messages.places, np.int32), np.zeros(messages.places)
        self.waiting = np.zeros(0, np.int64)
        self.flowing, self.left, self.rate = np.zeros(0, np.int64), np.zeros(0), np.zeros(0)
        self.coming, self.due = np.zeros(0, np.int64), np.zeros(0)
        self.arrived_s = np.zeros(len(messages))
        self.links = np.ascontiguousarray(flows.ways.links.T)
        self.share = None if flows.ways.share is None else np.ascontiguousarray(flows.ways.share.T)
        self.changed = False  # what flows, since rates were last looked at
        self.alone, self.own_rate = unshared_rates(flows)
        self.alone = self.alone & self.ports.lone
        self.needed = needed_writes(messages)
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
                self._wait_for(self.ports.open_rounds(later[:due]))
                later, times = later[due:], times[due:]
            self._start()
            if not self._advance(float(times[0]) if len(times) else np.inf):
                break
            self.moments += 1
        if len(self.waiting):
            raise ValueError(f"{len(self.waiting)} messages wait for chunks that never come")
        arrival_s = np.empty(len(self.arrived_s))
        arrival_s[self.ports.order] = self.arrived_s
        return Run(arrived_s=arrival_s, moments=self.moments, method="exact" if self.alone.all() else "windows")

    def _wait_for(self, rows: Index) -> None:
        self.waiting = np.concatenate([self.waiting, rows]) if len(self.waiting) else rows

    def _start(self) -> None:
        """Let everything flow that waits for nothing any more, from the time on at which that was so."""
        ready, since = self._ready(self.waiting) if len(self.waiting) else (_NONE, self.due[:0])
        if not ready.any():
            if self.changed:
                self._share()
            return
        if ready.all():
            started_rows, self.waiting = self.waiting, self.waiting[:0]
        else:
            started_rows, since, self.waiting = self.waiting[ready], since[ready], self.waiting[~ready]
        before = len(self.flowing)
        self.flowing = np.concatenate([self.flowing, started_rows]) if before else started_rows
        self._share()
        begun = self.size[started_rows] - self.rate[before:] * (self.now - since)
        self.left = np.concatenate([self.left, begun]) if before else begun

    def _ready(self, rows: Index) -> tuple[Mask, Array]:
        """Which messages have all their chunks, and since when; looked at when the watched chunk is there."""
        read, writes_needed = self.flows.messages.read, self.needed
        free = self.ports.free[self.ports.port[rows]]
        if self.single:
            at = self.first[rows]
            place = read[at]
            return self.come[place] >= writes_needed[at], np.maximum(free, self.there[place])
        chunk_watched = self.watch[rows]
        ready = self.come[read[chunk_watched]] >= writes_needed[chunk_watched]
        some = np.flatnonzero(ready)
        if len(some):
            count = self.chunks[rows[some]]
            at, starts = ranges(self.first[rows[some]], count), np.cumsum(count) - count
            place = read[at]
            lack = np.minimum.reduceat(np.where(self.come[place] < writes_needed[at], at, len(read)), starts)
            ready[some] = lack == len(read)
            self.watch[rows[some]] = np.minimum(lack, len(read) - 1)
            free[some] = np.maximum(free[some], np.maximum.reduceat(self.there[place], starts))
        return ready, free

    def _share(self) -> None:
        """The rates of all that flows; a set of connections seen before keeps its rates."""
        self.changed = False
        over = self.connection[self.flowing]
        if self.alone.all():
            self.rate = self.own_rate[over]
        else:
            key = over.tobytes()
            known_rates = self.known.get(key)
            if known_rates is None:
                known_rates = self._fair(over)
                if len(self.known) < REMEMBERED:
                    self.known[key] = known_rates
            self.rate = known_rates
        self.pace = self.rate / self.size[self.flowing]

    def _fair(self, over: Index | Ints) -> Array:
        met = np.flatnonzero(~self.alone[over])
        rate = self.own_rate[over]
        if len(met):
            row = over[met]
            share = None if self.share is None else self.share[:, row]
            rate[met] = max_min(self.links[:, row], share, self.flows.rates)
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
            self._remove_ended(ends, max(self.now, min(soon + wide, opens)))
        else:
            self.now = max(self.now, soon)
        if len(self.due):
            self._arrive(self.now if len(self.flowing) else max(self.now, min(opens, float(self.due.min()) + wide)))
        return True

    def _remove_ended(self, ends: Array, until: float) -> None:
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
            self.changed = True

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
        self._wait_for(self.ports.open_rounds(self.ports.finish_messages(rows, due)))
