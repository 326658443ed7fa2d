"""Give a simulated run up once its objective cannot be kept any more, for those who only ask whether it is.

A percentile p of n times interpolates between the sorted ones around place p / 100 x (n - 1), so it lies above a limit
for sure once n - floor(p / 100 x (n - 1)) of them do.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, inf

from ridgeline.plan.serve import Objective
from ridgeline.serving.request import Request


class Hopeless(Exception):
    """More requests have missed a limit than its percentile allows: which one, and the last one's time over it."""

    def __init__(self, limit: str, over: float) -> None:
        super().__init__(limit, over)
        self.limit, self.over = limit, over


class Misses:
    """Requests of a run that took longer than an objective's TTFT, TPOT or E2E allows; ITL is not watched."""

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
            raise Hopeless(limit, over)
