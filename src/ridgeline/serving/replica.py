"""Turn a scheduler and the cost of a step into an engine with a clock; its ranks may step together.

An engine writes down what happens to its requests: first tokens, pauses, stalls, ends. It may give a run up once its
objective cannot be kept, for those who only ask whether it is.

Ranks step together under data-parallel attention and expert parallelism: a step is as long as that of the busiest.
Every rank has a scheduler, a cache and requests of its own. A rank without work runs a dummy batch, so that the
exchanges of the others do not wait for it for ever. Requests go to the rank where 4 x waiting + running is least, as
vLLM's front end deals them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from math import floor, inf
from typing import NoReturn

from ridgeline.core.errors import InputError, Problem
from ridgeline.plan.workload import Objective
from ridgeline.serving.engine.step import Chunk, Policy, RequestState, Step
from ridgeline.serving.request import Request
from ridgeline.serving.served import TokenGaps
from ridgeline.serving.step_cost import StepCost


class SloMissed(Exception):
    """More requests have missed a limit than its percentile allows: which one, and the last one's time over it."""

    def __init__(self, limit: str, over: float) -> None:
        super().__init__(limit, over)
        self.limit, self.over = limit, over


class SloBudget:
    """Requests of a run that took longer than an objective's TTFT, TPOT or E2E allows; ITL is not watched.

    A percentile p of n times interpolates between the sorted ones around place p / 100 x (n - 1), so it lies above a
    limit for sure once n - floor(p / 100 x (n - 1)) of them do.
    """

    __slots__ = ("_before", "_e2e", "_left", "_tpot", "_ttft")

    def __init__(self, objective: Objective, requests: Sequence[Request], before_s: float = 0.0) -> None:
        """`before_s` passes between sending and the engine's queue, and counts."""
        self._ttft, self._tpot, self._e2e = (
            inf if one is None else one for one in (objective.ttft, objective.tpot, objective.e2e)
        )
        self._before = before_s
        several = sum(request.output_tokens > 1 for request in requests)
        many = {"ttft": len(requests), "tpot": several, "e2e": len(requests)}
        self._left = {name: n - floor(objective.percentile / 100.0 * (n - 1)) for name, n in many.items()}

    def first_token(self, seconds: float) -> None:
        """A first token came so long after its request was queued."""
        if seconds + self._before > self._ttft:
            self._missed("ttft", (seconds + self._before) / self._ttft)

    def last_token(self, e2e_s: float, after_first_s: float, output_tokens: int) -> None:
        """An answer is whole, so long after its request was queued and after its first token."""
        if output_tokens > 1 and after_first_s / (output_tokens - 1) > self._tpot:
            self._missed("tpot", after_first_s / (output_tokens - 1) / self._tpot)
        if e2e_s + self._before > self._e2e:
            self._missed("e2e", (e2e_s + self._before) / self._e2e)

    def _missed(self, limit: str, over: float) -> None:
        self._left[limit] -= 1
        if self._left[limit] <= 0:
            raise SloMissed(limit, over)


