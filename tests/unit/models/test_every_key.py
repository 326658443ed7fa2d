"""Every key that a reader knows: changed, it is refused, or the prediction moves, or a reason stands here why not."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import pytest
from keys_without_effect import READ_ELSEWHERE, WITHOUT_EFFECT

from ridgeline import scenario
from ridgeline.core.errors import InputError
from ridgeline.lowering.program import lower
from ridgeline.models.hf import READERS, from_config
from ridgeline.models.hf.config import OFF, Config, irrelevant_keys
from ridgeline.models.spec import ModelSpec, Moe
from ridgeline.plan.scenario import Scenario

LATENT = {"qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "kv_lora_rank": 256, "q_lora_rank": 512}
DEEPSEEK = {
    **LATENT, "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 2048,
    "vocab_size": 1000, "n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256,
    "hidden_act": "silu", "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "n_shared_experts": 1,
}  # fmt: skip
# what a type needs said that has no default, and what brings its keys into play: one config or several
SLIDING = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 2}
GROUPS = {"n_group": 4, "topk_group": 2}
DENSE = {"mlp_only_layers": [0]}
DREAM = {
    "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 1024, "vocab_size": 1000, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
MINIMAX = {
    "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 1024, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 1000,
    "hidden_act": "silu", "attn_type_list": [0, 1, 0, 1],
}  # fmt: skip
SEEN = {"text_config": SLIDING}
SAID: Mapping[str, tuple[dict[str, Any], ...]] = {
    "axk1": ({"first_k_dense_replace": 1, **GROUPS},),
    "bamba": ({"attn_layer_indices": [1, 3]},),
    "deepseek_v2": ({"num_experts_per_tok": 6, "first_k_dense_replace": 1, **GROUPS},),
    "dots1": (
        {"num_experts_per_tok": 6, "n_routed_experts": 64, "num_attention_heads": 32, "first_k_dense_replace": 1,
         "sliding_window": 4096, "max_window_layers": 2, **GROUPS},
    ),
    "ernie4_5_moe": ({"moe_layer_end_index": 20},),
    "exaone_moe": (GROUPS,),
    "Dream": (DREAM, DREAM | SLIDING | {"max_window_layers": 1}),
    "falcon": ({}, {"new_decoder_architecture": True}),
    "flint": (DENSE,),
    "gemma3": ({"vision_config": {"model_type": "siglip_vision_model"}},),
    "gemma4": ({"text_config": {"hidden_size_per_layer_input": 0, "attention_k_eq_v": True}},),
    "gemma4_text": (
        {"hidden_size_per_layer_input": 0, "attention_k_eq_v": True},
        {"num_kv_shared_layers": 4, "num_hidden_layers": 12},
    ),
    "glm4_moe": ({"head_dim": 128, **GROUPS},),
    "gemma3n_text": ({"num_hidden_layers": 10, "num_kv_shared_layers": 2},),
    "glm4_moe_lite": ({"first_k_dense_replace": 1, **GROUPS},),
    "glm_moe_dsa": ({"index_topk_freq": 2, **GROUPS},),
    "glm4v_moe": ({"text_config": {"head_dim": 128, **GROUPS}},),
    "glm4v_moe_text": ({"head_dim": 128, **GROUPS},),
    "granitemoehybrid": ({"layer_types": ["mamba", "attention"] * 16},),
    "hunyuan_v1_moe": ({"num_experts": 8},),
    "idefics3": ({"text_config": {"model_type": "llama"}},),
    "internvl": ({"text_config": {"model_type": "qwen2", **SLIDING}},),
    "kimi_k2": (DEEPSEEK,),
    "kimi_linear": (GROUPS, {"linear_attn_config": {"num_heads": 16, "full_attn_layers": [4, 8]}, **GROUPS}),
    "kimi_k25": ({"text_config": {"model_type": "deepseek_v3"}},),
    "laguna": ({"layer_types": ["sliding_attention", "full_attention"] * 20},),
    "lfm2": ({"full_attn_idxs": [1, 3]},),
    "lfm2_moe": ({"layer_types": ["conv", "full_attention"] * 16},),
    "llada": (
        {"d_model": 512, "n_layers": 2, "n_heads": 8, "n_kv_heads": 8, "mlp_hidden_size": 1024, "vocab_size": 1000,
         "embedding_size": 1024, "activation_type": "silu"},
    ),
    "llama4": ({"text_config": {"interleave_moe_layer_step": 2}},),
    "llama4_text": ({"interleave_moe_layer_step": 2},),
    "llava": ({"text_config": {"model_type": "llama"}, "vision_config": {"model_type": "clip_vision_model"}},),
    "llava_next": ({"text_config": {"model_type": "llama"}, "vision_config": {"model_type": "clip_vision_model"}},),
    "llava_onevision": (
        {"text_config": {"model_type": "qwen2", **SLIDING}, "vision_config": {"model_type": "siglip_vision_model"},
         "image_grid_pinpoints": [[384, 384], [384, 1152]]},
    ),
    "mellum": ({"layer_types": ["sliding_attention", "full_attention"] * 14, "first_k_dense_replace": 1},),
    "mimo_v2_flash": ({}, GROUPS),
    "minicpm3": ({"v_head_dim": 64},),
    "minimax_m1": (MINIMAX,),
    "minimax_m2": ({"num_mtp_modules": 1},),
    "minimax_text_01": (MINIMAX,),
    "mistral4": ({"first_k_dense_replace": 1, **GROUPS},),
    "mistral3": ({"text_config": {"model_type": "mistral"}, "vision_config": {"model_type": "pixtral"}},),
    "nemotron_h": ({"hybrid_override_pattern": "M*-E", "num_hidden_layers": 4, **GROUPS},),
    "paligemma": ({"text_config": {"model_type": "gemma"}, "vision_config": {"model_type": "siglip_vision_model"}},),
    "qwen2": (SLIDING,),
    "qwen2_5_vl": (SEEN,),
    "qwen2_5_vl_text": (SLIDING,),
    "qwen2_moe": ({**SLIDING, **DENSE, "max_window_layers": 20},),
    "qwen2_vl": (SEEN,),
    "qwen2_vl_text": (SLIDING,),
    "qwen3": (SLIDING,),
    "qwen3_moe": ({**SLIDING, **DENSE},),
    "qwen3_next": (DENSE,),
    "qwen3_vl": (SEEN,),
    "qwen3_vl_moe": ({"text_config": {**SLIDING, **DENSE}},),
    "qwen3_vl_moe_text": ({**SLIDING, **DENSE},),
    "qwen3_vl_text": (SLIDING,),
    "qwen2_audio": ({"text_config": {"model_type": "qwen2", **SLIDING}},),
    "qwen2_5_omni": ({"thinker_config": SEEN},),
    "qwen2_5_omni_thinker": (SEEN,),
    "qwen3_omni_moe": (
        {"thinker_config": {"text_config": {"head_dim": 128, **SLIDING, **DENSE}},
         "talker_config": {"text_config": {"shared_expert_intermediate_size": 768}}},
    ),
    "qwen3_omni_moe_thinker": ({"text_config": {"head_dim": 128, **SLIDING, **DENSE}},),
    "voxtral": ({"text_config": {"model_type": "llama"}},),
    "smolvlm": ({"text_config": {"model_type": "llama"}},),
    "smollm3": ({"use_sliding_window": True, "sliding_window": 4096},),
    "solar_open": (GROUPS,),
}  # fmt: skip
# keys that some readers read and that move nothing in their default config, with the reason
UNMOVED: Mapping[str, str] = {
    "text_config.tie_word_embeddings": "the top level says it for the text below",
    "thinker_config.text_config.tie_word_embeddings": "the thinker's own level says it",
    "max_position_embeddings": "how long sequences may be is the model's promise; rows of positions are counted",
    "n_positions": "as max_position_embeddings",
    "max_seq_len": "as max_position_embeddings",
    "max_sequence_length": "as max_position_embeddings",
    "context_length": "as max_position_embeddings",
    "llada.vocab_size": "its rows, padded, are said by embedding_size",
    "xlstm.final_logit_softcapping": "its cap is said by output_logit_soft_cap",
    "falcon_h1.mamba_expand": "the inner width is said itself, by mamba_d_ssm",
    "gemma4.use_double_wide_mlp": "doubles layers that share keys and values, of which these configs have none",
}


def _spied(config: dict[str, Any]) -> tuple[ModelSpec, dict[tuple[str, str], Any], set[str]]:
    """The model, every key that its reader asked for with the value it saw, and every key that it ignored."""
    asked: dict[tuple[str, str], Any] = {}
    ignored: set[str] = set()
    value, ignore = Config._value, Config.ignore

    def spy(self: Config, keys: Any) -> tuple[str, Any]:
        found = value(self, keys)
        asked.setdefault((self.path, found[0]), found[1])
        return found

    def note(self: Config, *keys: str) -> None:
        ignored.update(keys)
        ignore(self, *keys)

    Config._value, Config.ignore = spy, note  # type: ignore[method-assign]
    try:
        return from_config(config), asked, ignored
    finally:
        Config._value, Config.ignore = value, ignore  # type: ignore[method-assign]


def _others(value: Any) -> Iterator[Any]:
    """Other values that a key may take, the likeliest first."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (2 * value or 2, value // 2 or 1, value + 1, value + 64, 4 * value)
    elif isinstance(value, float):
        yield from (value + 1.0, 0.0)
    elif isinstance(value, str):
        yield from ("relu", "gelu", "silu", "gated-gelu", f"{value}-x")
    elif isinstance(value, (list, tuple)):
        yield from ([], list(value)[:-1], [*value, *list(value)[-1:]])
    else:
        yield from (2, 64, True, False, "silu", ["full_attention"], 1.5)


