"""Turn a Scenario into what its engine is not known to do, in words: it may run all the same, and a search avoids it.

What cannot run at all is `check`'s to say.
"""

from __future__ import annotations

from ridgeline.core.dtype import dtype
from ridgeline.plan.engine import Shard, Supports
from ridgeline.plan.mesh import ORDERS
from ridgeline.plan.plan import Recompute
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train


def _with_stages(shard: Shard, known: Supports) -> bool:
    """Whether a sharding the engine has goes with a pipeline; one it does not have is told by itself."""
    return shard == "none" or shard not in known.shard or shard in known.pipelined_shard


def _layers_asked(recompute: Recompute) -> str:
    return "of the first layers of each stage" if isinstance(recompute.layers, int) else "that differs by stage"


def _tellable(recompute: Recompute, known: Supports) -> bool:
    """Whether the engine can be told which layers recompute; full recompute of a number a stage is what most can."""
    if recompute.layers is None or known.recompute_layers == "any":
        return True
    same = isinstance(recompute.layers, int) and recompute.kind == "full" and recompute.rest == "none"
    return same and known.recompute_layers == "each"


def tells_expert_overlap(scenario: Scenario) -> bool:
    """Whether the plan tells its engine to overlap expert dispatch, which it does not do by itself."""
    return bool(scenario.plan.switches.overlap.get("moe")) and "moe" not in scenario.engine.overlaps


def overlaps_experts(scenario: Scenario) -> bool:
    """Whether the engine is known to overlap expert dispatch where the plan tells it to.

    Dispatch of one microbatch hides behind compute of another: with stages that takes a schedule which runs both at a
    time, and a backward that does not begin with all of the forward.
    """
    plan, able = scenario.plan, scenario.engine.supports.features
    beside = plan.mesh.pp == 1 or not able.moe_beside or plan.schedule.name in able.moe_beside
    known = "moe" in able.overlaps and beside and plan.recompute.kind != "full"
    return known or not tells_expert_overlap(scenario)


def tellable_orders(scenario: Scenario) -> tuple[str, ...]:
    """Rank orders that the engine can be told under this plan; all where stages or replicas are one and none matters.

    Megatron-FSDP, which shards more than optimizer states, goes with the usual order alone.
    """
    plan, known = scenario.plan, scenario.engine.supports.features
    if plan.mesh.pp == 1 or plan.mesh.dp == 1:
        return ORDERS
    return known.order if plan.sharding.shard in ("none", "zero1") else ORDERS[:1]


def unsupported(scenario: Scenario) -> tuple[str, ...]:
    """Notes on what the plan asks that its engine is not known to do; software moves faster than lists of it."""
    if scenario.plan.engine != scenario.engine.id or not isinstance(scenario.workload, Train):
        return ()
    plan, known = scenario.plan, scenario.engine.supports
    formats = {dtype(name).id for name in known.precision}
    asked = [(axis, getattr(plan.mesh, axis) == 1 or axis in known.axes) for axis in ("tp", "pp", "cp", "ep", "etp")]
    asked += [
        (plan.schedule.name, plan.mesh.pp == 1 or plan.schedule.name in known.schedules),
        (plan.sharding.shard, plan.sharding.shard == "none" or plan.sharding.shard in known.shard),
        (f"{plan.sharding.shard} with stages", plan.mesh.pp == 1 or _with_stages(plan.sharding.shard, known)),
        (f"rank order {plan.mesh.order}", plan.mesh.order in tellable_orders(scenario)),
        (f"{plan.recompute.kind} recompute", plan.recompute.kind == "none" or plan.recompute.kind in known.recompute),
        (f"recompute {_layers_asked(plan.recompute)}", _tellable(plan.recompute, known)),
        ("overlap of expert dispatch in this plan", overlaps_experts(scenario)),
        (plan.precision.compute.id, plan.precision.compute.id in formats),
        ("offload of activations", plan.offload.activations == 0 or "activations" in known.offload),
        ("offload of the optimizer", plan.offload.optimizer == 0 or "optimizer" in known.offload),
    ]
    return tuple(f"engine {plan.engine} is not known to support {what}" for what, able in asked if not able)