class TokenNotes:
    """When tokens of one scheduler's requests came, and what kept them.

    last_decode_s   end of the last step that decoded
    stall_s         seconds that prefill chunks have added to steps so far
    done, done_s    finished requests, and when
    misses          told of first tokens, where a run may be given up
    """

    __slots__ = ("done", "done_s", "gaps", "last_decode_s", "misses", "stall_s")

    def __init__(self) -> None:
        self.last_decode_s = self.stall_s = 0.0
        self.gaps = TokenGaps()
        self.done: list[RequestState] = []
        self.done_s: list[float] = []
        self.misses: SloBudget | None = None

    def note(self, step: Step, begin: float, end: float) -> None:
        """Write down what a step meant for the requests in it, except pure decodes."""
        for state in step.preempted:
            if state.first_token_s >= 0:  # time is lost from its last token on, or is prefill where it had none yet
                state.last_token_s = max(self.last_decode_s, state.last_token_s)
                state.stalled_s += self.stall_s - state.stalled_mark_s
        for state in step.idle:
            state.last_token_s = self.last_decode_s
        if step.decodes:
            self.decoded(step, end)
        for state in step.admitted:
            if state.first_scheduled_s < 0:
                state.first_scheduled_s = begin
                state.first_hit_tokens = state.hit_tokens
        for chunk in step.chunks:
            if chunk.last:
                self._first_token(chunk.state, end)
        for state in step.finishing:
            state.stalled_s += self.stall_s - state.stalled_mark_s

    def decoded(self, step: Step, end: float) -> None:
        """A step decoded: one pause of everybody in it ends."""
        others = step.decodes - step.wasted - len(step.joined)
        if others:
            self.gaps.add(end - self.last_decode_s, others)
        for state in step.joined:
            self.gaps.add(end - state.last_token_s, 1)
        self.last_decode_s = end

    def decoded_run(self, step: Step, one: float, first: float, growth: float, steps: int) -> None:
        """So many decode steps: the first ends at `one` and took `first`, each takes `growth` more."""
        decodes = step.decodes
        self.decoded(step, one)
        if steps > 1:
            self.gaps.add_run(first + growth, growth, steps - 1, decodes)
            self.last_decode_s = one + first * (steps - 1) + growth * (steps * (steps - 1) / 2)
        for state in step.finishing:
            state.stalled_s += self.stall_s - state.stalled_mark_s

    def _first_token(self, state: RequestState, end: float) -> None:
        if state.first_token_s < 0:
            state.first_token_s = end
            if self.misses is not None:
                self.misses.first_token(end - state.sent_s)
        else:
            self.gaps.add(end - state.last_token_s, 1)
            state.preempted_s += end - state.last_token_s
        state.last_token_s = end
        state.stalled_mark_s = self.stall_s


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

    def watch_misses(self, misses: SloBudget) -> None:
        """Tell of first tokens, so that the run can be given up."""
        self.misses = misses

    def add(self, request: Request, at: float) -> None:
        """A request is sent to this engine at a time that is not past."""
        heapq.heappush(self._inbox, (at, self._sequence, request))
        self._sequence += 1

    def load(self) -> tuple[int, int]:
        """How many requests wait, those on their way among them, and how many run."""
        waiting, running = self.policy.load()
        return waiting + len(self._inbox), running

    @property
    def idle(self) -> bool:
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
        return decode_line(self.policy, self.cost)

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


def decode_line(policy: Policy, cost: StepCost) -> tuple[float, float]:
    """Seconds of a scheduler's next decode step, and how much longer each one after it takes."""
    decodes, kv_tokens = policy.decode_load()
    fixed, per_token = cost.decode_line(decodes)
    return fixed + per_token * (kv_tokens + decodes), per_token * decodes


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
    todo = "give the engine more blocks or a larger token budget, or leave the request out"
    raise InputError(Problem(path="requests", given=given, expected="requests that the engine can serve", todo=todo))


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

    def watch_misses(self, misses: SloBudget) -> None:
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

    def _line(self) -> tuple[float, float]:
        """That of the slowest rank; as `_room`, which is asked right before, found it."""
        return self._slowest

    def _room(self) -> int:
        """Steps in which the rank that is slowest now stays the slowest."""
        room = super()._room()
        if room > 1:
            lines = [decode_line(policy, self.cost) for policy in self.ranks.policies if policy.has_unfinished]
            first, growth = self._slowest = max(lines)
            for other, faster in lines:
                if faster > growth:
                    room = min(room, max(int((first - other) / (faster - growth)), 1))
        return room


def replica_of(policies: Sequence[Policy], cost: StepCost) -> Replica:
    """One engine, or several ranks that step together."""
    return Replica(policies[0], cost) if len(policies) == 1 else Lockstep(Ranks(policies), cost)
