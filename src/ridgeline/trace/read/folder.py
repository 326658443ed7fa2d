"""Turn paths that a user named into the trace files behind them: files, folders of ranks, Ascend's and JAX's folders.

JAX writes into `plugins/profile/DATE` of the folder it is given, one profile a host (`*.xplane.pb`), the same as JSON
up to a million events, and on demand once more for Perfetto; of these the first is read. For msprof's folders see
`msprof_folder`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.core.errors import InputError, Problem
from ridgeline.trace.read import ascend, msprof_folder
from ridgeline.trace.read.source import refuse

SUFFIXES = (
    ".json", ".json.gz", ".sqlite", ".sqlite.gz", ".et", ".et.gz", ".xplane.pb", ".db", ".pickle", ".pkl", ".gz",
)  # fmt: skip
MOST_FILES = 4096
PROFILES = "plugins/profile/*"
PLANE = ".xplane.pb"
TWICE = ("perfetto_trace.json.gz", ".trace.json.gz")  # the first is the second once more


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A trace file."""

    path: Path
    named: bool = True
    """Named by the user rather than found in a folder, where a file that is no trace is passed over."""
    beside: Path | None = None
    """A table of the same kernels."""
    rank: int | None = None
    label: str = ""
    """What to call it where its own name is that of every rank's."""
    piece: bool = False
    """A part of its rank's time; others hold the rest."""


def files_of(paths: Sequence[Path]) -> list[Found]:
    """Every file to read, in the order named; a trace and its table of kernels, named both, are one."""
    if not paths:
        raise InputError(Problem(path="", given="no file", expected="at least one trace file or folder"))
    places = [place for path in paths for place in _behind(path)]
    tables = {
        place.path.parent: place.path
        for place in places
        if place.named and place.path.name.startswith("kernel_details.csv")
    }
    traces = {place.path.parent for place in places if place.named and place.path.name.startswith("trace_view.json")}
    files = []
    for place in places:
        if place.path in tables.values() and place.path.parent in traces:
            continue
        pair = place.named and place.path.name.startswith("trace_view.json") and place.path.parent in tables
        files.append(Found(path=place.path, beside=tables[place.path.parent]) if pair else place)
    return files


def tables_of(paths: Sequence[Path]) -> list[Path]:
    """Tables of kernels among the files: named, or beside a trace; they hold counters too. One rank's says enough."""
    if not paths:
        return []
    tables = (place.beside or place.path for place in files_of(paths))
    return [table for table in tables if table.name.startswith("kernel_details.csv")][:1]


def _behind(path: Path) -> Iterator[Found]:
    if not path.exists():
        raise refuse(path, "no such file", "a trace file or a folder of them", "check the path")
    if not path.is_dir():
        yield Found(path=path)
        return
    runs = ascend.outputs(path)
    if runs:
        yield from _runs(path, runs)
        return
    pieces = msprof_folder.pieces(path)
    if pieces:
        yield from (
            Found(
                path=piece.path, named=True, rank=piece.rank, label=str(piece.path.relative_to(path)), piece=piece.piece
            )
            for piece in pieces
        )
        return
    path = _profile_folder(path)
    inside = sorted(entry for entry in path.iterdir() if entry.is_file() and entry.name.endswith(SUFFIXES))
    planes = {entry.name.removesuffix(PLANE) for entry in inside if entry.name.endswith(PLANE)}
    inside = [entry for entry in inside if entry.name.removesuffix(TWICE[1]) not in planes]
    if planes or any(entry.name.endswith(TWICE[1]) for entry in inside):
        inside = [entry for entry in inside if entry.name != TWICE[0]]
    if not inside:
        raise _nothing_in(path)
    if len(inside) > MOST_FILES:
        raise refuse(path, f"{len(inside)} files", f"at most {MOST_FILES}", "name the files of some ranks")
    yield from (Found(path=entry, named=False) for entry in inside)


def _nothing_in(path: Path) -> InputError:
    """A folder without traces; of Ascend's profilers, how to have them written."""
    if path.name.endswith("_ascend_pt") or (path / ascend.OUTPUT).is_dir():
        expected_files, todo = (
            "trace_view.json or kernel_details.csv",
            "torch_npu.profiler.profiler.analyse(FOLDER) writes them",
        )
        return refuse(path, "a folder of Ascend's profiler that was not analysed", expected_files, todo)
    if path.name.startswith("PROF_") or any(path.glob("PROF_*")):
        expected_files = "msprof_*.json, msprof_*.db or op_summary_*.csv"
        return refuse(
            path, "a folder of msprof that was not exported", expected_files, ("msprof --export=on --output=FOLDER")
        )
    return refuse(path, "a folder without traces", f"files named *{', *'.join(SUFFIXES[:6])}", "name the files")


def _profile_folder(path: Path) -> Path:
    """The folder of the one run in a folder that was given to JAX's profiler; any other folder is itself."""
    runs = sorted(run for run in path.glob(PROFILES) if run.is_dir())
    if len(runs) > 1:
        names = ", ".join(run.name for run in runs[-4:])
        raise refuse(path, f"a folder of {len(runs)} runs", f"one of them: {names}", f"name {runs[-1]}")
    return runs[0] if runs else path


def _runs(folder: Path, runs: Sequence[ascend.Output]) -> Iterator[Found]:
    for run in runs:
        path = run.trace or run.details
        if path is not None:
            yield Found(
                path=path,
                named=len(runs) == 1,
                beside=run.details if run.trace is not None else None,
                rank=run.rank,
                label=str(path.relative_to(folder)) if len(runs) > 1 else "",
            )
