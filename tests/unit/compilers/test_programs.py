"""Programs that compilers wrote: the same block from JAX, PyTorch, TVM and MLIR has equal flops and bytes."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest

from ridgeline.compilers import normal_form, program_format, read_program
from ridgeline.compilers.program_text import ProgramSource
from ridgeline.compilers.triton_ir import read as read_triton
from ridgeline.ir.op_graph import OpGraph

EXAMPLES = Path(__file__).parents[3] / "examples" / "compilers"
BATCH, TOKENS, WIDTH, HEADS, INNER = 2, 64, 128, 4, 352
ROWS = BATCH * TOKENS
FP32 = 4
ATTENTION_FLOPS = 4 * 2 * ROWS * WIDTH * WIDTH + 4 * BATCH * TOKENS * TOKENS * WIDTH
MLP_FLOPS = 3 * 2 * ROWS * WIDTH * INNER
HIDDEN = ROWS * WIDTH * FP32
ATTENTION_BYTES = (2 * HIDDEN + WIDTH * FP32) + 4 * (2 * HIDDEN + WIDTH * WIDTH * FP32) + 4 * HIDDEN + 3 * HIDDEN
MLP_BYTES = (
    (2 * HIDDEN + WIDTH * FP32)
    + 3 * (HIDDEN + (WIDTH * INNER + ROWS * INNER) * FP32)
    + 3 * ROWS * INNER * FP32
    + 3 * HIDDEN
)
FRAMEWORKS = ("stablehlo.mlir", "pt2", "relax.txt")
LITERAL_MASK = {"tosa.mlir", "tir.txt"}  # compilers that wrote the mask out as a constant, which is then read


def graph(name: str) -> OpGraph:
    return read_program(EXAMPLES / name)


def every(program: str) -> list[str]:
    return sorted(path.name for path in EXAMPLES.glob(f"{program}.*"))


@pytest.mark.parametrize("name", every("attention"))
def test_an_attention_block_has_the_same_flops_in_every_compiler(name: str) -> None:
    assert graph(name).flops == ATTENTION_FLOPS
    assert not graph(name).notes


@pytest.mark.parametrize("name", every("mlp"))
def test_a_gated_mlp_has_the_same_flops_and_bytes_in_every_compiler(name: str) -> None:
    assert graph(name).flops == MLP_FLOPS
    assert normal_form(graph(name)).bytes == MLP_BYTES


@pytest.mark.parametrize("name", every("attention"))
def test_an_attention_block_has_the_same_bytes_in_every_compiler(name: str) -> None:
    form = normal_form(graph(name))
    assert [op.kind for op in form.ops].count("attention") == 1
    if name.removeprefix("attention.") in LITERAL_MASK:
        assert 0 < form.bytes - ATTENTION_BYTES <= TOKENS * TOKENS + 3 * TOKENS * 8 + TOKENS * TOKENS * 2
    else:
        assert form.bytes == ATTENTION_BYTES


def test_jax_pytorch_and_tvm_agree_piece_by_piece() -> None:
    for program in ("attention", "mlp"):
        pieces = [
            sorted((op.kind, op.flops, op.bytes) for op in normal_form(graph(f"{program}.{framework}")).ops)
            for framework in FRAMEWORKS
        ]
        assert pieces[0] == pieces[1] == pieces[2]


def test_formats_are_told_apart() -> None:
    formats = {path.name: program_format(path) for path in sorted(EXAMPLES.iterdir())}
    assert formats["attention.hlo"] == "HLO"
    assert formats["attention.stablehlo.mlir"] == "StableHLO"
    assert formats["attention.pt2"] == "torch.export"
    assert formats["mlp.relax.txt"] == formats["mlp.tir.txt"] == "TVM script"
    assert formats["attention.flow.mlir"] == formats["attention.tosa.mlir"] == "linalg, TOSA or torch in MLIR"
    assert formats["matmul.ttir"] == formats["matmul.ttgir"] == "Triton IR"
    assert formats["rmsnorm.ptx"] == "PTX"


def test_fusions_are_those_of_the_compiler() -> None:
    xla, tvm, iree = (graph(f"attention.{kind}") for kind in ("hlo", "tir.txt", "flow.mlir"))
    assert {fusion.by for fusion in (*xla.fusions, *tvm.fusions, *iree.fusions)} == {"xla", "tvm", "iree"}
    assert [len(found.fusions) for found in (xla, tvm, iree)] == [19, 13, 12]
    assert not graph("attention.stablehlo.mlir").fusions
    assert all(op.fusion == fusion.id for fusion in xla.fusions for op in (xla.ops[place] for place in fusion.ops))


def test_a_loop_over_layers_runs_as_often_as_it_says() -> None:
    whole, part = graph("layers.stablehlo.mlir"), graph("layers.hlo")
    assert {op.count for op in whole.ops if op.kind == "product"} == {6}
    assert {op.count for op in part.ops if op.kind == "product"} == {6}
    assert whole.flops == 6 * 2 * 2 * 32 * WIDTH * INNER
    assert whole.flops == 4 * part.flops  # one of two by two devices


def test_collectives_have_their_ranks_and_tensors_their_sharding() -> None:
    part, whole = graph("layers.hlo"), graph("layers.stablehlo.mlir")
    [collective] = [op for op in part.ops if op.kind == "collective"]
    assert collective.collective is not None
    assert (collective.collective.kind, collective.collective.ranks, collective.count) == ("all-reduce", 2, 6)
    assert any('{"data"}' in tensor.sharding for tensor in whole.tensors if tensor.role == "input")


def test_a_triton_kernel_counts_what_it_loads_multiplies_and_stores() -> None:
    norm = graph("rmsnorm.ttir")
    assert norm.total(lambda op: op.bytes) == 3 * 4096 * 2
    for name in ("matmul.ttir", "matmul.ttgir"):
        path = EXAMPLES / name
        source = ProgramSource(path=path, text=path.read_text(), head=path.read_text())
        launch = read_triton(source, {"K": 4096, "grid": 32 * 32})
        assert launch.flops == 2 * prod((4096, 4096, 4096))
        assert not launch.notes


def test_views_move_nothing_and_a_fusion_is_one_launch() -> None:
    xla = graph("mlp.hlo")
    assert xla.launches == len(xla.fusions) == 8
    assert all(op.bytes == 0 for op in xla.ops if op.kind == "view")
