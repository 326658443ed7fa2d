"""How many predictions a core makes in a second, one at a time and in batches, and where the time goes.

    python benchmarks/predict.py [--peer PYTHON] [--json]

CPU seconds of this process, one thread, the best of many short rounds: neighbours on the same core slow all of them.
Two baselines: the rule of thumb on the back of an envelope, 6 N tokens / (chips * peak * 0.4), with N counted from the
same model, which knows nothing of plans; and llm-analysis, a peer that installs (see peer.py), one plan at a time.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

from peer import Peer, measured
from plan import best_of, gpt3

from ridgeline import predict, read_scenario
from ridgeline.cost.machine import Machines, ParameterColumns
from ridgeline.cost.op_table import OpTable
from ridgeline.cost.price import SustainedRates
from ridgeline.lowering.plan_columns import plan_columns
from ridgeline.lowering.program import lower
from ridgeline.models.params import count
from ridgeline.plan.check import check
from ridgeline.plan.scenario import Scenario
from ridgeline.sim.closed_form.stage_mix import stage_mixes
from ridgeline.sim.closed_form.step import step_seconds
from ridgeline.sim.events.simulate import timeline
from ridgeline.sim.memory.peak import peak_memory
from ridgeline.sim.predict_step import default_calibration

EXAMPLE = Path(__file__).parent.parent / "examples" / "llama3-70b-64xh100.toml"
TARGET, BATCH_TARGET = 300, 500_000  # predictions a core-second, one at a time and in batches
ROUND = 5  # calls timed together
SETTINGS = {
    "llama3-70b, tp 8, pp 2": (),
    "llama3-8b, data-parallel": (
        "model=llama3-8b", "plan.tp=1", "plan.pp=1", "plan.dp=64", "plan.schedule=1f1b", "plan.shard=zero3",
    ),
    "deepseek-v3, pp 8, ep 8": (
        "model=deepseek-v3", "plan.tp=1", "plan.pp=8", "plan.dp=8", "plan.ep=8", "plan.schedule=1f1b",
    ),
}  # fmt: skip


def cpu_seconds(call: Callable[[], object], least: float = 2.0) -> float:
    """CPU seconds of one call: the best round within `least` seconds, after a first call that fills caches."""
    call()
    best, start = float("inf"), time.process_time()
    while time.process_time() - start < least:
        begun = time.process_time()
        for _ in range(ROUND):
            call()
        best = min(best, (time.process_time() - begun) / ROUND)
    return best


def envelope(scenario: Scenario) -> float:
    """The step by the rule of thumb."""
    peak = scenario.system.chip.peak_flops_per_s(scenario.plan.precision.compute).value
    return 6 * count(scenario.model).active * scenario.workload.tokens / (scenario.system.chips * peak * 0.4)


def split(scenario: Scenario) -> dict[str, float]:
    """CPU seconds of the steps of one prediction."""
    program, calibration = lower(scenario), default_calibration()
    batch, runs, lines = OpTable.of([program]), plan_columns([scenario]), stage_mixes([scenario], [program])

    def rates() -> SustainedRates:
        values = ParameterColumns.of(calibration, [scenario])
        return SustainedRates.of(Machines.of([scenario.system]), values, plans=runs)

    rows = rates()
    return {
        "check": cpu_seconds(lambda: check(scenario), 0.3),
        "lowering": cpu_seconds(lambda: lower(scenario), 0.3),
        "columns": cpu_seconds(
            lambda: (OpTable.of([program]), stage_mixes([scenario], [program]), plan_columns([scenario])), 0.3
        ),
        "rates": cpu_seconds(rates, 0.3),
        "pricing": cpu_seconds(lambda: step_seconds(rows.price_sections(batch), lines, runs, rows), 0.3),
        "memory": cpu_seconds(lambda: peak_memory(scenario, program), 0.3),
    }


def single(scenario: Scenario) -> dict[str, float]:
    """Predictions a core-second, milliseconds of one and of its parts, and how many rules of thumb it costs."""
    one, thumb = cpu_seconds(lambda: predict(scenario)), cpu_seconds(lambda: envelope(scenario), 0.2)
    found = {"per_core_s": 1 / one, "ms": one * 1e3, "rules_of_thumb": one / thumb}
    found |= {f"{part}_ms": seconds * 1e3 for part, seconds in split(scenario).items()}
    if scenario.plan.mesh.pp > 1:
        found["timeline_ms"] = cpu_seconds(lambda: timeline(scenario), 0.3) * 1e3
    return found


def show(singles: dict[str, dict[str, float]], batch: float, peer: Peer | None) -> None:
    """The table."""
    for name, own in singles.items():
        parts = ", ".join(f"{part.removesuffix('_ms')} {ms:.2f}" for part, ms in own.items() if part.endswith("_ms"))
        print(f"{name:26} {own['per_core_s']:8,.0f} a core-second   target {TARGET}   {own['ms']:.2f} ms: {parts}")
    print(f"{'in batches':26} {batch:8,.0f} a core-second   target {BATCH_TARGET:,}")
    if peer:
        ratio = batch / peer.per_core_s
        print(f"{peer.name:26} {peer.per_core_s:8,.0f} a core-second   batches here price {ratio:,.0f} times as many")
    print(f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def main() -> None:
    parser = argparse.ArgumentParser(description="Predictions a core-second, beside a peer.")
    parser.add_argument("--peer", help="a Python that has llm-analysis")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    singles = {name: single(read_scenario(EXAMPLE, settings)) for name, settings in SETTINGS.items()}
    batch, peer = best_of(3, gpt3).per_core_s, measured(asked.peer)
    if asked.json:
        told = {"single": singles, "batch_per_core_s": batch, "peer_per_core_s": peer.per_core_s if peer else None}
        print(json.dumps({**told, "load": os.getloadavg()[0]}, indent=2))
    else:
        show(singles, batch, peer)


if __name__ == "__main__":
    main()
