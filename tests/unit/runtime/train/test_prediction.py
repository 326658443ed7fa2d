"""Multi-token prediction in one process against its formula, and its weights in files of DeepSeek-V3's names."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[3]))

import torch
from run_worlds import blueprint_and_layout
from torch.nn import functional

from ridgeline.runtime.train.assemble import Assembly, assemble
from ridgeline.runtime.train.data import batch_of, open_source
from ridgeline.runtime.train.step import Stepper

SEQ, SEQUENCES, DEPTH, WEIGHT = 16, 2, 2, 0.3


def _assembly(name: str = "mtp-tied", **changes: Any) -> Assembly:
    blueprint, layout, _ = blueprint_and_layout(name, {})
    assembly = assemble(replace(blueprint, **changes), layout)
    with torch.no_grad():
        for held in assembly.parameters().values():
            held.mul_(5) if held.dim() > 1 else held.add_(torch.linspace(0, 0.5, len(held)))
    return assembly


def _rms(x: Any, weight: Any) -> Any:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def _by_hand(assembly: Assembly, whole: Any) -> Any:
    """Section 2.2 of DeepSeek-V3 written out; `whole` has seq + 1 + depth tokens a row."""
    held, stage = assembly.parameters(), assembly.stages[0]
    head = embedding = held["embedding.weight"]
    h = embedding[whole[:, :SEQ]]
    for layer in stage.layers.values():
        h = layer(h)
    h = _rms(h, held["norm.weight"])

    def entropy(x: Any, ahead: int) -> Any:
        return functional.cross_entropy((x @ head.T).flatten(0, 1), whole[:, ahead : ahead + SEQ].flatten())

    loss = entropy(h, 1)
    for k in range(1, DEPTH + 1):
        own = f"mtp.{k - 1}."
        row = _rms(embedding[whole[:, k : k + SEQ]], held[own + "embedding_norm.weight"])
        joined = torch.cat((row, _rms(h, held[own + "hidden_norm.weight"])), -1)
        h = stage.mtp[k - 1].layer(joined @ held[own + "projection.weight"].T)
        loss = loss + WEIGHT / DEPTH * entropy(_rms(h, held[own + "norm.weight"]), k + 1)
    return loss


def test_loss_and_gradients_are_those_of_the_formula() -> None:
    assembly = _assembly()
    source = open_source("synthetic", 256, 0)
    whole = torch.stack([source.read(index, SEQ + 1, DEPTH) for index in range(SEQUENCES)])
    expected = _by_hand(assembly, whole)
    held = assembly.parameters()
    gradients = torch.autograd.grad(expected, list(held.values()))
    loss = Stepper(assembly=assembly, microbatches=SEQUENCES).gradients(
        batch_of(source, 0, SEQUENCES, SEQ, assembly.layout, DEPTH)
    )
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-6, atol=0)
    for (name, parameter), gradient in zip(held.items(), gradients, strict=True):
        torch.testing.assert_close(
            parameter.grad, gradient, rtol=1e-4, atol=1e-6, msg=lambda said, name=name: name + said
        )


def test_without_it_data_and_loss_are_as_before() -> None:
    source = open_source("synthetic", 256, 0)
    plain, further = (batch_of(source, 0, SEQUENCES, SEQ, _assembly().layout, more) for more in (0, DEPTH))
    assert plain.targets.shape == (SEQUENCES, SEQ)
    assert further.targets.shape == (SEQUENCES, 1 + DEPTH, SEQ)
    assert torch.equal(further.tokens, plain.tokens)
    assert torch.equal(further.targets[:, 0], plain.targets)
    assert torch.equal(further.targets[:, 2, :-2], plain.targets[:, 2:])
    assert not [name for name in _assembly("dense").parameters() if "mtp" in name]


def test_weights_stand_behind_the_last_layer_in_files_or_the_model_goes_without(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    from ridgeline.runtime.train.hf_weights import load_weights, save_weights
    from ridgeline.runtime.train.request import lacks_prediction

    first, second = _assembly("mla-mtp"), _assembly("mla-mtp", seed=1)
    save_weights(first, tmp_path / "whole")
    with safetensors.safe_open(tmp_path / "whole" / "model.safetensors", framework="pt") as file:
        names = set(file.keys())
    assert {f"model.layers.2.{name}.weight" for name in ("enorm", "hnorm", "eh_proj", "shared_head.norm")} <= names
    assert "model.layers.2.self_attn.kv_b_proj.weight" in names
    load_weights(second, tmp_path / "whole")
    for name, parameter in first.parameters().items():
        assert torch.equal(parameter, second.parameters()[name]), name

    without = replace(first.blueprint.model, mtp=None)
    save_weights(_assembly("mla-mtp", model=without), tmp_path / "main")
    model = first.blueprint.model
    assert [lacks_prediction(tmp_path / folder, model) for folder in ("whole", "main")] == [False, True]
    assert not lacks_prediction(tmp_path / "main", without)
