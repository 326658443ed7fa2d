"""All-gather on any graph, heterogeneous or degraded, through switches or not: a free port takes what its rank lacks.

What a rank holds is a row of bits. A round goes over the ports of all ranks at once, port by port: of the chunks that
the sender has and the rank has not (nor was promised in this round) the rarest is taken, on large graphs any. Slower
ports are busy for more ticks; a chunk can be passed on when it has arrived. Behind a switch the sender changes from
round to round (see `ports`).

On graphs of direct links a compiled core goes event by event at links' own times. A link that is free takes, of the
first chunks of its sender that its rank lacks, the one that fewest ranks have. It takes none that would come later than
all could be there: a slow link leaves its last chunks to quicker ones. Rounds keep to what a step needs, so that links
of a hundred rates make no more of them than equal ones.

Without the core, rounds serve direct links as well.

A mesh of two axes, one of them even, has a closed cycle through all ranks. A corner has two links, so that no
all-gather takes fewer than (N - 1) / 2 rounds of one chunk a link. The cycle gives every rank two links of its own: in
round t it gets the chunk of the rank t + 1 places before it from the one side, and of the rank t + 1 places behind it
from the other. That is as few rounds, without a search.

Every rank of a torus or ring sees the same network. Let a rank get the chunk of the rank at offset d in round t over
port i. If all ranks do so with their own offsets, every link carries one chunk a round. What is left is to deal N - 1
offsets to ports and rounds so that the neighbour behind port i has offset d - step(i) before: a list to fill, not a
graph to search.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.comm.algorithm import Algorithm, Steps, algorithm_of, copies_of, steps_of
from ridgeline.comm.bounds import chunked_bound, lower_bound
from ridgeline.comm.contract import Ints
from ridgeline.comm.graph import Graph
from ridgeline.comm.simulation.compiled import library
from ridgeline.comm.synthesis.ports import Ports, domains_of, ports_of
from ridgeline.core.arrays import Array, Index, Mask


def has_cycle(graph: Graph) -> bool:
    """Whether it is a whole mesh of two axes and equal links with an even number of ranks."""
    open_mesh = len(graph.shape) == 2 and min(graph.shape) > 1 and not any(graph.wraps)
    return open_mesh and graph.ranks % 2 == 0 and graph.uniform and graph.direct


def cycle_of(shape: tuple[int, int]) -> Index:
    """Ranks of a mesh in an order in which each is linked to the next, and the last to the first.

    Back and forth through all columns but the first, and home along that one.

    >>> cycle_of((2, 3)).tolist()
    [0, 1, 2, 5, 4, 3]
    """
    grid = np.arange(shape[0] * shape[1]).reshape(shape)
    if shape[0] % 2:
        grid = grid.T
    rows = grid[:, 1:].copy()
    rows[1::2] = rows[1::2, ::-1]
    return np.concatenate([grid[0, :1], rows.ravel(), grid[:0:-1, 0]])


def cycle_allgather(graph: Graph) -> Algorithm:
    """An all-gather in ceil((N - 1) / 2) rounds."""
    n, rounds = graph.ranks, graph.ranks // 2
    order = cycle_of((graph.shape[0], graph.shape[1])).astype(np.int32)
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    cycle_order = np.tile(order, 3)  # places before the first and behind the last
    chunk = np.empty((rounds, 2, n), np.int32)
    for round in range(rounds):
        chunk[round, 0] = cycle_order[place + (n - 1 - round)]
        chunk[round, 1] = cycle_order[place + (n + 1 + round)]
    sides = np.concatenate([cycle_order[place + (n - 1)], cycle_order[place + (n + 1)]])
    steps = slice(n * (n - 1))  # the rank opposite is n / 2 away from both sides: its chunk comes from one
    cycle_steps = copies_of(
        np.repeat(np.arange(rounds, dtype=np.int32), 2 * n)[steps],
        np.tile(sides, rounds)[steps],
        np.tile(np.arange(n, dtype=np.int32), 2 * rounds)[steps],
        chunk.ravel()[steps],
    )
    return algorithm_of(SYNTHESIZED, "allgather", n, n, cycle_steps)


SOURCES = Path(__file__).parent / "native"


class EventGather:
    """The search of one graph, number of chunks and size; `made` runs it once for a seed."""

    def __init__(self, graph: Graph, per_rank: int, size_bytes: float) -> None:
        self.graph, self.per_rank, n = graph, per_rank, graph.ranks
        chunks = n * per_rank
        self.tail, self.head = graph.tail.astype(np.int32), graph.head.astype(np.int32)
        self.out = np.argsort(self.tail, kind="stable").astype(np.int32)
        self.first_out = np.concatenate([[0], np.cumsum(np.bincount(self.tail, minlength=n))]).astype(np.int32)
        self.seconds = np.ascontiguousarray(size_bytes / chunks / graph.bytes_per_s + graph.latency_s)
        least = lower_bound(graph, "allgather", size_bytes).seconds
        self.bound = max(chunked_bound(graph, "allgather", size_bytes, chunks), least)

    def build(self, seed: int, width: int, slack: float = 1.0) -> tuple[Algorithm, float]:
        """An all-gather and its seconds: of `width` chunks one is taken, and all are due by `slack` times the bound.

        Only where `offered` is true.
        """
        core, n, chunks = _core(), self.graph.ranks, self.graph.ranks * self.per_rank
        assert core is not None
        count = n * (chunks - self.per_rank)
        source, target, chunk, round = (np.empty(count, np.int32) for _ in range(4))
        took = ctypes.c_double()
        graph_columns = (self.tail, self.head, self.first_out, self.out, self.seconds)
        step_count = core.gather(
            *(ctypes.c_int32(value) for value in (n, self.graph.links, self.per_rank, width)),
            *(_pointer(column) for column in graph_columns),
            ctypes.c_double(self.bound * slack),
            ctypes.c_uint64(seed + 1),
            *(_pointer(column) for column in (source, target, chunk, round)),
            ctypes.byref(took),
        )
        if step_count != count:
            raise MemoryError(f"an all-gather of {count} steps")
        steps = steps_of(round, source, target, chunk)
        return algorithm_of(SYNTHESIZED, "allgather", n, chunks, steps), took.value


def has_event_core() -> bool:
    """Whether there is a core: a compiler, or what it built before."""
    return _core() is not None


def _core() -> ctypes.CDLL | None:
    loaded_core = library(SOURCES, "gather")
    if loaded_core is not None:
        loaded_core.gather.restype = ctypes.c_int64
    return loaded_core


def _pointer(values: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.ctypes.data)


Bits = NDArray[np.uint64]
WINDOW = 8  # words of 64 chunks that are looked at first
TICKS = 4  # of the fastest link's time, where links differ
RAREST = 1 << 16  # places up to which the rarest chunk is looked for, not any
ONE = np.uint64(1)
SYNTHESIZED = "synthesized"


def matched_allgather(
    graph: Graph, per_rank: int, size_bytes: float, seed: int = 0, ports: Ports | None = None
) -> Algorithm:
    """An all-gather of `per_rank` chunks each that keeps links busy; the same seed gives the same one."""
    n, chunks = graph.ranks, graph.ranks * per_rank
    search = _Matching(ports or ports_of(graph), n, chunks, size_bytes / chunks, np.random.default_rng(seed))
    return algorithm_of(SYNTHESIZED, "allgather", n, chunks, search.run(np.arange(chunks) // per_rank))


def matched_broadcast(
    graph: Graph, root: int, chunks: int, size_bytes: float, seed: int = 0, ports: Ports | None = None
) -> Algorithm:
    """A broadcast of so many chunks that keeps links busy: ranks pass on what their neighbours lack."""
    n = graph.ranks
    search = _Matching(ports or ports_of(graph), n, chunks, size_bytes / chunks, np.random.default_rng(seed))
    steps = search.run(np.full(chunks, root), one_root=True)
    return algorithm_of(SYNTHESIZED, "broadcast", n, chunks, steps, root=root)


def ticks_of(each: Array) -> Index:
    """How many ticks a chunk takes on each port, in each turn."""
    if np.ptp(each) <= 1e-12 * each.max():
        return np.ones(each.shape, np.int64)
    busy: Index = np.ceil(each / each.min() * TICKS - 1e-6).astype(np.int64)
    return busy


def _places(ports: Ports, n: int, outer: Mask, domain: Index, random: np.random.Generator) -> Index:
    """(places, ranks) ports that take turns in a round, -1 for none; of a domain one rank at a time goes outside."""
    count = len(ports.rank)
    order = np.lexsort((random.random(count), ports.rank, outer))
    inner = order[: count - int(outer.sum())]
    degree = np.bincount(ports.rank[inner], minlength=n)
    near = np.full((int(degree.max(initial=0)), n), -1, np.int64)
    rank = ports.rank[inner]
    near[np.arange(len(inner)) - (np.cumsum(degree) - degree)[rank], rank] = inner
    far = order[len(inner) :]
    if not len(far):
        return near
    far = far[np.argsort(domain[ports.rank[far]], kind="stable")]
    size = np.bincount(domain[ports.rank[far]])
    place = np.arange(len(far)) - (np.cumsum(size) - size)[domain[ports.rank[far]]]
    wide = np.full((int(size.max()), n), -1, np.int64)
    wide[place, ports.rank[far]] = far
    return np.concatenate([wide, near])


class _Matching:
    """The state of the search: bits held and promised, ports busy, chunks under way."""

    def __init__(self, ports: Ports, n: int, chunks: int, chunk_bytes: float, random: np.random.Generator) -> None:
        self.n, self.chunks, self.random = n, chunks, random
        self.words = -(-chunks // 64)
        count = len(ports.rank)
        self.domain, self.outer = domains_of(ports, n)
        self.port_at = _places(ports, n, self.outer, self.domain, random)
        self.ticks = ticks_of(ports.seconds(chunk_bytes))
        self.source = ports.source
        self.have = np.zeros((n, self.words), np.uint64)
        self.even = bool((self.ticks == 1).all())
        self.full = bool((ports.source >= 0).all()) and bool((self.port_at >= 0).all())
        self.busy = np.zeros(count, np.int64)
        self.linked = bool((ports.hub < 0).all())  # without turns nothing changes until a chunk arrives
        self._hubs(ports)
        self.rarest = n * chunks <= RAREST
        self.under_way: dict[int, list[tuple[Index, Index]]] = {}
        self.made: list[tuple[int, Ints, Ints, Ints]] = []

    def _hubs(self, ports: Ports) -> None:
        """Ranks of a hub begin together, every `slot` ticks; who sends is busy as long as who receives."""
        count = len(ports.rank)
        self.slot = np.ones(count, np.int64)
        self.sending = np.tile(np.arange(count), (len(ports.source), 1))  # whose sending side a transfer takes
        self.sent = np.zeros(count, np.int64)
        if len(ports.source) == 1 and (ports.hub < 0).all():
            return
        for hub in np.unique(ports.hub[ports.hub >= 0]):
            hub_ports = np.flatnonzero(ports.hub == hub)
            self.slot[hub_ports] = self.ticks[:, hub_ports].min()
            at = np.zeros(self.n, np.int64)
            at[ports.rank[hub_ports]] = hub_ports
            self.sending[:, hub_ports] = at[np.maximum(ports.source[:, hub_ports], 0)]

    def run(self, owner: Index, *, one_root: bool = False) -> Steps:
        """Steps that take every chunk from its owner to all."""
        chunk_ids, at, self.one_root = np.arange(self.chunks), owner, one_root
        mask = ONE << (chunk_ids % 64).astype(np.uint64)
        np.bitwise_or.at(self.have, (at, chunk_ids // 64), mask)
        self.all = np.zeros(self.words, np.uint64)
        np.bitwise_or.at(self.all, chunk_ids // 64, mask)
        self.promised = self.have.copy()
        self.inside = np.zeros((int(self.domain.max()) + 1, self.words), np.uint64)  # promised to some rank of a domain
        np.bitwise_or.at(self.inside, self.domain, self.have)
        self.holders = np.ones(self.chunks)
        self.lacks = self.chunks - np.bincount(at, minlength=self.n)
        now = 0
        while self.lacks.any() or self.under_way:
            for place, chunk in self.under_way.pop(now, ()):
                self.have[place, chunk >> 6] |= ONE << (chunk & 63).astype(np.uint64)
            if self.lacks.any():
                self._round(now)
            now = min(self.under_way) if self.linked and self.under_way else now + 1
        return steps_made(self.made)

    def _round(self, now: int) -> None:
        open_ = np.flatnonzero(self.lacks)
        turn = int(self.random.integers(len(self.source))) if len(self.source) > 1 else 0
        places = self.random.permutation(len(self.port_at))
        if self.full and self.even:
            for place in places:
                self._port(now, turn, open_, self.port_at[place, open_])
            return
        port = self.port_at[:, open_]
        able = (port >= 0) & (self.source[turn][port] >= 0)
        if not self.even:
            able &= (self.busy[port] <= now) & (self.sent[self.sending[turn, port]] <= now)
            able &= now % self.slot[port] == 0
        some = able.any(axis=1)
        for place in places:
            if some[place]:
                ports_able = able[place]
                if not self.linked:  # who sends through a hub may have begun to in this very round
                    ports_able = ports_able & (self.sent[self.sending[turn, port[place]]] <= now)
                self._port(now, turn, open_[ports_able], port[place][ports_able])

    def _port(self, now: int, turn: int, rank: Index, port: Index) -> None:
        """Let each of these ranks take one chunk over one of its ports."""
        if not len(rank):
            return
        source = self.source[turn, port]
        far = bool(self.outer[port[0]])
        taken_bits, row = (self._outside(rank), np.arange(len(rank))) if far else (self.promised, rank)
        at, word_found = self._rarest(source, taken_bits, row) if self.rarest else self._word(source, taken_bits, row)
        some = np.flatnonzero(word_found)
        if not len(some):
            return
        if len(some) < len(rank):
            rank, source, word_found, at, port = rank[some], source[some], word_found[some], at[some], port[some]
        bit = _random_bit(word_found, int(self.random.integers(64)))
        self.promised[rank, at] |= ONE << bit
        if len(self.inside) > 1:
            np.bitwise_or.at(self.inside, (self.domain[rank], at), ONE << bit)
        chunk = at * 64 + bit.astype(np.int64)
        self.lacks[rank] -= 1
        if self.rarest:
            np.add.at(self.holders, chunk, 1)
        self.made.append((now, source.astype(np.int32), rank.astype(np.int32), chunk.astype(np.int32)))
        if self.even:
            self.under_way.setdefault(now + 1, []).append((rank, chunk))
            return
        ticks = self.ticks[turn, port]
        self.busy[port] = now + ticks
        self.sent[self.sending[turn, port]] = now + ticks
        for late in np.unique(ticks):
            rows_due = ticks == late
            self.under_way.setdefault(now + int(late), []).append((rank[rows_due], chunk[rows_due]))

    def _outside(self, rank: Index) -> Bits:
        """What no rank of the domain was promised is to come from outside; then, what the rank itself lacks."""
        inside = self.inside[self.domain[rank]]
        return np.where((inside == self.all).all(axis=1)[:, None], self.promised[rank], inside)

    def _rarest(self, source: Index, taken: Bits, row: Index) -> tuple[Index, Bits]:
        """For each rank the chunk on offer that fewest ranks hold, as a word with one bit."""
        offered_bits = self.have[source] & ~taken[row]
        chunk_bits = np.unpackbits(offered_bits.view(np.uint8), axis=1, bitorder="little")[:, : self.chunks].astype(
            np.bool_
        )
        tie = self.random.random((len(source), self.chunks) if self.one_root else self.chunks)
        count = self.holders + tie  # neighbours of one root must not all take the same chunk
        best = np.where(chunk_bits, count, np.inf).argmin(axis=1)
        some = chunk_bits[np.arange(len(source)), best]
        return best // 64, np.where(some, ONE << (best % 64).astype(np.uint64), np.uint64(0))

    def _word(self, source: Index, taken: Bits, row: Index) -> tuple[Index, Bits]:
        """For each rank a word with chunks that its source has and it lacks (0: none), from a random place on."""
        low = int(self.random.integers(self.words))
        if self.words <= WINDOW:
            return self._scan(source, taken, row, slice(0, self.words), low)
        low = min(low, self.words - WINDOW)
        at, word_found = self._scan(source, taken, row, slice(low, low + WINDOW), 0)
        without_word = np.flatnonzero(word_found == 0)
        if len(without_word):
            turn = int(self.random.integers(self.words))
            at[without_word], word_found[without_word] = self._scan(
                source[without_word], taken, row[without_word], slice(0, self.words), turn
            )
        return at, word_found

    def _scan(self, source: Index, taken: Bits, row: Index, part: slice, turn: int) -> tuple[Index, Bits]:
        offered_bits = self.have[source, part] & ~taken[row, part]
        some = offered_bits != 0
        rows = np.arange(len(source))
        at = some.argmax(axis=1)
        if turn:
            later = some[:, turn:].argmax(axis=1) + turn
            at = np.where(some[rows, later], later, at)
        return at + part.start, offered_bits[rows, at]


def steps_made(made: Sequence[tuple[int, Ints, Ints, Ints]]) -> Steps:
    """Copies of which each entry has one tick, senders, receivers and chunks; rounds are the ticks that occur."""
    size = [len(rank) for _, _, rank, _ in made]
    rounds = np.repeat(np.unique([now for now, *_ in made], return_inverse=True)[1].astype(np.int32), size)
    source, rank, chunk = (np.concatenate(column) for column in list(zip(*made, strict=True))[1:])
    return copies_of(rounds, source, rank, chunk)


def _random_bit(word: Bits, turn: int) -> Bits:
    """The number of a set bit of each word: the first one from a place on, round and round."""
    if turn:
        word = (word >> np.uint64(turn)) | (word << np.uint64(64 - turn))
    low = word & (~word + ONE)
    bit = np.frexp(low.astype(np.float64))[1] - 1
    return ((bit + turn) % 64).astype(np.uint64)


def is_symmetric(graph: Graph) -> bool:
    """Whether all ranks see the same network: a torus, a ring, all axes closed or of at most two, equal links."""
    is_closed = all(closes or size <= 2 for size, closes in zip(graph.shape, graph.wraps, strict=True))
    return bool(graph.shape) and is_closed and graph.uniform and graph.direct


def torus_ports(shape: tuple[int, ...]) -> Index:
    """(ports, axes) steps to the neighbours that send to a rank: one of an axis of two, else two."""
    port_list = []
    for axis, size in enumerate(shape):
        for sign in (1, -1)[: min(size - 1, 2)]:
            step = np.zeros(len(shape), np.int64)
            step[axis] = sign
            port_list.append(step)
    return np.array(port_list)


def deal_offsets(shape: tuple[int, ...]) -> tuple[Index, Index, Index]:
    """Round, port and offset of every chunk that a rank gets, over as few rounds as the ports allow.

    A port takes the waiting offset that fewest other ports could take; ports with fewest choices go first.
    """
    steps, size = torus_ports(shape), prod(shape)
    place = np.stack(np.unravel_index(np.arange(size), shape), axis=1)
    count = len(steps)
    ahead = np.stack([np.ravel_multi_index(((place + step) % shape).T, shape) for step in steps])
    hops = np.minimum(place, np.array(shape) - place).sum(axis=1)
    is_taken = np.zeros(size, np.bool_)
    is_taken[0] = True
    waiting: list[set[int]] = [set() for _ in range(count)]
    for port in range(count):
        waiting[port].add(int(ahead[port][0]))
    rows: list[tuple[int, int, int]] = []
    round = 0
    while len(rows) < size - 1:
        new = []
        for port in sorted(range(count), key=lambda one: len(waiting[one])):
            if waiting[port]:
                best = min(waiting[port], key=lambda one: (int(hops[one]), sum(one in queue for queue in waiting), one))
                new.append((port, best))
                for queue in waiting:
                    queue.discard(best)
                is_taken[best] = True
        for port, offset in new:
            rows.append((round, port, offset))
        for _, offset in new:
            for port in range(count):
                onward = int(ahead[port][offset])
                if not is_taken[onward]:
                    waiting[port].add(onward)
        round += 1
    table = np.array(rows, np.int64)
    return table[:, 0], table[:, 1], table[:, 2]


def symmetric_allgather(graph: Graph) -> Algorithm:
    """All-gather on a torus or ring in ceil((N - 1) / ports) rounds, or very nearly."""
    shape = graph.shape
    round, port, offset = deal_offsets(shape)
    n = graph.ranks
    place = np.stack(np.unravel_index(np.arange(n), shape), axis=1)
    behind = [np.ravel_multi_index(((place - step) % shape).T, shape).astype(np.int32) for step in torus_ports(shape)]
    far = np.stack(np.unravel_index(offset, shape), axis=1)
    chunk = np.zeros((len(round), n), np.int32)
    for axis, size in enumerate(shape):  # the rank at offset d behind a rank, axis by axis
        stride = prod(shape[axis + 1 :])
        chunk += (((place[:, axis][None] - far[:, axis][:, None]) % size) * stride).astype(np.int32)
    target = np.tile(np.arange(n, dtype=np.int32), len(round))
    steps = copies_of(np.repeat(round.astype(np.int32), n), np.stack(behind)[port].ravel(), target, chunk.ravel())
    return algorithm_of(SYNTHESIZED, "allgather", n, n, steps)
