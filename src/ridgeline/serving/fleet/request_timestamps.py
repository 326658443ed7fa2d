"""What an engine writes down about its requests while steps run: first tokens, pauses, stalls, ends."""

from __future__ import annotations

from ridgeline.serving.engine.step import RequestState, Step
from ridgeline.serving.fleet.slo_abort import Misses
from ridgeline.serving.served import TokenGaps


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
        self.misses: Misses | None = None

    def note(self, step: Step, begin: float, end: float) -> None:
        """Write down what a step meant for the requests in it, except pure decodes."""
        for state in step.preempted:
            self._drop(state)
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

    def _drop(self, state: RequestState) -> None:
        """Preempted: time counts as lost from its last token on, or as prefill where it had none yet."""
        if state.first_token_s >= 0:
            state.last_token_s = max(self.last_decode_s, state.last_token_s)
            state.stalled_s += self.stall_s - state.stalled_mark_s
