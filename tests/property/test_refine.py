"""Laws of refined plans: they fit, hold all layers, are never slower than a plan that fits, and come out the same."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeline.core.errors import InputError
from ridgeline.cost.calibration import Calibration
from ridgeline.plan.check import check
from ridgeline.plan.scenario_file import scenario
from ridgeline.search.stage_layout.layouts import Layouts, LayoutTable, layout_table
from ridgeline.search.stage_layout.refine import Refined, refine
from ridgeline.sim.predict_step import predict
from ridgeline.sim.prediction import Prediction

DEFAULTS = Calibration(offsets={})
SCHEDULES = [("1f1b", 1), ("interleaved", 2), ("interleaved", 4), ("zbv", 2), ("gpipe", 1), ("zero-bubble-h1", 1)]
PLANS = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["llama3-8b", "mixtral-8x7b", "deepseek-v2-lite"]),
        "pp": st.sampled_from([2, 4]),
        "schedule": st.sampled_from(SCHEDULES),
        "recompute": st.sampled_from(["none", "selective", "full", {"kind": "full", "layers": 1}]),
        "engine": st.sampled_from(["megatron-core", "torchtitan"]),
        "budget": st.floats(min_value=0.3, max_value=1.5),
    }
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(PLANS)
def test_laws(drawn: dict[str, object]) -> None:
    name, chunks = drawn["schedule"]  # type: ignore[misc]
    table = {
        "model": drawn["model"],
        "system": "32xh100-sxm",
        "workload": {"seq": 4096, "global_batch": 64},
        "plan": {
            "tp": 2, "pp": drawn["pp"], "schedule": {"name": name, "chunks": chunks}, "engine": drawn["engine"],
            "recompute": drawn["recompute"], "shard": "zero1",
        },
    }  # fmt: skip
    try:
        built = scenario(table)
    except InputError:
        return
    start = predict(built, DEFAULTS)
    assert isinstance(start, Prediction)
    budget = start.memory.peak_bytes * float(drawn["budget"])  # type: ignore[arg-type]
    made = refine(built, DEFAULTS, budget_bytes=budget)
    again = refine(built, DEFAULTS, budget_bytes=budget)
    assert isinstance(made, Refined)
    assert isinstance(again, Refined)
    assert check(made.scenario) == ()
    assert sum(made.scenario.placement) == built.model.layers
    assert made.prediction == predict(made.scenario, DEFAULTS)
    assert made.scenario.plan == again.scenario.plan
    if start.memory.peak_bytes <= budget:
        assert made.fits
        assert made.saved_s >= 0
    if not made.fits:
        assert made.prediction == made.start


SMALL = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["llama3-8b", "deepseek-v3", "gpt-oss-20b", "nemotron-h-8b"]),
        "shape": st.sampled_from([(2, "1f1b", 1), (3, "1f1b", 1), (4, "gpipe", 1), (3, "zero-bubble-h1", 1),
                                  (2, "interleaved", 2), (2, "zbv", 2), (3, "interleaved", 2)]),
        "layers": st.integers(min_value=5, max_value=7),
        "microbatches": st.sampled_from([1, 2, 4]),
        "share": st.floats(min_value=0.03, max_value=1.0),
    }
)  # fmt: skip


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SMALL)
def test_no_layout_of_a_small_model_is_faster(drawn: dict[str, Any]) -> None:
    """Every placement, every number of recomputed layers of every stage, every policy; none is 0.5 % faster."""
    pp, schedule, chunks = drawn["shape"]
    table = {
        "model": {"base": drawn["model"], "layers": drawn["layers"] - (pp * chunks > 5)},
        "system": f"{16 * pp}xh100-sxm",
        "workload": {"seq": 8192, "global_batch": 4 * pp * drawn["microbatches"]},
        "plan": {"tp": 4, "pp": pp, "schedule": {"name": schedule, "chunks": chunks}, "engine": "torchtitan"},
    }
    built = scenario(table)
    priced = layout_table(built, DEFAULTS)
    steps, peaks = (np.concatenate(column) for column in zip(*map(priced_rows(priced), every(priced)), strict=True))
    budget = peaks.min() + drawn["share"] * (peaks.max() - peaks.min()) * 0.5
    made = refine(built, DEFAULTS, budget_bytes=budget)
    assert isinstance(made, Refined)
    assert made.fits
    assert made.prediction.step_time_s <= steps[peaks <= budget].min() * (1 + 5e-3)


def every(table: LayoutTable) -> list[Layouts]:
    """All layouts, one placement each."""
    layers, stages = len(table.model.blocks.order), table.virtual_stages
    made = []
    for inner in product(range(layers + 1), repeat=stages - 1):
        held = (*inner, layers - sum(inner))
        if all(number >= fewest for number, fewest in zip(held, table.fewest, strict=True)):
            counts = np.array(list(product(*(range(number + 1) for number in held))))
            recomputed, policy = np.tile(counts, (len(table.policies), 1)), np.arange(len(table.policies))
            made.append(
                Layouts(
                    layers=np.tile(held, (len(recomputed), 1)),
                    recomputed=recomputed,
                    policy=np.repeat(policy, len(counts)),
                )
            )
    return made


def priced_rows(table: LayoutTable) -> Callable[[Layouts], tuple[NDArray[np.float64], NDArray[np.float64]]]:
    return lambda layouts: (table.step_s(layouts), table.peaks(layouts).max(0))
