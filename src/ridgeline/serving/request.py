"""What is asked of an engine: requests, and the content of their tokens as far as caches can tell it apart.

Only equality of token ids matters to a prefix cache. A prompt is therefore a tuple of pieces, each a seed and a range:
token i of two pieces is the same token when both seed and i are. A block's hash is then a number made of the chain of
pieces before it and the position where the block ends, equal exactly when the whole prefix is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

POSITION_BITS = 32
"""Room for positions in a block key: sequences stay far below 2^32 tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Tokens `start .. start + tokens` of an endless text named by `seed`."""

    seed: int
    tokens: int
    start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt and its answer.

    `output_tokens` is the true length of the answer, `max_new_tokens` what the client allowed: schedulers see the
    second, the engine finds out the first. `after` names the request whose answer precedes this one in a session:
    it is sent `arrival_s` after that answer's last token instead of `arrival_s` after the start.
    """

    id: str
    arrival_s: float
    prompt: tuple[Piece, ...]
    output_tokens: int
    max_new_tokens: int
    priority: int = 0
    output_seed: int = 0
    after: str | None = None

    @property
    def prompt_tokens(self) -> int:
        return sum(piece.tokens for piece in self.prompt)


def plain_request(*, index: int, arrival_s: float, prompt_tokens: int, output_tokens: int) -> Request:
    """A request that shares no token with any other."""
    return Request(
        id=f"r{index}",
        arrival_s=arrival_s,
        prompt=(Piece(seed=2 * index, tokens=prompt_tokens),),
        output_tokens=output_tokens,
        max_new_tokens=output_tokens,
        output_seed=2 * index + 1,
    )


@dataclass(slots=True)
class ContentIndex:
    """Numbers for prefixes: two prefixes get one number exactly when their tokens are equal."""

    chains: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def _chain(self, parent_key: int, piece: Piece) -> int:
        name = (parent_key, piece.seed, piece.start)
        number = self.chains.get(name)
        if number is None:
            number = self.chains[name] = (len(self.chains) + 1) << POSITION_BITS
        return number

    def spans(self, pieces: tuple[Piece, ...]) -> list[tuple[int, int]]:
        """(end position, chain number) of each piece; a key is the chain number plus a position inside it."""
        end, key, found = 0, 0, []
        for piece in pieces:
            if piece.tokens:
                chain = self._chain(key, piece)
                end += piece.tokens
                key = chain + end
                found.append((end, chain))
        return found

    def extended(self, spans: list[tuple[int, int]], seed: int, start: int) -> int:
        """The chain number of what follows those spans: token `start` of text `seed` and its successors."""
        end, chain = spans[-1]
        return self._chain(chain + end, Piece(seed=seed, tokens=1, start=start))


def block_keys(spans: list[tuple[int, int]], block: int) -> list[int]:
    """Keys of the full blocks of a prompt, first to last: the hash chain of vLLM's prefix cache.

    >>> block_keys([(40, 1 << 32)], 16) == [(1 << 32) + 16, (1 << 32) + 32]
    True
    """
    if len(spans) == 1:
        end, chain = spans[0]
        return list(range(chain + block, chain + end + 1, block))
    return list(_keys_of_many(spans, block))


def _keys_of_many(spans: list[tuple[int, int]], block: int) -> Iterator[int]:
    begin = 0
    for end, chain in spans:
        first = (begin // block + 1) * block
        yield from range(chain + first, chain + end + 1, block)
        begin = end
