"""Launches of experts and their casts, and widths that libraries have no fast kernels for, each counted by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ridgeline import scenario
from ridgeline.cost.op_table import OpTable
from ridgeline.ir.ops import Attend, MatMul, Op, Stream
from ridgeline.ir.program import Section
from ridgeline.lowering.context import Degrees, lowering_context
from ridgeline.lowering.program import lower
from ridgeline.lowering.sections import lower_block
from ridgeline.lowering.softmax_core import kernel_head_dim

EXPERTS = 64
SPARSE: dict[str, Any] = {
    "model": {
        "hidden": 2048,
        "layers": 2,
        "vocab": 32768,
        "attention": {"heads": 16, "kv_heads": 4},
        "moe": {"experts": EXPERTS, "topk": 4, "hidden": 1024},
    },
    "system": "8xh100-sxm",
    "workload": {"seq": 4096, "global_batch": 8},
    "plan": {"dp": 8, "ep": 4, "precision": "fp8"},
}


def layer(engine: str, *settings: str) -> Section:
    return lower(scenario(SPARSE, [f"plan.engine={engine}", *settings])).sections[2]


def launched(ops: Iterable[Op], label: str) -> float:
    return float(
        sum(
            op.launches if isinstance(op, MatMul) else op.kernels
            for op in ops
            if op.label == label and isinstance(op, (MatMul, Stream))
        )
    )


@pytest.mark.parametrize(
    ("engine", "launches"),
    [
        ("torchtitan", 1.0),  # torch._grouped_mm: one kernel
        ("megatron-core", 1 + 15 * 0.25),  # Transformer Engine loops over 16 local experts in C++
        ("deepspeed", 16.0),  # a module for each of 64 / 4 experts
    ],
)
def test_launches_of_local_experts(engine: str, launches: float) -> None:
    section = layer(engine)
    for label in ("experts up", "experts down", "cast for experts up", "cast for experts down"):
        assert launched(section.forward, label) == launches
    for label in ("experts up dX", "experts down dX", "cast for experts up dX"):
        assert launched(section.backward_input, label) == launches
    assert launched(section.backward_weight, "experts up dW") == launches
    assert launched(section.forward, "router") == 1
    assert launched(section.forward, "qkv") == 1


def test_modules_of_experts_have_activations_of_their_own() -> None:
    assert launched(layer("deepspeed").forward, "activation") == 3 * 16
    assert launched(layer("megatron-core").forward, "activation") == 1


def test_a_graph_of_the_whole_iteration_has_grouped_kernels() -> None:
    assert launched(layer("megatron-core", "plan.graph=full").forward, "experts up") == 1


def test_launches_are_a_column_over_plans() -> None:
    """1, 4 and 64 expert ranks leave 64, 16 and 1 experts on each: 1 + 63 / 4, 1 + 15 / 4 and 1 launches."""
    built = scenario(SPARSE, ["plan.engine=megatron-core"])
    ctx = replace(lowering_context(built), degrees=Degrees(ep=np.array([1.0, 4.0, 64.0])))
    table = OpTable.over([lower_block(ctx, built.model.blocks[0], "none")], 3)
    counted = table.matmuls[7].reshape(-1, 3)
    assert [16.75, 4.75, 1.0] in counted.tolist()


DENSE: dict[str, Any] = {
    "model": {
        "hidden": 2048,
        "layers": 2,
        "vocab": 50257,
        "attention": {"heads": 16, "kv_heads": 16, "head_dim": 80},
        "mlp": {"hidden": 5461},
    },
    "system": "8xh100-sxm",
    "workload": {"seq": 4096, "global_batch": 8},
}


def aligned(engine: str, *settings: str, **plan: Any) -> dict[str, float]:
    built = scenario({**DENSE, "plan": {"engine": engine, "dp": 8, **plan}}, settings)
    ops = [op for section in lower(built).sections for op in (*section.forward, *section.backward_weight)]
    return {op.label: float(op.alignment) for op in ops if isinstance(op, MatMul)}


def test_alignment_of_widths() -> None:
    """5461 is odd, so rows of its 16-bit elements start at any 2 bytes; 16 x 80 = 1280 is a multiple of 8."""
    found = aligned("generic")
    assert found["down"] == found["down dW"] == 2
    assert found["up"] == 4  # gate and value side by side: 10922 elements
    assert found["attention out"] == found["qkv"] == 16
    assert found["logits"] == 2


def test_compilers_pad() -> None:
    assert aligned("torch-compile")["logits"] == aligned("torch-compile")["down"] == 16
    assert aligned("torch-eager")["logits"] == 2


def test_engines_that_pad_the_vocabulary_are_aligned() -> None:
    """Megatron pads 50257 to a multiple of 128 tp: 50304 and, on two ranks, 50432 / 2."""
    assert aligned("megatron-core")["logits"] == 16
    built = scenario({**DENSE, "plan": {"tp": 2, "dp": 4, "engine": "megatron-core"}}, ["model.mlp.hidden=5504"])
    logits = next(op for op in lower(built).sections[1].forward if isinstance(op, MatMul) and op.label == "logits")
    assert logits.n == 25216


def test_alignment_follows_the_share_of_a_rank() -> None:
    """5504 / 8 = 688 is a multiple of 8 and of 16; 5456 / 8 = 682 only of 2, and 8-bit rows need 16 elements."""
    plan: dict[str, Any] = {"tp": 8, "dp": 1}
    assert aligned("megatron-core", "model.mlp.hidden=5504", "plan.precision=fp8", **plan)["down"] == 16
    assert aligned("megatron-core", "model.mlp.hidden=5456", **plan)["down"] == 4


@pytest.mark.parametrize(("library", "runs_as"), [("cudnn", 128), ("flash-2", 96), ("triton", 128), ("xla", 128)])
def test_heads_run_as_the_next_kernel(library: str, runs_as: int) -> None:
    assert kernel_head_dim(library, 80) == runs_as


def test_heads_of_80_cost_as_heads_of_128() -> None:
    built = scenario({**DENSE, "plan": {"dp": 8, "engine": "megatron-core"}})
    wide = scenario({**DENSE, "plan": {"dp": 8, "engine": "megatron-core"}}, ["model.attention.head_dim=128"])
    narrow, full = (
        next(op for op in lower(each).sections[2].forward if isinstance(op, Attend)) for each in (built, wide)
    )
    assert narrow.flops == full.flops
    assert narrow.stream_bytes == pytest.approx(full.stream_bytes * 80 / 128)


BIASED = "model.moe.bias=true"


def passes(ops: Iterable[Op], label: str, elements: float, size: float = 2.0) -> float:
    return float(sum(op.stream_bytes for op in ops if op.label == label and isinstance(op, Stream))) / elements / size


def test_biases_of_experts_are_added_one_by_one() -> None:
    """16 local experts: slices added (up), multiplied and added (down), joined; 65 and 150 us of a host each."""
    section = layer("megatron-core", BIASED)
    assert launched(section.forward, "expert biases") == pytest.approx(2 + 1.8 * 16)
    assert launched(section.backward_input, "expert biases dX") == pytest.approx(2 + 4.2 * 16)
    widths = 4 * 4096 * (2 * 1024 + 2048)  # of 4 copies of each token: what `up` and `down` give
    assert passes(section.forward, "expert biases", widths) == pytest.approx(4.7)


def test_biases_where_no_host_knows_sizes_are_gathered() -> None:
    section = layer("megatron-core", BIASED, "plan.graph=full")
    assert launched(section.forward, "expert biases") == 4
    assert not launched(layer("megatron-core").forward, "expert biases")


def test_choosing_experts_costs_more_than_reading_scores() -> None:
    """An H200 takes 0.35 ms for 16384 tokens and 128 experts by top-k, scatter and sort; 4.2 TB/s are 280 passes."""
    scores = 4096 * EXPERTS
    assert passes(layer("deepspeed").forward, "top-k", scores) == 280
    assert passes(layer("megatron-bridge").forward, "top-k", scores) == 150
    assert passes(layer("megatron-bridge").backward_input, "top-k dX", scores) == 40
