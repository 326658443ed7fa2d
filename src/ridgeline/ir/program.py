"""What a scenario asks of its ranks: sections of ops that repeat, and where they stand in the pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field

from ridgeline.ir.ops import Num, Op


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedActivations:
    """Bytes one section keeps between forward and backward for one microbatch, by what they are."""

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

    recompute    forward ops that run again before the backward
    params       parameters of it that one rank holds before sharding over data-parallel ranks
    expert_params those of them that belong to experts
    kept, whole  bytes kept for the backward; the same if nothing were recomputed
    trained      parameters that get gradients: all of `params`, or the adapters where the rest is frozen
    """

    name: str
    forward: tuple[Op, ...]
    backward_input: tuple[Op, ...]
    backward_weight: tuple[Op, ...]
    recompute: tuple[Op, ...] = ()
    params: Num = 0
    expert_params: Num = 0
    trained: Num = 0
    saved: SavedActivations = field(default_factory=SavedActivations)
    whole: SavedActivations = field(default_factory=SavedActivations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One training step.

    sections  the distinct ones
    stages    for each virtual stage, how many times each section stands in it
    """

    sections: tuple[Section, ...]
    stages: tuple[tuple[int, ...], ...]
