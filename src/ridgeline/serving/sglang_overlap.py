"""SGLang's overlap scheduling (`event_loop_overlap`): a step is decided before the result of the last one is known.

Answers count one token less. One whose last token is under way by its `max_new_tokens` keeps its seat for as long as
that takes, but is left out of the next decode; one that stops by itself computes a token that nobody gets. Where a
decode does not fit while answers end, nothing runs until they have. A retracted answer loses its token under way.
"""

from __future__ import annotations

from ridgeline.serving.sglang_scheduler import SglangScheduler
from ridgeline.serving.sglang_settings import SglangSettings
from ridgeline.serving.step import RequestState, Step


class OverlapScheduler(SglangScheduler):
    """SGLang's scheduler one step ahead of its results, as it runs unless `--disable-overlap-schedule` is given."""

    depth = 2
    sampled = 0

    def produced(self, state: RequestState) -> int:
        """Tokens of its answer that are known."""
        computed = self._clock.computed(state)
        return (computed if state.decoding or computed >= state.known else state.known) - state.prompt_tokens

    def _joining(self) -> list[RequestState]:
        """All of the last prefill batch but what goes on in chunks: nobody knows yet who ended."""
        return [chunk.state for chunk in self._last_prefill if chunk.last]

    def _leave_out_ending(self) -> bool:
        """Answers whose last token is under way decode no more; whether there were any."""
        decoding = [state for state in self.running if state.decoding]
        if len(decoding) == len(self.running):
            return False
        self.running, self._full = decoding, False
        return True

    def _ended(self, step: Step) -> list[RequestState]:
        """Who ends by a step whose result came late: not who was retracted since."""
        ended = {id(state) for state in step.finishing}
        batch = [chunk.state for chunk in step.chunks] or step.decoded or ()
        finished = [one for one in batch if id(one) in ended and self._clock.computed(one) >= one.target]
        for state in finished:
            if state.decoding:
                self._clock.stop(state)
        self._last_prefill = [chunk for chunk in self._last_prefill if id(chunk.state) not in ended]
        return finished

    def decode_run(self, steps: int) -> Step:
        """That many pure decode steps at once; the last one's batch is kept where somebody ends by it."""
        step = super().decode_run(steps)
        if step.finishing:
            step.decoded = list(self.running)
        return step


def sglang_scheduler(settings: SglangSettings) -> SglangScheduler:
    """The scheduler that these settings ask for, with overlap or without."""
    return SglangScheduler(settings) if settings.disable_overlap_schedule else OverlapScheduler(settings)
