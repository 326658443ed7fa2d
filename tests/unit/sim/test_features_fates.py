"""What parallel blocks, sparse attention, documents, overlap switches and adapters change, derived by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from ridgeline import predict, scenario
from ridgeline.ir.ops import FLASH_EXTRA, Attend, Collective, MatMul, Op, Stream
from ridgeline.ir.program import Section
from ridgeline.lowering.program import lower
from ridgeline.models.facts import training_flops_per_token
from ridgeline.models.load import model
from ridgeline.models.spec import Attention, LatentAttention, Moe, Norm
from ridgeline.plan.scenario import Scenario
from ridgeline.sim.closed_form.stage_times import HIDDEN_COPY
from ridgeline.sim.events.simulate import Simulated, simulate
from ridgeline.sim.prediction import Prediction

DENSE: dict[str, Any] = {
    "model": "llama3-8b", "system": "16xh100-sxm", "workload": {"seq": 8192, "global_batch": 64},
    "plan": {"tp": 2, "pp": 2, "dp": 4, "shard": "zero1"},
}  # fmt: skip
RING: dict[str, Any] = {
    "model": "llama3-8b", "system": "16xh100-sxm", "workload": {"seq": 32768, "global_batch": 16},
    "plan": {"cp": 8, "dp": 2, "shard": "zero1", "recompute": "full"},
}  # fmt: skip
TOGETHER: dict[str, Any] = {
    "model": "gptj-6b", "system": "8xh100-sxm", "workload": {"seq": 2048, "global_batch": 64}, "plan": {"tp": 8},
}  # fmt: skip
SPARSE: dict[str, Any] = {
    "model": "deepseek-v3.2", "system": "256xh100-sxm", "workload": {"seq": 32768, "global_batch": 256},
    "plan": {"pp": 8, "ep": 32, "dp": 32, "shard": "zero1"},
}  # fmt: skip


def block(made: Scenario, index: int = 0) -> Section:
    return next(section for section in lower(made).sections if section.name == f"block {index}")


def labelled(ops: Iterable[Op], label: str) -> Any:
    return next(op for op in ops if op.label == label)


def kinds(ops: Iterable[Op], axis: str = "tp") -> list[tuple[str, float]]:
    return [(op.kind, float(op.payload_bytes)) for op in ops if isinstance(op, Collective) and op.axis == axis]


def priced(base: dict[str, Any], *settings: str) -> Prediction:
    made = predict(scenario(base, settings))
    assert isinstance(made, Prediction)
    return made


def part(found: Prediction, name: str) -> float:
    return next((item.seconds for item in found.breakdown if item.name == name), 0.0)


def with_block(base: dict[str, Any], **changes: Any) -> Scenario:
    made = scenario(base)
    return replace(made, model=replace(made.model, blocks=(replace(made.model.blocks[0], **changes),)))


# -- parallel blocks ---------------------------------------------------------------------------------------------------


def test_a_parallel_block_reduces_once_over_tensor_ranks() -> None:
    full = 2048 * 4096 * 2  # tokens of the microbatch, hidden, bytes
    plain = scenario(TOGETHER, ["plan.sequence_parallel=false"])
    assert kinds(block(plain).forward) == [("all-reduce", full)]
    assert kinds(block(plain).backward_input) == [("all-reduce", full)]
    split = block(scenario(TOGETHER))
    assert kinds(split.forward) == [("all-gather", full), ("reduce-scatter", full)]
    # gradients of the output; then tokens once more for the weight gradient, and their gradients
    assert kinds(split.backward_input) == [("all-gather", full), ("all-gather", full), ("reduce-scatter", full)]
    apart = block(with_block(TOGETHER, parallel=False, norms=2))
    assert kinds(apart.forward) == kinds(split.forward) * 2


def test_parts_with_a_norm_each_read_two_inputs_and_sum_one_output() -> None:
    full = 2048 * 4096 * 2
    two = block(with_block(TOGETHER, norms=2))
    assert sorted(kinds(two.forward)) == [("all-gather", full), ("all-gather", full), ("reduce-scatter", full)]


def test_a_parallel_block_saves_its_input_and_one_normed_one() -> None:
    stream = 2048 / 8 * 4096 * 2  # split over tensor ranks by sequence parallelism
    saved = [block(with_block(TOGETHER, **changes)).saved.norms / stream for changes in (
        {}, {"norms": 2}, {"norms": 2, "parallel": False},
    )]  # fmt: skip
    assert saved == [1, 2, 3]  # one normed input; two; and the residual between two parts


def test_a_parallel_block_is_faster_the_more_its_exchange_costs() -> None:
    def gain(tp: int) -> float:
        base = {**TOGETHER, "plan": {"tp": tp, "dp": 8 // tp}}
        one, two = predict(scenario(base)), predict(with_block(base, parallel=False, norms=2))
        assert isinstance(one, Prediction)
        assert isinstance(two, Prediction)
        return two.step_time_s / one.step_time_s

    assert 1 < gain(1) < gain(2) < gain(8)


# -- latent attention --------------------------------------------------------------------------------------------------


def test_recompute_of_latent_projections_frees_queries_keys_and_values() -> None:
    base = {
        **SPARSE, "model": "deepseek-v3", "workload": {"seq": 4096, "global_batch": 256},
    }  # fmt: skip
    again = "plan.recompute={kind='selective', parts=['latent-up']}"
    none, some = block(scenario(base)), block(scenario(base, [again]))
    freed = 4096 * 128 * (192 + 192 + 128) * 2  # tokens, heads, a query, a key, a value
    assert none.saved.attention - some.saved.attention == freed
    up = 2 * 4096 * 128 * (1536 * 192 + 512 * (128 + 128))
    assert sum(float(op.flops) for op in some.recompute if isinstance(op, MatMul)) == up
    kept = priced(base).memory.peak_bytes - priced(base, again).memory.peak_bytes
    assert kept > 7 * freed  # of the layers in flight on the first stage


def test_an_indexer_scores_what_is_visible_and_attention_sees_what_it_picks() -> None:
    made = block(scenario(SPARSE))
    seen, chosen = 32768 / 2, 2048 - 2048**2 / (2 * 32768)
    scores = labelled(made.forward, "index scores")
    assert scores.flops == 2 * 32768 * seen * 64 * 128
    assert scores.stream_bytes == 32768 * (65 * 128 * 2 + seen * 4)  # queries and one key; a 32-bit score each
    assert labelled(made.forward, "index top-k").stream_bytes == 32768 * (2 * seen + chosen) * 4
    attention, back = labelled(made.forward, "attention"), labelled(made.backward_input, "attention dX")
    assert attention.flops == 2 * 32768 * chosen * 128 * (576 + 512)
    assert attention.stream_bytes == 32768 * 2 * (128 * (576 + 512) + chosen * 576)
    assert back.flops == 2.5 * attention.flops
    assert back.stream_bytes == 32768 * 2 * (3 * 128 * (576 + 512) + 2 * chosen * 576)
    assert labelled(made.backward_input, "index scores dX").flops == 6 * 32768 * chosen * 64 * 128


def test_forward_products_are_those_of_the_model() -> None:
    """Every projection of `models.facts`, and an indexer's scores; attention itself runs in another form."""
    made, spec = scenario(SPARSE), model("deepseek-v3.2")
    facts = training_flops_per_token(spec, 32768)
    program = lower(made)
    often = [sum(stage[place] for stage in program.stages) for place in range(len(program.sections))]
    forward = sum(
        times * float(op.flops)
        for section, times in zip(program.sections, often, strict=True)
        for op in section.forward
        if isinstance(op, MatMul) or op.label == "index scores"
    )
    mixer = spec.blocks[0].mixer
    assert isinstance(mixer, LatentAttention)
    picked = 61 * 2 * (2048 - 2048**2 / 65536) * 128 * (192 + 128)  # scores in the model's own count
    mtp = facts.mtp / 3 / (spec.mtp.depth if spec.mtp else 1)
    own = (facts.total - facts.mtp) / 3 - picked + (mtp - picked / 61 if facts.mtp else 0)
    assert forward / 32768 == pytest.approx(own, rel=0.01)


