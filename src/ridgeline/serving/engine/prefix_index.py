"""Turn prompts into chains: the tokens of one text after one prefix, with the blocks of a pool that hold them.

A block's hash is that of all tokens up to its end. Two blocks have one hash exactly when they end at the same place of
the same chain, so a chain and a place stand for the hash, and no token is ever hashed.
"""

from __future__ import annotations

from dataclasses import field

from ridgeline.core.records import dataclass
from ridgeline.serving.request import Piece

OPEN_END = 1 << 62


class Chain:
    """Tokens of one text after one prefix.

    first    the first block of a table that ends in this chain
    blocks   the cached blocks from there on
    homes    for each of them the run of the free queue it waits in, None while somebody holds it
    twins    further blocks of the same hash by place in `blocks`, oldest first, with their runs
    """

    __slots__ = ("blocks", "first", "homes", "number", "twins")

    def __init__(self, number: int, first: int) -> None:
        self.number = number
        self.first = first
        self.blocks: list[int] = []
        self.homes: list[FreeRun | None] = []
        self.twins: dict[int, list[tuple[int, FreeRun | None]]] = {}


@dataclass(slots=True)
class Part:
    """Consecutive hashed blocks `low .. high` of one chain inside a run; a twin is a second block of its hash."""

    chain: Chain
    low: int
    high: int
    twin: bool = False


@dataclass(slots=True)
class FreeRun:
    """Blocks freed together, in table order: the last one is reused first. No parts: nothing in it is hashed."""

    blocks: list[int]
    parts: list[Part] = field(default_factory=list)


Span = tuple[Chain, int]
"""A chain in a prompt, and the block of the table before which its part of the prompt ends."""


class ContentIndex:
    """Chains by what they follow: equal prefixes find the same chain."""

    __slots__ = ("_block", "_chains")

    def __init__(self, block_size: int) -> None:
        self._block = block_size
        self._chains: dict[tuple[int, int, int, int], Chain] = {}

    def _chain(self, parent: int, begin: int, seed: int, start: int) -> Chain:
        name = (parent, begin, seed, start)
        chain = self._chains.get(name)
        if chain is None:
            chain = self._chains[name] = Chain(len(self._chains) + 1, begin // self._block)
        return chain

    def spans(self, pieces: tuple[Piece, ...]) -> list[Span]:
        """The chains of a prompt, in order."""
        begin, parent = 0, 0
        found: list[Span] = []
        for piece in pieces:
            if piece.tokens:
                chain = self._chain(parent, begin, piece.seed, piece.start)
                begin += piece.tokens
                parent = chain.number
                found.append((chain, begin // self._block))
        return found

    def answer(self, spans: list[Span], begin: int, seed: int) -> Span:
        """The chain of the answer to a prompt of `begin` tokens."""
        return self._chain(spans[-1][0].number, begin, seed, begin), OPEN_END
