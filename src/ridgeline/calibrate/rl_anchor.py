"""Turn measured steps of post-training of one's own into parameters at one's own pace: one number from a few runs.

An anchor of post-training is a scenario file whose [workload] is `kind = "rl"`, with a table [measured] that states
`step_time_s` or `tokens_per_s_per_chip` (prompt and answer tokens).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.calibrate.anchor import measured_entry
from ridgeline.core.errors import InputError
from ridgeline.core.files import SUFFIXES, read_table
from ridgeline.cost import Calibration
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import read_scenario
from ridgeline.rl import RlParameters, RlPrediction, predict_rl, shipped_parameters
from ridgeline.sim import Impossible

DRAWS = 3  # steps whose lengths are drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class RlPricing:
    """What steps of post-training are priced with: kernels, and parameters; None is what ships."""

    calibration: Calibration | None
    parameters: RlParameters | None


def rl_pricing(runs: Sequence[str], calibrate: Callable[[list[str]], Calibration | None]) -> RlPricing:
    """Anchors that are steps of post-training set the pace; the others are training steps, which `calibrate` takes."""
    own_steps = [run for run in runs if is_rl_run(run)]
    prior = calibrate([run for run in runs if run not in own_steps])
    return RlPricing(calibration=prior, parameters=anchor_rl(own_steps, prior))


def predict_at_pace(
    scenario: Scenario, runs: Sequence[str], calibrate: Callable[[list[str]], Calibration | None]
) -> RlPrediction | Impossible:
    """The predicted step of post-training as anchors price it."""
    own = rl_pricing(runs, calibrate)
    return predict_rl(scenario, own.calibration, parameters=own.parameters)


def is_rl_run(text: str) -> bool:
    """Whether an anchor is a scenario of post-training."""
    path = Path(text)
    if not text.lower().endswith(SUFFIXES) or not path.is_file():
        return False
    work = read_table(path).data.get("workload")
    return isinstance(work, dict) and work.get("kind") == "rl"


def anchor_rl(runs: Sequence[str], calibration: Calibration | None = None) -> RlParameters | None:
    """The shipped parameters at the pace of these runs; None without any."""
    if not runs:
        return None
    return shipped_parameters().at_pace([log_error(Path(run), calibration) for run in runs])


def log_error(path: Path, calibration: Calibration | None = None) -> float:
    """log(measured / predicted) of the step of a scenario that says what was measured."""
    metric, value = measured_entry(path)
    scenario = read_scenario(path)
    prediction = predict_rl(scenario, calibration, draws=DRAWS)
    if not isinstance(prediction, RlPrediction):
        raise InputError(prediction.reasons)
    seconds = value if metric == "step_time_s" else prediction.tokens / (value * scenario.system.chips)
    return math.log(seconds / prediction.step_time_s)
