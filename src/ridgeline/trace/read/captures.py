"""Turn several captures of one rank into the last of them: a profiler that was switched on twice is not two ranks.

    the same rank     both files say so, or their names are alike up to the time (`worker0.1694128201545.pt.trace.json`)
    another capture   one ended before the other began

Files of the same rank that overlap in time are what they look like: several ranks of which two give the same number.
Files that tell no rank and do not overlap may be either: they are read as ranks, and a warning says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from ridgeline.trace.read.join import TracePart

STAMPED = re.compile(r"^(?:.*/)?(.+?)[._-](\d{10,19})(?:\.pt)?(?:\.trace)?\.json(?:\.gz)?$")
MINUTE = 60 * 10**9


def last_captures(parts: Sequence[TracePart]) -> tuple[list[TracePart], list[str]]:
    """Of the captures of every rank the last, in the order given; and what to say about the others."""
    owners: dict[object, list[int]] = {}
    for place, part in enumerate(parts):
        owner = _owner(part)
        if owner is not None:
            owners.setdefault(owner, []).append(place)
    left_out: dict[int, str] = {}
    for places in owners.values():
        if len(places) < 2 or len({_length(parts[place]) > 0 for place in places}) != 1:
            continue
        by_time = sorted(places, key=lambda place: int(parts[place].start_ns.min()))
        windows = [_window(parts[place]) for place in by_time]
        if any(after[0] < before[1] for before, after in pairwise(windows)):
            continue
        kept_source = parts[by_time[-1]].about.sources[0]
        for place, window in zip(by_time[:-1], windows, strict=False):
            distance_ns = windows[-1][0] - window[0]
            when = (
                f"{distance_ns / MINUTE:.0f} minutes" if distance_ns >= MINUTE else f"{distance_ns / 10**9:.3g} seconds"
            )
            left_out[place] = (
                f"{parts[place].about.sources[0]} is another capture of the rank of {kept_source}, {when} "
                "before it, and is "
                "left out: name it alone to analyse it"
            )
    kept_parts = [part for place, part in enumerate(parts) if place not in left_out]
    return kept_parts, [left_out[place] for place in sorted(left_out)] + _separate_captures(kept_parts)


def _separate_captures(parts: Sequence[TracePart]) -> list[str]:
    """A doubt about files without ranks that ran one after the other."""
    silent = [part for part in parts if part.rank is None and not part.piece and not part.tables.ranks]
    windows = sorted(_window(part) for part in silent if len(part.start_ns))
    if len(windows) < 2 or len(silent) < len(parts) or any(two[0] < earlier[1] for earlier, two in pairwise(windows)):
        return []
    return [
        f"none of the {len(silent)} files says its rank, and no two overlap in time: they are read as ranks; if they "
        "are captures of one, or several runs, name one alone or compare them with ridgeline diff"
    ]


def _owner(part: TracePart) -> object:
    """What says whose capture this is; None for nothing."""
    if part.piece or part.tables.ranks or not part.about.sources or not len(part.start_ns):
        return None
    stamp = STAMPED.match(part.about.sources[0])
    if part.rank is not None:
        return part.rank
    return stamp[1] if stamp else None


def _length(part: TracePart) -> int:
    return len(part.start_ns)


def _window(part: TracePart) -> tuple[int, int]:
    return int(part.start_ns.min()), int((part.start_ns + part.duration_ns).max())
