"""Recurrent, compressed and shared parts of readers: flops, caches and tensor ranks by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ridgeline import scenario
from ridgeline.core.dtype import dtype
from ridgeline.ir.ops import Attend, Collective
from ridgeline.lowering.program import lower
from ridgeline.models.facts import forward_flops_per_token, kv_cache_bytes, kv_cache_bytes_per_token, state_bytes
from ridgeline.models.hf import from_config
from ridgeline.models.load import model
from ridgeline.models.params import count
from ridgeline.models.spec import Attention, CompressedAttention, Mamba2, Recurrence
from ridgeline.sim.unpriced_fields import unpriced_fields

BF16 = dtype("bf16")
MINIMAX = {
    "model_type": "minimax_text_01", "hidden_size": 6144, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 9216, "num_local_experts": 32,
    "num_experts_per_tok": 2, "vocab_size": 200064, "hidden_act": "silu", "attn_type_list": ([0] * 7 + [1]) * 10,
    "max_position_embeddings": 10240000,
}  # fmt: skip
LLADA = {
    "model_type": "llada", "d_model": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 32, "mlp_hidden_size": 12288,
    "vocab_size": 126464, "max_sequence_length": 4096,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "deepseek-v4-flash": {"model_type": "deepseek_v4", "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0]},
    "jamba-v0.1": {"model_type": "jamba"},
    "kimi-linear-48b-a3b": {
        "model_type": "kimi_linear",
        "linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27]},
    },
    "llada-8b": LLADA,
    "longcat-flash": {"model_type": "longcat_flash"},
    "minimax-text-01": MINIMAX,
    "mistral-small-4-119b": {"model_type": "mistral4"},
    "xlstm-7b": {"model_type": "xlstm"},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_catalog_says_what_the_published_config_says(name: str) -> None:
    ours, read = model(name), from_config(CONFIGS[name], id=name)
    assert replace(ours, name="", source="") == replace(read, name="", source="")


def test_published_sizes_in_billions() -> None:
    sizes = {"deepseek-v4-flash": 284, "jamba-v0.1": 52, "kimi-linear-48b-a3b": 49, "llada-8b": 8}
    sizes |= {"longcat-flash": 561, "minimax-text-01": 456, "mistral-small-4-119b": 119, "xlstm-7b": 7}
    assert {name: round(count(model(name)).total / 1e9) for name in sizes} == sizes


def _ops(config: dict[str, Any] | str, **plan: Any) -> list[Any]:
    """Ops of the first block's forward."""
    made = scenario(
        {"model": config, "system": "8xh100-sxm", "workload": {"seq": 4096, "global_batch": 8}, "plan": plan}
    )
    return list(lower(made, tensors=False).sections[2].forward)


@pytest.mark.parametrize(("kind", "more"), [("mamba2", {}), ("bamba", {"attn_layer_indices": [9]})])
def test_a_chunked_scan_runs_the_flops_of_its_products(kind: str, more: dict[str, Any]) -> None:
    spec = from_config({"model_type": kind, **more})
    mixer = spec.blocks[0].mixer
    assert isinstance(mixer, Mamba2)
    assert mixer.chunk == 256
    chunk, inner, state = mixer.chunk, mixer.inner, mixer.state
    # states in and out, scores of a group, and the masked half of a chunk in tiles of 64
    by_hand = 4 * inner * state + 2 * mixer.groups * state * chunk + inner * (chunk + 64)
    ran = sum(op.flops for op in _ops({"model_type": kind, **more}, dp=8) if isinstance(op, Attend)) / 4096
    assert ran == pytest.approx(by_hand, rel=1e-9)
    # what counts as the model's flops is the recurrence token by token, whatever the chunk
    other = replace(spec, blocks=(replace(spec.blocks[0], mixer=replace(mixer, chunk=64)), *spec.blocks[1:]))
    assert forward_flops_per_token(other, 4096) == forward_flops_per_token(spec, 4096)


