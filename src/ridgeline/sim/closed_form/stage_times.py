"""What a section, a virtual stage or a pipeline rank takes for one microbatch, as named rows of one array.

One array, because a stage is a sum of its sections in every row alike: a single matrix product adds up all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.core.arrays import Array, Index
from ridgeline.cost.step_part import SECTION_PARTS, StepPart

PARTS = (*SECTION_PARTS, StepPart.SHARD, StepPart.HOST)  # what the busy time of a microbatch consists of
_BUSY, _ISSUE, _FORWARD, _BACKWARD_INPUT, _BACKWARD_WEIGHT = range(5)
_PHASES = slice(_FORWARD, _BACKWARD_WEIGHT + 1)
NAMED = 5  # rows before the parts
_KERNEL = NAMED + PARTS.index(StepPart.KERNEL)
WITH_STALLS = _KERNEL + 1  # rows that it takes to tell pipeline sends and host stalls apart


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Seconds of one microbatch; the first axis of `rows` is what they are, the others whose they are.

    busy       all a rank does, exposed communication included
    issue      what the host takes to issue its kernels
    forward, backward_input, backward_weight   the passes of `busy`; what is recomputed belongs to the input gradient
    parts      `busy` by part of `PARTS`, where it is told apart
    """

    rows: Array

    @classmethod
    def of(cls, phases: tuple[Array, Array, Array], issue: Array) -> StageTimes:
        """From the three passes and the time to issue them."""
        rows = np.empty((NAMED, *phases[0].shape))
        rows[_ISSUE] = issue
        rows[_FORWARD], rows[_BACKWARD_INPUT], rows[_BACKWARD_WEIGHT] = phases
        rows[_BUSY] = rows[_PHASES].sum(0)
        return cls(rows=rows)

    @property
    def busy(self) -> Array:
        """All that a rank does."""
        return np.asarray(self.rows[_BUSY])

    @property
    def issue(self) -> Array:
        """Host seconds to issue the kernels."""
        return np.asarray(self.rows[_ISSUE])

    @property
    def forward(self) -> Array:
        """The forward pass."""
        return np.asarray(self.rows[_FORWARD])

    @property
    def backward_input(self) -> Array:
        """The input gradient, and before it what is recomputed."""
        return np.asarray(self.rows[_BACKWARD_INPUT])

    @property
    def backward_weight(self) -> Array:
        """The weight gradient."""
        return np.asarray(self.rows[_BACKWARD_WEIGHT])

    @property
    def phases(self) -> Array:
        """Forward, input gradient and weight gradient."""
        return np.asarray(self.rows[_PHASES])

    @property
    def parts(self) -> Array:
        """Seconds by part; empty where they are not told apart."""
        return np.asarray(self.rows[NAMED:])

    @property
    def by_part(self) -> bool:
        """Whether parts are told apart."""
        return len(self.rows) > NAMED

    def at(self, places: Index | slice | int) -> StageTimes:
        """Those of some stages: entries of the axis after the first."""
        return StageTimes(rows=self.rows[:, places])

    def first(self, rows: int) -> StageTimes:
        """Only the first rows."""
        return StageTimes(rows=self.rows[:rows])

    def with_parts(self, parts: Array) -> StageTimes:
        """The same with its parts told apart."""
        return StageTimes(rows=np.concatenate([self.rows, parts]))

    def add_stall(self, stall: Array) -> None:
        """Add what the chip waits for its host, in place; what is overlapped has the stalls to hide in, too."""
        rows = self.rows
        rows[_PHASES] *= 1 + stall / np.maximum(rows[_BUSY], 1e-30)
        rows[_BUSY] += stall
        if len(rows) > _KERNEL:
            rows[_KERNEL] += stall
