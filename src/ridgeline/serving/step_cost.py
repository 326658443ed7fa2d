"""Seconds of an engine step: given as a line, or priced on a grid of batch sizes and looked up between them.

A step of pure decode is a line in the cached tokens it reads, one for every number of requests (captured graph sizes
make stairs of them). A step with prefill is

    seconds = base[T] + pair[T] x pairs + rows[d] + line[d] x cached tokens        T = prompt tokens + decodes d

base is priced on both sides of every tile's edge and straight between, pair on a coarse grid; rows is what logits and
sampling of d decodes add to as many prompt tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.records import dataclass
from ridgeline.ir.forward_steps import ForwardSteps, chunk_pairs, forward_steps


class StepCost(Protocol):
    """Seconds of an engine step.

    A step of pure decode is a straight line in the cached tokens it reads, so that a run of such steps, each reading
    one token more per request, has a closed form.
    """

    def decode_line(self, decodes: int) -> tuple[float, float]:
        """(seconds, seconds per cached token read) of a step that decodes that many requests and nothing else."""

    def mixed_step_seconds(self, chunks: Sequence[tuple[int, int]], decodes: int, kv_tokens: int) -> float:
        """Seconds of a step with prefill: (tokens, context before them) of each chunk, and the decodes beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearStepCost:
    """A step cost of five numbers, in seconds.

        seconds = step + decode x requests + kv x cached tokens read + prefill x tokens + attention x pairs

    pairs = prompt tokens x tokens each attends to: t x (context + t / 2) of a chunk of t. What it leaves out is
    everything that is not linear: tiles, graph sizes, the ridge between memory and compute.
    """

    step_s: float
    decode_s: float = 0.0
    kv_token_s: float = 0.0
    prefill_token_s: float = 0.0
    attention_pair_s: float = 0.0

    def decode_line(self, decodes: int) -> tuple[float, float]:
        return self.step_s + self.decode_s * decodes, self.kv_token_s

    def mixed_step_seconds(self, chunks: Sequence[tuple[int, int]], decodes: int, kv_tokens: int) -> float:
        seconds = self.step_s + self.decode_s * decodes + self.kv_token_s * kv_tokens
        for tokens, context in chunks:
            seconds += tokens * (self.prefill_token_s + self.attention_pair_s * (context + tokens / 2))
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledStepCost:
    """Another step cost times a factor."""

    cost: StepCost
    factor: float

    def decode_line(self, decodes: int) -> tuple[float, float]:
        fixed, per_token = self.cost.decode_line(decodes)
        return fixed * self.factor, per_token * self.factor

    def mixed_step_seconds(self, chunks: Sequence[tuple[int, int]], decodes: int, kv_tokens: int) -> float:
        return self.cost.mixed_step_seconds(chunks, decodes, kv_tokens) * self.factor


SHORT, LONG = 256.0, 4096.0  # cached tokens of a request between which a decode's line is drawn
FINE = 512  # requests up to which every captured size is priced
BESIDE = 1024.0  # prompt tokens beside which rows of logits are priced
MORE = 4.0  # times the pairs of one chunk without context at which attention's slope is taken

