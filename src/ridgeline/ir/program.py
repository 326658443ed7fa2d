"""What a scenario asks of its ranks: sections of ops that repeat, their places in the pipeline, what ends a step.

    Program
    |-- sections          embedding, output head, each distinct block, ...: forward, backward, recompute of a microbatch
    |-- stages            how often each section stands in each virtual stage
    `-- step              sends between stages, gathers of sharded weights, gradient sync, optimizer, offload copies

Cost grows with distinct sections and pipeline ranks, never with layers or chips. A section's tensors say where they lie
on the mesh; a runtime builds from it what lowering prices: a `Split` is a DTensor `Shard(dim)` on that mesh axis,
`partial` is `Partial()`, an axis named in neither is `Replicate()`.
"""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from math import prod
from typing import Literal, NamedTuple

from ridgeline.core.records import dataclass
from ridgeline.ir.ops import Axis, Collective, HostCopy, Num, Op, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A dim of a tensor, cut evenly over the ranks of a mesh axis.

    units   pieces it may be cut into at most, such as key-value heads; beyond them ranks hold copies. 0: any number
    """

    dim: int
    axis: Axis
    degree: Num
    units: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor of a section, whole, and how ranks share it.

    name      within its section, such as `attention.query.weight`
    dims      sizes of the whole tensor; an activation's first is tokens of one microbatch of a data-parallel rank
    splits    dims that are cut; what is not named is on every rank
    partial   axes whose ranks each hold a summand
    """

    name: str
    kind: Literal["weight", "activation"] = "weight"
    dims: tuple[Num, ...]
    splits: tuple[Split, ...] = ()
    partial: tuple[Axis, ...] = ()

    @property
    def elements(self) -> Num:
        """Of the whole tensor."""
        return prod(self.dims)


PASSES = ("forward", "backward_input", "backward_weight", "recompute")
"""Passes of a section, in the order of a table of ops."""
PHASES = len(PASSES)


class SectionRole(StrEnum):
    """What part of a model a section is."""

    EMBEDDING = "embedding"
    HEAD = "head"
    BLOCK = "block"
    MTP = "prediction block"
    ENCODER_ENDS = "encoder ends"
    ENCODER = "encoder"
    VISION_ENDS = "vision ends"
    VISION = "vision"
    VISION_WINDOWED = "vision, windowed"
    AUDIO_ENDS = "audio ends"
    AUDIO = "audio"


class SectionKey(NamedTuple):
    """Which section it is.

    block   index of the model's distinct block; -1 where it is none of them
    rest    the same block as it runs in layers that the plan's recompute does not cover
    """

    role: SectionRole
    block: int = -1
    rest: bool = False

    def __str__(self) -> str:
        """
        >>> str(SectionKey(SectionRole.BLOCK, 1, True)), str(SectionKey(SectionRole.HEAD))
        ('block 1, rest', 'head')
        """
        if self.role is not SectionRole.BLOCK:
            return self.role.value
        return f"block {self.block}{', rest' if self.rest else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedActivations:
    """Bytes one section saves between forward and backward for one microbatch, by what they are."""

    inputs: Num = 0
    attention: Num = 0
    mlp: Num = 0
    norms: Num = 0
    logits: Num = 0

    @property
    def total(self) -> Num:
        """All kinds together."""
        return self.inputs + self.attention + self.mlp + self.norms + self.logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A layer (or the embedding, or the head) as one rank executes it for one microbatch.

    recompute      forward ops that run again before the backward
    params         parameters of it that one rank holds before sharding over data-parallel ranks
    expert_params  those that belong to experts, beside `params`
    trained        dense parameters that get gradients: all of `params`, or the adapters where the rest is frozen
    saved          bytes saved for the backward; `saved_without_recompute` the same if nothing were recomputed
    tensors        its weights and where they lie on the mesh
    """

    key: SectionKey
    forward: tuple[Op, ...]
    backward_input: tuple[Op, ...]
    backward_weight: tuple[Op, ...]
    recompute: tuple[Op, ...] = ()
    params: Num = 0
    expert_params: Num = 0
    trained: Num = 0
    saved: SavedActivations = field(default_factory=SavedActivations)
    saved_without_recompute: SavedActivations = field(default_factory=SavedActivations)
    tensors: tuple[Tensor, ...] = ()

    @property
    def passes(self) -> tuple[tuple[Op, ...], ...]:
        """Ops of each of its passes, in the order of `PASSES`."""
        return self.forward, self.backward_input, self.backward_weight, self.recompute

    @property
    def role(self) -> SectionRole:
        """What part of the model it is."""
        return self.key.role

    @property
    def name(self) -> str:
        """Its name, as timelines show it."""
        return str(self.key)

    @property
    def offloadable(self) -> Num:
        """Bytes of its activations that can travel to the host between forward and backward: all but logits."""
        return self.saved.total - self.saved.logits


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOps:
    """What a rank does beside its sections.

    send           one microbatch's activations, or their gradients, to the next stage
    layer_gather   of weights sharded by zero3, before each forward and each backward; sizes by section
    layer_scatter  of their gradients, after each backward; sizes by section
    offload        activations to the host and back, one way; sizes by section
    accumulate     gradients of a microbatch, added where products do not; sizes by pipeline rank
    embedding_reduce   of a tied embedding's gradient between the two ends of a pipeline
    grad_reduce    data-parallel gradient reduction; sizes by pipeline rank
    param_gather   of weights that sharded optimizers have updated (zero1, zero2); sizes by pipeline rank
    optimizer      states, weights and gradients read and written; sizes by pipeline rank
    optimizer_copy states that live on the host, there and back; sizes by pipeline rank
    """

    send: Collective
    layer_gather: tuple[Collective, ...]
    layer_scatter: tuple[Collective, ...]
    offload: HostCopy
    accumulate: Stream
    embedding_reduce: Collective
    grad_reduce: tuple[Collective, ...]
    param_gather: tuple[Collective, ...]
    optimizer: Stream
    optimizer_copy: HostCopy


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One step of one scenario: a training step, or a forward alone.

    sections  the distinct ones
    stages    for each virtual stage, how many times each section stands in it
    step      what ends a training step, and what runs between its sections; None for a forward alone
    """

    sections: tuple[Section, ...]
    stages: tuple[tuple[int, ...], ...]
    step: StepOps | None = None

    def section(self, role: SectionRole) -> Section:
        """The first section of a role."""
        return next(section for section in self.sections if section.role is role)
