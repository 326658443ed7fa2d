"""What a caller may hand to a long search: who is told how far it is, and may stop it.

A search reads no clock and catches no signal. It tells its progress between pieces of work, a chunk of a few thousand
plans or one simulation each. Whoever is told may answer False: the search then ends and returns what it has, marked as
not complete. Any other answer, None too, means to go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from ridgeline.core.records import dataclass

SweepProgress = Callable[[int, float], bool | None]  # plans priced so far, step of the best of them; False stops
GoOn = Callable[[str], bool]  # what is tried next; whether to
Phase = Literal["search", "explain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a recommendation is.

    phase     search: spaces are swept; explain: the winner is simulated, refined and compared
    what      the system that is searched, or what is tried next
    priced    plans priced so far on that system, or replicas and fleets simulated
    best_s    step of the fastest feasible one among them, infinite before there is one
    best      the best deployment so far in words, empty before there is one
    """

    phase: Phase
    what: str
    priced: int = 0
    best_s: float = float("inf")
    best: str = ""


Watch = Callable[[Progress], bool | None]  # False stops


class Stoppable:
    """Whether to go on: what is tried next is told, and once the answer was False it stays so.

    watch    who is told; None: stopped from the start
    priced   how many were priced or simulated so far
    best     the best of them in words
    """

    def __init__(
        self,
        watch: Watch | None,
        phase: Phase = "explain",
        priced: Callable[[], int] = int,
        best: Callable[[], str] = str,
    ) -> None:
        self._watch, self._phase, self._priced, self._best = watch, phase, priced, best
        self.stopped = watch is None

    def __call__(self, what: str) -> bool:
        if self._watch is not None and not self.stopped:
            progress = Progress(phase=self._phase, what=what, priced=self._priced(), best=self._best())
            self.stopped = self._watch(progress) is False
        return not self.stopped


def silent(priced: int, best_s: float) -> None:
    """Nobody is told of a sweep."""


def always(what: str) -> bool:  # noqa: ARG001
    """Nobody stops it."""
    return True


def ignore_progress(progress: Progress) -> None:
    """Nobody is told of a recommendation."""
