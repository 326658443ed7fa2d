"""Turn a folder of msprof (`PROF_*`) into the files to read: timelines by iteration, else a database, else tables.

    PROF_x/mindstudio_profiler_output/msprof_*.json, op_summary_*.csv      one timeline of all devices, or slices of it
    PROF_x/device_N/timeline/msprof_N_MODEL_ITERATION.json                 one timeline an iteration (before CANN 7)
    PROF_x/device_N/summary/op_summary_*.csv, PROF_x/msprof_*.db

Iterations that follow each other are one timeline; of several stretches the last is taken. `hccl_*`, `task_time_*` and
`step_trace_*` hold what the timeline holds. A folder of several `PROF_*` folders is one run of several ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

OUTPUT = "mindstudio_profiler_output"
ITERATION = re.compile(r"^msprof_(\d{1,6})_(\d{1,9})_(\d{1,9})\.json(?:\.gz)?$")
DEVICE = re.compile(r"^device_(\d{1,6})$")
LARGEST_INFO = 1_000_000  # bytes of a file of facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A file to read, and whose it is."""

    path: Path
    rank: int | None = None
    piece: bool = False


def pieces(folder: Path) -> list[Piece]:
    """The files of a folder that msprof wrote; none for any other folder."""
    runs = [one for one in sorted(folder.iterdir()) if one.is_dir() and one.name.startswith("PROF_")]
    if not runs:
        return list(_of_run(folder))
    found = [list(_of_run(run)) for run in runs]
    many = sum(bool(one) for one in found) > 1
    return [
        Piece(path=one.path, rank=one.rank if one.rank is not None or not many else place, piece=one.piece)
        for place, own in enumerate(found)
        for one in own
    ]


def _of_run(run: Path) -> Iterator[Piece]:
    """The best files of one `PROF_*` folder, or of a `timeline` folder in it."""
    devices = {int(told[1]): one for one in sorted(run.iterdir()) if (told := DEVICE.match(one.name)) and one.is_dir()}
    if not devices and any(ITERATION.match(one.name) for one in run.iterdir()):
        yield from _iterations(sorted(run.iterdir()), _rank(run.parent, 0))
        return
    output = run / OUTPUT
    whole = sorted(output.glob("msprof_*.json*")) if output.is_dir() else []
    if whole:
        yield from (Piece(path=one, rank=_rank(run, 0), piece=len(whole) > 1) for one in whole)
        return
    found = []
    for number, device in devices.items():
        timeline = device / "timeline"
        if timeline.is_dir():
            found += _iterations(sorted(timeline.iterdir()), _rank(device, number))
    bases = sorted(run.glob("msprof_*.db")) if not found and (devices or run.name.startswith("PROF_")) else []
    yield from found or [Piece(path=base) for base in bases]
    if not found and not bases:
        tables = [*output.glob("op_summary_*.csv"), *run.glob("device_*/summary/op_summary_*.csv")]
        yield from (
            Piece(path=table, rank=_rank(table.parent.parent, 0), piece=len(tables) > 1) for table in sorted(tables)
        )


def _iterations(files: list[Path], rank: int) -> list[Piece]:
    """The last stretch of iterations without a gap, of the last model."""
    told = sorted((int(match[2]), int(match[3]), file) for file in files if (match := ITERATION.match(file.name)))
    own = [entry for entry in told if entry[0] == told[-1][0]]
    first = len(own) - 1
    while first > 0 and own[first - 1][1] == own[first][1] - 1:
        first -= 1
    return [Piece(path=file, rank=rank, piece=True) for _, _, file in own[first:]] if own else []


def _rank(device: Path, number: int) -> int:
    """The rank that a folder's facts (`info.json.0`) name, else the number of the device."""
    for info in sorted(device.glob("info.json*"))[:4]:
        try:
            if info.stat().st_size < LARGEST_INFO:
                told = msgspec.json.decode(info.read_bytes(), type=dict)
                rank = told.get("rank_id")
                if type(rank) is int and 0 <= rank < 2**30:
                    return rank
        except (OSError, msgspec.MsgspecError, ValueError):
            continue
    return number
