"""Turn a base scenario into what can be chosen: splits of the chips, trainer plans, rollout replicas, placements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product

from ridgeline.core.records import dataclass
from ridgeline.models.blocks import Moe
from ridgeline.plan.formats import Sharding
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.plan import Plan, Recompute
from ridgeline.plan.rl_plan import RlPlan
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.scenario import Scenario

TENSOR, STAGES, CONTEXT, EXPERTS = (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2, 4, 8), (1, 4, 8, 16, 32)
ROLLOUT_TENSOR = (1, 2, 4, 8, 16)
STALENESS = (0.5, 1.0, 2.0)
SPLITS = 9  # of the chips at most
UTILIZATION = (0.9, 0.8, 0.65, 0.5, 0.35)  # shares of memory for the engine, the first that fits


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerShape:
    """How a trainer is split."""

    tp: int
    pp: int
    cp: int
    ep: int
    shard: str
    recompute: str

    def plan(self, base: Plan, chips: int) -> Plan:
        """The plan over so many chips."""
        mesh = Mesh(tp=self.tp, pp=self.pp, cp=self.cp, ep=self.ep, dp=chips // (self.tp * self.pp * self.cp))
        sharding = Sharding(shard="zero3" if self.shard == "zero3" else "zero1")
        recompute = Recompute(kind="full") if self.recompute == "full" else Recompute()
        return replace(base, mesh=mesh, sharding=sharding, recompute=recompute, placement=())


def with_chips(base: Scenario[Rl], shape: TrainerShape, chips: int, rl: RlPlan) -> Scenario[Rl]:
    """The scenario with a trainer of this shape and these decisions of post-training."""
    return replace(base, plan=replace(shape.plan(base.plan, chips), rl=rl))


def with_utilization(built: Scenario[Rl], share: float) -> Scenario[Rl]:
    """The scenario with the rollout engine taking this share of memory."""
    from ridgeline.plan.serving_plan import SglangKnobs, TensorrtLlmKnobs, VllmKnobs, default_knobs

    serving = built.plan.serving
    knobs = serving.knobs or default_knobs(built.plan.rl.rollout.engine)
    match knobs:
        case VllmKnobs():
            knobs = replace(knobs, gpu_memory_utilization=share)
        case SglangKnobs():
            knobs = replace(knobs, mem_fraction_static=share)
        case TensorrtLlmKnobs():
            knobs = replace(knobs, free_gpu_memory_fraction=share)
        case _:
            return built
    return replace(built, plan=replace(built.plan, serving=replace(serving, knobs=knobs)))


def trainer_shapes(base: Scenario[Rl], chips: int, pins: Mapping[str, object]) -> Iterator[TrainerShape]:
    """Every split of a trainer over so many chips that its model and engine may have."""
    model, node, axes = base.model, base.system.node, base.engine.supports.axes
    experts = max((block.ffn.experts for block in model.blocks if isinstance(block.ffn, Moe)), default=1)
    shards = [shard for shard in ("zero1", "zero3") if shard in base.engine.supports.shard] or ["zero1"]
    recomputes = [kind for kind in ("none", "full") if kind == "none" or kind in base.engine.supports.recompute]
    options = product(
        _pin_options(pins, "tp", TENSOR if "tp" in axes else (1,)),
        _pin_options(pins, "pp", STAGES if "pp" in axes else (1,)),
        _pin_options(pins, "cp", CONTEXT if "cp" in axes else (1,)),
        _pin_options(pins, "ep", EXPERTS if experts > 1 and "ep" in axes else (1,)),
        _pin_options(pins, "shard", shards),
        _pin_options(pins, "recompute", recomputes),
    )
    for tp, pp, cp, ep, shard, recompute in options:
        inner = tp * pp * cp
        wide = tp > node or tp * cp > 2 * node or (pp > 1 and shard == "zero3") or pp > model.layers
        if chips % inner or wide or experts % ep or (chips // pp) % ep:
            continue
        yield TrainerShape(tp=tp, pp=pp, cp=cp, ep=ep, shard=shard, recompute=recompute)


def _pin_options(pins: Mapping[str, object], name: str, options: Iterable[object]) -> list:  # type: ignore[type-arg]
    return [pins[name]] if name in pins else list(options)


def splits(base: Scenario[Rl], pins: Mapping[str, object]) -> list[int]:
    """Chips that train, of those that training and rollout divide: whole nodes, closer together in the middle."""
    chips, node = base.system.chips, base.system.node
    if "train_chips" in pins:
        value = pins["train_chips"]
        return [value] if isinstance(value, int) and 0 < value < chips else []
    unit = node if chips >= 2 * node else max(chips // 4, 1)
    steps = chips // unit
    shares = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8)
    wanted_counts = sorted({min(max(round(steps * share), 1), steps - 1) for share in shares if steps > 1})
    return [count * unit for count in wanted_counts][:SPLITS]


def rollout_degrees(base: Scenario[Rl], chips: int, pins: Mapping[str, object]) -> list[int]:
    """Tensor ranks of a replica that divide the chips."""
    degrees = [pins["rollout_tp"]] if "rollout_tp" in pins else ROLLOUT_TENSOR
    limit = max(2 * base.system.node, 1)
    return [tp for tp in degrees if isinstance(tp, int) and chips % tp == 0 and tp <= min(chips, limit)]


def stalenesses(pins: Mapping[str, object]) -> list[float]:
    """Versions that an asynchronous sample may lag."""
    value = pins.get("staleness")
    return [float(value)] if isinstance(value, (int, float)) else list(STALENESS)


def sizes(chips: int, unit: int) -> list[int]:
    """Systems that are tried for the fewest chips: doublings of a unit, and the whole.

    >>> sizes(48, 8)
    [8, 16, 32, 48]
    """
    doublings = [unit << step for step in range(int(math.log2(max(chips / unit, 1))) + 1)]
    return sorted({*doublings, chips})
