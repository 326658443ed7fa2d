"""What a step costs in seconds, as whoever prices it hands it in: the simulator knows no model and no chip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ridgeline.core.records import dataclass


class StepCost(Protocol):
    """Seconds of an engine step.

    A step of pure decode is a straight line in the cached tokens it reads, so that a run of such steps, each reading
    one token more per request, has a closed form.
    """

    def decode_line(self, decodes: int) -> tuple[float, float]:
        """(seconds, seconds per cached token read) of a step that decodes that many requests and nothing else."""

    def mixed(self, chunks: Sequence[tuple[int, int]], decodes: int, kv_tokens: int) -> float:
        """Seconds of a step with prefill: (tokens, context before them) of each chunk, and the decodes beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearStepCost:
    """A step cost of five numbers, in seconds.

        seconds = step + decode x requests + kv x cached tokens read + prefill x tokens + attention x pairs

    pairs = prompt tokens x tokens each attends to: t x (context + t / 2) of a chunk of t. What it leaves out is
    everything that is not linear: tiles, graph sizes, the ridge between memory and compute.
    """

    step_s: float
    decode_s: float = 0.0
    kv_token_s: float = 0.0
    prefill_token_s: float = 0.0
    attention_pair_s: float = 0.0

    def decode_line(self, decodes: int) -> tuple[float, float]:
        return self.step_s + self.decode_s * decodes, self.kv_token_s

    def mixed(self, chunks: Sequence[tuple[int, int]], decodes: int, kv_tokens: int) -> float:
        seconds = self.step_s + self.decode_s * decodes + self.kv_token_s * kv_tokens
        for tokens, context in chunks:
            seconds += tokens * (self.prefill_token_s + self.attention_pair_s * (context + tokens / 2))
        return seconds