Price = Callable[[ForwardSteps], Array]
"""Seconds of engine steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedSteps:
    """A `StepCost` of tables: lines by decodes; intercepts and slopes in pairs by tokens; rows by decodes."""

    lines: list[tuple[float, float]]
    base: list[float]
    pair: list[float]
    rows: list[float]

    def decode_line(self, decodes: int) -> tuple[float, float]:
        lines = self.lines
        if decodes < len(lines):
            return lines[decodes]
        last, before = lines[-1], lines[len(lines) // 2]  # beyond the largest number tabulated, as these two go on
        more = (decodes - len(lines) + 1) / (len(lines) - 1 - len(lines) // 2)
        return last[0] + (last[0] - before[0]) * more, last[1]

    def mixed_step_seconds(self, chunks: Sequence[tuple[int, int]], decodes: int, kv_tokens: int) -> float:
        tokens, pairs = decodes, 0.0
        for many, context in chunks:
            tokens += many
            pairs += many * (context + many / 2)
        base, pair = self.base, self.pair
        if tokens >= len(base):
            end = len(base) - 1
            seconds = base[end] * tokens / end + pair[end] * pairs
        else:
            seconds = base[tokens] + pair[tokens] * pairs
        if not decodes:
            return seconds
        fixed, per_token = self.decode_line(decodes)
        rows = self.rows[min(decodes, len(self.rows) - 1)]
        return max(seconds + rows + per_token * kv_tokens, fixed + per_token * kv_tokens)


def priced_steps(price: Price, *, max_num_seqs: int, max_tokens: int, tokens_per_step: float = 1.0) -> PricedSteps:
    """Tabulate the price of steps of at most so many requests and tokens.

    tokens_per_step   tokens a decode gains in one step, where drafts are verified: a token then costs that much less
    """
    decodes, tokens = _decode_grid(max_num_seqs), _token_grid(max_tokens)
    coarse = np.unique([float(min(4**place, max_tokens)) for place in range(2, 9)])
    seconds = price(_steps(decodes, tokens, coarse))
    d, t, c = len(decodes), len(tokens), len(coarse)
    short, long_, alone, once, more, row_less, row_more = np.split(seconds, np.cumsum([d, d, t, c, c, d]))
    slope = np.maximum(long_ - short, 0.0) / (decodes * (LONG - SHORT))
    fixed = short - slope * decodes * SHORT
    slopes = np.maximum(more - once, 0.0) / (coarse**2 / 2 * (MORE - 1))
    pair = np.interp(tokens, coarse, slopes)
    every = np.arange(max_num_seqs + 1.0)
    line_fixed = _stairs(every, decodes, fixed) / tokens_per_step
    line_slope = _stairs(every, decodes, slope) / tokens_per_step
    upto = np.arange(max_tokens + 1)
    return PricedSteps(
        lines=list(zip(line_fixed.tolist(), line_slope.tolist(), strict=True)),
        base=np.interp(upto, tokens, alone - pair * tokens**2 / 2).tolist(),
        pair=np.interp(upto, tokens, pair).tolist(),
        rows=np.maximum(np.interp(every, decodes, row_more - row_less), 0.0).tolist(),
    )


def _steps(decodes: Array, tokens: Array, coarse: Array) -> ForwardSteps:
    """Every step that a table needs, in one column."""
    none_d, none_t, none_c = np.zeros(len(decodes)), np.zeros(len(tokens)), np.zeros(len(coarse))
    beside = np.full(len(decodes), BESIDE)
    pairs = np.full(len(decodes), chunk_pairs(BESIDE))
    own, few = tokens**2 / 2, coarse**2 / 2
    return forward_steps(
        prefill_tokens=np.concatenate([none_d, none_d, tokens, coarse, coarse, beside + decodes, beside]),
        prefill_pairs=np.concatenate([none_d, none_d, own, few, few * MORE, pairs, pairs]),
        decodes=np.concatenate([decodes, decodes, none_t, none_c, none_c, none_d, decodes]),
        kv_tokens=np.concatenate([decodes * SHORT, decodes * LONG, none_t, none_c, none_c, none_d, none_d]),
    )


def _decode_grid(most: int) -> Array:
    """Numbers of requests to price: every captured size, few beyond."""
    fine = [1, 2, 3, 4, *range(8, min(most, FINE) + 1, 8)]
    coarse = np.geomspace(FINE, max(most, FINE + 1), 9)[1:].round().tolist() if most > FINE else []
    return np.unique([float(min(one, most)) for one in (*fine, *coarse, most)])


def _token_grid(most: int) -> Array:
    """Tokens to price: few powers, then both sides of every edge of a tile, fewer of them where a step is long."""
    edges = [*range(64, 2048, 64), *range(2048, 4096, 128), *range(4096, most + 1, 512)]
    both = [one + more for one in edges for more in (0, 1) if one + more <= most]
    return np.unique([float(one) for one in (1, 2, 4, 8, 16, 32, *both, most) if one <= most])


def _stairs(every: Array, grid: Array, values: Array) -> Array:
    """Values by number of requests: that of the next priced number up to FINE, where graphs round up; else between."""
    up = values[np.minimum(np.searchsorted(grid, every), len(grid) - 1)]
    return np.where(every <= FINE, up, np.interp(every, grid, values))