def _set(config: dict[str, Any], path: str, key: str, value: Any) -> dict[str, Any]:
    if not path:
        return {**config, key: value}
    first, _, rest = path.partition(".")
    return {**config, first: _set(dict(config.get(first) or {}), rest, key, value)}


@cache
def _machine() -> Scenario:
    plan = {"tp": 1, "ep": 1, "moe_dispatch": "deepep"}
    return scenario(
        {"model": "llama3-8b", "system": "1xh100-sxm", "workload": {"seq": 16384, "global_batch": 1}, "plan": plan}
    )


@lru_cache(maxsize=64)
def _priced(spec: ModelSpec) -> bytes:
    """What a step of one chip runs, images and experts over two ranks included."""
    made = _machine()
    mesh = replace(made.plan.mesh, ep=2) if any(isinstance(block.ffn, Moe) for block in spec.blocks) else made.plan.mesh
    work = made.workload
    if spec.vision:
        work = replace(work, images=1.0, videos=1.0, frames=8, height=300, width=1000)
    if spec.audio:
        work = replace(work, audio_s=47.0)
    ran = lower(replace(made, model=spec, workload=work, plan=replace(made.plan, mesh=mesh)), tensors=False)
    return pickle.dumps((ran.sections, ran.stages))


def _fate(config: dict[str, Any], spec: ModelSpec, path: str, key: str, value: Any) -> str:
    """refused, moves, unpriced (the model changes, the program does not), or silent (nothing changes)."""
    fate, told = "refused", False
    for other in _others(value):
        try:
            made = from_config(_set(config, path, key, other))
        except InputError as wrong:
            told = told or any(words in str(wrong) for words in ("it changes the architecture", "not described yet"))
            continue
        if made == spec:
            fate = "silent" if fate == "refused" else fate
        elif _priced(made) != _priced(spec):
            return "moves"
        else:
            fate = "unpriced"
    return "refused" if told and fate == "silent" else fate


