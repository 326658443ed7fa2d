"""Turn an Analysis into one HTML file: an interactive timeline and every number beside it, nothing fetched.

The page is `trace_page/`: a frame, a style and scripts, put into one file with the data. Data is never markup: it lies
in blocks no browser executes, with `<`, `>` and `&` escaped, and the scripts write it as text only.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.arrays import Index, Mask
from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.encode import to_json
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import write_text
from ridgeline.core.records import dataclass
from ridgeline.core.units import format_duration
from ridgeline.hardware.what_if import system_title
from ridgeline.report.cells import time
from ridgeline.report.html import as_data, printable
from ridgeline.report.skeleton import PageHead, interval_words, page_document, prediction_evidence, scenario_facts
from ridgeline.sim import Prediction
from ridgeline.trace import Analysis, Timeline, launching_ops

# -- trace pack -------------------------------------------------------------------------------------------------------


MOST = 400_000  # spans a page keeps
BLOCKS = 400_000  # of what is not kept, over all tracks
POINTS = 20_000  # changes of a counter
HALF = 2**32
TYPES = {"<u2": "u16", "<u4": "u32", "<i4": "i32", "<f8": "f64"}

Rows = NDArray[np.intp]
Columns = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTimeline:
    """A timeline for a page: `layout` says where each column lies in the inflated bytes of `text`."""

    text: str
    layout: tuple[tuple[str, str, int, int], ...]
    """Name, type, first byte, number of values."""
    tables: JsonMapping
    kept: int
    of: int


def pack(
    line: Timeline, counted: Mask, wanted: Sequence[int] = (), most: int = MOST,
    layers: Columns | None = None,
) -> PackedTimeline:  # fmt: skip
    """The spans of a timeline as a page takes them; `wanted` rows are kept whatever their length.

    ``layers`` are further columns that go into the same bytes.
    """
    chosen = kept_rows(line, counted, wanted, most)
    kept = np.flatnonzero(chosen)
    start = line.start_ns
    duration = line.end_ns - start
    first = int(start.min()) if len(line) else 0
    kept = kept[np.lexsort((-duration[kept], start[kept]))]
    track, tracks = _tracks(line)
    paint, paints = _paints(line)
    columns: Columns = _times(start[kept] - first, duration[kept])
    columns["track"] = track[kept].astype(np.uint32)
    columns["paint"] = paint[kept].astype(np.uint32)
    columns["step"] = line.step[kept].astype(np.int32)
    columns["launch"] = _places(line.launch[kept], kept, len(line))
    columns["row"] = (kept - np.arange(len(kept))).astype(np.int32)
    distinct, place = np.unique(line.name[kept], return_inverse=True)
    columns["name"], names = place.astype(np.uint32), [printable(line.names[code]) for code in distinct.tolist()]
    more, tables = _details(line, kept)
    rest = np.flatnonzero(~chosen)
    window = int((start + duration).max()) - first if len(line) else 0
    bins = _bins(len(tracks))
    columns |= more | _blocks(start[rest] - first, duration[rest], track[rest], paint[rest], (max(1, window), bins))
    columns |= layers or {}
    counters = _counters(line, columns, first)
    text, layout = _bytes(columns)
    return PackedTimeline(
        text=text,
        layout=layout,
        tables={
            "window_ns": window, "first_ns": first, "bins": bins, "names": names, "paints": paints,
            "processes": _processes(line, counted), "tracks": tracks, "counters": counters, **tables,
        },
        kept=len(kept),
        of=len(line),
    )  # fmt: skip


def kept_rows(line: Timeline, counted: Mask, wanted: Sequence[int], most: int) -> Mask:
    """Which rows a page keeps: all if they are few, else those wanted and the longest."""
    if len(line) <= most:
        return np.ones(len(line), np.bool_)
    found = np.zeros(len(line), np.bool_)
    found[[row for row in wanted if 0 <= row < len(line)][:most]] = True
    work, host = np.flatnonzero(counted), np.flatnonzero(~counted)
    share = min(len(host), max(most // 4, most - len(work)))
    for rows, room in ((host, share), (work, most - share)):
        left = max(0, room - int(found[rows].sum()))
        rows = rows[~found[rows]]
        found[rows[np.argsort(-line.durations_ns(rows), kind="stable")[:left]]] = True
    return found


def _times(start: Index, duration: Index) -> Columns:
    step = np.diff(start, prepend=np.int64(0))
    return {
        "start": (step % HALF).astype(np.uint32),
        "start_high": (step // HALF).astype(np.uint32),
        "duration": (duration % HALF).astype(np.uint32),
        "duration_high": (duration // HALF).astype(np.uint32),
    }


def _tracks(line: Timeline) -> tuple[Index, list[JsonObject]]:
    """The track of every row; tracks are the pairs that occur, in the order of processes, then streams."""
    keys = line.tracks()
    distinct, track = np.unique(keys, return_inverse=True)
    found = [divmod(int(key), max(1, len(line.streams))) for key in distinct]
    return track.astype(np.int64), [
        {"process": process, "stream": printable(line.streams[stream], 80)} for process, stream in found
    ]


def _processes(line: Timeline, counted: Mask) -> list[JsonObject]:
    """Processes by number; one whose spans are not counted is a host's."""
    busy = set(np.unique(line.process[counted]).tolist())
    names = zip(line.processes, line.tables.ranks, strict=True)
    return [
        {"name": printable(name, 80), "rank": rank, "host": place not in busy}
        for place, (name, rank) in enumerate(names)
    ]


