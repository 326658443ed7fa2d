"""Who may begin which prompt when, and which samples a step trains on: the bound on staleness as a value.

A prompt that begins with weights of version u may be trained on up to version u + ceil(S). So long as no more than
(u + 1 + S) B prompts have begun when the newest weights are u, with B trained on in a step, that can always be kept:
of the prompts whose limit is c + k, all but k B are in the batch of version c. `take` gives finished ones by their
limit, and none while that would break it: then the trainer waits for the slow ones.

With S = 0 every step trains on what its own weights wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil

from ridgeline.runtime.rl.samples import PromptGroup, ScoredSample


@dataclass(slots=True, kw_only=True)
class SampleQueue:
    """Prompts from their beginning to their step; version c trains step c + 1.

    batch      prompts of one step
    bound      S, in versions
    begun      how many prompts have been given out
    again      prompts that a lost worker gave back
    running    number -> version it began with
    newest     version of the weights that the trainer was last asked to train
    """

    batch: int
    bound: float
    begun: int = 0
    newest: int = 0
    again: list[int] = field(default_factory=list)
    running: dict[int, int] = field(default_factory=dict)
    finished: dict[int, PromptGroup] = field(default_factory=dict)

    @property
    def lag(self) -> int:
        """Versions by which a sample may lag at most."""
        return ceil(self.bound)

    def begin(self, version: int, most: int) -> list[int]:
        """At most so many prompts that may begin with weights of this version; lost ones only with the newest."""
        room = int((version + 1 + self.bound) * self.batch) - self.begun
        numbers = self.again[:most] if version >= self.newest else []
        del self.again[: len(numbers)]
        fresh = max(0, min(room, most - len(numbers)))
        numbers += range(self.begun, self.begun + fresh)
        self.begun += fresh
        self.running |= dict.fromkeys(numbers, version)
        return numbers

    def finish(self, number: int, samples: Sequence[ScoredSample]) -> None:
        version = self.running.pop(number)
        self.finished[number] = PromptGroup(number=number, version=version, samples=tuple(samples))

    def give_back(self, numbers: Iterable[int]) -> None:
        """Prompts that nobody works on any more: they begin anew, before others."""
        for number in numbers:
            if self.running.pop(number, None) is not None:
                self.again.append(number)
        self.again.sort()

    def take(self, version: int) -> list[PromptGroup] | None:
        """The batch that weights of this version are trained on, by number; None while it has to wait."""
        self.newest = version
        chosen = sorted(self.finished.values(), key=lambda group: (group.version, group.number))[: self.batch]
        if len(chosen) < self.batch:
            return None
        pending = [*self.running.values(), *([version] * len(self.again))]
        versions = [*(group.version for group in self.finished.values()), *pending]
        for further in range(self.lag + 1):
            oldest = version + further - self.lag
            due = sum(begun <= oldest for begun in versions) - further * self.batch
            if sum(group.version <= oldest for group in chosen) < min(due, self.batch):
                return None
        for group in chosen:
            del self.finished[group.number]
        return sorted(chosen, key=lambda group: group.number)

    def put_back(self, groups: Iterable[PromptGroup]) -> None:
        """Batches of steps that have to be trained again."""
        self.finished |= {group.number: group for group in groups}