def _configs(kind: str) -> Iterator[dict[str, Any]]:
    yield from ({"model_type": kind, **more} for more in SAID.get(kind, ({},)))


def _unmoved(kind: str) -> dict[str, str]:
    """Every key that a reader asks for and that neither moves the prediction nor is refused, with its fate."""
    still: dict[str, str] | None = None
    for config in _configs(kind):
        spec, asked, _ = _spied(config)
        found: dict[str, str] = {}
        for (path, key), value in asked.items():
            if key in ("text_config", "vision_config", "head", "model_type") or isinstance(value, Mapping):
                continue
            if path.startswith(BESIDE) or key == "enable_audio_output":
                continue
            fate = _fate(config, spec, path, key, value)
            if fate in ("silent", "unpriced"):
                found[f"{path}{key}" if key == "tie_word_embeddings" else key] = fate
        still = found if still is None else {key: fate for key, fate in still.items() if key in found}
    return still or {}


BESIDE = ("talker_config", "token2wav_config", "code2wav_config")  # companions: counted, never priced
FEW = (
    "deepseek_v4",
    "kimi_linear",
    "llama",
    "gemma2",
    "gemma3_text",
    "deepseek_v3",
    "qwen3_moe",
    "mamba2",
    "bamba",
    "bert",
    "t5",
    "whisper",
    "gpt2",
)


@pytest.mark.parametrize(
    "kind", [kind if kind in FEW else pytest.param(kind, marks=pytest.mark.slow) for kind in READERS]
)
def test_every_key_moves_the_prediction_or_says_why_not(kind: str) -> None:
    left = {key: fate for key, fate in _unmoved(kind).items() if not {key, f"{kind}.{key}"} & set(UNMOVED)}
    assert not left, f"{kind}: price these, refuse them, or say why they move nothing"


def test_every_key_that_a_reader_passes_over_has_a_reason_and_none_is_left_over() -> None:
    passed: set[str] = set()
    for kind in READERS:
        for config in _configs(kind):
            _, asked, ignored = _spied(config)
            passed |= ignored - {key for _, key in asked}
    known = set(WITHOUT_EFFECT) | set(READ_ELSEWHERE) | irrelevant_keys() | OFF
    assert not passed - known, "a reader passes over these: say why they have no effect"
    assert not (set(WITHOUT_EFFECT) | set(READ_ELSEWHERE)) - passed, "no reader passes over these any more"
    assert all(len(reason) > 10 for reason in (*WITHOUT_EFFECT.values(), *READ_ELSEWHERE.values(), *UNMOVED.values()))
