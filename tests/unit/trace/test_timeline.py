"""A Timeline keeps what it was given, in one order, and survives a file with any text in it."""

import json
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.trace import write_chrome
from ridgeline.trace.chrome_writer import chrome_events
from ridgeline.trace.read.readers import read_timeline
from ridgeline.trace.timeline import NO_LAYER, PHASES, Counter, Span, Timeline, nanoseconds_of

HOSTILE = '</script><img src=x onerror=alert(1)> "quoted" \\ \n\x00\u2028 ' + "\N{SNOWMAN}" * 3


def span(start: int, duration: int, *, process: str = "p", stream: str = "s", name: str = "n", kind: str = "") -> Span:
    return Span(process=process, stream=stream, name=name, kind=kind, start_ns=start, duration_ns=duration)


def counter(times: list[int], values: list[float], name: str = "bytes") -> Counter:
    return Counter(process="p", name=name, times_ns=np.array(times, np.int64), values=np.array(values))


def test_spans_come_back_in_order_of_time() -> None:
    spans = [span(2, 1, name="late"), span(0, 1, name="early"), span(0, 1, name="early too")]
    assert [row.name for row in Timeline.of(spans)] == ["early", "early too", "late"]
    assert list(Timeline.of(spans)) == [spans[1], spans[2], spans[0]]


def test_at_one_instant_the_kind_that_was_named_first_leads() -> None:
    spans = [span(0, 1, kind="send"), span(1, 0, kind="forward", name="b"), span(1, 0, kind="send", name="a")]
    assert [row.name for row in Timeline.of(spans)] == ["n", "a", "b"]


def test_equal_content_is_equal() -> None:
    spans = [span(0, 1), span(1, 2)]
    assert Timeline.of(spans) == Timeline.of(spans)
    assert Timeline.of(spans) != Timeline.of(spans[:1])
    assert counter([0], [1]) == counter([0], [1])
    assert counter([0], [1]) != counter([0], [2])


def test_columns_cannot_be_written() -> None:
    line = Timeline.of([span(0, 1)])
    with pytest.raises(ValueError, match="read-only"):
        line.start_ns[0] = 5


def test_a_span_costs_a_few_dozen_bytes() -> None:
    line = Timeline.of([span(i, 1, name=f"F{i % 8}") for i in range(1000)])
    columns = (line.start_ns, line.end_ns, line.process, line.stream, line.name, line.kind, line.phase, line.layer)
    assert sum(column.nbytes for column in columns) == 35 * len(line)


def test_busy_time_counts_overlaps_once() -> None:
    line = Timeline.of([span(0, 4), span(1, 1), span(6, 1), span(0, 9, stream="other"), span(0, 20, process="q")])
    assert line.busy_ns("p", "s") == 5
    assert line.busy_ns("p") == 9
    assert line.busy_ns("nobody") == 0
    assert (line.span_ns, line.span_s) == (20, 20e-9)


def test_nothing_is_a_timeline_too() -> None:
    line = Timeline.of([])
    assert (len(line), line.span_ns, list(line)) == (0, 0, [])
    assert list(chrome_events(line)) == []


@pytest.mark.parametrize("wrong", [(0, -1), (float("nan"), 1), (0, float("inf")), (0.5, 1)])
def test_impossible_times_are_refused(wrong: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"negative|whole nanoseconds"):
        Timeline.of([span(*wrong)])


def test_seconds_are_no_column() -> None:
    line = Timeline.of([span(0, 1)])
    with pytest.raises(ValueError, match="whole nanoseconds"):
        replace(line, start_ns=line.start_ns / 1e9)
    with pytest.raises(ValueError, match="whole nanoseconds"):
        Counter(process="p", name="n", times_ns=np.array([0.5]), values=np.array([1.0]))  # type: ignore[arg-type]


def test_phase_and_layer_stay_with_their_span() -> None:
    spans = [replace(span(5, 1), phase="backward", layer=3), replace(span(2, 1), phase="forward"), span(0, 9)]
    line = Timeline.of(spans, predicted=True)
    assert [(PHASES[code], layer) for code, layer in zip(line.phase, line.layer, strict=True)] == [
        ("unknown", NO_LAYER), ("forward", NO_LAYER), ("backward", 3),
    ]  # fmt: skip
    assert list(line) == spans[::-1]
    assert line.predicted


