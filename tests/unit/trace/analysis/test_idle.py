"""Gaps have the cause the generator gave them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from traces import Recipe, make, write

from ridgeline.trace.analyze_traces import Analysis, analyze
from ridgeline.trace.classes import built_in, classify
from ridgeline.trace.timeline import Span, Timeline


def run(recipe: Recipe, folder: Path) -> Analysis:
    return analyze(write(make(recipe), folder / "t.json"))


class TestIdle:
    @pytest.mark.parametrize(
        ("cause", "word"), [("host", "host"), ("sync", "synchronisation"), ("data", "data loading")]
    )
    def test_gaps_have_the_cause_they_were_given(self, cause: str, word: str, tmp_path: Path) -> None:
        recipe = Recipe(cause=cause, gap_us=60.0)
        found = {one.cause: one for one in run(recipe, tmp_path).idle}
        assert found[word].gaps == recipe.steps * recipe.layers - 1
        assert found[word].idle_ns == (recipe.steps * recipe.layers - 1) * 60_000
        assert list(found) == [word]

    def test_causes_add_up_to_idle(self, tmp_path: Path) -> None:
        for recipe in (Recipe(), Recipe(graph=True), Recipe(gap_us=1.0, unlinked=2), Recipe(hidden_us=0.0)):
            found = run(recipe, tmp_path)
            assert sum(one.idle_ns for one in found.idle) == found.breakdown.total.idle_ns

    def test_a_graph_is_not_the_hosts_fault(self, tmp_path: Path) -> None:
        found = {one.cause for one in run(Recipe(graph=True, gap_us=2.0), tmp_path).idle}
        assert found <= {"between kernels", "host"}

    def test_work_that_was_launched_waits_for_communication(self) -> None:
        found = {one.cause for one in run_spans(after="ncclAllReduce")}
        assert found == {"communication"}
        assert {one.cause for one in run_spans(after="gemm")} == {"dependency"}


def run_spans(after: str) -> tuple[object, ...]:
    """A kernel launched at 0 that starts 50 us after another ended."""
    from ridgeline.trace.analysis.idle import gaps_of, idle_causes
    from ridgeline.trace.classes import counted_rows

    spans = [
        Span(process="host", stream="t", name="cudaLaunchKernel", kind="runtime", start_ns=0, duration_ns=1_000),
        Span(process="chip", stream="9", name=after, kind="kernel", start_ns=5_000, duration_ns=20_000),
        Span(process="chip", stream="7", name="gemm", kind="kernel", start_ns=75_000, duration_ns=20_000),
    ]
    line = Timeline.of(spans)
    line = classify(replace(line, launch=np.array([-1, 0, 0], np.int32)))
    return idle_causes(gaps_of(line, built_in(), counted_rows(line)))


class TestLaunches:
    def test_queue_and_delay(self, tmp_path: Path) -> None:
        recipe = Recipe(gap_us=60.0)
        (found,) = run(recipe, tmp_path).launches
        many = recipe.steps * recipe.layers
        assert (found.spans, found.calls, found.unlinked) == (3 * many, 3 * many, 0)
        assert found.call_ns == 1500
        # launched -4.5, -1 and 1.5 us before or after the product starts at 0; the reduction starts at 60, the
        # elementwise kernel at 100: of the three only the last starts with nothing queued behind it
        assert found.empty_queue == pytest.approx(1 / 3)
        assert found.queue_depth == pytest.approx(2 / 3)

    def test_replays(self, tmp_path: Path) -> None:
        recipe = Recipe(graph=True)
        (found,) = run(recipe, tmp_path).launches
        assert (found.graph_replays, found.graph_spans) == (recipe.steps, 3 * recipe.steps * recipe.layers)
