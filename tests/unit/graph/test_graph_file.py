"""Op graphs as files: what is written is read, and what points nowhere is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeline.core.errors import InputError
from ridgeline.graph import is_graph_file, read_graph, write_graph
from ridgeline.ir.kernel import Kernel
from ridgeline.ir.op_graph import GraphFusion, GraphLayer, GraphOp, GraphTensor, OpCollective, OpGraph


def small_graph() -> OpGraph:
    """A product of four equal layers, the square of it, and their sum over ranks."""
    tensors = (
        GraphTensor(id=0, shape=(8, 4), dtype="bf16", role="input", name="x"),
        GraphTensor(id=1, shape=(4, 2), dtype="bf16", role="weight", name="w", sharding="Shard(0)"),
        GraphTensor(id=2, shape=(8, 2), dtype="bf16", saved=True),
        GraphTensor(id=3, shape=(16,), dtype="bf16", alias_of=2, saved=True),
        GraphTensor(id=4, shape=(16,), dtype="bf16"),
    )
    ops = (
        GraphOp(
            id=0, name="aten.mm", kind="product", inputs=(0, 1), outputs=(2,), module="layers.0", flops=128.0,
            bytes_read=80.0, bytes_written=32.0, count=4, fusion=0,
            kernel=Kernel(op="gemm", dtype="bf16", dims={"m": 8, "n": 2, "k": 4}),
        ),
        GraphOp(id=1, name="aten.view", kind="view", inputs=(2,), outputs=(3,), count=4),
        GraphOp(
            id=2, name="aten.square", kind="pointwise", inputs=(3,), outputs=(4,), count=4, fusion=0, bytes_read=32.0,
            bytes_written=32.0,
        ),
        GraphOp(
            id=3, name="all_reduce", kind="collective", inputs=(4,), outputs=(4,),
            collective=OpCollective(kind="all-reduce", ranks=2, groups=((0, 1),)),
        ),
    )  # fmt: skip
    return OpGraph(
        name="small", source="by hand", tensors=tensors, ops=ops, layers=(GraphLayer(path="layers.0", count=4),),
        fusions=(GraphFusion(id=0, name="product with its epilogue", ops=(0, 2)),),
    )  # fmt: skip


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "graph.json"
    write_graph(small_graph(), file)
    assert is_graph_file(file)
    assert read_graph(file) == small_graph()


def test_totals_count_layers_fusions_and_storages_once() -> None:
    graph = small_graph()
    assert graph.flops == 4 * 128
    assert graph.launches == 4 + 1
    assert graph.saved_bytes == 4 * 32
    assert graph.producers[2] == 0
    assert graph.consumers[2] == (1,)
    assert graph.storage(3) == 2


@pytest.mark.parametrize(
    ("key", "value"), [("inputs", [7]), ("outputs", [-1]), ("fusion", 3), ("count", -1), ("id", 2), ("kind", "magic")]
)
def test_loose_ends_are_refused(tmp_path: Path, key: str, value: object) -> None:
    file = tmp_path / "graph.json"
    write_graph(small_graph(), file)
    table = json.loads(file.read_text())
    table["ops"][0][key] = value
    file.write_text(json.dumps(table))
    with pytest.raises(InputError):
        read_graph(file)


def test_another_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text("{}")
    assert not is_graph_file(file)
    with pytest.raises(InputError, match="expected an op graph"):
        read_graph(file)
