"""Turn batches of events into growing columns, joined once at the end, and flow arrows into links between spans.

    fwdbwd    from the op that ran forward to the node of autograd that runs it backward: kept
    ac2g      from the call that launched work to that work: kept only while no work has a correlation id, which says
              the same; all other arrows are counted

An arrow is two events, `s` and `f`, of one id. Each points to a thread and an instant; the span meant is the last there
that began by then and has not ended.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from ridgeline.core.arrays import Array, Mask
from ridgeline.trace.read.chrome_events import NOTHING, UNREADABLE, Args, Event, OwnArgs
from ridgeline.trace.read.join import MOST_SPANS, Interned, SideColumn
from ridgeline.trace.read.timestamps import MISSING, NANOS, nanoseconds, unit_of
from ridgeline.trace.timeline import (
    MOST_LAYERS,
    NO_LAYER,
    PHASES,
    UNKNOWN,
    Codes,
    Column,
    Longs,
    RecordedCollective,
    RecordedShape,
    SideTables,
)

BACKWARD, LAUNCH = "backward", "launch"
SORTS = {
    "fwdbwd": BACKWARD, "fwd_bwd": BACKWARD, "forward_backward": BACKWARD, "fwd-bwd": BACKWARD,
    "ac2g": LAUNCH, "async_cpu_to_gpu": LAUNCH, "async_gpu": LAUNCH,
}  # fmt: skip
MOST_ID = 2**53


class Flows:
    """Ends of arrows while a file is read: ids, threads and instants, by sort."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[tuple[Longs, Codes, Longs, Mask]]] = {BACKWARD: [], LAUNCH: []}
        self._words: dict[str, int] = {}
        self.wanted = {BACKWARD, LAUNCH}

    def drop(self, sort: str) -> int:
        """Let the arrows of a sort go and take no more; says how many ends there were."""
        self.wanted.discard(sort)
        return sum(len(piece[0]) for piece in self._pieces.pop(sort, ()))

    def add(self, sort: str, events: Sequence[Event], tracks: Sequence[int], at: Longs) -> None:
        """Ends of arrows of one sort."""
        ids = np.array([self._id(event.id) for event in events], np.int64)
        begins = np.array([event.ph == "s" for event in events], np.bool_)
        self._pieces[sort].append((ids, np.array(tracks, np.int32), at, begins))

    def _id(self, id: object) -> int:
        if type(id) is int and 0 <= id < MOST_ID:
            return id
        return MOST_ID + self._words.setdefault(str(id)[:100], len(self._words))

    def pairs(self, sort: str, spans: Spans) -> tuple[Longs, Longs]:
        """Rows where arrows of a sort begin and where they end; one that begins may end at several."""
        pieces = self._pieces.get(sort)
        empty = np.zeros(0, np.int64)
        if not pieces:
            return empty, empty
        ids, track, at, begins = (np.concatenate(column) for column in zip(*pieces, strict=True))
        good = at != MISSING
        sources = np.flatnonzero(begins & good)
        sources = sources[np.argsort(ids[sources], kind="stable")]
        targets = np.flatnonzero(~begins & good)
        if not len(sources) or not len(targets):
            return empty, empty
        place = np.searchsorted(ids[sources], ids[targets], side="right") - 1
        match = sources[np.maximum(place, 0)]
        matching = (place >= 0) & (ids[match] == ids[targets])
        match, targets = match[matching], targets[matching]
        begun = spans.at(track[match], at[match], work=False)
        end_spans = spans.at(track[targets], at[targets], work=sort == LAUNCH)
        complete = (begun >= 0) & (end_spans >= 0)
        return begun[complete], end_spans[complete]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spans:
    """Spans of a file to be found by thread and instant: those of a chip, and calls or ops of a host."""

    track: Codes
    start: Longs
    end: Longs
    work: Mask
    host: Mask

    def at(self, track: Codes, times: Longs, *, work: bool) -> Longs:
        """The row each instant of a thread lies in, the one that began last; -1 for none."""
        span_rows = np.full(len(times), -1, np.int64)
        chosen = self.work if work else self.host
        for number in np.unique(track).tolist():
            rows = np.flatnonzero(chosen & (self.track == number))
            if not len(rows):
                continue
            rows = rows[np.argsort(self.start[rows], kind="stable")]
            on_track = np.flatnonzero(track == number)
            place = np.searchsorted(self.start[rows], times[on_track], side="right") - 1
            row = rows[np.maximum(place, 0)]
            span_rows[on_track] = np.where((place >= 0) & (times[on_track] <= self.end[row]), row, -1)
        return span_rows


