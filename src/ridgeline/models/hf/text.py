"""Which reader turns a language model's config into a ModelSpec, by its `model_type`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ridgeline.models.hf import classic, dense, hybrid, latent, moe
from ridgeline.models.hf.parts import Reader

TEXT: Mapping[str, Reader] = MappingProxyType(
    {
        "bamba": hybrid.bamba,
        "bloom": classic.bloom,
        "cohere": dense.cohere,
        "deepseek_v2": latent.deepseek,
        "deepseek_v3": latent.deepseek,
        "deepseek_v32": latent.deepseek_v32,
        "falcon": classic.falcon,
        "gemma": dense.gemma,
        "gemma2": dense.gemma2,
        "gemma3_text": dense.gemma3,
        "gemma4_text": dense.gemma4,
        "glm4": dense.glm4,
        "glm4_moe": moe.glm4_moe,
        "glm_moe_dsa": latent.glm_moe_dsa,
        "gpt2": classic.gpt2,
        "gpt_neo": classic.gpt_neo,
        "gpt_neox": classic.gpt_neox,
        "gpt_oss": moe.gpt_oss,
        "gptj": classic.gptj,
        "granite": dense.llama,
        "kimi_k2": latent.deepseek,
        "llama": dense.llama,
        "llama4_text": moe.llama4,
        "mamba2": hybrid.mamba2,
        "minimax_m2": moe.minimax_m2,
        "ministral3": dense.mistral,
        "mistral": dense.mistral,
        "mixtral": moe.mixtral,
        "mpt": classic.mpt,
        "nemotron": dense.nemotron,
        "nemotron_h": hybrid.nemotron_h,
        "olmo2": dense.olmo2,
        "opt": classic.opt,
        "phi": dense.phi,
        "phi3": dense.phi3,
        "qwen2": dense.qwen2,
        "qwen2_5_vl_text": dense.qwen2,
        "qwen2_moe": moe.qwen2_moe,
        "qwen2_vl_text": dense.qwen2,
        "qwen3": dense.qwen3,
        "qwen3_5_moe_text": hybrid.qwen3_5_moe,
        "qwen3_5_text": hybrid.qwen3_5,
        "qwen3_moe": moe.qwen3_moe,
        "qwen3_next": hybrid.qwen3_next,
        "qwen3_vl_moe_text": moe.qwen3_moe,
        "qwen3_vl_text": dense.qwen3,
        "stablelm": dense.stablelm,
        "starcoder2": dense.starcoder2,
    }
)
