"""What a section, a virtual stage or a pipeline rank takes for one microbatch, as named rows of one array.

One array, because a stage is a sum of its sections in every row alike: a single matrix product adds up all of them.
"""

from __future__ import annotations

import numpy as np

from ridgeline.core.arrays import Array, Index, Mask
from ridgeline.core.records import dataclass
from ridgeline.cost import StepPart
from ridgeline.cost.pricing import SECTION_PARTS
from ridgeline.sim.host_stall import host_stall

PARTS = (*SECTION_PARTS, StepPart.SHARD, StepPart.HOST)  # what the busy time of a microbatch consists of
_BUSY, _FORWARD, _BACKWARD_INPUT, _BACKWARD_WEIGHT = range(4)
_PHASES, _ISSUES = slice(1, 4), slice(4, 7)
NAMED = 7  # rows before the parts
_KERNEL = NAMED + PARTS.index(StepPart.KERNEL)
WITH_STALLS = _KERNEL + 1  # rows that it takes to tell pipeline sends and host stalls apart


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Seconds of one microbatch; the first axis of `rows` is what they are, the others whose they are.

    busy       all a rank does, exposed communication included
    forward, backward_input, backward_weight   the passes of `busy`; what is recomputed belongs to the input gradient
    issues     what the host takes to issue the kernels of each pass
    parts      `busy` by part of `PARTS`, where it is told apart
    """

    rows: Array

    @classmethod
    def of(cls, phases: Array, issues: Array) -> StageTimes:
        """From the three passes and the time to issue each."""
        rows = np.empty((NAMED, *phases[0].shape))
        rows[_ISSUES] = issues
        rows[_PHASES] = phases
        rows[_BUSY] = rows[_PHASES].sum(0)
        return cls(rows=rows)

    @property
    def busy(self) -> Array:
        """All that a rank does."""
        return np.asarray(self.rows[_BUSY])

    @property
    def issues(self) -> Array:
        """Host seconds to issue the kernels of forward, input gradient and weight gradient."""
        return np.asarray(self.rows[_ISSUES])

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

    def without_issues(self) -> StageTimes:
        """Only what a rank does and its passes."""
        return StageTimes(rows=self.rows[: _ISSUES.start])

    def with_parts(self, parts: Array) -> StageTimes:
        """The same with its parts told apart."""
        return StageTimes(rows=np.concatenate([self.rows, parts]))

    def add_stalls(self, apart: Mask, blocking: Array) -> None:
        """Add what the chip waits for its host, in place; what is overlapped has the stalls to hide in, too.

        The host runs ahead within a forward and within a backward; where weight gradients run apart (`apart`), they
        are issued apart, too. A pass that gets shorter so never makes another one longer.
        """
        rows, (forward, inputs, weights), (issue, of_inputs, of_weights) = self.rows, self.phases, self.issues
        total = host_stall(forward, issue, blocking)
        forward += total  # the passes are views of the rows
        backward = inputs + weights
        stall = host_stall(backward, of_inputs + of_weights, blocking)
        longer = stall / np.maximum(backward, 1e-30)
        of_each = [inputs * longer, weights * longer]
        if apart.any():
            alone = host_stall(inputs, of_inputs, blocking), host_stall(weights, of_weights, blocking)
            of_each = [np.where(apart, own, shared) for own, shared in zip(alone, of_each, strict=True)]
            stall = of_each[0] + of_each[1]
        inputs += of_each[0]
        weights += of_each[1]
        total += stall
        rows[_BUSY] += total
        if len(rows) > _KERNEL:
            rows[_KERNEL] += total
