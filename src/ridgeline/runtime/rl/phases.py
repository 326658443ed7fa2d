"""Turn what the processes of a run did into a trace file: a process for each, a span for each phase."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ridgeline.runtime.rl.request import PhaseSpan, Seat
from ridgeline.trace import Timeline, write_chrome

STREAMS = {"rollout": "rollout", "reward": "rollout", "sync": "sync"}  # the others: train


def timeline_of(spans: Iterable[tuple[Seat, PhaseSpan]]) -> Timeline:
    """The phases of a run, from its first."""
    rows = list(spans)
    first = min((span.begin_ns for _, span in rows), default=0)
    rows.sort(key=lambda row: (row[0].rank is None, row[0].rank or 0, row[0].replica or 0, row[1].begin_ns))
    return Timeline.of_phases(
        (seat.name, STREAMS.get(span.phase, "train"), span.phase, span.begin_ns - first, span.end_ns - first)
        for seat, span in rows
    )


def write_timeline(path: Path, spans: Iterable[tuple[Seat, PhaseSpan]]) -> None:
    """Write the phases of a run for `ridgeline timeline` and trace viewers."""
    write_chrome(timeline_of(spans), path)