def test_sparse_attention_is_faster_on_long_sequences_and_masked_on_short_ones() -> None:
    long = {**SPARSE, "workload": {"seq": 32768, "global_batch": 256}}
    dense, sparse = priced({**long, "model": "deepseek-v3.1"}), priced(long)
    assert part(sparse, "attention") < 0.75 * part(dense, "attention")
    longer = "workload.seq=131072"
    assert part(priced(long, longer), "attention") < 0.4 * part(
        priced({**long, "model": "deepseek-v3.1"}, longer), "attention"
    )
    short = [f"workload.seq={4096}"]
    masked, whole = (block(scenario({**long, "model": name}, short)) for name in ("deepseek-v3.2", "deepseek-v3.1"))
    assert labelled(masked.forward, "attention") == labelled(whole.forward, "attention")
    assert any(op.label == "index scores" for op in masked.forward)


def test_a_shared_choice_is_not_made_again() -> None:
    made = scenario(SPARSE)
    mixer = made.model.blocks[0].mixer
    assert isinstance(mixer, LatentAttention)
    assert mixer.indexer is not None
    taken = replace(made.model.blocks[0], mixer=replace(mixer, indexer=replace(mixer.indexer, shared=True)))
    shared = block(replace(made, model=replace(made.model, blocks=(taken, *made.model.blocks[1:]))))
    own = block(made)
    assert not any("index" in op.label for op in (*shared.forward, *shared.backward_input, *shared.backward_weight))
    assert labelled(shared.forward, "attention") == labelled(own.forward, "attention")
    weights = 1536 * 64 * 128 + 7168 * 128 + 2 * 128 + 7168 * 64
    assert own.params - shared.params == weights


