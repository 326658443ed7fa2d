"""Laws of refined plans: they fit, hold all layers, are never slower than a plan that fits, and come out the same."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ridgeline.core.errors import InputError
from ridgeline.cost.calibration import Calibration
from ridgeline.plan.check import check
from ridgeline.plan.scenario_file import scenario
from ridgeline.search.stage_layout.refine import Refined, least_recompute, refine
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
    least = least_recompute(built, DEFAULTS, budget_bytes=budget)
    assert isinstance(made, Refined)
    assert isinstance(again, Refined)
    assert isinstance(least, Refined)
    assert check(made.scenario) == ()
    assert sum(made.scenario.placement) == built.model.layers
    assert made.prediction == predict(made.scenario, DEFAULTS)
    assert made.scenario.plan == again.scenario.plan
    if start.memory.peak_bytes <= budget:
        assert made.fits
        assert made.saved_s >= 0
    if least.fits:
        assert made.fits
        assert made.prediction.step_time_s <= least.prediction.step_time_s * (1 + 1e-9)
        assert least.scenario.placement == built.placement
    if not made.fits:
        assert made.prediction == made.start
