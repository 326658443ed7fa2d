"""Switching one feature changes ops, bytes and seconds by an amount derived by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from ridgeline import predict, scenario
from ridgeline.cost.calibration import default_calibration
from ridgeline.hardware.load import chip
from ridgeline.ir.ops import FLASH_EXTRA, Attend, Collective, MatMul, Op, Stream
from ridgeline.ir.program import Section
from ridgeline.lowering.program import lower
from ridgeline.lowering.softmax_core import MASKED
from ridgeline.models.spec import Attention
from ridgeline.plan.engine import engine
from ridgeline.sim.prediction import Prediction

HIDDEN, SEQ, LAYERS, VOCAB = 4096, 8192, 32, 128256
BASE: dict[str, Any] = {
    "model": "llama3-8b",
    "system": "16xh100-sxm",
    "workload": {"seq": SEQ, "global_batch": 64},
    "plan": {"tp": 2, "pp": 2, "dp": 4, "shard": "zero1", "engine": "megatron-core"},
}
TOKENS = SEQ  # one sequence a microbatch, no context parallelism


def sections(*settings: str, base: dict[str, Any] = BASE) -> dict[str, Section]:
    return {section.name: section for section in lower(scenario(base, settings)).sections}


def block(*settings: str, base: dict[str, Any] = BASE) -> Section:
    return sections(*settings, base=base)["block 0"]


def flops(ops: Iterable[Op]) -> float:
    return float(sum(op.flops for op in ops if isinstance(op, (MatMul, Attend))))


def product(ops: Iterable[Op], label: str) -> MatMul:
    return next(op for op in ops if isinstance(op, MatMul) and op.label == label)


def payloads(ops: Iterable[Op], axis: str) -> list[tuple[str, float]]:
    return [(op.kind, float(op.payload_bytes)) for op in ops if isinstance(op, Collective) and op.axis == axis]


def priced(*settings: str, base: dict[str, Any] = BASE) -> Prediction:
    made = predict(scenario(base, settings))
    assert isinstance(made, Prediction)
    return made


def part(prediction: Prediction, name: str) -> float:
    return next((item.seconds for item in prediction.breakdown if item.name == name), 0.0)


def test_products_of_a_layer() -> None:
    made = block()
    qkv = 2 * TOKENS * HIDDEN * (4096 + 2 * 1024) / 2  # heads and keys split over tp 2
    rest = 2 * TOKENS * HIDDEN * 4096 / 2 + 3 * 2 * TOKENS * HIDDEN * 14336 / 2
    assert sum(float(op.flops) for op in made.forward if isinstance(op, MatMul)) == pytest.approx(qkv + rest)
    assert flops(op for op in made.backward_weight) == pytest.approx(qkv + rest)


def test_sequence_parallel_gathers_and_scatters_instead_of_summing() -> None:
    full = TOKENS * HIDDEN * 2
    assert payloads(block().forward, "tp") == [("all-gather", full), ("reduce-scatter", full)] * 2
    plain = block("plan.sequence_parallel=false")
    assert payloads(plain.forward, "tp") == [("all-reduce", full)] * 2
    assert payloads(plain.backward_input, "tp") == [("all-reduce", full)] * 2
    gathers = [kind for kind, _ in payloads(block().backward_input, "tp")]
    assert gathers.count("all-gather") == 4  # gradients, and tokens once more for the weight gradient, of two parts


def test_full_recompute_runs_the_forward_again_and_keeps_the_input() -> None:
    none, full = block(), block("plan.recompute=full")
    assert none.recompute == ()
    assert full.recompute == full.forward
    assert full.saved.total == TOKENS / 2 * HIDDEN * 2  # split over tp by sequence parallelism
    assert float(none.saved.total) > 10 * float(full.saved.total)


def test_selective_recompute_runs_attention_again() -> None:
    again = block("plan.recompute=selective").recompute
    assert [op.label for op in again] == ["attention"]


def test_recompute_of_some_layers_only() -> None:
    made = lower(scenario(BASE, ["plan.recompute.kind=full", "plan.recompute.layers=3"]))
    names = [section.name for section in made.sections]
    assert names == ["embedding", "head", "block 0", "block 0, rest"]
    assert made.stages == ((1, 0, 3, 13), (0, 1, 3, 13))


def test_recompute_by_stage_and_of_the_rest() -> None:
    made = lower(
        scenario(BASE, ["plan.recompute.kind=full", "plan.recompute.layers=[5, 0]", "plan.recompute.rest=selective"])
    )
    assert made.stages == ((1, 0, 5, 11), (0, 1, 0, 16))
    again, rest = made.sections[2:4]
    assert again.recompute == again.forward
    assert [op.label for op in rest.recompute] == ["attention"]


def test_context_ring_and_exchange() -> None:
    ring = payloads(block("plan.cp=2", "plan.dp=2").forward, "cp")
    assert ring == [("all-gather", SEQ * 2 * 1024 / 2 * 2)]  # keys and values of the whole sequence, split over tp
    exchange = payloads(block("plan.cp=2", "plan.dp=2", "plan.cp_kind=all-to-all").forward, "cp")
    assert exchange == [("all-to-all", SEQ / 2 * (2 * 4096 + 2 * 1024) / 2 * 2)]
    halved = flops(block("plan.cp=2", "plan.dp=2", "plan.cp_kind=all-to-all").forward)
    assert halved == pytest.approx(flops(block().forward) / 2)


def test_ring_steps_are_kernels_of_their_own() -> None:
    """cp 4, a quarter of the tokens a rank: three steps beyond the first start and end their rows of tiles once more,
    on three quarters of the queries each (all with half of the keys, or half with all); each is merged into the sum."""
    one, four = block(), block("plan.cp=4", "plan.dp=1")
    again, tokens = 3 * 0.75, SEQ / 4
    each = 2 * tokens * 32 * (128 + 128) / 2
    for plain, ring, extra, products in (
        (one.forward, four.forward, 160 - 64, 1.0),
        (one.backward_input, four.backward_input, 320 - 64, 2.5),
    ):
        whole, cut = (next(op for op in ops if isinstance(op, Attend)) for ops in (plain, ring))
        assert float(cut.flops) == pytest.approx(float(whole.flops) / 4 + products * each * again * extra)
        assert cut.kernels == 4 * whole.kernels
    merged = [op for op in (*four.forward, *four.backward_input) if op.label.startswith("merge ring steps")]
    out, keys = tokens * 4096 / 2, tokens * 2 * 1024 / 2
    sizes = [again * out * 5 * 2, again * (out + keys) * 3 * 2]  # 2 read and 8 of the 32-bit sum; three passes backward
    assert [float(op.stream_bytes) for op in merged if isinstance(op, Stream)] == pytest.approx(sizes)
    assert [op.kernels for op in merged if isinstance(op, Stream)] == [9, 9]


def test_keys_gathered_at_once_leave_one_kernel() -> None:
    """Llama 3 gathers keys and values: the work of a quarter, no merging, and nothing of the gather hides."""
    table = {**BASE, "plan": {"tp": 2, "pp": 2, "cp": 4, "dp": 1, "shard": "zero2", "engine": "meta-internal"}}
    made = block(base=table)
    assert payloads(made.forward, "cp") == [("all-gather", SEQ * 2 * 1024 / 2 * 2)]
    assert not any(op.label.startswith("merge") for op in made.forward)
    assert [op.kernels for op in made.forward if isinstance(op, Attend)] == [1]
    shown, hidden = (part(priced(f"plan.overlap.cp={flag}", base=table), "cp") for flag in ("true", "false"))
    assert shown == hidden > 0


def test_a_sliding_window_has_two_edges() -> None:
    """Of 8192 queries all but the first 1024 see 1024 keys; their window begins inside a tile as well as it ends there.

    Blocks of the sequence begin where tiles begin: half of each is visible, and one edge is masked.
    """
    each = 2 * TOKENS * 32 * (128 + 128) / 2  # flops of one visible key, half of the heads
    for chunked, visible, edges in (("false", 1024 - 64, 2 - 1 / 8), ("true", 512, 1)):
        made = block("model.attention.window=1024", f"model.attention.chunked={chunked}")
        once, back = (
            next(float(op.flops) for op in ops if isinstance(op, Attend)) for ops in (made.forward, made.backward_input)
        )
        assert once == pytest.approx(each * (visible + edges * FLASH_EXTRA[0]))
        assert back == pytest.approx(2.5 * each * (visible + edges * FLASH_EXTRA[1]))


MOE = {**BASE, "model": "mixtral-8x7b", "plan": {"tp": 1, "pp": 2, "dp": 8, "ep": 8, "engine": "megatron-core"}}


def test_experts_are_dispatched_and_split() -> None:
    made = block(base=MOE)
    assert payloads(made.forward, "ep") == [("all-to-all", TOKENS * 2 * HIDDEN * 2)] * 2  # two copies, there and back
    up = product(made.forward, "experts up")
    assert (up.groups, up.m) == (1, TOKENS * 2)  # one expert a rank gets what eight ranks send it
    alone = product(block("plan.ep=1", base=MOE).forward, "experts up")
    assert (alone.groups, alone.m) == (8, TOKENS * 2 / 8)
    assert float(made.expert_params) == float(block("plan.ep=1", base=MOE).expert_params) / 8


def test_imbalance_paces_by_the_busiest_rank() -> None:
    even, uneven = block(base=MOE), block("plan.moe_imbalance=1.5", base=MOE)
    assert product(uneven.forward, "experts up").flops == pytest.approx(1.5 * product(even.forward, "experts up").flops)
    assert payloads(uneven.forward, "ep")[0][1] == pytest.approx(1.5 * payloads(even.forward, "ep")[0][1])


def test_expert_tensor_parallel_splits_an_expert() -> None:
    split = product(block("plan.ep=4", "plan.etp=2", base=MOE).forward, "experts up")
    assert (split.groups, split.n) == (2, 2 * 14336 / 2)


def test_adapters_train_alone() -> None:
    lora = block("workload.task=lora", 'workload.lora={rank = 8, targets = ["qkv"]}')
    wide = (4096 + 2 * 1024) / 2
    assert lora.trained == 8 * (HIDDEN + wide)
    assert flops(lora.backward_weight) == pytest.approx(2 * TOKENS * 8 * (HIDDEN + wide))
    assert flops(lora.forward) - flops(block().forward) == pytest.approx(2 * TOKENS * 8 * (HIDDEN + wide))


def test_prediction_blocks_add_a_layer_and_a_loss_to_the_last_stage() -> None:
    with_mtp = lower(scenario(BASE, ["model.mtp=2"]))
    ahead = with_mtp.sections[-1]
    assert ahead.name == "prediction block"
    assert [stage[1] for stage in with_mtp.stages] == [0, 1]
    assert [stage[-1] for stage in with_mtp.stages] == [0, 2]
    entry = 2 * TOKENS * (HIDDEN / 2) * (2 * HIDDEN)  # columns are split over tp 2
    logits = 2 * TOKENS * VOCAB / 2 * HIDDEN
    assert flops(ahead.forward) == pytest.approx(flops(block().forward) + entry + logits)
    assert float(ahead.params) == float(block().params) + 2 * HIDDEN * HIDDEN / 2 + 3 * HIDDEN


def test_images_are_worked_on_by_the_first_stage() -> None:
    sees = {**BASE, "model": "llava-1.5-7b", "plan": {"pp": 2, "dp": 8, "engine": "megatron-core"}}
    assert "vision" not in sections("workload.seq=2048", base=sees)
    made = lower(scenario(sees, ["workload.images=2", "workload.seq=2048"]))
    spec = scenario(sees).model.vision
    assert spec is not None
    patches = (spec.image // spec.patch) ** 2
    ends, vision, _ = made.sections[-3:]
    qkv = product(vision.forward, "qkv")
    assert (qkv.m, qkv.k) == (2 * patches, spec.hidden)
    assert [stage[-3:] for stage in made.stages] == [(1, spec.layers, 0), (0, 0, 0)]
    embed = 2 * 2 * patches * 3 * spec.patch**2 * spec.hidden
    project = 2 * 2 * spec.tokens * spec.projector_params
    assert flops(ends.forward) == pytest.approx(embed + project)
    assert flops(ends.backward_input) == pytest.approx(project)  # pixels need no gradient
    assert flops(ends.backward_weight) == pytest.approx(embed + project)
    assert ends.params == spec.projector_params + spec.other_params


def test_windowed_layers_of_an_image_encoder_see_less() -> None:
    sees = {**BASE, "model": "llava-1.5-7b", "plan": {"dp": 16, "engine": "megatron-core"}}
    plain = scenario(sees, ["workload.images=1", "workload.seq=2048"])
    vision = plain.model.vision
    assert vision is not None
    assert isinstance(vision.block.mixer, Attention)
    narrow = replace(vision.block, mixer=replace(vision.block.mixer, window=100))
    model = replace(plain.model, vision=replace(vision, windowed=20, block=narrow))
    made = lower(replace(plain, model=model))
    whole, windowed = (next(op for op in s.forward if isinstance(op, Attend)) for s in made.sections[-2:])
    each = 2 * 576 * 16 * (64 + 64)  # flops of one visible patch: patches x heads x (key + value size)
    assert whole.flops == pytest.approx(each * (576 + FLASH_EXTRA[0] - MASKED))
    assert float(windowed.flops) < 0.6 * float(whole.flops)
    assert made.stages[0][-3:] == (1, 4, 20)


def test_narrow_formats_multiply_faster_and_cast() -> None:
    narrow = block("plan.precision=fp8")
    assert product(narrow.forward, "qkv").peak == "fp8"
    assert any(op.label.startswith("cast") for op in narrow.forward)
    assert not any(op.label.startswith("cast") for op in block().forward)
    by_row = block("plan.precision=fp8", "plan.precision.scaling=row")
    assert (product(by_row.forward, "qkv").peak, product(by_row.forward, "qkv").share) == ("fp8", 0.75)


def test_what_is_not_compiled_moves_more_bytes() -> None:
    base = {**BASE, "plan": {**BASE["plan"], "engine": "torchtitan"}}
    moved = {
        on: sum(
            float(op.stream_bytes) for op in block(f"plan.compiled={on}", base=base).forward if isinstance(op, Stream)
        )
        for on in ("true", "false")
    }
    split = TOKENS / 2 * HIDDEN * 2  # bytes of one pass over the residual stream
    rotary = TOKENS * (4096 + 1024) / 2 * 2
    activation = TOKENS * 14336 / 2 * 2
    assert moved["false"] - moved["true"] == pytest.approx(2 * 2 * split + 5 * rotary + 2 * activation)


def test_waiting_for_every_launch_adds_the_hosts_time() -> None:
    free, blocked = priced(), priced("plan.launch_blocking=true")
    assert part(blocked, "kernel") > part(free, "kernel")
    assert part(blocked, "tp") > part(free, "tp")  # nothing runs beside a kernel that is waited for
    others = ("matmul", "attention", "memory")
    assert [part(blocked, name) for name in others] == pytest.approx([part(free, name) for name in others])


def test_offloaded_states_cross_the_host_link() -> None:
    here, away = priced(), priced("plan.offload.optimizer=1.0")
    ratio = part(away, "optimizer") / part(here, "optimizer")
    memory = default_calibration().value("memory", chip("h100-sxm"), engine("megatron-core"))
    # states and master over PCIe, there and back at once; HBM also sees gradients, weights, and all of it twice
    assert ratio == pytest.approx(12 / 38 * 3.35e12 * memory / 63e9, rel=1e-6)


def test_offloaded_activations_hide_all_but_a_share() -> None:
    share = priced("plan.offload.activations=0.001")
    kept = float(block().saved.total) * 16 + float(sections()["head"].saved.inputs)  # the last stage paces
    seconds = 2 * 0.001 * kept / 63e9 * 0.05 * 16  # out and back, a twentieth exposed, 16 microbatches
    assert part(share, "host") == pytest.approx(seconds, rel=0.02)


def test_schedules_waste_what_their_bubble_says() -> None:
    bubbles = {
        name: part(priced(f"plan.schedule={name}"), "bubble") for name in ("gpipe", "1f1b", "interleaved", "zbv")
    }
    assert bubbles["gpipe"] == pytest.approx(bubbles["1f1b"])
    assert bubbles["1f1b"] / 2.2 < bubbles["interleaved"] < bubbles["1f1b"] / 1.8  # two chunks, sends apart
    assert bubbles["zbv"] < bubbles["interleaved"]
    assert part(priced("plan.schedule=zero-bubble-h1"), "bubble") < bubbles["1f1b"]


def test_sharded_weights_are_gathered_for_every_microbatch() -> None:
    flat = {**BASE, "plan": {"dp": 16, "engine": "megatron-core"}}
    assert part(priced("plan.shard=zero1", base=flat), "shard") == 0
    assert part(priced("plan.shard=zero3", base=flat), "shard") > 0


def test_cost_grows_with_blocks_not_with_layers_or_chips() -> None:
    small = lower(scenario(BASE))
    large = lower(
        scenario(BASE, ["model.layers=128", "system=100000xh100-sxm", "plan.dp=25000", "workload.global_batch=25000"])
    )
    assert len(small.sections) == len(large.sections)
    assert [len(section.forward) for section in small.sections] == [len(section.forward) for section in large.sections]


TPU = {
    "model": "llama3-8b",
    "system": "16xtpu-v6e",
    "workload": {"seq": SEQ, "global_batch": 16},
    "plan": {"dp": 16, "shard": "zero3", "engine": "maxtext"},
}


def test_splash_attention_works_in_blocks() -> None:
    """Blocks of 1024 keys forward and 2048 backward, masked or not: half of the one on the diagonal is lost. A window
    of 128 reaches into one block before: two of them. A head of 64 fills half of the systolic array."""
    for settings, keys in (
        ((), (4096 + 512, 4096 + 1024)),
        (("model.attention.window=128",), (2048, 4096)),
        (("model.attention.head_dim=64",), (2 * (4096 + 512), 2 * (4096 + 1024))),
    ):
        made = block(*settings, base=TPU)
        dim = 64 if "head_dim" in "".join(settings) else 128
        each = 2 * SEQ * 32 * 2 * dim
        found = [
            next(float(op.flops) for op in ops if isinstance(op, Attend)) for ops in (made.forward, made.backward_input)
        ]
        assert found == pytest.approx([each * keys[0], 2.5 * each * keys[1]])


def test_a_compiler_does_not_recompute_what_nobody_reads() -> None:
    """No gradient reads a layer's output: full recompute leaves out the last product, 4096 x 14336 in Llama 3."""
    made = block("plan.recompute=full", base=TPU)
    assert flops(made.forward) - flops(made.recompute) == 2 * SEQ * 4096 * 14336
    eager = block("plan.recompute=full")
    assert flops(eager.recompute) == flops(eager.forward)


def test_outputs_of_experts_are_read() -> None:
    """Gradients of routing weights are made of them, so experts run again whole."""
    made = block("plan.recompute=full", base={**TPU, "model": "mixtral-8x7b"})
    assert flops(made.recompute) == flops(made.forward)