def test_tensor_ranks_score_alike_and_sum_up_what_their_heads_weighed() -> None:
    made = block(scenario(SPARSE, ["plan.tp=2", "plan.dp=16"]))
    alone = block(scenario(SPARSE))
    assert labelled(made.forward, "index scores") == labelled(alone.forward, "index scores")
    assert labelled(made.forward, "attention").flops == labelled(alone.forward, "attention").flops / 2
    target = labelled(made.backward_input, "index target")
    assert (target.kind, target.payload_bytes) == ("all-reduce", 32768 * (2048 - 2048**2 / 65536) * 4)


# -- what hides --------------------------------------------------------------------------------------------------------


def test_a_ring_that_does_not_overlap_is_waited_for() -> None:
    on, off = priced(RING), priced(RING, "plan.overlap.cp=false")
    others = [item.name for item in off.breakdown if item.name not in ("cp", "bubble", "waiting")]
    same = pytest.approx([part(off, name) for name in others], rel=5e-4)  # links taken from products by less
    assert [part(on, name) for name in others] == same
    assert part(off, "cp") > part(on, "cp") > 0.15 * part(off, "cp")  # a ring hides at most 0.85 of itself


@pytest.mark.parametrize(
    "settings",
    [["plan.overlap.cp=true"], ["plan.overlap.cp=false"], ["plan.cp_kind=all-to-all"]]
    + [
        ["plan.offload={activations=0.05, optimizer=0.5}", f"plan.overlap.offload={word}"] for word in ("true", "false")
    ],
)
def test_event_by_event_as_much_is_exposed(settings: list[str]) -> None:
    built = scenario(RING, settings)
    run, found = simulate(built), predict(built)
    assert isinstance(run, Simulated)
    assert isinstance(found, Prediction)
    assert run.step_s == pytest.approx(found.step_time_s, rel=0.02)


