"""Messages as flows that share links fairly, from one moment at which something ends to the next.

    a message    waits for its port's round and its chunks, flows at its max-min rate, arrives a latency later
    a port       goes on to its next round when all messages of this one have arrived

Every message keeps its own times. What ends within a window of the first, a share of how long messages take, is looked
at together: rates of what shares a link change at the end of a window, so that a late start and a late end are off by
less than a window and cancel on the mean. Where nothing is shared the window does not matter, times are exact, and a
round takes latency + bytes / rate. This is what machines without a compiler have, and what very many messages take.

Max-min fair rates: nobody gets more where that would give less to one who has less. Links are filled together. A link
is tight when it is the scarcest of every flow on it; its flows get equal parts of it and leave the rest of their way to
the others. All tight links are settled at once, so few passes are needed; where a thousand links each have a load of
their own, from the eighth pass on links are taken as tight that are nearly so. No link is ever overfull.
"""

from __future__ import annotations

import numpy as np

from ridgeline.comm.graph import ranges
from ridgeline.comm.simulation.conditions import Sharing
from ridgeline.comm.simulation.fluid_exact import PreparedQueues, exact_arrivals, senders_share
from ridgeline.comm.simulation.messages import (
    FluidRun,
    MessageFlows,
    by_rounds,
    by_shared_rounds,
    jobs_in_step,
    needed_writes,
    port_of,
    unshared_rates,
)
from ridgeline.core.arrays import Array, Index, Mask

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


def run(
    flows: MessageFlows, window: float | None = None, sharing: Sharing = "auto", core: PreparedQueues | None = None
) -> FluidRun:
    """Simulate to the end: exactly where nothing is shared, and by the compiled core where that can be had.

    Without it, and for very many messages all at once, from moment to moment in windows, or by rounds, which gives the
    end of equal messages that begin together exactly. A `window` asks for windows.
    """
    messages = flows.messages
    if not len(messages):
        return FluidRun(arrived_s=np.zeros(0), moments=0)
    unshared_run = None if senders_share(flows) else by_rounds(flows)
    if unshared_run is not None:
        return unshared_run
    turns = core.turns() if core is not None and window is None and sharing != "rounds" else None
    exact = None if turns is None else exact_arrivals(flows, turns)
    if exact is not None:
        return exact
    queues = core.queues() if core is not None and window is None and sharing != "rounds" else None
    is_crowded = queues is not None and len(messages) >= SOME and queues.at_once >= CROWDED * queues.ports
    many = len(messages) >= MANY and (queues is None or is_crowded)
    if (
        (sharing == "rounds" or (sharing == "auto" and many))
        and jobs_in_step(flows)
        and not unshared_rates(flows)[0].all()
    ):
        return by_shared_rounds(flows)
    if core is not None and window is None and (sharing != "auto" or not is_crowded):
        queues = core.queues()
        exact = None if queues is None else exact_arrivals(flows, queues)
        if exact is not None:
            return exact
    return _Fluid(flows, window or WINDOW).run()


