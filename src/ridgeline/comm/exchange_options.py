"""Turn what was asked of an exchange (a pair, a table of sizes, experts) into the algorithms that can do it.

sendrecv            each of `pairs` sends M at once: "0-5", or 0 to the last rank
alltoallv           `matrix`: a CSV file or rows with what rank i sends to rank j, in any unit; M is the most one sends
dispatch, combine   `tokens` of each rank go once to every rank that holds one of the token's `top_k` of `experts`,
                    drawn by `routing_seed`; combine is the reverse, which adds up. M is a rank's tokens
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np

from ridgeline.comm.algorithm import Algorithm, Candidate, reversed_algorithm
from ridgeline.comm.library.exchanges import alltoallv, forwarded_dispatch, moe_dispatch, sends
from ridgeline.comm.select import MOST_STEPS
from ridgeline.core.arrays import Array, Index
from ridgeline.core.errors import InputError, Problem

EXCHANGES = ("sendrecv", "alltoallv", "dispatch", "combine")
_PAIR = re.compile(r"(\d{1,8})-(\d{1,8})")
MOST_CELLS = 1 << 24


class ExchangeOptions(TypedDict, total=False):
    """What only exchanges ask for."""

    pairs: Iterable[str]
    matrix: str | Path | Sequence[Sequence[float]] | None
    experts: int
    top_k: int
    tokens: int
    routing_seed: int


def exchange_candidates(kind: str, ranks: int, asked: ExchangeOptions, domain: int = 0) -> list[Candidate]:
    """Every algorithm of the library for an exchange; `domain`: ranks of a domain, where all have as many."""
    match kind:
        case "sendrecv":
            source, target = _pairs(list(asked.get("pairs", ())), ranks)
            return [_fixed_candidate("direct", sends(ranks, source, target))]
        case "alltoallv":
            sizes = _matrix(asked.get("matrix"), ranks)
            return [
                _fixed_candidate(name, alltoallv(sizes, at_once=name == "all-pairs"))
                for name in ("pairwise", "all-pairs")
            ]
        case _:
            chosen, experts_per_rank = _route_tokens(ranks, asked)
            algorithms = [moe_dispatch(chosen, ranks, experts_per_rank, at_once=at_once) for at_once in (False, True)]
            if 1 < domain < ranks and ranks % domain == 0:
                algorithms.append(forwarded_dispatch(chosen, ranks, experts_per_rank, domain))
            if kind == "combine":
                algorithms = [reversed_algorithm(algorithm) for algorithm in algorithms]
            return [_fixed_candidate(algorithm.name, algorithm) for algorithm in algorithms]


def _fixed_candidate(name: str, made: Algorithm) -> Candidate:
    return Candidate(name=name, steps=len(made.steps), make=lambda: made)


def _pairs(given: list[str], ranks: int) -> tuple[np.ndarray, np.ndarray]:
    texts = given or [f"0-{ranks - 1}"]
    pairs = []
    for text in texts:
        match = _PAIR.fullmatch(text)
        ends = tuple(map(int, match.groups())) if match else (0, 0)
        if match is None or ends[0] == ends[1] or max(ends) >= ranks:
            raise _wrong("pair", repr(text), f"two different ranks of 0 to {ranks - 1}, as 0-{ranks - 1}")
        pairs.append(ends)
    table = np.array(pairs, np.int64)
    return table[:, 0], table[:, 1]


def _matrix(given: str | Path | Sequence[Sequence[float]] | None, ranks: int) -> Array:
    if given is None:
        return np.ones((ranks, ranks))
    rows = given if not isinstance(given, (str, Path)) else _read(Path(given), ranks)
    if len(rows) != ranks or any(len(row) != ranks for row in rows):
        wide = {len(row) for row in rows}
        shape = f"{len(rows)} rows of {' or '.join(map(str, sorted(wide)))} columns"
        raise _wrong("matrix", shape, f"{ranks} rows of {ranks} columns: what rank i sends to rank j")
    table = np.array(rows, np.float64)
    if not np.isfinite(table).all() or (table < 0).any() or not table.any():
        raise _wrong("matrix", "a negative or infinite size, or nothing to send", "sizes from 0 on, some above")
    return table


def _read(path: Path, ranks: int) -> list[list[float]]:
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_CELLS + 1)
        if len(raw) > MOST_CELLS:
            raise _wrong("matrix", f"{path} of more than {MOST_CELLS} bytes", f"at most {MOST_CELLS}")
        lines = csv.reader(raw.decode("utf-8-sig").splitlines())
        rows = [row for row in lines if row and not row[0].lstrip().startswith("#")]
    except (OSError, UnicodeDecodeError, csv.Error) as broken:
        why = getattr(broken, "strerror", None) or broken
        raise _wrong("matrix", f"{path}: {why}"[:200], f"a CSV file of {ranks} rows") from None
    for number, row in enumerate(rows):
        for column, cell in enumerate(row):
            try:
                float(cell)
            except ValueError:
                given_text = f"{path}: {cell[:40]!r} from rank {number} to rank {column}"
                raise _wrong("matrix", given_text, "a number") from None
    return [[float(cell) for cell in row] for row in rows]


def _route_tokens(ranks: int, asked: ExchangeOptions) -> tuple[Index, int]:
    """The experts of every token, each as likely, and how many a rank holds."""
    experts, top_k, tokens = asked.get("experts", 0) or ranks, asked.get("top_k", 0) or 1, asked.get("tokens", 0) or 64
    if experts % ranks:
        raise _wrong("experts", str(experts), f"a multiple of {ranks} ranks, which hold equally many")
    if not 1 <= top_k <= experts:
        raise _wrong("top-k", str(top_k), f"1 to {experts} experts")
    if not 1 <= tokens * ranks * top_k <= MOST_STEPS:
        raise _wrong("tokens", str(tokens), f"1 or more, and {MOST_STEPS:,} steps at most")
    random = np.random.default_rng(asked.get("routing_seed", 0))
    chosen = np.argsort(random.random((tokens * ranks, experts)), axis=1)[:, :top_k]
    return chosen, experts // ranks


def _wrong(path: str, given: str, expected: str) -> InputError:
    return InputError(Problem(path=path, given=given, expected=expected))
