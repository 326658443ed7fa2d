"""A library's program as a value: what each thread block of each rank does, on which buffers, and what it waits for.

Instructions of MSCCL (sends and receives on connections) and of MSCCL++ (writes into another rank's memory, signals and
waits) are one type: an instruction adds up what it popped from a connection and what it reads, writes the sum to
places, and pushes it to a connection. A place is (rank, buffer, offset); buffers are i(nput), o(utput), s(cratch).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

from ridgeline.comm.contract import Collective, Contract, contract
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
class Program:
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

    def input_chunk(self, rank: int, offset: int) -> int:
        """The chunk whose contribution stands in a rank's input."""
        if self.collective == "allgather":
            return rank * self.inputs + offset
        return rank * self.inputs + offset if self.collective == "alltoall" else offset

    def output_place(self, rank: int, chunk: int) -> int:
        """Where a rank must hold a chunk in its output; -1: it needs not."""
        n, chunks_per_rank = self.ranks, self.chunks // max(self.ranks, 1)
        match self.collective:
            case "reducescatter":
                return chunk - rank * chunks_per_rank if chunk // chunks_per_rank == rank else -1
            case "alltoall":
                piece = self.inputs // n
                source, place = divmod(chunk, self.inputs)
                target, part = divmod(place, piece)
                return source * piece + part if target == rank else -1
            case "reduce":
                return chunk if rank == self.root else -1
            case _:
                return chunk

    def output_chunk(self, rank: int, offset: int) -> int:
        """The chunk that a rank must hold at an offset of its output: the reverse of `output_place`."""
        n = self.ranks
        match self.collective:
            case "reducescatter":
                return rank * (self.chunks // n) + offset
            case "alltoall":
                piece = self.inputs // n
                source, part = divmod(offset, piece)
                return source * self.inputs + rank * piece + part
            case _:
                return offset

    def begins(self, rank: int) -> bool:
        """Whether a rank's input counts."""
        return self.collective != "broadcast" or rank == self.root

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
        n = self.ranks
        if self.collective != "alltoall":
            return contract(self.collective, n, self.chunks, self.root)
        ids = np.arange(self.chunks, dtype=np.int64)
        piece = self.inputs // n
        owner, goes = ids // self.inputs, (ids % self.inputs) // piece
        return Contract(
            collective="alltoall",
            ranks=n,
            chunks=self.chunks,
            begins=np.stack([owner, ids], axis=1),
            ends=np.stack([goes, ids], axis=1),
            chunk_share=np.full(1, 1.0 / self.inputs),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a parser allows: steps of a block, blocks of a rank, attributes that must be there."""

    steps: int
    blocks: int
    needed: tuple[str, ...] = ()


LIMITS: Mapping[str, Limits] = MappingProxyType(
    {
        "msccl": Limits(steps=256, blocks=216),
        "rccl": Limits(steps=64, blocks=64, needed=("minBytes", "maxBytes", "outofplace")),
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
