"""Ranks that step together: data-parallel attention and expert parallelism, a step as long as that of the busiest rank.

Every rank has a scheduler, a cache and requests of its own. A rank without work runs a dummy batch, so that the
exchanges of the others do not wait for it for ever. Requests go to the rank where 4 x waiting + running is least, as
vLLM's front end deals them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.serving.engine.step import Policy, RequestState, Step
from ridgeline.serving.fleet.replica import Replica, step_seconds
from ridgeline.serving.fleet.request_timestamps import TokenNotes
from ridgeline.serving.fleet.slo_abort import Misses
from ridgeline.serving.request import Request
from ridgeline.serving.step_cost import StepCost

WAITING_WEIGHT = 4  # a waiting request weighs as much as this many running ones
IDLE = Step()
"""The step of a rank without work: nothing in it, and nobody writes to it."""


def load_score(waiting: int, running: int) -> int:
    """How busy an engine is to whoever deals requests."""
    return WAITING_WEIGHT * waiting + running


class RankSteps(Step):
    """One step of every rank; `finishing` is of all of them."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Step]) -> None:
        super().__init__()
        self.parts = parts
        for part in parts:
            if part is not IDLE:
                self.decodes += part.decodes
                self.chunks += part.chunks
                self.preempted += part.preempted
                self.finishing += part.finishing


class Ranks:
    """The schedulers of ranks that step together, as one policy."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        self.policies = tuple(policies)
        self.depth = self.policies[0].depth
        self._next = 0

    def add(self, request: Request) -> RequestState:
        """To the least loaded rank; ties in turn."""
        count = len(self.policies)
        order = [(self._next + place) % count for place in range(count)]
        chosen = min(order, key=lambda rank: load_score(*self.policies[rank].load()))
        self._next = (chosen + 1) % count
        return self.policies[chosen].add(request)

    def schedule(self) -> RankSteps:
        return RankSteps([policy.schedule() if policy.has_unfinished else IDLE for policy in self.policies])

    def update(self, step: Step) -> list[RequestState]:
        assert isinstance(step, RankSteps)
        finished: list[RequestState] = []
        for policy, part in zip(self.policies, step.parts, strict=True):
            if part is not IDLE:
                finished += policy.update(part)
        return finished

    def decode_room(self, limit: int) -> int:
        return min((policy.decode_room(limit) for policy in self.policies if policy.has_unfinished), default=0)

    def decode_load(self) -> tuple[int, int]:
        loads = [policy.decode_load() for policy in self.policies]
        return sum(count for count, _ in loads), sum(tokens for _, tokens in loads)

    def decode_run(self, steps: int) -> RankSteps:
        return RankSteps([policy.decode_run(steps) if policy.has_unfinished else IDLE for policy in self.policies])

    def load(self) -> tuple[int, int]:
        loads = [policy.load() for policy in self.policies]
        return sum(waiting for waiting, _ in loads), sum(running for _, running in loads)

    def occupancy(self) -> float:
        return max(policy.occupancy() for policy in self.policies)

    def become_idle(self) -> None:
        for policy in self.policies:
            policy.become_idle()

    def close(self) -> None:
        for policy in self.policies:
            policy.close()

    @property
    def has_unfinished(self) -> bool:
        return any(policy.has_unfinished for policy in self.policies)


class Lockstep(Replica):
    """A replica of several ranks: one clock, one note-taker for each rank."""

    __slots__ = ("_slowest", "notes", "ranks")

    def __init__(self, ranks: Ranks, cost: StepCost, *, collapse: bool = True) -> None:
        super().__init__(ranks, cost, collapse=collapse)
        self.ranks = ranks
        self._slowest = (0.0, 0.0)
        self.notes = tuple(TokenNotes() for _ in ranks.policies)
        for notes in self.notes:
            notes.gaps = self.gaps

    def watch_misses(self, misses: Misses) -> None:
        super().watch_misses(misses)
        for notes in self.notes:
            notes.misses = misses

    def note(self, step: Step, begin: float, end: float) -> None:
        assert isinstance(step, RankSteps)
        for notes, part in zip(self.notes, step.parts, strict=True):
            if part is not IDLE:
                notes.note(part, begin, end)

    def decoded_run(self, step: Step, one: float, first: float, growth: float, steps: int) -> None:
        assert isinstance(step, RankSteps)
        for notes, part in zip(self.notes, step.parts, strict=True):
            if part.decodes:
                notes.decoded_run(part, one, first, growth, steps)

    def _seconds(self, step: Step) -> float:
        """Seconds of the busiest rank; what prefill adds is beyond the busiest decode."""
        assert isinstance(step, RankSteps)
        seconds = alone = 0.0
        for part in step.parts:
            if part is not IDLE:
                whole, added = step_seconds(part, self.cost)
                seconds, alone = max(seconds, whole), max(alone, whole - added)
        if seconds > alone:
            for notes in self.notes:
                notes.stall_s += seconds - alone
        return seconds

    def _lines(self) -> list[tuple[float, float]]:
        lines = []
        line = self.cost.decode_line
        for policy in self.ranks.policies:
            if policy.has_unfinished:
                decodes, kv_tokens = policy.decode_load()
                fixed, per_token = line(decodes)
                lines.append((fixed + per_token * (kv_tokens + decodes), per_token * decodes))
        return lines

    def _line(self) -> tuple[float, float]:
        """That of the slowest rank; as `_room`, which is asked right before, found it."""
        return self._slowest

    def _room(self) -> int:
        """Steps in which the rank that is slowest now stays the slowest."""
        room = super()._room()
        if room > 1:
            lines = self._lines()
            first, growth = self._slowest = max(lines)
            for other, faster in lines:
                if faster > growth:
                    room = min(room, max(int((first - other) / (faster - growth)), 1))
        return room
