"""Compare ranks with their peers: figures measured in rounds in, outliers with their statistics out.

Ranks measure a figure at the same time, round by round, so that what disturbs all of them cancels:

    ratio_rj = seconds of rank r in round j / median of its peers' in that round
    gap_r    = median over rounds of ratio_rj, less one
    score_r  = gap_r / max(D of the peers' gaps, 1.25 D over rounds of ratio_rj / sqrt(rounds), floor)

D = 1.4826 MAD (median absolute deviation) is a standard deviation where values are normal, and an outlier does not move
it; 1.25 is how much the error of a median exceeds that of a mean. A rank is an outlier when gap and score exceed their
limits and it was slower than its peers in most rounds. Among two ranks the slower one is named.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

NORMAL = 1.4826  # standard deviations in a median absolute deviation
MEDIAN_ERROR = 1.2533  # sqrt(pi / 2)
FLOOR = 0.01  # relative noise below which no machine measures
SCORE = 4.0
CONSISTENT = 0.8  # share of rounds


@dataclass(slots=True, kw_only=True)
class Report:
    """What one rank tells the others: its settings; seconds by figure and round, by pair, and of all ranks."""

    host: str
    type: str
    device: str
    settings: dict[str, str]
    rounds: dict[str, list[float]] = field(default_factory=dict)
    pairs: dict[tuple[int, int], dict[str, list[float]]] = field(default_factory=dict)
    whole: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLimit:
    """When a figure counts as slow: a share of the peers' value, and robust standard deviations."""

    gap: float
    score: float = SCORE


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """A member far from its peers: `value` and `expected` in seconds, `gap` as a share, `score` in deviations."""

    member: str
    figure: str
    value: float
    expected: float
    gap: float
    score: float


def deviation(values: Sequence[float]) -> float:
    """A robust standard deviation.

    >>> round(deviation([1.0, 1.1, 0.9, 1.0, 9.0]), 4)
    0.1483
    """
    if len(values) < 2:
        return 0.0
    middle = statistics.median(values)
    return NORMAL * statistics.median([abs(value - middle) for value in values])


def outliers(figure: str, rounds: Mapping[str, Sequence[float]], limit: PeerLimit) -> list[Outlier]:
    """Members that are slower than their peers beyond chance, slowest first.

    >>> calm = {str(rank): [1.0, 1.01, 0.99] for rank in range(7)}
    >>> outliers("product", {**calm, "7": [1.3, 1.31, 1.29]}, PeerLimit(gap=0.05))[0].member
    '7'
    >>> outliers("product", calm, PeerLimit(gap=0.05))
    []
    """
    if len(rounds) < 2:
        return []
    ratios = {}
    for member, seconds in rounds.items():
        peer_rounds = zip(*(rounds[peer] for peer in rounds if peer != member), strict=True)
        ratios[member] = [own / statistics.median(peers) for own, peers in zip(seconds, peer_rounds, strict=True)]
    gaps = {member: statistics.median(ratio) - 1 for member, ratio in ratios.items()}
    outliers_ = []
    for member, ratio in ratios.items():
        peers = [gaps[peer] for peer in gaps if peer != member]
        own_error = MEDIAN_ERROR * deviation(ratio) / math.sqrt(len(ratio))
        score = gaps[member] / max(deviation(peers), own_error, FLOOR)
        is_consistent = sum(value > 1 + limit.gap / 2 for value in ratio) >= CONSISTENT * len(ratio)
        if gaps[member] > limit.gap and score > limit.score and is_consistent:
            value = statistics.median(rounds[member])
            usual = statistics.median([statistics.median(rounds[peer]) for peer in rounds if peer != member])
            outliers_.append(
                Outlier(member=member, figure=figure, value=value, expected=usual, gap=gaps[member], score=score)
            )
    return sorted(outliers_, key=lambda one: -one.gap)


def slow_links(
    figure: str, pairs: Mapping[tuple[int, int], Sequence[float]], limit: PeerLimit
) -> tuple[list[Outlier], list[Outlier]]:
    """Ranks all of whose links are slow, and single slow links between the others.

    Pairs take turns, so that they are not compared round by round but by their best samples: what disturbs a message
    only ever delays it, and a link that is at fault is slow at its best, too.
    """
    if len(pairs) < 3:
        return [], []
    values = {pair: min(samples) for pair, samples in pairs.items()}
    ranks = sorted({rank for pair in values for rank in pair})
    values_of_rank = {f"rank {rank}": [value for pair, value in values.items() if rank in pair] for rank in ranks}
    medians = {rank: statistics.median(pair_values) for rank, pair_values in values_of_rank.items()}
    slow_ranks = _far(figure, medians, limit) if len(ranks) > 3 else []
    blamed_ranks = {outlier.member for outlier in slow_ranks}
    other_pairs = [pair for pair in values if not {f"rank {rank}" for rank in pair} & blamed_ranks]
    pair_names = {f"rank {a} and rank {b}": values[a, b] for a, b in other_pairs}
    return slow_ranks, _far(figure, pair_names, limit) if len(pair_names) > 2 else []


def _far(figure: str, values: Mapping[str, float], limit: PeerLimit) -> list[Outlier]:
    outliers_ = []
    for member, value in values.items():
        peers = [values[peer] for peer in values if peer != member]
        expected_value = statistics.median(peers)
        gap = value / expected_value - 1
        score = gap / max(deviation(peers) / expected_value, FLOOR)
        if gap > limit.gap and score > limit.score:
            outliers_.append(
                Outlier(member=member, figure=figure, value=value, expected=expected_value, gap=gap, score=score)
            )
    return sorted(outliers_, key=lambda one: -one.gap)
