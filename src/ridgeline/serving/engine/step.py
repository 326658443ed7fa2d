"""One engine step as a scheduler decides it, the state of a request inside an engine, and what a policy must offer.

`DecodeClock` is what policies count decodes with, `StaticBatcher` the plainest policy.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import field
from operator import attrgetter
from typing import Protocol

from ridgeline.core.records import dataclass
from ridgeline.serving.engine.block_pool import Span
from ridgeline.serving.request import Request


@dataclass(slots=True, eq=False)
class RequestState:
    """A request inside an engine: what it holds, how far it is, and when things happened to it.

    While it decodes, its computed tokens are `offset + clock`, where the clock counts the engine's decode steps: a
    step moves every decoding request without touching any.
    """

    request: Request
    arrival: int
    priority: int = field(init=False)
    prompt_tokens: int = field(init=False)
    known: int = field(init=False)
    computed: int = 0
    offset: int = 0
    decoding: bool = False
    order: int = 0
    target: int = 0
    blocks: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    quotes_answer: bool = False
    slots: int = 0
    held: int = 0  # tokens that a radix tree holds for it
    node: object = None
    hit_tokens: int = 0
    remote: int = 0  # tokens whose cache another engine sent
    preemptions: int = 0
    first_scheduled_s: float = -1.0
    first_token_s: float = -1.0
    last_token_s: float = 0.0
    sent_s: float = 0.0
    first_hit_tokens: int = 0
    preempted_s: float = 0.0
    stalled_mark_s: float = 0.0
    stalled_s: float = 0.0
    prefilled_s: float = 0.0  # spent on another engine's prefill
    transfer_s: float = 0.0

    def __post_init__(self) -> None:
        self.priority = self.request.priority
        self.prompt_tokens = self.known = self.request.prompt_tokens


by_order = attrgetter("order")
"""Running requests stand in the order of their admission."""


@dataclass(slots=True)
class Chunk:
    """Prompt tokens of one request computed in one step, after `context` tokens already in the cache."""

    state: RequestState
    tokens: int
    context: int
    last: bool
    """Whether the prompt is complete after it, so that the step samples a token for this request."""


class Step:
    """What one engine step executes.

    chunks     prompt tokens, request by request in order
    admitted   requests that begin with this step, again after a preemption
    decodes    requests that compute one token each
    kv_tokens  tokens these read from the cache, all together (their new one included)
    wasted     those of them that compute past the end of their answer (an end not known yet)
    joined     those of them that did not decode in the last decode step
    decoded    all of them in order, where the policy walked them one by one
    idle       running requests that compute nothing, for lack of budget or because they wait for their result
    preempted  requests that lost their cache and wait again
    finishing  requests whose last token this step computes
    """

    __slots__ = (
        "admitted", "chunks", "decoded", "decodes", "finishing", "idle", "joined", "kv_tokens", "preempted", "wasted",
    )  # fmt: skip

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.admitted: list[RequestState] = []
        self.decodes = 0
        self.kv_tokens = 0
        self.wasted = 0
        self.joined: list[RequestState] = []
        self.decoded: list[RequestState] | None = None
        self.idle: list[RequestState] = []
        self.preempted: list[RequestState] = []
        self.finishing: list[RequestState] = []

    @property
    def empty(self) -> bool:
        return not self.decodes and not self.chunks


class Policy(Protocol):
    """A scheduler as a state machine: requests enter, steps leave, results come back."""

    depth: int
    """Steps scheduled before the result of the first is known: 1, or 2 with asynchronous scheduling."""

    def add(self, request: Request) -> RequestState: ...

    def schedule(self) -> Step: ...

    def update(self, step: Step) -> Sequence[RequestState]:
        """Take back the result of a step; the requests that are finished by it."""

    def decode_room(self, limit: int) -> int:
        """How many of the next `limit` steps are pure decode of the same requests, whatever time they take."""

    def decode_load(self) -> tuple[int, int]:
        """How many requests decode, and how many tokens of theirs are in the cache."""

    def decode_run(self, steps: int) -> Step:
        """That many steps at once, as the last of them: `decode_room` said that they are alike."""

    def load(self) -> tuple[int, int]:
        """How many requests wait, and how many run."""

    def occupancy(self) -> float:
        """Share of the KV cache that requests hold; what only waits to be hit again is free."""

    @property
    def has_unfinished(self) -> bool: ...

    def become_idle(self) -> None:
        """Nothing is left to do before the next arrival."""

    def close(self) -> None:
        """No step follows: part what refers to itself in a circle, so that it is freed without being looked for."""


class DecodeClock:
    """Decoding requests without touching any: a clock that counts decode steps, and who needs something at which tick.

    A decoding request has computed `offset + now` tokens. It needs a block whenever that is a multiple of the block
    size, so requests fall into as many phases as a block has tokens, and it ends at a tick known when it starts.
    `results_late` says that a step is scheduled before the result of the one before is known (asynchronous scheduling):
    an answer that ends before its `max_new_tokens` then computes one token that nobody gets.
    """

    def __init__(self, block_size: int, *, results_late: bool) -> None:
        self.now = 0
        self.count = 0
        self.kv_tokens = 0
        """Computed tokens of all decoding requests together."""
        self.joining: list[RequestState] = []
        """Those that did not decode in the last decode step."""
        self._block = block_size
        self._late = results_late
        self._phases: list[list[RequestState]] = [[] for _ in range(block_size)]
        self._ends: dict[int, list[RequestState]] = {}
        self._end_times: list[int] = []
        self._overrunning: list[RequestState] = []

    def computed_tokens(self, state: RequestState) -> int:
        """Tokens of a request that are computed or being computed."""
        return state.offset + self.now if state.decoding else state.computed

    # ---- who decodes

    def start(self, state: RequestState, step: Step) -> None:
        """A prompt is computed and the step samples: it decodes from the next step on, if more is to come."""
        if state.computed >= state.target:
            step.finishing.append(state)
            if self._foreseen(state):
                return
            self._overrunning.append(state)
        self._join(state)

    def _join(self, state: RequestState) -> None:
        """It decodes from the next tick on."""
        state.decoding = True
        self.count += 1
        self.kv_tokens += state.computed
        self.joining.append(state)
        self._place(state, state.computed - self.now)

    def stop(self, state: RequestState) -> None:
        """It decodes no more; its computed tokens stand."""
        self._phases[-state.offset % self._block].remove(state)
        end = state.target - state.offset
        if end in self._ends and state in self._ends[end]:
            self._ends[end].remove(state)
            if not self._ends[end]:
                del self._ends[end]
                self._end_times.remove(end)
                heapq.heapify(self._end_times)
        state.computed = state.offset + self.now
        state.decoding = False
        self.count -= 1
        self.kv_tokens -= state.computed
        if self.joining and state in self.joining:
            self.joining.remove(state)

    def _foreseen(self, state: RequestState) -> bool:
        return not self._late or state.request.output_tokens >= state.request.max_new_tokens

    def _place(self, state: RequestState, offset: int) -> None:
        state.offset = offset
        phase = self._phases[-offset % self._block]
        if phase and phase[-1].order > state.order:
            insort(phase, state, key=by_order)
        else:
            phase.append(state)
        end = state.target - offset
        if end > self.now:
            if end not in self._ends:
                self._ends[end] = []
                heapq.heappush(self._end_times, end)
            self._ends[end].append(state)

    # ---- time passes

    def tick(self, step: Step, idle: list[RequestState] | None = None) -> None:
        """Every decoding request computes one token, except the idle ones."""
        for state in idle or ():
            self.stop(state)
        self.now += 1
        step.decodes = self.count
        self.kv_tokens += self.count
        step.kv_tokens = self.kv_tokens
        step.joined, self.joining = self.joining, []
        if self._overrunning:
            over = [state for state in self._overrunning if state.decoding]
            step.wasted = len(over)
            step.joined = [state for state in step.joined if state not in over]
            self._overrunning = []
        ended = self._ends.pop(self.now, None)
        if ended is not None:
            heapq.heappop(self._end_times)
            step.finishing = ended
            for state in ended:
                if self._foreseen(state):
                    self.stop(state)
                else:
                    self._overrunning.append(state)
        for state in idle or ():
            self._join(state)

    def skip(self, steps: int) -> None:
        """That many ticks in which nothing but computing happens."""
        self.now += steps
        self.kv_tokens += self.count * steps

    # ---- what comes

    def needing(self) -> list[RequestState]:
        """Who needs a block at the next tick, in the order of admission."""
        return self._phases[self.now % self._block]

    def needing_within(self, steps: int) -> list[RequestState]:
        """Who needs a block during that many ticks, tick by tick: a request may stand there several times."""
        phases, block = self._phases, self._block
        states: list[RequestState] = []
        for tick in range(self.now, self.now + steps):
            states += phases[tick % block]
        return states

    def steps_to_end(self, limit: int) -> int:
        """Steps until a request ends, the one that ends it included; at most `limit`."""
        return min(limit, self._end_times[0] - self.now) if self._end_times else limit

    def steps_within(self, blocks: int, limit: int) -> int:
        """Steps that this many free blocks suffice for; at most `limit`."""
        if blocks * self._block > self.count * (limit + self._block):
            return limit
        for steps in range(limit):
            blocks -= len(self._phases[(self.now + steps) % self._block])
            if blocks < 0:
                return steps
        return limit


class ClockedPolicy:
    """What policies share that count their decodes with a clock."""

    depth = 1

    def __init__(self, block_size: int, *, results_late: bool = False) -> None:
        self._clock = DecodeClock(block_size, results_late=results_late)
        self._arrivals = 0

    def _arrive(self, request: Request, most_tokens: int) -> RequestState:
        """The state of a request that arrives, which answers with at most so many tokens."""
        state = RequestState(request, self._arrivals)
        self._arrivals += 1
        state.target = state.prompt_tokens + max(1, min(request.output_tokens, most_tokens)) - 1
        return state

    def computed_tokens(self, state: RequestState) -> int:
        """Tokens of a request that are computed or being computed."""
        return self._clock.computed_tokens(state)

    def decode_load(self) -> tuple[int, int]:
        return self._clock.count, self._clock.kv_tokens

    def decode_run(self, steps: int) -> Step:
        """That many steps at once, as the last of them."""
        step = Step()
        self._clock.skip(steps - 1)
        self._clock.tick(step)
        return step

    def become_idle(self) -> None:
        """An idle engine remembers its cache, if any, and nothing else changes."""

    def close(self) -> None:
        """Nothing here refers to itself."""


class StaticBatcher(ClockedPolicy):
    """What serving looked like before continuous batching, and a bound to compare with.

    It takes up to `batch_size` waiting requests, computes their prompts in one step, then decodes until every one has
    ended; nobody joins in between. Answers that have ended cost nothing more, their places stay empty.
    """

    def __init__(self, batch_size: int) -> None:
        super().__init__(1)
        self.batch_size = batch_size
        self._waiting: deque[RequestState] = deque()

    def add(self, request: Request) -> RequestState:
        state = self._arrive(request, request.output_tokens)
        state.order = state.arrival
        self._waiting.append(state)
        return state

    @property
    def has_unfinished(self) -> bool:
        return bool(self._waiting or self._clock.count)

    def load(self) -> tuple[int, int]:
        return len(self._waiting), self._clock.count

    def occupancy(self) -> float:
        return self._clock.count / self.batch_size

    def schedule(self) -> Step:
        """A step of the batch, or the prompts of the next one."""
        step = Step()
        if self._clock.count:
            self._clock.tick(step)
            return step
        for _ in range(min(self.batch_size, len(self._waiting))):
            state = self._waiting.popleft()
            state.computed = state.prompt_tokens
            step.admitted.append(state)
            step.chunks.append(Chunk(state, state.prompt_tokens, 0, last=True))
            self._clock.start(state, step)
        return step

    def update(self, step: Step) -> list[RequestState]:
        return step.finishing

    def decode_room(self, limit: int) -> int:
        """Steps until an answer ends."""
        return self._clock.steps_to_end(limit) if self._clock.count else 0
