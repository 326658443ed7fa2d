"""Turn flows into arrivals by the compiled core: max-min rates at every start and end, no windows.

Queues of ports are made once for all seeds of path choice; what a seed changes is the network: ways and rates. Ports
that send one message a round, on one way, take turns (native/fluid_serial.c); everything else takes the general core.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from ridgeline.comm.contract import Ints
from ridgeline.comm.simulation.compiled import core
from ridgeline.comm.simulation.messages import FluidRun, MessageFlows, Messages, port_of
from ridgeline.core.arrays import Array, Index

SAME = 1e-9  # of how long a message takes: what ends within it ends at once
_MESSAGE, _CHUNK, _TURN = 16, 12, 32  # bytes, as in native/flows.h
_P, _N = ctypes.c_void_p, ctypes.c_int64


class _Sent(ctypes.Structure):
    _fields_ = [(name, _N) for name in ("messages", "rows", "ports", "rounds", "places")] + [
        (name, _P) for name in ("port", "round", "connection", "size", "first", "round_row", "read", "write")
    ]


class _Queues(ctypes.Structure):
    _fields_ = [(name, _N) for name in ("messages", "chunks", "ports", "groups", "places", "at_once")] + [
        (name, _P) for name in ("message", "chunk", "order", "port_group", "group_message")
    ]


class _Turns(ctypes.Structure):
    _fields_ = [(name, _N) for name in ("messages", "ports", "places")] + [
        (name, _P) for name in ("turn", "chunk", "begins")
    ]


class _Network(ctypes.Structure):
    _fields_ = [
        *((name, _N) for name in ("connections", "wide", "none")),
        *((name, _P) for name in ("links", "share", "rates", "delay")),
        *(("pairs", _N), ("pair_port", _P), ("pair_connection", _P), ("opens", _P)),
    ]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Queues:
    """Messages as queues of ports, as the core keeps them; `arrays` are the arrays that `table` points into.

    turns                        whether every port sends one message a round
    pair_port, pair_connection   the connections that each port uses, in pairs; `begins`: the first message of each
    """

    table: _Queues | _Turns
    arrays: tuple[np.ndarray, ...]
    pair_port: Index
    pair_connection: Index
    begins: Index
    turns: bool

    @property
    def at_once(self) -> int:
        """Messages that may be under way at one time."""
        return int(self.table.at_once) if isinstance(self.table, _Queues) else self.ports

    @property
    def ports(self) -> int:
        return int(self.table.ports)


def make_queues(messages: Messages, out: Index, *, turns: bool = False) -> Queues | None:
    """The queues of messages whose connections leave through `out`; None where there is no core.

    In turns also where a port sends two messages in a round.
    """
    library = core()
    if library is None or not len(messages):
        return None
    (port, connection), line = port_of(messages, out)
    ports, chunks, many = int(port.max()) + 1, _CHUNK * (len(messages.read) + 1), len(messages)
    waits = not turns or messages.relayed
    sent, _columns = _sent(messages, port, line, waits=waits)
    sizes = (ports,) if turns else (many, ports + 1, many + 1)
    arrays: tuple[np.ndarray, ...] = (
        np.empty(_TURN * many if turns else _MESSAGE * (many + 1), np.uint8),
        np.zeros(chunks if waits else 0, np.uint8),
        *(np.empty(size, np.int32) for size in sizes),
    )
    pointers = [array.ctypes.data for array in arrays]
    table = _Turns(0, 0, 0, *pointers) if turns else _Queues(0, 0, 0, 0, 0, 0, *pointers)
    failure = (library.make_turns if turns else library.make_queues)(ctypes.byref(sent), ctypes.byref(table))
    if failure == 1 or (failure and not turns):
        raise MemoryError(f"queues of {many:,} messages")
    if failure:
        return None
    begins = arrays[2] if turns else arrays[2][arrays[4][arrays[3][:-1]]]
    pair_port, pair_connection, begins = (_plain(column, np.int64) for column in (port, connection, begins))
    return Queues(
        table=table, arrays=arrays, pair_port=pair_port, pair_connection=pair_connection, begins=begins, turns=turns
    )


def _sent(messages: Messages, port: Index, line: Ints, *, waits: bool) -> tuple[_Sent, tuple[np.ndarray, ...]]:
    """What queues are made of, and the arrays that it points into; places only where messages wait for any."""
    columns: tuple[np.ndarray, ...] = (
        port.astype(np.int32)[line],
        *(_plain(column, np.int32) for column in (messages.round, messages.connection)),
        _plain(messages.size_bytes, np.float64),
        *(_plain(column, np.int64) for column in (messages.first, messages.rounds)),
        *(_places(messages) if waits else ()),
    )
    numbers = (len(messages), len(messages.read), int(port.max()) + 1, len(messages.rounds) - 1, messages.places)
    return _Sent(*numbers, *(column.ctypes.data for column in columns)), columns


class PreparedQueues:
    """The queues of one set of messages and ports, made when the first seed asks for them."""

    def __init__(self, messages: Messages, out: Index) -> None:
        self.queues: Callable[[], Queues | None] = cache(lambda: make_queues(messages, out))
        self.turns: Callable[[], Queues | None] = cache(lambda: make_queues(messages, out, turns=True))


def exact_arrivals(flows: MessageFlows, queues: Queues) -> FluidRun | None:
    """Every message's arrival at max-min rates; None where rounding keeps rates from settling.

    In turns also where flows take several ways, or one of more shared links than that core knows.
    """
    library = core()
    assert library is not None
    if queues.turns and flows.ways.share is not None:
        return None
    network, _arrays = _network(flows, queues)
    arrival_s, counters = np.empty(len(flows.messages)), np.zeros(2, np.int64)
    call = library.run_turns if queues.turns else library.run_moments
    failure = call(
        ctypes.byref(queues.table), ctypes.byref(network), ctypes.c_double(SAME), _P(arrival_s.ctypes.data),
        _P(counters.ctypes.data),
    )  # fmt: skip
    if failure == 1:
        raise MemoryError(f"{len(flows.messages):,} messages")
    if failure == 3:
        raise ValueError("messages wait for chunks that never come")
    return None if failure else FluidRun(arrived_s=arrival_s, moments=int(counters[0]))


def _network(flows: MessageFlows, queues: Queues) -> tuple[_Network, tuple[np.ndarray, ...]]:
    """What the core reads of one seed, and the arrays that it points into."""
    messages = flows.messages
    opens = flows.start_s[messages.job[queues.begins]] + flows.late_s[messages.connection[queues.begins]]
    links = _plain(flows.ways.links, np.int64)
    share = None if flows.ways.share is None else _plain(flows.ways.share, np.float64)
    rates, delay = _plain(flows.rates, np.float64), _plain(flows.delay_s, np.float64)
    arrays = (links, rates, delay, opens) if share is None else (links, rates, delay, opens, share)
    return _Network(
        *links.shape, len(rates) - 1, links.ctypes.data, None if share is None else share.ctypes.data,
        rates.ctypes.data, delay.ctypes.data, len(queues.pair_port), queues.pair_port.ctypes.data,
        queues.pair_connection.ctypes.data, opens.ctypes.data,
    ), arrays  # fmt: skip


def senders_share(flows: MessageFlows) -> bool | None:
    """Whether connections that leave by different ports share a link; None where there is no core."""
    library = core()
    if library is None:
        return None
    links, out = _plain(flows.ways.links, np.int64), _plain(flows.out, np.int64)
    network = _Network(*links.shape, len(flows.rates) - 1, links.ctypes.data)
    return bool(library.senders_share(ctypes.byref(network), _P(out.ctypes.data)))


def _places(messages: Messages) -> tuple[Ints, Ints]:
    """Places as 32-bit numbers."""
    if messages.places < 2**31:
        return _plain(messages.read, np.int32), _plain(messages.write, np.int32)
    _, number = np.unique(np.concatenate([messages.read, messages.write]), return_inverse=True)
    places = number.astype(np.int32)
    return places[: len(messages.read)], places[len(messages.read) :]


def _plain(column: Array | Index | Ints, dtype: type) -> np.ndarray:
    return np.ascontiguousarray(column, dtype=dtype)
