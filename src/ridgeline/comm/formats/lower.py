"""Turn an algorithm's table of steps into a program of sends and receives: a thread block for each end of a connection.

Where a chunk stands: at first in the input; once something came for it, in the output where it must end there, else in
scratch. A block that reads or writes a place waits for the blocks that wrote or read it before (`after`), so that the
program is right in any order that its waits allow. With one block to send and one to receive on a connection none can
wait in a circle.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

import numpy as np

from ridgeline.comm.algorithm import REDUCE, Algorithm
from ridgeline.comm.contract import PLAIN_COLLECTIVES
from ridgeline.comm.formats.program import (
    LIMITS,
    MOST_INSTRUCTIONS,
    Connection,
    Instruction,
    Place,
    RankProgram,
    Target,
)
from ridgeline.comm.graph import refusal
from ridgeline.core.arrays import Index

IN_PLACE = ("allreduce", "allgather", "broadcast")  # every rank ends with every chunk, at its own offset
CHANNELS = 1 << 20  # above any channel's number
MOST_MERGED = 71  # chunks of one step
PEERS_A_CHANNEL = 32
SLOTS = 8
Told = tuple[int, int]  # block, step


def refuse_unwritable_algorithm(algorithm: Algorithm, target: str) -> None:
    """An `InputError` where a target has no words for an algorithm."""
    contract = algorithm.contract
    if contract.collective not in PLAIN_COLLECTIVES:
        raise refusal("--to", f"{contract.collective} to {target}", f"one of {', '.join(PLAIN_COLLECTIVES)}")
    if algorithm.nodes > algorithm.ranks:
        raise refusal(
            f"--to {target}",
            f"{algorithm.name}, whose sums are made in switches",
            "an algorithm of ranks alone",
            todo="choose --algorithm",
        )
    if algorithm.contract.root != 0:
        raise refusal(f"--to {target}", f"root {algorithm.contract.root}", "root 0: the file has no other")


def refuse_too_many_steps(algorithm: Algorithm, target: Target) -> None:
    """An `InputError` where a file of sends and receives would break its parser's limits, before it is made.

    What is counted is what there is at least: waits and chunks that cannot go together come on top.
    """
    limits, n = LIMITS[target], algorithm.ranks
    connection, count = _messages(algorithm)
    path, todo = f"--to {target}", "take fewer ranks, or another --algorithm"
    if 2 * int(count.sum()) > MOST_INSTRUCTIONS:
        raise refusal(
            path,
            f"{n} ranks with at least {2 * int(count.sum()):,} sends and receives",
            f"at most {MOST_INSTRUCTIONS:,} in a file",
            todo=todo,
        )
    pair = connection // CHANNELS
    blocks = np.bincount(pair // n, minlength=n) + np.bincount(pair % n, minlength=n)
    if blocks.max(initial=0) > limits.blocks:
        raise refusal(
            path,
            f"{blocks.max()} connections of rank {blocks.argmax()}, a thread block each",
            f"at most {limits.blocks}",
            todo=todo,
        )
    if count.max(initial=0) > limits.steps:
        sender, taker = divmod(int(pair[count.argmax()]), n)
        raise refusal(
            path,
            f"{count.max()} sends from rank {sender} to rank {taker} in one thread block",
            f"at most {limits.steps} steps",
            todo=todo,
        )


def _messages(algorithm: Algorithm) -> tuple[Index, Index]:
    """The connections, as (sender * ranks + receiver) * CHANNELS + channel, and how many messages each has at least.

    Chunks of a round go together where their places follow each other: consecutive chunks where every rank keeps a
    chunk at its own offset.
    """
    steps = algorithm.steps
    pair = steps.source.astype(np.int64) * algorithm.nodes + steps.target
    connection = pair * CHANNELS + channels_of(algorithm)
    order = np.lexsort((steps.chunk, steps.round, connection))
    key, round, chunk = connection[order], steps.round[order], steps.chunk[order]
    first = np.ones(len(key), np.bool_)
    first[1:] = (key[1:] != key[:-1]) | (round[1:] != round[:-1])
    if algorithm.contract.collective in IN_PLACE:
        first[1:] |= chunk[1:] != chunk[:-1] + 1
    starts = np.flatnonzero(first)
    size = np.diff(np.append(starts, len(key)))
    distinct_keys, index = np.unique(key[starts], return_inverse=True)
    return distinct_keys, np.bincount(index, -(-size // MOST_MERGED), len(distinct_keys)).astype(np.int64)


def channels_of(algorithm: Algorithm) -> Index:
    """A channel of each step, for at most 32 peers: by the distance to the peer."""
    steps, n = algorithm.steps, algorithm.ranks
    groups = -(-(n - 1) // PEERS_A_CHANNEL)
    distance = (steps.target.astype(np.int64) - steps.source - 1) % n
    return steps.channel.astype(np.int64) * groups + distance // PEERS_A_CHANNEL


@dataclass(slots=True)
class Places:
    """Where each chunk stands on each rank while steps go by."""

    now: dict[tuple[int, int], Place]
    output: dict[tuple[int, int], Place]
    scratch: dict[int, int] = field(default_factory=dict)
    slot: dict[tuple[int, int], Place] = field(default_factory=dict)

    def after_arrival(self, rank: int, chunk: int) -> Place:
        """Where a chunk stands once something came for it."""
        if (rank, chunk) in self.output:
            return self.output[rank, chunk]
        if (rank, chunk) not in self.slot:
            self.slot[rank, chunk] = self.new_scratch(rank)
        return self.slot[rank, chunk]

    def new_scratch(self, rank: int) -> Place:
        """A place in scratch that nothing else uses."""
        offset = self.scratch.get(rank, 0)
        self.scratch[rank] = offset + 1
        return rank, "s", offset


def empty_program(algorithm: Algorithm, target: Target) -> RankProgram:
    """A program of the algorithm's sizes with nothing in it."""
    chunks, part = algorithm.contract.chunks, algorithm.contract.chunks // algorithm.ranks
    sizes = {"allgather": (part, chunks), "reducescatter": (chunks, part), "alltoall": (part, part)}
    inputs, outputs = sizes.get(algorithm.contract.collective, (chunks, chunks))
    return RankProgram(
        name=algorithm.name or algorithm.contract.collective, target=target,
        collective=algorithm.contract.collective, ranks=algorithm.ranks, inputs=inputs, outputs=outputs, root=0,
        in_place=(False,) if algorithm.contract.collective == "alltoall" else (True, False), slots=SLOTS,
        blocks=((),) * algorithm.ranks,
    )  # fmt: skip


