"""More is never slower, and nothing is above physics, over random models, systems, plans and engines.

Scenarios are drawn from numbered seeds, so that a failure comes back. Everything is compared to 1e-9.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import pytest

from ridgeline.calibrate.fit import surpasses
from ridgeline.core.errors import InputError
from ridgeline.core.evidence import Quoted
from ridgeline.cost.calibration import PARAMETERS, Calibration, default_calibration
from ridgeline.cost.machine import Machines, ParameterColumns
from ridgeline.cost.price import REACHABLE, SustainedRates
from ridgeline.hardware.chip import Chip
from ridgeline.hardware.load import CHIPS
from ridgeline.hardware.load import system as load_system
from ridgeline.lowering.plan_columns import plan_columns
from ridgeline.models.load import MODELS
from ridgeline.plan.engine import ENGINES
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import scenario
from ridgeline.search.training.plan_search import find_plan
from ridgeline.sim import Prediction, predict

EACH = 50  # scenarios of a seed
SLACK = 1 + 1e-9
PRECISIONS = ("bf16", "bf16", "fp8", "fp8", "mxfp8", "nvfp4", "fp16", "tf32", "int8")
SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero-bubble-h1", "zbv", "dualpipe-v")


def drawn(dice: random.Random, chip: str | None = None) -> dict[str, Any]:
    """A table that may be impossible."""
    schedule = dice.choice(SCHEDULES)
    plan: dict[str, Any] = {
        "tp": dice.choice((1, 1, 2, 4, 8)),
        "pp": dice.choice((1, 1, 2, 4, 8)),
        "cp": dice.choice((1, 1, 1, 2, 4)),
        "ep": dice.choice((1, 1, 2, 4, 8)),
        "microbatch": dice.choice((1, 1, 2, 4)),
        "shard": dice.choice(("none", "zero1", "zero2", "zero3")),
        "recompute": dice.choice(("none", "selective", "full")),
        "precision": dice.choice(PRECISIONS),
        "engine": dice.choice(tuple(ENGINES)),
        "schedule": {"name": schedule, "chunks": dice.choice((2, 3, 4))} if schedule == "interleaved" else schedule,
        "overlap": {word: dice.random() < 0.5 for word in ("grad-reduce", "tp", "pp", "moe") if dice.random() < 0.3},
    }
    if plan["pp"] == 1:
        del plan["schedule"]
    if dice.random() < 0.3:
        plan["offload"] = dice.choice((["activations"], ["optimizer"], ["activations", "optimizer"]))
    if dice.random() < 0.2:
        plan["graph"] = dice.choice(("partial", "full"))
    if dice.random() < 0.1:
        plan["launch_blocking"] = True
    chips = dice.choice((1, 4, 8, 16, 32, 64, 128, 256, 512))
    return {
        "model": dice.choice(tuple(MODELS)),
        "system": f"{chips}x{chip or dice.choice(tuple(CHIPS))}",
        "workload": {
            "seq": dice.choice((512, 2048, 4096, 8192, 32768)),
            "global_batch": dice.choice((16, 64, 96, 256, 1024)),
        },
        "plan": plan,
    }


def possible(dice: random.Random, many: int, chip: str | None = None) -> Iterator[tuple[Scenario, Prediction]]:
    """So many scenarios that can be predicted, with their predictions."""
    found = 0
    for _ in count():
        try:
            made = scenario(drawn(dice, chip))
        except InputError:
            continue
        prediction = predict(made)
        if isinstance(prediction, Prediction):
            yield made, prediction
            found += 1
        if found == many:
            return


def times(number: Quoted | None, factor: float) -> Quoted | None:
    return number and replace(number, value=number.value * factor)


def with_chip(made: Scenario, **numbers: Any) -> Scenario:
    return replace(made, system=replace(made.system, chip=replace(made.system.chip, **numbers)))


def faster(made: Scenario, by: float) -> Iterator[tuple[str, Scenario]]:
    """The scenario with each of its rates raised, one at a time."""
    chip, system = made.system.chip, made.system
    for key, peak in chip.peak.items():
        yield f"peak.{key}", with_chip(made, peak={**chip.peak, key: times(peak, by)})
    yield "every peak", with_chip(made, peak={key: times(peak, by) for key, peak in chip.peak.items()})
    for level in ("hbm", "cache", "scaleup", "scaleout", "host"):
        own = getattr(chip, level)
        if own.bandwidth is not None:
            yield f"{level}.bandwidth", with_chip(made, **{level: replace(own, bandwidth=times(own.bandwidth, by))})
    for key in ("vector", "exponentials", "tdp"):
        if getattr(chip, key) is not None:
            yield key, with_chip(made, **{key: times(getattr(chip, key), by)})
    for place, tier in enumerate(system.tiers):
        for key, factor in (("bandwidth", by), ("link", by), ("latency", 1 / by)):
            if getattr(tier, key) is not None:
                tiers = list(system.tiers)
                tiers[place] = replace(tier, **{key: times(getattr(tier, key), factor)})
                yield f"tier {place} {key}", replace(made, system=replace(system, tiers=tuple(tiers)))


def step_s(made: Scenario) -> float:
    found = predict(made)
    assert isinstance(found, Prediction), found
    assert 0 < found.utilization.mfu <= 1, made
    assert 0 < found.utilization.hfu <= 1, made
    return found.step_time_s


@pytest.mark.parametrize("seed", range(5))
def test_a_faster_machine_is_never_slower(seed: int) -> None:
    dice = random.Random(seed)
    for made, found in possible(dice, EACH):
        by = dice.choice((1.01, 1.1, 1.5, 2.0, 8.0))
        for name, better in faster(made, by):
            assert step_s(better) <= found.step_time_s * SLACK, f"{name} x {by}: {made}"


@pytest.mark.parametrize(
    "table",
    [  # what was slower: sync that hid behind the bottleneck, copies behind what gathers used, waits of other passes
        {"model": "glm-5.2", "system": "512xb300-sxm", "workload": {"seq": 32768, "global_batch": 64},
         "plan": {"tp": 2, "pp": 8, "cp": 4, "ep": 2, "shard": "zero3", "precision": "fp8", "engine": "primus",
                  "schedule": "zero-bubble-h1", "offload": ["activations"], "overlap": {"tp": True}}},
        {"model": "qwen-14b", "system": "16xmi455x", "workload": {"seq": 512, "global_batch": 16},
         "plan": {"tp": 4, "pp": 4, "microbatch": 4, "shard": "zero2", "recompute": "full", "precision": "mxfp8",
                  "engine": "megatron-deepspeed", "schedule": "zero-bubble-h1", "overlap": {"pp": True}}},
        {"model": "falcon-180b", "system": "64xb200-sxm", "workload": {"seq": 8192, "global_batch": 96},
         "plan": {"pp": 8, "cp": 4, "shard": "zero1", "recompute": "selective", "precision": "tf32",
                  "engine": "nemo-automodel", "schedule": "zbv", "overlap": {"grad-reduce": True}}},
        {"model": "glm-5", "system": "32xmi355x", "workload": {"seq": 2048, "global_batch": 1024},
         "plan": {"pp": 4, "shard": "zero3", "recompute": "selective", "engine": "deepspeed", "graph": "full",
                  "offload": ["activations"], "overlap": {"tp": True}}},
        {"model": "qwen3.5-35b-a3b", "system": "128xh200-sxm", "workload": {"seq": 2048, "global_batch": 1024},
         "plan": {"pp": 4, "cp": 4, "ep": 4, "shard": "zero1", "precision": "mxfp8", "engine": "megascale",
                  "schedule": {"name": "interleaved", "chunks": 2}, "offload": ["optimizer"], "overlap": {"pp": True}}},
    ],
)  # fmt: skip
def test_what_used_to_be_slower(table: dict[str, Any]) -> None:
    made = scenario(table)
    before = step_s(made)
    for by in (1.1, 1.5, 2.0, 8.0):
        for name, better in faster(made, by):
            assert step_s(better) <= before * SLACK, f"{name} x {by}"


def odd(dice: random.Random, chip: Chip) -> Chip:
    """A chip whose numbers somebody set to anything."""

    def any_times(number: Quoted | None) -> Quoted | None:
        return times(number, 10 ** dice.uniform(-2, 2)) if dice.random() < 0.5 else number

    peaks = {key: any_times(peak) for key, peak in chip.peak.items()}
    memory = replace(chip.hbm, bandwidth=any_times(chip.hbm.bandwidth))
    return replace(chip, peak=peaks, hbm=memory, tdp=any_times(chip.tdp), vector=any_times(chip.vector))


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_above_a_peak_whatever_is_set(seed: int) -> None:
    dice = random.Random(100 + seed)
    for made, _ in possible(dice, 2 * EACH):
        step_s(replace(made, system=replace(made.system, chip=odd(dice, made.system.chip))))


def test_a_low_peak_is_not_exceeded() -> None:
    table = {"model": "llama3-70b", "system": "64xh100-sxm", "chip": {"peak": {"bf16": "100 TFLOP/s"}},
             "workload": {"seq": 8192, "global_batch": 256}, "plan": {"tp": 8, "pp": 2}}  # fmt: skip
    found = predict(scenario(table))
    assert isinstance(found, Prediction)
    assert found.utilization.hfu < REACHABLE


@pytest.mark.parametrize("far", [-20.0, 0.0, 20.0])
def test_no_calibration_lifts_a_rate_above_its_data_sheet(far: float) -> None:
    dice = random.Random(7)
    offsets = Calibration(offsets=dict.fromkeys(PARAMETERS, far))
    for made, _ in possible(dice, EACH):
        machines, plans = Machines.of([made.system]), plan_columns([made])
        for calibration in (offsets, default_calibration()):
            rates = SustainedRates.of(machines, ParameterColumns.of(calibration, [made]), plans=plans)
            assert (rates.peak <= machines.peak * REACHABLE * SLACK).all()
            assert (rates.attention <= REACHABLE).all()
            assert (rates.attention_back <= REACHABLE).all()
            assert (rates.memory <= machines.memory).all()
            assert (rates.traffic_s >= 1 / machines.memory / SLACK).all()
            assert (rates.links.scale_up <= machines.scale_up).all()
            assert (rates.links.scale_out <= machines.scale_out).all()


def test_more_memory_changes_no_time_and_fits_what_fitted() -> None:
    for made, found in possible(random.Random(11), 3 * EACH):
        hbm, host = made.system.chip.hbm, made.system.host_memory
        more = with_chip(made, hbm=replace(hbm, capacity=times(hbm.capacity, 1.5), usable=times(hbm.usable, 1.5)))
        more = replace(more, system=replace(more.system, host_memory=times(host, 1.5)))
        after = predict(more)
        assert isinstance(after, Prediction)
        assert after.step_time_s == found.step_time_s
        assert after.fits or not found.fits


@cache
def pairs() -> tuple[tuple[str, str], ...]:
    """Chips and those they surpass; both measured, or neither: a measured one has rates of its own."""
    known = {id: any(key.endswith(f"/{id}") for key in default_calibration().offsets) for id in CHIPS}
    return tuple(
        (one, other) for one in CHIPS for other in CHIPS if known[one] == known[other] and surpasses(one, other)
    )


def test_pairs_are_those_of_data_sheets() -> None:
    assert {("h200-sxm", "h100-sxm"), ("h20-141", "h20-96"), ("a100-80-sxm", "a100-40-sxm")} <= set(pairs())
    assert len(pairs()) > 6


@pytest.mark.parametrize("seed", range(3))
def test_a_chip_that_surpasses_another_is_never_slower(seed: int) -> None:
    """By the parameters alone: a chip whose kernels were measured stands by them, and another's were only fitted."""
    dice, fitted = random.Random(200 + seed), replace(default_calibration(), profiles={})
    for _ in range(EACH):
        one, other = dice.choice(pairs())
        for made, _found in possible(dice, 1, other):
            found = predict(made, fitted)
            better = predict(replace(made, system=load_system(f"{made.system.chips}x{one}")), fitted)
            if isinstance(better, Prediction) and isinstance(found, Prediction):  # else it lacks a number
                assert better.step_time_s <= found.step_time_s * SLACK, f"{one}, {other}: {made}"


