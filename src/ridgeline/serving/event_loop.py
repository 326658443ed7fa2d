"""Turn requests, a scheduler and the cost of a step into what became of every request: one engine, one clock.

    arrivals <= now  ->  schedule  ->  the step runs on the chip  ->  its tokens are out at its end  ->  update

With asynchronous scheduling a step is decided while the one before it runs, so `now` is one step behind the chip. Runs
of pure decode are one event: their length follows from the next arrival, the next finish and the free blocks, their
time from the line of the step cost.
"""

from __future__ import annotations

import gc
import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from ridgeline.core.errors import InputError, Problem
from ridgeline.serving.request import Request
from ridgeline.serving.served import Served, TokenGaps, served_columns
from ridgeline.serving.step import Policy, RequestState, Step
from ridgeline.serving.step_cost import StepCost

LONGEST_RUN = 1 << 30


def simulate(requests: Iterable[Request], policy: Policy, cost: StepCost, *, collapse: bool = True) -> Served:
    """Serve requests on one engine.

    `collapse` off schedules every single step: slower, and the same to within rounding of the clock.
    """
    with _collector_paused():
        return _Engine(requests, policy, cost).run(collapse=collapse)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """No cycle of references dies during a run: looking for them costs a fifth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Engine:
    """The clock of one engine and what it has noted so far."""

    def __init__(self, requests: Iterable[Request], policy: Policy, cost: StepCost) -> None:
        self.policy, self.cost = policy, cost
        self.arrivals: list[tuple[float, int, Request]] = []
        self.followers: dict[str, list[Request]] = defaultdict(list)
        self.sequence = 0
        for request in requests:
            if request.after is None:
                self.arrivals.append((request.arrival_s, self.sequence, request))
                self.sequence += 1
            else:
                self.followers[request.after].append(request)
        heapq.heapify(self.arrivals)
        self.now = self.chip_free = self.last_decode_s = self.stall_s = 0.0
        self.pending: tuple[Step, float] | None = None
        self.gaps = TokenGaps()
        self.done: list[RequestState] = []
        self.done_s: list[float] = []
        self.steps = self.events = 0

    def run(self, *, collapse: bool) -> Served:
        policy = self.policy
        while True:
            self._arrive()
            if not policy.unfinished:
                if self.pending is not None:
                    self._settle()
                elif self.arrivals:
                    self.now = self.arrivals[0][0]
                else:
                    break
                continue
            self.events += 1
            room = policy.decode_room(LONGEST_RUN) if collapse and self._alike() else 0
            if room > 1:
                self._decode_run(room)
            else:
                self._one_step()
        self._nobody_left()
        return served_columns(self.done, self.done_s, self.gaps, steps=self.steps, events=self.events)

    def _arrive(self) -> None:
        arrivals = self.arrivals
        while arrivals and arrivals[0][0] <= self.now:
            sent, _, request = heapq.heappop(arrivals)
            self.policy.add(request).sent_s = sent

    def _alike(self) -> bool:
        """Whether the step in flight ends nobody, so that the ones after it can be like it."""
        return self.pending is None or not self.pending[0].finishing

    # ---- one step

    def _one_step(self) -> None:
        step = self.policy.schedule()
        if step.empty and not step.preempted:
            if self.pending is None:
                _refuse("a request that never fits: nothing runs and nothing can be scheduled")
            self._settle()
            return
        begin = max(self.now, self.chip_free)
        end = begin + self._seconds(step)
        self.steps += not step.empty
        self._note(step, begin, end)
        self._advance(step, end)

    def _seconds(self, step: Step) -> float:
        if step.empty:
            return 0.0
        fixed, per_token = self.cost.decode_line(step.decodes) if step.decodes else (0.0, 0.0)
        alone = fixed + per_token * step.kv_tokens
        if not step.chunks:
            return alone
        mixed = self.cost.mixed([(chunk.tokens, chunk.context) for chunk in step.chunks], step.decodes, step.kv_tokens)
        self.stall_s += mixed - alone  # all of it where prefill runs alone while others wait to decode
        return mixed

    def _note(self, step: Step, begin: float, end: float) -> None:
        """Write down what a step meant for the requests in it, except pure decodes."""
        for state in step.preempted:
            self._drop(state)
        for state in step.idle:
            state.last_token_s = self.last_decode_s
        if step.decodes:
            self._decoded(step, end)
        for state in step.admitted:
            if state.first_scheduled_s < 0:
                state.first_scheduled_s = begin
                state.first_hit_tokens = state.hit_tokens
        for chunk in step.chunks:
            if chunk.last:
                self._first_token(chunk.state, end)
        for state in step.finishing:
            state.stalled_s += self.stall_s - state.stalled_mark_s

    def _decoded(self, step: Step, end: float) -> None:
        others = step.decodes - step.wasted - len(step.joined)
        if others:
            self.gaps.add(end - self.last_decode_s, others)
        for state in step.joined:
            self.gaps.add(end - state.last_token_s, 1)
        self.last_decode_s = end

    def _first_token(self, state: RequestState, end: float) -> None:
        if state.first_token_s < 0:
            state.first_token_s = end
        else:
            self.gaps.add(end - state.last_token_s, 1)
            state.preempted_s += end - state.last_token_s
        state.last_token_s = end
        state.stalled_mark_s = self.stall_s

    def _drop(self, state: RequestState) -> None:
        """Preempted: time counts as lost from its last token on, or as prefill where it had none yet."""
        if state.first_token_s >= 0:
            state.last_token_s = max(self.last_decode_s, state.last_token_s)
            state.stalled_s += self.stall_s - state.stalled_mark_s

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
            for request in self.followers.pop(state.request.id, ()):
                heapq.heappush(self.arrivals, (end + request.arrival_s, self.sequence, request))
                self.sequence += 1

    # ---- runs of pure decode

    def _decode_run(self, room: int) -> None:
        """As many of these steps as nobody arrives in, as one event."""
        decodes, kv_tokens = self.policy.decode_load()
        fixed, per_token = self.cost.decode_line(decodes)
        first = fixed + per_token * (kv_tokens + decodes)
        growth = per_token * decodes
        begin = max(self.now, self.chip_free)
        steps = room
        if self.arrivals:
            steps = min(room, self._steps_before(self.arrivals[0][0], begin, first, growth))
        step = self.policy.decode_run(steps)
        one = begin + first
        end = begin + first * steps + growth * (steps * (steps - 1) / 2)
        self.steps += steps
        self._decoded(step, one)
        if steps > 1:
            self.gaps.add_run(first + growth, growth, steps - 1, decodes)
        self.last_decode_s = end
        for state in step.finishing:
            state.stalled_s += self.stall_s - state.stalled_mark_s
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

    # ---- ends

    def _nobody_left(self) -> None:
        if self.followers:
            name = next(iter(self.followers))
            _refuse(f"a request after {name!r}, which is not among the requests or never ends")


def _refuse(given: str) -> NoReturn:
    raise InputError(
        Problem(
            path="requests",
            given=given,
            expected="requests that the engine can serve",
            todo="give the engine more blocks or a larger token budget, or leave the request out",
        )
    )
