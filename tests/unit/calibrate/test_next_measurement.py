"""What to measure next: by how much each measurement is expected to narrow the interval of a scenario."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ridgeline.calibrate.anchor import anchor_calibration
from ridgeline.calibrate.next_measurement import KERNEL_NOISE, NextMeasurements, next_measurements
from ridgeline.cli.main import command_line
from ridgeline.core.errors import InputError
from ridgeline.cost.anchored import Components
from ridgeline.cost.calibration import Calibration, default_calibration
from ridgeline.plan.scenario_file import read_scenario

LARGE = "examples/llama3-70b-64xh100.toml"
MEASURED = "examples/llama3-8b-8xh100-measured.toml"


def found(path: str = LARGE, calibration: Calibration | None = None) -> NextMeasurements:
    return next_measurements(read_scenario(path), calibration)


def test_an_uncertain_kernel_that_dominates_comes_first() -> None:
    """Nothing is uncertain but parameters, and runs are noisy: the product most time goes to says more than any run."""
    parts = Components(owners=1.0, shared=1e-4, same=1e-4, near=1e-4, noise=10 * KERNEL_NOISE)
    first = found(calibration=replace(default_calibration(), components=parts)).candidates[0]
    assert first.kind == "kernel"
    assert first.name.startswith("product")
    assert "matmul_wide" in first.pins


def test_a_run_of_the_same_says_more_than_cheaper_ones_and_kernels() -> None:
    ranked = {one.name: one for one in found().candidates}
    itself = ranked["the scenario itself"]
    node = next(one for name, one in ranked.items() if name.startswith("one node"))
    assert itself.width < node.width < 1
    assert itself.chip_seconds > 5 * node.chip_seconds
    assert all(one.width > itself.width for one in ranked.values() if one.kind == "kernel")
    assert {"attention forward", "attention backward", "memory copy", "host launch"} <= ranked.keys()
    assert {"collective inside a domain", "collective between domains"} <= ranked.keys()


def test_intervals_are_inside_the_present_one() -> None:
    answer = found()
    now = answer.prediction.interval
    for one in answer.candidates:
        assert now.low <= one.low_s < answer.prediction.step_time_s < one.high_s <= now.high


def test_what_was_measured_is_worth_less_the_second_time() -> None:
    itself = [
        next(one for one in found(MEASURED, used).candidates if one.name == "the scenario itself")
        for used in (default_calibration(), anchor_calibration(None, MEASURED))
    ]
    assert itself[0].width < itself[1].width < 1


def test_one_chip_has_no_links_to_measure() -> None:
    names = [one.name for one in found("examples/llama3.2-1b-1xh200.toml").candidates]
    assert not [name for name in names if "domain" in name or "overlapped" in name or "node" in name]


def test_only_a_scenario_is_taken() -> None:
    with pytest.raises(InputError, match="a scenario alone"):
        CliRunner().invoke(command_line(), ["validate", "mine.csv", "--next", LARGE], catch_exceptions=False)
    with pytest.raises(InputError, match="--next SCENARIO"):
        CliRunner().invoke(command_line(), ["validate", "--anchor", "x.csv"], catch_exceptions=False)
    with pytest.raises(InputError, match="no such file"):
        CliRunner().invoke(command_line(), ["validate", "--next", str(Path("none.toml"))], catch_exceptions=False)
