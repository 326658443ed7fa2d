"""Turn a time in which a chip idled into the name of what the host did meanwhile.

The host spans of the chip's rank that cover at least half of the time are candidates; the innermost, which is the
shortest, is named. Marks of steps say nothing and are left out, and so are numbers that differ from call to call.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.arrays import Longs
from ridgeline.trace.intervals import cover, covered_ns
from ridgeline.trace.timeline import ANNOTATION, HOST, PYTHON, RUNTIME, Timeline

NOT_TELLING = re.compile(
    r"^(ProfilerStep|Iteration|step|PyTorch Profiler|ThreadPool)\b|^(ProfilerStep)#", re.IGNORECASE
)
LAUNCHES = re.compile(r"launch", re.IGNORECASE)
LONGEST = 70  # characters of a name
LOOKED_AT = 24  # of the longest times, each of which costs a pass over the timeline
NAMES = 60  # annotations compared


def host_activity(line: Timeline, start: Longs, end: Longs, rank: int) -> dict[str, int]:
    """Nanoseconds by what the host of a rank did in the longest of these times, most first; "" where nothing tells."""
    kinds = line.of_kind(HOST, RUNTIME, PYTHON, ANNOTATION) & (line.rank == rank)
    rows = np.flatnonzero(kinds)
    begin, until = line.start_ns[rows], line.end_ns[rows]
    total: dict[str, int] = {}
    for place in np.argsort(start - end, kind="stable")[:LOOKED_AT].tolist():
        low, high = int(start[place]), int(end[place])
        inside = np.minimum(until, high) - np.maximum(begin, low)
        inside_rows = rows[inside * 2 >= high - low]
        name = _innermost(line, inside_rows)
        total[name] = total.get(name, 0) + high - low
    return dict(sorted(total.items(), key=lambda entry: -entry[1]))


def _innermost(line: Timeline, rows: NDArray[np.intp]) -> str:
    order = rows[np.argsort(line.durations_ns(rows), kind="stable")]
    names = (line.names[int(line.name[row])] for row in order.tolist())
    return next((short(name) for name in names if not NOT_TELLING.search(name) and not LAUNCHES.search(name)), "")


def short(name: str) -> str:
    """A name without what differs from call to call, and not too long.

    >>> short("autograd::engine::evaluate_function: MulBackward0"), short("broadcast#17")
    ('autograd::engine::evaluate_function: MulBackward0', 'broadcast')
    """
    plain = re.sub(r"#\d+\b.*$", "", " ".join(name.split()))
    return plain if len(plain) <= LONGEST else f"{plain[: LONGEST - 1]}…"


def scopes(line: Timeline, start: Longs, end: Longs) -> dict[str, int]:
    """Nanoseconds of these times under each annotation of the host, most first; annotations may nest."""
    rows = np.flatnonzero(line.of_kind(ANNOTATION))
    scope_ns: dict[str, int] = {}
    names, place = np.unique(line.name[rows], return_inverse=True)
    time = np.bincount(place, weights=line.durations_ns(rows), minlength=len(names))
    for code in np.argsort(-time, kind="stable")[:NAMES].tolist():
        name = line.names[int(names[code])]
        scope_rows = rows[place == code]
        if not NOT_TELLING.search(name):
            under = covered_ns(cover(line.start_ns[scope_rows], line.end_ns[scope_rows]), start, end)
            scope_ns[short(name)] = scope_ns.get(short(name), 0) + int(under.sum())
    return dict(sorted(scope_ns.items(), key=lambda entry: -entry[1]))
