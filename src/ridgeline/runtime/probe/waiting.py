"""Say how long threads of this process waited for a core while others had it: Linux's run delay, from schedstat.

A kernel of two threads ends when the later one does. Where other work has the second core, the first spins until the
scheduler's slice is over: a product of 20 us then takes 4, 8 or 16 ms, in every run alike, and no median finds out.
"""

from __future__ import annotations

import contextlib
import os

from ridgeline.runtime.probe.backend import Backend

NS = 1e-9


class RunDelay:
    """A clock of waiting; it stands still where the system keeps no account, and for work on another device."""

    def __init__(self, backend: Backend) -> None:
        self._files: list[int] = []
        if backend.type == "cpu":
            with contextlib.suppress(OSError):
                for thread in os.listdir("/proc/self/task"):
                    with contextlib.suppress(OSError):  # a thread may have ended since it was listed
                        self._files.append(os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY))

    def read(self) -> list[float]:
        """Seconds that each thread has waited so far."""
        return [self._of(file) for file in self._files]

    @staticmethod
    def _of(file: int) -> float:
        try:
            return int(os.pread(file, 64, 0).split()[1]) * NS
        except (OSError, IndexError, ValueError):
            return 0.0

    def close(self) -> None:
        """Give the files back."""
        for file in self._files:
            os.close(file)
        self._files = []


def longest_wait(before: list[float], after: list[float]) -> float:
    """Seconds that the thread which waited most did so between two readings.

    >>> longest_wait([1.0, 2.0], [1.5, 2.125])
    0.5
    """
    return max((b - a for a, b in zip(before, after, strict=True)), default=0.0)
