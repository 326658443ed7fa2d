"""Tensors and their placements say what parameters, memory and products say: every weight, on every rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ridgeline
from ridgeline.ir.ops import MatMul, Num
from ridgeline.ir.program import Program, Section, Split, Tensor
from ridgeline.lowering.placements import data_parallel_split
from ridgeline.lowering.program import lower
from ridgeline.models.load import MODELS, model
from ridgeline.models.mixer_parts import mixer_parts
from ridgeline.models.params import count
from ridgeline.models.parts import ffn_parts
from ridgeline.models.spec import ModelSpec

TEXT = sorted(MODELS)
SPREAD = [
    ("llama3-70b", {"tp": 8, "pp": 2, "dp": 4}),
    ("llama3-8b", {"tp": 2, "cp": 4, "dp": 8}),
    ("llama3-8b", {"tp": 16, "dp": 4}),
    ("llama3-8b", {"tp": 8, "dp": 8, "sequence_parallel": False}),
    ("deepseek-v3", {"tp": 4, "ep": 16, "dp": 16}),
    ("deepseek-v3.2", {"tp": 2, "ep": 32, "dp": 32}),
    ("mixtral-8x7b", {"tp": 2, "ep": 4, "etp": 2, "dp": 32}),
    ("qwen3-next-80b-a3b", {"tp": 2, "ep": 8, "dp": 32}),
    ("gpt-oss-120b", {"ep": 8, "dp": 64}),
]


def local_elements(tensor: Tensor) -> Num:
    """Elements that one rank holds."""
    local: Num = tensor.elements
    for split in tensor.splits:
        local = local / (np.minimum(split.degree, split.units) if split.units else split.degree)
    return local


def lowered(name: str, plan: dict[str, Any] | None = None) -> Program:
    table = {
        "model": name,
        "system": f"{64 if plan else 1}xh100-sxm",
        "workload": {"seq": 4096, "global_batch": 64, "images": 1.0},
        "plan": plan or {},
    }
    return lower(ridgeline.scenario(table))


def weights(section: Section) -> list[Tensor]:
    return [tensor for tensor in section.tensors if tensor.kind == "weight"]


@pytest.mark.parametrize("name", TEXT)
def test_tensors_are_the_models_parameters(name: str) -> None:
    """All weights of all layers, counted one by one, are what `count` says."""
    program = lowered(name)
    often = np.array(program.stages).sum(0)
    total = sum(
        int(times) * int(tensor.elements)
        for times, section in zip(often, program.sections, strict=True)
        for tensor in weights(section)
    )
    assert total == count(model(name)).total + count(model(name)).mtp


@pytest.mark.parametrize(("name", "plan"), SPREAD)
def test_products_have_the_size_of_the_weights_they_read(name: str, plan: dict[str, Any]) -> None:
    """Rows x columns of every forward product on one rank are the elements of its weights there."""
    compared, described = 0, product_weights(model(name))
    for section in lowered(name, plan).sections:
        tensors = {tensor.name: tensor for tensor in weights(section)}
        for op in section.forward:
            if isinstance(op, MatMul) and op.label in described:
                local = [local_elements(tensors[name]) for name in described[op.label] if name in tensors]
                assert float(np.asarray(op.n * op.k * op.groups)) == pytest.approx(float(np.sum(local))), op.label
                compared += 1
    assert compared >= 4


def product_weights(spec: ModelSpec) -> dict[str, set[str]]:
    """Names of the weights that a product multiplies with, by its label."""
    ends = ("projection", "embedding projection", "head projection")
    names = {label: {f"{label.replace(' ', '.')}.weight"} for label in (*ends, "experts up", "experts down", "router")}
    for block in spec.blocks:
        mixers = [mixer_parts(mixer, spec.hidden) for mixer in block.mixers]
        dense = ffn_parts(block.ffn, spec.hidden).dense if block.ffn else None
        for product in (
            *(one for parts in mixers for one in parts.products),
            *((dense.up, dense.down) if dense else ()),
        ):
            names.setdefault(product.label, set()).update(weight.name for weight in product.weights)
    return names


@pytest.mark.parametrize(("name", "plan"), SPREAD)
def test_a_rank_holds_what_memory_counts(name: str, plan: dict[str, Any]) -> None:
    """To a few thousandths: vectors that every rank has whole are counted as split by the memory model."""
    for section in lowered(name, plan).sections:
        local = sum(float(np.asarray(local_elements(tensor))) for tensor in weights(section))
        priced = float(np.asarray(section.params + section.expert_params))
        assert priced == pytest.approx(local, rel=5e-3), section.name


def test_activations_between_products() -> None:
    """Tokens over cp; norms and residuals over tp too; inside a layer the width over tp; partial where it leaves."""
    section = next(one for one in lowered("llama3-8b", {"tp": 4, "cp": 2, "dp": 8}).sections if one.key.block == 0)
    held = {tensor.name: tensor for tensor in section.tensors if tensor.kind == "activation"}
    tokens = 4096
    assert local_elements(held["input"]) == tokens / 2 / 4 * 4096
    assert local_elements(held["mlp.inner"]) == tokens / 2 * 14336 / 4
    assert (held["mlp.out"].partial, local_elements(held["mlp.out"])) == (("tp",), tokens / 2 * 4096)


def test_sharded_weights_are_cut_once_more() -> None:
    weight = Tensor(name="w", dims=(8, 6), splits=(Split(dim=1, axis="tp", degree=2),))
    assert local_elements(data_parallel_split(weight, 4)) == 8 * 6 / 2 / 4


def test_zero3_cuts_weights_over_the_shard_and_experts_over_their_own_replicas() -> None:
    """64 ranks, experts over 16 of them: four replicas of an expert, which share what 64 share of the rest."""
    plan = {"tp": 1, "ep": 16, "dp": 64}
    whole, cut = (
        lowered("deepseek-v3", plan),
        lowered("deepseek-v3", {**plan, "shard": "zero3", "engine": "torchtitan"}),
    )
    for before, after in zip(whole.sections, cut.sections, strict=True):
        for one, other in zip(weights(before), weights(after), strict=True):
            ranks = 4 if one.name in ("experts.up.weight", "experts.down.weight") else 64
            assert float(np.asarray(local_elements(one) / local_elements(other))) == ranks, one.name
