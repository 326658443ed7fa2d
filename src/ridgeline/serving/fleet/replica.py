"""One engine with its clock: it takes requests, runs steps as far as it is let, and says when somebody could be done.

    arrivals <= now  ->  schedule  ->  the step runs on the chip  ->  its tokens are out at its end  ->  update

With asynchronous scheduling a step is decided while the one before it runs, so `now` is one step behind the chip. Runs
of pure decode are one event: their length follows from the next arrival, the next finish and the free blocks, their
time from the line of the step cost.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import NoReturn

from ridgeline.core.errors import InputError, Problem
from ridgeline.serving.engine.step import Chunk, Policy, RequestState, Step
from ridgeline.serving.fleet.request_timestamps import TokenNotes
from ridgeline.serving.fleet.slo_abort import Misses
from ridgeline.serving.request import Request
from ridgeline.serving.step_cost import StepCost

LONGEST_RUN = 1 << 30
NEVER = math.inf

Finish = Callable[[RequestState, float], None]
"""Told of every request whose last token is out, and when."""
Sample = tuple[float, int, int, float]
"""A moment: seconds, waiting requests, running requests, share of the cache that is held."""
Carried = tuple[float, float, float]
"""Of a request that was somewhere before: when it was sent, seconds of prefill there, seconds of transfer."""


class Replica(TokenNotes):
    """One engine: `add` requests, `advance` its clock; the steps it has run are counted in `steps`, `events`."""

    __slots__ = ("_inbox", "_sequence", "carried", "chip_free", "collapse", "cost", "events", "finish", "now",
                 "pending", "policy", "samples", "steps")  # fmt: skip

    def __init__(self, policy: Policy, cost: StepCost, *, collapse: bool = True, finish: Finish | None = None) -> None:
        super().__init__()
        self.policy, self.cost, self.collapse, self.finish = policy, cost, collapse, finish
        self.now = self.chip_free = 0.0
        self.pending: tuple[Step, float] | None = None
        self.steps = self.events = 0
        self.samples: list[Sample] | None = None
        self.carried: dict[str, Carried] = {}
        self._inbox: list[tuple[float, int, Request]] = []
        self._sequence = 0

    def watch_misses(self, misses: Misses) -> None:
        """Tell of first tokens, so that the run can be given up."""
        self.misses = misses

    def add(self, request: Request, at: float) -> None:
        """A request is sent to this engine at a time that is not past."""
        heapq.heappush(self._inbox, (at, self._sequence, request))
        self._sequence += 1

    @property
    def waiting_to_arrive(self) -> int:
        """Requests on their way that the scheduler has not seen."""
        return len(self._inbox)

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do."""
        return not (self._inbox or self.pending is not None or self.policy.has_unfinished)

    def advance(self, until: float = NEVER) -> None:
        """Decide every step that is decided before that time."""
        policy = self.policy
        while True:
            self._arrive()
            if not policy.has_unfinished:
                if self.pending is not None:
                    self._settle()
                elif self._inbox and self._inbox[0][0] < until:
                    self._wait()
                else:
                    return
                continue
            if self.now >= until:
                return
            self._event(until)

    def advance_once(self, until: float) -> None:
        """One step, or one run of decode steps as far as that time."""
        self._arrive()
        if self.policy.has_unfinished:
            self._event(until)
        elif self.pending is not None:
            self._settle()
        elif self._inbox:
            self._wait()

    def next_finish(self) -> float:
        """No request is done before that time unless more arrive."""
        if self.pending is not None and self.pending[0].finishing:
            return self.pending[1]
        if self._inbox and self._inbox[0][0] <= max(self.now, self.chip_free):
            return max(self.now, self._inbox[0][0])
        if not self.policy.has_unfinished:
            return self._inbox[0][0] if self._inbox else NEVER
        begin = max(self.now, self.chip_free)
        room = self._room()
        if room <= 1:
            return begin
        first, growth = self._line()
        end = begin + first * room + growth * (room * (room - 1) / 2)
        return min(end, self._inbox[0][0]) if self._inbox else end

    def _wait(self) -> None:
        """Idle until the next arrival."""
        self.policy.become_idle()
        self.now = max(self.now, self._inbox[0][0])

    def _arrive(self) -> None:
        inbox = self._inbox
        while inbox and inbox[0][0] <= self.now:
            sent, _, request = heapq.heappop(inbox)
            state = self.policy.add(request)
            state.sent_s = sent
            if self.carried and (before := self.carried.pop(request.id, None)) is not None:
                state.sent_s, state.prefilled_s, state.transfer_s = before

    def _event(self, until: float) -> None:
        self.events += 1
        if self.samples is not None:
            self.samples.append((self.now, *self.policy.load(), self.policy.occupancy()))
        room = self._room()
        if room > 1:
            self._decode_run(room, until)
        else:
            self._one_step()

    def _room(self) -> int:
        """Decode steps that can be one event; none while the step in flight ends somebody."""
        if self.collapse and (self.pending is None or not self.pending[0].finishing):
            return self.policy.decode_room(LONGEST_RUN)
        return 0

    # ---- one step

    def _one_step(self) -> None:
        step = self.policy.schedule()
        if step.empty and not step.preempted:
            if self.pending is None:
                refuse("a request that never fits: nothing runs and nothing can be scheduled")
            self._settle()
            return
        begin = max(self.now, self.chip_free)
        end = begin + self._seconds(step)
        self.steps += not step.empty
        self.note(step, begin, end)
        self._advance(step, end)

    def _seconds(self, step: Step) -> float:
        seconds, stall = step_seconds(step, self.cost)
        self.stall_s += stall
        return seconds

    # ---- results

    def _advance(self, step: Step, end: float) -> None:
        self.chip_free = end
        if self.policy.depth == 1:
            self.now = end
            self._update(step, end)
            return
        if self.pending is not None:
            self._settle()
        self.pending = (step, end)

    def _settle(self) -> None:
        assert self.pending is not None
        (step, end), self.pending = self.pending, None
        self.now = max(self.now, end)
        self._update(step, end)

    def _update(self, step: Step, end: float) -> None:
        for state in self.policy.update(step):
            self.done.append(state)
            self.done_s.append(end)
            if self.misses is not None:
                answer = end - state.first_token_s
                self.misses.last_token(end - state.sent_s, answer, state.request.output_tokens)
            if self.finish is not None:
                self.finish(state, end)

    # ---- runs of pure decode

    def _line(self) -> tuple[float, float]:
        """Seconds of the next decode step, and how much longer each one after it takes."""
        decodes, kv_tokens = self.policy.decode_load()
        fixed, per_token = self.cost.decode_line(decodes)
        return fixed + per_token * (kv_tokens + decodes), per_token * decodes

    def _decode_run(self, room: int, until: float) -> None:
        """As many of these steps as nobody arrives in, as one event."""
        first, growth = self._line()
        begin = max(self.now, self.chip_free)
        steps = room
        if self._inbox:
            until = min(until, self._inbox[0][0])
        if until < NEVER:
            steps = min(room, self._steps_before(until, begin, first, growth))
        step = self.policy.decode_run(steps)
        end = begin + first * steps + growth * (steps * (steps - 1) / 2)
        self.steps += steps
        self.decoded_run(step, begin + first, first, growth, steps)
        if self.policy.depth > 1 and steps > 1:
            if self.pending is not None:
                self._settle()
            self.now = max(self.now, end - first - growth * (steps - 1))
        self._advance(step, end)

    def _steps_before(self, arrival: float, begin: float, first: float, growth: float) -> int:
        """Steps whose scheduling is over before that arrival: one more than end before it, two with one in flight."""
        ahead = 1
        if self.policy.depth > 1:
            if self.pending is not None and self.pending[1] >= arrival:
                return 1
            ahead = 2
        room = arrival - begin
        if room <= first:
            return ahead
        half = first - growth / 2
        ended = int((math.sqrt(half * half + 2 * growth * room) - half) / growth) if growth else int(room / first)
        return ahead + ended


