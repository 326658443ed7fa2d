"""Switching one feature changes the bytes a chip holds by an amount derived by hand."""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline.lowering.program import lower
from ridgeline.plan.scenario_file import scenario
from ridgeline.sim.memory.peak import StageMemory, peak_memory

TOKENS, HIDDEN, WIDE, HEADS, KV, DIM, LAYERS, VOCAB = 8192, 4096, 16384, 32, 8, 128, 8, 32768
QKV = (HEADS + 2 * KV) * DIM
MODEL: dict[str, Any] = {
    "hidden": HIDDEN,
    "layers": LAYERS,
    "vocab": VOCAB,
    "attention": {"heads": HEADS, "kv_heads": KV},
    "mlp": {"hidden": WIDE},
}
MOE = {**{key: part for key, part in MODEL.items() if key != "mlp"}, "moe": {"experts": 8, "topk": 2, "hidden": 4096}}
LAYER = HIDDEN * (QKV + HIDDEN + 3 * WIDE) + 2 * HIDDEN
TOTAL = LAYERS * LAYER + 2 * VOCAB * HIDDEN + HIDDEN
KEPT = 2 * TOKENS * (4 * HIDDEN + (2 * HEADS + 2 * KV) * DIM + 3 * WIDE)  # of a layer, as test_memory derives it


def stage(
    *settings: str, chips: int = 1, model: dict[str, Any] | None = None, rank: int = 0, **plan: Any
) -> StageMemory:
    """A pipeline rank at its peak, one sequence on every data-parallel rank."""
    table = {
        "model": model or MODEL,
        "system": f"{chips}xh100-sxm",
        "workload": {"seq": TOKENS, "global_batch": plan.pop("batch", plan.get("dp", 1))},
        "plan": {"engine": "megatron-core", **plan},
    }
    built = scenario(table, settings)
    return peak_memory(built, lower(built)).stages[rank]


def params(before: StageMemory, after: StageMemory) -> list[float]:
    """Parameters more, as weights, gradients and optimizer states show them: 2, 4 and 12 bytes each."""
    sizes = (("weights", 2), ("gradients", 4), ("optimizer", 12))
    return [(after.state[kind] - before.state[kind]) / size for kind, size in sizes]


def kept(before: StageMemory, after: StageMemory) -> float:
    return after.bytes_by_kind["activations"] - before.bytes_by_kind["activations"]


def test_key_value_heads() -> None:
    """24 heads more of keys and of values: a column of the matrix and an activation each."""
    base, full = stage(), stage("model.attention.kv_heads=32")
    more = 2 * 24 * DIM
    assert params(base, full) == [LAYERS * HIDDEN * more] * 3
    assert kept(base, full) == LAYERS * 2 * TOKENS * more


def test_latent_attention() -> None:
    """Latent of 512 + 128, queries 256 a head; kept: the latent, queries and keys of 256, values and output of 128."""
    latent = {"kind": "mla", "heads": 32, "q_rank": 0, "kv_rank": 512, "nope_dim": 128, "rope_dim": 128, "v_dim": 128}
    base, mla = stage(), stage(model={**MODEL, "attention": latent})
    matrices = HIDDEN * 640 + 32 * 256 * HIDDEN + 512 * 32 * 256 + 512  # and the norm of the latent
    assert params(base, mla) == [LAYERS * (matrices - HIDDEN * QKV)] * 3
    wide = 640 + 32 * (2 * 256 + 2 * 128) - (2 * HEADS + 2 * KV) * DIM
    assert kept(base, mla) == LAYERS * 2 * TOKENS * wide


def test_shared_expert() -> None:
    """Three matrices more a layer; gate, up and their product of every token."""
    base, shared = stage(model=MOE), stage("model.moe.shared_hidden=4096", model=MOE)
    assert params(base, shared) == [LAYERS * 3 * HIDDEN * 4096] * 3
    assert kept(base, shared) == LAYERS * 2 * TOKENS * 3 * 4096


