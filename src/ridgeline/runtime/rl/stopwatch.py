"""Note what a process did when: the phases of a step, one behind the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from ridgeline.runtime.rl.request import Phase, PhaseSpan


class Stopwatch:
    """What a process did when."""

    def __init__(self) -> None:
        self.spans: list[PhaseSpan] = []

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        begin = time.time_ns()
        try:
            yield
        finally:
            self.spans.append(PhaseSpan(phase=phase, begin_ns=begin, end_ns=time.time_ns()))

    def take(self) -> tuple[PhaseSpan, ...]:
        """The spans since they were last taken."""
        spans, self.spans = tuple(self.spans), []
        return spans
