"""Turn the outcomes of searches into what is recommended: the same steps whether a plan or a deployment is searched.

    request -> cases -> an outcome each: candidates, those that are feasible, priced, the best of them      search
            -> the outcome that the goal prefers, the Pareto front of all, reasons or what bars every one   explain

`training` and `deployment` fill it in: what a case is, how its space is searched, what is preferred and why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from ridgeline.core.errors import Problem
from ridgeline.core.records import NotebookValue, dataclass
from ridgeline.search.progress import Progress, Watch


class SearchOutcome(Protocol):
    """What the search of one case found."""

    @property
    def complete(self) -> bool:
        """False where it was stopped before all was tried."""


OutcomeT = TypeVar("OutcomeT", bound=SearchOutcome)
PointT = TypeVar("PointT")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchAnswer(NotebookValue):
    """What is recommended, and everything it was chosen from; a search adds these of its own types:

    request    what was asked
    outcomes   of every case that was searched, in that order
    chosen     the outcome the goal prefers; None where none qualifies
    reasons    for it; None where none is chosen
    frontier   the Pareto front of all that was found

    problems   why none is chosen; empty where one is, or where the search was stopped before
    complete   False where the search was stopped before all was priced
    """

    problems: tuple[Problem, ...]
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTime:
    """Seconds that a recommendation took, by whoever asked for it: wall and CPU of the search, wall of the reasons."""

    seconds: float
    cpu_seconds: float
    explain_seconds: float


def search_until_stopped(outcomes: Iterable[OutcomeT], watch: Watch) -> tuple[tuple[OutcomeT, ...], bool]:
    """The outcomes of one case after the other and whether all are complete; the watcher then hears of the reasons."""
    searched: list[OutcomeT] = []
    for outcome in outcomes:
        searched.append(outcome)
        if not outcome.complete:
            break
    watch(Progress(phase="explain", what="why the best is the best"))
    return tuple(searched), all(outcome.complete for outcome in searched)


def pareto_front(points: Iterable[PointT], amounts: Callable[[PointT], tuple[float, float]]) -> tuple[PointT, ...]:
    """The points that none beats in both amounts, in order of the first; less is better.

    >>> pareto_front([(3, 1), (1, 5), (2, 6)], lambda point: point)
    ((1, 5), (3, 1))
    """
    front: list[PointT] = []
    least = float("inf")
    for point in sorted(points, key=amounts):
        if (second := amounts(point)[1]) < least:
            front.append(point)
            least = second
    return tuple(front)