def test_first_layers_dense() -> None:
    """Three matrices of 16384 for eight experts and a router; no copies of tokens."""
    base, mixed = stage(model=MOE), stage(model={**MOE, "mlp": {"hidden": WIDE}, "first_dense": 2})
    assert params(base, mixed) == [2 * (3 * HIDDEN * WIDE - 8 * 3 * HIDDEN * 4096 - 8 * HIDDEN)] * 3
    sparse = 2 * (HIDDEN + 3 * 4096) + 8  # two copies of a token, their insides, and the router's scores
    assert kept(base, mixed) == 2 * 2 * TOKENS * (3 * WIDE - sparse)


def test_expert_parallel() -> None:
    """Half of the experts on each of two ranks; as many tokens arrive as leave, and dispatch has buffers."""
    base, split = stage(model=MOE, chips=2, dp=2), stage(model=MOE, chips=2, dp=2, ep=2)
    assert params(base, split) == [-LAYERS * 4 * 3 * HIDDEN * 4096] * 3
    assert kept(base, split) == 0
    assert split.bytes_by_kind["buffers"] == 2 * 2 * (2 * TOKENS * HIDDEN)  # two copies, sent and received


def test_expert_tensor_parallel_holds_as_much() -> None:
    """Two experts, or halves of four."""
    whole, halves = (stage(model=MOE, chips=4, dp=4, ep=ep, etp=4 // ep) for ep in (4, 2))
    assert params(whole, halves) == [0] * 3


def test_imbalance() -> None:
    """Half as many copies again, with their insides; the router's scores stay."""
    even, uneven = (stage(model=MOE, chips=2, dp=2, ep=2, moe_imbalance=much) for much in (1.0, 1.5))
    assert kept(even, uneven) == LAYERS * 2 * TOKENS * (HIDDEN + 3 * 4096)


def test_state_space_layer() -> None:
    """Keeps 2 (inner + 2 state) + 2 inner for queries, keys, values and output."""
    mixer = {"kind": "mamba2", "heads": 64, "head_dim": 64, "state": 128}
    made = stage(model={**MODEL, "pattern": ["a*7", "s"], "block": {"a": {}, "s": {"attention": mixer}}})
    assert kept(stage(), made) == 2 * TOKENS * (4 * 4096 + 4 * 128 - (2 * HEADS + 2 * KV) * DIM)


def test_vocabulary() -> None:
    """Two matrices grow; a logit takes six bytes while Megatron's loss works on it: as stored, and in 32 bits."""
    base, large = stage(), stage(f"model.vocab={2 * VOCAB}")
    assert params(base, large) == [2 * VOCAB * HIDDEN] * 3
    assert large.bytes_by_kind["logits"] - base.bytes_by_kind["logits"] == 6 * TOKENS * VOCAB


def test_tied_output() -> None:
    assert params(stage(), stage("model.tied=true")) == [-VOCAB * HIDDEN] * 3


def test_adapters() -> None:
    """Weights stay; gradients and states of rank 128 (in + out) a layer remain of all others."""
    full, lora = stage(), stage("workload.task=lora", 'workload.lora={rank = 128, targets = ["qkv"]}')
    adapters = LAYERS * 128 * (HIDDEN + QKV)
    assert params(full, lora) == [0, adapters - TOTAL, adapters - TOTAL]


@pytest.mark.parametrize(
    ("settings", "each"),
    [("{name = 'lion'}", 8), ("{name = 'sgd'}", 4), ("{states = 'bf16'}", 8), ("{master = 'none'}", 8)],
)
def test_optimizer_states(settings: str, each: int) -> None:
    """Two moments and a master copy take 12 bytes; one moment, none, narrow ones, or no master copy take less."""
    assert stage().state["optimizer"] == 12 * TOTAL
    assert stage(f"workload.optimizer={settings}").state["optimizer"] == each * TOTAL


def test_gradient_format() -> None:
    assert stage(precision={"gradients": "bf16"}).state["gradients"] == 2 * TOTAL


@pytest.mark.parametrize(
    ("shard", "parts"), [("none", (1, 1, 1)), ("zero1", (1, 1, 2)), ("zero2", (1, 2, 2)), ("zero3", (2, 2, 2))]
)
def test_hybrid_shards(shard: str, parts: tuple[int, int, int]) -> None:
    """Shards of two among four ranks: halves of what is sharded, not quarters."""
    degree: dict[str, Any] = {} if shard == "none" else {"shard_degree": 2}
    made = stage(chips=4, dp=4, shard=shard, **degree)
    sizes = (size * TOTAL / part for size, part in zip((2, 4, 12), parts, strict=True))
    assert list(made.state.values()) == pytest.approx(list(sizes))


def test_sequence_parallel() -> None:
    """Inputs and norms of half the tokens: 4 hidden a layer, the head's input, token numbers; one gathered copy."""
    split, plain = (stage(chips=2, tp=2, sequence_parallel=flag) for flag in (True, False))
    assert kept(split, plain) == TOKENS / 2 * (LAYERS * 2 * 4 * HIDDEN + 2 * HIDDEN + 8)
    assert split.bytes_by_kind["buffers"] - plain.bytes_by_kind["buffers"] == 2 * TOKENS * HIDDEN


@pytest.mark.parametrize("kind", ["ring", "all-to-all"])
def test_context_parallel(kind: str) -> None:
    """Half of the tokens on each rank, whatever travels between them; weights stay whole."""
    base, half = stage(), stage(chips=2, cp=2, cp_kind=kind)
    assert half.bytes_by_kind["activations"] == base.bytes_by_kind["activations"] / 2
    assert params(base, half) == [0] * 3


@pytest.mark.parametrize(("schedule", "held"), [("gpipe", 8), ("1f1b", 2), ("interleaved", 2.5), ("zero-bubble-h1", 2)])
def test_schedules(schedule: str, held: float) -> None:
    """Microbatches the first of two ranks holds: all eight, two, five halves with two chunks, two."""
    made = stage(chips=2, pp=2, batch=8, schedule=schedule)
    assert made.bytes_by_kind["activations"] == held * (LAYERS / 2 * KEPT + 8 * TOKENS)


@pytest.mark.parametrize(
    ("schedule", "batch", "held"),
    [
        ("zbv", 8, (4, 4)),
        ("zbv", 2, (3, 4)),  # four forwards on each rank, but rank 0 has finished one weight gradient before its last
        ("zbv", 1, (2, 2)),
        ("dualpipe-v", 8, (5, 5)),
    ],
)
def test_schedules_in_a_v(schedule: str, batch: int, held: tuple[int, int]) -> None:
    """Chunks of two layers that a rank holds; the first rank has both ends: token numbers, and the head's input."""
    ends = (8 * TOKENS + 2 * TOKENS * HIDDEN, 0)
    for rank in (0, 1):
        made = stage(chips=2, pp=2, batch=batch, schedule=schedule, rank=rank)
        assert made.in_flight == held[rank]
        assert made.bytes_by_kind["activations"] == held[rank] / 2 * (LAYERS / 2 * KEPT + ends[rank])


@pytest.mark.parametrize(("shard", "each"), [("zero1", 0), ("zero2", 4), ("zero3", 8)])
def test_gathered_weights(shard: str, each: int) -> None:
    """Two layers' weights of two bytes where weights are sharded, and a gradient of four where gradients are.

    A small vocabulary makes a layer's backward the worst moment, a large one the loss, where it is the output matrix.
    """
    small, large = (stage(f"model.vocab={size}", chips=2, dp=2, shard=shard) for size in (128, 2 * VOCAB))
    assert (small.moment, large.moment) == ("backward", "loss")
    assert small.bytes_by_kind["buffers"] == each * LAYER
    assert large.bytes_by_kind["buffers"] == each * 2 * VOCAB * HIDDEN
    tied = stage("model.tied=true", f"model.vocab={2 * VOCAB}", chips=2, dp=2, shard=shard)
    assert tied.bytes_by_kind["buffers"] == each * 2 * VOCAB * HIDDEN


def test_matrices_gathered_one_by_one() -> None:
    """A compiler gathers matrix by matrix: the two largest of a layer (gate with up, and down) at two bytes, and their
    gradients at two. The master copy is the weights: 4 + 8 bytes a parameter, cut in two."""
    made = stage("model.vocab=128", chips=2, dp=2, shard="zero3", engine="maxtext")
    assert made.bytes_by_kind["buffers"] == (2 + 2) * 3 * WIDE * HIDDEN
    total = LAYERS * LAYER + 2 * 128 * HIDDEN + HIDDEN
    assert (made.state["weights"], made.state["optimizer"]) == pytest.approx((4 * total / 2, 8 * total / 2))


def test_activations_sharded_by_width() -> None:
    """tp 4 without sequence parallelism: GSPMD leaves each rank a quarter of a layer's input, its normed inputs and the
    residual between; Megatron's ranks hold each of them whole."""
    plan: dict[str, Any] = {"chips": 4, "tp": 4, "sequence_parallel": False}
    sharded, whole = (stage("model.vocab=128", engine=name, **plan) for name in ("maxtext", "megatron-core"))
    saved = 2 * TOKENS * 4 * HIDDEN
    more = whole.bytes_by_kind["activations"] - sharded.bytes_by_kind["activations"]
    ends = 2 * TOKENS * HIDDEN + 8 * TOKENS  # the head's input, and token numbers
    assert more == pytest.approx(0.75 * (LAYERS * saved + ends))


def test_freed_stage_inputs() -> None:
    """Stages whose input is deallocated hold one tensor less of every microbatch in flight (Llama 3)."""
    shape: dict[str, Any] = {"chips": 4, "pp": 4, "batch": 8}
    held, freed = (stage(f"engine.saves.stage_inputs_freed={flag}", **shape) for flag in ("false", "true"))
    assert held.in_flight == 4
    assert kept(held, freed) == -4 * 2 * TOKENS * HIDDEN


def test_recomputed_projections_out_of_a_latent() -> None:
    """latent-up frees queries, keys and values: (2 qk + v) of every head. DeepSeek-V3's published plan fits so."""
    latent = {"kind": "mla", "heads": 16, "q_rank": 512, "kv_rank": 256, "nope_dim": 128, "rope_dim": 64, "v_dim": 128}
    model = {**MODEL, "attention": latent}
    base = stage(model=model, engine="hai-llm")
    made = stage(model=model, engine="hai-llm", recompute={"kind": "selective", "parts": ["latent-up"]})
    assert kept(base, made) == -LAYERS * 2 * TOKENS * 16 * (2 * 192 + 128)


def test_only_the_last_rank_gathers_the_output_matrix() -> None:
    """A vocabulary 8 times as large: the first rank still gathers a layer, and sends and receives two ways."""
    first, last = (
        stage(f"model.vocab={8 * VOCAB}", chips=4, pp=2, dp=2, batch=16, shard="zero3", rank=rank) for rank in (0, 1)
    )
    crossing = 4 * 2 * TOKENS * HIDDEN
    assert first.bytes_by_kind["buffers"] == crossing + 8 * LAYER
    assert last.bytes_by_kind["buffers"] == crossing + 8 * 8 * VOCAB * HIDDEN


def test_uneven_stages() -> None:
    """One layer more on the first of two ranks, which holds two microbatches."""
    even, uneven = (stage(chips=2, pp=2, batch=8, placement=at) for at in ([4, 4], [5, 3]))
    assert params(even, uneven) == [LAYER] * 3
    assert kept(even, uneven) == 2 * KEPT


@pytest.mark.parametrize(
    ("recompute", "layers"), [("full", LAYERS), ({"kind": "full", "layers": 3}, 3), ({"blocks": {"0": "full"}}, LAYERS)]
)
def test_full_recompute(recompute: Any, layers: int) -> None:
    """So many layers keep their input alone."""
    assert kept(stage(), stage(recompute=recompute)) == -layers * (KEPT - 2 * TOKENS * HIDDEN)


def test_selective_recompute_of_unfused_attention() -> None:
    """Unfused attention keeps five bytes a score; computed again, none of them."""
    flash, loose = stage(), stage(attention="unfused")
    assert kept(flash, loose) == LAYERS * 5 * TOKENS * TOKENS * HEADS
    assert kept(flash, stage(attention="unfused", recompute="selective")) == 0
    assert kept(flash, stage(recompute="selective")) == 0  # flash keeps no scores anyway


def test_recompute_of_the_rest() -> None:
    """Three layers keep their input alone, five drop the five bytes a score that unfused attention keeps."""
    loose = stage(attention="unfused")
    made = stage(attention="unfused", recompute={"kind": "full", "layers": 3, "rest": "selective"})
    scores = 5 * TOKENS * TOKENS * HEADS
    assert kept(loose, made) == -LAYERS * scores - 3 * (KEPT - 2 * TOKENS * HIDDEN)


def test_offload() -> None:
    """A half of the states and a quarter of the activations live on the host."""
    base, away = stage(), stage(offload={"optimizer": 0.5, "activations": 0.25})
    assert params(base, away) == [0, 0, -TOTAL / 2]
    assert kept(base, away) == -base.bytes_by_kind["activations"] / 4


def test_eight_bits() -> None:
    """Kept inputs of products are narrow: norms of both parts, attention's output, the activation's product.

    Weights are held narrow twice, as they are and transposed: as much as wide ones.
    """
    base, narrow = stage(), stage(precision="fp8")
    assert params(base, narrow) == [0] * 3
    assert kept(base, narrow) == -LAYERS * TOKENS * (2 * HIDDEN + HEADS * DIM + WIDE)
    assert kept(narrow, stage(precision={"name": "fp8", "scaling": "row"})) == 0


def test_loss_that_is_not_compiled() -> None:
    """The loss is not fused: ten bytes a logit and not six."""
    fused, loose = (stage(engine="torchtitan", compiled=flag) for flag in (True, False))
    assert loose.bytes_by_kind["logits"] - fused.bytes_by_kind["logits"] == 4 * TOKENS * VOCAB


@pytest.mark.parametrize(
    "switch",
    [{"graph": "full"}, {"launch_blocking": True}, {"overlap": {"grad-reduce": False}}, {"overlap": {"tp": True}}],
)
def test_switches_of_time_hold_nothing(switch: dict[str, Any]) -> None:
    """Launching, replaying and overlapping change when, not what: no byte more or less."""
    assert stage(chips=2, tp=2, **switch).bytes_by_kind == stage(chips=2, tp=2).bytes_by_kind


def test_images() -> None:
    """One image more: 576 patches in 24 layers, each 4 x 1024 of input and norms, 4 x 1024 of attention, 2 x 4096.

    And at the ends the pixels of the patches, 3 x 14 x 14 each, and the projector's input.
    """
    table = {"model": "llava-1.5-7b", "system": "1xh100-sxm", "plan": {"engine": "megatron-core"}}
    one, two = (
        peak_memory(built, lower(built)).stages[0]
        for images in (1, 2)
        for built in [scenario({**table, "workload": {"seq": 4096, "global_batch": 1, "images": images}})]
    )
    layer = 2 * 576 * (4 * 1024 + 4 * 1024 + 2 * 4096)
    assert kept(one, two) == pytest.approx(24 * layer + 2 * 576 * (3 * 14**2 + 1024))
    assert params(one, two) == [0] * 3
