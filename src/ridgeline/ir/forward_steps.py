"""What engine steps of a serving instance compute: prompt tokens and decodes, as columns over steps.

A step (one iteration of an engine) runs chunks of prompts and one token of every decoding request through the model
together. What it takes depends on four sums, so that any number of steps are columns of numbers:

    prefill_tokens   new prompt tokens of the step
    prefill_pairs    query-key pairs of those chunks: sum of t (c + t / 2), t = tokens of a chunk, c = tokens before it
    decodes          requests that decode
    kv_tokens        cached tokens that those requests read, together
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgeline.core.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardSteps:
    """Steps of one scheduler: of one attention-data-parallel rank, whose peers run steps like it.

    prefills        chunks of prompts in the step, each of which ends in a row of logits
    decode_tokens   tokens of a decoding request in one step: 1, or 1 + draft tokens that are verified
    """

    prefill_tokens: NDArray[np.float64]
    prefill_pairs: NDArray[np.float64]
    decodes: NDArray[np.float64]
    kv_tokens: NDArray[np.float64]
    prefills: NDArray[np.float64]
    decode_tokens: float = 1.0

    def __len__(self) -> int:
        return len(self.prefill_tokens)

    def at(self, rows: NDArray[np.int64]) -> ForwardSteps:
        """These steps, in this order."""
        return ForwardSteps(
            prefill_tokens=self.prefill_tokens[rows],
            prefill_pairs=self.prefill_pairs[rows],
            decodes=self.decodes[rows],
            kv_tokens=self.kv_tokens[rows],
            prefills=self.prefills[rows],
            decode_tokens=self.decode_tokens,
        )

    @property
    def tokens(self) -> NDArray[np.float64]:
        """Tokens that go through the linear layers."""
        return self.prefill_tokens + self.decodes * self.decode_tokens

    @property
    def rows(self) -> NDArray[np.float64]:
        """Rows of logits: the last token of every chunk, every token of a decode."""
        return self.prefills + self.decodes * self.decode_tokens


def forward_steps(
    *,
    prefill_tokens: ArrayLike = 0.0,
    prefill_pairs: ArrayLike = 0.0,
    decodes: ArrayLike = 0.0,
    kv_tokens: ArrayLike = 0.0,
    prefills: ArrayLike | None = None,
    decode_tokens: float = 1.0,
) -> ForwardSteps:
    """Steps from numbers or columns, which are broadcast against each other; one chunk where there are prompt tokens
    and nobody says how many.

    >>> steps = forward_steps(prefill_tokens=[0, 512], prefill_pairs=[0, 512 * 256], decodes=8, kv_tokens=8192)
    >>> len(steps), steps.tokens.tolist(), steps.rows.tolist()
    (2, [8.0, 520.0], [8.0, 9.0])
    """
    numbers = (prefill_tokens, prefill_pairs, decodes, kv_tokens)
    columns = [np.atleast_1d(np.asarray(column, dtype=np.float64)) for column in numbers]
    many = np.minimum(columns[0], 1.0) if prefills is None else np.atleast_1d(np.asarray(prefills, dtype=np.float64))
    table = np.broadcast_arrays(*columns, many)
    return ForwardSteps(
        prefill_tokens=table[0],
        prefill_pairs=table[1],
        decodes=table[2],
        kv_tokens=table[3],
        prefills=table[4],
        decode_tokens=decode_tokens,
    )


def chunk_pairs(tokens: float, context: float = 0.0) -> float:
    """Query-key pairs of a chunk of t tokens behind c: t (c + t / 2).

    >>> chunk_pairs(512), chunk_pairs(512, 1024)
    (131072.0, 655360.0)
    """
    return tokens * (context + tokens / 2)
