"""Intervals of steps that nobody measured anything like."""

from __future__ import annotations

import math

import pytest

from ridgeline.sim.prediction_interval import (
    A_DOUBLING,
    NEW_PRECISION,
    SHIPPED_SUMMARY,
    Interval,
    Residual,
    new_source_interval,
    shipped_interval,
    shipped_residuals,
    summary_text,
)


def test_a_step_far_from_every_run_has_a_wider_interval() -> None:
    runs = [
        Residual(
            chip="a", engine="x", residual=0.0, source=str(r % 9), without_source=r / 100, family="f",
            precision="bf16", seq=4096 << (r % 3),
        )
        for r in range(-30, 31)
    ]  # fmt: skip

    def of(precision: str, seq: int) -> Interval:
        return new_source_interval(1.0, "a", "x", runs, family="f", precision=precision, seq=seq)

    near, strange, long = of("bf16", 8192), of("fp8-e4m3", 8192), of("bf16", 65536)
    assert near == new_source_interval(1.0, "a", "x", runs, family="f")
    assert math.log(strange.high) == pytest.approx(math.hypot(math.log(near.high), NEW_PRECISION))
    assert math.log(long.low) == pytest.approx(-math.hypot(math.log(near.low), 2 * A_DOUBLING))
    assert "fp8-e4m3, which no run of f has" in strange.basis
    assert "2 doublings" in long.basis


def test_the_shipped_summary_is_that_of_the_shipped_residuals() -> None:
    """A prediction reads the summary; `ridgeline fit` writes both."""
    assert SHIPPED_SUMMARY.read_text(encoding="utf-8") == summary_text(shipped_residuals())
    args = ("h100-sxm", "megatron-core", "hopper", "bf16", 8192)
    full = new_source_interval(2.0, *args[:2], shipped_residuals(), family=args[2], precision=args[3], seq=args[4])
    assert shipped_interval(2.0, *args) == full
