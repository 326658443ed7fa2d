"""CUDA_LAUNCH_BLOCKING=1: host, chip and network take turns, and no communication hides behind compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ridgeline import predict, scenario
from ridgeline.calibrate.truth.row_scenario import to_scenario
from ridgeline.calibrate.truth.rows import Row, read_rows
from ridgeline.cost.calibration import Calibration
from ridgeline.plan.resolve import resolve
from ridgeline.plan.scenario import Scenario
from ridgeline.sim.closed_form.stage_times import gather_seconds
from ridgeline.sim.events.simulate import Simulated, simulate
from ridgeline.sim.predict_step import price
from ridgeline.sim.prediction import Prediction

DEFAULTS = Calibration(offsets={})
BASE: dict[str, Any] = {
    "model": "llama3-8b",
    "system": "16xh100-sxm",
    "workload": {"seq": 8192, "global_batch": 32},
}


def parts(plan: dict[str, Any], blocking: bool) -> dict[str, float]:
    made = predict(scenario({**BASE, "plan": {**plan, "launch_blocking": blocking}}), DEFAULTS)
    assert isinstance(made, Prediction)
    return {part.name: part.seconds for part in made.breakdown}


NOTHING = {"tp": False, "grad-reduce": False, "param-gather": False, "pp": False, "cp": False}


@pytest.mark.parametrize(
    "plan",
    [
        {"tp": 4, "dp": 4, "shard": "zero1", "engine": "nemo"},
        {"cp": 4, "dp": 4, "shard": "zero1", "engine": "nemo"},
        {"pp": 4, "dp": 4, "schedule": {"name": "interleaved", "chunks": 2}, "engine": "nemo"},
    ],
)
def test_communication_is_waited_for(plan: dict[str, Any]) -> None:
    """What overlaps by habit costs what it costs when nothing overlaps, and the host's time comes on top."""
    free, alone, blocked = parts(plan, False), parts({**plan, "overlap": NOTHING}, False), parts(plan, True)
    assert blocked.get("tp", 0.0) >= alone.get("tp", 0.0)  # Megatron's own sums beside products have no switch
    for name in ("cp", "dp"):
        assert blocked.get(name, 0.0) == pytest.approx(alone.get(name, 0.0))
        assert blocked.get(name, 0.0) >= free.get(name, 0.0)
    assert sum(blocked.values()) > sum(alone.values())


def test_gathers_of_sharded_weights_are_waited_for() -> None:
    """zero3 hides 0.8 of its gathers at most; with every launch waited for it hides nothing."""
    plan = {"dp": 16, "shard": "zero3", "engine": "torchtitan"}
    free, blocked = parts(plan, False), parts(plan, True)
    priced = price(scenario({**BASE, "plan": plan}), DEFAULTS)
    spent = gather_seconds(priced.sections.params[:2], priced.plans, priced.rates.links)
    counts = np.array(priced.program.stages[0], dtype=np.float64)
    assert blocked["shard"] == pytest.approx(2 * float((spent.sum(0) * counts).sum()))  # two microbatches
    assert free["shard"] < 0.35 * blocked["shard"]


def built(blocking: bool) -> Scenario:
    plan = {"tp": 2, "pp": 2, "dp": 4, "schedule": {"name": "interleaved", "chunks": 2}, "engine": "nemo"}
    return scenario({**BASE, "plan": {**plan, "launch_blocking": blocking}})


def test_the_event_loop_agrees() -> None:
    for blocking in (False, True):
        made = built(blocking)
        simulated, closed = simulate(made, DEFAULTS), predict(made, DEFAULTS)
        assert isinstance(simulated, Simulated)
        assert isinstance(closed, Prediction)
        assert simulated.step_s == pytest.approx(closed.step_time_s, rel=0.02)


def test_the_truth_column_is_read() -> None:
    """`x_launch_blocking` of a row is `plan.launch_blocking` of its scenario."""
    row = next(row for row in read_rows() if row.id == "mbridge-0068")
    blocked = Row(id=row.id, table=row.table, cells={**row.cells, "x_launch_blocking": "1"})
    made = to_scenario(blocked)
    assert isinstance(made, Scenario)
    assert resolve(made).launch_blocking
