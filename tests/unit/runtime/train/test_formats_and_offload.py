"""What one process trains under other formats, recompute policies, fusions and offload: the same loss and gradients."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[3]))

import torch
from run_worlds import Case, _verified, blueprint_and_layout

import ridgeline
from ridgeline.plan.optimizer import Optimizer
from ridgeline.runtime.train.assemble import assemble
from ridgeline.runtime.train.data import batch_of, open_source
from ridgeline.runtime.train.refuse import refusals
from ridgeline.runtime.train.step import FIRST_SCALE, Stepper, WholeStep
from ridgeline.runtime.train.update import BETAS, DECAY, EPSILON, Update

WIDE = Optimizer()
NARROW = ridgeline.scenario(
    {
        "model": "llama3.2-1b", "system": "1xh200-sxm", "plan": {"engine": "ridgeline"},
        "workload": {"seq": 64, "global_batch": 1, "optimizer": {"name": "adamw", "states": "bf16"}},
    }
).workload.optimizer  # type: ignore[union-attr]  # fmt: skip

ALONE: list[Case] = [
    ("dense", {"offload": "activations", "microbatch": 2}),
    ("gpt", {"offload": {"activations": 0.5}}),
    ("moe", {"offload": "activations", "recompute": "full"}),
    ("mla", {"offload": ["activations", "optimizer"]}),
    ("dense", {"recompute": {"kind": "selective", "parts": ["attention", "activation"]}}),
    ("moe", {"recompute": {"kind": "selective", "parts": ["activation", "mixer"]}}),
    ("dense", {"recompute": {"kind": "full", "layers": 1, "rest": "selective"}}),
    ("mla", {"recompute": {"kind": "none", "blocks": {"1": "full"}}}),
    ("dense", {"fuses": ["linear-cross-entropy"]}),
    ("window", {"fuses": []}),
]
ROUNDED: list[Case] = [
    ("dense", {"precision": "fp8"}),
    ("gpt", {"precision": {"name": "fp8", "scaling": "row"}}),
    ("dense", {"precision": "fp16"}),
    ("dense", {"precision": "bf16", "offload": "activations", "fuses": ["linear-cross-entropy"]}),
]


def stepped(optimizer: Optimizer, steps: int = 3, **plan: Any) -> tuple[list[float], Update, WholeStep]:
    """Losses of a few steps of the dense model, and what they leave."""
    blueprint, layout, spec = blueprint_and_layout("dense", plan)
    assembly = assemble(blueprint, layout)
    step = WholeStep(Stepper(assembly=assembly, microbatches=1), Update(assembly, optimizer, 1e-2), graph=False)
    source = open_source("synthetic", spec.vocab, 0)
    losses = [float(step(batch_of(source, index, 4, 32, layout))[0]) for index in range(steps)]
    return losses, step.update, step


def test_offload_recompute_and_fusions_change_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    from ridgeline.runtime.train import fused

    monkeypatch.setattr(fused, "CHUNK", 48)  # of 128 tokens: three chunks, the last one shorter
    for case in ALONE:
        found = _verified(*case)
        assert found is not None
        assert found["equal"], (case, found)
        assert found["worst"][2] == 1e-5
    for case in ROUNDED:
        found = _verified(*case)
        assert found is not None
        assert found["equal"], (case, found)
        assert found["worst"][2] > 1e-4


def test_states_on_the_host_give_the_same_bits_and_a_share_of_activations_is_moved() -> None:
    for optimizer in (WIDE, NARROW):
        for weights in ("fp32", "bf16"):
            here, kept, _ = stepped(optimizer, precision=weights)
            away, moved, _ = stepped(optimizer, precision=weights, offload="optimizer")
            half, some, _ = stepped(optimizer, precision=weights, offload={"optimizer": 0.5})
            assert here == away == half
            assert not kept.away
            assert len(moved.away) == len(moved.named) > len(some.away) > 0
            for name, state in kept.states.items():
                assert torch.equal(state[1], moved.states[name][1])
                assert state[0].dtype == (torch.float32 if optimizer is WIDE else torch.bfloat16)
                assert kept.masters[name].dtype == torch.float32
    _, _, step = stepped(WIDE, precision="fp32", offload={"activations": 0.3})
    offload = step.stepper.assembly.stages[0].offload
    assert offload is not None
    assert 0.1 * offload.seen < offload.moved <= 0.3 * offload.seen


def test_adamw_is_torchs_and_a_narrow_one_stays_near_it() -> None:
    blueprint, layout, _ = blueprint_and_layout("dense", {"precision": "fp32"})
    assembly = assemble(blueprint, layout)
    twins = {name: torch.nn.Parameter(held.detach().clone()) for name, held in assembly.parameters().items()}
    groups = [
        {"params": [one for one in twins.values() if (one.dim() > 1) == decayed], "weight_decay": DECAY * decayed}
        for decayed in (True, False)
    ]
    plain = torch.optim.AdamW(groups, lr=1e-2, betas=BETAS, eps=EPSILON)
    update = Update(assembly, WIDE, 1e-2)
    loose = Update(assemble(replace(blueprint, fuses=frozenset({"norm"})), layout), WIDE, 1e-2)
    for _ in range(3):
        for name, twin in twins.items():
            twin.grad = torch.randn(twin.shape) * 1e-3  # too small to be clipped
            for one in (update, loose):
                one.named[name].grad = twin.grad.clone()
        plain.step()
        for one in (update, loose):
            one.step(torch.tensor(0.5))
    for name, twin in twins.items():
        for one in (update, loose):
            torch.testing.assert_close(one.shards[name], twin.detach(), rtol=1e-5, atol=1e-7)


def test_gradients_that_overflow_in_fp16_move_nothing_and_halve_the_scale() -> None:
    _, update, step = stepped(WIDE, steps=1, precision="fp16")
    assert step.stepper.scale == FIRST_SCALE
    before = {name: shard.clone() for name, shard in update.shards.items()}
    step.stepper.scale = 2.0**40
    layout, spec = step.stepper.assembly.layout, step.stepper.assembly.blueprint.model
    _, norm = step(batch_of(open_source("synthetic", spec.vocab, 0), 1, 4, 32, layout))
    assert not norm.isfinite()
    assert step.stepper.scale == 2.0**39
    assert all(torch.equal(before[name], shard) for name, shard in update.shards.items())


def test_graphs_and_scales_that_it_cannot_do_are_refused() -> None:
    def refused(system: str, plan: dict[str, Any]) -> list[str]:
        table = {"model": "llama3.2-1b", "system": system, "workload": {"seq": 512, "global_batch": 8}}
        made = ridgeline.scenario({**table, "plan": {"engine": "ridgeline", **plan}})
        return [problem.path for problem in refusals(made)]

    assert refused("1xh200-sxm", {"graph": "full"}) == []
    assert refused("1xcpu", {"graph": "full", "precision": "fp32"}) == ["plan.graph"]
    assert refused("1xh200-sxm", {"graph": "full", "offload": "activations"}) == ["plan.graph"]
    assert refused("2xh200-sxm", {"graph": "full", "dp": 2}) == ["plan.graph"]
    assert refused("1xh200-sxm", {"precision": {"name": "fp8", "scaling": "block"}}) == ["plan.precision.scaling"]
    assert refused("1xh200-sxm", {"precision": "fp8"}) == []


def test_kernels_of_our_own_compute_what_the_formulas_do() -> None:
    """In Triton's interpreter, which rounds 16-bit stores towards zero: compared in 32 bits."""
    os.environ.setdefault("TRITON_INTERPRET", "1")
    pytest.importorskip("triton")
    from ridgeline.runtime.train import fused, kernels
    from ridgeline.runtime.train.update import _loose

    torch.manual_seed(0)
    logits, targets = torch.randn(3, 5001) * 3, torch.randint(5001, (3,))
    there, here = logits.clone(), logits.clone()
    expected = fused.loss_and_slope(here, targets, 0.25)
    torch.testing.assert_close(kernels.cross_entropy(there, targets, 0.25).sum() * 0.25, expected)
    torch.testing.assert_close(there, here, rtol=1e-5, atol=1e-7)
    x, cos, sin = torch.randn(1, 3, 5, 24), torch.rand(3, 12), torch.rand(3, 12)
    torch.testing.assert_close(kernels.rotate(x, cos, sin, 1.0), fused.apply_rotary(x, cos, sin, fused=False))
    gate, up = (torch.randn(3, 1000, requires_grad=True) for _ in range(2))
    d_out = torch.randn(3, 1000)
    fused.gated_activation(gate, up, fused=False).backward(d_out)
    found = kernels.gated_back(gate.detach(), up.detach(), d_out)
    torch.testing.assert_close(found, (gate.grad, up.grad))
    many = [torch.randn(size) for size in (3, 40_000)]
    torch.testing.assert_close(kernels.sums_of_squares(many), fused.sum_of_squares(many))
    told = {"rate": 1e-2, "decay": 0.1, "betas": BETAS, "epsilon": EPSILON}
    weight, gradient, states = torch.randn(7, 500), torch.randn(7, 500), (torch.randn(7, 500), torch.rand(7, 500))
    other, moments = weight.clone(), (states[0].clone(), states[1].clone())
    factor, count = torch.tensor(0.5), torch.tensor(3.0)
    kernels.adamw(weight, weight, gradient, states, (factor, count), told)
    _loose(other, gradient * factor, moments, count, told)
    torch.testing.assert_close((weight, *states), (other, *moments), rtol=1e-5, atol=1e-6)
