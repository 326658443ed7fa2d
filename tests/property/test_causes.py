"""Laws of dependencies and differences, on timelines of arbitrary spans: replays are exact, everything adds up."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.calibrate.explain import diff
from ridgeline.core.encode import to_json
from ridgeline.core.errors import InputError
from ridgeline.trace.analyze_traces import analyze
from ridgeline.trace.classes import built_in
from ridgeline.trace.graph.dependency_graph import deviation_ns, graph_of
from ridgeline.trace.timeline import PHASES, Span, Timeline

KINDS = (
    "kernel", "kernel", "kernel", "memcpy", "host", "runtime", "annotation", "marker", "exposed", "send", "waiting",
    "optimizer", "",
)  # fmt: skip
NAMES = (
    "gemm", "ncclAllReduce", "cudaStreamSynchronize", "cudaStreamWaitEvent", "ProfilerStep#1", "F0", "F0 to stage 1",
    "Optimizer.step#A", "elementwise", "flash", "layer 3 matmul", "",
)  # fmt: skip
QUESTIONS = ("compute x2", "no launch gaps", "overlap compute", "fuse compute")

spans = st.builds(
    Span,
    process=st.sampled_from(("a", "stage 1")),
    stream=st.sampled_from("xyz"),
    name=st.sampled_from(NAMES),
    kind=st.sampled_from(KINDS),
    start_ns=st.integers(0, 60).map(lambda us: us * 1000),
    duration_ns=st.sampled_from((0, 1_000, 5_000, 30_000)),
    phase=st.sampled_from(PHASES),
    layer=st.integers(-1, 3),
)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    found = [*draw(st.lists(spans, max_size=30)), draw(spans.map(lambda one: replace(one, kind="kernel")))]
    line = Timeline.of(found, predicted=draw(st.booleans()))
    calls = np.flatnonzero(line.of_kind("runtime"))
    if not len(calls):
        return line
    call = draw(st.sampled_from(calls.tolist()))
    step = draw(st.lists(st.integers(-1, 2), min_size=len(line), max_size=len(line)))
    launched = line.is_work & (np.arange(len(line)) % 2 == 0)
    return replace(line, launch=np.where(launched, call, -1).astype(np.int32), step=np.array(step, np.int32))


@settings(max_examples=60)
@given(timelines())
def test_replays_are_exact_and_paths_add_up(line: Timeline) -> None:
    found = analyze(line, what_if=QUESTIONS)
    assert deviation_ns(graph_of(found.timeline, built_in())) == 0
    assert found.critical is not None
    for path in (found.critical.whole, *found.critical.steps):
        assert sum(part.ns for part in path.parts) == path.length_ns
    assert int(found.critical.slack_ns.min()) >= 0
    json.dumps(to_json(found), allow_nan=False)


@settings(max_examples=60)
@given(timelines(), timelines())
def test_causes_sum_to_the_difference(one: Timeline, other: Timeline) -> None:
    try:
        found = diff(one, other)
    except InputError:
        return
    for view in (found.causes, found.phases, found.classes):
        assert sum(part.delta_ns for part in view) == pytest.approx(found.delta_ns, abs=1.0)