def test_a_counter_needs_a_value_for_each_time() -> None:
    with pytest.raises(ValueError, match="times"):
        counter([0, 1], [1])
    assert counter([0, 1, 2], [1, 7, 3]).peak == 7.0


def read(path: Path) -> list[dict[str, object]]:
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    assert isinstance(events, list)
    return events


def test_round_trip_through_a_file(tmp_path: Path) -> None:
    spans = [
        span(0, 1, process="stage 0", stream="compute", name="F0", kind="forward"),
        span(1_234_567, 100_000_001, process="stage 1", stream="send", name=HOSTILE, kind=HOSTILE),
    ]
    write_chrome(Timeline.of(spans, [counter([0, 1_000_000], [5.0, 0.0], HOSTILE)]), tmp_path / "trace.json")
    events = read(tmp_path / "trace.json")
    names = {(e["pid"], e.get("tid"), e["name"]): e["args"] for e in events if e["ph"] == "M"}
    back = [
        Span(
            process=names[e["pid"], None, "process_name"]["name"],  # type: ignore[index]
            stream=names[e["pid"], e["tid"], "thread_name"]["name"],  # type: ignore[index]
            name=str(e["name"]),
            kind=str(e["cat"]),
            start_ns=int(Decimal(str(e["ts"])) * 1000),
            duration_ns=int(Decimal(str(e["dur"])) * 1000),
        )
        for e in events
        if e["ph"] == "X"
    ]
    assert back == spans
    counts = [(e["name"], e["ts"], e["args"]) for e in events if e["ph"] == "C"]
    assert counts == [(HOSTILE, 0.0, {"value": 5.0}), (HOSTILE, 1000.0, {"value": 0.0})]


def test_neighbours_do_not_overlap_once_they_are_whole_nanoseconds() -> None:
    rng = np.random.default_rng(0)
    edges = nanoseconds_of(np.cumsum(rng.uniform(1e-10, 1e-3, 2000))).tolist()
    line = Timeline.of([span(a, b - a) for a, b in pairwise(edges)])
    rows = [(round(e["ts"] * 1000), round(e["dur"] * 1000)) for e in chrome_events(line) if e["ph"] == "X"]
    assert all(start + length == after for (start, length), (after, _) in pairwise(rows))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 2**50), st.integers(0, 2**40), st.integers(0, 4), st.integers(-1, 200)),
                min_size=1, max_size=20), st.booleans())  # fmt: skip
def test_a_file_gives_back_every_nanosecond(rows: list[tuple[int, int, int, int]], predicted: bool) -> None:
    """Starts after zero, kinds and processes in an order that time does not have: all of it survives."""
    spans = [
        Span(process=f"stage {at % 3}", stream="xy"[at % 2], name=f"n{length % 5}", kind="abc"[length % 3],
             start_ns=at, duration_ns=length, phase=PHASES[phase], layer=layer)
        for at, length, phase, layer in rows
    ]  # fmt: skip
    line = Timeline.of(spans, [counter([3, 2**50], [0.1, 1e12])], streams=("y", "never used"), predicted=predicted)
    with TemporaryDirectory() as folder:
        write_chrome(line, Path(folder) / "own.json")
        back = read_timeline(Path(folder) / "own.json")
    assert list(back) == list(line)
    assert back.counters == line.counters
    assert (back.predicted, back.about.origin_ns) == (predicted, 0)
    for table in ("processes", "streams", "kinds", "ranks"):
        assert getattr(back.tables, table) == getattr(line.tables, table), table
    with TemporaryDirectory() as folder:
        write_chrome(back, Path(folder) / "own.json")
        assert read_timeline(Path(folder) / "own.json") == replace(back)


def test_a_counter_of_a_process_without_spans_gets_a_process() -> None:
    events = list(chrome_events(Timeline.of([], [counter([0], [1.0])])))
    assert [(e["ph"], e["pid"]) for e in events] == [("M", 1), ("M", 1), ("C", 1)]


def test_writing_replaces_whole_files_only(tmp_path: Path) -> None:
    target = tmp_path / "trace.json"
    target.write_text("old")
    bad = Timeline.of([span(0, 1)], [counter([0], [float("nan")])])
    with pytest.raises(ValueError, match="JSON"):
        write_chrome(bad, target)
    assert target.read_text() == "old"
