"""Rates of kernels against measured regions that no fit saw."""

from __future__ import annotations

from pathlib import Path

import pytest

import ridgeline
from ridgeline.calibrate.fusion import fitted_rates
from ridgeline.calibrate.validation import Validation
from ridgeline.graph import RATES, shipped_rates


@pytest.fixture(scope="module")
def checked() -> Validation:
    return ridgeline.validate("fusion")


def test_left_out_regions_are_predicted_within_their_target(checked: Validation) -> None:
    assert len(checked.cases) == 140
    assert all(case.cross_validated for case in checked.cases)
    assert checked.errors.median_ape is not None
    assert checked.errors.median_ape < 0.10


def test_whether_a_compiler_is_faster_is_said_right(checked: Validation) -> None:
    assert len(checked.pairs) == 60
    assert sum(pair.agrees for pair in checked.pairs) / len(checked.pairs) >= 0.95


def test_shipped_rates_are_those_of_the_fit() -> None:
    shipped, fitted = shipped_rates(), fitted_rates()
    assert dict(shipped.values) == pytest.approx(dict(fitted.values), rel=2e-3)
    assert (shipped.low, shipped.high) == pytest.approx((fitted.low, fitted.high), rel=2e-3)
    assert set(shipped.values) == set(RATES)


def test_rows_that_cannot_be_predicted_are_named(tmp_path: Path) -> None:
    lines = [
        "id,region,tokens,width,dtype,variant,direction,device_us,chip",
        "a,swiglu,4096,4096,bf16,eager,fwd,45,h100-sxm",
        "b,warp-drive,4096,4096,bf16,eager,fwd,45,h200-sxm",
        "c,swiglu,0,4096,bf16,eager,fwd,45,h200-sxm",
        "d,swiglu,16,4096,bf16,sideways,fwd,45,h200-sxm",
        "e,swiglu,16,4096,bf16,eager,fwd,45,abacus",
        "f,swiglu,16,4096,bf16,eager,fwd,,h200-sxm",
        "g,softmax+relu,4096,4096,bf16,inductor,bwd,45,h200-sxm",
    ]
    file = tmp_path / "mine.csv"
    file.write_text("\n".join(lines))
    checked = ridgeline.validate(file)
    assert {case.row.id: case.cross_validated for case in checked.cases} == {"a": True, "g": False}
    assert {row.id: row.reason.partition(":")[0] for row in checked.skipped} == {
        "b": "region", "c": "tokens", "d": "variant", "e": "chip", "f": "device_us",
    }  # fmt: skip
    assert "warp" in checked.skipped[0].reason


def test_another_chip_widens_the_interval(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    row = "swiglu,8192,8192,bf16,inductor,fwd,95,"
    file.write_text(
        "id,region,tokens,width,dtype,variant,direction,device_us,chip\n" + f"a,{row}h200-sxm\nb,{row}a100-80-sxm\n"
    )
    own, other = ridgeline.validate(file).cases
    assert other.predicted_s > own.predicted_s
    assert other.high_s / other.low_s > own.high_s / own.low_s
