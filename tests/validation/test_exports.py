"""Real exports of other profilers give the figures that plain SQL, csv sums and a few lines of Python give.

They are not part of the project; where they are absent these tests are skipped.
"""

from __future__ import annotations

import csv
import gzip
import json
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeline.trace.analysis.breakdown import breakdown
from ridgeline.trace.read.kernel_counters import read_counters
from ridgeline.trace.read.readers import read_timeline

FOLDER = Path(__file__).parents[3] / "shared" / "traces"
NSYS = ("cloverleaf_cuda", "mfu_2gpu_after", "mfu_2gpu_before")


def real(name: str) -> Path:
    """A file of the folder; skips the test where it is absent."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"no real trace {path}")
    return path


@pytest.mark.parametrize("name", NSYS)
def test_nsys_by_sql(name: str, tmp_path: Path) -> None:
    """Counts, sums of durations and spans by chip, and unions by a loop, from the database itself."""
    path = real(f"nsys/{name}.sqlite.gz")
    (tmp_path / "plain").write_bytes(gzip.decompress(path.read_bytes()))
    base = sqlite3.connect(tmp_path / "plain")
    here = {row[0] for row in base.execute("SELECT name FROM sqlite_master")}
    tables = [f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET")]
    work = " UNION ALL ".join(f"SELECT deviceId, start, end FROM {one}" for one in tables if one in here)
    line = read_timeline(path)
    found = breakdown(line)
    devices = base.execute(
        f"SELECT deviceId, count(*), sum(end - start), max(end) - min(start) FROM ({work}) GROUP BY 1 ORDER BY 1"
    ).fetchall()
    assert len(found.chips) == len(devices)
    for row, (device, count, total, span) in zip(found.chips, devices, strict=True):
        own = np.flatnonzero(line.is_work & (line.process == line.processes.index(row.process)))
        assert (len(own), int((line.end_ns - line.start_ns)[own].sum())) == (count, total)
        assert row.times.span_ns == span
        assert row.times.busy_ns == _union(
            base.execute(f"SELECT start, end FROM ({work}) WHERE deviceId = ? ORDER BY 1", (device,)).fetchall()
        )
    (nccl,) = base.execute(
        "SELECT coalesce(sum(end - start), 0) FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName "
        "WHERE value LIKE '%nccl%'"
    ).fetchone()
    assert sum(one.total_ns for one in found.classes if one.id == "nccl") == nccl


@pytest.mark.parametrize("name", NSYS)
def test_nsys_links_by_sql(name: str, tmp_path: Path) -> None:
    path = real(f"nsys/{name}.sqlite.gz")
    (tmp_path / "plain").write_bytes(gzip.decompress(path.read_bytes()))
    base = sqlite3.connect(tmp_path / "plain")
    (linked,) = base.execute(
        "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k WHERE EXISTS (SELECT 1 FROM CUPTI_ACTIVITY_KIND_RUNTIME r "
        "WHERE r.correlationId = k.correlationId AND r.globalTid / 16777216 = k.globalPid / 16777216)"
    ).fetchone()
    line = read_timeline(path)
    assert int((line.launch[line.of_kind("kernel")] >= 0).sum()) == linked


def _union(intervals: list[tuple[int, int]]) -> int:
    """Length of the union of intervals in order of their starts."""
    total, reached = 0, 0
    for start, end in intervals:
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def test_chakra_by_wire() -> None:
    """Durations of kernels and bytes of collectives, summed by a reader of the wire format that knows nothing else."""
    path = real("chakra/rank0.et.gz")
    nodes = list(_wire(gzip.decompress(path.read_bytes())))[1:]
    chip = [one for one in nodes if b"is_cpu_op\xd8\x01\x00" in one[10]]
    line = read_timeline(path)
    assert len(line) == len(nodes) == 3664
    work = line.is_work
    assert int(work.sum()) == len(chip)
    assert int((line.end_ns - line.start_ns)[work].sum()) == 1000 * sum(one[7] for one in chip)
    named = {one[1]: one for one in nodes}
    edges = {(one[1], other) for one in nodes for other in one[4] | one[5] if other in named and other != one[1]}
    assert len(line.detail.after) == len(edges)
    assert len(line.detail.size_bytes) == sum(b"comm_size" in one[10] for one in nodes) == 7
    moved = line.detail.after
    waited = (line.end_ns[moved.values] <= line.start_ns[moved.rows]).mean()
    assert waited > 0.95  # the file's own circles are the rest


def _wire(data: bytes) -> list[dict[int, Any]]:
    """Messages as numbers, sets of numbers and joined texts by field; written for this one file."""
    found, at = [], 0
    while at < len(data):
        size, at = _varint(data, at)
        found.append(_message(data[at : at + size]))
        at += size
    return found


def _message(data: bytes) -> dict[int, Any]:
    found: dict[int, Any] = {4: set(), 5: set(), 7: 0, 10: b""}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        value, at = _varint(data, at)
        if tag & 7 == 2:
            raw, at = data[at : at + value], at + value
            if tag >> 3 in (4, 5):
                place = 0
                while place < len(raw):
                    one, place = _varint(raw, place)
                    found[tag >> 3].add(one)
            elif tag >> 3 == 10:
                found[10] += raw
        else:
            found[tag >> 3] = value
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] > 127:
        value, shift, at = value | (data[at] & 127) << shift, shift + 7, at + 1
    return value | data[at] << shift, at + 1


def test_ascend_table_by_csv() -> None:
    """Durations by core and by step, and the busy time, from the table itself."""
    path = real("ascend/kernel_details.csv")
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    spans = sorted((_ns(row["Start Time(us)"]), _ns(row["Duration(us)"]), row["Accelerator Core"]) for row in rows)
    line = read_timeline(path)
    found = breakdown(line)
    assert int(line.is_work.sum()) == len(rows) == 591
    assert found.total.busy_ns == _union([(start, start + length) for start, length, _ in spans])
    hccl = [(start, start + length) for start, length, core in spans if core == "HCCL"]
    assert found.total.communication_ns == _union(hccl)
    assert len(line.detail.shape) == sum(row["Input Shapes"].strip('"') not in ("N/A", "") for row in rows)
    steps = {int(row["Step Id"]) for row in rows}
    assert set(line.step[line.is_work].tolist()) == steps


def test_ascend_trace_by_json() -> None:
    """Every task of the hardware and nothing else is work; timestamps are texts, good to the nanosecond."""
    path = real("ascend/trace_view.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))
    (chip,) = {event["pid"] for event in events if event.get("args", {}).get("name") == "Ascend Hardware"}
    tasks = [event for event in events if event["ph"] == "X" and event["pid"] == chip]
    spans = sorted((_ns(event["ts"]), _ns(event["ts"]) + _ns(event["dur"])) for event in tasks)
    line = read_timeline(path)
    assert int(line.is_work.sum()) == len(tasks) == 276
    assert line.about.origin_ns + int(line.start_ns[line.is_work].min()) == spans[0][0]
    assert abs(breakdown(line).total.busy_ns - _union(spans)) <= len(
        tasks
    )  # durations have more digits than nanoseconds
    assert line.about.warnings == ()


def test_ascend_counters_by_csv() -> None:
    """The largest product's rate: its operations over its time."""
    path = real("ascend/kernel_details.csv")
    with path.open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["Name"] == "MatMul104"]
    found = next(one for one in read_counters(path) if one.name == "MatMul104")
    rate = sum(float(row["aic_cube_fops"]) for row in rows) / sum(float(row["Duration(us)"]) for row in rows) * 1e6
    assert found.flops_per_s == pytest.approx(rate, rel=1e-6)


def _ns(text: str | float) -> int:
    return round(Decimal(str(text)) * 1000)
