"""Turn a Timeline into a trace file that chrome://tracing and Perfetto open.

    process     one per process of the timeline, in its order; threads are its streams
    X           a span: start and duration in microseconds, to the nanosecond
    C           a counter, one event per change
    M           names and order of processes and threads
    correlation the same number on work and on the call that launched it

Viewers count whole nanoseconds and drop spans of one thread that overlap by one. So starts and ends are rounded to
nanoseconds each, and a span that begins where another ends still does. Process 0 and thread 0 mean the idle task to
them, and a thread numbered like its process its first: so processes count from 1 and threads from a thousand a process.

A member named `ridgeline` says who wrote it and which process is which rank, so that reading gives the same timeline
back.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ridgeline.core.files import write_text
from ridgeline.core.units import DECIMAL
from ridgeline.trace.timeline import Timeline
from ridgeline.version import __version__

Event: TypeAlias = dict[str, Any]


def write_chrome(timeline: Timeline, path: Path) -> None:
    """Write the trace, whole or not at all. Names are strangers' text: JSON escapes them, nothing interprets them."""
    lines = ",\n".join(json.dumps(event, allow_nan=False, separators=(",", ":")) for event in chrome_events(timeline))
    own = json.dumps({"version": __version__, "ranks": timeline.tables.ranks})
    base = f'"baseTimeNanoseconds":{timeline.about.origin_ns}'
    write_text(path, f'{{"displayTimeUnit":"ms","ridgeline":{own},{base},"traceEvents":[\n' + lines + "\n]}\n")


def chrome_events(timeline: Timeline) -> Iterator[Event]:
    """The events of the trace: metadata first, then spans in timeline order, then counters.

    >>> from ridgeline.trace import Span
    >>> span = Span(process="stage 0", stream="compute", name="F0", kind="forward", start_s=1e-6, duration_s=2.4e-9)
    >>> list(chrome_events(Timeline.of([span])))[-1]
    {'ph': 'X', 'pid': 1, 'tid': 1000, 'name': 'F0', 'cat': 'forward', 'ts': 1.0, 'dur': 0.002}
    """
    processes = list(dict.fromkeys([*timeline.processes, *(counter.process for counter in timeline.counters)]))
    yield from _metadata(timeline, processes)
    yield from _spans(timeline)
    for counter in timeline.counters:
        process = processes.index(counter.process) + 1
        for time, value in zip(counter.times_s.tolist(), counter.values.tolist(), strict=True):
            yield {"ph": "C", "pid": process, "name": counter.name, "ts": _microseconds(time), "args": {"value": value}}


def _spans(timeline: Timeline) -> Iterator[Event]:
    line, names, kinds = timeline, timeline.names, timeline.kinds
    linked = np.where(line.launch >= 0, line.launch + 1, 0)
    calls = np.unique(line.launch[line.launch >= 0])
    linked[calls] = calls + 1
    columns = (line.process, line.stream, line.name, line.kind, line.start_s, line.duration_s, linked)
    for process, stream, name, kind, start, duration, link in zip(*(one.tolist() for one in columns), strict=True):
        span = {"ph": "X", "pid": process + 1, "tid": _thread(process, stream), "name": names[name], "cat": kinds[kind]}
        begin = _microseconds(start)
        span |= {"ts": begin, "dur": round(_microseconds(start + duration) - begin, 3)}
        yield span | {"args": {"correlation": link}} if link else span


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


def _microseconds(seconds: float) -> float:
    return round(seconds * DECIMAL["M"], 3)
