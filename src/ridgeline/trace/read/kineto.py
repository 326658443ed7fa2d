"""Turn a PyTorch profiler (Kineto) trace, or any Chrome trace of that vocabulary, into columns.

Old and new categories, CUDA, ROCm and vendor devices are told apart by `kinds.toml`; a category that is not there by
the label of its process. What is dropped is counted, what is doubtful becomes a warning of the timeline.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from ridgeline.core.arrays import Mask
from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.trace.read.chrome_columns import BACKWARD as BACKWARD_ARROW
from ridgeline.trace.read.chrome_columns import LAUNCH as LAUNCH_ARROW
from ridgeline.trace.read.chrome_columns import ChromeColumns, Spans, Track
from ridgeline.trace.read.chrome_dialects import KINETO, SUMMED, XLA, XLA_LIMIT, dialect_of, overlap_told
from ridgeline.trace.read.chrome_events import UNREADABLE, EventDecoder, Fate, JsonStream, Member, NotJson
from ridgeline.trace.read.join import MOST_SPANS, CounterChanges, TracePart
from ridgeline.trace.read.source import TraceSource, refuse
from ridgeline.trace.read.timestamps import LARGEST, LAUNCH, MISSING, NANOS, doubt_unit
from ridgeline.trace.timeline import (
    ANNOTATION,
    HOST,
    KERNEL,
    MARKER,
    NOT_WORK,
    RUNTIME,
    About,
    Codes,
    Column,
    Layers,
    Longs,
    SideTables,
    Sparse,
    Tables,
)

FORMAT = KINETO
ARROWS = 2**53  # correlation ids that stand for arrows begin here
OWN = "ridgeline"  # the member by which a trace says that Ridgeline wrote it
TABLES = ("processes", "streams")
LONGEST = 200  # characters of the name of a process or stream
KINDS = Path(__file__).parent / "kinds.toml"
FACTS = (
    "schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds", "displayTimeUnit", "traceName",
    "cuda_runtime_version", "cuda_driver_version", "hip_runtime_version", "record_shapes", "profile_memory",
    "with_stack", OWN,
)  # fmt: skip
_DEVICE = re.compile(r"\b(GPU|NPU|XPU|HPU|MTIA|TPU|device|chip|accelerator|Ascend Hardware)(?=\d|\b)", re.IGNORECASE)
_NOISE = frozenset({"trace"})


@cache
def kinds() -> Mapping[str, str]:
    """Kind of every known category."""
    table = tomllib.loads(KINDS.read_text(encoding="utf-8"))
    return {word: kind for kind, words in table.items() for word in words}


def recognises(head: bytes) -> bool:
    """Whether a file begins like JSON."""
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")


def read(source: TraceSource) -> TracePart:
    """One file as columns; an `InputError` when it holds no trace at all."""
    columns, facts = ChromeColumns(source.nanos), JsonObject()
    decoder = EventDecoder(source.nanos)
    stream = JsonStream(source.chunks(), decoder)
    cut = False
    try:
        for item in stream:
            if not isinstance(item, Member):
                columns.take(item)
                if columns.full:
                    cut = True
                    break
            elif item.key in FACTS:
                facts[item.key] = _value(item.raw)
                columns.own = decoder.own = isinstance(facts.get(OWN), Mapping)
    except NotJson as wrong:
        raise refuse(
            source.path, f"a file that begins with {str(wrong)!r}" if str(wrong) else "an empty file",
            "a trace: JSON that begins with { or [", "check that the profiler finished writing it",
        ) from None  # fmt: skip
    if not columns.count:
        raise _no_spans(source, stream.fate, columns)
    return Finish(source, columns, facts).part(stream.fate, cut)


def _value(raw: bytes) -> object:
    try:
        return msgspec.json.decode(raw)
    except UNREADABLE:
        return None


def _no_spans(source: TraceSource, fate: Fate, gathered: ChromeColumns) -> Exception:
    if not fate.listed:
        given_text = "JSON without an event list"
        todo = "a trace has a list named traceEvents; is this another kind of file?"
    elif fate.unreadable or source.damage or not fate.closed:
        why = source.damage or ("its text is damaged" if fate.unreadable else "it ends early")
        given_text, todo = f"a trace of which nothing can be read: {why}", "record it again, or fetch it again whole"
    else:
        event_kinds = ", ".join(gathered.dropped) or "no events"
        given_text, todo = f"a trace without spans ({event_kinds})", "was anything running while the profiler was on?"
    return refuse(source.path, given_text, "a trace with at least one span", todo)


class Finish:
    """From gathered columns to a part: units, kinds, processes, counters, and what has to be said."""

    def __init__(
        self, source: TraceSource, gathered: ChromeColumns, facts: JsonMapping, *, exact: bool = False, format: str = ""
    ) -> None:
        self.source, self.gathered, self.facts = source, gathered, facts
        self.exact, self.format = exact, format
        """Whether the unit is beyond doubt; what to call the format where the dialect's name is another."""
        self.warnings: list[str] = []
        self.own: JsonMapping | None = facts[OWN] if isinstance(facts.get(OWN), Mapping) else None
        self.dialect = dialect_of(gathered)

    def part(self, fate: Fate, cut: bool) -> TracePart:
        columns = self.gathered
        start, duration = columns.column("start"), columns.column("duration")
        readable = self._readable(start, duration)
        track, category, name = (columns.column(column) for column in ("track", "category", "name"))
        tracks = list(columns.tracks)
        kind_table, kind = self._kinds(track, category, name, tracks)
        name = self._named_steps(name, track, tracks)
        overlap = overlap_told(columns, track[kind < 0], name[kind < 0], duration[kind < 0])
        readable &= kind >= 0
        columns.dropped["spans of the profiler itself"] += int((kind < 0).sum())
        place = np.where(readable, np.cumsum(readable, dtype=np.int32) - 1, -1).astype(np.int32)
        if not readable.all():
            start, duration, track, kind, name = (column[readable] for column in (start, duration, track, kind, name))
        self._doubt_unit(duration, kind, name, kind_table)
        process, stream, tables = self._tables(track, kind, tracks, kind_table)
        correlation = columns.column("correlation")[readable if not readable.all() else slice(None)]
        detail = self._follow_arrows(columns.detail(place), correlation, (start, duration, track, kind), kind_table)
        self._tell(fate, cut)
        if not len(start):
            raise _no_spans(self.source, fate, columns)
        base_ns = self.facts.get("baseTimeNanoseconds")
        base = base_ns if isinstance(base_ns, int) and 0 <= base_ns < LARGEST else 0
        return TracePart(
            start_ns=start + base,
            duration_ns=duration,
            process=process,
            stream=stream,
            name=name,
            kind=kind.astype(np.int32),
            correlation=correlation,
            tables=tables,
            rank=None if self.own is not None else self._rank(),
            detail=detail,
            counters=tuple(self._counters(base)),
            about=self._about(kind, kind_table),
            phase=self._own_column("phase", readable),
            layer=self._own_column("layer", readable),
            origin_ns=base if self.own is not None else None,
            predicted=self.own is not None and self.own.get("predicted") is True,
            overlap=overlap,
        )

    def _follow_arrows(
        self, detail: SideTables, correlation: Longs, columns: tuple[Column, ...], table: tuple[str, ...]
    ) -> SideTables:
        """The details with what flow arrows say; work without a correlation id gets that of its arrow."""
        start, duration, track, kind = columns
        flows = self.gathered.flows
        work = np.array([word not in NOT_WORK for word in table], np.bool_)[kind]
        calls, ops = (np.array([word == of for word in table], np.bool_)[kind] for of in (RUNTIME, HOST))
        spans = Spans(track=track, start=start, end=start + duration, work=work, host=ops)
        begun, arrow_ends = flows.pairs(LAUNCH_ARROW, replace(spans, host=calls))
        if len(begun):
            correlation[begun] = np.where(correlation[begun] > 0, correlation[begun], begun + ARROWS)
            correlation[arrow_ends] = correlation[begun]
        forward, backward = flows.pairs(BACKWARD_ARROW, spans)
        by_row = np.argsort(backward, kind="stable")
        links = Sparse(rows=backward[by_row].astype(np.int32), values=forward[by_row])
        return replace(detail, forward=links)

    def _readable(self, start: Longs, duration: Longs) -> Mask:
        has_start, lasting = start != MISSING, duration != MISSING
        forward = duration >= 0
        dropped_counts = self.gathered.dropped
        dropped_counts["spans without a readable time"] += int((~has_start).sum())
        dropped_counts["spans without a duration"] += int((has_start & ~lasting).sum())
        dropped_counts["spans of negative duration"] += int((has_start & lasting & ~forward).sum())
        return np.asarray(has_start & lasting & forward)

    def _named_steps(self, name: Codes, track: Codes, tracks: list[Track]) -> Codes:
        if not self.dialect.steps:
            return name
        names = self.gathered.names
        step_codes = np.array(
            [names[f"step {text}"] if text.isdecimal() else names[text] for text in list(names)], np.int32
        )
        steps = np.array([track in self.dialect.steps for track in tracks], np.bool_)[track]
        return np.where(steps, step_codes[name], name).astype(np.int32)

    def _kinds(self, track: Codes, category: Layers, name: Codes, tracks: list[Track]) -> tuple[tuple[str, ...], Codes]:
        """Kind of every span: by category, else by the label of its process; -1 for the profiler's own spans."""
        words = [word.lower() for word in self.gathered.categories]
        table = list(dict.fromkeys((*NOT_WORK, "memset", "memcpy", KERNEL)))
        if self.own is not None:
            kind_names = dict.fromkeys((*self._own_texts("kinds"), *self.gathered.categories))
            codes = {word: code for code, word in enumerate(kind_names)}
            return tuple(codes), np.array([codes[word] for word in self.gathered.categories], np.int32)[category]
        by_word = [table.index(kinds()[word]) if word in kinds() else -2 for word in words]
        kind = np.array([-1 if word in _NOISE else code for word, code in zip(words, by_word, strict=True)], np.int32)[
            category
        ]
        open_ = kind == -2
        if open_.any():
            device = np.array([self._is_device(pid) for pid, _ in tracks])[track]
            noise = np.array([self._sums_up(pid) for pid, _ in tracks])[track]
            kind[open_] = np.where(noise, -1, np.where(device, table.index(KERNEL), table.index(HOST)))[open_]
            open_ &= ~noise & ~np.array([track in self.dialect.kinds for track in tracks], np.bool_)[track]
            self._name_open(words, category[open_], device[open_])
        annotation = kind == table.index(ANNOTATION)
        if annotation.any():
            device = np.array([self._is_device(pid) for pid, _ in tracks])[track]
            kind[annotation & device] = table.index(MARKER)
        return tuple(table), self.dialect.apply_rules(kind, track, name, self.gathered, table)

    def _name_open(self, words: list[str], category: Layers, device: Mask) -> None:
        for code in np.unique(category).tolist():
            of_category = category == code
            on = int((of_category & device).sum())
            name = f"category {words[code][:60]!r}" if words[code] else "spans without a category"
            read_as = f"{on} as work of a device, " if on else ""
            self.warnings.append(
                f"{name}: {int(of_category.sum())} spans, {read_as}{int(of_category.sum()) - on} as host "
                "activity, by their process"
            )

    def _sums_up(self, pid: int | str) -> bool:
        """Whether a process holds no work but what a vendor's tool makes of it."""
        return any(SUMMED.match(text.get(pid, "")) for text in (self.gathered.processes, self.gathered.labels))

    def _is_device(self, pid: int | str) -> bool:
        label = self.gathered.labels.get(pid, "")
        return bool(_DEVICE.search(label or self.gathered.processes.get(pid, "")))

    def _tables(
        self, track: Codes, kind: Codes, tracks: list[Track], kind_table: tuple[str, ...]
    ) -> tuple[Codes, Codes, Tables]:
        """Processes and streams by name: a process with work on it is a chip, the others are hosts."""
        not_work = np.array([word in NOT_WORK for word in kind_table])
        works = np.zeros(len(tracks), np.bool_)
        works[np.unique(track[~not_work[kind]])] = True
        chips = {pid for (pid, _), busy in zip(tracks, works.tolist(), strict=True) if busy}
        processes, streams = ({text: code for code, text in enumerate(self._own_texts(of))} for of in TABLES)
        process, stream = np.zeros(len(tracks), np.int32), np.zeros(len(tracks), np.int32)
        for place in np.unique(track).tolist():
            pid, tid = tracks[place]
            thread = self.gathered.threads.get((pid, tid), "").strip()
            pid = self.dialect.chips.get(pid, pid)
            if self.own is not None:
                name, thread = self.gathered.processes.get(pid, str(pid)), thread or str(tid)
            else:
                name = self.dialect.names.get(pid) or (f"chip {pid}" if pid in chips else f"host {pid}")
                thread = thread or (f"stream {tid}" if pid in chips else f"thread {tid}")
            process[place] = processes.setdefault(name[:LONGEST], len(processes))
            stream[place] = streams.setdefault(thread[:LONGEST], len(streams))
        tables = Tables(
            processes=tuple(processes),
            streams=tuple(streams),
            names=tuple(self.gathered.names),
            kinds=kind_table,
            ranks=self._own_ranks(len(processes)) or self.dialect.ranks(processes),
        )
        return process[track], stream[track], tables

    def _own_ranks(self, count: int) -> tuple[int, ...]:
        if self.own is None:
            return ()
        own_ranks = self.own.get("ranks")
        if not isinstance(own_ranks, list) or len(own_ranks) != count:
            return tuple(range(count))
        good = all(type(rank) is int and 0 <= rank < 2**30 for rank in own_ranks)
        return tuple(own_ranks if good else range(count))

    def _own_texts(self, table: str) -> list[str]:
        """A table of a trace that Ridgeline wrote, in its order; empty for any other."""
        texts = self.own.get(table) if self.own is not None else None
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            return []
        limit = LONGEST if table in TABLES else None
        return list(dict.fromkeys(text[:limit] for text in texts))

    def _own_column(self, name: str, kept: Mask) -> Column | None:
        """A column of a trace that Ridgeline wrote; None for any other, and where it began before saying so."""
        column = self.gathered.column(name)
        return column[kept] if self.own is not None and len(column) == len(kept) else None

    def _doubt_unit(self, duration: Longs, kind: Codes, name: Codes, table: tuple[str, ...]) -> None:
        if self.source.nanos or self.own is not None or self.exact:
            return
        if self.gathered.nanos == 1:
            self.warnings.append("times are nanoseconds since 1970, not microseconds: they are read as such")
        work = np.array([word not in NOT_WORK for word in table])[kind]
        launching = np.array([bool(LAUNCH.search(text)) for text in self.gathered.names], np.bool_)
        calls = (kind == table.index(RUNTIME)) & launching[name]
        doubt = doubt_unit(duration[work], duration[calls], self.gathered.nanos or NANOS)
        if doubt:
            self.warnings.append(doubt)

    def _rank(self) -> int | None:
        distributed_info = self.facts.get("distributedInfo")
        rank = distributed_info.get("rank") if isinstance(distributed_info, Mapping) else None
        return rank if isinstance(rank, int) and 0 <= rank < 2**30 else None

    def _counters(self, base: int) -> Iterator[CounterChanges]:
        for (process, name), pieces in self.gathered.memory.items():
            at, values = (np.concatenate(column) for column in zip(*pieces, strict=True))
            good = (at != MISSING) & np.isfinite(values)
            owner = self.gathered.processes.get(int(process) if process.isdigit() else process, process)
            yield CounterChanges(
                process=owner if self.own is not None else f"chip {process}",
                name=name,
                times_ns=at[good] + base,
                values=values[good],
            )

    def _tell(self, fate: Fate, cut: bool) -> None:
        count = self.gathered.count
        if self.source.damage:
            self.warnings.insert(0, f"{self.source.damage}; the {count:,} spans before that are kept")
        elif cut:
            self.warnings.insert(0, f"more than {MOST_SPANS:,} spans; the rest of the file was not read")
        elif not fate.closed:
            self.warnings.insert(0, f"the file ends in the middle; the {count:,} spans before that are kept")
        if fate.unreadable:
            self.gathered.dropped["unreadable events"] += fate.unreadable
            self.warnings.append(f"{fate.unreadable:,} events could not be read and are left out")
        if fate.mended:
            self.warnings.append(
                f"{fate.mended:,} events hold text that is no JSON (nan, inf, stray characters); read anyway"
            )
        if self.dialect.format == XLA and count >= XLA_LIMIT and not self.format:
            self.warnings.append(f"XLA writes at most {XLA_LIMIT:,} events to this format: some are probably missing")
        for reason in ("spans without a readable time", "spans without a duration", "spans of negative duration"):
            if self.gathered.dropped[reason]:
                self.warnings.append(f"{self.gathered.dropped[reason]:,} {reason} are left out")

    def _about(self, kind: Codes, table: tuple[str, ...]) -> About:
        distributed_info = self.facts.get("distributedInfo")
        size = distributed_info.get("world_size") if isinstance(distributed_info, Mapping) else 0
        counts = np.bincount(kind, minlength=len(table)).tolist()
        mtia = any(word.lower().startswith("mtia") for word in self.gathered.categories)
        return About(
            sources=(self.source.name,),
            format="Ridgeline" if self.own is not None else (self.format or self.dialect.format) + " of MTIA" * mtia,
            chips=_chips(self.facts.get("deviceProperties")),
            world_size=size if isinstance(size, int) and 0 <= size < 2**30 else 0,
            kept={word: count for word, count in zip(table, counts, strict=True) if count},
            dropped={key: count for key, count in self.gathered.dropped.items() if count},
            warnings=tuple(self.warnings),
            properties={key: value for key, value in self.facts.items() if value is not None},
        )


def _chips(properties: object) -> tuple[str, ...]:
    """The name of the chips of a trace, once: hosts list all of theirs, of one sort."""
    if not isinstance(properties, list):
        return ()
    names = [str(entry.get("name", ""))[:100] for entry in properties if isinstance(entry, Mapping)]
    return tuple(dict.fromkeys(name for name in names if name))[:1]
