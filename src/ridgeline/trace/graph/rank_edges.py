"""Turn what several ranks do together into edges: collectives, sends with their receives, predicted sends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ridgeline.trace.arrays import Longs
from ridgeline.trace.graph.edges import CLOSE_NS, COLLECTIVE, MOST, RECEIVE, SEND, Edges, Points, edges_of
from ridgeline.trace.graph.match_collectives import MatchedCollective, MatchedCollectives


def collective_edges(points: Points, given: MatchedCollectives) -> tuple[Longs, list[Edges]]:
    """Last arrivals at matched collectives as points, and the edges into and out of them: no transfer begins before
    them. Matches that the clocks deny are left out."""
    times, collective_edges_ = _arrivals(points, given.found, COLLECTIVE, len(points.at))
    more, pair_edges = _arrivals(points, given.pairs, RECEIVE, len(points.at) + len(times))
    return np.concatenate([times, more]), [collective_edges_, pair_edges, _sent_early(points, given.pairs)]


def _arrivals(points: Points, found: Sequence[MatchedCollective], kind: int, next_point: int) -> tuple[Longs, Edges]:
    """A point for each, when the last of its parts began, between the starts and the ends of its parts."""
    if not found:
        empty = np.zeros(0, np.int64)
        return empty, Edges(src=empty, dst=empty, lag=empty, kind=kind)
    size = np.array([len(match.rows) for match in found])
    rows = np.concatenate([np.array(match.rows, np.int64) for match in found])
    first = np.concatenate([[0], np.cumsum(size)[:-1]])
    start, end = points.start(rows), points.end(rows)
    last = np.maximum.reduceat(points.at[start], first)
    good = (np.minimum.reduceat(points.at[end], first) >= last) & (np.minimum.reduceat(points.place[rows], first) >= 0)
    in_good = np.repeat(good, size)
    arrival = np.repeat(next_point + np.cumsum(good) - 1, size)[in_good]
    start, end, begun = start[in_good], end[in_good], np.repeat(last, size)[in_good]
    return last[good], Edges(
        src=np.concatenate([start, arrival]),
        dst=np.concatenate([arrival, end]),
        lag=np.concatenate([np.zeros(len(start), np.int64), points.at[end] - begun]),
        kind=kind,
    )


def _sent_early(points: Points, pairs: Sequence[MatchedCollective]) -> Edges:
    """Sends that ended before their receive began: the receive ends after them, however early it begins."""
    rows = np.array([pair.rows for pair in pairs], np.int64).reshape(-1, 2)
    rows = rows[(points.place[rows] >= 0).all(axis=1)]
    early = points.at[points.end(rows[:, 0])] < points.at[points.start(rows[:, 1])]
    return edges_of(points, points.end(rows[early, 0]), points.end(rows[early, 1]), 0, RECEIVE)


def send_edges(points: Points) -> Iterator[Edges]:
    """A predicted send ends before the step it feeds begins: all that starts next on the stage it goes to."""
    line, work = points.line, points.work
    if not line.predicted or not len(work):
        return
    records = line.detail.collective.at(work)
    goes_to = np.array([collective.to_rank for collective in line.detail.collectives] or [-1], np.int64)
    receiver = np.where(records >= 0, goes_to[np.maximum(records, 0)], -1)
    for rank in np.unique(receiver[receiver >= 0]).tolist():
        rank_work = work[line.rank[work] == rank]
        receives = work[receiver == rank]
        if not len(rank_work):
            continue
        start = points.at[points.start(rank_work)]  # rows of work are in order of their starts
        until = points.at[points.end(receives)]
        place = np.minimum(np.searchsorted(start, until), len(rank_work) - 1)
        near = (start[place] >= until) & (start[place] - until <= CLOSE_NS)
        first, receives = place[near], receives[near]
        many = np.searchsorted(start, start[first], side="right") - first
        fed = np.repeat(first - np.cumsum(many) + many, many) + np.arange(int(many.sum()))
        yield edges_of(points, points.end(np.repeat(receives, many)), points.start(rank_work[fed]), MOST, SEND)
