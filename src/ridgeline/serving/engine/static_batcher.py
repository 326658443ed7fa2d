"""A static batcher: the plainest policy, one batch at a time from the first prompt to the last answer.

It takes up to `batch_size` waiting requests, computes their prompts in one step, then decodes until every one has
ended; nobody joins in between. Answers that have ended cost nothing more, their places stay empty.
"""

from __future__ import annotations

from collections import deque

from ridgeline.serving.engine.decode_clock import DecodeClock
from ridgeline.serving.engine.step import Chunk, RequestState, Step
from ridgeline.serving.request import Request


class StaticBatcher:
    """What serving looked like before continuous batching, and a bound to compare with."""

    depth = 1

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self._waiting: deque[RequestState] = deque()
        self._clock = DecodeClock(1, results_late=False)
        self._arrivals = 0

    def add(self, request: Request) -> RequestState:
        """A request arrives at the engine."""
        state = RequestState(request, self._arrivals)
        state.order = self._arrivals
        self._arrivals += 1
        state.target = state.prompt_tokens + request.output_tokens - 1
        self._waiting.append(state)
        return state

    @property
    def has_unfinished(self) -> bool:
        return bool(self._waiting or self._clock.count)

    def become_idle(self) -> None:
        """Nothing is remembered between batches."""

    def close(self) -> None:
        """Nothing here refers to itself."""

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
        """Answers that ended are out."""
        return step.finishing

    def decode_room(self, limit: int) -> int:
        """Steps until an answer ends."""
        return self._clock.steps_to_end(limit) if self._clock.count else 0

    def decode_load(self) -> tuple[int, int]:
        return self._clock.count, self._clock.kv_tokens

    def decode_run(self, steps: int) -> Step:
        """That many steps of the batch at once, as the last of them."""
        step = Step()
        self._clock.skip(steps - 1)
        self._clock.tick(step)
        return step
