"""Turn a post-training scenario into the bytes that a chip of each pool holds at every moment of a step.

Colocated, one chip goes through generate, log-probabilities, update and weight sync, and what is not needed rests on
the host or is freed. On chips of their own, trainers and engines have their moments, and a sync needs a bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ridgeline.core.records import dataclass
from ridgeline.models.params import count
from ridgeline.plan.rl_roles import role_model
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.scenario import Scenario
from ridgeline.rl.rollout import RolloutEngine
from ridgeline.rl.training import RolePass

CONTEXT_BYTES = 0.6e9  # of a second process on the chip, with its communicators: assumed


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a chip of a pool holds at one moment.

    bytes_by_owner   what and whose, in bytes
    """

    pool: str
    moment: str
    bytes_by_owner: Mapping[str, float]
    capacity_bytes: float

    JSON = "pool moment bytes=total_bytes capacity_bytes fits bytes_by_owner"

    @property
    def total_bytes(self) -> float:
        return sum(self.bytes_by_owner.values())

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.capacity_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RlMemory:
    """All moments, and the first that does not fit.

    host_bytes   that a host's chips offload to it at most
    """

    moments: tuple[Moment, ...]
    host_bytes: float
    host_capacity_bytes: float | None

    JSON = "fits tightest moments host_bytes host_capacity_bytes"

    @property
    def tightest(self) -> Moment:
        """The moment that is fullest for its chip."""
        return max(self.moments, key=lambda moment: moment.total_bytes / moment.capacity_bytes)

    @property
    def fits(self) -> bool:
        """Whether every moment fits, and the host holds what is offloaded."""
        enough = self.host_capacity_bytes is None or self.host_bytes <= self.host_capacity_bytes
        return enough and all(moment.fits for moment in self.moments)


def rl_memory(
    scenario: Scenario[Rl], engine: RolloutEngine | None, actor: RolePass, others: tuple[RolePass, ...]
) -> RlMemory:
    """Every pool at every moment."""
    moments = tuple(_moments(scenario, engine, actor, others))
    rl, system = scenario.plan.rl, scenario.system
    away_bytes = 0.0
    if not rl.separate and engine is not None:
        away_bytes = sum(_state(actor)[name] for name in rl.offload)
    host = (away_bytes + actor.step.memory.host_bytes / system.node) * system.node
    limit = system.host_memory.value if system.host_memory else None
    return RlMemory(moments=moments, host_bytes=host, host_capacity_bytes=limit)


def _state(role: RolePass) -> dict[str, float]:
    """Weights, gradients and optimizer of the fullest chip that trains."""
    state = role.step.memory.fullest.state
    return {name: float(state.get(name, 0.0)) for name in ("weights", "gradients", "optimizer")}


def _moments(
    scenario: Scenario[Rl], engine: RolloutEngine | None, actor: RolePass, others: tuple[RolePass, ...]
) -> Iterator[Moment]:
    capacity = actor.step.memory.capacity_bytes
    state, peak = _state(actor), dict(actor.step.memory.fullest.bytes_by_kind)
    beside = {name.role: size for name in others if (size := _resident(scenario, name)) and name.chips == actor.chips}
    asleep = _asleep(scenario, engine)
    update = {f"actor {kind}": size for kind, size in peak.items()} | beside | asleep
    yield Moment(pool="train", moment="update", bytes_by_owner=update, capacity_bytes=capacity)
    forward = {"actor weights": state["weights"]} | beside | asleep
    if not scenario.plan.rl.separate or "optimizer" not in scenario.plan.rl.offload:
        forward |= {"actor optimizer": state["optimizer"], "actor gradients": state["gradients"]}
    forward |= {"activations": 2 * peak.get("logits", 0.0) / 3 + peak.get("workspace", 0.0)}
    forward |= {"actor overhead": peak.get("overhead", 0.0)}
    yield Moment(pool="train", moment="log-probabilities", bytes_by_owner=forward, capacity_bytes=capacity)
    for role in others:
        if role.role == "critic":
            update = {f"critic {kind}": size for kind, size in role.step.memory.fullest.bytes_by_kind.items()}
            yield Moment(
                pool="train", moment="critic update", bytes_by_owner=update | asleep,
                capacity_bytes=role.step.memory.capacity_bytes,
            )  # fmt: skip
    if engine is not None:
        yield from _engine_moments(scenario, engine, state, beside)


def _resident(scenario: Scenario[Rl], role: RolePass) -> float:
    """Bytes of a role's weights on a chip while others run; a critic's optimizer too."""
    own_part = scenario.plan.rl.roles.get(role.role)
    if own_part is not None and own_part.offload:
        return 0.0
    if role.role == "critic":
        return sum(_state(role).values())
    model = role_model(scenario, role.role)
    mesh = role.step.scenario.plan.mesh
    shard = role.step.scenario.plan.shard_degree if role.step.scenario.plan.sharding.shard == "zero3" else 1
    width = role.step.scenario.plan.precision.weights.bytes_per_element
    return count(model).total * width / (mesh.tp * mesh.pp * max(shard, mesh.ep))


def _asleep(scenario: Scenario[Rl], engine: RolloutEngine | None) -> dict[str, float]:
    """What an engine keeps of a colocated chip while others run."""
    if engine is None or scenario.plan.rl.separate:
        return {}
    memory = engine.instance.memory
    if scenario.plan.rl.free_engine:
        return {"engine asleep": memory.graphs + memory.runtime}
    return _engine_bytes(engine)


def _engine_bytes(engine: RolloutEngine) -> dict[str, float]:
    memory = engine.instance.memory
    return {
        "engine weights": memory.weights, "engine cache": max(memory.kv_bytes, 0.0),
        "engine activations": memory.activations, "engine graphs": memory.graphs + memory.runtime,
    }  # fmt: skip


def _engine_moments(
    scenario: Scenario[Rl], engine: RolloutEngine, state: Mapping[str, float], beside: Mapping[str, float]
) -> Iterator[Moment]:
    rl, memory = scenario.plan.rl, engine.instance.memory
    bucket = {"bucket": rl.weight_sync.bucket if rl.weight_sync.method != "tensor" else 0.1e9}
    pool = "rollout" if rl.separate else "train"
    awake = _engine_bytes(engine)
    if not rl.separate:
        resident = {f"actor {name}": size for name, size in state.items() if name not in rl.offload}
        awake = awake | resident | dict(beside) | {"trainer asleep": CONTEXT_BYTES}
        cache = 0.0 if rl.free_engine else max(memory.kv_bytes, 0.0)
        sync = {
            "engine weights": memory.weights,
            "engine cache": cache,
            "engine graphs": memory.graphs + memory.runtime,
            "actor weights": state["weights"],
        } | {f"actor {name}": state[name] for name in ("gradients", "optimizer") if name not in rl.offload}
        yield Moment(
            pool=pool, moment="weight sync", bytes_by_owner=sync | bucket | dict(beside),
            capacity_bytes=memory.capacity,
        )  # fmt: skip
        yield Moment(pool=pool, moment="generate", bytes_by_owner=awake, capacity_bytes=memory.capacity)
        return
    yield Moment(pool=pool, moment="generate", bytes_by_owner=awake, capacity_bytes=memory.capacity)
    synced_bytes = {**awake, **bucket}
    yield Moment(pool=pool, moment="weight sync", bytes_by_owner=synced_bytes, capacity_bytes=memory.capacity)