Id = int | str
Track = tuple[Id, Id]
LARGEST = 2**62  # of ids and sizes: what is beyond is no number of theirs
_CONCRETE = ("conv", "attention", "flash", "sdpa", "attn", "fmha", "mha_")  # scalar operands change what they compute
_FLOWS = frozenset("stf")


class ChromeColumns:
    """What the batches of one file held. Codes of `track` and `category` are into the tables of the same name."""

    def __init__(self, nanos: int = 0) -> None:
        self.names, self.categories = Interned[str](), Interned[str]()
        self.tracks: Interned[Track] = Interned()
        self.processes: dict[int | str, str] = {}
        self.labels: dict[int | str, str] = {}
        self.threads: dict[Track, str] = {}
        self.dropped: Tally[str] = Tally()
        self.memory: dict[tuple[str, str], list[tuple[Longs, Array]]] = {}
        self._columns: dict[str, list[Column]] = {
            name: [] for name in ("start", "duration", "track", "name", "category", "correlation", "phase", "layer")
        }
        self.flows = Flows()
        self._sizes, self._shapes, self._collectives = SideColumn(), SideColumn(), SideColumn()
        self._shape_texts: Interned[tuple[bytes, bytes, bytes]] = Interned()
        self._collective_facts: Interned[tuple[str, ...]] = Interned()
        self._open: dict[Track, list[Event]] = {}
        self._keep_concrete: dict[str, bool] = {}
        self.count = 0
        self.nanos = nanos
        """Nanoseconds in the unit of the times: given, or found with the first spans."""
        self._xla = self._xla_host = False
        self.own = False
        """Whether Ridgeline wrote the file: then its arguments tell phase and layer."""

    @property
    def full(self) -> bool:
        return self.count >= MOST_SPANS

    def take(self, events: Sequence[Event]) -> None:
        """Add a batch."""
        spans = [event for event in events if event.ph == "X"]
        if len(spans) < len(events):
            other_events = [event for event in events if event.ph != "X" and event.ph not in _FLOWS]
            if len(spans) + len(other_events) < len(events):
                self._arrows([event for event in events if event.ph in _FLOWS])
            self._allocations([event for event in other_events if event.name == "[memory]"])
            for event in other_events:
                if event.name != "[memory]":
                    self._take_other(event, spans)
        if not spans:
            return
        if self._xla_host:
            self._on_host(spans)
        names, tracks, categories = self.names, self.tracks, self.categories
        columns, times = self._columns, [event.ts for event in spans]
        self.nanos = self.nanos or unit_of(times[:64])
        columns["start"].append(nanoseconds(times, self.nanos))
        columns["duration"].append(nanoseconds([event.dur for event in spans], self.nanos))
        columns["name"].append(
            np.array(self._xla_names(spans) if self._xla else [names[e.name] for e in spans], np.int32)
        )
        columns["track"].append(np.array([tracks[event.pid, event.tid] for event in spans], np.int32))
        columns["category"].append(np.array([categories[event.cat] for event in spans], np.int16))
        columns["correlation"].append(self._arguments(spans))
        if self.own:
            columns["phase"].append(np.array([_phase(event.args) for event in spans], np.int8))
            columns["layer"].append(np.array([_layer(event.args) for event in spans], np.int16))
        self.count += len(spans)
        if LAUNCH in self.flows.wanted:
            links = zip(spans, columns["correlation"][-1].tolist(), strict=True)
            if any(link > 0 and event.args is not None and event.args.stream is not None for event, link in links):
                self.dropped["flow arrows"] += self.flows.drop(LAUNCH)  # work says who launched it

    def _arrows(self, events: Sequence[Event]) -> None:
        """Keep the arrows that say something nothing else says."""
        arrows = 0
        for sort in sorted(self.flows.wanted):
            sort_events = [event for event in events if SORTS.get(event.cat) == sort and event.ph != "t"]
            if sort_events:
                at = nanoseconds([event.ts for event in sort_events], self.nanos or NANOS)
                self.flows.add(sort, sort_events, [self.tracks[event.pid, event.tid] for event in sort_events], at)
                arrows += len(sort_events)
        self.dropped["flow arrows"] += len(events) - arrows

    def _xla_names(self, spans: Sequence[Event]) -> list[int]:
        """Names of XLA's ops with their category behind them where the name does not say it: most are just fusions."""
        names, xla_names = self.names, []
        for event in spans:
            category = event.args.hlo_category if event.args is not None else None
            adds_category = isinstance(category, str) and 0 < len(category) < 60 and category not in event.name
            xla_names.append(names[f"{event.name} [{category}]" if adds_category else event.name])
        return xla_names

    def _on_host(self, spans: Sequence[Event]) -> None:
        """Spans of a host of XLA: ops that it runs itself go to a device of their own, steps get their number."""
        for event in spans:
            args = event.args
            if args is None:
                continue
            if args.hlo_op is not None and not self._xla:
                pid = f"/device:CPU:{_as_int(args.device_ordinal)}"
                self.processes[pid] = pid
                self.threads[pid, event.tid] = self.threads.get((event.pid, event.tid), "")
                event.pid = pid
            elif args.step_num is not None:
                event.name = f"step {_as_int(args.step_num)}"

    def _arguments(self, spans: Sequence[Event]) -> Longs:
        correlation = [0] * len(spans)
        row = self.count
        for place, event in enumerate(spans):
            args = event.args
            if args is None:
                continue
            link = args.correlation
            if link is not None:
                correlation[place] = link if type(link) is int and 0 < link < LARGEST else _as_int(link)
            elif args.correlation_id is not None:
                correlation[place] = _as_int(args.correlation_id)
            elif args.connection_id is not None:
                correlation[place] = _as_int(args.connection_id)
            if args.bytes is not None:
                self._sizes.add(row + place, _as_int(args.bytes))
            if args.dims is not NOTHING:
                self._shapes.add(row + place, self._shape(event.name, args))
            if args.collective is not None:
                self._collectives.add(row + place, self._collective_facts[_facts(args)])
        return np.array(correlation, np.int64)

    def _shape(self, name: str, args: Args) -> int:
        keep = self._keep_concrete.get(name)
        if keep is None:
            keep = self._keep_concrete[name] = any(word in name for word in _CONCRETE)
        concrete = bytes(args.concrete) if keep else b""
        return self._shape_texts[bytes(args.dims), bytes(args.types), concrete]

    # -- what is no span ----------------------------------------------------------------------------------------------

    def _take_other(self, event: Event, spans: list[Event]) -> None:
        ph = event.ph
        if ph == "M":
            self._metadata(event)
        elif ph == "B":
            self._open.setdefault((event.pid, event.tid), []).append(event)
        elif ph == "E":
            self._close(event, spans)
        elif ph == "C" and event.args is not None:
            self._change(f"{event.pid}", event.name, [event.ts], [event.args.value])
        elif ph in ("i", "I"):
            self.dropped["instants"] += 1
        elif ph or event.name:  # XLA ends its list with an empty event
            self.dropped[f"events of type {ph[:8]!r}"] += 1

    def _close(self, event: Event, spans: list[Event]) -> None:
        open_events = self._open.get((event.pid, event.tid))
        begun = open_events.pop() if open_events else None
        if begun is None:
            self.dropped["ends without a begin"] += 1
            return
        nanos = self.nanos or NANOS
        start, end = (int(value) for value in nanoseconds([begun.ts, event.ts], nanos))
        if start == MISSING or end == MISSING:
            self.dropped["spans without a readable time"] += 1
            return
        begun.ph, begun.dur = "X", (end - start) / nanos
        spans.append(begun)

    def _metadata(self, event: Event) -> None:
        args = event.args
        if args is None:
            return
        if event.name == "process_name" and isinstance(args.name, str):
            self.processes[event.pid] = args.name
            self._xla = self._xla or args.name.startswith("/device:")
            self._xla_host = self._xla_host or args.name.startswith("/host:")
        elif event.name == "process_labels" and isinstance(args.labels, str):
            self.labels[event.pid] = args.labels
        elif event.name == "thread_name" and isinstance(args.name, str):
            self.threads[event.pid, event.tid] = args.name

    def _allocations(self, events: Sequence[Event]) -> None:
        """Changes of device memory, by device; the profiler counts host memory as device -1 or type 0."""
        samples = [(event.ts, event.args) for event in events if event.args is not None]
        for device in {str(args.device) for _, args in samples if args.device_type != 0}:
            device_samples = [
                (time, args) for time, args in samples if str(args.device) == device and args.device_type != 0
            ]
            times = [time for time, _ in device_samples]
            self._change(device, "allocated bytes", times, [args.allocated for _, args in device_samples])
            self._change(device, "reserved bytes", times, [args.reserved for _, args in device_samples])
        self.dropped["allocations of host memory"] += sum(args.device_type == 0 for _, args in samples)

    def _change(self, process: str, name: str, times: Sequence[object], values: Sequence[object]) -> None:
        try:
            array = np.array(values, np.float64)
        except (TypeError, ValueError, OverflowError):
            self.dropped["counter values that are no number"] += len(values)
            return
        self.memory.setdefault((process, name), []).append((nanoseconds(times, self.nanos or NANOS), array))

    # -- the end ------------------------------------------------------------------------------------------------------

    def column(self, name: str) -> Column:
        """A column, whole; what it was made of is let go."""
        pieces = self._columns.pop(name)
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)

    def detail(self, place: Column) -> SideTables:
        """The side tables, with rows after dropping."""
        self.dropped["spans never ended"] += sum(map(len, self._open.values()))
        return SideTables(
            size_bytes=self._sizes.done(place),
            shape=self._shapes.done(place),
            shapes=tuple(_shape_of(*texts) for texts in self._shape_texts),
            collective=self._collectives.done(place),
            collectives=tuple(_collective_of(facts) for facts in self._collective_facts),
        )


