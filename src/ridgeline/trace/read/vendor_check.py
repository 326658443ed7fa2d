"""Turn a vendor's own sums of a trace into doubts, where what is read here differs from them.

Profilers of Ascend write a track `Overlap Analysis` beside the work: computing, communication, communication that
nothing hides, free. It is a second opinion on the very spans that were read, so it must agree:

    |a - b|  <=  1 % of the span, or 10 us
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.documents import JsonMapping
from ridgeline.trace.classes import COMMUNICATION, COMPUTE, Rules
from ridgeline.trace.intervals import cover, union
from ridgeline.trace.read.chrome_columns import ChromeColumns
from ridgeline.trace.read.chrome_dialects import SUMMED
from ridgeline.trace.read.join import OVERLAP
from ridgeline.trace.read.timestamps import MISSING
from ridgeline.trace.timeline import Timeline

COMPUTING, TALKING, EXPOSED, FREE = "computing", "communication", "communication not overlapped", "free"
WORDS = {
    "computing": COMPUTING, "merged computation op": COMPUTING, "communication": TALKING,
    "merged communication op": TALKING, "communication(not overlapped)": EXPOSED, "pure communication op": EXPOSED,
    "free": FREE, "free time": FREE,
}  # fmt: skip
SHARE, LEAST_NS = 0.01, 10_000


def overlap_told(
    found: ChromeColumns, track: NDArray[np.int32], name: NDArray[np.int32], duration: NDArray[np.int64]
) -> Mapping[str, int]:
    """Nanoseconds by part, of the spans that sum up; those of other processes among these are passed over."""
    tracks, names = list(found.tracks), list(found.names)
    sums: dict[str, int] = {}
    for place in np.unique(track).tolist():
        pid, tid = tracks[place]
        if not any(SUMMED.match(text.get(pid, "")) for text in (found.processes, found.labels)):
            continue
        on_track = (track == place) & (duration != MISSING)
        thread = WORDS.get(found.threads.get((pid, tid), "").strip().lower())
        for code in np.unique(name[on_track]).tolist():
            part = WORDS.get(names[code].strip().lower()) or thread
            if part is not None:
                sums[part] = sums.get(part, 0) + int(duration[on_track & (name == code)].sum())
    return sums


def overlap_doubts(line: Timeline, rules: Rules) -> Sequence[str]:
    """What to say about every rank whose sums differ from those of its vendor's tool."""
    overlap = line.about.properties.get(OVERLAP)
    return list(_doubts(line, rules, overlap)) if isinstance(overlap, Mapping) else []


def _doubts(line: Timeline, rules: Rules, told: JsonMapping) -> Iterator[str]:
    groups = np.array([rules.group_of(id) for id in line.classes])[line.class_]
    for rank, theirs in told.items():
        rows = line.is_work & (line.rank == int(rank))
        if not rows.any():
            continue
        parts = {
            group: cover(line.start_ns[rows & (groups == group)], line.end_ns[rows & (groups == group)])
            for group in (COMPUTE, COMMUNICATION)
        }
        busy = union(parts[COMPUTE], parts[COMMUNICATION])
        ours = {
            COMPUTING: parts[COMPUTE].length, TALKING: parts[COMMUNICATION].length,
            EXPOSED: busy.length - parts[COMPUTE].length,
        }  # fmt: skip
        allowed_ns = max(LEAST_NS, SHARE * (busy.last - busy.first))
        differ = [
            f"{part} {theirs[part] / 1000:,.1f} us, here {ours[part] / 1000:,.1f}"
            for part in ours
            if part in theirs and abs(ours[part] - theirs[part]) > allowed_ns
        ]
        if differ:
            yield f"rank {rank}: the vendor's Overlap Analysis in the file says {'; '.join(differ)}"
