"""The knobs of an SGLang engine that its scheduler reads, and the estimate of how much answers will still grow."""

from __future__ import annotations

from ridgeline.core.records import dataclass
from ridgeline.plan.serving_plan import SglangKnobs

FIRST_RATIO = 0.7  # SGLANG_INIT_NEW_TOKEN_RATIO
LEAST_RATIO = 0.14  # of the first one
DECAY_STEPS = 600  # decode steps from the first ratio to the least
RETRACT_STEPS = 20  # decode steps that a retraction makes room for
MOST_NEW_TOKENS = 4096  # an answer counts no more than this in admission


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangSettings(SglangKnobs):
    """Arguments of an engine with nothing left open; `chunked_prefill_size` 0 turns chunking off.

    Unless `disable_overlap_schedule` a step is decided before the last one's result is known (`sglang_overlap`).
    """

    max_total_tokens: int
    max_running_requests: int = 2048
    chunked_prefill_size: int = 8192
    priority_scheduling_preemption_threshold: int = 10
    ignore_eos: bool = False

    @property
    def priority_preemption(self) -> bool:
        """Whether a waiting request may take the seat of running ones."""
        return bool(self.enable_priority_scheduling) and not self.disable_priority_preemption

    @property
    def step_limits(self) -> tuple[int, int]:
        """Tokens of a step, and requests that run together."""
        return self.chunked_prefill_size or self.max_prefill_tokens, self.max_running_requests


class NewTokenRatio:
    """The share of their allowance that running answers are expected to use: decays, jumps up after a retraction."""

    __slots__ = ("_decay", "_first", "_least", "current")

    def __init__(self, conservativeness: float) -> None:
        self._first = min(FIRST_RATIO * conservativeness, 1.0)
        self._least = min(self._first * LEAST_RATIO, 1.0)
        self._decay = (self._first - self._least) / DECAY_STEPS
        self.current = self._first

    def decay(self, steps: int = 1) -> None:
        """That many decode steps without a retraction."""
        for _ in range(steps):
            if self.current <= self._least:
                break
            self.current = max(self.current - self._decay, self._least)

    def reset(self) -> None:
        """The engine is idle."""
        self.current = self._first

    def after_retraction(self, produced: int, allowed: int, requests: int) -> None:
        """(produced + 20 n) / (allowed + 1) over the requests that stay, at most 1."""
        self.current = min(1.0, (produced + RETRACT_STEPS * requests) / (allowed + 1))
