"""Parameter counts against the models that transformers itself builds on the meta device: exact, without weights."""

from __future__ import annotations

import dataclasses
import json
import os
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from ridgeline.models import hf  # noqa: E402
from ridgeline.models.hf import READERS, from_config, read_config  # noqa: E402
from ridgeline.models.params import count  # noqa: E402

transformers.logging.set_verbosity_error()


def _sizes(hidden: int, inner: int, layers: int, heads: int, kv: int, **more: Any) -> dict[str, Any]:
    """The usual keys of a decoder."""
    shape = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers}
    return shape | {"num_attention_heads": heads, "num_key_value_heads": kv} | more


GEMMA3 = _sizes(5376, 21504, 62, 32, 16, head_dim=128)
SIGLIP = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
QWEN_VISION = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3456, "out_hidden_size": 8192}
KIMI = _sizes(7168, 18432, 61, 64, 64, vocab_size=163840, n_routed_experts=384, first_k_dense_replace=1)
KIMI |= {"n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0, "routed_scaling_factor": 2.827}
LLAMA4_VISION = {"hidden_size": 1408, "image_size": 336, "vision_output_dim": 4096}
NANO = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
DOTS = ROPE | {"n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 2, "first_k_dense_replace": 1}
DOTS |= {"moe_intermediate_size": 1408, "vocab_size": 152064}
HUNYUAN = ROPE | {"num_experts": 64, "moe_topk": 8}
V4_KINDS = ["compressed_sparse_attention", "heavily_compressed_attention"]
V2 = _sizes(5120, 12288, 60, 128, 128, moe_intermediate_size=1536, n_routed_experts=160, num_experts_per_tok=6)

# name -> (model_type, keys that differ from that type's defaults); published dimensions
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-2-7b": ("llama", {}),
    "llama-3-8b": ("llama", _sizes(4096, 14336, 32, 32, 8, vocab_size=128256)),
    "llama-3.1-405b": ("llama", _sizes(16384, 53248, 126, 128, 8, vocab_size=128256)),
    "llama-with-biases": ("llama", {"attention_bias": True, "mlp_bias": True, "num_hidden_layers": 2}),
    "mistral-7b": ("mistral", {}),
    "ministral-3-8b": ("ministral3", {}),
    "qwen-2.5-72b": ("qwen2", _sizes(8192, 29568, 80, 64, 8, vocab_size=152064)),
    "qwen-3-0.6b": ("qwen3", _sizes(1024, 3072, 28, 16, 8, head_dim=128, tie_word_embeddings=True)),
    "qwen-3-32b": ("qwen3", _sizes(5120, 25600, 64, 64, 8, head_dim=128)),
    "gemma-7b": ("gemma", {}),
    "gemma-2-27b": ("gemma2", _sizes(4608, 36864, 46, 32, 16, head_dim=128)),
    "gemma-3-27b-text": ("gemma3_text", GEMMA3),
    "gemma-3-27b": (
        "gemma3",
        {
            "text_config": GEMMA3,
            "vision_config": SIGLIP | {"image_size": 896, "patch_size": 14, "vision_use_head": False},
        },
    ),
    "gemma-3-with-head": ("gemma3", {}),
    "gemma-4-dense": (
        "gemma4_text",
        _sizes(5376, 21504, 60, 32, 16, attention_k_eq_v=True, num_global_key_value_heads=4)
        | {"hidden_size_per_layer_input": 0},
    ),
    "gemma-4-experts": (
        "gemma4",
        {
            "text_config": _sizes(2816, 2112, 30, 16, 8, attention_k_eq_v=True, num_global_key_value_heads=2)
            | {"hidden_size_per_layer_input": 0, "enable_moe_block": True, "num_experts": 128}
            | {"top_k_experts": 8, "moe_intermediate_size": 704},
            "vision_config": SIGLIP | {"num_key_value_heads": 16, "head_dim": 72, "global_head_dim": 72},
        },
    ),
    "phi-2": ("phi", _sizes(2560, 10240, 32, 32, 32)),
    "phi-with-head-norms": ("phi", {"qk_layernorm": True, "num_hidden_layers": 2}),
    "phi-4": ("phi3", _sizes(5120, 17920, 40, 40, 10, vocab_size=100352)),
    "gpt2": ("gpt2", {}),
    "gpt2-xl": ("gpt2", {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    "gpt-neo-2.7b": (
        "gpt_neo",
        {"hidden_size": 2560, "num_layers": 32, "num_heads": 20, "attention_types": [[["global", "local"], 16]]},
    ),
    "gpt-j-6b": ("gptj", {}),
    "gpt-neox-20b": ("gpt_neox", {}),
    "gpt-neox-bare": ("gpt_neox", {"use_parallel_residual": False, "attention_bias": False, "num_hidden_layers": 2}),
    "opt-350m": (
        "opt",
        {"hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
        | {"word_embed_proj_dim": 512, "do_layer_norm_before": False},
    ),
    "opt-175b": (
        "opt",
        {"hidden_size": 12288, "ffn_dim": 49152, "num_hidden_layers": 96, "num_attention_heads": 96},
    ),
    "bloom-176b": ("bloom", {"hidden_size": 14336, "n_layer": 70, "n_head": 112}),
    "mpt-30b": ("mpt", {"d_model": 7168, "n_layers": 48, "n_heads": 64, "vocab_size": 50432}),
    "falcon-7b": ("falcon", {}),
    "falcon-180b": (
        "falcon",
        {"hidden_size": 14848, "num_hidden_layers": 80, "num_attention_heads": 232, "num_kv_heads": 8}
        | {"new_decoder_architecture": True},
    ),
    "falcon-rw-1b": (
        "falcon",
        {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32, "multi_query": False}
        | {"parallel_attn": False, "alibi": True, "bias": True, "vocab_size": 50304},
    ),
    "starcoder2-15b": ("starcoder2", _sizes(6144, 24576, 40, 48, 4)),
    "granite-3-8b": ("granite", _sizes(4096, 12800, 40, 32, 8, vocab_size=49155, tie_word_embeddings=True)),
    "command-r-plus": ("cohere", _sizes(12288, 33792, 64, 96, 8, use_qk_norm=True)),
    "stablelm-2-12b": (
        "stablelm",
        _sizes(5120, 13824, 40, 32, 8, vocab_size=100352, qk_layernorm=True, use_parallel_residual=True),
    ),
    "olmo-2-32b": ("olmo2", _sizes(5120, 27648, 64, 40, 8, vocab_size=100352)),
    "nemotron-4-340b": ("nemotron", _sizes(18432, 73728, 96, 96, 8)),
    "glm-4-32b": ("glm4", _sizes(6144, 23040, 61, 48, 2, attention_bias=False)),
    "mixtral-8x7b": ("mixtral", {}),
    "mixtral-8x22b": ("mixtral", _sizes(6144, 16384, 56, 48, 8)),
    "qwen-1.5-moe-a2.7b": ("qwen2_moe", {}),
    "qwen-3-235b-a22b": (
        "qwen3_moe",
        _sizes(4096, 12288, 94, 64, 4, head_dim=128, moe_intermediate_size=1536),
    ),
    "qwen-3-coder-480b-a35b": (
        "qwen3_moe",
        _sizes(6144, 8192, 62, 96, 8, head_dim=128, moe_intermediate_size=2560, num_experts=160)
        | {"qkv_bias": False, "shared_expert_intermediate_size": 0, "use_qk_norm": True},
    ),
    "qwen-moe-every-other": ("qwen3_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [3], "num_hidden_layers": 8}),
    "gpt-oss-120b": ("gpt_oss", {}),
    "gpt-oss-20b": ("gpt_oss", {"num_hidden_layers": 24, "num_local_experts": 32}),
    "glm-4.5": (
        "glm4_moe",
        _sizes(5120, 12288, 92, 96, 8, head_dim=128, moe_intermediate_size=1536, n_routed_experts=160)
        | {"first_k_dense_replace": 3, "use_qk_norm": True, "attention_bias": True},
    ),
    "minimax-m2": ("minimax_m2", {}),
    "llama-4-scout-text": ("llama4_text", {}),
    "llama-4-maverick": (
        "llama4",
        {"text_config": {"num_local_experts": 128, "interleave_moe_layer_step": 2}, "vision_config": LLAMA4_VISION},
    ),
    "deepseek-v2": ("deepseek_v2", V2 | {"n_group": 8, "topk_group": 3, "first_k_dense_replace": 1}),
    "deepseek-v2-lite": (
        "deepseek_v2",
        _sizes(2048, 10944, 27, 16, 16, moe_intermediate_size=1408, q_lora_rank=None, num_experts_per_tok=6)
        | {"first_k_dense_replace": 1},
    ),
    "deepseek-v3": ("deepseek_v3", {}),
    "deepseek-v3-with-biases": ("deepseek_v3", {"attention_bias": True, "num_hidden_layers": 4}),
    "deepseek-v3.2": ("deepseek_v32", {}),
    "kimi-k2": ("deepseek_v3", KIMI),
    "kimi-k2.5": ("kimi_k25", {"text_config": KIMI, "tie_word_embeddings": False}),
    "glm-5": ("glm_moe_dsa", {}),
    "glm-5-shared-choice": ("glm_moe_dsa", {"indexer_types": (["full"] * 3 + ["shared"] * 75)}),
    "qwen3-next-80b-a3b": ("qwen3_next", {}),
    "qwen-3.5-text": ("qwen3_5_text", {}),
    "qwen-3.5-27b-text": (
        "qwen3_5_text",
        _sizes(5120, 17408, 64, 24, 4, linear_num_value_heads=48, mlp_only_layers=[], output_gate_type="swish"),
    ),
    "qwen-3.5": ("qwen3_5", {}),
    "qwen-3.5-35b-a3b": ("qwen3_5_moe", {}),
    "mamba2-2.7b": (
        "mamba2",
        {"hidden_size": 2560, "num_heads": 80, "n_groups": 1, "vocab_size": 50288, "tie_word_embeddings": True},
    ),
    "bamba-9b": ("bamba", {"attn_layer_indices": [9, 18, 27], "mamba_d_state": 128}),
    "nemotron-h-8b": (
        "nemotron_h",
        {"hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"},
    ),
    "nemotron-h-56b": (
        "nemotron_h",
        {"hidden_size": 8192, "hybrid_override_pattern": "M-M-M-M*-" + "M-M-M-M-M*-" * 9 + "M-M-M-M-M-"}
        | {"intermediate_size": 32768, "num_attention_heads": 64, "mamba_num_heads": 256, "ssm_state_size": 256}
        | {"attention_head_dim": 128},
    ),
    "nemotron-3-nano-30b-a3b": (
        "nemotron_h",
        {"hidden_size": 2688, "hybrid_override_pattern": NANO, "num_key_value_heads": 2, "mamba_num_heads": 64}
        | {"n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856}
        | {"moe_shared_expert_intermediate_size": 3712},
    ),
    "nemotron-latent-experts": (
        "nemotron_h",
        {"hybrid_override_pattern": "MEM*E", "moe_latent_size": 1024, "n_routed_experts": 512}
        | {"num_experts_per_tok": 22, "moe_intermediate_size": 2688, "moe_shared_expert_intermediate_size": 5376},
    ),
    "llava-1.5-7b": ("llava", {"text_config": {"model_type": "llama", "vocab_size": 32064}}),
    "mistral-small-3.1-24b": ("mistral3", {"tie_word_embeddings": False}),
    "qwen2-vl-72b": ("qwen2_vl", {"vision_config": {"hidden_size": 8192}}),
    "qwen2.5-vl-72b": ("qwen2_5_vl", {"vision_config": QWEN_VISION}),
    "qwen3-vl-8b": (
        "qwen3_vl",
        {"text_config": _sizes(4096, 12288, 36, 32, 8), "vision_config": {"out_hidden_size": 4096}},
    ),
    "qwen3-vl-235b-a22b": (
        "qwen3_vl_moe",
        {
            "text_config": _sizes(4096, 12288, 94, 64, 4, head_dim=128, moe_intermediate_size=1536, num_experts=128)
            | {"num_experts_per_tok": 8},
            "vision_config": {"out_hidden_size": 4096},
        },
    ),
    "dots.llm1": ("dots1", _sizes(4096, 10944, 62, 32, 32, head_dim=128) | DOTS),
    "hunyuan-7b": ("hunyuan_v1_dense", _sizes(4096, 14336, 32, 32, 8, head_dim=128, vocab_size=128256) | ROPE),
    "hunyuan-a13b": ("hunyuan_v1_moe", _sizes(4096, 3072, 32, 32, 8, head_dim=128, vocab_size=128167) | HUNYUAN),
    "ministral-8b": ("ministral", _sizes(4096, 12288, 36, 32, 8, head_dim=128, vocab_size=131072) | ROPE),
    "gpt-sw3": ("gpt-sw3", {}),
    "deepseek-v4-flash": ("deepseek_v4", {}),
    "deepseek-v4-windows": (
        "deepseek_v4",
        {"num_hidden_layers": 4, "layer_types": ["sliding_attention", *V4_KINDS, "sliding_attention"], "hc_mult": 2}
        | {"compress_rates": {V4_KINDS[0]: 8, V4_KINDS[1]: 64}, "o_groups": 16, "index_n_heads": 32},
    ),
    "gemma-3n-e4b-text": ("gemma3n_text", {}),
    "gemma-3n-e2b-text": (
        "gemma3n_text",
        {"num_hidden_layers": 30, "intermediate_size": 8192, "num_kv_shared_layers": 10},
    ),
    "gemma-3n-other": (
        "gemma3n_text",
        {"num_hidden_layers": 5, "altup_num_inputs": 3, "laurel_rank": 32, "num_kv_shared_layers": 0},
    ),
    "gemma-4-e2b-text": (
        "gemma4_text",
        _sizes(1536, 6144, 35, 8, 1, num_kv_shared_layers=20, use_double_wide_mlp=True, attention_k_eq_v=False),
    ),
    "gemma-4-rows": ("gemma4_text", {}),
    "kimi-linear-48b-a3b": ("kimi_linear", {}),
    "kimi-linear-other": (
        "kimi_linear",
        {"q_lora_rank": 512, "linear_num_heads": 16, "linear_head_dim": 64, "linear_conv_kernel_dim": 3}
        | {"n_shared_experts": 2, "num_hidden_layers": 8},
    ),
    "minimax-text-01": (
        "minimax",
        _sizes(6144, 9216, 80, 64, 8, head_dim=128, num_local_experts=32, vocab_size=200064)
        | {"layer_types": (["linear_attention"] * 7 + ["full_attention"]) * 10},
    ),
    "lfm2-8b-a1b": ("lfm2_moe", {"num_hidden_layers": 24, "layer_types": ["conv", "conv", "full_attention"] * 8}),
    "lfm2-moe-biased": ("lfm2_moe", {"num_hidden_layers": 2, "layer_types": ["conv"] * 2, "conv_bias": True}),
    "rwkv-4-7b": ("rwkv", {}),
    "rwkv-4-other": ("rwkv", {"hidden_size": 768, "num_hidden_layers": 12, "attention_hidden_size": 512}),
    "xlstm-7b": ("xlstm", {}),
    "xlstm-biased": ("xlstm", {"use_bias": True, "num_hidden_layers": 2, "num_heads": 4, "v_dim_factor": 2.0}),
    "zamba2-2.7b": ("zamba2", {}),
    "zamba2-7b": (
        "zamba2",
        {"hidden_size": 3584, "num_hidden_layers": 81, "n_mamba_heads": 112, "mamba_ngroups": 2, "num_mem_blocks": 2}
        | {"layers_block_type": (["mamba"] * 5 + ["hybrid"]) * 13 + ["mamba"] * 3, "use_mem_rope": True},
    ),
    "zamba2-adapted": ("zamba2", {"use_shared_attention_adapter": True, "add_bias_linear": True, "num_mem_blocks": 3}),
    # the defaults of their classes
    "afmoe": ("afmoe", {}),
    "apertus": ("apertus", {}),
    "arcee": ("arcee", {}),
    "axk1": ("axk1", {}),
    "biogpt": ("biogpt", {}),
    "bitnet": ("bitnet", {}),
    "codegen": ("codegen", {}),
    "cohere2": ("cohere2", {}),
    "cohere2_moe": ("cohere2_moe", {}),
    "cwm": ("cwm", {}),
    "ernie4_5": ("ernie4_5", {}),
    "ernie4_5_moe": ("ernie4_5_moe", {}),
    "exaone4": ("exaone4", {}),
    "exaone_moe": ("exaone_moe", {}),
    "flex_olmo": ("flex_olmo", {}),
    "flint": ("flint", {}),
    "glm": ("glm", {}),
    "glm4_moe_lite": ("glm4_moe_lite", {}),
    "gpt_bigcode": ("gpt_bigcode", {}),
    "gpt_neox_japanese": ("gpt_neox_japanese", {}),
    "laguna": ("laguna", {}),
    "mimo_v2_flash": ("mimo_v2_flash", {}),
    "granite_swa": ("granite_swa", {}),
    "granitemoe": ("granitemoe", {}),
    "granitemoe_swa": ("granitemoe_swa", {}),
    "granitemoehybrid": ("granitemoehybrid", {}),
    "granitemoeshared": ("granitemoeshared", {}),
    "helium": ("helium", {}),
    "hy_v3": ("hy_v3", {}),
    "hyperclovax": ("hyperclovax", {}),
    "jais2": ("jais2", {}),
    "kolibri1": ("kolibri1", {}),
    "mellum": ("mellum", {}),
    "minicpm3": ("minicpm3", {}),
    "nanochat": ("nanochat", {}),
    "olmo": ("olmo", {}),
    "olmo3": ("olmo3", {}),
    "olmoe": ("olmoe", {}),
    "openai-gpt": ("openai-gpt", {}),
    "persimmon": ("persimmon", {}),
    "phimoe": ("phimoe", {}),
    "seed_oss": ("seed_oss", {}),
    "smollm3": ("smollm3", {}),
    "solar_open": ("solar_open", {}),
    "vaultgemma": ("vaultgemma", {}),
    "xglm": ("xglm", {}),
    "youtu": ("youtu", {}),
}

LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
WHISPER = {"d_model": 1280, "encoder_layers": 32, "decoder_layers": 32, "encoder_attention_heads": 20}
WHISPER |= {"decoder_attention_heads": 20, "encoder_ffn_dim": 5120, "decoder_ffn_dim": 5120, "num_mel_bins": 128}
XXL = {"d_model": 4096, "d_ff": 10240, "num_layers": 24, "num_heads": 64, "feed_forward_proj": "gated-gelu"}
SMALL_TALKER = _sizes(896, 4864, 24, 12, 4, embedding_size=3584, head_dim=128, vocab_size=8448)
OMNI = {
    "text_config": _sizes(2048, 768, 48, 32, 4, head_dim=128, vocab_size=152064),
    "vision_config": {"out_hidden_size": 2048}, "audio_config": {"output_dim": 2048},
}  # fmt: skip
OMNI_TALKER = {"text_config": {"shared_expert_intermediate_size": 768}, "spatial_merge_size": 2}
# name -> (class, model_type, keys that differ): heads other than a causal language model's, and encoders
CLASSES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert-large": ("BertForMaskedLM", "bert", LARGE),
    "bert-pretraining": ("BertForPreTraining", "bert", {}),
    "bert-embedder": ("BertModel", "bert", {}),
    "bert-classifier": ("BertForSequenceClassification", "bert", {"num_labels": 7}),
    "bert-tagger": ("BertForTokenClassification", "bert", {"num_labels": 9}),
    "roberta-large": ("RobertaForMaskedLM", "roberta", LARGE),
    "bge-m3": ("XLMRobertaModel", "xlm-roberta", LARGE | {"vocab_size": 250002, "max_position_embeddings": 8194}),
    "bge-reranker": ("XLMRobertaForSequenceClassification", "xlm-roberta", LARGE | {"num_labels": 1}),
    "camembert": ("CamembertForMaskedLM", "camembert", {}),
    "data2vec": ("Data2VecTextForMaskedLM", "data2vec-text", {}),
    "distilbert": ("DistilBertForSequenceClassification", "distilbert", {}),
    "electra": ("ElectraForPreTraining", "electra", {}),
    "electra-generator": ("ElectraForMaskedLM", "electra", {}),
    "electra-wide": ("ElectraForMaskedLM", "electra", {"embedding_size": 256, "hidden_size": 256}),
    "ernie": ("ErnieForMaskedLM", "ernie", {"use_task_id": True}),
    "eurobert": ("EuroBertForMaskedLM", "eurobert", {}),
    "eurobert-classifier": ("EuroBertForSequenceClassification", "eurobert", {}),
    "megatron-bert": ("MegatronBertForMaskedLM", "megatron-bert", {}),
    "modernbert": ("ModernBertForMaskedLM", "modernbert", {}),
    "modernbert-biased": (
        "ModernBertForSequenceClassification", "modernbert",
        {"norm_bias": True, "classifier_bias": True, "attention_bias": True, "mlp_bias": True},
    ),
    "mpnet": ("MPNetForMaskedLM", "mpnet", {}),
    "prelayernorm": ("RobertaPreLayerNormForMaskedLM", "roberta-prelayernorm", {}),
    "t5-xxl": ("T5ForConditionalGeneration", "t5", XXL),
    "t5-small": ("T5ForConditionalGeneration", "t5", {"tie_word_embeddings": False, "num_decoder_layers": 3}),
    "t5-text-encoder": ("T5EncoderModel", "t5", XXL),
    "mt5": ("MT5ForConditionalGeneration", "mt5", {}),
    "umt5": ("UMT5ForConditionalGeneration", "umt5", {}),
    "bart-large": ("BartForConditionalGeneration", "bart", {}),
    "mbart": ("MBartForConditionalGeneration", "mbart", {}),
    "pegasus": ("PegasusForConditionalGeneration", "pegasus", {}),
    "nllb": ("M2M100ForConditionalGeneration", "m2m_100", {}),
    "marian": ("MarianMTModel", "marian", {}),
    "blenderbot": ("BlenderbotForConditionalGeneration", "blenderbot", {}),
    "plbart": ("PLBartForConditionalGeneration", "plbart", {}),
    "whisper-large-v3": ("WhisperForConditionalGeneration", "whisper", WHISPER | {"vocab_size": 51866}),
    "whisper-tiny": ("WhisperForConditionalGeneration", "whisper", {}),
    "mamba-2.8b": ("MambaForCausalLM", "mamba", {"hidden_size": 2560, "num_hidden_layers": 64}),
    "falcon-mamba": ("FalconMambaForCausalLM", "falcon_mamba", {"use_bias": True}),
    "jamba": ("JambaForCausalLM", "jamba", {"mamba_proj_bias": True}),
    "jamba-dense": ("JambaForCausalLM", "jamba", {"num_experts": 1, "num_hidden_layers": 8}),
    "falcon-h1": ("FalconH1ForCausalLM", "falcon_h1", {"mamba_rms_norm": True, "mamba_proj_bias": True}),
    "falcon-h1-plain": ("FalconH1ForCausalLM", "falcon_h1", {"projectors_bias": True, "mlp_bias": True}),
    "lfm2": ("Lfm2ForCausalLM", "lfm2", {"layer_types": ["conv", "full_attention"] * 16, "conv_bias": True}),
    "lfm2-plain": ("Lfm2ForCausalLM", "lfm2", {"block_auto_adjust_ff_dim": False}),
    "mistral-small-4-119b": ("Mistral4ForCausalLM", "mistral4", {}),
    "mistral-4-biased": ("Mistral4ForCausalLM", "mistral4", {"attention_bias": True, "first_k_dense_replace": 2}),
    "glm-4.1v": ("Glm4vForConditionalGeneration", "glm4v", {}),
    "glm-4.1v-text": ("Glm4vTextModel", "glm4v_text", {}),
    "glm-4.6v": ("Glm46VForConditionalGeneration", "glm46v", {}),
    "glm-4.5v": ("Glm4vMoeForConditionalGeneration", "glm4v_moe", {"text_config": {"head_dim": 128}}),
    "glm-4.5v-text": ("Glm4vMoeTextModel", "glm4v_moe_text", {"head_dim": 128}),
    "internvl": ("InternVLForConditionalGeneration", "internvl", {"vision_config": {"attention_bias": True}}),
    "smolvlm": ("SmolVLMForConditionalGeneration", "smolvlm", {}),
    "idefics3": ("Idefics3ForConditionalGeneration", "idefics3", {}),
    "llava-next": ("LlavaNextForConditionalGeneration", "llava_next", {}),
    "llava-onevision": ("LlavaOnevisionForConditionalGeneration", "llava_onevision", {}),
    "paligemma": ("PaliGemmaForConditionalGeneration", "paligemma", {}),
    "qwen2-audio": ("Qwen2AudioForConditionalGeneration", "qwen2_audio", {}),
    "voxtral": ("VoxtralForConditionalGeneration", "voxtral", {}),
    "qwen2.5-omni": (
        "Qwen2_5OmniForConditionalGeneration", "qwen2_5_omni",
        {"thinker_config": {"vision_config": {"hidden_size": 1280}}, "talker_config": SMALL_TALKER},
    ),
    "qwen2.5-omni-thinker": ("Qwen2_5OmniThinkerForConditionalGeneration", "qwen2_5_omni_thinker", {}),
    "qwen3-omni": (
        "Qwen3OmniMoeForConditionalGeneration", "qwen3_omni_moe",
        {"thinker_config": OMNI, "talker_config": OMNI_TALKER},
    ),
    "qwen3-omni-thinker": ("Qwen3OmniMoeThinkerForConditionalGeneration", "qwen3_omni_moe_thinker", OMNI),
    "embedding-gemma": ("Gemma3TextModel", "gemma3_text", {"use_bidirectional_attention": True}),
    "llama-reward": ("LlamaForSequenceClassification", "llama", {"num_hidden_layers": 2, "num_labels": 1}),
    "qwen3-embedding": ("Qwen3Model", "qwen3", {"num_hidden_layers": 2}),
    "qwen2-tagger": ("Qwen2ForTokenClassification", "qwen2", {"num_hidden_layers": 2}),
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_the_class_that_was_saved_decides_the_head(name: str) -> None:
    own, kind, changes = CLASSES[name]
    config = transformers.AutoConfig.for_model(kind, **changes)
    with torch.device("meta"):
        built = getattr(transformers, own)(config)
    theirs = sum(tensor.numel() for tensor in built.parameters() if tensor.requires_grad)
    for diff in (False, True) if "text_config" not in config.to_dict() else (False,):
        saved = {"model_type": kind, **json.loads(config.to_json_string(use_diff=diff)), "architectures": [own]}
        if "num_labels" in changes:
            saved["num_labels"] = changes["num_labels"]
        assert count(from_config(saved)).total == theirs


@cache
def _config(name: str) -> Any:
    kind, changes = CASES[name]
    return transformers.AutoConfig.for_model(kind, **json.loads(json.dumps(changes)))


@cache
def _built(name: str) -> tuple[int, int]:
    """Parameters of the model transformers builds: all of them, and those that one token passes through."""
    config = _config(name)
    seeing = "text_config" in config.to_dict()
    auto = transformers.AutoModelForImageTextToText if seeing else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        built = auto.from_config(config)
    text = config.get_text_config()
    topk = getattr(text, "num_experts_per_tok", None) or getattr(text, "top_k_experts", None) or 0
    total = active = 0
    for path, tensor in built.named_parameters():  # a tied tensor comes once
        if not tensor.requires_grad:
            continue  # a router's balancing bias
        total += tensor.numel()
        routed = "experts." in path and "shared" not in path
        active += tensor.numel() // tensor.shape[0] * topk if routed else tensor.numel()
    return total, active


def _saved(name: str, diff: bool) -> dict[str, Any]:
    """The config as transformers saves it: every key, or only those that differ from the defaults."""
    return {"model_type": CASES[name][0], **json.loads(_config(name).to_json_string(use_diff=diff))}


@pytest.mark.parametrize("name", CASES)
def test_count_equals_the_built_model(name: str) -> None:
    total, active = _built(name)
    parts = count(from_config(_saved(name, diff=False), id=name))
    assert parts.total == total
    assert parts.active == active


@pytest.mark.parametrize("name", CASES)
def test_left_out_keys_take_the_defaults_of_transformers(name: str) -> None:
    assert from_config(_saved(name, diff=True), id=name) == from_config(_saved(name, diff=False), id=name)


def test_kimi_k2_by_its_own_name() -> None:
    saved = _saved("kimi-k2", diff=False) | {"model_type": "kimi_k2"}
    assert count(from_config(saved)).total == _built("kimi-k2")[0]


@pytest.mark.parametrize("name", ["llama-3-8b", "mamba2-2.7b", "qwen3-vl-8b", "gemma-4-experts"])
def test_a_folder_written_by_save_pretrained_is_read(name: str, tmp_path: Path) -> None:
    _config(name).save_pretrained(tmp_path / name)
    spec = read_config(tmp_path / name)
    assert spec.id == name
    assert count(spec).total == _built(name)[0]


@pytest.mark.parametrize("changes", [{}, {"num_layers": 2, "zero_expert_num": 64, "q_lora_rank": 512}])
def test_longcat_is_what_transformers_builds_without_weights_that_nothing_reads(changes: dict[str, Any]) -> None:
    config = transformers.AutoConfig.for_model("longcat_flash", **changes)
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(config)
    theirs = sum(tensor.numel() for tensor in built.parameters() if tensor.requires_grad)
    # transformers holds up and gate matrices of experts that hand a token on as it is; published weights have none
    unread = config.num_layers * config.zero_expert_num * 2 * config.expert_ffn_hidden_size * config.hidden_size
    for diff in (False, True):
        saved = {"model_type": "longcat_flash", **json.loads(config.to_json_string(use_diff=diff))}
        assert count(from_config(saved)).total == theirs - unread


# published by their makers with code of their own: read by general knowledge of their config.json
PUBLISHED = {"Dream", "llada", "minimax_m1", "minimax_text_01"}


def test_every_reader_is_proven() -> None:
    proven = (
        {kind for kind, _ in CASES.values()} | {kind for _, kind, _ in CLASSES.values()} | {"kimi_k2", "longcat_flash"}
    )
    nested = {"qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text", "qwen3_5_moe_text"}
    assert set(READERS) == proven | nested | PUBLISHED


def _config_class(kind: str) -> Any:
    """The class of a config; parts of an omni model have no type of their own."""
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if kind in known:
        return known[kind]
    two, three = transformers.models.qwen2_5_omni, transformers.models.qwen3_omni_moe
    folders = two.configuration_qwen2_5_omni, three.configuration_qwen3_omni_moe
    for found in (one for folder in folders for one in vars(folder).values() if isinstance(one, type)):
        if getattr(found, "model_type", None) == kind:
            return found
    return getattr(folders[1], {"talker": "Qwen3OmniMoeTalkerConfig"}.get(kind[15:], "Qwen3OmniMoeCode2WavConfig"))


def test_defaults_are_those_of_transformers() -> None:
    with (Path(hf.__file__).parent / "defaults.toml").open("rb") as stream:
        ours = tomllib.load(stream)
    for kind, table in ours.items():
        if kind[0].isupper():
            continue  # diffusers names a config by its class
        theirs = {field.name: field.default for field in dataclasses.fields(_config_class(kind))}
        for key, value in table.items():
            default = theirs[key]
            assert (list(default) if isinstance(default, tuple) else default) == value, f"{kind}.{key}"
