"""Reading config.json: files as published, keys left out, and everything that must be refused by name."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.core.errors import InputError, UnknownId
from ridgeline.models.hf import BIGGEST_CONFIG, READERS, from_config, read_config
from ridgeline.models.params import count
from ridgeline.models.spec import Attention, LatentAttention, Mamba2, Moe

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
DEEPSEEK: dict[str, Any] = {
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "attention_bias": False,
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {"fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
    "rope_scaling": {"factor": 40, "type": "yarn"},
    "scoring_func": "sigmoid",
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
QWEN_VL: dict[str, Any] = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_window_layers": 28,
    "model_type": "qwen2_5_vl",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "sliding_window": 32768,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "in_chans": 3,
        "intermediate_size": 3420,
        "out_hidden_size": 3584,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "spatial_patch_size": 14,
        "tokens_per_second": 2,
    },
}

# published dims, and only the keys that matter for what is tested
QWEN_CODER: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 6144,
    "intermediate_size": 8192,
    "mlp_only_layers": [],
    "moe_intermediate_size": 2560,
    "num_attention_heads": 96,
    "num_experts": 160,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 62,
    "num_key_value_heads": 8,
    "qkv_bias": False,
    "shared_expert_intermediate_size": 0,
    "use_qk_norm": True,
    "vocab_size": 151936,
}
QWEN_DELTA: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_value_head_dim": 128,
    "mlp_only_layers": [],
    "mtp_num_hidden_layers": 1,
    "num_attention_heads": 24,
    "num_hidden_layers": 64,
    "num_key_value_heads": 4,
    "output_gate_type": "swish",
    "vocab_size": 248320,
}
QWEN_SEEING: dict[str, Any] = {
    "model_type": "qwen3_5",
    "text_config": QWEN_DELTA,
    "tie_word_embeddings": False,
    "vision_config": {
        "deepstack_visual_indexes": [],
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "num_position_embeddings": 2304,
        "out_hidden_size": 5120,
        "patch_size": 16,
    },
}
GEMMA_SEEING: dict[str, Any] = {
    "model_type": "gemma4",
    "audio_config": None,
    "text_config": {
        "attention_k_eq_v": True,
        "enable_moe_block": False,
        "expert_intermediate_size": None,
        "global_head_dim": 512,
        "head_dim": 256,
        "hidden_size": 5376,
        "hidden_size_per_layer_input": 0,
        "intermediate_size": 21504,
        "num_attention_heads": 32,
        "num_global_key_value_heads": 4,
        "num_hidden_layers": 60,
        "num_key_value_heads": 16,
        "num_kv_shared_layers": 0,
        "sliding_window": 1024,
        "vocab_size": 262144,
    },
    "vision_config": {
        "global_head_dim": 72,
        "head_dim": 72,
        "hidden_size": 1152,
        "image_seq_length": 280,
        "intermediate_size": 4304,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "num_key_value_heads": 16,
        "position_embedding_size": 10240,
        "video_seq_length": 70,
    },
}
NEMOTRON_H: dict[str, Any] = {
    "model_type": "nemotron_h",
    "attention_head_dim": 128,
    "hidden_size": 8192,
    "hybrid_override_pattern": "M-M-M-M*-" + "M-M-M-M-M*-" * 9 + "M-M-M-M-M-",
    "intermediate_size": 32768,
    "mamba_head_dim": 64,
    "mamba_num_heads": 256,
    "n_groups": 8,
    "num_attention_heads": 64,
    "num_hidden_layers": 118,
    "num_key_value_heads": 8,
    "ssm_state_size": 256,
    "vocab_size": 131072,
}


def problems(config: Any) -> dict[str, str]:
    """Path and message of everything wrong with a config."""
    with pytest.raises(InputError) as caught:
        from_config(config)
    return {problem.path: str(problem) for problem in caught.value.problems}


def test_published_files_give_published_counts() -> None:
    assert count(from_config(LLAMA)).total == 8_030_261_248
    v3 = from_config(DEEPSEEK)
    assert count(v3).total == 671_026_404_352
    assert v3.mtp is not None
    assert v3.mtp.depth == 1
    assert count(from_config(QWEN_VL)).total == 8_292_166_656
    assert count(from_config(QWEN_CODER)).total == 480_154_875_392
    assert count(from_config(QWEN_SEEING)).total == 27_356_728_560
    assert count(from_config(GEMMA_SEEING)).total == 31_273_086_512
    assert count(from_config(NEMOTRON_H)).total == 56_324_350_464


def test_what_a_spec_remembers() -> None:
    spec = from_config(LLAMA, id="mine")
    assert (spec.id, spec.layers, spec.context, len(spec.blocks)) == ("mine", 32, 8192, 1)
    v3 = from_config(DEEPSEEK)
    assert len(v3.blocks) == 2
    assert isinstance(v3.blocks[1].mixer, LatentAttention)
    assert isinstance(v3.blocks[1].ffn, Moe)
    assert (v3.blocks[1].ffn.groups, v3.blocks[1].ffn.group_topk) == (8, 4)
    vision = from_config(QWEN_VL).vision
    assert vision is not None
    assert (vision.windowed, vision.image, vision.tokens) == (28, 448, 256)


def test_windows_follow_the_layers() -> None:
    listed = ["sliding_attention", "full_attention"] * 13
    gemma = from_config({"model_type": "gemma2"})
    assert gemma == from_config({"model_type": "gemma2", "layer_types": listed})
    windows = [layer.mixer.window for layer in map(gemma.layer, range(2)) if isinstance(layer.mixer, Attention)]
    assert windows == [4096, 0]
    slid = {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 30}
    assert from_config(slid).order == (0,) * 30 + (1,) * 2
    mistral = from_config({"model_type": "mistral", "sliding_window": None}).blocks[0].mixer
    assert isinstance(mistral, Attention)
    assert mistral.window == 0  # an explicit null is not the default
    scout = from_config({"model_type": "llama4_text"})
    chunks = [block.mixer for block in scout.blocks if isinstance(block.mixer, Attention)]
    assert [(mixer.positions, mixer.window, mixer.chunked) for mixer in chunks] == [
        ("rope", 8192, True),
        ("none", 0, False),
    ]


def test_layer_patterns_in_letters_and_words() -> None:
    letters = from_config({"model_type": "nemotron_h", "hybrid_override_pattern": "M-*E", "attention_head_dim": 128})
    words = {"model_type": "nemotron_h", "layers_block_type": ["mamba", "mlp", "attention", "moe"]}
    assert letters == from_config(words)
    assert isinstance(letters.layer(0).mixer, Mamba2)
    assert "hybrid_override_pattern" in problems({"model_type": "nemotron_h", "hybrid_override_pattern": "MX"})
    assert "hybrid_override_pattern" in problems({"model_type": "nemotron_h"})


def test_old_and_new_spellings_are_one() -> None:
    old = from_config({"model_type": "qwen3_moe", "num_experts": 64})
    assert old == from_config({"model_type": "qwen3_moe", "num_local_experts": 64})
    both = problems({"model_type": "qwen3_moe", "num_experts": 64, "num_local_experts": 32})
    assert "the same as num_experts, 64" in both["num_local_experts"]
    kimi = {"vt_hidden_size": 1152, "vt_num_hidden_layers": 27, "init_pos_emb_height": 64, "mm_hidden_size": 1152}
    assert from_config({"model_type": "kimi_k25", "text_config": {}, "vision_config": kimi}) == from_config(
        {"model_type": "kimi_k25", "text_config": {}, "vision_config": {}}
    )


@pytest.mark.parametrize(
    ("config", "same"),
    [
        (QWEN_CODER, QWEN_CODER.keys() - {"qkv_bias", "shared_expert_intermediate_size", "use_qk_norm"}),
        (QWEN_DELTA, QWEN_DELTA.keys() - {"mlp_only_layers", "output_gate_type"}),
    ],
)
def test_keys_that_say_what_a_family_always_is(config: dict[str, Any], same: set[str]) -> None:
    assert from_config(config) == from_config({key: config[key] for key in same})


def test_an_older_name_of_a_size_still_sets_it() -> None:
    wider = from_config(NEMOTRON_H | {"attention_head_dim": 256})
    assert count(wider).attention > count(from_config(NEMOTRON_H)).attention


def test_unknown_model_type_names_its_neighbours() -> None:
    with pytest.raises(UnknownId, match=r"got 'lama', expected one of llama"):
        from_config({"model_type": "lama"})
    assert "model_type" in problems({"hidden_size": 8})
    assert "model_type" in problems({"model_type": ["llama"]})


def test_every_key_not_understood_is_listed() -> None:
    found = problems(LLAMA | {"extra_gate": True, "n_streams": 4, "rope_theta": 1e6})
    assert set(found) == {"extra_gate", "n_streams"}
    assert "it may change the architecture" in found["extra_gate"]
    nested = QWEN_VL | {"vision_config": {"mixture": 2}}
    assert set(problems(nested)) == {"vision_config.mixture"}
    assert from_config(LLAMA | {"note": "mine", "nothing": None}, ignore=("note",)).layers == 32


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (LLAMA | {"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"model_type": "mpt", "no_bias": False}, "no_bias"),
        ({"model_type": "mpt", "attn_config": {"qk_ln": True}}, "attn_config.qk_ln"),
        (DEEPSEEK | {"moe_layer_freq": 2}, "moe_layer_freq"),
        ({"model_type": "gemma3", "vision_config": {"model_type": "timm"}}, "vision_config.model_type"),
        ({"model_type": "llava", "text_config": {"model_type": "t5"}, "vision_config": {}}, "text_config.model_type"),
        ({"model_type": "minimax_m2", "attn_type_list": [0] * 62}, "attn_type_list"),
        (QWEN_CODER | {"qkv_bias": True}, "qkv_bias"),
        (QWEN_CODER | {"shared_expert_intermediate_size": 2560}, "shared_expert_intermediate_size"),
        (QWEN_CODER | {"use_qk_norm": False}, "use_qk_norm"),
        (QWEN_DELTA | {"mlp_only_layers": [0]}, "mlp_only_layers"),
        (QWEN_DELTA | {"output_gate_type": "sigmoid"}, "output_gate_type"),
        (GEMMA_SEEING | {"vision_config": {"head_dim": 72, "global_head_dim": 144}}, "vision_config.global_head_dim"),
    ],
)
def test_features_not_supported_are_named(config: dict[str, Any], key: str) -> None:
    assert key in problems(config)


@pytest.mark.parametrize("bad", ["4096", float("nan"), -1, 0, 1e30, 10**400, 12.5, True, [4096], {"a": 1}])
def test_wrong_values_are_named(bad: object) -> None:
    assert "hidden_size" in problems(LLAMA | {"hidden_size": bad})


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"attention_bias": "yes"}, "attention_bias"),
        ({"hidden_act": 3}, "hidden_act"),
        ({"num_attention_heads": 33}, "num_attention_heads"),
        ({"num_key_value_heads": 5}, "num_key_value_heads"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
    ],
)
def test_wrong_shapes_are_named(change: dict[str, Any], key: str) -> None:
    assert key in problems(LLAMA | change)


def test_several_problems_come_together() -> None:
    assert {"hidden_size", "vocab_size", "odd"} <= set(
        problems(LLAMA | {"hidden_size": 0, "vocab_size": "x", "odd": 1})
    )


def test_missing_keys() -> None:
    assert "missing key 'num_experts_per_tok'" in problems({"model_type": "deepseek_v2"})["num_experts_per_tok"]
    assert set(problems({"model_type": "llava"})) >= {"text_config", "vision_config"}
    assert "missing key 'hidden_size'" in problems(LLAMA | {"hidden_size": None})["hidden_size"]
    assert "layer_types" in problems({"model_type": "gemma2", "layer_types": ["full_attention"]})


def test_file_or_folder(tmp_path: Path) -> None:
    folder = tmp_path / "Llama-3-8B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    spec = read_config(folder)
    assert spec.id == "Llama-3-8B"
    assert spec == read_config(folder / "config.json")
    assert spec.source == str(folder / "config.json")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        "null",
        "[" * 100_000,
        '{"model_type": "llama", "hidden_size": ' + "9" * 5000 + "}",
        '{"model_type": "llama", "x": ' + "[" * 200 + "]" * 200 + "}",
        '{"model_type": "llama", "hidden_size": NaN}',
        '{"model_type": "llama", "hidden_size": Infinity}',
        " " * 2**24,
    ],
)
def test_broken_files_are_input_errors(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError):
        read_config(tmp_path)


def test_a_folder_without_a_config_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_config(tmp_path)


def test_a_long_list_of_quantised_modules_is_read_and_a_longer_file_is_not(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA | {"quantization_config": {"ignore": ["model.layers.0.mlp"] * 150_000}}))
    assert file.stat().st_size > 3_000_000
    assert read_config(file).layers == 32
    file.write_text(json.dumps(LLAMA) + " " * BIGGEST_CONFIG)
    with pytest.raises(InputError, match="at most"):
        read_config(file)


def test_infinity_where_it_is_usual_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba2", "time_step_limit": [0.0, Infinity]}')
    assert read_config(tmp_path).layers == 64


KEYS = sorted({*LLAMA, *DEEPSEEK, *QWEN_VL, "layer_types", "head_dim", "text_config", "attn_config", "moe_layers"})
KEYS += ["hybrid_override_pattern", "attention_types", "per_layer_config", "no_rope_layers", "attn_layer_indices"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 200) | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(READERS)), st.dictionaries(st.sampled_from(KEYS) | st.text(), VALUES, max_size=6))
def test_any_config_reads_or_says_why(kind: str, changes: dict[str, Any]) -> None:
    with contextlib.suppress(InputError):
        assert count(from_config({**changes, "model_type": kind})).total > 0


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([LLAMA, DEEPSEEK, QWEN_VL]), st.data())
def test_a_mutated_config_reads_or_says_why(config: dict[str, Any], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(config)))
    mutated = {**config, key: data.draw(VALUES)}
    with contextlib.suppress(InputError):
        assert count(from_config(mutated)).total > 0


def test_every_fourth_layer_chooses_its_tokens_anew() -> None:
    """index_topk_freq = 4 from layer 2 on: layers 1, 5 and 9 choose, the three after each take that choice over."""
    told = {"model_type": "glm_moe_dsa", "num_hidden_layers": 12, "index_topk_freq": 4, "index_skip_topk_offset": 2}
    spec = from_config(told, id="x")
    mixers = [spec.blocks[index].mixer for index in spec.order]
    assert all(isinstance(mixer, LatentAttention) and mixer.indexer for mixer in mixers)
    taken = [layer for layer, mixer in enumerate(mixers) if mixer.indexer.shared]  # type: ignore[union-attr]
    assert taken == [2, 3, 4, 6, 7, 8, 10, 11]


def test_the_catalogs_words_change_a_config(tmp_path: Path) -> None:
    assert from_config(LLAMA | {"layers": 8}).layers == 8
    listed = {
        "model_type": "gpt_oss",
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }
    cut = from_config(listed | {"layers": 3})
    assert [cut.layer(index).mixer.window > 0 for index in range(3)] == [True, False, True]  # type: ignore[union-attr]
    with pytest.raises(InputError, match="the layers that layer_types lists"):
        from_config(listed | {"layers": 6})
    assert from_config(QWEN_VL | {"layers": 2}).layers == 2
    assert from_config({"model_type": "gpt2", "layers": 2, "vocab": 1000}).vocab == 1000


def test_configs_of_other_software_are_recognised() -> None:
    with pytest.raises(InputError, match="a diffusers config of 'UNet2DConditionModel'"):
        from_config({"_class_name": "UNet2DConditionModel", "num_layers": 19})
    with pytest.raises(InputError, match="a DeepSpeed config"):
        from_config({"zero_optimization": {"stage": 3}})