def test_recurrent_readers_split_over_tensor_ranks() -> None:
    whole, half = (_ops("jamba-v0.1", tp=tp, dp=8 // tp, shard="zero3") for tp in (1, 2))
    products = {op.label: op for op in half if op.label.startswith("state")}
    before = {op.label: op for op in whole if op.label.startswith("state")}
    assert products["state in"].n == before["state in"].n / 2 == 8192
    assert products["state steps"].k == before["state steps"].k / 2 == 4096
    sums = [op for op in half if isinstance(op, Collective) and op.label == "sum of state steps"]
    assert [op.payload_bytes for op in sums] == [4096 * (256 + 32) * 2]
    assert not [op for op in whole if isinstance(op, Collective)]


@pytest.mark.parametrize(
    ("config", "plan", "words"),
    [
        ({"model_type": "xlstm"}, {"tp": 2, "dp": 4}, "no framework splits a mlstm recurrence"),
        ({"model_type": "rwkv"}, {"tp": 2, "dp": 4}, "no framework splits a wkv recurrence"),
        ({"model_type": "mamba"}, {"cp": 2, "dp": 4}, "no framework splits a selective recurrence"),
        ({"model_type": "kimi_linear"}, {"tp": 64}, "kda heads"),
        ("mamba2-2.7b", {"cp": 32, "dp": 2}, "heads of recurrent layers"),
        ({"model_type": "falcon_h1", "mamba_n_groups": 3}, {"tp": 2, "dp": 4}, "state-space groups"),
    ],
)
def test_what_no_framework_splits_is_refused_by_name(config: Any, plan: dict[str, Any], words: str) -> None:
    from ridgeline.core.errors import InputError

    with pytest.raises(InputError, match=words):
        scenario(
            {"model": config, "system": "64xh100-sxm", "workload": {"seq": 4096, "global_batch": 64}, "plan": plan}
        )


def test_context_ranks_of_a_state_space_layer_trade_heads_for_sequence() -> None:
    swaps = [op for op in _ops("mamba2-2.7b", cp=2, dp=4) if isinstance(op, Collective)]
    assert [(op.kind, op.payload_bytes) for op in swaps] == [("all-to-all", 2048 * (3 * 5120 + 256 + 80) * 2)]


def test_states_and_caches_by_hand() -> None:
    jamba = model("jamba-v0.1")
    assert state_bytes(jamba, BF16) == 28 * 8192 * (16 + 3) * 2
    assert kv_cache_bytes_per_token(jamba, BF16) == 4 * 2 * 8 * 128 * 2
    flash = model("deepseek-v4-flash")
    near, sparse, pooled = 2 * 512, 21 * (512 + (512 + 128) / 4), 20 * (512 + 512 / 128)
    assert kv_cache_bytes_per_token(flash, BF16) == (near + sparse + pooled) * 2
    long = 1048576
    held = 43 * 512 * 128 + long * (21 * (512 + 128) / 4 + 20 * 512 / 128)
    assert kv_cache_bytes(flash, long, BF16) == held * 2
    rows = from_config({"model_type": "gemma3n_text"})
    own = 20  # the last 15 of 35 layers use the keys of earlier ones
    assert kv_cache_bytes_per_token(rows, BF16) == own * 2 * 2 * 256 * 2


def test_what_several_residual_streams_leave_out_is_said() -> None:
    plan = {"pp": 2, "dp": 32, "ep": 8, "shard": "zero1"}
    work = {"seq": 4096, "global_batch": 128}
    made = scenario({"model": "deepseek-v4-flash", "system": "64xh100-sxm", "workload": work, "plan": plan})
    assert any("several residual streams" in line for line in unpriced_fields(made))


def test_readers_describe_what_they_read() -> None:
    beside = from_config({"model_type": "falcon_h1"}).blocks[0]
    assert isinstance(beside.mixer, Attention)
    assert isinstance(beside.beside, Mamba2)
    kinds = [block.mixer for block in from_config(CONFIGS["deepseek-v4-flash"]).blocks]
    assert [isinstance(mixer, CompressedAttention) and mixer.rate for mixer in kinds] == [0, 4, 128]
    kimi = from_config(
        {
            "model_type": "kimi_linear", "num_hidden_layers": 4,
            "linear_attn_config": {
                "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4, "full_attn_layers": [4],
                "kda_layers": [1, 2, 3],
            },
        }
    )  # fmt: skip
    assert [isinstance(kimi.layer(index).mixer, Recurrence) for index in range(4)] == [True, True, True, False]
    dream = {"model_type": "Dream", "architectures": ["DreamModel"], "hidden_size": 3584, "intermediate_size": 18944}
    dream |= {"num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064}
    dream |= {"hidden_act": "silu", "tie_word_embeddings": False, "mask_token_id": 151666}
    assert count(from_config(dream)).total == count(model("qwen2.5-7b")).total
    assert not from_config(LLADA).causal
    assert not from_config(LLADA).writes