def planned_s(made: Scenario) -> float:
    """Seconds of the best plan; infinite where none fits."""
    return min((entry.step_s for entry in find_plan(made, most=1).swept.best), default=float("inf"))


@pytest.mark.parametrize(
    ("model", "one", "other"),
    [("llama3-8b", "8xh200-sxm", "8xh100-sxm"), ("llama3-8b", "8xh20-141", "8xh20-96")],
)
def test_the_best_plan_is_never_slower_with_more(model: str, one: str, other: str) -> None:
    work = {"seq": 4096, "global_batch": 64}
    better, base = (scenario({"model": model, "system": name, "workload": work}) for name in (one, other))
    before = planned_s(base)
    assert np.isfinite(before)
    assert planned_s(replace(better, engine=base.engine)) <= before * SLACK
    hbm = base.system.chip.hbm
    roomy = with_chip(base, hbm=replace(hbm, capacity=times(hbm.capacity, 1.25), usable=times(hbm.usable, 1.25)))
    assert planned_s(roomy) <= before * SLACK


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_attention_of_a_measured_chip_runs_in_its_own_format(precision: str) -> None:
    """Flash kernels were measured in 16 bits: they say nothing of attention in 32."""
    work = {"seq": 32768, "global_batch": 64}
    plan = {"precision": precision, "engine": "torch-eager"}
    step_s(scenario({"model": "gpt2", "system": "8xh200-sxm", "workload": work, "plan": plan}))
