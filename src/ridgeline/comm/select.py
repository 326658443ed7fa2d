"""Turn a collective and a graph into the algorithms of the table that fit both, and choose the fastest for a size."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np

from ridgeline.comm.algorithm import Algorithm, Candidate, CollectiveTask, finished_candidate, reversed_algorithm
from ridgeline.comm.contract import PLAIN_COLLECTIVES, Collective
from ridgeline.comm.graph import Graph, refusal
from ridgeline.comm.library import candidates as builders
from ridgeline.comm.library.algorithms import alltoallv, forwarded_dispatch, moe_dispatch, sends
from ridgeline.comm.library.table import ALGORITHMS, ROWS, row_of_alias
from ridgeline.comm.timing import CollectiveTiming, time_algorithm
from ridgeline.core.arrays import Array, Index
from ridgeline.core.errors import InputError, not_among

MOST_STEPS = 10_000_000


def candidates(collective: Collective, graph: Graph, root: int = 0) -> list[Candidate]:
    """Every algorithm of the table for this collective on this graph."""
    rows = [row for row in ROWS if collective in row.serves]
    if not rows:
        raise InputError(not_among("collective", collective, PLAIN_COLLECTIVES))
    task = CollectiveTask(graph, collective, root)
    return [candidate for row in rows for candidate in getattr(builders, row.steps)(task, row.name)]


def fastest(
    collective: Collective, graph: Graph, size_bytes: float, *, name: str = "", root: int = 0
) -> tuple[Algorithm, CollectiveTiming]:
    """The library's fastest algorithm for a size, or the best form of the one named."""
    candidates_tried = candidates_named(candidates(collective, graph, root), name)
    if all(candidate.steps > MOST_STEPS for candidate in candidates_tried):
        least = min(candidate.steps for candidate in candidates_tried)
        raise refusal("algorithm", f"{least:,} steps", f"at most {MOST_STEPS:,} steps", todo="take fewer ranks")
    best = beaten(candidates_tried, graph, size_bytes, np.inf)
    assert best is not None
    return best


def candidates_named(known: Sequence[Candidate], name: str) -> list[Candidate]:
    """The forms of the algorithm of that name, or all where none is named."""
    if not name:
        return list(known)
    names = {candidate.name for candidate in known}
    row = ALGORITHMS.get(name) if name in names else row_of_alias(name) or ALGORITHMS.get(name)
    meant = row.name if row else name
    if meant not in names:
        if row and row.needs:
            here = ", ".join(dict.fromkeys(candidate.name for candidate in known))
            raise refusal("algorithm", name, f"one of {here}", todo=row.needs)
        raise InputError(not_among("algorithm", name, dict.fromkeys(candidate.name for candidate in known)))
    return [candidate for candidate in known if candidate.name == meant]


def beaten(
    known: Sequence[Candidate], graph: Graph, size_bytes: float, seconds: float
) -> tuple[Algorithm, CollectiveTiming] | None:
    """The fastest of those that take less than so many seconds; those whose floor is above are not made."""
    best: tuple[Algorithm, CollectiveTiming] | None = None
    for floor, candidate in by_floor(known, size_bytes, seconds):
        if floor * (1 - 1e-9) >= seconds:
            break
        algorithm = candidate.make()
        timing = time_algorithm(algorithm, graph, size_bytes)
        if timing.seconds < seconds:
            best, seconds = (algorithm, timing), timing.seconds
    return best


def by_floor(known: Sequence[Candidate], size_bytes: float, seconds: float) -> list[tuple[float, Candidate]]:
    """Those that can be held as steps, with their floors, the lowest first; of a single one it is not looked for.

    Whose quick floor is not below so many seconds keeps that.
    """
    small = [candidate for candidate in known if candidate.steps <= MOST_STEPS]

    def floor(one: Candidate) -> float:
        soon = one.quick(size_bytes)
        return soon if soon * (1 - 1e-9) >= seconds else max(soon, one.floor(size_bytes))

    floors = [(floor(candidate) if len(small) > 1 else 0.0, row) for row, candidate in enumerate(small)]
    return [(least, small[row]) for least, row in sorted(floors)]


