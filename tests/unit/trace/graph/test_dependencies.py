"""What a predicted send holds back: all that starts with the step it feeds, on the stage that its side table names."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ridgeline.trace.classes import built_in, classify
from ridgeline.trace.graph.dependency_graph import DependencyGraph, graph_of
from ridgeline.trace.graph.edges import SEND
from ridgeline.trace.timeline import RecordedCollective, SideTables, Span, Sparse, Timeline


def span(stage: int, stream: str, start: int, length: int, kind: str) -> Span:
    return Span(process=f"stage {stage}", stream=stream, name="x", kind=kind, start_ns=start, duration_ns=length)


def graph(*, predicted: bool) -> DependencyGraph:
    """Stage 0 computes until 10 and sends until 12; compute and traffic of stage 1 begin at 12, more compute at 20."""
    spans = [
        span(0, "compute", 0, 10, "matmul"), span(0, "pp", 10, 2, "send"),
        span(1, "compute", 12, 8, "matmul"), span(1, "dp", 12, 3, "overlapped"), span(1, "compute", 20, 5, "matmul"),
    ]  # fmt: skip
    line = Timeline.of(spans, predicted=predicted)
    sent = Sparse(rows=np.flatnonzero(line.of_kind("send")).astype(np.int32), values=np.array([0]))
    detail = SideTables(collective=sent, collectives=(RecordedCollective(to_rank=1),))
    return graph_of(classify(replace(line, detail=detail)), built_in())


def fed(found: DependencyGraph) -> list[tuple[str, int]]:
    """Streams and starts of what a send holds back."""
    rows = found.row_of(found.dst[found.kind == SEND])
    return sorted((found.line.streams[found.line.stream[row]], int(found.line.start_ns[row])) for row in rows)


def test_all_that_starts_with_the_step_waits_for_its_send() -> None:
    assert fed(graph(predicted=True)) == [("compute", 12), ("dp", 12)]


def test_measured_sends_wait_for_a_receive_instead() -> None:
    assert fed(graph(predicted=False)) == []
