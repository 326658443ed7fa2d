"""Prefill and decode are the lines that training is lowered with: other lengths, and no backward."""

from __future__ import annotations

from typing import Any

import pytest

import ridgeline
from ridgeline.ir.ops import Attend, MatMul
from ridgeline.ir.program import Program, SectionRole
from ridgeline.lowering.program import lower


def lowered(workload: dict[str, Any], model: str = "llama3-8b", **plan: Any) -> Program:
    table = {"model": model, "system": "8xh100-sxm", "workload": workload, "plan": {"tp": 8, "dp": 1, **plan}}
    return lower(ridgeline.scenario(table))


TRAIN = {"seq": 4096, "global_batch": 8}
PREFILL = {"kind": "prefill", "seq": 4096, "batch": 1}
DECODE = {"kind": "decode", "context": 4096, "batch": 1}


@pytest.mark.parametrize("model", ["llama3-8b", "deepseek-v3", "mixtral-8x7b", "gpt-oss-120b"])
def test_a_prefill_is_the_forward_of_training(model: str) -> None:
    train, prefill = lowered(TRAIN, model), lowered(PREFILL, model)
    assert [section.forward for section in prefill.sections] == [section.forward for section in train.sections]
    assert (train.step is None, prefill.step is None) == (False, True)


@pytest.mark.parametrize("workload", [PREFILL, DECODE])
def test_nothing_runs_backward_and_nothing_is_saved_for_it(workload: dict[str, Any]) -> None:
    for section in lowered(workload).sections:
        assert (section.backward_input, section.backward_weight, section.recompute) == ((), (), ())
        assert (section.saved.total, section.trained) == (0, 0)
        assert section.params == next(s.params for s in lowered(TRAIN).sections if s.key == section.key)


def test_a_decode_step_works_on_one_token_and_sees_all() -> None:
    """qkv: 1 x 4096 by 4096 x 6144/8; scores: two products of 32/8 heads of 128 with 4095.5 visible keys."""
    block = next(one for one in lowered(DECODE).sections if one.role is SectionRole.BLOCK)
    qkv = next(op for op in block.forward if isinstance(op, MatMul) and op.label == "qkv")
    assert (qkv.m, qkv.n, qkv.k) == (1, (4096 + 2 * 1024) / 8, 4096)
    (attend,) = (op for op in block.forward if isinstance(op, Attend))
    assert attend.flops == pytest.approx(2 * 4 * 2 * 128 * (4095.5 + 160))  # and a flash kernel's edge of 160 keys


def test_a_decode_step_of_a_window_sees_the_window() -> None:
    """Every second layer of gpt-oss sees 128 tokens of however many there are."""
    short, long = (lowered({**DECODE, "context": size}, "gpt-oss-120b", tp=8) for size in (4096, 65536))
    seen = [
        [float(op.flops) for section in made.sections for op in section.forward if isinstance(op, Attend)]
        for made in (short, long)
    ]
    grew = sorted(after / before for before, after in zip(*seen, strict=True))
    assert grew[0] == pytest.approx(1.0, rel=0.02)
    assert grew[-1] > 10
