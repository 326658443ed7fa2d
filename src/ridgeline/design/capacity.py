"""Turn a scenario into what its memory's capacity does: nothing to the time of a plan that fits, until it does not fit,
or until a plan that recomputes less does."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.core.errors import InputError
from ridgeline.design.sensitivity import Elasticity, RegimeChange
from ridgeline.lowering.plan_columns import plan_columns
from ridgeline.lowering.program import lower
from ridgeline.plan.check import check
from ridgeline.plan.plan import Recompute
from ridgeline.plan.scenario import Scenario, is_training
from ridgeline.sim import capacity_of, peak_memory, serving_memory
from ridgeline.sim.batches import MachineRows


def capacity_elasticity(scenario: Scenario, rows: MachineRows) -> Elasticity | None:
    """Capacity as a parameter: elasticity 0, its regimes where plans begin and cease to fit; None without one."""
    number = scenario.system.chip.hbm.capacity
    if number is None:
        return None
    capacity = capacity_of(scenario)
    peak_bytes = needed_bytes(scenario)
    share = peak_bytes / capacity
    full = RegimeChange(factor=share, value=share * number.value, elasticity=0.0, limiter="does not fit")
    return Elasticity(
        parameter="chip.hbm.capacity",
        title="memory capacity",
        kind="size",
        group="chip",
        unit="B",
        value=number.value,
        below=0.0,
        above=0.0,
        usd_per_hour_per_percent=0.0,
        usd_per_unit_per_percent=0.0,
        lower_change=full,
        upper_change=_faster_plan(scenario, rows, capacity, number.value),
        evidence=number.evidence.label,
        source=number.source,
    )


def needed_bytes(scenario: Scenario) -> float:
    """Bytes that the fullest chip needs: the peak of a training step, or weights, work space and the cached tokens."""
    if is_training(scenario):
        plans = plan_columns([scenario])
        return float(peak_memory(scenario, lower(scenario, plans), plans).peak_bytes)
    memory, work = serving_memory(scenario), scenario.workload
    own_requests = -(-work.sequences // scenario.plan.mesh.dp)
    return capacity_of(scenario) - memory.kv_bytes + own_requests * work.seq * memory.kv_bytes_per_token


def _faster_plan(scenario: Scenario, rows: MachineRows, capacity: float, value: float) -> RegimeChange | None:
    """The capacity from which the same plan without recompute fits, where that is faster."""
    if not is_training(scenario) or scenario.plan.recompute.kind == "none":
        return None
    plan = replace(scenario.plan, recompute=Recompute())
    other_plan = replace(scenario, plan=plan)
    try:
        if tuple(check(other_plan)):
            return None
        ratio = float(MachineRows(other_plan, rows.calibration).times({}, 1).seconds[0] / rows.times({}, 1).seconds[0])
        factor = needed_bytes(other_plan) / capacity
    except InputError:
        return None
    if ratio >= 1 or factor <= 1:
        return None
    words = f"the plan without recompute fits: time x {ratio:.3f}"
    return RegimeChange(factor=factor, value=factor * value, elasticity=0.0, limiter=words)
