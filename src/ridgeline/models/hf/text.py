"""Which reader turns a language model's config into a ModelSpec, by its `model_type`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ridgeline.models.hf import classic, gemma, hybrid, latent, recurrent
from ridgeline.models.hf.decoders import decoder_readers
from ridgeline.models.hf.parts import Reader

TEXT: Mapping[str, Reader] = MappingProxyType(
    {
        **decoder_readers(),
        "axk1": latent.axk1,
        "bamba": hybrid.bamba,
        "biogpt": classic.biogpt,
        "bloom": classic.bloom,
        "codegen": classic.codegen,
        "deepseek_v2": latent.deepseek,
        "deepseek_v3": latent.deepseek,
        "deepseek_v32": latent.deepseek_v32,
        "deepseek_v4": latent.deepseek_v4,
        "falcon": classic.falcon,
        "falcon_h1": recurrent.falcon_h1,
        "falcon_mamba": recurrent.mamba,
        "gemma3n_text": gemma.gemma3n,
        "gemma4_text": gemma.gemma4,
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
        "jamba": recurrent.jamba,
        "kimi_k2": latent.deepseek,
        "kimi_linear": recurrent.kimi_linear,
        "lfm2": recurrent.lfm2,
        "lfm2_moe": recurrent.lfm2_moe,
        "longcat_flash": latent.longcat_flash,
        "mamba": recurrent.mamba,
        "mamba2": hybrid.mamba2,
        "minicpm3": latent.plain_latent,
        "minimax": recurrent.minimax,
        "minimax_m1": recurrent.minimax,
        "minimax_text_01": recurrent.minimax,
        "mistral4": latent.deepseek,
        "mpt": classic.mpt,
        "nemotron_h": hybrid.nemotron_h,
        "openai-gpt": classic.openai_gpt,
        "opt": classic.opt,
        "qwen3_5_moe_text": hybrid.qwen3_5_moe,
        "qwen3_5_text": hybrid.qwen3_5,
        "qwen3_next": hybrid.qwen3_next,
        "rwkv": recurrent.rwkv,
        "xglm": classic.xglm,
        "xlstm": recurrent.xlstm,
        "youtu": latent.plain_latent,
        "zamba2": hybrid.zamba2,
    }
)
