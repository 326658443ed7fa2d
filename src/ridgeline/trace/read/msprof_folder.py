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
    runs = [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and entry.name.startswith("PROF_")]
    if not runs:
        return list(_of_run(folder))
    pieces_of_run = [list(_of_run(run)) for run in runs]
    many = sum(bool(run_pieces) for run_pieces in pieces_of_run) > 1
    return [
        Piece(path=piece.path, rank=piece.rank if piece.rank is not None or not many else place, piece=piece.piece)
        for place, run_pieces in enumerate(pieces_of_run)
        for piece in run_pieces
    ]


def _of_run(run: Path) -> Iterator[Piece]:
    """The best files of one `PROF_*` folder, or of a `timeline` folder in it."""
    devices = {
        int(match[1]): entry
        for entry in sorted(run.iterdir())
        if (match := DEVICE.match(entry.name)) and entry.is_dir()
    }
    if not devices and any(ITERATION.match(entry.name) for entry in run.iterdir()):
        yield from _iterations(sorted(run.iterdir()), _rank(run.parent, 0))
        return
    output = run / OUTPUT
    exports = sorted(output.glob("msprof_*.json*")) if output.is_dir() else []
    if exports:
        yield from (Piece(path=export, rank=_rank(run, 0), piece=len(exports) > 1) for export in exports)
        return
    pieces = []
    for number, device in devices.items():
        timeline = device / "timeline"
        if timeline.is_dir():
            pieces += _iterations(sorted(timeline.iterdir()), _rank(device, number))
    bases = sorted(run.glob("msprof_*.db")) if not pieces and (devices or run.name.startswith("PROF_")) else []
    yield from pieces or [Piece(path=base) for base in bases]
    if not pieces and not bases:
        tables = [*output.glob("op_summary_*.csv"), *run.glob("device_*/summary/op_summary_*.csv")]
        yield from (
            Piece(path=table, rank=_rank(table.parent.parent, 0), piece=len(tables) > 1) for table in sorted(tables)
        )


def _iterations(files: list[Path], rank: int) -> list[Piece]:
    """The last stretch of iterations without a gap, of the last model."""
    iterations = sorted((int(match[2]), int(match[3]), file) for file in files if (match := ITERATION.match(file.name)))
    last_device = [entry for entry in iterations if entry[0] == iterations[-1][0]]
    first = len(last_device) - 1
    while first > 0 and last_device[first - 1][1] == last_device[first][1] - 1:
        first -= 1
    return [Piece(path=file, rank=rank, piece=True) for _, _, file in last_device[first:]] if last_device else []


def _rank(device: Path, number: int) -> int:
    """The rank that a folder's facts (`info.json.0`) name, else the number of the device."""
    for info in sorted(device.glob("info.json*"))[:4]:
        try:
            if info.stat().st_size < LARGEST_INFO:
                info_table = msgspec.json.decode(info.read_bytes(), type=dict)
                rank = info_table.get("rank_id")
                if type(rank) is int and 0 <= rank < 2**30:
                    return rank
        except (OSError, msgspec.MsgspecError, ValueError):
            continue
    return number
