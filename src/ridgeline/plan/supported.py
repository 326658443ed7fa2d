"""Turn a Scenario into what its engine is not known to do, in words: it may run all the same, and a search avoids it.

What cannot run at all is `check`'s to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from ridgeline.core.dtype import dtype
from ridgeline.plan.capability import Capability, Limit, PlanFacts
from ridgeline.plan.engine import Supports
from ridgeline.plan.mesh import ORDERS
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train


def tells_expert_overlap(scenario: Scenario) -> bool:
    """Whether the plan tells its engine to overlap expert dispatch, which it does not do by itself."""
    return bool(scenario.plan.switches.overlap.get("moe")) and "moe" not in scenario.engine.overlaps


def tellable_orders(scenario: Scenario) -> tuple[str, ...]:
    """Rank orders that the engine can be told under this plan; all where stages or replicas are one and none matters.

    Megatron-FSDP, which shards more than optimizer states, goes with the usual order alone.
    """
    plan, features = scenario.plan, scenario.engine.supports.features
    if plan.mesh.pp == 1 or plan.mesh.dp == 1:
        return ORDERS
    return features.order if plan.sharding.shard in ("none", "zero1") else ORDERS[:1]


def unsupported_decisions(scenario: Scenario) -> tuple[str, ...]:
    """Notes on what the plan asks that its engine is not known to do; software moves faster than lists of it."""
    engine = scenario.engine
    if scenario.plan.engine != engine.id or not isinstance(scenario.workload, Train):
        return ()
    facts = PlanFacts.of(scenario)
    facts = replace(facts, values={**facts.values, "asks_expert_overlap": tells_expert_overlap(scenario)})
    broken = (limit for limit, wrong in engine_capability(engine.supports).broken(facts) if wrong)
    words = dict.fromkeys(limit.expected.format(facts.values[limit.decision]) for limit in broken)
    return tuple(f"engine {engine.id} is not known to support {what}" for what in words)


@lru_cache(maxsize=64)
def engine_capability(known: Supports) -> Capability:
    """What an engine declares, as a table whose rows say in words what is not known of it.

    >>> from ridgeline.plan.engine import ENGINES
    >>> [limit.values for limit in engine_capability(ENGINES["deepspeed"].supports).limits if limit.decision == "etp"]
    [(1,)]
    """
    return Capability(limits=tuple(_limits(known)))


def _limits(known: Supports) -> Iterator[Limit]:
    with_stages = {"pp": (">1",)}
    yield from (
        Limit(decision=axis, values=(1,), expected=axis)
        for axis in ("tp", "pp", "cp", "ep", "etp")
        if axis not in known.axes
    )
    yield Limit(decision="schedule.name", values=known.schedules, expected="{}")
    yield Limit(decision="shard", values=("none", *known.shard), expected="{}")
    yield Limit(
        decision="shard", values=("none", *known.pipelined_shard), when={**with_stages, "shard": known.shard},
        expected="{} with stages",
    )  # fmt: skip
    for shards, orders in ((("none", "zero1"), known.features.order), (("zero2", "zero3"), ORDERS[:1])):
        yield Limit(decision="order", values=orders, when={"shard": shards}, expected="rank order {}")
    yield Limit(decision="recompute.kind", values=("none", *known.recompute), expected="{} recompute")
    yield from _recomputed_layers(known)
    yield from _expert_overlap(known)
    formats = tuple(dtype(name).id for name in known.precision)
    yield Limit(decision="precision.compute", values=formats, expected="{}")
    for what, words in (("activations", "activations"), ("optimizer", "the optimizer")):
        if what not in known.offload:
            yield Limit(decision=f"offload.{what}", values=(0,), expected=f"offload of {words}")


def _recomputed_layers(known: Supports) -> Iterator[Limit]:
    """Which layers can recompute; full recompute of a number a stage is what most engines can be told."""
    if known.recompute_layers == "any":
        return
    some = {"recomputes_by": ("number",)}
    able = {"recompute.kind": ("full",), "recompute.rest": ("none",)} if known.recompute_layers == "each" else {}
    first = "recompute of the first layers of each stage"
    yield Limit(decision="recomputes_by", values=("all",), when=some, unless=able, expected=first)
    stages = {"recomputes_by": ("stages",)}
    yield Limit(decision="recomputes_by", values=("all",), when=stages, expected="recompute that differs by stage")


def _expert_overlap(known: Supports) -> Iterator[Limit]:
    """Where expert dispatch overlaps compute because the plan asks for it.

    Dispatch of one microbatch hides behind compute of another: with stages that takes a schedule which runs both at a
    time, and a backward that does not begin with all of the forward.
    """
    features, question = known.features, "asks_expert_overlap"
    words = "overlap of expert dispatch in this plan"
    if "moe" not in features.overlaps:
        yield Limit(decision=question, values=(False,), expected=words)
        return
    if features.moe_beside:
        schedules = {"schedule.name": features.moe_beside}
        yield Limit(decision=question, values=(False,), when={"pp": (">1",)}, unless=schedules, expected=words)
    yield Limit(decision=question, values=(False,), when={"recompute.kind": ("full",)}, expected=words)
