"""An engine step is lowered by the lines that training's forward is: other tokens, a cache, and no backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ridgeline
from ridgeline.ir.forward_steps import ForwardSteps, chunk_pairs, forward_steps
from ridgeline.ir.ops import Attend, Collective, MatMul, Op
from ridgeline.ir.program import Section, SectionRole
from ridgeline.lowering.program import ForwardProgram, lower, lower_forward
from ridgeline.lowering.softmax_core import VECTOR_ATTENTION
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble


def scenario(model: str, workload: dict[str, Any], chips: int = 8, **plan: Any) -> Scenario:
    table = {"model": model, "system": f"{chips}xh100-sxm", "workload": workload}
    return ridgeline.scenario({**table, "plan": {"engine": "vllm", **plan}})


def served(model: str, steps: ForwardSteps, chips: int = 8, **plan: Any) -> ForwardProgram:
    return lower_forward(scenario(model, {"kind": "decode", "context": 1024, "batch": 8}, chips, **plan), steps)


def block(program: ForwardProgram) -> Section:
    return next(one for one in program.sections if one.role is SectionRole.BLOCK)


def named(ops: tuple[Op, ...], label: str) -> Any:
    return next(op for op in ops if op.label == label)


PROMPT = forward_steps(prefill_tokens=4096.0, prefill_pairs=chunk_pairs(4096.0))


@pytest.mark.parametrize("model", ["llama3-8b", "gpt-oss-120b", "deepseek-v3", "nemotron-h-8b"])
def test_a_prompt_multiplies_what_training_multiplies(model: str) -> None:
    """The products of a dense layer's forward, and as many flops in experts, for the same tokens on the same ranks."""
    train = lower(scenario(model, {"seq": 4096, "global_batch": 8}, tp=8, dp=1, sequence_parallel=False))
    own = served(model, PROMPT, tp=8)
    for trained, run in zip(train.sections, own.sections, strict=True):
        if trained.role is not SectionRole.BLOCK:
            continue
        flops = [
            sum(
                float(np.max(op.flops)) for op in section.forward if isinstance(op, MatMul) and "latent" not in op.label
            )
            for section in (trained, run)
        ]
        experts = any(op.label == "experts up" for op in trained.forward)
        # training splits tokens over tensor ranks before its router
        assert flops[1] == pytest.approx(flops[0], rel=0.05 if experts else 1e-9)


def test_a_prompt_sees_what_training_sees() -> None:
    """Scores of a causal sequence: half of all pairs, and a flash kernel's edge."""
    train = lower(scenario("llama3-8b", {"seq": 4096, "global_batch": 8}, tp=8, dp=1))
    trained = next(
        op for s in train.sections if s.role is SectionRole.BLOCK for op in s.forward if isinstance(op, Attend)
    )
    own = named(block(served("llama3-8b", PROMPT, tp=8)).forward, "prefill attention")
    assert float(own.flops[0]) == pytest.approx(float(trained.flops))


def test_steps_stand_side_by_side_in_one_lowering() -> None:
    """Columns over compositions give what each gives alone."""
    tokens, decodes = np.array([0.0, 512.0, 8192.0]), np.array([64.0, 3.0, 0.0])
    together = served(
        "llama3-8b", forward_steps(prefill_tokens=tokens, decodes=decodes, kv_tokens=decodes * 1000), tp=8
    )
    for place in range(3):
        kept = float(decodes[place])
        alone = served(
            "llama3-8b", forward_steps(prefill_tokens=tokens[place], decodes=kept, kv_tokens=kept * 1000), tp=8
        )
        for many, one in zip(block(together).forward, block(alone).forward, strict=True):
            if isinstance(many, MatMul) and isinstance(one, MatMul):
                assert np.broadcast_to(many.m, 3)[place] == np.ravel(one.m)[0]


def test_a_decode_reads_its_cache_once() -> None:
    """8 requests of 1000 tokens, one of 8 key-value heads a rank: 2 x 128 numbers of 2 bytes each, and queries."""
    decode = forward_steps(decodes=8.0, kv_tokens=8000.0)
    (half, whole) = (
        named(block(served("llama3-8b", decode, tp=8, precision=form)).forward, "decode attention")
        for form in ({"name": "bf16", "kv": "fp8"}, {"name": "bf16"})
    )
    queries = 8 * 4 * 256 * 2
    assert float(whole.stream_bytes[0]) == pytest.approx(8000 * 256 * 2 + queries)
    assert float(half.stream_bytes[0]) == pytest.approx(8000 * 256 + queries)
    assert (whole.sharing, float(whole.caches[0])) == (4.0, 8.0)


