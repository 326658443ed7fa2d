"""Turn a Timeline into a trace file that chrome://tracing and Perfetto open.

    process     one per process of the timeline, in its order; threads are its streams
    X           a span: start and duration in microseconds, to the nanosecond
    C           a counter, one event per change
    M           names and order of processes and threads
    arguments   phase and layer, where they are known; of a send the rank it goes to; `correlation`, the same number on
                work and on the call that launched it

Viewers count whole nanoseconds and drop spans of one thread that overlap by one; so does a Timeline, and a span that
begins where another ends still does. Process 0 and thread 0 mean the idle task to them, and a thread numbered like its
process its first: so processes count from 1 and threads from a thousand a process.

A member named `ridgeline` says who wrote it, whether it is a prediction, which process is which rank, and the order of
processes, streams and kinds: reading gives the same spans, counters and launches back, to the nanosecond. Of the side
tables only what is named above is written.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ridgeline.core.documents import JsonObject
from ridgeline.core.files import write_text
from ridgeline.trace.timeline import NO_LAYER, PHASES, UNKNOWN, Timeline
from ridgeline.version import __version__

Event: TypeAlias = JsonObject
NANOS = 1000  # in the unit of the format, the microsecond


def write_chrome(timeline: Timeline, path: Path) -> None:
    """Write the trace, whole or not at all. Names are strangers' text: JSON escapes them, nothing interprets them."""
    lines = ",\n".join(json.dumps(event, allow_nan=False, separators=(",", ":")) for event in chrome_events(timeline))
    tables = timeline.tables
    own_table = json.dumps(
        {
            "version": __version__, "predicted": timeline.predicted, "ranks": tables.ranks,
            "processes": tables.processes, "streams": tables.streams, "kinds": tables.kinds,
        }
    )  # fmt: skip
    base = f'"baseTimeNanoseconds":{timeline.about.origin_ns}'
    write_text(path, f'{{"displayTimeUnit":"ms","ridgeline":{own_table},{base},"traceEvents":[\n' + lines + "\n]}\n")


def chrome_events(timeline: Timeline) -> Iterator[Event]:
    """The events of the trace: metadata first, then spans in timeline order, then counters.

    >>> from ridgeline.trace.timeline import Span
    >>> span = Span(process="stage 0", stream="compute", name="F0", start_ns=1000, duration_ns=2)
    >>> list(chrome_events(Timeline.of([span])))[-1]
    {'ph': 'X', 'pid': 1, 'tid': 1000, 'name': 'F0', 'cat': '', 'ts': 1.0, 'dur': 0.002}
    """
    processes = list(dict.fromkeys([*timeline.processes, *(counter.process for counter in timeline.counters)]))
    yield from _metadata(timeline, processes)
    yield from _spans(timeline)
    for counter in timeline.counters:
        process = processes.index(counter.process) + 1
        for time, value in zip(counter.times_ns.tolist(), counter.values.tolist(), strict=True):
            yield {"ph": "C", "pid": process, "name": counter.name, "ts": time / NANOS, "args": {"value": value}}


def _spans(timeline: Timeline) -> Iterator[Event]:
    line, names, kinds = timeline, timeline.names, timeline.kinds
    flow_ids = np.where(line.launch >= 0, line.launch + 1, 0)
    calls = np.unique(line.launch[line.launch >= 0])
    flow_ids[calls] = calls + 1
    columns = (line.process, line.stream, line.name, line.kind, line.start_ns, line.durations_ns(), flow_ids)
    own_columns = (line.phase, line.layer, line.detail.collective.at(np.arange(len(line))))
    rows = zip(*(column.tolist() for column in (*columns, *own_columns)), strict=True)
    for process, stream, name, kind, start, duration, link, *more in rows:
        span = {"ph": "X", "pid": process + 1, "tid": _thread(process, stream), "name": names[name], "cat": kinds[kind]}
        span |= {"ts": start / NANOS, "dur": duration / NANOS}
        args = _arguments(line, *more) | ({"correlation": link} if link else {})
        yield span | {"args": args} if args else span


def _arguments(line: Timeline, phase: int, layer: int, collective: int) -> Event:
    """What of a span is known beside its name; sends by the words of PyTorch's profiler."""
    args: Event = {}
    if phase != UNKNOWN:
        args["phase"] = PHASES[phase]
    if layer != NO_LAYER:
        args["layer"] = layer
    sent = line.detail.collectives[collective] if collective >= 0 else None
    if sent is not None and sent.to_rank >= 0:
        args |= {"Collective name": sent.name, "Dst Rank": sent.to_rank}
    return args


def _metadata(timeline: Timeline, processes: list[str]) -> Iterator[Event]:
    used = sorted(set(zip(timeline.process.tolist(), timeline.stream.tolist(), strict=True)))
    for process, text in enumerate(processes):
        yield {"ph": "M", "pid": process + 1, "name": "process_name", "args": {"name": text}}
        yield {"ph": "M", "pid": process + 1, "name": "process_sort_index", "args": {"sort_index": process}}
    for process, stream in used:
        thread = {"ph": "M", "pid": process + 1, "tid": _thread(process, stream)}
        yield thread | {"name": "thread_name", "args": {"name": timeline.streams[stream]}}
        yield thread | {"name": "thread_sort_index", "args": {"sort_index": stream}}


def _thread(process: int, stream: int) -> int:
    return (process + 1) * 1000 + stream