class _Fluid:
    """The state at a moment: messages that wait, that flow with what is left of them, and that are due to arrive.

    A group is what a port sends in one round; groups of a port follow each other.
    """

    def __init__(self, flows: MessageFlows, window: float) -> None:
        messages, self.flows = flows.messages, flows
        (pair_port, _), line = port_of(messages, flows.out)
        self.port, self.chunks = pair_port[line], np.diff(messages.first)
        self.order = np.lexsort((messages.round, self.port))
        port, round_ = self.port[self.order], messages.round[self.order]
        begins = np.flatnonzero(np.append(True, (port[1:] != port[:-1]) | (round_[1:] != round_[:-1])))
        self.group_first, self.group_port = np.append(begins, len(port)), port[begins]
        self.group = np.empty(len(port), np.int64)
        self.group[self.order] = np.repeat(np.arange(len(begins)), np.diff(self.group_first))
        self.under_way = np.diff(self.group_first)
        self.come, self.there = np.zeros(messages.places, np.int32), np.zeros(messages.places)
        self.needed = needed_writes(messages)
        none = np.zeros(0, np.int64)
        self.waiting, self.flowing, self.coming = none, none, none
        self.left, self.rate, self.due = np.zeros(0), np.zeros(0), np.zeros(0)
        self.arrived_s = np.zeros(len(messages))
        self.links = np.ascontiguousarray(flows.ways.links.T)
        self.share = None if flows.ways.share is None else np.ascontiguousarray(flows.ways.share.T)
        alone, self.own_rate = unshared_rates(flows)
        self.alone = alone & (len(begins) == len(port))
        self.window = WIDE if self.alone.all() else window
        self.known: dict[bytes, Array] = {}
        self.moments, self.now = 0, 0.0

    def run(self) -> FluidRun:
        messages = self.flows.messages
        first = np.flatnonzero(np.append(True, self.group_port[1:] != self.group_port[:-1]))  # groups, one a port
        begun = self.order[self.group_first[first]]
        self.free = self.flows.start_s[messages.job[begun]] + self.flows.late_s[messages.connection[begun]]
        later = np.argsort(self.free, kind="stable")
        times = self.free[later]
        while True:
            due = int(np.searchsorted(times, self.now, side="right"))
            self._open_groups(first[later[:due]])
            later, times = later[due:], times[due:]
            self._start()
            if not self._advance(float(times[0]) if len(times) else np.inf):
                break
            self.moments += 1
        if len(self.waiting):
            raise ValueError(f"{len(self.waiting)} messages wait for chunks that never come")
        return FluidRun(
            arrived_s=self.arrived_s, moments=self.moments, method="exact" if self.alone.all() else "windows"
        )

    def _open_groups(self, groups: Index) -> None:
        low = self.group_first[groups]
        rows = self.order[ranges(low, self.group_first[groups + 1] - low)]
        self.waiting = np.concatenate([self.waiting, rows])

    def _start(self) -> None:
        """Let everything flow that waits for nothing any more, from the time on at which that was so."""
        ready, since = self._ready(self.waiting)
        started, before = self.waiting[ready], len(self.flowing)
        self.waiting = self.waiting[~ready]
        self.flowing = np.concatenate([self.flowing, started])
        self._share()
        begun = self.flows.messages.size_bytes[started] - self.rate[before:] * (self.now - since[ready])
        self.left = np.concatenate([self.left, begun])

    def _ready(self, rows: Index) -> tuple[Mask, Array]:
        """Which messages have all their chunks, and since when."""
        if not len(rows):
            return np.zeros(0, np.bool_), np.zeros(0)
        count = self.chunks[rows]
        at, starts = ranges(self.flows.messages.first[rows], count), np.cumsum(count) - count
        place = self.flows.messages.read[at]
        ready = np.logical_and.reduceat(self.come[place] >= self.needed[at], starts)
        return ready, np.maximum(self.free[self.port[rows]], np.maximum.reduceat(self.there[place], starts))

    def _share(self) -> None:
        """The rates of all that flows; a set of connections seen before keeps its rates."""
        over = self.flows.messages.connection[self.flowing]
        key = over.tobytes()
        rate = self.known.get(key)
        if rate is None:
            rate, shared = self.own_rate[over], np.flatnonzero(~self.alone[over])
            if len(shared):
                row = over[shared]
                share = None if self.share is None else self.share[:, row]
                rate[shared] = max_min(self.links[:, row], share, self.flows.rates)
            if len(self.known) < REMEMBERED:
                self.known[key] = rate
        self.rate = rate

    def _advance(self, opens: float) -> bool:
        """Go on to the end of the window of what ends next; False when nothing is under way."""
        flowing = len(self.flowing) > 0
        if not (flowing or len(self.due) or opens < np.inf):
            return False
        ends = self.now + self.left / self.rate
        soon = min(opens, float(ends.min(initial=np.inf)), float(self.due.min(initial=np.inf)))
        wide = 0.0
        if flowing:
            wide = self.window / float((self.rate / self.flows.messages.size_bytes[self.flowing]).mean())
            self._remove_ended(ends, max(self.now, min(soon + wide, opens)))
        else:
            self.now = max(self.now, soon)
        if len(self.due):
            self._arrive(self.now if len(self.flowing) else max(self.now, min(opens, float(self.due.min()) + wide)))
        return True

    def _remove_ended(self, ends: Array, until: float) -> None:
        """Take out what has flowed by then; it arrives its delay later."""
        over = ends <= until
        due = ends[over] + self.flows.delay_s[self.flows.messages.connection[self.flowing[over]]]
        self.coming, self.due = np.concatenate([self.coming, self.flowing[over]]), np.concatenate([self.due, due])
        self.left = (self.left - self.rate * (until - self.now))[~over]
        self.flowing, self.rate = self.flowing[~over], self.rate[~over]
        self.now = max(self.now, float(ends.max())) if over.all() else until

    def _arrive(self, until: float) -> None:
        """Hand over what is due by then: chunks to their places, ports to their next round."""
        messages, self.now = self.flows.messages, max(self.now, until)
        near = self.due <= until
        rows, due = self.coming[near], self.due[near]
        self.coming, self.due = self.coming[~near], self.due[~near]
        self.arrived_s[rows] = due
        place = messages.write[ranges(messages.first[rows], self.chunks[rows])]
        np.add.at(self.come, place, np.int32(1))
        np.maximum.at(self.there, place, np.repeat(due, self.chunks[rows]))
        np.maximum.at(self.free, self.port[rows], due)
        np.subtract.at(self.under_way, self.group[rows], 1)
        over = np.unique(self.group[rows][self.under_way[self.group[rows]] == 0])
        after = over + 1
        after = after[after < len(self.group_port)]
        self._open_groups(after[self.group_port[after] == self.group_port[after - 1]])
