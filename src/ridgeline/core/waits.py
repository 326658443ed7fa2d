"""What a long computation says to whoever waits for it, and how it is asked to stop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class ProgressCallback(Protocol):
    """Whoever waits: a bar on a terminal, or nobody."""

    def __call__(self, done: int, total: int, what: str = "", best: str = "") -> bool | None:
        """Hear how much is done, of how much (0: unknown), what is next, and the best so far; False asks to stop."""


def ignore_progress(done: int, total: int, what: str = "", best: str = "") -> None:
    """Nobody waits."""


def until_stopped(items: Sequence[Item], wait: ProgressCallback, what: str) -> Iterator[Item]:
    """The items, and the wait hears of each; those until it asks to stop, and at least one.

    >>> list(until_stopped("abc", lambda done, *_: done < 2, "letters"))
    ['a', 'b']
    """
    for done, item in enumerate(items):
        if wait(done, len(items), what) is False and done:
            return
        yield item
