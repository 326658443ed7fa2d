"""A training step recorded as an op graph: what it holds, and that lowering counts the same flops."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import ridgeline  # noqa: E402
from ridgeline.core.errors import InputError  # noqa: E402
from ridgeline.graph import check_lowering, kernels_of, read_graph, write_graph  # noqa: E402
from ridgeline.ir.op_graph import OpGraph  # noqa: E402
from ridgeline.runtime.capture import graph_of_config, graph_of_model, graph_of_reference  # noqa: E402

OWN = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def build():
    print("words that are no answer")
    return Block(), torch.zeros((2, 16, 64))
"""


@pytest.fixture(scope="module")
def llama() -> OpGraph:
    return graph_of_model(ridgeline.model("llama3-8b"), seq=2048, batch=1)


@pytest.mark.parametrize("name", ["llama3-8b", "qwen3-30b-a3b", "deepseek-v2-lite"])
def test_flops_are_those_of_lowering(name: str) -> None:
    model = ridgeline.model(name)
    check = check_lowering(graph_of_model(model, seq=1024, batch=2), model, seq=1024, batch=2)
    assert not check.differences
    assert check.share == pytest.approx(0, abs=1e-3)


def test_a_difference_is_said_where_it_is(llama: OpGraph) -> None:
    model = ridgeline.model("llama3-8b")
    wider = replace(model, blocks=(replace(model.blocks[0], ffn=replace(model.blocks[0].ffn, hidden=16384)),))
    check = check_lowering(llama, wider, seq=2048, batch=1)
    assert not check.agrees
    assert {(row.part, row.kind) for row in check.differences} == {("layer 0", "product")}


def test_products_of_8b_are_six_flops_a_parameter_and_token(llama: OpGraph) -> None:
    products = llama.total(lambda op: op.flops * (op.kind == "product"))
    parameters = 8_030_261_248 - 128256 * 4096  # without the rows that are looked up
    assert products == pytest.approx(6 * parameters * 2048, rel=1e-3)


def test_every_op_has_its_module_and_pass(llama: OpGraph) -> None:
    inside = [op for op in llama.ops if op.module.startswith("layers.0")]
    assert {op.phase for op in inside} == {"forward", "backward", "optimizer"}
    assert all(op.count == 32 for op in inside)
    assert {op.module for op in inside if op.kind == "product" and op.phase == "backward"} == {
        f"layers.0.{part}" for part in
        ("mixer.query", "mixer.key", "mixer.value", "mixer.out", "ffn.gate", "ffn.up", "ffn.down")
    }  # fmt: skip
    assert not [op.name for op in llama.ops if op.kind == "unknown"]


def test_what_is_saved_was_written_forward_and_is_read_backward(llama: OpGraph) -> None:
    backward_reads = {llama.storage(n) for op in llama.ops if op.phase == "backward" for n in op.inputs}
    saved = [tensor for tensor in llama.tensors if tensor.saved]
    assert saved
    assert all(llama.ops[llama.producers[tensor.id]].phase == "forward" for tensor in saved)
    assert {tensor.id for tensor in saved} <= backward_reads
    assert 12e9 < llama.saved_bytes < 20e9  # 2048 tokens of 32 layers, nothing recomputed


def test_views_move_nothing_and_share_memory(llama: OpGraph) -> None:
    views = [op for op in llama.ops if op.kind == "view"]
    assert views
    assert all(op.bytes == 0 for op in views)
    assert all(llama.storage(op.outputs[0]) == llama.storage(op.inputs[0]) for op in views)


def test_a_graph_survives_its_file(llama: OpGraph, tmp_path: Path) -> None:
    write_graph(llama, tmp_path / "llama.json")
    assert read_graph(tmp_path / "llama.json") == llama
    assert "dot" not in json.loads((tmp_path / "llama.json").read_text())


def test_a_module_of_the_users_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    graph = graph_of_reference(f"{tmp_path / 'mine.py'}:build")
    assert capsys.readouterr().out == ""
    assert graph.flops == 3 * 2 * 2 * (
        32 * 64 * 256
    )  # two products, three times: no gradient of the input is asked for
    assert [kernel.access for kernel in kernels_of(graph, "joined", "forward")].count("product") == 2
    assert {op.module for op in graph.ops if op.kind == "product"} == {"up", "down"}


def test_a_model_that_is_not_built_says_what_to_give() -> None:
    with pytest.raises(InputError, match=r"config\.json"):
        graph_of_model(ridgeline.model("mamba2-2.7b"), seq=128, batch=1)


def test_transformers_builds_the_same_flops() -> None:
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6, "vocab_size": 1024}
    config = {"model_type": "qwen3", **sizes, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    from ridgeline.models.hf import from_config

    graph = graph_of_config(config, seq=256, batch=1)
    assert [(layer.path, layer.count) for layer in graph.layers] == [("model.layers.0", 6)]
    check = check_lowering(graph, from_config(config), seq=256, batch=1)
    assert not check.differences