def _paints(line: Timeline) -> tuple[Index, list[JsonObject]]:
    """What each row is drawn as: a class, or where it has none a kind."""
    key = np.where(line.class_ > 0, line.class_.astype(np.int64), len(line.classes) + line.kind.astype(np.int64))
    distinct, paint = np.unique(key, return_inverse=True)
    found = []
    for code in distinct.tolist():
        is_class = code < len(line.classes)
        text = line.classes[code] if is_class else line.kinds[code - len(line.classes)]
        found.append({"id": printable(text or "work", 60), "class": is_class})
    return paint.astype(np.int64), found


def _places(rows: NDArray[np.integer], kept: Rows, count: int) -> NDArray[np.int32]:
    """Rows of the timeline as places among the kept: -1 stays, -2 for one that was not kept."""
    place = np.full(count + 1, -2, np.int32)
    place[kept] = np.arange(len(kept), dtype=np.int32)
    place[-1] = -1
    found: NDArray[np.int32] = place[rows]
    return found


def _details(line: Timeline, kept: Rows) -> tuple[Columns, JsonObject]:
    """Operands and the op that launched, bytes, collectives: as few columns as the trace has."""
    found: Columns = {}
    tables: JsonObject = {"operands": [], "collectives": []}
    op = launching_ops(line, kept) if (line.launch[kept] >= 0).any() else np.full(len(kept), -1, np.int32)
    if (op >= 0).any():
        found["op"], tables["ops"] = _sparse_texts(np.where(op >= 0, line.name[np.maximum(op, 0)], -1), line.names)
    if len(line.detail.shape):
        own = line.detail.shape.at(kept)
        shape = np.where(own >= 0, own, np.where(op >= 0, line.detail.shape.at(np.maximum(op, 0)), -1))
        found["shape"], tables["operands"] = _sparse_texts(shape, tuple(map(str, line.detail.shapes)))
    if len(line.detail.size_bytes):
        found["size"] = line.detail.size_bytes.at(kept).astype(np.float64)
    if len(line.detail.collective):
        texts = tuple(map(str, line.detail.collectives))
        found["collective"], tables["collectives"] = _sparse_texts(line.detail.collective.at(kept), texts)
    return found, tables


def _sparse_texts(codes: NDArray[np.integer], table: tuple[str, ...]) -> tuple[NDArray[np.int32], list[str]]:
    """Codes into a table of the texts that occur; -1 stays -1."""
    distinct, place = np.unique(codes, return_inverse=True)
    none = int(len(distinct) > 0 and distinct[0] < 0)
    return (place - none).astype(np.int32), [printable(table[code]) for code in distinct[none:].tolist()]