def _as_int(value: object) -> int:
    """A number that profilers write as int, float or text; 0 for what is none."""
    try:
        number = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return 0
    return number if 0 <= number < LARGEST else 0


def _phase(args: Args | None) -> int:
    phase = args.phase if isinstance(args, OwnArgs) else None
    return PHASES.index(phase) if isinstance(phase, str) and phase in PHASES else UNKNOWN


def _layer(args: Args | None) -> int:
    layer = args.layer if isinstance(args, OwnArgs) else None
    return layer if type(layer) is int and 0 <= layer <= MOST_LAYERS else NO_LAYER


def _facts(args: Args) -> tuple[str, ...]:
    facts = (
        args.collective, args.dtype, args.in_elements, args.out_elements, args.group_size, args.group, args.ranks,
        args.from_rank, args.to_rank,
    )  # fmt: skip
    return tuple("" if fact is None else str(fact)[:400] for fact in facts)


def _collective_of(facts: tuple[str, ...]) -> RecordedCollective:
    name, dtype, count_in, count_out, size, group, ranks, sender, receiver = facts
    from_rank, to_rank = (_as_int(rank) if rank else -1 for rank in (sender, receiver))
    return RecordedCollective(
        name=name,
        dtype=dtype,
        in_elements=_as_int(count_in),
        out_elements=_as_int(count_out),
        group_size=_as_int(size),
        group=group,
        ranks=ranks,
        from_rank=from_rank,
        to_rank=to_rank,
    )


def _shape_of(dims: bytes, types: bytes, concrete: bytes) -> RecordedShape:
    return RecordedShape(dims=_frozen(_entries(dims), 4), types=_words(types), concrete=_words(concrete))


def _entries(raw: bytes) -> list[object]:
    try:
        entries = msgspec.json.decode(raw) if raw else []
    except UNREADABLE:
        return []
    return entries if isinstance(entries, list) else []


def _frozen(value: object, depth: int) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(item, depth - 1) for item in value) if depth else ()
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _words(raw: bytes) -> tuple[str, ...]:
    return tuple(str(item)[:400] for item in _entries(raw))
