"""What a long computation says to whoever waits for it, and how it is asked to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class ProgressCallback(Protocol):
    """Whoever waits: a bar on a terminal, or nobody."""

    def __call__(self, done: int, total: int, what: str = "", best: str = "") -> bool | None:
        """Hear how much is done, of how much (0: unknown), what is next, and the best so far; False asks to stop."""


def ignore_progress(done: int, total: int, what: str = "", best: str = "") -> None:
    """Nobody waits."""


class StoppableWait:
    """A wait that remembers whether it was asked to stop."""

    def __init__(self, progress: ProgressCallback) -> None:
        self.progress, self.stopped = progress, False

    def __call__(self, done: int, total: int, what: str = "", best: str = "") -> bool | None:
        goes_on = self.progress(done, total, what, best)
        self.stopped = self.stopped or goes_on is False
        return goes_on


def until_stopped(items: Sequence[Item], wait: ProgressCallback, what: str) -> Iterator[Item]:
    """The items, and the wait hears of each; those until it asks to stop, and at least one.

    >>> list(until_stopped("abc", lambda done, *_: done < 2, "letters"))
    ['a', 'b']
    """
    for done, item in enumerate(items):
        if wait(done, len(items), what) is False and done:
            return
        yield item


@contextmanager
def signals_to(handler: Callable[..., None]) -> Iterator[None]:
    """Hand Ctrl-C and SIGTERM to a function; what a job ignores it goes on ignoring."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may catch signals
        yield
        return
    caught_signals = [
        which for which in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(which) is not signal.SIG_IGN
    ]
    before = {which: signal.signal(which, handler) for which in caught_signals}
    try:
        yield
    finally:
        for which, other in before.items():
            signal.signal(which, other)


@contextmanager
def write_together() -> Iterator[None]:
    """Let files that belong together be written; a signal meanwhile interrupts when all of them are."""
    signals: list[int] = []
    with signals_to(lambda which, _: signals.append(which)):
        yield
    if signals:
        raise KeyboardInterrupt
