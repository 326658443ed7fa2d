"""Turn a file of a compiler into text within a budget, and say what is wrong with one that cannot be read."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.core.units import BINARY

MOST_TEXT = int(64 * BINARY["Mi"])  # bytes of a text: a compiled step of a large model takes 10 to 40
MOST_OPS = 200_000  # ops of a graph, called functions written out
MOST_RESULTS = 2_000_000  # tensors of one graph
MOST_RATIO = 200  # inflated bytes for each compressed byte of an archive's member
SMALL_MEMBER = int(4 * BINARY["Mi"])  # inflated bytes below which the ratio does not matter
HEAD = 65536  # characters in which a format is recognised


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSource:
    """A program as text, with the file it came from.

    head    the first characters, by which its format is recognised; of an archive the names of its members
    """

    path: Path
    text: str
    head: str


def archive_members(path: Path) -> tuple[str, ...]:
    """Names of the members of an archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return tuple(archive.namelist()[:100_000])
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as wrong:
        raise refuse_program(
            path, f"a damaged archive ({str(wrong)[:80]})", "a whole archive", "copy it again"
        ) from None


def archive_text(path: Path, member: str) -> str:
    """The text of one member, inflated within the budget."""
    try:
        with zipfile.ZipFile(path) as archive:
            info = archive.getinfo(member)
            limit = max(SMALL_MEMBER, info.compress_size * MOST_RATIO)
            if info.file_size > min(MOST_TEXT, limit):
                given = f"{member} of {info.file_size:,} bytes from {info.compress_size:,}"
                raise refuse_program(path, given, f"at most {min(MOST_TEXT, limit):,} bytes", "is this the right file?")
            with archive.open(info) as stream:
                data = stream.read(MOST_TEXT + 1)
        return data.decode("utf-8")
    except (
        zipfile.BadZipFile,
        zlib.error,
        OSError,
        KeyError,
        ValueError,
        EOFError,
        RuntimeError,
        NotImplementedError,
    ) as wrong:
        given = f"{member}, which cannot be read ({type(wrong).__name__})"
        raise refuse_program(path, given, "a whole archive", "write it again") from None


def refuse_program(path: Path, given: str, expected: str, todo: str = "", line: int = 0) -> InputError:
    """What is wrong with a program, at its line."""
    where = f"{path}:{line}" if line else str(path)
    return InputError(Problem(path="", given=given, expected=expected, todo=todo, where=where))
