"""Measured steps of post-training of one's own: one number that moves predictions and plans of post-training."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.plan.scenario_file import read_scenario
from ridgeline.rl import RlPrediction

EXAMPLES = Path(__file__).parents[3] / "examples"
MEASURED = EXAMPLES / "grpo-qwen2.5-7b-32xh20-measured.toml"


def step(path: Path, *anchors: Path) -> RlPrediction:
    answer = ridgeline.predict(read_scenario(path), anchor=anchors)
    assert isinstance(answer, RlPrediction)
    return answer


def test_a_measured_step_sets_the_pace_of_others() -> None:
    cold, own = step(MEASURED), step(MEASURED, MEASURED)
    assert cold.step_time_s < own.step_time_s < 790.1
    half_way = math.sqrt(cold.step_time_s * 790.1)  # drawn to 1 by one run
    assert own.step_time_s == pytest.approx(half_way, rel=0.03)
    assert own.interval.high / own.interval.low < cold.interval.high / cold.interval.low
    assert "1 of your own" in own.interval.basis
    twice = step(MEASURED, MEASURED, MEASURED)
    assert own.step_time_s < twice.step_time_s < 790.1


def test_rates_are_read_as_steps(tmp_path: Path) -> None:
    cold = step(MEASURED)
    text = MEASURED.read_text().partition("[measured]")[0]
    rate = cold.tokens / (790.1 * 32)
    path = tmp_path / "rate.toml"
    path.write_text(f"{text}[measured]\ntokens_per_s_per_chip = {rate}\n")
    assert step(MEASURED, path).step_time_s == pytest.approx(step(MEASURED, MEASURED).step_time_s)


def test_a_training_step_takes_no_anchor_of_post_training() -> None:
    training = read_scenario(EXAMPLES / "llama3-8b-8xh100-measured.toml")
    with pytest.raises(InputError, match="post-training"):
        ridgeline.predict(training, anchor=MEASURED)


def test_a_run_without_a_measurement_is_refused() -> None:
    with pytest.raises(InputError, match="measured"):
        step(MEASURED, EXAMPLES / "grpo-qwen2.5-7b-32xh20.toml")
