"""Replays, paths and differences of real traces: exact where they must be, and the story of the H200 pair.

The traces are not part of the project; where they are absent these tests are skipped.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from ridgeline.calibrate.explain import diff
from ridgeline.trace.analysis.critical_path import critical_path
from ridgeline.trace.analysis.exclusive_time import exclusive_time
from ridgeline.trace.classes import built_in, classify
from ridgeline.trace.graph.dependency_graph import DependencyGraph, deviation_ns, graph_of
from ridgeline.trace.read.readers import read_timeline
from ridgeline.trace.timeline import Timeline

FOLDER = Path(__file__).parents[3] / "shared" / "traces" / "kineto"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no real traces in {FOLDER}")
EVERY = sorted(FOLDER.glob("*.gz")) if FOLDER.is_dir() else []
EAGER, COMPILED = (FOLDER / f"h200_llama1b_train_{name}.json.gz" for name in ("eager", "compiled"))


@cache
def line_of(path: Path) -> Timeline:
    return classify(read_timeline(path))


@cache
def graph(path: Path) -> DependencyGraph:
    return graph_of(line_of(path), built_in())


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name)
def test_a_replay_without_changes_is_exact(path: Path) -> None:
    assert deviation_ns(graph(path)) == 0


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name)
def test_the_path_adds_up(path: Path) -> None:
    found = critical_path(graph(path))
    assert found is not None
    for one in (found.whole, *found.steps):
        assert sum(part.ns for part in one.parts) == one.length_ns
    assert int(found.slack_ns.min()) >= 0


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name)
def test_a_ledger_adds_up(path: Path) -> None:
    found = exclusive_time(line_of(path), built_in())
    work = line_of(path).is_work
    if len(set(line_of(path).process[work].tolist())) == 1:
        span = int(line_of(path).end_ns[work].max() - line_of(path).start_ns[work].min())
        assert int(found.own_ns.sum()) + int(found.gap_ns.sum()) == span


def test_where_the_21_milliseconds_went() -> None:
    found = diff(EAGER, COMPILED)
    assert found.delta_ns / 1000 == pytest.approx(-21_162.437, abs=0.001)
    assert sum(one.delta_ns for one in found.causes) == pytest.approx(found.delta_ns, abs=1.0)
    causes = {one.cause: one.delta_ns / 1e6 for one in found.causes}
    assert causes["different kernels"] == pytest.approx(-24.18, abs=0.05)  # fused by the compiler
    assert causes["slower kernels"] == pytest.approx(3.85, abs=0.05)  # the same kernels, each a little slower
    assert causes["launch gaps"] == pytest.approx(-0.83, abs=0.05)
    assert len(found.layers) == 17


def test_the_page_tells_these_figures() -> None:
    from argparse import Namespace

    from tools.figures.gap import PAGE, run

    assert "| **sum** | **-21.16** |" in PAGE.read_text(encoding="utf-8")
    assert run(Namespace(check=True)) == 0
