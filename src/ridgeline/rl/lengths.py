"""Turn described lengths and times into numbers, sample by sample: the same seed gives the same ones."""

from __future__ import annotations

import csv
import math
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import assert_never

import numpy as np

from ridgeline.core.arrays import Array, Index
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.plan.rl_workload import (
    ConstantSeconds,
    ConstantTokens,
    Latency,
    Lengths,
    LognormalSeconds,
    LognormalTokens,
    TokensFile,
    UniformSeconds,
    UniformTokens,
)

GRID = 1 << 12  # quantiles that moments are taken over
FAR = 4.0  # standard deviations at which a lognormal without a limit ends
MOST_LINES = 5_000_000  # of a file of lengths


@cache
def _normal_grid() -> tuple[Array, Array]:
    """Shares and quantiles of the normal distribution."""
    shares = np.concatenate([np.geomspace(1e-7, 0.01, 200), np.linspace(0.0101, 0.9899, 2001)])
    shares = np.concatenate([shares, 1 - shares[199::-1]])
    normal = NormalDist()
    return shares, np.array([normal.inv_cdf(float(share)) for share in shares])


def normal_quantiles(shares: Array) -> Array:
    """Quantiles of the normal distribution, interpolated."""
    grid, values = _normal_grid()
    return np.asarray(np.interp(shares, grid, values), dtype=np.float64)


def clipped_lognormal_mean(mu: float, sigma: float, high: float) -> float:
    """Mean of a lognormal whose values beyond `high` are cut there.

        E min(X, h) = exp(mu + s^2 / 2) F((ln h - mu) / s - s) + h (1 - F((ln h - mu) / s))      F = normal distribution

    >>> round(clipped_lognormal_mean(7.0, 1.0, 4000), 1)
    1504.4
    """
    if sigma == 0:
        return min(math.exp(mu), high)
    normal, place = NormalDist(), (math.log(high) - mu) / sigma
    return math.exp(mu + sigma**2 / 2) * normal.cdf(place - sigma) + high * (1 - normal.cdf(place))


@cache
def _log_median(mean: float, sigma: float, high: float) -> float:
    """Logarithm of the median with which a lognormal cut at `high` has this mean."""
    low, top = math.log(max(mean, 1e-9)) - sigma**2 - 5.0, math.log(high) + 12 * max(sigma, 0.1)
    for _ in range(60):
        middle = (low + top) / 2
        low, top = (middle, top) if clipped_lognormal_mean(middle, sigma, high) < mean else (low, middle)
    return (low + top) / 2


def length_quantiles(lengths: Lengths, shares: Array, growth: float = 1.0) -> Array:
    """Tokens at these shares of all samples; `growth` times as long, where nothing cuts them.

    >>> length_quantiles(UniformTokens(low=100, high=200), np.array([0.0, 0.5, 1.0])).tolist()
    [100.0, 150.0, 200.0]
    """
    match lengths:
        case ConstantTokens(tokens=tokens):
            drawn_tokens = np.full(len(shares), tokens * growth)
        case UniformTokens(low=low, high=high):
            drawn_tokens = (low + (high - low) * shares) * growth
        case LognormalTokens():
            drawn_tokens = _lognormal(lengths, shares, growth)
        case TokensFile():
            numbers = read_lengths(lengths.file, lengths.column)
            drawn_tokens = np.quantile(numbers, np.clip(shares, 0, 1)) * growth
            drawn_tokens = np.minimum(drawn_tokens, lengths.high or float(numbers.max()))
        case _:
            assert_never(lengths)
    return np.maximum(np.round(drawn_tokens), 1.0)


def longest_tokens(lengths: Lengths) -> int:
    """Tokens of the longest: where lengths are cut, else the longest that is expected.

    >>> longest_tokens(LognormalTokens(mean=850, sigma=1.0, high=28672)), longest_tokens(ConstantTokens(tokens=512))
    (28672, 512)
    """
    match lengths:
        case LognormalTokens(mean=mean, sigma=sigma, high=None):
            return round(mean * math.exp(FAR * sigma))
        case _:
            return int(length_quantiles(lengths, np.array([1.0]))[0])


def _lognormal(lengths: LognormalTokens, shares: Array, growth: float) -> Array:
    sigma, mean = lengths.sigma, lengths.mean * growth
    high = float(lengths.high or mean * math.exp(FAR * sigma))
    mu = _log_median(min(mean, high * 0.999), sigma, high)
    return np.clip(np.exp(mu + sigma * normal_quantiles(shares)), lengths.low, high)


