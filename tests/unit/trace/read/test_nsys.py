"""Exports of Nsight Systems: chips as ranks, links within a process, steps, and files that are not what they say."""

from __future__ import annotations

import gzip
import sqlite3
import tempfile
from pathlib import Path

import numpy as np
import pytest
from exports import nsys

from ridgeline.core.errors import InputError
from ridgeline.trace.analysis.breakdown import breakdown
from ridgeline.trace.analyze_traces import analyze
from ridgeline.trace.read.readers import read_timeline


def test_figures_of_two_gpus(tmp_path: Path) -> None:
    """Per chip and step: 100 compute, 40 communication of which 10 hidden, 5 copy; 65 idle between the two steps."""
    line = read_timeline(nsys(tmp_path / "a.sqlite"))
    found = breakdown(line)
    assert [row.rank for row in found.chips] == [0, 1]
    for row in found.chips:
        times = row.times
        assert (times.span_ns, times.idle_ns) == (335_000, 65_000)
        assert (times.compute_ns, times.communication_ns, times.copy_ns) == (200_000, 80_000, 10_000)
        assert times.exposed_communication_ns == 60_000
    assert line.about.kept == {"kernel": 8, "memcpy": 4, "sync": 4, "runtime": 12, "annotation": 4, "host": 4}
    assert line.about.dropped == {"NVTX marks and names": 4}
    assert line.about.warnings == ()


def test_links_stay_within_a_process(tmp_path: Path) -> None:
    """Both processes use the same correlation ids; every kernel is linked to the call of its own."""
    line = read_timeline(nsys(tmp_path / "a.sqlite"))
    work = np.flatnonzero(line.is_work)
    assert (line.launch[work] >= 0).all()
    assert (line.rank[line.launch[work]] == line.rank[work]).all()
    delay = line.start_ns[work] - line.start_ns[line.launch[work]]
    assert sorted(set(delay.tolist())) == [9_000, 96_000, 133_000]


def test_names_steps_and_sizes(tmp_path: Path) -> None:
    line = read_timeline(nsys(tmp_path / "a.sqlite", gpus=1, steps=3))
    assert np.unique(line.step[line.is_work]).tolist() == [0, 1, 2]
    texts = set(line.names)
    assert {"gemm_kernel", "cudaLaunchKernel", "Memcpy DtoH", "aten::mm", "Synchronize Stream Sync", "step 2"} <= texts
    assert line.processes == ("chip 0", "host 7 python0")
    assert set(line.streams) == {"stream 7", "stream 20", "all streams", "thread 3 main"}
    copies = np.flatnonzero(line.of_kind("memcpy"))
    assert line.detail.size_bytes.at(copies).tolist() == [4096] * 3
    found = analyze(line)
    assert found.chip is not None
    assert found.chip.id == "h100-sxm"


def test_unnumbered_iterations_are_counted(tmp_path: Path) -> None:
    path = nsys(
        tmp_path / "a.sqlite", gpus=1, steps=3, more=["UPDATE NVTX_EVENTS SET text='iteration' WHERE text LIKE 'step%'"]
    )
    line = read_timeline(path)
    assert np.unique(line.step[line.is_work]).tolist() == [0, 1, 2]


def test_packed_is_the_same_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = nsys(tmp_path / "a.sqlite")
    packed = tmp_path / "a.sqlite.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    one, other = read_timeline(plain), read_timeline(packed)
    assert np.array_equal(one.start_ns, other.start_ns)
    assert one.tables == other.tables
    assert not list(scratch.iterdir())


def test_files_of_two_nodes_are_ranks_in_a_row(tmp_path: Path) -> None:
    line = read_timeline(nsys(tmp_path / "a.sqlite"), nsys(tmp_path / "b.sqlite"))
    assert [row.rank for row in breakdown(line).chips] == [0, 1, 2, 3]


def test_a_process_with_several_gpus(tmp_path: Path) -> None:
    """One process drives two chips: two ranks, and the steps of its one host reach both."""
    path = nsys(tmp_path / "a.sqlite", gpus=1, steps=2)
    base = sqlite3.connect(path)
    base.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 1 WHERE streamId = 20")
    base.commit()
    base.close()
    line = read_timeline(path)
    assert [row.rank for row in breakdown(line).chips] == [0, 1]
    assert np.unique(line.step[line.is_work]).tolist() == [0, 1]


