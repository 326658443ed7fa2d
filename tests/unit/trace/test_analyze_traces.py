"""Analyses find what the generator put in: causes of gaps, rates, findings, classes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from traces import Recipe, make, straggling, write

from ridgeline.core.encode import to_json
from ridgeline.trace.analyze_traces import Analysis, analyze
from ridgeline.trace.timeline import Span, Timeline

KEYS = {
    "span_us", "idle_us", "compute_us", "communication_us", "exposed_communication_us", "overlap_fraction", "policy",
    "classes", "top_ops", "idle_causes", "findings",
}  # fmt: skip


def run(recipe: Recipe, folder: Path) -> Analysis:
    return analyze(write(make(recipe), folder / "t.json"))


class TestFindings:
    def test_a_late_host_is_the_first_finding(self, tmp_path: Path) -> None:
        recipe = Recipe(gap_us=100.0, layers=20)
        first = run(recipe, tmp_path).findings[0]
        assert first.what.startswith("idle, host")
        assert first.share_of_step == pytest.approx(100 / recipe.layer_us, rel=0.02)
        assert {span.name for span in first.evidence} == {recipe.names[0]}

    @pytest.mark.parametrize("told", [{}, {"record_shapes": 0}, {"record_shapes": 1, "with_stack": 1}])
    def test_a_profiler_that_slows_the_host_is_named(self, told: dict[str, int], tmp_path: Path) -> None:
        """On an H200 a step of GPT-3 125M took 18.9 ms, and 33.6 with shapes and memory recorded."""
        trace = make(Recipe(gap_us=100.0, layers=20)) | told
        first = analyze(write(trace, tmp_path / "trace.json")).findings[0]
        assert ("recording shapes and stacks slows the host" in first.action) == ("with_stack" in told)

    def test_exposed_communication_is_found_with_its_spans(self, tmp_path: Path) -> None:
        # one launch a step: with a launch a kernel the host would be what holds the next layer back
        recipe = Recipe(gap_us=0.5, hidden_us=10.0, reduce_us=100.0, graph=True, steps=1, layers=50)
        first = run(recipe, tmp_path).findings[0]
        assert first.what.startswith("exposed communication: 90%")
        assert {span.name for span in first.evidence} == {recipe.names[2]}
        # what was exposed is hidden: 50 x 90 us of 50 x 210.5 - 0.5 us
        assert first.predicted_gain == pytest.approx(50 * 90 / (50 * 210.5 - 0.5), abs=1e-9)

    def test_a_straggler_is_named(self, tmp_path: Path) -> None:
        for recipe in straggling(4, 40.0, Recipe(gap_us=0.5)):
            write(make(recipe), tmp_path / f"rank{recipe.rank}.json")
        found = analyze(tmp_path)
        (uneven,) = (one for one in found.findings if one.what.startswith("uneven ranks"))
        assert "rank 3" in uneven.what
        assert uneven.share_of_step == pytest.approx(40 / Recipe(gap_us=0.5, matmul_us=140.0).layer_us, rel=0.01)

    def test_findings_are_ranked_and_name_spans(self, tmp_path: Path) -> None:
        found = run(Recipe(gap_us=30.0), tmp_path)
        gains = [one.predicted_gain for one in found.findings]
        assert gains == sorted(gains, reverse=True)
        assert all(one.evidence and one.action for one in found.findings)


def test_the_sheet_has_its_keys_and_is_json(tmp_path: Path) -> None:
    sheet = to_json(run(Recipe(), tmp_path))
    assert set(sheet) >= KEYS
    assert set(sheet["findings"][0]) == {"rule", "what", "evidence", "share_of_step", "predicted_gain", "action", "gap"}
    json.dumps(sheet, allow_nan=False)


def test_a_prediction_is_analysed_too() -> None:
    spans = [
        Span(process="stage 0", stream="compute", name="F0", kind="forward", start_ns=0, duration_ns=2_000),
        Span(process="stage 0", stream="tp", name="F0", kind="exposed", start_ns=2_000, duration_ns=1_000),
        Span(process="stage 1", stream="compute", name="F0", kind="forward", start_ns=4_000, duration_ns=2_000),
        Span(process="stage 1", stream="pp", name="F1B0", kind="overlapped", start_ns=6_000, duration_ns=3_000),
        Span(process="stage 1", stream="compute", name="waiting", kind="waiting", start_ns=9_000, duration_ns=1_000),
    ]
    found = {row.process: row.times for row in analyze(Timeline.of(spans, predicted=True)).breakdown.chips}
    assert found["stage 0"].exposed_communication_ns == 1_000
    assert found["stage 1"].compute_ns == 2_000
    assert found["stage 1"].communication_ns == 3_000
