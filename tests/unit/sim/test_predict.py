"""One prediction: its parts, its flops, its interval, and what it says when there is none."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ridgeline
from ridgeline.core.encode import to_json
from ridgeline.core.evidence import Evidence
from ridgeline.cost.calibration import Calibration
from ridgeline.cost.step_part import StepPart
from ridgeline.models.facts import training_flops_per_token
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import read_scenario, scenario
from ridgeline.plan.workload import Prefill
from ridgeline.sim.closed_form.step import send_seconds
from ridgeline.sim.events.simulate import Simulated, simulate, timeline
from ridgeline.sim.predict_step import default_calibration, predict, price
from ridgeline.sim.prediction import Impossible, Prediction
from ridgeline.sim.prediction_interval import Residual, interval, read_residuals
from ridgeline.trace import write_chrome

EXAMPLE = Path(__file__).parents[3] / "examples" / "llama3-70b-64xh100.toml"
DEFAULTS = Calibration(offsets={})


def example(*settings: str) -> Scenario:
    return read_scenario(EXAMPLE, settings)


def predicted(built: Scenario, **options: Any) -> Prediction:
    found = predict(built, DEFAULTS, **options)
    assert isinstance(found, Prediction), found
    return found


def test_parts_sum_to_the_step() -> None:
    found = predicted(example())
    assert math.fsum(part.seconds for part in found.breakdown) == pytest.approx(found.step_time_s, rel=1e-9)
    assert math.fsum(found.bounds.values()) == pytest.approx(found.step_time_s, rel=1e-9)
    assert {part.name for part in found.breakdown} <= set(StepPart)
    assert all(part.seconds > 0 for part in found.breakdown)


def test_speed_follows_from_the_step() -> None:
    found = predicted(example())
    tokens = 512 * 8192
    assert found.tokens_per_s_per_chip == pytest.approx(tokens / found.step_time_s / 64)
    flops = training_flops_per_token(found.scenario.model, 8192).total * tokens
    assert found.utilization.model_flops == pytest.approx(flops)
    assert found.utilization.mfu == pytest.approx(flops / (found.step_time_s * 64 * 989e12))
    assert found.model_flops_per_s_per_chip == pytest.approx(found.utilization.mfu * 989e12)


def test_full_recompute_executes_each_layer_forward_once_more() -> None:
    """llama3-70b: the matrices of 80 layers, scores of half the pairs, and the 160 keys a row of tiles adds."""
    hidden, heads, kv, dim, wide, seq, tokens = 8192, 64, 8, 128, 28672, 8192, 512 * 8192
    matrices = 80 * tokens * 2 * (hidden * (heads + 2 * kv) * dim + heads * dim * hidden + 3 * hidden * wide)
    scores = 80 * tokens * 2 * (seq / 2) * heads * 2 * dim
    none, full = (predicted(example(f"plan.recompute={kind}")) for kind in ("none", "full"))
    more = full.utilization.executed_flops - none.utilization.executed_flops - matrices
    assert more == pytest.approx(scores * (1 + 160 / (seq / 2)), rel=1e-3)
    assert full.utilization.model_flops == none.utilization.model_flops
    assert full.step_time_s > none.step_time_s


def test_attention_over_all_pairs_changes_mfu_only() -> None:
    """Scores of three passes over the other half of the tokens: 3 * 2 * seq/2 * heads * (dim + dim), 80 layers."""
    half, full = predicted(example()), predicted(example(), causal=False)
    extra = 3 * 2 * 4096 * 64 * 256 * 80 * 512 * 8192
    assert full.utilization.model_flops - half.utilization.model_flops == pytest.approx(extra)
    assert full.utilization.hfu == half.utilization.hfu
    assert "half" in half.utilization.conventions[0]
    assert "all pairs" in full.utilization.conventions[0]


def test_frozen_weights_count_two_passes() -> None:
    plain = example("plan.shard=none")
    work = replace(plain.workload, task="lora")  # type: ignore[type-var]
    lora = predicted(replace(plain, workload=work))  # type: ignore[arg-type]
    assert lora.utilization.model_flops == pytest.approx(predicted(plain).utilization.model_flops * 2 / 3)
    assert lora.step_time_s < predicted(plain).step_time_s


def test_bill() -> None:
    found = predicted(example())
    assert found.bill.energy_j == pytest.approx(700 * 64 * found.step_time_s)
    price_per_hour = found.scenario.system.chip.price
    assert price_per_hour is not None
    assert found.bill.cost_usd == pytest.approx(price_per_hour.value * 64 * found.step_time_s / 3600)
    bare = replace(found.scenario.system.chip, tdp=None, price=None, family="")
    free = predicted(replace(found.scenario, system=replace(found.scenario.system, chip=bare)))
    assert (free.bill.energy_j, free.bill.cost_usd) == (None, None)


def test_what_does_not_fit_is_still_predicted() -> None:
    """70.55 B parameters on one chip each: 2 + 4 + 12 bytes of state alone are 1.27 TB."""
    found = predicted(example("plan.tp=1", "plan.pp=1", "plan.dp=64", "plan.schedule=1f1b", "plan.shard=none"))
    assert not found.fits
    assert found.memory.headroom_bytes < -70.55e9 * 18 + 80e9
    assert found.step_time_s > 0
    assert found.memory.headroom_bytes == found.memory.capacity_bytes - found.memory.peak_bytes


def test_reasons_instead_of_a_prediction() -> None:
    built = example()
    odd = replace(built, plan=replace(built.plan, mesh=replace(built.plan.mesh, tp=3)))
    found = predict(odd)
    assert isinstance(found, Impossible)
    assert {"plan.tp", "plan.dp"} <= {reason.path for reason in found.reasons}
    assert "attention heads" in str(found)
    serving = replace(
        built, workload=Prefill(seq=8192, batch=8), plan=replace(built.plan, schedule=type(built.plan.schedule)())
    )
    found = predict(serving)
    assert isinstance(found, Impossible)
    assert "workload.kind" in {reason.path for reason in found.reasons}
    assert isinstance(timeline(odd), Impossible)


def test_a_missing_number_is_a_reason() -> None:
    built = example()
    chip = replace(built.system.chip, hbm=replace(built.system.chip.hbm, bandwidth=None))
    found = predict(replace(built, system=replace(built.system, chip=chip)))
    assert isinstance(found, Impossible)
    assert found.reasons[0].path == "chip.hbm.bandwidth"
    assert "--set chip.hbm.bandwidth" in found.reasons[0].todo


def test_evidence_and_assumptions() -> None:
    found = predicted(example())
    assert found.evidence == Evidence.ANALYTIC  # nothing was fitted
    assert "no calibration at hand: every rate at its default" in found.assumptions
    assert any("chip h100-sxm took part" in note for note in found.assumptions)
    fitted = Calibration(offsets={"memory/h100-sxm": 0.1, "host/megatron-core": 0.1})
    known = predict(example(), fitted)
    assert isinstance(known, Prediction)
    assert known.evidence == Evidence.DATASHEET
    assert not any("took part" in note for note in known.assumptions)
    assumed = predicted(example("chip.scaleup.bandwidth=900 GB/s"))
    assert assumed.evidence <= Evidence.ASSUMED
    assert any("chip.scaleup.bandwidth" in note for note in assumed.assumptions)


def test_same_scenario_same_prediction() -> None:
    assert predicted(example()) == predicted(example())


# -- intervals --------------------------------------------------------------------------------------------------------


def runs(count: int, chip: str = "a", engine: str = "x", off: float = 0.1) -> list[Residual]:
    return [Residual(chip=chip, engine=engine, residual=off * (2 * place / (count - 1) - 1)) for place in range(count)]


def test_interval_takes_the_nearest_group_that_is_large_enough() -> None:
    table = [*runs(8, "a", "x"), *runs(7, "a", "y"), *runs(20, "b", "x", 0.5)]
    assert interval(1.0, "a", "x", table).basis == "8 runs on a under x"
    assert interval(1.0, "a", "y", table).basis == "15 runs on a or under y"
    assert interval(1.0, "c", "z", table).basis == "35 runs of all kinds"
    assert interval(1.0, "a", "x", runs(7)).runs == 0


def test_interval_is_wider_where_nobody_ran_the_like() -> None:
    table = [Residual(chip="a", engine="x", residual=r / 100) for r in range(-10, 11)]
    known, unseen = interval(1.0, "a", "x", table), interval(1.0, "a", "y", table)
    assert math.log(unseen.high) == pytest.approx(1.4 * math.log(known.high))
    assert math.log(unseen.low) == pytest.approx(1.4 * math.log(known.low))


def test_interval_without_runs_is_assumed() -> None:
    found = interval(2.0, "a", "x", [])
    assert (found.low, found.high, found.coverage) == pytest.approx((2 / 1.35, 2 * 1.35, 0.9))
    assert found.basis.startswith("assumed")


def test_interval_quantiles_by_hand() -> None:
    """99 runs: the 5 % quantile is the fifth smallest of log(measured / predicted), the 95 % one the fifth largest."""
    table = runs(99, off=0.2)
    ratios = sorted(-math.log1p(run.residual) for run in table)
    found = interval(3.0, "a", "x", table)
    assert found.low == pytest.approx(3 * math.exp(ratios[4]))
    assert found.high == pytest.approx(3 * math.exp(ratios[-5]))


def test_few_runs_widen_the_interval() -> None:
    """8 runs say nothing of one in twenty: the ends lie beyond the furthest of them."""
    few = interval(1.0, "a", "x", runs(8))
    assert few.low < 1 / 1.1
    assert few.high > 1 / 0.9
    assert few.high / few.low > interval(1.0, "a", "x", runs(80)).high / interval(1.0, "a", "x", runs(80)).low


def test_runs_of_one_configuration_share_a_vote() -> None:
    """20 configurations, one of them measured 30 times: 1.05 of 21 votes from either end, whoever is repeated.

    From below the 30 runs are the first vote, and the next lies a twentieth of the way to the second configuration.
    """
    once = [Residual(chip="a", engine="x", residual=r / 100, group=f"g{r}") for r in range(-9, 10)]
    often = [Residual(chip="a", engine="x", residual=0.5, group="again")] * 30
    found = interval(1.0, "a", "x", [*once, *often])
    assert math.log(found.low) == pytest.approx(-math.log(1.5) + 0.05 * (math.log(1.5) - math.log(1.09)))
    assert math.log(found.high) == pytest.approx(-math.log(0.91) + 0.05 * (math.log(0.91) - math.log(0.92)))
    assert found.basis == "49 runs on a under x"


def test_few_configurations_measured_often_are_few() -> None:
    table = [run for place in range(7) for run in [Residual(chip="a", engine="x", residual=0.1, group=str(place))] * 9]
    assert interval(1.0, "a", "x", table).runs == 0


def test_biased_runs_never_exclude_the_prediction() -> None:
    slow = [Residual(chip="a", engine="x", residual=-0.2 + 0.001 * place) for place in range(20)]
    found = interval(1.0, "a", "x", slow)
    assert found.low == 1.0
    assert found.high > 1.2


def test_residual_table_of_a_stranger() -> None:
    rows = [{"chip": "a", "residual": 0.1}, {"residual": float("nan")}, {"residual": -1}, {"residual": "x"}, 7, None]
    assert read_residuals(rows) == (Residual(chip="a", engine="", residual=0.1),)


# -- the timeline -----------------------------------------------------------------------------------------------------


def test_timeline_spends_what_the_prediction_says() -> None:
    built = example("workload.global_batch=32")
    priced = price(built, DEFAULTS)
    found = simulate(built, DEFAULTS)
    assert isinstance(found, Simulated)
    by_rank = [sum(stage.total_s for stage in found.shared.work[rank::2]) for rank in range(2)]
    wanted = sum(float(priced.steps.parts[name][0]) for name in ("matmul", "attention", "memory", "kernel", "tp"))
    shown = 2 * built.plan.schedule.chunks * float(send_seconds(priced.plans, priced.rates).shown[0])
    assert (max(by_rank) - shown) * built.microbatches == pytest.approx(wanted)
    drawn = timeline(built, DEFAULTS)
    assert not isinstance(drawn, Impossible)
    assert drawn.processes == ("stage 0", "stage 1")
    assert drawn.span_s == pytest.approx(predicted(built).step_time_s, rel=0.05)


def test_timeline_without_a_pipeline_is_the_step(tmp_path: Path) -> None:
    built = example("plan.pp=1", "plan.dp=8", "plan.schedule=1f1b", "workload.global_batch=16")
    drawn = timeline(built, DEFAULTS)
    assert not isinstance(drawn, Impossible)
    assert drawn.span_s == pytest.approx(predicted(built).step_time_s, rel=1e-9)
    assert drawn.counters[0].peak == pytest.approx(predicted(built).memory.peak_bytes)
    write_chrome(drawn, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C"}


def test_timeline_of_too_many_actions_is_refused() -> None:
    found = timeline(example("workload.global_batch=4194304"))
    assert isinstance(found, Impossible)
    assert found.reasons[0].path == "plan.microbatch"


# -- the sheet --------------------------------------------------------------------------------------------------------


def test_sheet_is_plain_json_with_the_promised_keys() -> None:
    sheet = to_json(predicted(example()))
    promised = {
        "step_time_s", "tokens_per_s_per_chip", "mfu", "hfu", "model_tflops_per_chip", "peak_memory_bytes", "memory",
        "breakdown", "interval", "assumptions", "evidence",
    }  # fmt: skip
    assert promised <= set(json.loads(json.dumps(sheet, allow_nan=False)))
    assert {"low", "high", "coverage"} <= set(sheet["interval"])
    assert sum(sheet["memory"].values()) == pytest.approx(sheet["peak_memory_bytes"])
    assert sum(sheet["breakdown"].values()) == pytest.approx(sheet["step_time_s"], rel=1e-9)


def test_library_names() -> None:
    assert ridgeline.predict(example()) == predict(example())
    assert ridgeline.timeline is timeline
    assert ridgeline.Prediction is Prediction
    assert isinstance(default_calibration(), Calibration)


def test_every_kind_of_block_is_predicted() -> None:
    for model in ("llama3-8b", "mixtral-8x7b", "deepseek-v2-lite", "nemotron-h-8b", "gemma2-9b", "gpt3-6.7b"):
        built = scenario(
            {"model": model, "system": "8xh100-sxm", "workload": {"seq": 4096, "global_batch": 16}, "plan": {}}
        )
        assert 0.05 < predicted(built).utilization.mfu < 0.9, model
