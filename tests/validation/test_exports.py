"""Real exports of other profilers give the figures that plain SQL, csv sums and a few lines of Python give.

They are not part of the project; where they are absent these tests are skipped.
"""

from __future__ import annotations

import gzip
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from ridgeline.trace.breakdown import breakdown
from ridgeline.trace.read import read_timeline

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
