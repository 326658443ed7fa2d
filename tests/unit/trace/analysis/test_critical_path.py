"""Work off the critical path has slack."""

from __future__ import annotations

from pathlib import Path

from spans import Sketch

from ridgeline.trace.analysis.critical_path import critical_path
from ridgeline.trace.classes import built_in
from ridgeline.trace.graph.dependency_graph import DependencyGraph, graph_of
from ridgeline.trace.timeline import Timeline


def graph(line: Timeline) -> DependencyGraph:
    return graph_of(line, built_in())


class TestSlack:
    def test_work_off_the_path_could_be_later(self, tmp_path: Path) -> None:
        sketch = Sketch().launched("gemm", -60, 0, 100).launched("elementwise_kernel", -50, 0, 30, stream=20)
        found = critical_path(graph(sketch.read(tmp_path)))
        assert found is not None
        assert {one.id: (one.critical, one.median_ns) for one in found.slack} == {
            "matmul": (1, 0),
            "elementwise": (0, 70_000),
        }
