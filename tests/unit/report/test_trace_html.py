"""The report of an analysis as one file: what is embedded, how it is escaped, what is left out and said so."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from traces import ODD, Recipe, make, write

from ridgeline.core.errors import InputError
from ridgeline.report.html import as_data
from ridgeline.report.trace_html import PackedTimeline, pack, page
from ridgeline.trace.analyze_traces import analyze
from ridgeline.trace.timeline import Counter, Span, Timeline

DTYPES = {"u16": "<u2", "u32": "<u4", "i32": "<i4", "f64": "<f8"}
HOSTILE = "</script><script>window.broken = 1</script><img src=x onerror=alert(1)>"


def columns(packed: PackedTimeline) -> dict[str, NDArray[Any]]:
    """What a page would read, read here independently of it."""
    raw = zlib.decompress(base64.b64decode(packed.text))
    found = {}
    for name, kind, at, count in packed.layout:
        assert at % 8 == 0, name
        found[name] = np.frombuffer(raw, DTYPES[kind], count, at)
    return found


def times(found: dict[str, NDArray[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    start = np.cumsum(found["start"].astype(np.int64) + found["start_high"].astype(np.int64) * 2**32)
    return start, found["duration"].astype(np.int64) + found["duration_high"].astype(np.int64) * 2**32


def line_of(count: int) -> Timeline:
    """Spans of growing length on two streams of a chip, and two of the host."""
    spans = [
        Span(process="chip 0", stream=f"stream {place % 2}", name=f"k{place % 7}", kind="kernel",
             start_ns=10_000 * place, duration_ns=10 * (place % 97 + 1))
        for place in range(count)
    ]  # fmt: skip
    host = [
        Span(process="host", stream="thread", name="op", kind="host", start_ns=t * 10**9, duration_ns=2 * 10**9)
        for t in (0, 3)
    ]
    return Timeline.of([*spans, *host])


def embedded(text: str, id: str) -> Any:
    return json.loads(re.search(rf'id="data-{id}">(.*?)</script>', text, re.DOTALL)[1])  # type: ignore[index]


def test_every_span_comes_back_exactly(tmp_path: Path) -> None:
    line = analyze(write(make(Recipe(steps=3)), tmp_path / "t.json")).timeline
    packed = pack(line, line.is_work)
    found = columns(packed)
    start, duration = times(found)
    rows = found["row"] + np.arange(len(start))
    assert sorted(rows.tolist()) == list(range(len(line)))
    assert (start + packed.tables["first_ns"] == line.start_ns[rows]).all()
    assert (duration == (line.end_ns - line.start_ns)[rows]).all()
    names = [packed.tables["names"][code] for code in found["name"].tolist()]
    assert names == [line.names[code] for code in line.name[rows].tolist()]
    linked = found["launch"] >= 0
    assert (rows[found["launch"][linked]] == line.launch[rows[linked]]).all()
    assert linked.sum() == (line.launch >= 0).sum()
    tracks = [packed.tables["tracks"][code] for code in found["track"].tolist()]
    assert [one["process"] for one in tracks] == line.process[rows].tolist()
    kernel = rows.tolist().index(int(np.flatnonzero(line.of_kind("kernel"))[0]))
    assert packed.tables["ops"][found["op"][kernel]] == "aten::mm"
    assert packed.tables["operands"][found["shape"][kernel]] == "4096x1024 BFloat16, 1024x4096 BFloat16"


def test_hours_between_spans_stay_exact() -> None:
    spans = [
        Span(process="p", stream="s", name="a", kind="kernel", start_ns=0, duration_ns=7_200_000_000_001),
        Span(process="p", stream="s", name="b", kind="kernel", start_ns=86_400_000_000_123, duration_ns=1),
    ]
    line = Timeline.of(spans)
    start, duration = times(columns(pack(line, line.is_work)))
    assert start.tolist() == [0, 86_400_000_000_123]
    assert duration.tolist() == [7_200_000_000_001, 1]


def test_above_the_limit_the_longest_stay_and_the_rest_is_counted() -> None:
    line = line_of(5000)
    packed = pack(line, line.is_work, wanted=(7,), most=1000)
    found = columns(packed)
    rows = found["row"] + np.arange(len(found["row"]))
    assert (packed.kept, packed.of) == (1000, 5002)
    assert 7 in rows, "a row the report names stays whatever its length"
    assert found["block_spans"].sum() == 4002
    kept = (line.end_ns - line.start_ns)[rows[rows != 7]]
    left = np.delete(line.end_ns - line.start_ns, rows)
    assert kept.min() >= left.max()
    covered = (found["block_cover"] / 65535 * packed.tables["window_ns"] / packed.tables["bins"]).sum()
    assert covered == pytest.approx(left.sum(), rel=0.02)


def test_the_page_says_what_it_merged() -> None:
    text, _ = page(analyze(line_of(5000)), most=1000)
    assert {key: embedded(text, "layout")[key] for key in ("kept", "of")} == {"kept": 1000, "of": 5002}
    with pytest.raises(InputError, match="1,000"):
        page(analyze(line_of(20)), most=10)


def test_counters_are_thinned_to_their_peaks() -> None:
    count = 100_000
    values = np.zeros(count)
    values[54_321] = 9.0
    counter = Counter(process="p", name="memory", times_ns=np.arange(count) * 1000, values=values)
    line = Timeline.of([Span(process="p", stream="s", name="a", kind="kernel", start_ns=0, duration_ns=1)], [counter])
    found = columns(pack(line, line.is_work))
    assert len(found["times_0"]) <= 20_000
    assert found["values_0"].max() == 9.0


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    trace = make(Recipe(steps=3, layers=8))
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    for event, name in zip(kernels, (HOSTILE, "{{script}}", *ODD), strict=False):
        event["name"] = name
    text, _ = page(analyze(write(trace, tmp_path / f"{'a' * 8}<b>.json")))
    assert text.count("<script") == text.count("</script") == 4
    assert "onerror=alert(1)>" not in text
    assert "<b>" not in text.split("<style>")[0]
    names = embedded(text, "layout")["names"]
    assert HOSTILE in names
    assert "{{script}}" in names
    assert not any(ord(char) < 32 for name in names for char in name)
    assert max(map(len, names)) <= 400


@pytest.mark.parametrize("value", [HOSTILE, "<!--<script>", "a & b", "\u2028\ud800", {"</script>": ["<"]}])
def test_data_comes_back_and_is_never_markup(value: object) -> None:
    text = as_data(value)
    assert json.loads(text) == value
    assert not set("<>&\u2028") & set(text)


def test_the_policy_allows_this_script_and_this_style_alone() -> None:
    text, _ = page(analyze(line_of(50)))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]  # type: ignore[index]
    assert policy.startswith("default-src 'none'; ")
    for tag, what in (("<script>", "script"), ("<style>", "style")):
        body = text.split(tag)[1].split(f"</{what}>")[0]
        allowed = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{what}-src 'sha256-{allowed}'" in policy
    assert "unsafe" not in policy
    assert set(re.findall(r"https?://[\w./]+", text)) == {"http://www.w3.org/2000/svg"}


def test_the_command_writes_it_whole_or_not(tmp_path: Path) -> None:
    trace = str(write(make(replace(Recipe(), steps=20, layers=8)), tmp_path / "t.json"))
    command = [sys.executable, "-m", "ridgeline.cli.main", "analyze", trace, "--html"]
    done = subprocess.run([*command, str(tmp_path / "a.html"), "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "1,460 spans" in done.stderr
    assert json.loads(done.stdout)["kind"] == "analysis"
    for words in ([str(tmp_path / "none" / "a.html")], [str(tmp_path / "b.html"), "--html-spans", "3"]):
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "t.json"]
