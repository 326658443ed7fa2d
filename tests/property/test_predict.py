"""Laws of predictions: parts sum, better hardware is never slower, memory is what its kinds are."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ridgeline.core.errors import InputError
from ridgeline.cost.calibration import Calibration
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import scenario
from ridgeline.sim.predict_step import predict
from ridgeline.sim.prediction import Prediction
from ridgeline.sim.prediction_interval import Residual, interval

DEFAULTS = Calibration(offsets={})
SOME = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TABLES = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["llama3-8b", "mixtral-8x7b", "gpt3-6.7b", "deepseek-v2-lite"]),
        "chips": st.sampled_from([8, 16, 32, 64]),
        "chip": st.sampled_from(["h100-sxm", "a100-80-sxm", "mi300x", "tpu-v5p"]),
        "seq": st.sampled_from([1024, 4096, 16384]),
        "tp": st.sampled_from([1, 2, 4, 8]),
        "pp": st.sampled_from([1, 2, 4]),
        "cp": st.sampled_from([1, 2]),
        "ep": st.sampled_from([1, 4]),
        "microbatch": st.sampled_from([1, 2]),
        "shard": st.sampled_from(["none", "zero1", "zero2", "zero3"]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "precision": st.sampled_from(["bf16", "fp8"]),
        "engine": st.sampled_from(["megatron-core", "torchtitan", "torch-eager", "maxtext"]),
    }
)


def built(table: dict[str, Any], **numbers: dict[str, str]) -> Scenario:
    """The scenario of a drawn table; one that is impossible is not of interest here."""
    plan = {key: value for key, value in table.items() if key not in ("model", "chips", "chip", "seq")}
    try:
        return scenario(
            {
                "model": table["model"],
                "system": f"{table['chips']}x{table['chip']}",
                "chip": numbers,
                "workload": {"seq": table["seq"], "global_batch": 256},
                "plan": plan,
            }
        )
    except InputError:
        assume(False)
        raise


def predicted(made: Scenario) -> Prediction:
    found = predict(made, DEFAULTS)
    assert isinstance(found, Prediction), found
    return found


@SOME
@given(TABLES)
def test_parts_sum_and_are_finite(table: dict[str, Any]) -> None:
    found = predicted(built(table))
    assert all(math.isfinite(part.seconds) and part.seconds > 0 for part in found.breakdown)
    assert math.fsum(part.seconds for part in found.breakdown) == pytest.approx(found.step_time_s, rel=1e-9)
    assert 0 < found.utilization.mfu < 1
    assert found.utilization.hfu < 1
    assert found.interval.low <= found.step_time_s <= found.interval.high


@SOME
@given(TABLES)
def test_memory_is_the_sum_of_its_kinds(table: dict[str, Any]) -> None:
    memory = predicted(built(table)).memory
    for stage in memory.stages:
        assert all(math.isfinite(size) and size >= 0 for size in stage.bytes_by_kind.values())
        assert stage.peak_bytes <= memory.peak_bytes
    assert memory.allocated_bytes < memory.peak_bytes


@SOME
@given(TABLES, st.floats(1.01, 8.0))
def test_more_of_anything_is_never_slower(table: dict[str, Any], factor: float) -> None:
    base = built(table)
    chip = base.system.chip
    slow = predicted(base).step_time_s
    rates = {
        "hbm": {"bandwidth": f"{chip.need('hbm.bandwidth').value * factor:.6e} B/s"},
        "scaleup": {"bandwidth": f"{chip.need('scaleup.bandwidth').value * factor:.6e} B/s"},
        "peak": {key: f"{peak.value * factor:.6e} FLOP/s" for key, peak in chip.peak.items()},
    }
    for key, better in rates.items():
        assert predicted(built(table, **{key: better})).step_time_s <= slow * (1 + 1e-9), key


@SOME
@given(TABLES)
def test_sharding_further_never_takes_more_state(table: dict[str, Any]) -> None:
    held = []
    for shard in ("none", "zero1", "zero2", "zero3"):
        stage = predicted(built({**table, "shard": shard})).memory.stages[0]
        held.append(stage.bytes_by_kind["weights"] + stage.bytes_by_kind["optimizer"])
    assert held == sorted(held, reverse=True)


@SOME
@given(TABLES)
def test_recompute_trades_time_for_memory(table: dict[str, Any]) -> None:
    none, full = (predicted(built({**table, "recompute": kind})) for kind in ("none", "full"))
    assert full.utilization.executed_flops > none.utilization.executed_flops
    assert full.step_time_s >= none.step_time_s * (1 - 1e-9)
    assert full.memory.stages[0].bytes_by_kind["activations"] < none.memory.stages[0].bytes_by_kind["activations"]


@SOME
@given(st.lists(st.floats(-0.6, 2.0), min_size=8, max_size=60), st.floats(1e-4, 1e4))
def test_interval_holds_the_prediction_and_scales_with_it(values: list[float], step: float) -> None:
    table = [Residual(chip="a", engine="x", residual=value) for value in values]
    found, twice = interval(step, "a", "x", table), interval(2 * step, "a", "x", table)
    assert 0 < found.low <= step <= found.high < math.inf
    assert (twice.low, twice.high) == pytest.approx((2 * found.low, 2 * found.high))
