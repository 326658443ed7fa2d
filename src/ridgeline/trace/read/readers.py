"""Turn trace files or folders of them into one Timeline, each file read by the first reader that knows its content."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.core.errors import InputError
from ridgeline.trace.classes import Rules, built_in, classify
from ridgeline.trace.read import chakra, kernel_counters, kernel_tables, kineto, memory_snapshot, sqlite_files, xplane
from ridgeline.trace.read.chrome_dialects import overlap_doubts
from ridgeline.trace.read.folder import FolderFile, files_of, unzip_traces
from ridgeline.trace.read.host_marks import name_collectives
from ridgeline.trace.read.join import TracePart, join, last_captures
from ridgeline.trace.read.kernel_counters import CounterFile
from ridgeline.trace.read.memory_snapshot import MemoryRecord
from ridgeline.trace.read.source import Progress, TraceSource, doubt, refuse, what_it_is
from ridgeline.trace.read.timestamps import WORDS, nanos_of
from ridgeline.trace.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One format: how it is recognised by a file's first bytes, and how the file becomes a part of a timeline."""

    name: str
    recognises: Callable[[bytes], bool]
    read: Callable[[TraceSource], TracePart]
    any_unit: bool = True
    """Whether its times may be in another unit than its format says."""


READERS: tuple[Reader, ...] = (
    Reader(name=chakra.EXECUTION_TRACE, recognises=chakra.recognises_execution_trace, read=chakra.read_execution_trace),
    Reader(name=kineto.FORMAT, recognises=kineto.recognises, read=kineto.read),
    Reader(name=sqlite_files.FORMAT, recognises=sqlite_files.recognises, read=sqlite_files.read, any_unit=False),
    Reader(
        name=kernel_tables.ROCPROF,
        recognises=kernel_tables.recognises_rocprof,
        read=kernel_tables.read_rocprof,
        any_unit=False,
    ),
    Reader(
        name=kernel_tables.KERNEL_DETAILS, recognises=kernel_tables.recognises_ascend, read=kernel_tables.read_ascend
    ),
    Reader(name=xplane.FORMAT, recognises=xplane.recognises, read=xplane.read, any_unit=False),
    Reader(name=chakra.FORMAT, recognises=chakra.recognises, read=chakra.read),
)
"""All formats, in the order they are tried."""
NEVER = ("JSON of rocprofv3", "a tar archive")
"""What looks like a trace and is none that is read."""


def read_timeline(
    *paths: Path | str, rules: Rules | None = None, unit: str | None = None, progress: Progress | None = None
) -> Timeline:
    """The timeline of one file, of several, or of all traces in a folder; every span classified.

    A file of a folder that is no trace is passed over with a warning; a file that was named must be one.

    ``unit`` is the unit of the times, s, ms, us or ns, where a file does not keep to the one of its format.
    ``progress`` is called with the bytes read so far and the bytes of all files.
    """
    with unzip_traces([Path(path) for path in paths]) as places:
        parts, warnings = _parts(files_of(places), nanos_of(unit), progress)
    line = join([parts.pop(0) for _ in range(len(parts))])  # handed over: only the timeline is held from here on
    line = classify(name_collectives(_add_warnings(line, warnings)), rules)
    return _add_warnings(line, overlap_doubts(line, rules or built_in()))


def _parts(files: Sequence[FolderFile], nanos: int, progress: Progress | None) -> tuple[list[TracePart], list[str]]:
    """What the files hold, and what to say about those that are passed over or left out."""
    total = sum(file.path.stat().st_size for file in files if file.path.exists())
    done = 0

    def tell(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    parts, passed_over = [], list[InputError]()
    for file in files:
        try:
            parts.append(_place_part(_read(TraceSource(file.path, tell, nanos)), file))
        except InputError as wrong:
            if file.named:
                raise
            passed_over.append(wrong)
    if not parts:
        raise passed_over[0]
    kept_parts, warnings = last_captures(parts)
    return kept_parts, warnings + [f"not read: {wrong}" for wrong in passed_over]


def _place_part(part: TracePart, found: FolderFile) -> TracePart:
    if found.label:
        part = replace(part, about=replace(part.about, sources=(found.label,)))
    if found.rank is not None and part.rank is None and not part.tables.ranks:
        part = replace(part, rank=found.rank, piece=found.piece)
    if found.beside is None:
        return part
    try:
        return kernel_tables.attach_shapes(part, TraceSource(found.beside))
    except InputError as wrong:
        return _with_warnings(part, f"not read: {wrong}")


def _with_warnings(part: TracePart, *more: str) -> TracePart:
    return replace(part, about=replace(part.about, warnings=(*part.about.warnings, *more))) if more else part


def _add_warnings(line: Timeline, more: Sequence[str]) -> Timeline:
    return replace(line, about=replace(line.about, warnings=(*line.about.warnings, *more))) if more else line


def _read(source: TraceSource) -> TracePart:
    head = source.head()
    what, todo = what_it_is(source.path, head)
    for reader in READERS:
        if reader.recognises(head) and what not in NEVER and not memory_snapshot.recognises(head):
            part = reader.read(source)
            part = _with_warnings(part, *doubt(part.about.format))
            if not source.nanos:
                return part
            asked = f"times are read as {WORDS[source.nanos]}, as asked"
            return _with_warnings(part, asked if reader.any_unit else f"{reader.name} has nanoseconds only")
    reader_names = ", ".join(reader.name for reader in READERS)
    if not head:
        given_text = f"a file of which nothing can be read: {source.damage}" if source.damage else "an empty file"
        raise refuse(
            source.path, given_text, f"a trace ({reader_names})", ("check that the profiler finished writing it")
        )
    if memory_snapshot.recognises(head):
        what, todo = "a record of PyTorch's allocator", "name it alone: ridgeline analyze reads memory by itself"
    given_text = what or f"a file that begins with {head[:16]!r}"
    raise refuse(source.path, given_text, f"a trace ({reader_names})", todo or "export it in that format")


def read_untimed(path: Path) -> CounterFile | MemoryRecord | None:
    """Counters of kernels, or a record of an allocator, where a file holds one instead of a timeline; else None."""
    if not path.is_file():
        return None
    head = TraceSource(path).head()
    if kernel_counters.recognises(head):
        return kernel_counters.read_counter_file(path)
    return memory_snapshot.read_memory(path) if memory_snapshot.recognises(head) else None