def test_tables_without_the_process_of_their_work(tmp_path: Path) -> None:
    """Where one process makes all calls, the work is its own and its launches are found."""
    path = nsys(tmp_path / "t.sqlite", gpus=1)
    with sqlite3.connect(path) as base:
        for table in ("KERNEL", "MEMCPY", "SYNCHRONIZATION"):
            base.execute(f"ALTER TABLE CUPTI_ACTIVITY_KIND_{table} DROP COLUMN globalPid")
    base.close()
    line, whole = read_timeline(path), read_timeline(nsys(tmp_path / "whole.sqlite", gpus=1))
    assert int((line.launch >= 0).sum()) == int((whole.launch >= 0).sum()) > 0


def test_graphs_recorded_as_one_span(tmp_path: Path) -> None:
    """`--cuda-graph-trace=graph` keeps a row a replay, in a table that older versions do not write."""
    more = (
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, "
        "correlationId INTEGER, globalPid INTEGER, graphId INTEGER, graphExecId INTEGER)",
        "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE SELECT end + 1000, end + 5000, deviceId, streamId, correlationId, "
        "globalPid, 7, 9 FROM CUPTI_ACTIVITY_KIND_KERNEL LIMIT 1",
    )
    found = analyze(nsys(tmp_path / "t.sqlite", gpus=1, more=more)).breakdown
    assert [(one.spans, one.total_ns) for one in found.classes if one.id == "graph"] == [(1, 4000)]


class TestHostile:
    """Views, odd types and other databases."""

    def test_another_database(self, tmp_path: Path) -> None:
        base = sqlite3.connect(tmp_path / "x.sqlite")
        base.execute("CREATE TABLE notes (text)")
        base.commit()
        base.close()
        with pytest.raises(InputError, match="without tables of Nsight Systems"):
            read_timeline(tmp_path / "x.sqlite")

    def test_a_view_is_not_read(self, tmp_path: Path) -> None:
        """A view under a known name could run for ever."""
        path = nsys(tmp_path / "a.sqlite", more=[
            "DROP TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            "CREATE VIEW CUPTI_ACTIVITY_KIND_SYNCHRONIZATION AS WITH RECURSIVE c(start) AS (SELECT 1 UNION ALL SELECT "
            "start + 1 FROM c) SELECT start, start + 1 AS end FROM c",
        ])  # fmt: skip
        assert "sync" not in read_timeline(path).about.kept

    def test_odd_values(self, tmp_path: Path) -> None:
        path = nsys(tmp_path / "a.sqlite", more=[
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ('x', x'00ff', NULL, 'y', 9e300, -5, 'name')",
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (50, 40, 0, 7, 1, 1, 100)",
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (-9223372036854775808, 9223372036854775807, 0, 7, 1, 1, 1)",
            "INSERT INTO NVTX_EVENTS VALUES ('a', 5, 59, x'ff', 'b', 'c')",
            "UPDATE StringIds SET value = x'ff00' WHERE id = 101",
        ])  # fmt: skip
        line = read_timeline(path)
        assert line.about.kept["kernel"] == 8 + 1  # the text that is no number is time 0
        assert any("2 rows without a readable time" in one for one in line.about.warnings)

    def test_a_cut_file_says_so(self, tmp_path: Path) -> None:
        whole = nsys(tmp_path / "a.sqlite", steps=400).read_bytes()
        cut = tmp_path / "cut.sqlite"
        cut.write_bytes(whole[: len(whole) // 2])
        assert "damaged" in said(cut) or "malformed" in said(cut)

    def test_an_archive_that_inflates_without_end_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "bomb.sqlite.gz").write_bytes(gzip.compress(b"SQLite format 3\0" + bytes(80_000_000), 9))
        with pytest.raises(InputError, match="inflate"):
            read_timeline(tmp_path / "bomb.sqlite.gz")

    def test_a_damaged_archive_says_so(self, tmp_path: Path) -> None:
        packed = gzip.compress(nsys(tmp_path / "a.sqlite", steps=400).read_bytes())
        (tmp_path / "cut.sqlite.gz").write_bytes(packed[:-200])
        assert "gzip" in said(tmp_path / "cut.sqlite.gz")


def said(path: Path) -> str:
    """What reading a file says is wrong with it: its error, or its warnings."""
    try:
        return " ".join(read_timeline(path).about.warnings)
    except InputError as wrong:
        return str(wrong)
