"""A process of a run: a rank that trains, a replica that generates, or both where roles take turns on a chip.

The conductor calls its methods by name, from another process or another host; values that it gives and gets are those
of `request` and `samples`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ridgeline.runtime.probe.ranks import find_world
from ridgeline.runtime.rl.request import Learned, PhaseSpan, RlRunRequest, Seat
from ridgeline.runtime.rl.samples import PromptGroup, ScoredSample

if TYPE_CHECKING:
    from ridgeline.runtime.rl.learner import Learner
    from ridgeline.runtime.rl.replica import Generated, SamplerReplica, WeightBuffer


class SeatMember:
    """What a process does when it is asked to."""

    def __init__(self, request: RlRunRequest, seat: Seat) -> None:
        self.request, self.seat = request, seat
        self.notes: list[str] = []
        self._learner: Learner | None = None
        self._replica: SamplerReplica | None = None

    def begin(self) -> tuple[int, tuple[str, ...]]:
        """Build what this seat has; of a rank that trains the step that is behind, and notes."""
        import torch

        from ridgeline.runtime.rl.learner import Learner
        from ridgeline.runtime.rl.replica import SamplerReplica

        device = self.request.options.device
        if device == "cpu":
            torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        done, notes = 0, tuple[str, ...]()
        if self.seat.rank is not None:
            self._learner = Learner(self.request, find_world(), self.notes.append)
            done, notes = self._learner.begin()
        if self.seat.replica is not None:
            place = device if device == "cpu" or ":" in device else f"{device}:{self.seat.chip}"
            self._replica = SamplerReplica(self.request, place)
        return done, notes

    @property
    def learner(self) -> Learner:
        """The trainer of this seat."""
        assert self._learner is not None
        return self._learner

    @property
    def replica(self) -> SamplerReplica:
        assert self._replica is not None
        return self._replica

    def learn(self, groups: Sequence[PromptGroup], step: int) -> tuple[Learned, tuple[str, ...]]:
        """What a rank tells of a step, and notes."""
        learned = self.learner.learn(groups, step)
        notes, self.notes = tuple(self.notes), []
        return learned, notes

    def teach(self, numbers: Sequence[int]) -> tuple[ScoredSample, ...]:
        """What the teacher answers to these questions, from rank 0; every rank takes part."""
        from ridgeline.runtime.rl.replica import SamplerReplica

        weights = self.learner.teach()
        if self.seat.rank != 0:
            return ()
        writer = SamplerReplica(self.request, self.learner.layout.device, "teacher")
        writer.load(weights, 0)
        return writer.generate(numbers).samples

    def gather(self) -> tuple[WeightBuffer | None, tuple[PhaseSpan, ...]]:
        """Whole weights as a buffer, from rank 0; every rank takes part."""
        from ridgeline.runtime.rl.replica import WeightBuffer

        with self.learner.watch.phase("sync"):
            weights = self.learner.gather()
            buffer = WeightBuffer.of(weights) if self.seat.rank == 0 else None
        return buffer, self.learner.watch.take()

    def renew(self, version: int) -> tuple[PhaseSpan, ...]:
        """Weights of the trainer into the replica of the same seat; every rank takes part."""
        return self.replica.load(self.learner.gather(), version)

    def load(self, weights: WeightBuffer, version: int) -> tuple[PhaseSpan, ...]:
        return self.replica.load(weights, version)

    def generate(self, numbers: Sequence[int], steps: int | None) -> Generated:
        return self.replica.generate(numbers, steps)

    def finish(self, step: int, save: bool) -> tuple[str, bool]:
        """The last checkpoint, and whether it could not be written."""
        return self.learner.finish(step, save=save)
