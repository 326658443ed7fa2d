"""Regions by name: the kernels that eager PyTorch launches and a compiler joins, and what they move."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from ridgeline.core.errors import InputError
from ridgeline.graph import kernels_of, region, region_base
from ridgeline.graph.region_table import region_words
from ridgeline.ir.op_graph import OpPhase

TRUTH = Path(__file__).parents[3] / "src" / "ridgeline" / "calibrate" / "truth" / "fusion.csv"
SIZE = 4096 * 4096  # elements of 4096 tokens of 4096


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        ("rmsnorm", 8, 16), ("rmsnorm-fused-aten", 1, 2), ("swiglu", 2, 3), ("dropout-residual", 2, 1),
        ("cross-entropy", 3, 4), ("linear+gelu", 2, 3),
    ],
)  # fmt: skip
def test_eager_launches_as_many_kernels_as_were_measured(name: str, forward: int, backward: int) -> None:
    graph = region(name, 1024, 2048).graph
    assert (len(kernels_of(graph, "apart", "forward")), len(kernels_of(graph, "apart", "backward"))) == (
        forward,
        backward,
    )
    if name != "linear+gelu":  # whose smallest product was split
        with TRUTH.open() as file:
            rows = [row for row in csv.DictReader(file) if row["region"] == name and row["variant"] == "eager"]
        fewest = {row["direction"]: int(row["kernels"]) for row in reversed(rows)}
        assert fewest == {"fwd": forward, "bwd": backward}


@pytest.mark.parametrize(
    ("name", "phase", "moved"),
    [
        ("rmsnorm", "forward", [4.0]),  # bytes of an element: 16 bits read and written
        ("rmsnorm", "backward", [6.0, 4.0]),  # the input again and the gradient; the same for the weights
        ("residual+rmsnorm", "forward", [8.0]),
        ("swiglu", "forward", [6.0]),
        ("swiglu", "backward", [10.0]),  # the activation is computed again
        ("dropout-residual", "forward", [7.0]),  # a mask of a byte
        ("cross-entropy", "backward", [4.0]),  # no scores are stored
        ("rotary", "forward", [4.0]),
        ("rotary", "backward", [4.0]),
    ],
)
def test_a_compiler_moves_what_it_must(name: str, phase: OpPhase, moved: list[float]) -> None:
    kernels = kernels_of(region(name, 4096, 4096).graph, "joined", phase)
    assert [kernel.bytes / SIZE for kernel in kernels] == pytest.approx(moved, rel=0.04)


def test_epilogues_of_products_are_kernels_of_their_own() -> None:
    kernels = kernels_of(region("linear+bias+gelu", 4096, 4096).graph, "joined", "forward")
    assert [kernel.access for kernel in kernels] == ["product", "stream"]


def test_a_head_with_its_loss_is_a_product_and_a_kernel() -> None:
    kernels = kernels_of(region("head+loss", 4096, 4096).graph, "joined", "backward")
    assert [kernel.access for kernel in kernels] == ["softmax", "product", "product"]


def test_other_spellings_are_the_same_region() -> None:
    assert region_words("add+rms_norm") == region_words("residual-rmsnorm")
    assert region_words("qk-norm") == ("rmsnorm", "heads")
    assert region_base("rmsnorm-fused-aten") == "rmsnorm"


def test_an_unknown_word_is_named() -> None:
    with pytest.raises(InputError, match="got 'warp'"):
        region("warp-drive", 16, 16)
