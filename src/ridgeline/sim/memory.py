"""Turn a program into the bytes the fullest chip holds at its worst moment, by what they are.

A rank's peak is the largest of three moments:

    loss        first backward about to start: all activations in flight, and the loss at work on its logits
    backward    the same without logits, and the temporaries of one layer (what it recomputes among them)
    optimizer   no activations; gradients of everything

Weights and optimizer states are there all the time, and gradients too where the engine accumulates into a buffer or
runs several microbatches; otherwise they appear only as the activations go. On top come `overhead`: what the driver and
communicators take, and what a caching allocator loses to fragmentation; it is no part of `allocated`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ridgeline.core.units import BINARY
from ridgeline.ir.program import Program, Section
from ridgeline.models.spec import Moe
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import SCHEDULES
from ridgeline.plan.workload import Train
from ridgeline.sim.kept import kept_bytes, loss_bytes

KINDS = ("weights", "gradients", "optimizer", "activations", "logits", "workspace", "buffers", "overhead")
FRAGMENTATION = 0.02  # of what comes and goes during a step, lost between blocks of a caching allocator
CONTEXT = 0.6 * BINARY["Gi"]  # bytes of a driver context and its loaded kernels
COMMUNICATOR = 0.25 * BINARY["Gi"]  # bytes of channels and scratch of the communicators of one rank
COMPILED = 0.3 * BINARY["Gi"]  # bytes a whole-program compiler's runtime keeps; it lays memory out without gaps


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pipeline rank at its peak: bytes by kind, the chunk activations in flight, and the moment it happens."""

    rank: int
    bytes_by_kind: Mapping[str, float]
    in_flight: int
    moment: str

    @property
    def peak_bytes(self) -> float:
        """All kinds."""
        return sum(self.bytes_by_kind.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Peaks of all pipeline ranks, and the capacity of a chip."""

    stages: tuple[Stage, ...]
    capacity_bytes: float

    @property
    def fullest(self) -> Stage:
        """The rank with the highest peak; the first of equals."""
        return max(self.stages, key=lambda stage: stage.peak_bytes)

    @property
    def peak_bytes(self) -> float:
        """The highest peak of all ranks."""
        return self.fullest.peak_bytes

    @property
    def allocated_bytes(self) -> float:
        """The same without overhead: what a framework's own counter of allocated memory shows."""
        return self.peak_bytes - self.fullest.bytes_by_kind["overhead"]

    @property
    def headroom_bytes(self) -> float:
        """Capacity less peak; negative when the scenario does not fit."""
        return self.capacity_bytes - self.peak_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Bytes one rank holds between steps, gradients apart, and what they are of."""

    weights: float
    gradients: float
    optimizer: float


def memory_of(scenario: Scenario, program: Program) -> Memory:
    """Peak memory of every pipeline rank of a training step."""
    needs = _needs_of(scenario, program)
    placement = held_by_rank(scenario)
    stages = tuple(_stage(scenario, program, needs, (rank, held)) for rank, held in enumerate(placement))
    hbm = scenario.system.chip.hbm
    capacity = (hbm.usable or hbm.capacity or scenario.system.chip.need("hbm.capacity")).value
    return Memory(stages=stages, capacity_bytes=capacity)


def held_by_rank(scenario: Scenario) -> tuple[tuple[int, ...], ...]:
    """Virtual stages of each pipeline rank, as the schedule places them: in loops, or down and back up."""
    pp, chunks = scenario.plan.mesh.pp, scenario.plan.schedule.chunks
    kind = SCHEDULES.get(scenario.plan.schedule.name)
    if kind is not None and kind.v_shaped and pp > 1:
        return tuple((rank, 2 * pp - 1 - rank) for rank in range(pp))
    return tuple(tuple(chunk * pp + rank for chunk in range(chunks)) for rank in range(pp))


def in_flight(schedule: str, stages: int, microbatches: int, chunks: int, rank: int) -> int:
    """Chunk activations a rank holds at its worst moment, each 1/chunks of its stage.

        gpipe  m v      1f1b  p - r      zero-bubble-h1  p      interleaved  2 (p - r - 1) + (v - 1) p + 1
        zbv    2 p      dualpipe-v  2 p + 1                     none above m v;  without a pipeline 1

    p = stages, r = rank, v = chunks, m = microbatches.

    >>> [in_flight("1f1b", 4, 8, 1, rank) for rank in range(4)]
    [4, 3, 2, 1]
    """
    if stages == 1:
        return 1
    held = {
        "gpipe": microbatches * chunks,
        "1f1b": stages - rank,
        "interleaved": 2 * (stages - rank - 1) + (chunks - 1) * stages + 1,
        "zero-bubble-h1": stages,
        "zbv": 2 * stages,
        "dualpipe-v": 2 * stages + 1,
    }[schedule]
    return min(held, microbatches * chunks)


def state_of(scenario: Scenario, program: Program, held: Sequence[int]) -> State:
    """Weights, gradients and optimizer states of a rank, sharded as the plan says.

        none  w + g + o        zero1  w + g + o/d        zero2  w + (g + o)/d        zero3  (w + g + o)/d

    d = shard degree; experts are sharded over their own replicas, at most edp. A narrow recipe that trains its weights
    holds them narrow twice, as they are and transposed, or wide once: the larger is counted. Frozen ones are narrow
    once. A tied output on another stage than the embedding holds its own copy.
    """
    plan, work = scenario.plan, scenario.workload
    totals, adapted = [0.0, 0.0], 0.0
    for stage in held:
        for section, often in zip(program.sections, program.stages[stage], strict=True):
            totals[0] += often * float(section.params)
            totals[1] += often * float(section.expert_params)
            adapted += often * float(section.trained)
    totals[0] += _at_the_end(scenario, held)
    shard = ("none", "zero1", "zero2", "zero3").index(plan.sharding.shard)
    degrees = (plan.shard_degree, min(plan.mesh.edp, plan.shard_degree))

    def over(level: int, counts: Sequence[float]) -> float:
        return sum(count / (degree if shard >= level else 1) for count, degree in zip(counts, degrees, strict=True))

    trained: Sequence[float] = totals
    frozen = isinstance(work, Train) and work.task == "lora"
    if frozen:
        trained = (adapted, 0.0)
    gradients = (plan.precision.gradients or scenario.engine.gradients).bytes_per_element
    wide, narrow = (kind.bytes_per_element for kind in (plan.precision.weights, plan.precision.compute))
    weight = wide if narrow >= wide else narrow if frozen else max(wide, 2 * narrow)
    optimizer = work.optimizer.bytes_per_param if isinstance(work, Train) else 0.0
    return State(
        weights=over(3, totals) * weight,
        gradients=over(2, trained) * gradients,
        optimizer=over(1, trained) * optimizer * (1 - plan.offload.optimizer),
    )


def _at_the_end(scenario: Scenario, held: Sequence[int]) -> float:
    """Parameters of the last virtual stage that no section holds: the final norm, and a tied output matrix where the
    embedding stands on another rank."""
    model, last = scenario.model, scenario.plan.virtual_stages - 1
    if last not in held:
        return 0.0
    norm = model.norm.params(model.hidden) if model.norm else 0
    tied = model.embedding.tied and 0 not in held
    return norm + tied * model.vocab * (model.embedding.width or model.hidden) / scenario.plan.mesh.tp


@dataclass(frozen=True, slots=True, kw_only=True)
class _Needs:
    """What is the same for all ranks: bytes kept by section and virtual stage, and what a moment takes for a while."""

    kept: tuple[float, ...]
    by_stage: tuple[float, ...]
    loss: float
    head: float
    layer: float
    sends: float


def _needs_of(scenario: Scenario, program: Program) -> _Needs:
    kept = tuple(kept_bytes(scenario, section) for section in program.sections)
    return _Needs(
        kept=kept,
        by_stage=_by_stage(scenario, program, kept),
        loss=loss_bytes(scenario, program),
        head=_gathered(scenario, program.sections[:2]),
        layer=_gathered(scenario, program.sections[2:]),
        sends=_sends(scenario),
    )


def _stage(scenario: Scenario, program: Program, needs: _Needs, place: tuple[int, Sequence[int]]) -> Stage:
    plan, (rank, held) = scenario.plan, place
    state = state_of(scenario, program, held)
    flying = in_flight(plan.schedule.name, plan.mesh.pp, scenario.microbatches, plan.schedule.chunks, rank)
    activations = sum(needs.by_stage[stage] for stage in held) / len(held) * flying
    logits = needs.loss if plan.virtual_stages - 1 in held else 0.0
    if plan.schedule.name == "gpipe" and plan.mesh.pp > 1:
        logits *= scenario.microbatches
    early = state.gradients if _gradients_stay(scenario) else 0.0
    layer = _layer(scenario, program, needs.kept, held)
    moments = {
        "loss": (early, activations, logits, 0.0, needs.sends + needs.head),
        "backward": (early, activations, 0.0, layer, needs.sends + needs.layer),
        "optimizer": (state.gradients, 0.0, 0.0, 0.0, 0.0),
    }
    moment = max(moments, key=lambda name: sum(moments[name]))
    found = {"weights": state.weights, "optimizer": state.optimizer}
    found |= zip(("gradients", "activations", "logits", "workspace", "buffers"), moments[moment], strict=True)
    found["overhead"] = _overhead(scenario, sum(moments[moment][1:]))
    return Stage(rank=rank, bytes_by_kind={kind: found[kind] for kind in KINDS}, in_flight=flying, moment=moment)


def kept_by_stage(scenario: Scenario, program: Program) -> tuple[float, ...]:
    """Bytes each virtual stage keeps on the chip between forward and backward of one microbatch, logits apart."""
    return _by_stage(scenario, program, tuple(kept_bytes(scenario, section) for section in program.sections))


def _by_stage(scenario: Scenario, program: Program, kept: Sequence[float]) -> tuple[float, ...]:
    stays = 1 - scenario.plan.offload.activations
    return tuple(
        stays * sum(size * often for size, often in zip(kept, stage, strict=True) if often) for stage in program.stages
    )


def _gradients_stay(scenario: Scenario) -> bool:
    """Whether gradients exist from one backward to the next, so that they meet activations of all layers."""
    buffered = "weight-gradient-accumulation" in scenario.engine.fuses
    return buffered or scenario.microbatches > 1 or scenario.plan.mesh.pp > 1


def _layer(scenario: Scenario, program: Program, kept: Sequence[float], held: Sequence[int]) -> float:
    """Bytes one layer's backward needs for itself: what it recomputes, and the gradients inside its widest part."""
    present = {index for stage in held for index, often in enumerate(program.stages[stage]) if often and index > 1}
    most = 0.0
    for index in present:
        section = program.sections[index]
        whole = section.whole
        inside = max(float(whole.mlp), float(whole.attention)) + float(whole.inputs)
        most = max(most, kept_bytes(scenario, replace(section, kept=whole)) - kept[index] + inside)
    return most


def _gathered(scenario: Scenario, sections: Sequence[Section]) -> float:
    """Bytes of whole weights and gradients that exist while the largest of these sections runs, under sharding.

        zero3   this layer's weights and the next one's, and this one's gradients     zero2   the gradients

    A whole-program compiler gathers one layer at a time and reduces gradients in the weights' format.
    """
    plan, compiled = scenario.plan, scenario.engine.launch.mode == "xla"
    if plan.shard_degree == 1 or plan.sharding.shard not in ("zero2", "zero3"):
        return 0.0
    weight = plan.precision.weights.bytes_per_element
    gradient = (plan.precision.gradients or scenario.engine.gradients).bytes_per_element
    copies = 0.0 if plan.sharding.shard == "zero2" else weight * (1 if compiled else 2)
    most = max(float(section.params + section.expert_params) for section in sections)
    return most * (copies + (weight if compiled else gradient))


def _sends(scenario: Scenario) -> float:
    """Bytes held for activations on their way: gathered tokens, sends between stages, token copies for experts."""
    plan, mesh = scenario.plan, scenario.plan.mesh
    tokens = plan.microbatch * scenario.workload.seq / mesh.cp
    boundary = tokens * scenario.model.hidden * plan.precision.activations.bytes_per_element
    total = boundary if mesh.tp > 1 and plan.sequence_parallel else 0.0
    if mesh.pp > 1:
        total += 4 * boundary / (mesh.tp if plan.sequence_parallel else 1)  # one send and one receive, both ways
    topk = max((block.ffn.topk for block in scenario.model.blocks if isinstance(block.ffn, Moe)), default=0)
    return total + (2 * boundary / mesh.tp * topk if mesh.ep > 1 else 0.0)


def _overhead(scenario: Scenario, moving: float) -> float:
    """What is taken beside tensors: driver, communicators, and gaps between `moving` bytes that come and go."""
    if scenario.engine.launch.mode == "xla":
        return COMPILED
    return CONTEXT + (COMMUNICATOR if scenario.system.chips > 1 else 0.0) + FRAGMENTATION * moving
