"""Turn paths that a user named into the trace files behind them: files, archives, folders of ranks and of profilers.

    JAX      plugins/profile/DATE: one profile a host (`*.xplane.pb`), and the same again as JSON, which is not read
    Ascend   *_ascend_pt/ASCEND_PROFILER_OUTPUT: trace_view.json, and kernel_details.csv of the same kernels
    msprof   PROF_x/mindstudio_profiler_output/msprof_*.json, op_summary_*.csv    one timeline of all devices, or slices
             PROF_x/device_N/timeline/msprof_N_MODEL_ITERATION.json               one an iteration (before CANN 7)
             PROF_x/device_N/summary/op_summary_*.csv, PROF_x/msprof_*.db

Of msprof's iterations the last stretch without a gap is taken; several `PROF_*` folders are ranks of one run. Archives
are unpacked under names of their own making, and refused where they grow too much.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import msgspec

from ridgeline.core.errors import InputError, Problem
from ridgeline.trace.read.source import CHUNK, MOST_RATIO, MOST_UNPACKED, SMALL, refuse

SUFFIXES = (
    ".json", ".json.gz", ".sqlite", ".sqlite.gz", ".et", ".et.gz", ".xplane.pb", ".db", ".pickle", ".pkl", ".gz",
)  # fmt: skip
MOST_FILES = 4096
PROFILES = "plugins/profile/*"
PLANE = ".xplane.pb"
TWICE = ("perfetto_trace.json.gz", ".trace.json.gz")  # the first is the second once more
ASCEND_OUTPUT, MSPROF_OUTPUT = "ASCEND_PROFILER_OUTPUT", "mindstudio_profiler_output"
LARGEST_INFO = 1_000_000  # bytes of a file of facts
MAGIC = b"PK\x03\x04"
TABLES = (".csv", ".json.0", "_info_0.json")
_INFO = re.compile(r"^profiler_info_(\d{1,7})\.json$")
_ITERATION = re.compile(r"^msprof_(\d{1,6})_(\d{1,9})_(\d{1,9})\.json(?:\.gz)?$")
_DEVICE = re.compile(r"^device_(\d{1,6})$")
_ODD = re.compile(r"[^\w.+-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFile:
    """A file to read, and whose it is."""

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


def files_of(paths: Sequence[Path]) -> list[FolderFile]:
    """Every file to read, in the order named; a trace and its table of kernels, named both, are one."""
    if not paths:
        raise InputError(Problem(path="", given="no file", expected="at least one trace file or folder"))
    places = [place for path in paths for place in _behind(path)]
    named = [place.path for place in places if place.named]
    tables = {path.parent: path for path in named if path.name.startswith("kernel_details.csv")}
    traces = {path.parent for path in named if path.name.startswith("trace_view.json")}
    files = []
    for place in places:
        if place.path in tables.values() and place.path.parent in traces:
            continue
        pair = place.named and place.path.name.startswith("trace_view.json") and place.path.parent in tables
        files.append(FolderFile(path=place.path, beside=tables[place.path.parent]) if pair else place)
    return files


def tables_of(paths: Sequence[Path]) -> list[Path]:
    """Tables of kernels among the files: named, or beside a trace; they hold counters too. One rank's says enough."""
    tables = (place.beside or place.path for place in (files_of(paths) if paths else ()))
    return [table for table in tables if table.name.startswith("kernel_details.csv")][:1]


def _behind(path: Path) -> list[FolderFile]:
    if not path.exists():
        raise refuse(path, "no such file", "a trace file or a folder of them", "check the path")
    if not path.is_dir():
        return [FolderFile(path=path)]
    if profiled := _ascend_files(path) or _msprof_files(path):
        return profiled
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
    return [FolderFile(path=entry, named=False) for entry in inside]


