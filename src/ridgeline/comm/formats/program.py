"""A library's program as a value: what each thread block of each rank does, on which buffers, and what it waits for.

Instructions of MSCCL (sends and receives on connections) and of MSCCL++ (writes into another rank's memory, signals and
waits) are one type: an instruction adds up what it popped from a connection and what it reads, writes the sum to
places, and pushes it to a connection. A place is (rank, buffer, offset); buffers are i(nput), o(utput), s(cratch).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from types import MappingProxyType
from typing import Literal

import numpy as np

from ridgeline.comm.algorithm import COPY, REDUCE, Algorithm, steps_of
from ridgeline.comm.contract import Collective, Contract, contract
from ridgeline.comm.verify import AlgorithmVerification
from ridgeline.core.errors import InputError, Problem

Place = tuple[int, str, int]
Connection = tuple[int, int, int]  # from rank, to rank, channel
Target = Literal["msccl", "rccl", "mscclpp"]
MOST_RANKS = 4096
MOST_CHUNKS = 2**20  # of one rank
MOST_INSTRUCTIONS = 2**18
MOST_MOVES = 2**20  # chunks that all instructions move
MOST_PLACES = 2**21  # chunks of all ranks' inputs and outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One step of a thread block.

    after          steps of other blocks of the rank that come first, as (block, step)
    pops, pushes   connections
    reads, writes  places of the first of `count` chunks; the first read is the one that others are added to
    signals        semaphores it raises; `waits`: those it takes one from
    barrier        (number, blocks) that meet here
    flags          whether what is written carries flags that `awaits_flags` waits for (packets)
    round          where the file says it; -1: not
    """

    name: str
    after: tuple[tuple[int, int], ...] = ()
    pops: Connection | None = None
    pushes: Connection | None = None
    reads: tuple[Place, ...] = ()
    writes: tuple[Place, ...] = ()
    count: int = 1
    signals: tuple[tuple[int, ...], ...] = ()
    waits: tuple[tuple[int, ...], ...] = ()
    barrier: tuple[int, int] | None = None
    flags: bool = False
    awaits_flags: bool = False
    round: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgram:
    """All ranks' thread blocks, and the contract they are to keep.

    blocks     by rank, then by block: its instructions in order
    in_place   whether input and output are one buffer; both: the file is meant for either
    slots      messages that a connection holds
    initial    what semaphores stand at before anything runs
    """

    name: str
    target: Target
    collective: Collective
    ranks: int
    inputs: int
    outputs: int
    root: int
    in_place: tuple[bool, ...]
    slots: int
    blocks: tuple[tuple[tuple[Instruction, ...], ...], ...]
    initial: tuple[tuple[tuple[int, ...], int], ...] = ()

    @property
    def chunks(self) -> int:
        """Chunks of the whole, as the contract counts them."""
        n = self.ranks
        return {"allgather": self.inputs * n, "alltoall": self.inputs * n}.get(self.collective, self.inputs)

    def input_chunks(self, rank: int) -> range:
        """The chunks whose contributions stand in a rank's input, by offset; none where the input does not count."""
        if self.collective == "broadcast" and rank != self.root:
            return range(0)
        first = rank * self.inputs if self.collective in ("allgather", "alltoall") else 0
        return range(first, first + self.inputs)

    def output_chunks(self, rank: int) -> Sequence[int]:
        """The chunks that a rank must hold, by offset in its output."""
        match self.collective:
            case "reducescatter":
                return range(rank * self.outputs, (rank + 1) * self.outputs)
            case "alltoall":
                piece = self.inputs // self.ranks
                firsts = (source * self.inputs + rank * piece for source in range(self.ranks))
                return [first + part for first in firsts for part in range(piece)]
            case "reduce" if rank != self.root:
                return range(0)
            case _:
                return range(self.outputs)

    def alias(self, place: Place) -> Place:
        """The place that input and output share where they are one buffer."""
        rank, buffer, offset = place
        if self.collective == "allgather" and buffer == "i":
            return rank, "o", rank * self.inputs + offset
        if self.collective == "reducescatter" and buffer == "o":
            return rank, "i", rank * (self.inputs // self.ranks) + offset
        return (rank, "o", offset) if buffer == "i" and self.collective not in ("allgather", "reducescatter") else place

    def contract(self) -> Contract:
        """What is to be kept, chunk by chunk."""
        return contract(self.collective, self.ranks, self.chunks, self.root)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserLimits:
    """What a parser allows: steps of a block, blocks of a rank, attributes that must be there."""

    steps: int
    blocks: int
    needed: tuple[str, ...] = ()


LIMITS: Mapping[str, ParserLimits] = MappingProxyType(
    {
        "msccl": ParserLimits(steps=256, blocks=216),
        "rccl": ParserLimits(steps=64, blocks=64, needed=("minBytes", "maxBytes", "outofplace")),
    }
)


class Wrong:
    """Makes the refusals of one file: where, what was given, what was expected."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __call__(self, path: str, given: str, expected: str, todo: str = "") -> InputError:
        return InputError(Problem(path=path, given=given[:160], expected=expected, todo=todo, where=self.where))


def refuse_too_large(wrong: Wrong, ranks: int, inputs: int, outputs: int) -> None:
    """An `InputError` where nobody could follow every chunk."""
    if ranks * (inputs + outputs) > MOST_PLACES:
        given_text = f"{ranks} ranks of {inputs} and {outputs} chunks"
        raise wrong("chunks", given_text, f"at most {MOST_PLACES} in all")


def whole_number(wrong: Wrong, path: str, text: object, least: int, most: int) -> int:
    """A whole number within limits, from text or JSON."""
    try:
        if isinstance(text, bool) or not isinstance(text, (int, str)):
            raise ValueError
        value = int(text) if isinstance(text, int) or len(text) < 20 else most + 1
    except ValueError:
        raise wrong(path, repr(text), f"a whole number from {least} to {most}") from None
    if not least <= value <= most:
        raise wrong(path, str(value), f"a whole number from {least} to {most}")
    return value


FIELD = (1 << 61) - 1
ORDERS = 4
MOST = 8  # problems that are named


@dataclass(slots=True)
class _Value:
    """What a place holds: the sum, which chunk it is (-1: of several), after which round, the steps that brought it."""

    sum: int
    chunk: int
    round: int
    arrivals: tuple[int, ...] = ()


class _Stuck(Exception):
    """A run ends here: the problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def execute(program: RankProgram) -> tuple[Algorithm, AlgorithmVerification]:
    """The steps of a program as an algorithm, and whether the program keeps its contract."""
    problems: list[Problem] = []
    first: list[list[int]] | None = None
    for in_place in program.in_place:
        for order in range(ORDERS):
            run = _ProgramRun(program, in_place, order)
            try:
                problems += run.run()
            except _Stuck as stuck:
                problems.append(stuck.problem)
            first = run.transfers if first is None else first
            if problems:
                break
    assert first is not None
    rows = np.array(first, np.int64).reshape(-1, 6)
    when, source, target, chunk, op, channel = rows[np.lexsort(rows[:, [3, 2, 1, 0]].T)].T
    steps = steps_of(when, source, target, chunk, op.astype(np.int8), channel.astype(np.int8))
    algorithm = Algorithm(name=program.name, contract=program.contract(), nodes=program.ranks, steps=steps)
    distinct_problems = tuple(dict.fromkeys(problems))[:MOST]  # in place and out of place may break alike
    return algorithm, AlgorithmVerification(ok=not problems, steps=len(algorithm.steps), problems=distinct_problems)


class _ProgramRun:
    """One execution in one order of blocks."""

    def __init__(self, program: RankProgram, in_place: bool, order: int) -> None:
        self.program, self.in_place, self.order = program, in_place, order
        seed = blake2b(repr((program.name, program.ranks, program.inputs, order)).encode(), digest_size=8).digest()
        self.random = random.Random(seed)
        self.memory: dict[Place, _Value] = {}
        self.flagged: set[Place] = set()
        self.wrote: dict[Place, str] = {}
        self.wires: dict[Connection, deque[list[_Value]]] = {}
        self.raised: dict[tuple[int, ...], int] = dict(program.initial)
        self.met: dict[tuple[int, int], set[int]] = {}
        self.transfers: list[list[int]] = []  # round, source, target, chunk, op, channel
        self.at = [[0] * len(blocks) for blocks in program.blocks]
        self.whole: dict[int, int] = {}
        for rank in range(program.ranks):
            for offset, chunk in enumerate(program.input_chunks(rank)):
                element = self.random.randrange(1, FIELD)
                self.memory[self._place((rank, "i", offset))] = _Value(element, chunk, 0)
                self.whole[chunk] = (self.whole.get(chunk, 0) + element) % FIELD

    def _place(self, place: Place) -> Place:
        return self.program.alias(place) if self.in_place else place

    def run(self) -> list[Problem]:
        """Run all blocks to their end, then look at the outputs."""
        blocks = [
            (rank, block) for rank, rank_blocks in enumerate(self.program.blocks) for block in range(len(rank_blocks))
        ]
        if self.order == 1:
            blocks.reverse()
        is_moving = True
        while is_moving:
            is_moving = False
            if self.order > 1:
                self.random.shuffle(blocks)
            for rank, block in blocks:
                while self._advance(rank, block):
                    is_moving = True
                    if self.order > 1 and self.random.random() < 0.5:
                        break
        stuck_places = [place for place in blocks if self.at[place[0]][place[1]] < len(self._steps(*place))]
        if stuck_places:
            rank, block = min(stuck_places)
            at = self.at[rank][block]
            step = self._steps(rank, block)[at]
            given_text = (
                f"waits for ever for {self._wait_reason(rank, block, step)}; {len(stuck_places)} blocks are stuck"
            )
            raise _Stuck(self._problem(rank, block, at, step, given_text, "an order without deadlock"))
        return self._outputs()

    def _steps(self, rank: int, block: int) -> tuple[Instruction, ...]:
        return self.program.blocks[rank][block]

    def _advance(self, rank: int, block: int) -> bool:
        """Do the next instruction of a block if nothing keeps it waiting."""
        steps, at = self._steps(rank, block), self.at[rank][block]
        if at >= len(steps):
            return False
        step = steps[at]
        if self._wait_reason(rank, block, step):
            return False
        self._do(rank, block, at, step)
        self.at[rank][block] += 1
        return True

    def _wait_reason(self, rank: int, block: int, step: Instruction) -> str:
        """What an instruction waits for; blank: nothing."""
        for waited_block, number in step.after:
            if self.at[rank][waited_block] <= number:
                return f"step {number} of block {waited_block}"
        if step.pops is not None and not self.wires.get(step.pops):
            return f"a message from rank {step.pops[0]} on channel {step.pops[2]}"
        if step.pushes is not None and len(self.wires.get(step.pushes, ())) >= self.program.slots:
            return f"a free slot to rank {step.pushes[1]} on channel {step.pushes[2]}"
        for key in step.waits:
            if self.raised.get(key, 0) < step.waits.count(key):
                return f"a signal of rank {key[0]}"
        if step.barrier is not None:
            met = self.met.setdefault((rank, step.barrier[0]), set())
            met.add(block)
            is_released = block in self.met.get((rank, -1 - step.barrier[0]), set())
            if len(met) < step.barrier[1] and not is_released:
                return f"{step.barrier[1] - len(met)} more blocks at barrier {step.barrier[0]}"
        if step.awaits_flags:
            for owner, buffer, offset in step.reads:
                for place in (self._place((owner, buffer, offset + j)) for j in range(step.count)):
                    if place[1] == "s" and place not in self.flagged:
                        return f"a packet in {_place_text(place)}"
        return ""

    def _do(self, rank: int, block: int, at: int, step: Instruction) -> None:
        for key in step.waits:
            self.raised[key] -= 1
        if step.barrier is not None:
            self._meet(rank, block, step.barrier[0])
        popped_values = self.wires[step.pops].popleft() if step.pops is not None else []
        if step.pops is not None and len(popped_values) != step.count:
            raise _Stuck(self._problem(rank, block, at, step, f"{len(popped_values)} chunks arrive", f"{step.count}"))
        count = step.count if step.reads or step.pops else 0
        sums = [self._sum(rank, block, at, step, j, popped_values) for j in range(count)]
        for j, value in enumerate(sums):
            for owner, buffer, offset in step.writes:
                where = self._place((owner, buffer, offset + j))
                self.memory[where] = value if owner == rank else self._record_arrival(step, rank, owner, value, 0)
                self.wrote[where] = f"step {at} of rank {rank}, block {block}"
                if step.flags:
                    self.flagged.add(where)
        if step.pushes is not None:
            self.wires.setdefault(step.pushes, deque()).append(sums)
        for key in step.signals:
            self.raised[key] = self.raised.get(key, 0) + 1

    def _meet(self, rank: int, block: int, number: int) -> None:
        """Let the others of a barrier pass it, too, when the first does."""
        met = self.met.setdefault((rank, number), set())
        passed_blocks = self.met.setdefault((rank, -1 - number), set())
        if block in passed_blocks:
            passed_blocks.discard(block)
            return
        passed_blocks.update(met - {block})
        met.clear()

    def _sum(self, rank: int, block: int, at: int, step: Instruction, j: int, popped: list[_Value]) -> _Value:
        """What an instruction makes of chunk j: popped and read, added up."""
        parts: list[_Value] = []
        for index, (owner, buffer, offset) in enumerate(step.reads):
            place = self._place((owner, buffer, offset + j))
            value = self.memory.get(place)
            if value is None:
                raise _Stuck(
                    self._problem(rank, block, at, step, f"{_place_text(place)} empty", "what it reads to be there")
                )
            if owner != rank:
                value = self._record_arrival(step, owner, rank, value, 0)
            if len(step.reads) > 1 and index > 0:
                self._adds(value)
            parts.append(value)
        if popped:
            assert step.pops is not None
            value = self._record_arrival(step, step.pops[0], rank, popped[j], step.pops[2])
            if parts:
                self._adds(value)
            parts.append(value)
        chunks = {value.chunk for value in parts}
        return _Value(
            sum=sum(value.sum for value in parts) % FIELD,
            chunk=chunks.pop() if len(chunks) == 1 else -1,
            round=max(value.round for value in parts),
            arrivals=parts[0].arrivals if len(parts) == 1 else (),
        )

    def _adds(self, value: _Value) -> None:
        """What arrived so is added to something here: its steps reduce."""
        for index in value.arrivals:
            self.transfers[index][4] = REDUCE

    def _record_arrival(self, step: Instruction, source: int, target: int, value: _Value, channel: int) -> _Value:
        """The value after its way from one rank to another, which is a step."""
        when = step.round if step.round >= 0 else value.round
        self.transfers.append([when, source, target, max(value.chunk, 0), COPY, channel % 128])
        return _Value(value.sum, value.chunk, when + 1, (len(self.transfers) - 1,))

    def _outputs(self) -> list[Problem]:
        program, problems = self.program, []
        for rank in range(program.ranks):
            for offset, chunk in enumerate(program.output_chunks(rank)):
                place = self._place((rank, "o", offset))
                value = self.memory.get(place)
                if value is None or value.sum != self.whole[chunk]:
                    held_text = "nothing" if value is None else "another sum"
                    last = self.wrote.get(place)
                    given_text = f"{held_text} for chunk {chunk} in {_place_text(place)}" + (
                        f", written by {last}" if last else ""
                    )
                    problems.append(
                        Problem(path=f"rank {rank}", given=given_text, expected="every contribution exactly once")
                    )
                    if len(problems) >= MOST:
                        return problems
        return problems

    @staticmethod
    def _problem(rank: int, block: int, at: int, step: Instruction, given: str, expected: str) -> Problem:
        return Problem(path=f"rank {rank}, block {block}, step {at} ({step.name})", given=given, expected=expected)


def _place_text(place: Place) -> str:
    return f"{place[1]}[{place[2]}] of rank {place[0]}"
