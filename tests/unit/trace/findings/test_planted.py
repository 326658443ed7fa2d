"""The first finding of every planted trace must be its cause, and what it promises what the fix gives, or less."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from planted import CASES, write_case
from planted_again import AGAIN
from planted_blind import BLIND

import ridgeline

ABOVE = 0.05  # of the span: what a promise may be above what the mended run gives
EXACT = (
    "loader-stall", "fp32-products", "unfused-attention", "layout-changes", "slow-link", "slow-chip", "first-use",
    "hot-expert-moves", "heavy-last-stage", "collector-on-any-rank",
)  # fmt: skip


@pytest.mark.parametrize("id", [*CASES, *BLIND, *AGAIN])
def test_the_first_finding_is_the_cause(id: str, tmp_path: Path) -> None:
    case = (CASES | BLIND | AGAIN)[id]
    found = ridgeline.analyze(write_case(case, tmp_path))
    first = found.findings[0] if found.findings else None
    if not case.expected:
        assert first is None or first.predicted_gain < ABOVE
        return
    assert first is not None
    assert any(re.search(one, first.what) for one in case.expected), first.what
    assert all(0 <= one.predicted_gain <= one.share_of_step <= 1 for one in found.findings)


@pytest.mark.parametrize("id", EXACT)
def test_a_promise_is_kept(id: str, tmp_path: Path) -> None:
    """Promised by replaying the trace before, measured in the trace after."""
    case = CASES.get(id) or BLIND[id]
    before, after = (ridgeline.analyze(write_case(case, tmp_path, mended)) for mended in (False, True))
    measured = 1 - after.breakdown.total.span_ns / before.breakdown.total.span_ns
    assert before.findings[0].predicted_gain == pytest.approx(measured, abs=0.03)
