"""Orders of points: every edge goes forward, whatever the times say; circles are found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from traces import Recipe, make, write

from ridgeline.core.encode import to_json
from ridgeline.trace.analysis.critical_path import critical_path
from ridgeline.trace.analyze_traces import analyze
from ridgeline.trace.classes import built_in, classify
from ridgeline.trace.graph import dependency_graph
from ridgeline.trace.graph.dependency_graph import Graph, graph_of
from ridgeline.trace.graph.toposort import forward_order, one_by_one, ranks_in
from ridgeline.trace.read.readers import read_timeline


@pytest.mark.parametrize("seed", range(30))
def test_every_edge_goes_forward(seed: int) -> None:
    """Random graphs without circles: few instants, so that many points are tied, and a fifth of the edges go back."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 60))
    hidden = rng.permutation(count)
    one, other = rng.integers(0, count, (2, 4 * count))
    kept = hidden[one] < hidden[other]
    src, dst = one[kept], other[kept]
    at = hidden // 4 + np.where(rng.random(count) < 0.2, rng.integers(-5, 5, count), 0)
    order = forward_order(at.astype(np.int64), src, dst)
    assert order is not None
    assert sorted(order.tolist()) == list(range(count))
    rank = ranks_in(order)
    assert (rank[src] < rank[dst]).all()


def test_circles_are_found() -> None:
    at, src, dst = np.zeros(3, np.int64), np.array([0, 1, 2]), np.array([1, 2, 0])
    assert forward_order(at, src, dst) is None
    assert one_by_one(3, src, dst) is None


def test_a_long_chain_of_one_instant() -> None:
    """Longer than rounds are made: the edges are followed one by one."""
    count = 500
    order = forward_order(np.zeros(count, np.int64), np.arange(count - 1)[::-1] + 1, np.arange(count - 1)[::-1])
    assert order is not None
    assert order.tolist() == list(range(count))[::-1]


def brute_slack(found: Graph) -> np.ndarray:
    """Slack of every point by its definition: how much later it can be before the last end of work moves."""
    last = found.at[found.points.end(found.points.work)].max()
    slack = np.zeros(len(found.at), np.int64)
    order = found.order.tolist()
    into: dict[int, list[int]] = {}
    for edge, target in enumerate(found.dst.tolist()):
        into.setdefault(target, []).append(edge)
    for place, point in enumerate(order):
        low, high = 0, 10**9
        while low < high:  # the largest delay of this point that leaves the last end where it is
            middle = (low + high + 1) // 2
            time = found.at.copy()
            time[point] += middle
            for later in order[place + 1 :]:
                edges = into.get(later, [])
                if edges:
                    time[later] = max(time[found.src[e]] + found.lag[e] for e in edges) + found.delay[later]
            moved = time[found.points.end(found.points.work)].max() > last
            low, high = (low, middle - 1) if moved else (middle, high)
        slack[point] = low
    return slack


def test_slack_is_what_its_definition_says(tmp_path: Path) -> None:
    line = classify(read_timeline(write(make(Recipe(steps=1, layers=1)), tmp_path / "t.json")))
    found = graph_of(line, built_in())
    path = critical_path(found)
    assert path is not None
    ends = found.points.end(found.points.work)
    assert path.slack_ns.tolist() == brute_slack(found)[ends].tolist()


def test_what_is_too_large_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 kernels in 2 steps; with room for 20 the second step is followed, and the output says so."""
    path = write(make(Recipe(steps=2, layers=4)), tmp_path / "t.json")
    whole = to_json(analyze(path))
    assert whole["warnings"] == []
    monkeypatch.setattr(dependency_graph, "FOLLOWED", 20)
    monkeypatch.setattr("ridgeline.trace.analyze_traces.LARGEST", 10)
    sheet = to_json(analyze(path))
    (step,) = sheet["critical_path"]["steps"]
    assert (step["step"], step["length_us"]) == (1, 4 * 155.0 - 15.0)  # from its own first work, without the gap before
    assert "the last 12 of 24 spans of work, steps 1 to 1" in sheet["warnings"][0]
    assert "upper bounds" in sheet["warnings"][1]
    assert {key: sheet[key] for key in ("span_us", "idle_us", "compute_us")} == {
        key: whole[key] for key in ("span_us", "idle_us", "compute_us")
    }