def step_seconds(step: Step, cost: StepCost) -> tuple[float, float]:
    """(seconds, of these what prefill chunks added to the decodes) of a step.

    All of it counts as added where prefill runs alone while others wait to decode. Tokens that another engine has
    computed are not computed again.
    """
    if step.empty:
        return 0.0, 0.0
    fixed, per_token = cost.decode_line(step.decodes) if step.decodes else (0.0, 0.0)
    alone = fixed + per_token * step.kv_tokens
    if not step.chunks:
        return alone, 0.0
    mixed = cost.mixed_step_seconds([_chunk_tokens(chunk) for chunk in step.chunks], step.decodes, step.kv_tokens)
    return mixed, mixed - alone


def _chunk_tokens(chunk: Chunk) -> tuple[int, int]:
    """(tokens, context) of a chunk that are computed here."""
    sent = chunk.state.remote - chunk.context
    if sent <= 0:
        return chunk.tokens, chunk.context
    sent = min(sent, chunk.tokens - 1)
    return chunk.tokens - sent, chunk.context + sent


def refuse(given: str) -> NoReturn:
    """Requests that no engine here can serve."""
    raise InputError(
        Problem(
            path="requests",
            given=given,
            expected="requests that the engine can serve",
            todo="give the engine more blocks or a larger token budget, or leave the request out",
        )
    )
