"""Turn a graph and a size into the library's table: every algorithm for each collective it can do, timed, proven."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from ridgeline.comm.algorithm import Algorithm, Candidate
from ridgeline.comm.algorithm_file import WHOLE
from ridgeline.comm.bounds import lower_bound
from ridgeline.comm.contract import Collective
from ridgeline.comm.contract_bounds import contract_bound
from ridgeline.comm.exchange_options import EXCHANGES, exchange_candidates
from ridgeline.comm.graph import Graph
from ridgeline.comm.select import beaten, candidates
from ridgeline.comm.verify import verify_algorithm
from ridgeline.core.errors import InputError, Problem

MOST_RANKS = 512  # every algorithm is made: beyond, one is asked for by name


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedAlgorithm:
    """An algorithm's best form for a collective.

    over_bound   seconds over what nothing beats
    """

    algorithm: str
    collective: str
    seconds: float
    over_bound: float
    rounds: int
    steps: int
    verified: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmList:
    """What `ridgeline collective list` says: every algorithm of the library, for each collective it can do."""

    JSON = "kind='collective-library' *"
    topology: str
    ranks: int
    size_bytes: float
    algorithms: tuple[ListedAlgorithm, ...]


def list_algorithms(graph: Graph, size_bytes: float) -> AlgorithmList:
    """Every algorithm of the library on a graph, collective by collective."""
    if graph.ranks > MOST_RANKS:
        given_text = f"{graph.ranks} ranks"
        raise InputError(
            Problem(path="topology", given=given_text, expected=f"at most {MOST_RANKS} for the whole library")
        )
    algorithms = tuple(_entries(graph, size_bytes))
    return AlgorithmList(topology=graph.name, ranks=graph.ranks, size_bytes=size_bytes, algorithms=algorithms)


def _entries(graph: Graph, size_bytes: float) -> Iterator[ListedAlgorithm]:
    for kind in (*WHOLE, *EXCHANGES):
        is_exchange = kind in EXCHANGES
        collective = cast(Collective, kind)
        known_candidates = (
            exchange_candidates(kind, graph.ranks, {}, graph.domain) if is_exchange else candidates(collective, graph)
        )
        forms: dict[str, list[Candidate]] = {}
        for candidate in known_candidates:
            forms.setdefault(candidate.name, []).append(candidate)
        for name, some in forms.items():
            best = beaten(some, graph, size_bytes, float("inf"))
            if best is None:
                continue
            algorithm, timing = best
            yield ListedAlgorithm(
                algorithm=name,
                collective=kind,
                seconds=timing.seconds,
                over_bound=timing.seconds
                / (_bound(graph, collective, algorithm, size_bytes, is_exchange) or timing.seconds or 1.0),
                rounds=algorithm.rounds,
                steps=len(algorithm.steps),
                verified=verify_algorithm(algorithm).ok,
            )


def _bound(graph: Graph, collective: Collective, made: Algorithm, size_bytes: float, exchanged: bool) -> float:
    if exchanged:
        return contract_bound(graph, made.contract, size_bytes).seconds
    return lower_bound(graph, collective, size_bytes).seconds
