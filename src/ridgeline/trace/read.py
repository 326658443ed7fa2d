"""Turn trace files or folders of them into one Timeline, each file read by the first reader that knows its content."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.core.errors import InputError, Problem
from ridgeline.trace import chakra, kineto, nsys
from ridgeline.trace.build import Part, join
from ridgeline.trace.classes import Rules, classify
from ridgeline.trace.source import Progress, Source, refuse
from ridgeline.trace.timeline import Timeline

SUFFIXES = (".json", ".json.gz", ".sqlite", ".sqlite.gz", ".et", ".et.gz", ".gz")
MOST_FILES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One format: how it is recognised by a file's first bytes, and how the file becomes a part of a timeline."""

    name: str
    recognises: Callable[[bytes], bool]
    read: Callable[[Source], Part]


READERS: tuple[Reader, ...] = (
    Reader(name=kineto.FORMAT, recognises=kineto.recognises, read=kineto.read),
    Reader(name=nsys.FORMAT, recognises=nsys.recognises, read=nsys.read),
    Reader(name=chakra.FORMAT, recognises=chakra.recognises, read=chakra.read),
)
"""All formats, in the order they are tried."""


def read_timeline(*paths: Path | str, rules: Rules | None = None, progress: Progress | None = None) -> Timeline:
    """The timeline of one file, of several, or of all traces in a folder; every span classified.

    A file of a folder that is no trace is passed over with a warning; a file that was named must be one.

    ``progress`` is called with the bytes read so far and the bytes of all files.
    """
    files = list(_files([Path(path) for path in paths]))
    total = sum(_size(path) for path, _ in files)
    done = 0

    def tell(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    parts, passed_over = [], list[InputError]()
    for path, found in files:
        try:
            parts.append(_read(Source(path, tell)))
        except InputError as wrong:
            if not found:
                raise
            passed_over.append(wrong)
    if not parts:
        raise passed_over[0]
    return classify(_told(join(parts), passed_over), rules)


def _told(line: Timeline, passed_over: Sequence[InputError]) -> Timeline:
    """The timeline with a warning for every file of a folder that is no trace."""
    if not passed_over:
        return line
    warnings = (*line.about.warnings, *(f"not read: {wrong}" for wrong in passed_over))
    return replace(line, about=replace(line.about, warnings=warnings))


def _read(source: Source) -> Part:
    head = source.head()
    for reader in READERS:
        if reader.recognises(head):
            return reader.read(source)
    known = ", ".join(reader.name for reader in READERS)
    if not head:
        given = f"a file of which nothing can be read: {source.damage}" if source.damage else "an empty file"
        raise refuse(source.path, given, f"a trace ({known})", "check that the profiler finished writing it")
    raise refuse(
        source.path, f"a file that begins with {head[:16]!r}", f"a trace ({known})", "export it in that format"
    )


def _files(paths: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """Every file, and whether it was found in a folder rather than named."""
    if not paths:
        raise InputError(Problem(path="", given="no file", expected="at least one trace file or folder"))
    for path in paths:
        if not path.exists():
            raise refuse(path, "no such file", "a trace file or a folder of them", "check the path")
        if not path.is_dir():
            yield path, False
            continue
        inside = sorted(entry for entry in path.iterdir() if entry.is_file() and entry.name.endswith(SUFFIXES))
        if not inside:
            raise refuse(path, "a folder without traces", f"files named *{', *'.join(SUFFIXES[:2])}", "name the files")
        if len(inside) > MOST_FILES:
            raise refuse(path, f"{len(inside)} files", f"at most {MOST_FILES}", "name the files of some ranks")
        yield from ((entry, True) for entry in inside)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
