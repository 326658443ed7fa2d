"""Operators that a user declares: in graphs by name and shapes, in models by flops of a token and of a pair."""

from __future__ import annotations

from pathlib import Path

import pytest

import ridgeline
from ridgeline.api import write_model
from ridgeline.core.errors import InputError
from ridgeline.graph import GraphReport
from ridgeline.graph.operator_models import token_figures, with_operator
from ridgeline.graph.operators import (
    OPERATORS,
    Operator,
    declare_operator,
    operator_seconds,
    operator_work,
    read_operators,
)
from ridgeline.hardware.load import chip
from ridgeline.models.load import model

ROOT = Path(__file__).parents[3]
FILE = ROOT / "examples" / "operators" / "sink_attention.toml"
SIZES = {"B": 1, "H": 32, "K": 8, "D": 128}
LENGTH = 4096
WIDE, NARROW = "tensor<1x32x4096x128xbf16>", "tensor<1x8x4096x128xbf16>"
PROGRAM = f"""module {{
  func.func public @main(%q: {WIDE}, %k: {NARROW}, %v: tensor<1x8xSxDxbf16>) {{
    %0 = stablehlo.custom_call @sink_attention(%q, %k, %v) : ({WIDE}, {NARROW}, tensor<1x8xSxDxbf16>) -> {WIDE}
    return %0 : {WIDE}
  }}
}}
"""


def sink() -> Operator:
    operator, _ = read_operators(FILE)
    return operator


def test_work_follows_from_sizes() -> None:
    work = operator_work(sink(), {**SIZES, "S": LENGTH})
    assert work.flops == 2 * 32 * LENGTH * (LENGTH + 1) * 128
    assert work.backward_flops == 2.5 * work.flops
    assert work.bytes == 2 * (32 + 8 + 8 + 32) * LENGTH * 128
    halves = operator_work(sink(), {**SIZES, "S": LENGTH}, {"tp": 2})
    assert halves.flops == work.flops / 2
    assert operator_seconds(sink(), {**SIZES, "S": LENGTH}, chip("h200-sxm"))[1] == "compute"


@pytest.mark.parametrize("known", [True, False])
def test_a_graph_knows_it_by_name_and_shapes(tmp_path: Path, known: bool) -> None:
    path = tmp_path / "program.mlir"
    path.write_text(PROGRAM.replace("SxD", "4096x128" if known else "2048x128"))
    plain = ridgeline.graph(str(path), on="h200-sxm")
    declared = ridgeline.graph(str(path), on="h200-sxm", operators=FILE)
    assert isinstance(plain, GraphReport)
    assert isinstance(declared, GraphReport)
    assert plain.graph.flops == 0
    assert "priced by their bytes alone" in plain.graph.notes[0]
    assert declared.graph.flops == (operator_work(sink(), {**SIZES, "S": LENGTH}).flops if known else 0)
    assert any("as declared" in note if known else "stays unknown" in note for note in declared.graph.notes)


def test_a_decorator_declares_for_this_process() -> None:
    gate = Operator(name="my_gate", inputs={"x": ("T", "W")}, outputs={"y": ("T", "W")})
    try:

        @declare_operator(gate)
        def run_gate(x: object) -> object:
            return x

        assert OPERATORS["my_gate"].kernel.endswith("run_gate")
        assert run_gate(1) == 1
    finally:
        OPERATORS.pop("my_gate", None)


def test_pairs_and_tokens_are_told_apart() -> None:
    attention = token_figures(sink(), SIZES)
    assert attention.pair_flops == 0
    [scores] = attention.scores
    assert (scores.heads, scores.kv_heads, scores.head_dim) == (32, 8, 128)
    scan = Operator(name="scan", inputs={"x": ("S", "W")}, outputs={"y": ("S", "W")}, flops="6 * S * W")
    assert token_figures(scan, {"W": 64}).scan_flops == pytest.approx(6 * 64)


def test_an_operator_in_place_of_scores_is_priced_as_they_are(tmp_path: Path) -> None:
    llama = model("llama3-8b")
    write_model(with_operator(llama, sink(), SIZES, instead=True), tmp_path / "variant.toml")
    drawings = [
        ridgeline.roofline(name, on="h100-sxm", seq=8192) for name in ("llama3-8b", str(tmp_path / "variant.toml"))
    ]
    flops = [sum(op.flops for op in drawing.ops) for drawing in drawings]
    assert flops[1] == pytest.approx(flops[0], rel=1e-3)
    seconds = [
        sum(op.seconds for op in drawing.ops if op.label in ("attention", "attention dX")) for drawing in drawings
    ]
    assert seconds[1] == pytest.approx(seconds[0], rel=1e-3)


@pytest.mark.parametrize(
    "row",
    [
        'flops = "B * Q"', 'sharding = { xp = "B" }', 'sharding = { tp = "Z" }', 'flops = "__import__(1)"', "flops = 3",
        'like = "magic"',
    ],
)  # fmt: skip
def test_a_wrong_declaration_is_refused(tmp_path: Path, row: str) -> None:
    path = tmp_path / "operators.toml"
    path.write_text(f'[operator.mine]\ninputs = {{ x = ["B", "W"] }}\noutputs = {{ y = ["B", "W"] }}\n{row}\n')
    with pytest.raises(InputError):
        operator_work(read_operators(path)[0], {"B": 1, "W": 2})


def test_a_file_without_operators_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "operators.toml"
    path.write_text("x = 1\n")
    with pytest.raises(InputError, match="no operator"):
        read_operators(path)
