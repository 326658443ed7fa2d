"""Turn a Scenario into what software around transformers' Trainer can be told: who shards, the mesh, the batch.

Such software splits data (DDP, FSDP2 or DeepSpeed), sequences and, some of it, matrices; it has no pipeline and holds
experts whole. Ranks of an axis that it lacks take data of their own, and what that changes is a loss with its reason.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.targets.ledger import Lose

Backend = Literal["ddp", "fsdp2", "deepspeed"]
# where `accelerate launch` keeps the mesh and FSDP, and its words for who shards
MESH = "accelerate.parallelism_config.parallelism_config"
FSDP = "accelerate.fsdp_config.fsdp"
TYPES: dict[Backend, str] = {"ddp": "MULTI_GPU", "fsdp2": "FSDP", "deepspeed": "DEEPSPEED"}
STAGES = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRun:
    """One run as it is written.

    shard      ranks that a shard is split over, context ranks not counted; `replicate` such groups hold copies
    steps      microbatches that gradients are accumulated over
    lost       what differs from the plan, and why
    """

    backend: Backend
    stage: int
    tp: int
    cp: int
    shard: int
    replicate: int
    micro: int
    steps: int
    lost: tuple[Lose, ...] = ()

    @property
    def dp(self) -> int:
        """Data-parallel ranks."""
        return self.shard * self.replicate

    @property
    def sequences(self) -> int:
        """Sequences of one step."""
        return self.micro * self.steps * self.dp


def backend_of(scenario: Scenario) -> Backend:
    """DeepSpeed where the plan's engine is it, or only it can: ZeRO-1, and heads exchanged for sequence."""
    plan = scenario.plan
    exchanged = plan.mesh.cp > 1 and plan.switches.cp_kind == "all-to-all"
    if plan.engine == "deepspeed" or exchanged or (plan.sharding.shard == "zero1" and plan.mesh.dp > 1):
        return "deepspeed"
    return "fsdp2" if plan.sharding.shard != "none" or plan.mesh.cp > 1 else "ddp"


def run_of(scenario: Scenario, can: Collection[tuple[str, str]]) -> TrainerRun:
    """The run, for software that can split along these axes ("tp", "cp") with these backends."""
    mesh, backend = scenario.plan.mesh, backend_of(scenario)
    lost: list[Lose] = []
    stage = STAGES[scenario.plan.sharding.shard]
    cp = _able(mesh.cp, ("plan.cp", "plan.cp_kind"), (backend, "cp") in can, "sequences are not split", lost)
    splits = (backend, "tp") in can and (backend != "deepspeed" or (stage < 3 and cp == 1))
    tp = _able(mesh.tp, ("plan.tp",), splits, "matrices are not split, or not beside this sharding", lost)
    if mesh.pp > 1:
        why = "there is no pipeline: its ranks take data of their own"
        lost += [Lose(f"plan.{name}", why) for name in ("pp", "schedule.*", "placement", "order", "overlap.pp")]
    if backend == "fsdp2" and stage == 0:
        stage = 2
        lost.append(Lose("plan.shard", "context parallelism comes with FSDP2: written as zero2"))
    dp = scenario.system.chips // (tp * cp)
    if dp != mesh.dp:
        lost.append(Lose("plan.dp", f"{dp} data-parallel ranks, for axes that are not there"))
    shard = _shard(scenario, backend, cp, dp, lost)
    if backend == "fsdp2" and tp > 1 and shard == 1:
        shard = dp
    micro, steps = _batch(scenario, dp, lost)
    return TrainerRun(
        backend=backend,
        stage=stage,
        tp=tp,
        cp=cp,
        shard=shard,
        replicate=dp // shard,
        micro=micro,
        steps=steps,
        lost=tuple(lost),
    )


def _able(degree: int, paths: tuple[str, ...], able: bool, why: str, lost: list[Lose]) -> int:
    if degree == 1 or able:
        return degree
    lost += [Lose(path, f"{why}: these ranks take data of their own") for path in paths]
    return 1


def _shard(scenario: Scenario, backend: Backend, cp: int, dp: int, lost: list[Lose]) -> int:
    """Data-parallel ranks that a shard is split over."""
    plan = scenario.plan
    if backend == "ddp":
        return 1
    whole = plan.shard_degree == plan.mesh.dp * plan.mesh.cp
    if backend == "deepspeed":
        if not whole and plan.sharding.shard != "none":
            lost.append(Lose("plan.shard_degree", "states are split over all data-parallel ranks"))
        return dp
    wanted = dp if whole else plan.shard_degree // cp
    fits = plan.shard_degree % cp == 0 and wanted > 1 and dp % wanted == 0
    if not whole and not fits:
        lost.append(Lose("plan.shard_degree", "a shard is split over whole context groups, and two ranks at least"))
    if whole and dp != plan.mesh.dp:
        lost.append(Lose("plan.shard_degree", "a shard is split over all data-parallel ranks"))
    return wanted if fits or whole else dp


def _batch(scenario: Scenario, dp: int, lost: list[Lose]) -> tuple[int, int]:
    """Sequences of a microbatch and microbatches of a step, as near to the plan's as the ranks allow."""
    work, micro = scenario.workload, scenario.plan.microbatch
    assert isinstance(work, Train)
    each = max(1, work.sequences // dp)
    found = next(size for size in range(min(micro, each), 0, -1) if each % size == 0)
    if found != micro:
        lost.append(Lose("plan.microbatch", f"written as {found}, for {dp} data-parallel ranks"))
    if each * dp != work.sequences:
        why = f"{dp} data-parallel ranks do not share it: written as {each * dp}"
        lost.append(Lose("workload.global_batch", why))
    return found, each // found
