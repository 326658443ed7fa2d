"""Turn flows into arrivals by the compiled core: max-min rates at every start and end, no windows.

Queues of ports are made once for all seeds of path choice; what a seed changes is the network: ways and rates.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from ridgeline.comm.contract import Ints
from ridgeline.comm.simulation.compiled import core
from ridgeline.comm.simulation.messages import Messages
from ridgeline.comm.simulation.unshared import Flows, Run, port_of
from ridgeline.core.arrays import Array, Index

SAME = 1e-9  # of how long a message takes: what ends within it ends at once
_MESSAGE, _CHUNK = 16, 12  # bytes, as in native/flows.h
_P, _N = ctypes.c_void_p, ctypes.c_int64


class _Sent(ctypes.Structure):
    _fields_ = [(name, _N) for name in ("messages", "rows", "ports", "rounds", "places")] + [
        (name, _P) for name in ("port", "round", "connection", "size", "first", "round_row", "read", "write")
    ]


class _Queues(ctypes.Structure):
    _fields_ = [(name, _N) for name in ("messages", "chunks", "ports", "groups", "places", "at_once")] + [
        (name, _P) for name in ("message", "chunk", "order", "port_group", "group_message")
    ]


class _Network(ctypes.Structure):
    _fields_ = [
        *((name, _N) for name in ("connections", "wide", "none")),
        *((name, _P) for name in ("links", "share", "rates", "delay")),
        *(("pairs", _N), ("pair_port", _P), ("pair_connection", _P), ("opens", _P)),
    ]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Queues:
    """Messages as queues of ports, as the core keeps them; `held` are the arrays that `table` points into.

    pair_port, pair_connection   ports and the connections that each uses
    begins                       the first message of each port
    """

    table: _Queues
    held: tuple[np.ndarray, ...]
    pair_port: Index
    pair_connection: Index
    begins: Index

    @property
    def at_once(self) -> int:
        """Messages that may be under way at one time."""
        return int(self.table.at_once)

    @property
    def ports(self) -> int:
        return int(self.table.ports)


def queued(messages: Messages, out: Index) -> Queues | None:
    """The queues of messages whose connections leave through `out`; None where there is no core."""
    library = core()
    if library is None or not len(messages):
        return None
    (port, connection), line = port_of(messages, out)
    ports, rows = int(port.max()) + 1, len(messages.read)
    read, write = _places(messages)
    sent: tuple[np.ndarray, ...] = (
        port.astype(np.int32)[line],
        *(_plain(one, np.int32) for one in (messages.round, messages.connection)),
        _plain(messages.size_bytes, np.float64),
        *(_plain(one, np.int64) for one in (messages.first, messages.rounds)),
        *(read, write),
    )
    many = len(messages)
    held: tuple[np.ndarray, ...] = (
        np.empty(_MESSAGE * (many + 1), np.uint8),
        np.zeros(_CHUNK * (rows + 1), np.uint8),
        *(np.empty(size, np.int32) for size in (many, ports + 1, many + 1)),
    )
    numbers = (many, rows, ports, len(messages.rounds) - 1, messages.places)
    table = _Queues(0, 0, 0, 0, 0, 0, *(one.ctypes.data for one in held))
    if library.make_queues(ctypes.byref(_Sent(*numbers, *(one.ctypes.data for one in sent))), ctypes.byref(table)):
        raise MemoryError(f"queues of {many:,} messages")
    begins = held[2][held[4][held[3][:-1]]].astype(np.int64)
    return Queues(
        table=table, held=held, pair_port=_plain(port, np.int64), pair_connection=_plain(connection, np.int64),
        begins=begins,
    )  # fmt: skip


class Prepared:
    """The queues of one set of messages and ports, made when the first seed asks for them."""

    def __init__(self, messages: Messages, out: Index) -> None:
        self.messages, self.out = messages, out
        self.made: Queues | None = None

    def queues(self) -> Queues | None:
        """None where there is no core."""
        if self.made is None:
            self.made = queued(self.messages, self.out)
        return self.made


def shares_links(flows: Flows, queues: Queues) -> bool:
    """Whether two ports send over one link."""
    library, network = core(), _network(flows, queues)
    assert library is not None
    return bool(library.links_are_shared(ctypes.byref(network[0])))


def by_moments(flows: Flows, queues: Queues) -> Run | None:
    """Every message's arrival at max-min rates; None where rounding keeps rates from settling."""
    library, network = core(), _network(flows, queues)
    assert library is not None
    arrived, told = np.empty(len(flows.messages)), np.zeros(2, np.int64)
    failed = library.run_moments(
        ctypes.byref(queues.table), ctypes.byref(network[0]), ctypes.c_double(SAME), _P(arrived.ctypes.data),
        _P(told.ctypes.data),
    )  # fmt: skip
    if failed == 1:
        raise MemoryError(f"{len(flows.messages):,} messages")
    if failed == 3:
        raise ValueError("messages wait for chunks that never come")
    return None if failed else Run(arrived_s=arrived, moments=int(told[0]))


def _network(flows: Flows, queues: Queues) -> tuple[_Network, tuple[np.ndarray, ...]]:
    """What the core reads of one seed, and the arrays that it points into."""
    messages = flows.messages
    opens = flows.start_s[messages.job[queues.begins]] + flows.late_s[messages.connection[queues.begins]]
    links = _plain(flows.ways.links, np.int64)
    share = None if flows.ways.single else _plain(flows.ways.share, np.float64)
    rates, delay = _plain(flows.rates, np.float64), _plain(flows.delay_s, np.float64)
    held = (links, rates, delay, opens) if share is None else (links, rates, delay, opens, share)
    return _Network(
        *links.shape, len(rates) - 1, links.ctypes.data, None if share is None else share.ctypes.data,
        rates.ctypes.data, delay.ctypes.data, len(queues.pair_port), queues.pair_port.ctypes.data,
        queues.pair_connection.ctypes.data, opens.ctypes.data,
    ), held  # fmt: skip


def _places(messages: Messages) -> tuple[Ints, Ints]:
    """Places as 32-bit numbers."""
    if messages.places < 2**31:
        return _plain(messages.read, np.int32), _plain(messages.write, np.int32)
    _, number = np.unique(np.concatenate([messages.read, messages.write]), return_inverse=True)
    both = number.astype(np.int32)
    return both[: len(messages.read)], both[len(messages.read) :]


def _plain(column: Array | Index | Ints, dtype: type) -> np.ndarray:
    return np.ascontiguousarray(column, dtype=dtype)
