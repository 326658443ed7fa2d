"""Turn annotations into step numbers: which step of the run every span belongs to.

Host spans belong to the step whose annotation (`ProfilerStep#7`, `step 7`) they start in. Work belongs to the step of
the call that launched it, wherever the device ran it; unlinked work to the step whose mark on its device covers it, and
where a program of XLA has no marks, because its host is the device, to the step whose annotation it starts in.
Annotations named `step`, `iteration` or `train_step` without a number are counted from 0, in the order they start.
Without either a step ends where an optimizer's annotation ends. Without those either, no span has a step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.arrays import Codes, Longs
from ridgeline.trace.timeline import ANNOTATION, MARKER, NOT_WORK, Timeline

NUMBERED = re.compile(
    r"^(?:ProfilerStep|(?:train(?:ing)?[ _])?(?:step|iteration|iter))[ _#:=]{0,2}(\d{1,9})$", re.IGNORECASE
)
PLAIN = re.compile(r"^(?:train(?:ing)?[ _-]?)?(?:step|iteration|iter)$", re.IGNORECASE)
OPTIMIZER = re.compile(r"^Optimizer\.step#")
XLA = "XLA"
TAIL = 0.2  # of a step: what follows the last optimizer and is shorter than this still belongs to it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Windows:
    """Steps in time: ascending starts, ends, numbers."""

    start: Longs
    end: Longs
    number: Longs

    def at(self, times: Longs) -> Codes:
        """The step each instant lies in, -1 outside all."""
        place = np.searchsorted(self.start, times, side="right") - 1
        inside = (place >= 0) & (times < self.end[np.maximum(place, 0)])
        return np.where(inside, self.number[np.maximum(place, 0)], -1).astype(np.int32)


def mark_steps(line: Timeline) -> Timeline:
    """The timeline with the step of every span filled in."""
    step = np.full(len(line), -1, np.int32)
    work, rank = line.is_work, line.rank
    host = line.of_kind(*(kind for kind in NOT_WORK if kind != MARKER))
    for rank_id in sorted(set(line.tables.ranks)):
        of_rank = rank == rank_id
        windows = _windows(line, of_rank & line.of_kind(ANNOTATION))
        if windows is not None:
            rows = np.flatnonzero(of_rank & host)
            step[rows] = windows.at(line.start_ns[rows])
    rows = np.flatnonzero(work & (line.launch >= 0))
    step[rows] = step[line.launch[rows]]
    for rank_id in sorted(set(line.tables.ranks)):
        of_rank = rank == rank_id
        for process in np.unique(line.process[of_rank]).tolist():
            _by_marks(line, step, of_rank & (line.process == process))
    return replace(line, step=step)


def _by_marks(line: Timeline, step: Codes, own: NDArray[np.bool_]) -> None:
    """Unlinked work and marks of one device get the step whose mark covers their start."""
    windows = _windows(line, own & line.of_kind(MARKER), optimizers=False)
    if windows is None and line.about.format.startswith(XLA):
        windows = _windows(line, line.of_kind(ANNOTATION), optimizers=False)
    if windows is None:
        return
    rows = np.flatnonzero(own & (line.launch < 0) & (line.is_work | line.of_kind(MARKER)))
    step[rows] = windows.at(line.start_ns[rows])


def _windows(line: Timeline, chosen: NDArray[np.bool_], *, optimizers: bool = True) -> Windows | None:
    rows = np.flatnonzero(chosen)
    numbers = {code: int(match[1]) for code, match in _matching(line, rows, NUMBERED)}
    if numbers:
        marked_rows = rows[np.isin(line.name[rows], list(numbers))]
        start, end = line.start_ns[marked_rows], line.end_ns[marked_rows]
        number = np.array([numbers[code] for code in line.name[marked_rows].tolist()], np.int64)
        return Windows(start=start, end=end, number=number)
    plain = rows[np.isin(line.name[rows], [code for code, _ in _matching(line, rows, PLAIN)])]
    if len(plain) > 1:
        return Windows(start=line.start_ns[plain], end=line.end_ns[plain], number=np.arange(len(plain)))
    ends = [code for code, _ in _matching(line, rows, OPTIMIZER)] if optimizers else []
    marked_rows = rows[np.isin(line.name[rows], ends)]
    if not len(marked_rows):
        return None
    end = np.sort(line.end_ns[marked_rows])
    start = np.concatenate([[np.iinfo(np.int64).min], end[:-1]])
    rank = line.rank == line.rank[marked_rows[0]]
    last = int(line.end_ns[rank].max())
    typical = int(np.median(np.diff(end))) if len(end) > 1 else int(end[0] - line.start_ns[rank].min())
    if last - end[-1] < TAIL * typical:
        end[-1] = last + 1
    return Windows(start=start, end=end, number=np.arange(len(end)))


def _matching(line: Timeline, rows: NDArray[np.intp], pattern: re.Pattern[str]) -> Iterator[tuple[int, re.Match[str]]]:
    for code in np.unique(line.name[rows]).tolist():
        match = pattern.match(line.names[code])
        if match:
            yield code, match
