"""What a published config.json says beside the shape reaches the launcher's options, or is told as lost."""

from __future__ import annotations

from typing import Any

import pytest

import ridgeline
from ridgeline.models.hf import from_config
from ridgeline.targets.api import export
from ridgeline.targets.registry import TARGETS
from ridgeline.targets.target import Export

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072, "rope_theta": 500000.0, "tie_word_embeddings": True, "hidden_act": "silu",
    "rope_scaling": {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3",
                     "original_max_position_embeddings": 8192},
}  # fmt: skip
QWEN: dict[str, Any] = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_experts": 16, "num_experts_per_tok": 4, "norm_topk_prob": False, "router_aux_loss_coef": 0.001,
    "num_hidden_layers": 12, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": 2048, "intermediate_size": 8192, "moe_intermediate_size": 1024,
    "n_routed_experts": 64, "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 8, "topk_group": 4,
    "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True, "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 16,
    "q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "vocab_size": 129280, "max_position_embeddings": 163840, "rms_norm_eps": 1e-6, "rope_theta": 10000,
    "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
                     "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096},
}  # fmt: skip
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_local_experts": 32,
    "num_experts_per_tok": 4, "num_hidden_layers": 4, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 64, "vocab_size": 201088, "sliding_window": 128, "attention_bias": True, "rms_norm_eps": 1e-5,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "max_position_embeddings": 131072,
    "rope_theta": 150000, "router_aux_loss_coef": 0.9,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                     "original_max_position_embeddings": 4096},
}  # fmt: skip
GEMMA: dict[str, Any] = {
    "model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256000, "rms_norm_eps": 1e-6,
    "sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "rope_theta": 10000.0,
    "query_pre_attn_scalar": 224, "max_position_embeddings": 8192, "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip


def written(config: dict[str, Any], to: str = "megatron", engine: str = "megatron-core") -> Export:
    work, plan = {"seq": 4096, "global_batch": 16}, {"shard": "zero1", "engine": engine}
    return TARGETS[to].write(
        ridgeline.scenario({"model": config, "system": "8xh100-sxm", "workload": work, "plan": plan})
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (LLAMA, ("--rotary-base 500000", "--use-rope-scaling", "--rope-scaling-factor 32.0", "--norm-epsilon 1e-05")),
        (QWEN, ("--rotary-base 1000000", "--moe-aux-loss-coeff 0.001", "--moe-router-pre-softmax", "--qk-layernorm")),
        (
            DEEPSEEK,
            (
                "--moe-router-score-function sigmoid", "--moe-router-enable-expert-bias", "--moe-router-num-groups 8",
                "--moe-router-topk-scaling-factor 2.5", "--moe-router-group-topk 4", "--rope-type yarn",
                "--rotary-scaling-factor 40.0", "--mscale 1.0", "--mscale-all-dim 1.0",
            ),
        ),
        (
            GPT_OSS,
            (
                "--position-embedding-type yarn", "--yarn-original-max-position-embeddings 4096",
                "--rotary-scaling-factor 32.0", "--yarn-beta-fast 32.0", "--window-size 128,0",
                "--softmax-type learnable", "--moe-aux-loss-coeff 0.9",
            ),
        ),
    ],
)  # fmt: skip
def test_numbers_of_a_config_become_options(config: dict[str, Any], words: tuple[str, ...]) -> None:
    script = written(config).files["launch.sh"]
    assert [word for word in words if f"    {word}\n" not in script] == []


def test_tied_embeddings_stay_tied() -> None:
    assert "--untie-embeddings-and-output-weights" not in written(LLAMA).files["launch.sh"]
    assert "--untie-embeddings-and-output-weights" in written(QWEN).files["launch.sh"]


def test_what_no_option_says_is_lost_by_name() -> None:
    lost = {part.path: part.why for part in written(GEMMA).lost}
    for path in ("score_softcap", "logit_softcap", "score_scale"):
        assert f"model.numerics.{path}" in lost
    assert {"model.embedding.softcap", "model.blocks.0.mixer.softcap"} <= set(lost)


def test_files_of_another_model_are_refused() -> None:
    table = {"model": GEMMA, "system": "8xh100-sxm", "workload": {"seq": 4096, "global_batch": 16}, "plan": {}}
    check = export(ridgeline.scenario(table), to="megatron").check  # an mlp without the gate of Gemma's
    assert check is not None
    assert check.verdict == "unreadable"
    assert "another model" in check.why


def test_llama_scaling_that_megatron_does_not_have_is_lost() -> None:
    other = {**LLAMA, "rope_scaling": {**LLAMA["rope_scaling"], "original_max_position_embeddings": 4096}}
    assert "model.numerics.rotary_scaling.first_context" in {part.path for part in written(other).lost}


def test_newer_configs_hold_rotary_numbers_in_one_table() -> None:
    newer = {key: value for key, value in LLAMA.items() if not key.startswith("rope_")}
    newer["rope_parameters"] = {**LLAMA["rope_scaling"], "rope_theta": 500000.0}
    assert from_config(newer).numerics == from_config(LLAMA).numerics


@pytest.mark.parametrize("wrong", ["x", float("nan"), -1, True, None, [], {"a": 1}, 10**400])
def test_strange_numbers_count_as_unknown(wrong: Any) -> None:
    found = from_config({**QWEN, "router_aux_loss_coef": wrong}).numerics
    assert found is not None
    assert found.router is not None
    assert found.router.aux_loss is None


def test_bridge_says_the_same() -> None:
    text = written(DEEPSEEK, "megatron-bridge", "megatron-bridge").files["recipe.py"]
    for word in ("rotary_base=10000", "rotary_scaling_factor=40.0", "mscale=1.0", "moe_router_topk_scaling_factor=2.5"):
        assert word in text


@pytest.mark.parametrize("kind", ["falcon_h1", "jamba"])
def test_hybrids_that_megatron_lacks_are_refused_by_name(kind: str) -> None:
    table = {"model": {"model_type": kind}, "system": "8xh100-sxm", "workload": {"seq": 4096, "global_batch": 16}}
    check = export(ridgeline.scenario({**table, "plan": {"shard": "zero1"}}), to="megatron").check
    assert check is not None
    assert (check.verdict, check.refuses) == ("unreadable", True)
    assert "Mamba of the first kind, mixers side by side" in check.why


def test_layers_of_two_parts_stand_as_two_in_a_pattern() -> None:
    granite = {
        "model_type": "granitemoehybrid", "hidden_size": 1536, "num_hidden_layers": 8, "vocab_size": 100352,
        "layer_types": ["mamba", "mamba", "attention", "mamba"] * 2, "num_attention_heads": 12, "mamba_n_groups": 1,
        "num_key_value_heads": 4, "intermediate_size": 512, "num_local_experts": 62, "num_experts_per_tok": 6,
        "shared_intermediate_size": 1024, "mamba_n_heads": 48, "mamba_d_head": 64, "mamba_d_state": 128,
        "mamba_d_conv": 4, "mamba_expand": 2, "position_embedding_type": "nope", "rms_norm_eps": 1e-5,
    }  # fmt: skip
    table = {"model": granite, "system": "8xh100-sxm", "workload": {"seq": 4096, "global_batch": 16}}
    found = export(ridgeline.scenario({**table, "plan": {"shard": "zero1", "pp": 2}}), to="megatron")
    assert "--hybrid-layer-pattern 'MEME*EME|MEME*EME'" in found.files["launch.sh"]
    assert found.check is not None
    assert found.check.verdict == "same"
