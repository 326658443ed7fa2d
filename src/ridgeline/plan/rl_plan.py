"""Where the roles of post-training run and how they wait for each other. `[plan]` itself is how the actor is trained.

[plan]                       # the actor's training, over the chips that train
dp = 16
shard = "zero3"
engine = "torchtitan"

[plan.rl]
placement = "async"          # colocated | split | one-step-off | async
train_chips = 16             # not when colocated; the chips that are left generate
staleness = 1.0              # async: by how many weight versions a sample may lag
partial_rollouts = true      # async: unfinished samples are interrupted for new weights and go on with them
sync_every = 1               # steps between two weight syncs
pack = 32768                 # tokens of one packed microbatch of training; absent: as long as the longest sample
offload = ["weights", "gradients", "optimizer"]   # colocated: what of the trainer leaves the chips meanwhile
free_engine = true           # colocated: the rollout engine frees weights and cache while others run
weight_sync = { method = "bucket", bucket = "2 GB" }   # tensor | bucket | checkpoint-engine | direct | file

[plan.rl.rollout]            # one replica of the rollout engine; its scheduler's knobs are plan.serving's
tp = 2
engine = "vllm"

[plan.rl.roles.reward_model] # optional, for each role of [workload.roles]: absent, it runs as the actor is trained
chips = 8                    # of its own; absent: those that train
tp = 4
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Annotated, Literal

from ridgeline.core.errors import Problem, not_among
from ridgeline.core.records import dataclass
from ridgeline.core.table import AtLeast, Count, Doc, Flat, QuantityUnit, Via
from ridgeline.core.units import DECIMAL
from ridgeline.plan.formats import Precision, Sharding, precision_table
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.quantities import Tokens

RlPlacement = Literal["colocated", "split", "one-step-off", "async"]
TrainerState = Literal["weights", "gradients", "optimizer"]
SyncMethod = Literal["tensor", "bucket", "checkpoint-engine", "direct", "file"]
MODEL_ROLES = ("reference", "critic", "reward_model", "teacher")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSync:
    """How new weights reach the rollout engines.

    tensor             gathered and handed over one by one
    bucket             many tensors flattened into one buffer at a time
    checkpoint-engine  buckets travel while the one before is loaded (Kimi's, NIXL, Mooncake)
    direct             trainer ranks write into the engines' memory
    file               a checkpoint on shared storage that engines load
    """

    method: SyncMethod = "bucket"
    bucket: Annotated[float, QuantityUnit("B"), AtLeast(1), Doc("bytes of one bucket")] = 2 * DECIMAL["G"]


def sync_table(value: object) -> object:
    """`"bucket"`: that method."""
    return {"method": value} if isinstance(value, str) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """One replica of the rollout engine; dp ranks step together."""

    tp: Count = 1
    pp: Count = 1
    ep: Count = 1
    dp: Count = 1
    replicas: Annotated[Count | None, Doc("absent: as many as the chips make")] = None
    engine: Annotated[str, Doc("id of the software that serves")] = "vllm"
    eager: Annotated[bool, Doc("kernels are launched one by one, no graph is replayed")] = False
    precision: Annotated[Precision, Via(precision_table)] = Precision()

    @property
    def chips(self) -> int:
        """Chips of one replica."""
        return self.tp * self.pp * self.dp


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePlan:
    """How a role that runs a model is split; chips of its own, or those that train.

    offload   its weights rest in host memory while it does not run
    """

    chips: Count | None = None
    mesh: Annotated[Mesh, Flat()] = Mesh()
    sharding: Annotated[Sharding, Flat()] = Sharding()
    precision: Annotated[Precision, Via(precision_table)] = Precision()
    offload: bool = False


def _states(value: object) -> object:
    """`"none"` and `"optimizer"`: as arrays."""
    return ([] if value == "none" else [value]) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class RlPlan:
    """Decisions of a post-training job beside the actor's own plan.

    placement   colocated: roles take turns on the same chips; split: training and rollout have chips of their own and
                wait for each other; one-step-off: the samples of the next step are generated during training; async:
                samples flow through a buffer whose versions are at most `staleness` behind
    """

    placement: RlPlacement = "colocated"
    train_chips: Annotated[Count | None, Doc("chips that train; the chips that are left generate")] = None
    staleness: Annotated[float | None, AtLeast(0), Doc("weight versions a sample may lag")] = None
    partial_rollouts: Annotated[bool, Doc("unfinished samples are interrupted for new weights")] = False
    sync_every: Annotated[Count, Doc("steps between two weight syncs")] = 1
    pack: Annotated[Tokens | None, Doc("tokens of one packed microbatch of training; absent: the longest sample")] = (
        None
    )
    offload: Annotated[tuple[TrainerState, ...], Via(_states)] = ("weights", "gradients", "optimizer")
    free_engine: Annotated[bool, Doc("the rollout engine frees its memory while others run")] = True
    weight_sync: Annotated[WeightSync, Via(sync_table)] = WeightSync()
    rollout: RolloutPlan = RolloutPlan()
    roles: Mapping[str, RolePlan] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def separate(self) -> bool:
        """Whether rollout has chips of its own."""
        return self.placement != "colocated"

    @property
    def role_chips(self) -> int:
        """Chips that roles have for themselves."""
        return sum(role.chips or 0 for role in self.roles.values())

    def problems(self) -> Iterable[Problem]:
        for name in self.roles:
            if name not in MODEL_ROLES:
                yield not_among(f"roles.{name}", name, MODEL_ROLES, "remove it")
        if self.separate and self.train_chips is None:
            expectation = f"the chips that train: {self.placement} has others that generate"
            yield Problem(path="train_chips", given="nothing", expected=expectation, todo="add train_chips")
        if not self.separate and self.train_chips is not None:
            todo = 'set placement = "split", "one-step-off" or "async"'
            expectation = "none: colocated roles share all chips"
            yield Problem(path="train_chips", given=str(self.train_chips), expected=expectation, todo=todo)
        todo = 'set placement = "async"'
        if self.placement != "async":
            if self.staleness is not None:
                expectation = f"none: {self.placement} has a lag of its own"
                yield Problem(path="staleness", given=f"{self.staleness:g}", expected=expectation, todo=todo)
            if self.partial_rollouts:
                yield Problem(path="partial_rollouts", given="true", expected=f"false: {self.placement}", todo=todo)
        elif self.staleness is None:
            todo = "1 is a step behind; more hides longer tails and trains on older samples"
            yield Problem(path="staleness", given="nothing", expected="weight versions a sample may lag", todo=todo)