def latency_quantiles(latency: Latency, shares: Array) -> Array:
    """Seconds at these shares of all calls."""
    match latency:
        case ConstantSeconds(seconds=seconds):
            return np.full(len(shares), seconds)
        case UniformSeconds(low=low, high=high):
            return np.asarray(low + (high - low) * shares, dtype=np.float64)
        case LognormalSeconds():
            high = latency.high or latency.mean * math.exp(FAR * latency.sigma)
            mu = _log_median(min(latency.mean, high * 0.999), latency.sigma, high)
            return np.minimum(np.exp(mu + latency.sigma * normal_quantiles(shares)), high)
        case _:
            assert_never(latency)


@cache
def read_lengths(file: str, column: str = "") -> Array:
    """Lengths of a text file: one number on each line, or a column of a CSV with a head."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()[:MOST_LINES]
    except (OSError, ValueError) as wrong:
        raise InputError(Problem(path="lengths", given=f"{file}: {wrong}", expected="a file of lengths")) from None
    rows = [row for row in csv.reader(lines) if row and not row[0].lstrip().startswith("#")]
    place = 0
    if rows and not _is_number(rows[0][0]):
        names = [name.strip() for name in rows.pop(0)]
        if column and column not in names:
            expectation = f"a column of {file}: {', '.join(names)}"
            raise InputError(Problem(path="column", given=repr(column), expected=expectation))
        place = names.index(column) if column else 0
    wrong_rows = [row for row in rows if len(row) <= place or not _is_number(row[place])]
    if not rows or wrong_rows:
        given_text = f"{file}: {wrong_rows[0] if wrong_rows else 'no lines'}"
        raise InputError(Problem(path="lengths", given=given_text[:80], expected="a number above 0 on every line"))
    return np.array([float(row[place]) for row in rows])


def _is_number(text: str) -> bool:
    try:
        return 0 < float(text) < 1e9
    except ValueError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthMoments:
    """What phases need of lengths: tokens.

    mean, p90, longest
    attended   mean length of the sample that a token stands in: what attention and packing see
    """

    mean: float
    p90: float
    longest: float
    attended: float


def moments(prompt: Lengths, response: Lengths | None, growth: float = 1.0) -> LengthMoments:
    """Of a prompt and its answer; the two are independent.

    >>> found = moments(ConstantTokens(tokens=100), ConstantTokens(tokens=300))
    >>> found.mean, found.attended
    (400.0, 400.0)
    """
    shares = (np.arange(GRID) + 0.5) / GRID
    prompts = length_quantiles(prompt, shares)
    answers = length_quantiles(response, shares, growth) if response else np.zeros(1)
    mean = float(prompts.mean() + answers.mean())
    spread_value = float(prompts.var() + answers.var())
    total = np.sort(prompts[:: GRID // 64][:, None] + answers[:: max(len(answers) // 64, 1)][None, :], axis=None)
    return LengthMoments(
        mean=mean,
        p90=float(np.quantile(total, 0.9)),
        longest=float(prompts.max() + answers.max()),
        attended=mean + spread_value / mean,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """Samples of one step, prompt after prompt.

    prompt, answer   tokens
    group            which prompt a sample belongs to
    turns            parts that an answer is written in; 1 without tools
    tool_s, tool_tokens   of every pause, sample by turn; nothing behind the last turn
    """

    prompt: Index
    answer: Index
    group: Index
    turns: Index
    tool_s: Array
    tool_tokens: Index

    def __len__(self) -> int:
        return len(self.prompt)

    def at(self, places: Index) -> Samples:
        """Some of them."""
        return Samples(
            prompt=self.prompt[places], answer=self.answer[places], group=self.group[places],
            turns=self.turns[places], tool_s=self.tool_s[places], tool_tokens=self.tool_tokens[places],
        )  # fmt: skip

    @property
    def cache_tokens(self) -> Index:
        """Tokens that a sample has in the cache at its end."""
        return np.asarray(self.prompt + self.answer + self.tool_tokens.sum(1), dtype=np.int64)


def whole_tokens(values: Array) -> Index:
    """Tokens as whole numbers."""
    return np.maximum(values, 1).astype(np.int64)