def _nothing_in(path: Path) -> InputError:
    """A folder without traces; of Ascend's profilers, how to have them written."""
    if path.name.endswith("_ascend_pt") or (path / ASCEND_OUTPUT).is_dir():
        expected_files = "trace_view.json or kernel_details.csv"
        todo = "torch_npu.profiler.profiler.analyse(FOLDER) writes them"
        return refuse(path, "a folder of Ascend's profiler that was not analysed", expected_files, todo)
    if path.name.startswith("PROF_") or any(path.glob("PROF_*")):
        expected_files = "msprof_*.json, msprof_*.db or op_summary_*.csv"
        todo = "msprof --export=on --output=FOLDER"
        return refuse(path, "a folder of msprof that was not exported", expected_files, todo)
    return refuse(path, "a folder without traces", f"files named *{', *'.join(SUFFIXES[:6])}", "name the files")


def _profile_folder(path: Path) -> Path:
    """The folder of the one run in a folder that was given to JAX's profiler; any other folder is itself."""
    runs = sorted(run for run in path.glob(PROFILES) if run.is_dir())
    if len(runs) > 1:
        names = ", ".join(run.name for run in runs[-4:])
        raise refuse(path, f"a folder of {len(runs)} runs", f"one of them: {names}", f"name {runs[-1]}")
    return runs[0] if runs else path


# -- Ascend's profilers ------------------------------------------------------------------------------------------------


def _ascend_files(folder: Path) -> list[FolderFile]:
    """The files of the Ascend profiler: in a folder itself, in its output folder, or one of each per rank."""
    ranks = sorted(entry for entry in folder.iterdir() if entry.is_dir() and entry.name.endswith("_ascend_pt"))
    places = [place for run in (folder, *ranks) for place in (run, run / ASCEND_OUTPUT) if place.is_dir()]
    files = [file for place in places if (file := _ascend_file(place)) is not None]
    if len(files) < 2:
        return files
    return [replace(file, named=False, label=str(file.path.relative_to(folder))) for file in files]


def _ascend_file(folder: Path) -> FolderFile | None:
    inside = {file.name: file for file in folder.iterdir() if file.is_file()}
    trace = inside.get("trace_view.json") or inside.get("trace_view.json.gz")
    details = inside.get("kernel_details.csv") or inside.get("kernel_details.csv.gz")
    path = trace or details
    if path is None:
        return None
    infos = (_INFO.match(file.name) for place in (folder, folder.parent) for file in place.iterdir())
    ranks = {int(match[1]) for match in infos if match}
    return FolderFile(path=path, beside=details if trace else None, rank=ranks.pop() if len(ranks) == 1 else None)


def _msprof_files(folder: Path) -> list[FolderFile]:
    """The files of a folder that msprof wrote; none for any other folder."""
    runs = [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and entry.name.startswith("PROF_")]
    files_of_run = [list(_of_run(run)) for run in runs or [folder]]
    many = sum(map(bool, files_of_run)) > 1
    return [
        replace(file, rank=place if file.rank is None and many else file.rank, label=str(file.path.relative_to(folder)))
        for place, files in enumerate(files_of_run)
        for file in files
    ]


def _of_run(run: Path) -> Iterator[FolderFile]:
    """The best files of one `PROF_*` folder, or of a `timeline` folder in it."""
    entries = sorted(run.iterdir())
    devices = {int(match[1]): entry for entry in entries if (match := _DEVICE.match(entry.name)) and entry.is_dir()}
    if not devices and any(_ITERATION.match(entry.name) for entry in entries):
        yield from _iterations(entries, _rank(run.parent, 0))
        return
    output = run / MSPROF_OUTPUT
    exports = sorted(output.glob("msprof_*.json*")) if output.is_dir() else []
    if exports:
        yield from (FolderFile(path=export, rank=_rank(run, 0), piece=len(exports) > 1) for export in exports)
        return
    files = []
    for number, device in devices.items():
        timeline = device / "timeline"
        if timeline.is_dir():
            files += _iterations(sorted(timeline.iterdir()), _rank(device, number))
    bases = sorted(run.glob("msprof_*.db")) if not files and (devices or run.name.startswith("PROF_")) else []
    yield from files or [FolderFile(path=base) for base in bases]
    if not files and not bases:
        tables = sorted([*output.glob("op_summary_*.csv"), *run.glob("device_*/summary/op_summary_*.csv")])
        many = len(tables) > 1
        yield from (FolderFile(path=table, rank=_rank(table.parent.parent, 0), piece=many) for table in tables)


