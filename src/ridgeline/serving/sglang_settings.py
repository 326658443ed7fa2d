"""The knobs of an SGLang engine that its scheduler reads, and the estimate of how much answers will still grow."""

from __future__ import annotations

from typing import Literal

from ridgeline.core.records import dataclass

FIRST_RATIO = 0.7  # SGLANG_INIT_NEW_TOKEN_RATIO
LEAST_RATIO = 0.14  # of the first one
DECAY_STEPS = 600  # decode steps from the first ratio to the least
RETRACT_STEPS = 20  # decode steps that a retraction makes room for
MOST_NEW_TOKENS = 4096  # an answer counts no more than this in admission


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangSettings:
    """One engine's scheduler knobs, named as SGLang's arguments are; `chunked_prefill_size` 0 turns chunking off."""

    max_total_tokens: int
    max_running_requests: int = 2048
    chunked_prefill_size: int = 8192
    max_prefill_tokens: int = 16384
    page_size: int = 1
    radix_cache: bool = True
    ignore_eos: bool = False
    overlap: bool = False
    """A step is decided before the last one's result is known, as SGLang does unless `--disable-overlap-schedule`:
    asks for the scheduler of `sglang_overlap`."""
    schedule_conservativeness: float = 1.0
    policy: Literal["fcfs", "lpm", "lof"] = "fcfs"
    priority_scheduling: bool = False
    """Larger priority values first, as `--enable-priority-scheduling` has it."""
    priority_preemption: bool = False
    """A waiting request may take the seat of running ones, as that switch implies unless told otherwise."""
    priority_preemption_threshold: int = 10
    """By how much its priority must be larger."""


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
