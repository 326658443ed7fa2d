"""Which reader turns a language model's config into a ModelSpec, by its `model_type`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ridgeline.models.hf import classic, decoders, hybrid, latent
from ridgeline.models.hf.parts import Reader

TEXT: Mapping[str, Reader] = MappingProxyType(
    {
        **decoders.decoder_readers(),
        "axk1": latent.axk1,
        "bamba": hybrid.bamba,
        "biogpt": classic.biogpt,
        "bloom": classic.bloom,
        "codegen": classic.gptj,
        "deepseek_v2": latent.deepseek,
        "deepseek_v3": latent.deepseek,
        "deepseek_v32": latent.deepseek_v32,
        "deepseek_v4": latent.deepseek_v4,
        "falcon": classic.falcon,
        "falcon_h1": hybrid.falcon_h1,
        "falcon_mamba": hybrid.mamba,
        "gemma3n_text": decoders.gemma3n,
        "gemma4_text": decoders.gemma4,
        "glm4_moe_lite": latent.deepseek,
        "glm_moe_dsa": latent.glm_moe_dsa,
        "gpt-sw3": classic.gpt2,
        "gpt2": classic.gpt2,
        "gpt_bigcode": classic.gpt_bigcode,
        "gpt_neo": classic.gpt_neo,
        "gpt_neox": classic.gpt_neox,
        "gpt_neox_japanese": classic.gpt_neox_japanese,
        "gptj": classic.gptj,
        "granitemoehybrid": hybrid.granitemoehybrid,
        "jamba": hybrid.jamba,
        "kimi_k2": latent.deepseek,
        "kimi_linear": hybrid.kimi_linear,
        "lfm2": hybrid.lfm2,
        "lfm2_moe": hybrid.lfm2_moe,
        "longcat_flash": latent.longcat_flash,
        "mamba": hybrid.mamba,
        "mamba2": hybrid.mamba2,
        "minicpm3": latent.plain_latent,
        "minimax": hybrid.minimax,
        "minimax_m1": hybrid.minimax,
        "minimax_text_01": hybrid.minimax,
        "mistral4": latent.deepseek,
        "mpt": classic.mpt,
        "nemotron_h": hybrid.nemotron_h,
        "openai-gpt": classic.openai_gpt,
        "opt": classic.opt,
        "qwen3_5_moe_text": hybrid.qwen3_5_moe,
        "qwen3_5_text": hybrid.qwen3_5,
        "qwen3_next": hybrid.qwen3_next,
        "rwkv": hybrid.rwkv,
        "xglm": classic.xglm,
        "xlstm": hybrid.xlstm,
        "youtu": latent.plain_latent,
        "zamba2": hybrid.zamba2,
    }
)