def unbeaten(known: Sequence[Candidate], graph: Graph, size_bytes: float, seconds: float) -> Algorithm | None:
    """As `beaten` without the times: one whose floor is its time is not timed, and made only if it wins."""
    best: Candidate | Algorithm | None = None
    for floor, candidate in by_floor(known, size_bytes, seconds):
        if floor * (1 - 1e-9) >= seconds:
            break
        if candidate.exact and floor:
            best, seconds = candidate, floor
            continue
        algorithm = candidate.make()
        spent = time_algorithm(algorithm, graph, size_bytes).seconds
        if spent < seconds:
            best, seconds = algorithm, spent
    return best.make() if isinstance(best, Candidate) else best


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
            return [finished_candidate(sends(ranks, source, target))]
        case "alltoallv":
            sizes = _matrix(asked.get("matrix"), ranks)
            return [finished_candidate(alltoallv(sizes, at_once=at_once)) for at_once in (False, True)]
        case _:
            chosen, experts_per_rank = _route_tokens(ranks, asked)
            algorithms = [moe_dispatch(chosen, ranks, experts_per_rank, at_once=at_once) for at_once in (False, True)]
            if 1 < domain < ranks and ranks % domain == 0:
                algorithms.append(forwarded_dispatch(chosen, ranks, experts_per_rank, domain))
            if kind == "combine":
                algorithms = [reversed_algorithm(algorithm) for algorithm in algorithms]
            return [finished_candidate(algorithm) for algorithm in algorithms]


def _pairs(given: list[str], ranks: int) -> tuple[np.ndarray, np.ndarray]:
    texts = given or [f"0-{ranks - 1}"]
    pairs = []
    for text in texts:
        match = _PAIR.fullmatch(text)
        ends = tuple(map(int, match.groups())) if match else (0, 0)
        if match is None or ends[0] == ends[1] or max(ends) >= ranks:
            raise refusal("pair", repr(text), f"two different ranks of 0 to {ranks - 1}, as 0-{ranks - 1}")
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
        raise refusal("matrix", shape, f"{ranks} rows of {ranks} columns: what rank i sends to rank j")
    table = np.array(rows, np.float64)
    if not np.isfinite(table).all() or (table < 0).any() or not table.any():
        raise refusal("matrix", "a negative or infinite size, or nothing to send", "sizes from 0 on, some above")
    return table


def _read(path: Path, ranks: int) -> list[list[float]]:
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_CELLS + 1)
        if len(raw) > MOST_CELLS:
            raise refusal("matrix", f"{path} of more than {MOST_CELLS} bytes", f"at most {MOST_CELLS}")
        lines = csv.reader(raw.decode("utf-8-sig").splitlines())
        rows = [row for row in lines if row and not row[0].lstrip().startswith("#")]
    except (OSError, UnicodeDecodeError, csv.Error) as broken:
        why = getattr(broken, "strerror", None) or broken
        raise refusal("matrix", f"{path}: {why}"[:200], f"a CSV file of {ranks} rows") from None
    for number, row in enumerate(rows):
        for column, cell in enumerate(row):
            try:
                float(cell)
            except ValueError:
                given_text = f"{path}: {cell[:40]!r} from rank {number} to rank {column}"
                raise refusal("matrix", given_text, "a number") from None
    return [[float(cell) for cell in row] for row in rows]


def _route_tokens(ranks: int, asked: ExchangeOptions) -> tuple[Index, int]:
    """The experts of every token, each as likely, and how many a rank holds."""
    experts, top_k, tokens = asked.get("experts", 0) or ranks, asked.get("top_k", 0) or 1, asked.get("tokens", 0) or 64
    if experts % ranks:
        raise refusal("experts", str(experts), f"a multiple of {ranks} ranks, which hold equally many")
    if not 1 <= top_k <= experts:
        raise refusal("top-k", str(top_k), f"1 to {experts} experts")
    if not 1 <= tokens * ranks * top_k <= MOST_STEPS:
        raise refusal("tokens", str(tokens), f"1 or more, and {MOST_STEPS:,} steps at most")
    random = np.random.default_rng(asked.get("routing_seed", 0))
    chosen = np.argsort(random.random((tokens * ranks, experts)), axis=1)[:, :top_k]
    return chosen, experts // ranks