def test_a_kernel_that_is_not_made_for_the_group_runs_on_vector_units() -> None:
    """Four query heads of llama3-8b share a cached one: the cache is read once, by other units than matrix units."""
    decode, table = forward_steps(decodes=8.0, kv_tokens=8000.0), {"kind": "decode", "context": 1024, "batch": 8}
    for groups, label in (([4, 8], "decode attention"), ([8], VECTOR_ATTENTION)):
        made = ridgeline.scenario(
            {
                "engine": {"base": "tensorrt-llm", "serves": {"shared_groups": groups}},
                "model": "llama3-8b", "system": "8xh100-sxm", "workload": table,
                "plan": {"engine": "tensorrt-llm", "tp": 8},
            }
        )  # fmt: skip
        op = named(block(lower_forward(made, decode)).forward, label)
        assert float(op.stream_bytes[0]) == pytest.approx(8000 * 256 * 2 + 8 * 4 * 256 * 2)
        assert (op.sharing, float(op.caches[0])) == (4.0, 8.0)


def test_cores_are_tensor_ranks_with_padded_heads_and_buckets() -> None:
    """llama3-8b on 24 NeuronCores: 32 query heads run as 48, every core holds a cached head, and a context of 1,100
    tokens reads the 2,048 that its program was compiled for."""
    made, _ = assemble(  # the engine pads what tensor ranks do not divide
        {
            "model": "llama3-8b", "system": "12xinferentia2", "plan": {"engine": "neuronx", "tp": 12},
            "workload": {"kind": "decode", "context": 1100, "batch": 8},
        }
    )  # fmt: skip
    assert made is not None
    op = named(block(lower_forward(made, forward_steps(decodes=8.0, kv_tokens=8 * 1100.0))).forward, VECTOR_ATTENTION)
    read, each = 8 * 2048, 48 / 12 * 256
    assert float(op.flops[0]) == pytest.approx(2 * read * each)
    assert float(op.stream_bytes[0]) == pytest.approx(read * 2 * 256 * 2 + 8 * each * 2)


def test_a_window_bounds_what_a_decode_reads() -> None:
    """Every second layer of gpt-oss sees 128 tokens of however many there are."""
    seen = [
        [
            float(op.flops[0])
            for section in served("gpt-oss-120b", forward_steps(decodes=1.0, kv_tokens=context), tp=8).sections
            for op in section.forward
            if isinstance(op, Attend) and op.label == "decode attention"
        ]
        for context in (4096.0, 65536.0)
    ]
    grew = sorted(after / before for before, after in zip(*seen, strict=True))
    assert grew[0] == pytest.approx(1.0)
    assert grew[-1] == pytest.approx(16.0)


def test_latent_attention_decodes_over_its_latents() -> None:
    """DeepSeek-V3: 512 + 64 numbers of a cached token on every tensor rank, whatever the heads."""
    ops = block(served("deepseek-v3", forward_steps(decodes=4.0, kv_tokens=4000.0), tp=8)).forward
    attend = named(ops, "decode attention")
    assert float(attend.flops[0]) == pytest.approx(2 * 4000 * 16 * (2 * 512 + 64))
    assert float(attend.stream_bytes[0]) == pytest.approx(4000 * 576 * 2 + 4 * 16 * (2 * 512 + 64) * 2)
    assert float(named(ops, "key-value up").groups[0]) == 0  # prompts alone expand keys and values


def test_few_tokens_touch_few_experts() -> None:
    """One token of DeepSeek-V3 reads 8 of 256 experts; 64 tokens 256 (1 - (1 - 8/256)^64) = 222."""
    program = served("deepseek-v3", forward_steps(decodes=[1.0, 64.0], kv_tokens=[1000.0, 64000.0]), tp=8)
    up = next(op for one in program.sections for op in one.forward if op.label == "experts up")
    assert isinstance(up, MatMul)
    assert np.allclose(up.groups, [8.0, 256 * (1 - (1 - 8 / 256) ** 64)])
    assert np.allclose(up.m * up.groups, [8.0, 512.0])
    assert up.n == 2 * 2048 / 8  # without expert parallelism every tensor rank holds a slice of each


def test_attention_data_parallel_ranks_share_their_experts() -> None:
    steps = forward_steps(decodes=4.0, kv_tokens=4000.0)
    program = served("deepseek-v3", steps, tp=1, dp=8, ep=8)
    up = next(op for one in program.sections for op in one.forward if op.label == "experts up")
    assert isinstance(up, MatMul)
    distinct = 256 * (1 - (1 - 8 / 256) ** 32)  # of 8 ranks' 4 tokens each
    assert np.allclose(up.groups, distinct / 8)
    kinds = {(op.kind, op.axis) for one in program.sections for op in one.forward if isinstance(op, Collective)}
    assert kinds == {("all-to-all", "ep")}


def test_weights_may_be_narrower_than_what_multiplies_them() -> None:
    form = {"compute": "bf16", "weights": "int4", "activations": "bf16"}
    qkv = named(block(served("llama3-8b", forward_steps(decodes=1.0, kv_tokens=9.0), 1, precision=form)).forward, "qkv")
    assert (qkv.peak, qkv.in_bytes, qkv.weight_bytes) == ("bf16", 2.0, 0.25)


def test_nothing_runs_backward() -> None:
    for section in served("llama3-8b", PROMPT, tp=8).sections:
        assert (section.backward_input, section.backward_weight, section.recompute) == ((), (), ())
        assert (section.saved.total, section.trained) == (0, 0)
