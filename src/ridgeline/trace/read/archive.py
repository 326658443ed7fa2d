"""Turn zip archives among the files to read into folders, for as long as they are read.

Only members that can be traces are unpacked, under names of their own making, so that nothing leaves the temporary
folder; an archive that grows more than `MOST_RATIO` times, or beyond half of the free disk, is refused.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from ridgeline.trace.read.folder import MOST_FILES, SUFFIXES
from ridgeline.trace.read.source import CHUNK, MOST_RATIO, MOST_UNPACKED, SMALL, refuse

MAGIC = b"PK\x03\x04"
TABLES = (".csv", ".json.0", "_info_0.json")
_ODD = re.compile(r"[^\w.+-]")


@contextmanager
def unzip_traces(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """The paths, archives among them as folders that are gone afterwards."""
    is_zip = [path.is_file() and _begins(path) == MAGIC for path in paths]
    if not any(is_zip):
        yield list(paths)
        return
    with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
        unzipped_paths = []
        for place, (path, packed_file) in enumerate(zip(paths, is_zip, strict=True)):
            unzipped_paths.append(_unpack(path, Path(folder) / f"{place}") if packed_file else path)
        yield unzipped_paths


def _begins(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(len(MAGIC))
    except OSError:
        return b""


def _unpack(path: Path, folder: Path) -> Path:
    """Unpack an archive; the folder in which its files are."""
    folder.mkdir()
    room = min(MOST_UNPACKED, shutil.disk_usage(folder).free // 2)
    written = 0
    try:
        with zipfile.ZipFile(path) as archive:
            members = [
                member
                for member in archive.infolist()
                if not member.is_dir() and member.filename.endswith((*SUFFIXES, *TABLES))
            ]
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