def test_heads_exchanged_for_sequence_are_waited_for_whatever_the_plan_says() -> None:
    swap = ("plan.cp_kind=all-to-all",)
    on, off = priced(RING, *swap, "plan.overlap.cp=true"), priced(RING, *swap, "plan.overlap.cp=false")
    assert on.step_time_s == off.step_time_s
    assert any(line.startswith("overlap.cp has no effect") for line in on.assumptions)
    assert not any("overlap.cp" in line for line in off.assumptions)


def test_copies_hide_only_where_the_plan_overlaps_them() -> None:
    share = "plan.offload.activations=0.001"
    on, off = priced(DENSE, share), priced(DENSE, share, "plan.overlap.offload=false")
    assert part(off, "host") == pytest.approx(part(on, "host") / (1 - HIDDEN_COPY), rel=1e-6)


def test_overlapped_states_cross_the_host_link_both_ways_at_once() -> None:
    share = "plan.offload.optimizer=1.0"
    on, off = priced(DENSE, share), priced(DENSE, share, "plan.overlap.offload=false")
    updated = part(priced(DENSE), "optimizer")  # on the chip, whoever holds the states
    assert part(off, "optimizer") == pytest.approx(updated + 2 * part(on, "optimizer"), rel=1e-6)


# -- documents ---------------------------------------------------------------------------------------------------------


def test_packed_documents_see_only_themselves() -> None:
    whole, short = (block(scenario(DENSE, settings)) for settings in ([], ["workload.document=2048"]))
    each = 2 * 8192 * 16 * (128 + 128)  # tokens, heads of a rank, a key and a value
    assert labelled(whole.forward, "attention").flops == each * (4096 + FLASH_EXTRA[0])
    assert labelled(short.forward, "attention").flops == each * (1024 + FLASH_EXTRA[0])
    assert labelled(short.backward_input, "attention dX").flops == 2.5 * each * (1024 + FLASH_EXTRA[1])
    assert [op for op in short.forward if not isinstance(op, Attend)] == [
        op for op in whole.forward if not isinstance(op, Attend)
    ]


def test_shorter_documents_are_never_slower_and_longer_ones_change_nothing() -> None:
    steps = [priced(RING, f"workload.document={size}").step_time_s for size in (1024, 4096, 16384, 32768, 10**6)]
    assert steps == sorted(steps)
    assert steps[-1] == steps[-2] == priced(RING).step_time_s


def test_padding_takes_its_time_and_is_no_useful_token() -> None:
    whole = priced(DENSE)
    padded = priced(DENSE, "workload.document=2048", "workload.packed=false")
    assert padded.step_time_s == whole.step_time_s
    assert padded.tokens_per_s_per_chip == pytest.approx(whole.tokens_per_s_per_chip / 4)
    spec = model("llama3-8b")
    flops = training_flops_per_token(spec, 2048).total / training_flops_per_token(spec, 8192).total / 4
    assert padded.utilization.mfu == pytest.approx(whole.utilization.mfu * flops)
    assert any("padding" in line for line in padded.utilization.conventions)


def test_packed_without_the_length_of_documents_is_said_to_have_no_effect() -> None:
    found = priced(DENSE, "workload.packed=false")
    assert found.step_time_s == priced(DENSE).step_time_s
    assert any("packed = false has no effect" in line for line in found.assumptions)
    assert not any("packed" in line for line in priced(DENSE).assumptions)


# -- small things ------------------------------------------------------------------------------------------------------


def test_biases_of_norms_and_loose_vectors_are_parameters() -> None:
    plain = block(scenario(DENSE))
    assert block(with_block(DENSE, norm=Norm(bias=True))).params - plain.params == 2 * 4096
    assert block(with_block(DENSE, norm=Norm(weight=False))).params - plain.params == -2 * 4096
    assert block(with_block(DENSE, extra=777)).params - plain.params == 777


