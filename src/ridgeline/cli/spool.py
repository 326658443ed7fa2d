"""Turn standard input and named pipes into plain files, which readers of traces may go through more than once."""

from __future__ import annotations

import contextlib
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from ridgeline.core.errors import InputError, Problem

STDIN = Path("-")
CHUNK = 2**20  # bytes copied at a time


@contextlib.contextmanager
def plain_files(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """The paths with `-` and every pipe copied to a temporary file, which is removed afterwards.

    A copy may take half of the free space of the temporary folder.
    """
    if not any(path == STDIN or _is_pipe(path) for path in paths):
        yield list(paths)
        return
    with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
        copies = {path: _copy_stream(path, Path(folder) / str(place)) for place, path in enumerate(paths)}
        try:
            yield [copies[path] for path in paths]
        except InputError as wrong:
            raise InputError([_rename_problem(problem, copies) for problem in wrong.problems] or str(wrong)) from None


def _rename_problem(problem: Problem, copies: Mapping[Path, Path]) -> Problem:
    """The problem with the name that was given in place of the copy's."""
    given = next((path for path, copy in copies.items() if problem.where == str(copy)), None)
    return problem if given is None else replace(problem, where=_name(given))


def _is_pipe(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # told by whoever reads it
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _copy_stream(path: Path, folder: Path) -> Path:
    """A plain file with what a pipe holds; a plain file itself."""
    if path != STDIN and not _is_pipe(path):
        return path
    folder.mkdir()
    copy = folder / ("stdin" if path == STDIN else path.name)
    if path == STDIN and sys.stdin.isatty():
        raise _refuse(path, "a terminal", "a trace", "pipe one in: zcat trace.json.gz | ridgeline analyze -")
    try:
        with copy.open("wb") as target, _open_stream(path) as source:
            _pour(source, target, path, shutil.disk_usage(folder).free // 2)
    except OSError as wrong:
        raise _refuse(path, wrong.strerror or "unreadable", "a trace that can be read", "name a file") from None
    return copy


def _open_stream(path: Path) -> contextlib.AbstractContextManager[BinaryIO]:
    return contextlib.nullcontext(sys.stdin.buffer) if path == STDIN else path.open("rb")


def _pour(source: BinaryIO, target: BinaryIO, path: Path, room: int) -> None:
    while chunk := source.read(CHUNK):
        room -= len(chunk)
        if room < 0:
            given, todo = "more than half of the free space holds", "set TMPDIR, or name a file"
            raise _refuse(path, given, "a smaller trace", todo)
        target.write(chunk)


def _refuse(path: Path, given: str, expected: str, todo: str) -> InputError:
    return InputError(Problem(path="", given=given, expected=expected, todo=todo, where=_name(path)))


def _name(path: Path) -> str:
    return "standard input" if path == STDIN else str(path)
