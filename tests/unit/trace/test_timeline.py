"""A Timeline keeps what it was given, in one order, and survives a file with any text in it."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from ridgeline.trace import Counter, Span, Timeline, chrome_events, write_chrome

HOSTILE = '</script><img src=x onerror=alert(1)> "quoted" \\ \n\x00\u2028 ' + "\N{SNOWMAN}" * 3


def span(
    start: float, duration: float, *, process: str = "p", stream: str = "s", name: str = "n", kind: str = ""
) -> Span:
    return Span(process=process, stream=stream, name=name, kind=kind, start_s=start, duration_s=duration)


def counter(times: list[float], values: list[float], name: str = "bytes") -> Counter:
    return Counter(process="p", name=name, times_s=np.array(times), values=np.array(values))


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
        line.start_s[0] = 5.0


def test_a_span_costs_a_few_dozen_bytes() -> None:
    line = Timeline.of([span(i, 1, name=f"F{i % 8}") for i in range(1000)])
    columns = (line.start_s, line.duration_s, line.process, line.stream, line.name, line.kind)
    assert sum(column.nbytes for column in columns) == 32 * len(line)


def test_busy_time_counts_overlaps_once() -> None:
    line = Timeline.of([span(0, 4), span(1, 1), span(6, 1), span(0, 9, stream="other"), span(0, 20, process="q")])
    assert line.busy_s("p", "s") == 5.0
    assert line.busy_s("p") == 9.0
    assert line.busy_s("nobody") == 0.0
    assert line.span_s == 20.0


def test_nothing_is_a_timeline_too() -> None:
    line = Timeline.of([])
    assert (len(line), line.span_s, list(line)) == (0, 0.0, [])
    assert list(chrome_events(line)) == []


@pytest.mark.parametrize("wrong", [(0.0, -1.0), (float("nan"), 1.0), (0.0, float("inf"))])
def test_impossible_times_are_refused(wrong: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=r"negative|finite"):
        Timeline.of([span(*wrong)])


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
        span(0.0, 1.5e-9, process="stage 0", stream="compute", name="F0", kind="forward"),
        span(1.23456789e-3, 0.1, process="stage 1", stream="send", name=HOSTILE, kind=HOSTILE),
    ]
    write_chrome(Timeline.of(spans, [counter([0.0, 1e-3], [5.0, 0.0], HOSTILE)]), tmp_path / "trace.json")
    events = read(tmp_path / "trace.json")
    names = {(e["pid"], e.get("tid"), e["name"]): e["args"] for e in events if e["ph"] == "M"}
    back = [
        Span(
            process=names[e["pid"], None, "process_name"]["name"],  # type: ignore[index]
            stream=names[e["pid"], e["tid"], "thread_name"]["name"],  # type: ignore[index]
            name=str(e["name"]),
            kind=str(e["cat"]),
            start_s=float(str(e["ts"])) * 1e-6,
            duration_s=float(str(e["dur"])) * 1e-6,
        )
        for e in events
        if e["ph"] == "X"
    ]
    for one, other in zip(back, spans, strict=True):
        assert (one.process, one.stream, one.name, one.kind) == (other.process, other.stream, other.name, other.kind)
        assert (one.start_s, one.duration_s) == pytest.approx((other.start_s, other.duration_s), abs=1e-9)
    counts = [(e["name"], e["ts"], e["args"]) for e in events if e["ph"] == "C"]
    assert counts == [(HOSTILE, 0.0, {"value": 5.0}), (HOSTILE, 1000.0, {"value": 0.0})]


def test_neighbours_do_not_overlap_once_they_are_whole_nanoseconds() -> None:
    rng = np.random.default_rng(0)
    edges = np.cumsum(rng.uniform(1e-9, 1e-3, 2000))
    line = Timeline.of([span(float(a), float(b - a)) for a, b in pairwise(edges)])
    rows = [(round(e["ts"] * 1000), round(e["dur"] * 1000)) for e in chrome_events(line) if e["ph"] == "X"]
    assert all(start + length == after for (start, length), (after, _) in pairwise(rows))


def test_a_counter_of_a_process_without_spans_gets_a_process() -> None:
    events = list(chrome_events(Timeline.of([], [counter([0.0], [1.0])])))
    assert [(e["ph"], e["pid"]) for e in events] == [("M", 1), ("M", 1), ("C", 1)]


def test_writing_replaces_whole_files_only(tmp_path: Path) -> None:
    target = tmp_path / "trace.json"
    target.write_text("old")
    bad = Timeline.of([span(0, 1)], [counter([0.0], [float("nan")])])
    with pytest.raises(ValueError, match="JSON"):
        write_chrome(bad, target)
    assert target.read_text() == "old"