def test_a_gate_reads_and_writes_what_attention_made() -> None:
    mixer = scenario(DENSE).model.blocks[0].mixer
    assert isinstance(mixer, Attention)
    gated, plain = block(with_block(DENSE, mixer=replace(mixer, gate=True))), block(scenario(DENSE))
    one = 8192 * 4096 / 2 * 2  # tokens, heads of a rank, bytes
    assert labelled(gated.forward, "output gate").stream_bytes == 5 * one  # nothing fuses it
    assert labelled(gated.backward_input, "output gate dX").stream_bytes == 8 * one
    assert gated.saved.attention - plain.saved.attention == 2 * one  # the gate, and what it leaves


def test_a_gate_of_the_shared_expert_reads_its_input_and_weighs_its_output() -> None:
    base = {
        "model": "qwen3-next-80b-a3b", "system": "64xh100-sxm", "workload": {"seq": 4096, "global_batch": 256},
        "plan": {"ep": 16, "shard": "zero1"},
    }  # fmt: skip
    ffn = scenario(base).model.blocks[0].ffn
    assert isinstance(ffn, Moe)
    assert ffn.shared_gate
    assert labelled(block(scenario(base)).forward, "shared gate").stream_bytes == 3 * 4096 * 2048 * 2


def test_narrow_rows_are_widened_and_results_narrowed() -> None:
    made = scenario(DENSE)
    narrow = replace(made, model=replace(made.model, embedding=replace(made.model.embedding, width=1024)))
    sections = {section.name: section for section in lower(narrow).sections}
    widen, slim = (
        labelled(sections["embedding"].forward, "embedding projection"),
        labelled(sections["head"].forward, "head projection"),
    )
    assert (widen.m, widen.n, widen.k) == (4096, 4096, 1024)  # tokens of a tensor rank
    assert (slim.m, slim.n, slim.k) == (4096, 1024, 4096)
    assert labelled(sections["head"].forward, "logits").k == 1024
    assert sections["embedding"].params == 128256 * 1024 / 2 + 1024 * 4096


@pytest.mark.parametrize(
    ("target", "section", "params"),
    [("head", "head", 16 * (4096 + 128256 / 2)), ("embedding", "embedding", 16 * (128256 / 2 + 4096))],
)
def test_adapters_of_the_two_ends(target: str, section: str, params: float) -> None:
    base = {**DENSE, "workload": {**DENSE["workload"], "task": "lora", "lora": {"rank": 16, "targets": [target]}}}
    made = {item.name: item for item in lower(scenario(base)).sections}
    assert made[section].trained == params
    assert made["block 0"].trained == 0


def test_adapters_of_latent_attention_and_of_a_router() -> None:
    base = {
        "model": "deepseek-v3", "system": "256xh100-sxm",
        "workload": {
            "seq": 4096, "global_batch": 256, "task": "lora", "lora": {"rank": 16, "targets": ["qkv", "router", "up"]},
        },
        "plan": {"pp": 8, "ep": 32, "dp": 32, "shard": "zero1"},
    }  # fmt: skip
    latent = 16 * ((7168 + 1536 + 576) + (1536 + 128 * 192) + (512 + 128 * 256))
    up = 16 * (7168 + 2 * 2048)  # of the shared expert
    assert block(scenario(base), 1).trained == latent + 16 * (7168 + 256) + up
    assert any("routed experts have no adapters" in line for line in priced(base).assumptions)


def test_streams_of_a_frozen_head_are_not_weight_gradients() -> None:
    base = {**DENSE, "workload": {**DENSE["workload"], "task": "lora"}}
    head = {item.name: item for item in lower(scenario(base)).sections}["head"]
    assert head.backward_weight == ()
    assert any(isinstance(op, Stream) for op in head.forward)