def first_places(program: RankProgram) -> Places:
    """Every contribution in its rank's input, and where chunks must end."""
    ranks = range(program.ranks)
    inputs = {(rank, chunk): (rank, "i", at) for rank in ranks for at, chunk in enumerate(program.input_chunks(rank))}
    outputs = {(rank, chunk): (rank, "o", at) for rank in ranks for at, chunk in enumerate(program.output_chunks(rank))}
    return Places(now=inputs, output=outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredMessage:
    """Chunks that go together from one rank to another: where they stand, where they go, and what they are added to."""

    round: int
    connection: Connection
    source: Place
    target: Place
    base: Place | None
    chunk: int
    count: int = 1

    def follows(self, last: LoweredMessage) -> bool:
        """Whether it is of the same connection, and its places come right after those of another message."""
        if self.connection != last.connection or (last.base is None) != (self.base is None):
            return False
        pairs = ((last.source, self.source), (last.target, self.target), (last.base, self.base))
        return all(a[:2] == b[:2] and a[2] + last.count == b[2] for a, b in pairs if a and b)


def messages_of(algorithm: Algorithm, places: Places, *, merge: bool = True) -> list[LoweredMessage]:
    """Every step as a message, neighbours of a round and connection joined; `places` ends as the algorithm does."""
    steps, messages = algorithm.steps, []
    starts, channel = steps.starts(), channels_of(algorithm)
    for low, high in pairwise(starts):
        arrivals: list[LoweredMessage] = []
        for row in range(low, high):
            source, target, chunk = int(steps.source[row]), int(steps.target[row]), int(steps.chunk[row])
            arrivals.append(
                LoweredMessage(
                    round=int(steps.round[row]),
                    connection=(source, target, int(channel[row])),
                    source=_there(places, source, chunk),
                    target=places.after_arrival(target, chunk),
                    base=_there(places, target, chunk) if steps.op[row] == REDUCE else None,
                    chunk=chunk,
                )
            )
        arrivals.sort(key=lambda one: (one.connection, one.chunk))
        messages += _join_messages(_bases(arrivals)) if merge else _bases(arrivals)
        for arrival in arrivals:
            places.now[arrival.target[0], arrival.chunk] = arrival.target
    return messages


def _bases(arrivals: list[LoweredMessage]) -> list[LoweredMessage]:
    """Of several sums into one place in a round, all but the first add to what is there by then."""
    targets_seen: set[Place] = set()
    with_bases = []
    for arrival in arrivals:
        is_repeat = arrival.base is not None and arrival.target in targets_seen
        with_bases.append(replace(arrival, base=arrival.target) if is_repeat else arrival)
        targets_seen.add(arrival.target)
    return with_bases


def _there(places: Places, rank: int, chunk: int) -> Place:
    place = places.now.get((rank, chunk))
    if place is None:
        raise refusal("algorithm", f"chunk {chunk} used by rank {rank} before it is there", "a verified algorithm")
    return place


def _join_messages(messages: list[LoweredMessage]) -> list[LoweredMessage]:
    joined_messages: list[LoweredMessage] = []
    for message in messages:
        last = joined_messages[-1] if joined_messages else None
        if last is not None and last.count < MOST_MERGED and message.follows(last):
            joined_messages[-1] = replace(last, count=last.count + 1)
        else:
            joined_messages.append(message)
    return joined_messages


class _Rank:
    """The blocks of one rank as they grow, with who wrote and read each place last."""

    def __init__(self) -> None:
        self.blocks: list[list[Instruction]] = []
        self.index: dict[tuple[str, Connection | None], int] = {}
        self.wrote: dict[Place, Told] = {}
        self.read: dict[Place, list[Told]] = defaultdict(list)

    def add(self, key: tuple[str, Connection | None], step: Instruction) -> None:
        """Append a step to its block, after everything it must follow."""
        if key not in self.index:
            self.index[key] = len(self.blocks)
            self.blocks.append([])
        block = self.index[key]
        reads, writes = _each_place(step.reads, step.count), _each_place(step.writes, step.count)
        before = [self.wrote[place] for place in (*reads, *writes) if place in self.wrote]
        before += [wait for place in writes for wait in self.read[place]]
        waits = _latest(before, block)
        instructions = self.blocks[block]
        instructions += [Instruction(name="nop", after=(wait,)) for wait in waits[:-1]]
        instructions.append(replace(step, after=waits[-1:]))
        here = (block, len(instructions) - 1)
        for place in writes:
            self.wrote[place] = here
            self.read[place] = []
        for place in reads:
            self.read[place].append(here)


def _each_place(places: tuple[Place, ...], count: int) -> list[Place]:
    return [(rank, buffer, offset + j) for rank, buffer, offset in places for j in range(count)]


def _latest(before: list[Told], block: int) -> tuple[Told, ...]:
    """The last step of each other block."""
    last: dict[int, int] = {}
    for block_before, step in before:
        if block_before != block:
            last[block_before] = max(step, last.get(block_before, -1))
    return tuple(sorted(last.items()))


def lower_algorithm(algorithm: Algorithm, target: Target) -> RankProgram:
    """The program of an algorithm for MSCCL or RCCL."""
    refuse_unwritable_algorithm(algorithm, target)
    refuse_too_many_steps(algorithm, target)
    program = empty_program(algorithm, target)
    places = first_places(program)
    ranks = [_Rank() for _ in range(program.ranks)]
    by_round = groupby(messages_of(algorithm, places), key=lambda one: one.round)
    for _, together in by_round:
        messages = list(together)
        for message in messages:
            send = Instruction(
                name="s", reads=(message.source,), pushes=message.connection, count=message.count, round=message.round
            )
            ranks[message.connection[0]].add(("send", message.connection), send)
        for message in messages:
            name, reads = ("r", ()) if message.base is None else ("rrc", (message.base,))
            take = Instruction(
                name=name,
                reads=reads,
                writes=(message.target,),
                pops=message.connection,
                count=message.count,
                round=message.round,
            )
            ranks[message.connection[1]].add(("recv", message.connection), take)
    for copy in own_copies(places):
        ranks[copy.reads[0][0]].add(("copy", None), copy)
    blocks = tuple(tuple(tuple(block) for block in rank.blocks) for rank in ranks)
    return replace(program, blocks=blocks)


def own_copies(places: Places) -> list[Instruction]:
    """Chunks that end where they began: copied from input to output."""
    return [
        Instruction(name="cpy", reads=(place,), writes=(places.output[at],))
        for at, place in sorted(places.now.items())
        if place[1] == "i" and at in places.output
    ]