def _iterations(files: list[Path], rank: int) -> list[FolderFile]:
    """The last stretch of iterations without a gap, of the last model."""
    matches = ((_ITERATION.match(file.name), file) for file in files)
    iterations = sorted((int(match[2]), int(match[3]), file) for match, file in matches if match)
    last_model = [entry for entry in iterations if entry[0] == iterations[-1][0]]
    first = len(last_model) - 1
    while first > 0 and last_model[first - 1][1] == last_model[first][1] - 1:
        first -= 1
    return [FolderFile(path=file, rank=rank, piece=True) for _, _, file in last_model[first:]] if last_model else []


def _rank(device: Path, number: int) -> int:
    """The rank that a folder's facts (`info.json.0`) name, else the number of the device."""
    for info in sorted(device.glob("info.json*"))[:4]:
        try:
            if info.stat().st_size < LARGEST_INFO:
                rank = msgspec.json.decode(info.read_bytes(), type=dict).get("rank_id")
                if type(rank) is int and 0 <= rank < 2**30:
                    return rank
        except (OSError, msgspec.MsgspecError, ValueError):
            continue
    return number


# -- archives ----------------------------------------------------------------------------------------------------------


@contextmanager
def unzip_traces(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """The paths, archives among them as folders that are gone afterwards."""
    is_zip = [path.is_file() and _begins(path) == MAGIC for path in paths]
    if not any(is_zip):
        yield list(paths)
        return
    with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
        pairs = enumerate(zip(paths, is_zip, strict=True))
        yield [_unpack(path, Path(folder) / f"{place}") if packed else path for place, (path, packed) in pairs]


def _begins(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(len(MAGIC))
    except OSError:
        return b""


def _unpack(path: Path, folder: Path) -> Path:
    folder.mkdir()
    room = min(MOST_UNPACKED, shutil.disk_usage(folder).free // 2)
    written = 0
    try:
        with zipfile.ZipFile(path) as archive:
            infos = [info for info in archive.infolist() if not info.is_dir()]
            members = [member for member in infos if member.filename.endswith((*SUFFIXES, *TABLES))]
            if len(members) > MOST_FILES:
                raise refuse(path, f"{len(members)} files", f"at most {MOST_FILES}", "unpack it and name some ranks")
            for member in members:
                target = folder.joinpath(*_parts(member.filename))
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, target.open("wb") as sink:
                    while chunk := source.read(CHUNK):
                        written += len(chunk)
                        if written > room or (written > SMALL and written > MOST_RATIO * path.stat().st_size):
                            raise refuse(
                                path, f"an archive that grows beyond {written:,} bytes",
                                f"at most {MOST_RATIO} times its size", "unpack it yourself if it is honest",
                            )  # fmt: skip
                        sink.write(chunk)
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError, EOFError) as wrong:
        raise refuse(
            path, f"a zip archive that cannot be unpacked ({wrong})", "a whole one", "fetch it again"
        ) from None
    if not members:
        raise refuse(path, "a zip archive without traces", f"files named *{', *'.join(SUFFIXES[:6])}", "name the files")
    inside = list(folder.iterdir())
    while len(inside) == 1 and inside[0].is_dir():  # archives of one folder
        folder, inside = inside[0], list(inside[0].iterdir())
        if folder.name.startswith("PROF_") or folder.name.endswith("_ascend_pt"):
            return folder
    return inside[0] if len(inside) == 1 else folder


def _parts(name: str) -> list[str]:
    """A member's name as parts that are files and folders, nothing else."""
    parts = [_ODD.sub("_", part)[:120] for part in PurePosixPath(name.replace("\\", "/")).parts]
    return [part for part in parts if part.strip(".")] or ["trace.json"]
