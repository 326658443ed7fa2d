"""How many predictions a core makes in a second, one at a time, and where the time goes.

    python benchmarks/predict.py

CPU seconds of this process. The baseline is the rule of thumb on the back of an envelope, 6 N tokens / (chips * peak *
0.4), with N counted from the same model: what an answer costs that knows nothing of plans.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ridgeline import predict, read_scenario
from ridgeline.cost.rates import machines_of, rates_of
from ridgeline.lowering.program import lower
from ridgeline.models.params import count
from ridgeline.plan.check import check
from ridgeline.plan.scenario import Scenario
from ridgeline.sim.batch import batch_of
from ridgeline.sim.events import timeline
from ridgeline.sim.memory import memory_of
from ridgeline.sim.predict import default_calibration
from ridgeline.sim.run import runs_of
from ridgeline.sim.step import rows_of, step_seconds

EXAMPLE = Path(__file__).parent.parent / "examples" / "llama3-70b-64xh100.toml"
TARGET = 300  # predictions a core-second
SETTINGS = {
    "llama3-70b, tp 8, pp 2": (),
    "llama3-8b, data-parallel": (
        "model=llama3-8b", "plan.tp=1", "plan.pp=1", "plan.dp=64", "plan.schedule=1f1b", "plan.shard=zero3",
    ),
    "deepseek-v3, pp 8, ep 8": (
        "model=deepseek-v3", "plan.tp=1", "plan.pp=8", "plan.dp=8", "plan.ep=8", "plan.schedule=1f1b",
    ),
}  # fmt: skip


def cpu_seconds(call: Callable[[], object], least: float = 1.0) -> float:
    """CPU seconds of one call: the mean over at least `least` seconds, after a first call that fills caches."""
    call()
    times, start = 0, time.process_time()
    while time.process_time() - start < least:
        call()
        times += 1
    return (time.process_time() - start) / times


def envelope(scenario: Scenario) -> float:
    """The step by the rule of thumb."""
    peak = scenario.system.chip.peak_flops_per_s(scenario.plan.precision.compute).value
    return 6 * count(scenario.model).active * scenario.workload.tokens / (scenario.system.chips * peak * 0.4)


def split(scenario: Scenario) -> dict[str, float]:
    """CPU seconds of the steps of one prediction."""
    program, calibration = lower(scenario), default_calibration()
    batch, runs = batch_of([program]), runs_of([scenario])
    names = [scenario.system.chip.id], [scenario.plan.engine]

    def rates() -> object:
        return rows_of(machines_of([scenario.system]), rates_of(calibration, *names), runs)

    rows = rows_of(machines_of([scenario.system]), rates_of(calibration, *names), runs)
    return {
        "check": cpu_seconds(lambda: check(scenario), 0.3),
        "lowering": cpu_seconds(lambda: lower(scenario), 0.3),
        "columns": cpu_seconds(lambda: (batch_of([program]), runs_of([scenario])), 0.3),
        "rates": cpu_seconds(rates, 0.3),
        "pricing": cpu_seconds(lambda: step_seconds(batch, runs, rows), 0.3),
        "memory": cpu_seconds(lambda: memory_of(scenario, program), 0.3),
    }


def main() -> None:
    for name, settings in SETTINGS.items():
        scenario = read_scenario(EXAMPLE, settings)
        one = cpu_seconds(lambda built=scenario: predict(built))
        thumb = cpu_seconds(lambda built=scenario: envelope(built), 0.2)
        parts = ", ".join(f"{part} {seconds * 1e3:.2f}" for part, seconds in split(scenario).items())
        print(f"{name:26} {1 / one:6.0f} predictions/core-s   target {TARGET}   {one / thumb:.0f}x the rule of thumb")
        print(f"{'':26} {one * 1e3:.2f} ms: {parts}")
        if scenario.plan.mesh.pp > 1:
            drawn = cpu_seconds(lambda built=scenario: timeline(built), 0.3)
            print(f"{'':26} its timeline, event by event: {drawn * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
