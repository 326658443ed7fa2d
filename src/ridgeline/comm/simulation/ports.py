"""Turn messages into queues by port: which belong to a port's round, and which round is next."""

from __future__ import annotations

import numpy as np

from ridgeline.comm.simulation.unshared import Flows, port_of
from ridgeline.core.arrays import Array, Index


class Ports:
    """Where each port is in its rounds; rows are messages in the order of ports, `order` maps them back.

    free   when the round before was over; `lone`: every port sends one message a round
    """

    def __init__(self, flows: Flows) -> None:
        messages = flows.messages
        (found, _), line = port_of(flows.messages, flows.out)
        self.count = int(found.max(initial=-1)) + 1
        port = (found.astype(np.uint16) if self.count <= 1 << 16 else found)[line]
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

    def opened(self, ports: Index) -> Index:
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

    def arrived(self, rows: Index, when: Array) -> Index:
        """Ports whose round is over now that these messages have arrived."""
        ports: Index = self.port[rows].astype(np.int64)
        if self.lone:
            self.free[ports] = when
            return ports
        np.maximum.at(self.free, ports, when)
        np.subtract.at(self.under_way, ports, np.int64(1))
        over = ports[self.under_way[ports] == 0]
        return np.unique(over) if len(over) > 1 else over


def ranges(low: Index, count: Index) -> Index:
    """low[0], low[0] + 1, ... count[0] of them, then those of the next."""
    if (count == 1).all():
        return low
    ends = np.cumsum(count)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(low - (ends - count), count) + np.arange(total)
