"""Sensitivities: exact derivatives of the prediction, that sum to -1 where all rates and times are counted."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, log
from pathlib import Path

import numpy as np
import pytest

import ridgeline
from ridgeline.core.encode import answer_json
from ridgeline.core.errors import InputError
from ridgeline.design.machine_parameters import scaled_system
from ridgeline.design.sense import sense
from ridgeline.plan.scenario_file import read_scenario
from ridgeline.sim.batches import MachineRows

EXAMPLES = Path(__file__).parents[3] / "examples"
NAMES = ("llama3-70b-64xh100", "llama3-70b-decode-4xh100", "deepseek-v3-prefill-8xh200", "llama3.2-1b-1xh200")
STEP = 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_rates_less_times_sum_to_minus_one(name: str) -> None:
    assert sense(read_scenario(EXAMPLES / f"{name}.toml")).rate_sum == pytest.approx(-1.0, abs=1e-9)


@pytest.mark.parametrize("name", NAMES[:3])
def test_elasticities_are_central_differences_of_whole_predictions(name: str) -> None:
    scenario = read_scenario(EXAMPLES / f"{name}.toml")
    answer = sense(scenario)
    for entry in answer.machine:
        if not entry.parameter.startswith(("chip.", "system.tier.")) or entry.parameter == "chip.hbm.capacity":
            continue
        try:
            systems = [scaled_system(scenario.system, entry.parameter, exp(side * STEP)) for side in (1, -1)]
        except KeyError:
            continue  # a latency that the catalog does not state
        seconds = [ridgeline.predict(replace(scenario, system=system)).step_time_s for system in systems]
        central = (log(seconds[0]) - log(seconds[1])) / (2 * STEP)
        assert entry.elasticity == pytest.approx(central, abs=1e-6), entry.parameter


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_machine_are_its_prediction(name: str) -> None:
    scenario = read_scenario(EXAMPLES / f"{name}.toml")
    times = MachineRows(scenario).times({}, 3)
    assert times.seconds == pytest.approx(ridgeline.predict(scenario).step_time_s, rel=1e-12)
    assert sum(times.parts.values())[0] == pytest.approx(times.seconds[0], rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("column", ["memory", "scale_up", "scale_out", "peak.bf16", "exponentials"])
def test_more_of_a_rate_is_never_slower(name: str, column: str) -> None:
    factors = {column: np.geomspace(0.25, 8, 64)}
    if column.startswith("peak"):
        factors["density.bf16"] = factors[column]
    rows = MachineRows(read_scenario(EXAMPLES / f"{name}.toml"))
    seconds = rows.times(factors).seconds
    assert (seconds[1:] * rows.bound_slack <= seconds[:-1] * (1 + 1e-12)).all()


def test_a_kink_has_two_values() -> None:
    """At the value where two parts of a maximum are equal, a little more and a little less do different things."""
    rows = MachineRows(read_scenario(EXAMPLES / "llama3-70b-decode-4xh100.toml"))
    grid = np.geomspace(0.1, 1.0, 2000)
    slope = np.gradient(np.log(rows.times({"peak.fp8": grid, "density.fp8": grid}).seconds), np.log(grid))
    assert slope[0] < -0.05 < abs(slope[-1]) + 0.05  # compute limits below, and nothing of it above


def test_a_curve_ends_at_its_floor_and_names_the_next_limiter() -> None:
    answer = sense(read_scenario(EXAMPLES / "llama3-70b-decode-4xh100.toml"), curve="chip.hbm.bandwidth")
    assert answer.curve is not None
    metrics = [point.metric for point in answer.curve.points]
    assert metrics == sorted(metrics, reverse=True)
    assert answer.curve.floor < metrics[-1]
    assert 1 < answer.curve.knee_factor < 4
    assert "network" in answer.curve.next_limiter


def test_cost_has_the_elasticities_of_time_and_one_of_the_price() -> None:
    scenario = read_scenario(EXAMPLES / "llama3-70b-decode-4xh100.toml")
    time, cost = sense(scenario), sense(scenario, metric="cost_usd")
    assert cost.of("chip.hbm.bandwidth").elasticity == time.of("chip.hbm.bandwidth").elasticity
    assert cost.of("chip.price").elasticity == 1.0
    assert cost.value == pytest.approx(time.basis.usd_per_unit)


def test_capacity_says_where_the_plan_ceases_to_fit() -> None:
    entry = sense(read_scenario(EXAMPLES / "llama3-70b-64xh100.toml")).of("chip.hbm.capacity")
    assert entry.lower_change is not None
    assert 0.5 < entry.lower_change.factor < 1


def test_requests_under_load_are_sensed_by_their_decode_step() -> None:
    answer = sense(read_scenario(EXAMPLES / "serve-llama3.1-8b-1xh100.toml"))
    assert answer.metric == "tpot_s"
    assert answer.rate_sum == pytest.approx(-1.0, abs=1e-9)


def test_a_cpu_and_an_unknown_metric() -> None:
    with pytest.raises(InputError, match="--metric"):
        sense(read_scenario(EXAMPLES / "llama3-70b-64xh100.toml"), metric="joy")
    with pytest.raises(InputError, match="--curve"):
        sense(read_scenario(EXAMPLES / "llama3-70b-64xh100.toml"), curve="chip.joy")


def test_json_is_the_same_twice_and_numbers_are_finite() -> None:
    scenario = read_scenario(EXAMPLES / "llama3-70b-64xh100.toml")
    texts = [json.dumps(answer_json(sense(scenario)), allow_nan=False) for _ in range(2)]
    assert texts[0] == texts[1]