def _bins(tracks: int) -> int:
    """Equal parts of the time: a power of two, fewer where there are many tracks.

    >>> _bins(10), _bins(5000)
    (8192, 64)
    """
    return min(8192, max(64, 1 << ((BLOCKS // max(1, tracks)).bit_length() - 1)))


def _blocks(start: Index, duration: Index, track: Index, paint: Index, grid: tuple[int, int]) -> Columns:
    """What is not kept, by track and part of the time: how many spans, how much they cover, what most of it is."""
    if not len(start):
        return {}
    window, bins = grid
    width = window / bins
    place = np.minimum((start / width).astype(np.int64), bins - 1)
    paints = int(paint.max()) + 1
    key = (track * bins + place) * paints + paint
    distinct, group, counts = np.unique(key, return_inverse=True, return_counts=True)
    covered = np.bincount(group, weights=np.minimum(duration, width), minlength=len(distinct))
    block, inverse = np.unique(distinct // paints, return_inverse=True)
    order = np.lexsort((covered, inverse))
    last = np.flatnonzero(np.diff(inverse[order], append=len(block)))
    total = np.bincount(inverse, weights=covered, minlength=len(block))
    return {
        "block_track": (block // bins).astype(np.uint32),
        "block_place": (block % bins).astype(np.uint32),
        "block_spans": np.bincount(inverse, weights=counts, minlength=len(block)).astype(np.uint32),
        "block_cover": np.rint(np.minimum(total / width, 1) * 65535).astype(np.uint32),
        "block_paint": (distinct[order[last]] % paints).astype(np.uint32),
    }


def _counters(line: Timeline, columns: Columns, first: int) -> list[JsonObject]:
    """Counters, thinned to the largest value of equal parts where they change too often."""
    found = []
    for place, counter in enumerate(line.counters[:64]):
        times, values = counter.times_ns, counter.values
        every = -(-len(times) // POINTS) if len(times) else 1
        if every > 1:
            cuts = np.arange(0, len(times), every)
            times, values = times[cuts], np.maximum.reduceat(values, cuts)
        columns[f"times_{place}"] = (times - first).astype(np.float64)
        columns[f"values_{place}"] = values.astype(np.float64)
        process = line.processes.index(counter.process) if counter.process in line.processes else -1
        found.append({"process": process, "name": printable(counter.name, 80), "peak": counter.peak})
    return found


def _bytes(columns: Columns) -> tuple[str, tuple[tuple[str, str, int, int], ...]]:
    """Columns behind each other, each from a multiple of eight bytes on, deflated and as base64."""
    parts, layout, at = [], [], 0
    for name, values in columns.items():
        small = values.dtype == np.uint32 and (not len(values) or int(values.max()) < 2**16)
        plain = np.ascontiguousarray(values, np.uint16 if small else values.dtype).astype(
            values.dtype.newbyteorder("<") if not small else "<u2"
        )
        raw = plain.tobytes()
        raw += bytes(-len(raw) % 8)
        layout.append((name, TYPES[plain.dtype.newbyteorder("<").str], at, len(values)))
        parts.append(raw)
        at += len(raw)
    packed = zlib.compress(b"".join(parts), 6)
    return base64.b64encode(packed).decode("ascii"), tuple(layout)


# -- trace layers -----------------------------------------------------------------------------------------------------


MOST_GAPS, MOST_PIECES = 120_000, 200_000
MOST_EDGES = 600_000  # a page that replays more would be too large
OTHER, HOST, FIRST = 0, 1, 2  # what a question can scale: nothing, the host, or class FIRST and up


def layers_of(found: Analysis, first_ns: int) -> tuple[Columns, JsonObject]:
    """Columns and tables of all layers; those that would be too large are left out."""
    path, tracks = _path(found, first_ns)
    edges, classes = _replay(found)
    tables: JsonObject = {"gap_causes": list(found.gap_causes), "replay_classes": classes, "path_tracks": tracks}
    return _gaps(found, first_ns) | path | edges, tables


def _gaps(found: Analysis, first_ns: int) -> Columns:
    gaps, line = found.gaps, found.timeline
    if gaps is None or not len(gaps.length):
        return {}
    kept = np.sort(np.argsort(-gaps.length, kind="stable")[:MOST_GAPS])
    end = line.start_ns[gaps.ended[kept]]
    order = np.argsort(end - gaps.length[kept], kind="stable")
    kept, end = kept[order], end[order]
    return {
        "gap_start": (end - gaps.length[kept] - first_ns).astype(np.float64),
        "gap_length": gaps.length[kept].astype(np.float64),
        "gap_cause": gaps.cause[kept].astype(np.uint32),
        "gap_process": line.process[gaps.ended[kept]].astype(np.uint32),
    }


def _path(found: Analysis, first_ns: int) -> tuple[Columns, list[int]]:
    """Pieces with a span, by time; clocks of ranks are put back to those of the trace."""
    if found.critical is None or found.graph is None:
        return {}, []
    pieces, line = found.critical.pieces, found.timeline
    own = np.flatnonzero(pieces.row >= 0)[::-1][:MOST_PIECES]
    rows = pieces.row[own]
    shift = np.array([found.graph.matched.shift.get(rank, 0) for rank in line.tables.ranks] or [0], np.int64)
    start = pieces.start[own] + shift[line.process[rows]] - first_ns
    distinct, track = np.unique(line.tracks(), return_inverse=True)
    return {
        "path_start": start.astype(np.float64),
        "path_length": (pieces.end[own] - pieces.start[own]).astype(np.float64),
        "path_track": track[rows].astype(np.uint32),
    }, list(range(len(distinct)))


def _replay(found: Analysis) -> tuple[Columns, list[str]]:
    """Edges that a page replays, with the classes that a question can scale; a point that is not of work is on chip 0,
    a start on chip c is 2 c + 1 and an end 2 c + 2."""
    graph = found.graph
    if graph is None or not 0 < len(graph.dst) <= MOST_EDGES:
        return {}, []
    line = graph.line
    row = np.maximum(graph.row_of(graph.dst), 0)
    body = graph.is_body & (graph.row_of(graph.dst) >= 0) & (graph.lag > 0)
    used = np.unique(line.class_[row[body]]).tolist()
    code = np.zeros(len(line.classes), np.int64)
    code[used] = np.arange(len(used)) + FIRST
    is_source = np.ones(len(graph.at), np.bool_)
    is_source[graph.dst] = False
    work, chip = graph.points.work, np.zeros(len(graph.at), np.uint32)
    _, place = np.unique(line.process[work], return_inverse=True)
    chip[graph.points.start(work)] = 2 * place + 1
    chip[graph.points.end(work)] = 2 * place + 2
    return {
        "edge_source": graph.src.astype(np.uint32),
        "edge_target": graph.dst.astype(np.uint32),
        "edge_lag": graph.lag.astype(np.float64),
        "edge_what": np.where(body, code[line.class_[row]], np.where(graph.is_host, HOST, OTHER)).astype(np.uint32),
        "point_delay": (graph.delay - np.where(is_source, int(graph.at.min(initial=0)), 0)).astype(np.float64),
        "point_chip": chip,
    }, [line.classes[class_code] for class_code in used]


# -- the page ---------------------------------------------------------------------------------------------------------

PARTS = Path(__file__).parent / "trace_page"
SCRIPTS = ("data.js", "lanes.js", "paint.js", "stage.js", "over.js", "input.js", "panel.js",
           "figures.js", "layers.js", "flame.js", "range.js",
           "replay.js", "sections.js", "charts.js", "main.js")  # fmt: skip
OPS = 400  # names in the table of ops
FEWEST = 1000  # spans it makes sense to keep
_MARK = re.compile(r"\{\{(\w+)\}\}")


def write_trace_page(
    found: Analysis, path: Path, most: int = MOST, *, command: str = "", prediction: Prediction | None = None
) -> PackedTimeline:
    """Write the page of an analysis, whole or not at all; what was packed says how many spans it keeps.

    The timeline of a predicted step comes with its prediction, which the head of the page is of.
    """
    head = step_head(found, prediction, command) if prediction is not None else trace_head(found, command)
    text, packed = page(found, most, head)
    write_text(path, text)
    return packed


def page(found: Analysis, most: int = MOST, head: PageHead | None = None) -> tuple[str, PackedTimeline]:
    """The text of the page, and what it holds; without a head that of a trace."""
    if most < FEWEST:
        raise InputError(Problem(path="--html-spans", given=str(most), expected=f"a number from {FEWEST:,} up"))
    sheet = to_json(found)
    first = int(found.timeline.start_ns.min()) if len(found.timeline) else 0
    columns, tables = layers_of(found, first)
    packed = pack(found.timeline, found.counted_mask, tuple(_rows(sheet)), most, columns)
    facts = {
        **{printable(key): _clean_value(value) for key, value in sheet.items()},
        "top_ops": [{**to_json(op), "name": printable(op.name)} for op in found.breakdown.names[:OPS]],
        "roof": _roof(found),
        "step_windows": _steps(found, int(packed.tables["first_ns"])),
    }
    layout = {**packed.tables, **tables, "layout": packed.layout, "kept": packed.kept, "of": packed.of}
    paints = {one["id"]: found.rules.group_of(one["id"]) for one in packed.tables["paints"] if one["class"]}
    data = {"facts": facts, "layout": layout | {"groups": paints}}
    return _fill_page(head or trace_head(found), data, packed.text), packed


def _fill_page(head: PageHead, data: JsonObject, spans: str) -> str:
    """The frame with the data put in, each place once; its style and its scripts."""
    places = {"facts": as_data(data["facts"]), "layout": as_data(data["layout"]), "spans": spans}
    frame = (PARTS / "page.html").read_text(encoding="utf-8")
    scripts = "\n".join((PARTS / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return page_document(
        head,
        _MARK.sub(lambda mark: places[mark[1]], frame),
        style=(PARTS / "page.css").read_text(encoding="utf-8"),
        script=f'"use strict";\n(() => {{\n{scripts}\n}})();\n',
    )


def trace_head(found: Analysis, command: str = "") -> PageHead:
    """The head of the page of a trace: where its time goes, and what would gain most."""
    about = found.timeline.about
    names = about.sources
    files = ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
    chips = ", ".join(dict.fromkeys(about.chips))
    return PageHead(
        verb="analyze",
        question=f"Where does the time of {printable(files) or 'this timeline'} go?",
        answer=_answer(found),
        certainty="Times are those of the trace, to the nanosecond of its clock. A gain is at most what is named: what "
        "the removed time hid may appear behind it.",
        subject=(
            ("Trace", f"{printable(files)} ({about.format})" if files else about.format),
            ("Machine", printable(chips) or (found.chip.id if found.chip else "")),
        ),
        evidence="Measured by the program that wrote the trace; peaks are the data sheet's."
        if not found.timeline.predicted
        else prediction_evidence(),
        command=command,
    )


def step_head(found: Analysis, prediction: Prediction, command: str = "") -> PageHead:
    """The head of the page of a predicted step: how long it takes by its interval, and where its time goes."""
    scenario = prediction.scenario
    work = scenario.workload
    return PageHead(
        verb="timeline",
        question=f"Where does a step of {scenario.model.id} on {system_title(scenario.system)} go?",
        answer=f"{prediction.utilization.mfu:.1%} MFU and {prediction.tokens_per_s_per_chip:,.0f} tokens/s a chip. "
        + _answer(found),
        certainty=f"{format_duration(prediction.step_time_s, 4)} a step in closed form, "
        f"{format_duration(found.timeline.span_s, 4)} event by event; {interval_words(prediction.interval)}",
        subject=(
            ("Scenario", scenario.name),
            *scenario_facts(scenario),
            ("Workload", f"{work.sequences:,} sequences of {work.seq:,} tokens a step"),
        ),
        evidence=prediction_evidence(),
        command=command,
    )


def _answer(found: Analysis) -> str:
    """Shares of the span, and the finding with the largest gain."""
    total = found.breakdown.total
    span = total.span_ns or 1
    parts = {
        "compute": total.compute_ns,
        "exposed communication": total.exposed_communication_ns,
        "idle": total.idle_ns,
    }
    shares = ", ".join(f"{ns / span:.1%} {name}" for name, ns in parts.items() if ns / span >= LEAST)
    first = f"{time(total.span_ns)} are {shares or 'neither compute, exposed communication nor idle'}"
    if not found.findings:
        return f"{first}; nothing that could be mended costs more than 1 % of it."
    best = found.findings[0]
    return f"{first}; the largest finding could gain {best.predicted_gain:.1%}: {printable(best.what)}."


LEAST = 0.001  # of a span: smaller shares are not in the answer


def _rows(sheet: object) -> Iterator[int]:
    """Every row of the timeline that the JSON of an analysis names, wherever in it."""
    if isinstance(sheet, dict):
        for key, value in sheet.items():
            if key == "span_id" and isinstance(value, int):
                yield value
            elif key == "span_ids" and isinstance(value, list):
                yield from (row for row in value if isinstance(row, int))
            else:
                yield from _rows(value)
    elif isinstance(sheet, list):
        for value in sheet:
            yield from _rows(value)


def _clean_value(value: object) -> object:
    """Data whose texts are fit for a page."""
    if isinstance(value, dict):
        return {printable(str(key)): _clean_value(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean_value(inner) for inner in value]
    return printable(value, 600) if isinstance(value, str) else value


def _roof(found: Analysis) -> JsonObject | None:
    """Peaks and bandwidth of the chip, as far as they are published."""
    chip = found.chip
    if chip is None or chip.hbm.bandwidth is None:
        return None
    used = {rate.dtype for rate in found.rates if rate.flops}
    return {
        "chip": chip.id,
        "bytes_per_s": chip.hbm.bandwidth.value,
        "peaks": {dtype: peak.value for dtype, peak in chip.peak.items() if dtype in used},
    }


def _steps(found: Analysis, first: int) -> list[JsonObject]:
    """When each step ran on the chips, all ranks together."""
    line = found.timeline
    rows = np.flatnonzero(found.counted_mask & (line.step >= 0))
    start, end, step = line.start_ns[rows] - first, line.end_ns[rows] - first, line.step[rows]
    return [
        {"step": number, "start_ns": int(start[step == number].min()), "end_ns": int(end[step == number].max())}
        for number in np.unique(step).tolist()[:500]
    ]
