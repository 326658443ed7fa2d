"""Turn what the processes of a run did into a trace file: a process for each, a span for each phase."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ridgeline.runtime.rl.request import PhaseSpan, Seat
from ridgeline.trace import NO_LAYER, Timeline, write_chrome

STREAMS = {"rollout": "rollout", "reward": "rollout", "sync": "sync"}  # the others: train


def timeline_of(spans: Iterable[tuple[Seat, PhaseSpan]]) -> Timeline:
    """The phases of a run, from its first."""
    rows = list(spans)
    first = min((span.begin_ns for _, span in rows), default=0)
    rows.sort(key=lambda row: (row[0].rank is None, row[0].rank or 0, row[0].replica or 0, row[1].begin_ns))
    labels = [(seat.name, STREAMS.get(span.phase, "train"), span.phase, span.phase) for seat, span in rows]
    tables = tuple(tuple(dict.fromkeys(names)) for names in zip(*labels, strict=True)) or ((),) * 4
    codes = [[table.index(name) for table, name in zip(tables, label, strict=True)] for label in labels]
    return Timeline.of_columns(
        start_ns=np.array([span.begin_ns - first for _, span in rows], dtype=np.int64),
        end_ns=np.array([span.end_ns - first for _, span in rows], dtype=np.int64),
        codes=np.array(codes, dtype=np.int32).reshape(-1, 4),
        phase=np.zeros(len(rows), np.int8),
        layer=np.full(len(rows), NO_LAYER, np.int16),
        tables=(tables[0], tables[1], tables[2], tables[3]),
        counters=(),
        sends={},
        predicted=False,
    )


def write_timeline(path: Path, spans: Iterable[tuple[Seat, PhaseSpan]]) -> None:
    """Write the phases of a run for `ridgeline timeline` and trace viewers."""
    write_chrome(timeline_of(spans), path)
