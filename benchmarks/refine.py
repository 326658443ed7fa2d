"""How long refining a plan takes: 126 layers on 16 pipeline ranks, as multiples of one prediction.

    python benchmarks/refine.py

CPU seconds of this process, the smallest of several runs. Hundreds of layouts are priced for one refinement; the
baseline is what one prediction of the same scenario takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import scenario
from ridgeline.search.stage_layout.refine import Refined, refine
from ridgeline.sim.predict_step import default_calibration, predict

TARGET_S = 0.1
RUNS = 12
GIGA = 1e9
CASES: dict[str, tuple[dict[str, Any], float]] = {
    "interleaved, 4 chunks, 80 GB": ({"schedule": {"name": "interleaved", "chunks": 4}}, 80 * GIGA),
    "interleaved, 8 chunks, 60 GB": ({"schedule": {"name": "interleaved", "chunks": 8}}, 60 * GIGA),
    "1f1b, 70 GB": ({"schedule": "1f1b"}, 70 * GIGA),
}


def least_cpu_seconds(call: Callable[[], object]) -> float:
    """CPU seconds of one call: the smallest of several, after a first one that fills caches."""
    call()
    spent = []
    for _ in range(RUNS):
        began = time.process_time()
        call()
        spent.append(time.process_time() - began)
    return min(spent)


def long_model(plan: dict[str, Any]) -> Scenario:
    """llama3.1-405b on 16,384 chips."""
    base = {"tp": 8, "pp": 16, "dp": 128, "shard": "zero1"}
    table = {"model": "llama3.1-405b", "system": "16384xh100-sxm", "workload": {"seq": 8192, "global_batch": 2048}}
    return scenario({**table, "plan": {**base, **plan}})


def main() -> None:
    calibration = default_calibration()
    for name, (plan, budget) in CASES.items():
        built = long_model(plan)
        one = least_cpu_seconds(lambda built=built: predict(built, calibration))
        all_of_it = least_cpu_seconds(
            lambda built=built, budget=budget: refine(built, calibration, budget_bytes=budget)
        )
        made = refine(built, calibration, budget_bytes=budget)
        assert isinstance(made, Refined)
        print(
            f"{name:30} {all_of_it * 1e3:4.0f} ms   target {TARGET_S * 1e3:.0f}   {all_of_it / one:.0f}x a prediction"
            f"   step {made.start.step_time_s:.2f} s (fits: {made.start.memory.peak_bytes <= budget}) ->"
            f" {made.prediction.step_time_s:.2f} s (fits: {made.fits})"
        )


if __name__ == "__main__":
    main()
