"""Decoding requests without touching any: a clock that counts decode steps, and who needs something at which tick.

A decoding request has computed `offset + now` tokens. It needs a block whenever that is a multiple of the block size,
so requests fall into as many phases as a block has tokens, and it ends at a tick known when it starts.
"""

from __future__ import annotations

import heapq
from bisect import insort

from ridgeline.serving.engine.step import RequestState, Step


class DecodeClock:
    """The decoding requests of an engine.

    `results_late` says that a step is scheduled before the result of the one before is known (asynchronous scheduling):
    an answer that ends before its `max_new_tokens` then computes one token that nobody gets.
    """

    __slots__ = (
        "_block",
        "_end_times",
        "_ends",
        "_late",
        "_overrunning",
        "_phases",
        "count",
        "joining",
        "kv_tokens",
        "now",
    )

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
        state.decoding = True
        self.count += 1
        self.kv_tokens += state.computed
        self.joining.append(state)
        self._place(state, state.computed - self.now)

    def stop(self, state: RequestState) -> None:
        """It decodes no more; its computed tokens stand."""
        self._displace(state)
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

    def _displace(self, state: RequestState) -> None:
        self._phases[-state.offset % self._block].remove(state)
        end = state.target - state.offset
        if end in self._ends and state in self._ends[end]:
            self._ends[end].remove(state)
            if not self._ends[end]:
                del self._ends[end]
                self._end_times.remove(end)
                heapq.heapify(self._end_times)

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
            self._discount(step)
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
            state.decoding = True
            self.count += 1
            self.kv_tokens += state.computed
            self.joining.append(state)
            self._place(state, state.computed - self.now)

    def _discount(self, step: Step) -> None:
        over = [state for state in self._overrunning if state.decoding]
        step.wasted = len(over)
        step.joined = [state for state in step.joined if state not in over]
        self._overrunning = []

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


def by_order(state: RequestState) -> int:
    """Running requests stand in the order of their admission."""
    return state.order
