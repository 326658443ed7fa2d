"""Chakra execution traces: the wire format, the layout without starts, dependencies, and files that lie."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from exports import CHIP, NODES, attribute, block, chakra, node, varint

from ridgeline.core.errors import InputError
from ridgeline.trace import Timeline
from ridgeline.trace.analysis.breakdown import breakdown
from ridgeline.trace.read.chakra import earliest
from ridgeline.trace.read.readers import read_timeline


def lines(path: Path, content: bytes) -> Timeline:
    path.write_bytes(content)
    return read_timeline(path)


def test_laid_out_by_dependencies(tmp_path: Path) -> None:
    line = lines(tmp_path / "a.et", chakra(*NODES))
    by_name = {line.names[code]: [] for code in line.name.tolist()}
    for span in line:
        by_name[span.name].append((span.start_ns / 1000, span.duration_ns / 1000))
    assert by_name == {
        "aten::mm": [(0, 3)], "gemm": [(3, 20), (23, 25)], "ncclAllReduce": [(23, 30)], "Memcpy DtoH": [(53, 5)],
    }  # fmt: skip
    found = breakdown(line).total
    assert (found.span_ns, found.compute_ns, found.communication_ns) == (55_000, 45_000, 30_000)
    assert found.exposed_communication_ns == 5_000
    assert any("no start times" in one for one in line.about.warnings)
    assert line.about.dropped == {"dependencies on nodes that are not in the file": 1}


def test_dependencies_sizes_and_shapes(tmp_path: Path) -> None:
    line = lines(tmp_path / "a.et", chakra(*NODES))
    after = line.detail.after
    names = [line.names[code] for code in line.name.tolist()]
    told = sorted((names[row], names[value]) for row, value in zip(after.rows, after.values, strict=True))
    assert told == [
        ("Memcpy DtoH", "gemm"), ("Memcpy DtoH", "ncclAllReduce"), ("gemm", "aten::mm"), ("gemm", "gemm"),
        ("ncclAllReduce", "gemm"),
    ]  # fmt: skip
    assert (line.end_ns[after.values] <= line.start_ns[after.rows]).all()
    reduce = names.index("ncclAllReduce")
    assert line.detail.size_bytes.at(np.array([reduce])).tolist() == [4096]
    what = line.detail.collectives[line.detail.collective.at(np.array([reduce]))[0]]
    assert (what.name, what.in_elements) == ("all_reduce", 4096)
    shape = line.detail.shapes[line.detail.shape.at(np.array([names.index("aten::mm")]))[0]]
    assert (shape.dims, shape.types) == (((8, 4), (4, 2)), ("float", "float"))


def test_recorded_starts_are_kept(tmp_path: Path) -> None:
    line = lines(tmp_path / "a.et.gz", gzip.compress(chakra(
        node(1, "a", 4, start=100, length=7, more=CHIP), node(2, "b", 4, after=[1], start=150, length=7, more=CHIP),
    )))  # fmt: skip
    assert (line.start_ns.tolist(), line.about.origin_ns) == ([0, 50_000], 100_000)
    assert line.about.warnings == ()


def test_without_durations_the_order_is_kept(tmp_path: Path) -> None:
    line = lines(tmp_path / "a.et", chakra(*(node(one, f"n{one}", 4, more=CHIP) for one in (5, 3, 9))))
    assert [line.names[code] for code in line.name.tolist()] == ["n5", "n3", "n9"]
    assert any("no durations" in one for one in line.about.warnings)


def test_generated_workloads(tmp_path: Path) -> None:
    """Nodes nobody ran have no `is_cpu_op`: traffic is on streams of its own, named by what it is."""
    line = lines(tmp_path / "gpt.3.et", chakra(
        node(1, "fwd", 4, length=10),
        node(2, "grads", 7, after=[1], length=4, more={"comm_type": 7, "comm_size": 64}),
        node(3, "weights", 2, length=2),
        node(4, "act", 5, after=[1], length=1),
        node(5, "setup", 1),
    ))  # fmt: skip
    assert set(line.names) == {"fwd", "reduce_scatter: grads", "load: weights", "send: act"}
    assert set(line.streams) == {"compute", "communication", "memory"}
    assert {one.id for one in breakdown(line).classes} == {"unknown", "collective", "memcpy"}
    assert line.about.dropped == {"metadata nodes": 1}
    assert line.tables.ranks == (3,)


def test_ranks_of_a_folder(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"run.{rank}.et").write_bytes(chakra(*NODES))
    line = read_timeline(tmp_path)
    assert [row.rank for row in breakdown(line).chips] == [0, 1]
    assert len(line.detail.after) == 10
    assert (line.rank[line.detail.after.values] == line.rank[line.detail.after.rows]).all()


def test_circles_are_told(tmp_path: Path) -> None:
    line = lines(tmp_path / "a.et", chakra(
        node(1, "a", 4, after=[2], length=5, more=CHIP), node(2, "b", 4, after=[1], length=5, more=CHIP),
    ))  # fmt: skip
    assert any("1 nodes wait for each other" in one for one in line.about.warnings)
    assert line.start_ns.tolist() == [0, 5_000]


def test_layout_keeps_streams_serial() -> None:
    """Two lanes, nothing to wait for: each lane is a chain in the order given."""
    start, circular = earliest(np.array([5, 5, 5, 5]), np.array([0, 1, 0, 1]), np.zeros(0, int), np.zeros(0, int))
    assert (start.tolist(), circular) == ([0, 0, 5, 5], 0)


class TestHostile:
    @pytest.mark.parametrize("cut", range(1, 49, 6))
    def test_a_cut_file_keeps_what_came_before(self, cut: int, tmp_path: Path) -> None:
        line = lines(tmp_path / "a.et", chakra(*NODES)[:-cut])
        assert len(line) == 4
        assert "are kept" in line.about.warnings[0]

    def test_a_length_that_lies(self, tmp_path: Path) -> None:
        line = lines(tmp_path / "a.et", chakra(*NODES) + varint(2**50))
        assert len(line) == 5
        assert "a message of" in line.about.warnings[0]

    def test_a_node_that_is_damaged_inside(self, tmp_path: Path) -> None:
        line = lines(tmp_path / "a.et", chakra(*NODES, number_too_long()))
        assert len(line) == 5
        assert line.about.dropped["unreadable nodes"] == 1

    def test_nothing_but_metadata(self, tmp_path: Path) -> None:
        with pytest.raises(InputError):
            lines(tmp_path / "a.et", chakra())

    def test_times_beyond_any_clock(self, tmp_path: Path) -> None:
        line = lines(tmp_path / "a.et", chakra(*NODES, node(20, "x", 4, length=2**63, more=CHIP)))
        assert line.about.dropped["nodes without a readable time"] == 1


def number_too_long() -> bytes:
    return block(2, b"x") + attribute("tid", 1) + b"\x38" + b"\xff" * 12
