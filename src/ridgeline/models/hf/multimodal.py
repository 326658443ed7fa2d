"""Turn configs of models that see images into ModelSpecs: a text config, a vision config and what joins them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from ridgeline.core.errors import near
from ridgeline.models.hf.config import Config
from ridgeline.models.hf.parts import Reader, defaults
from ridgeline.models.hf.text import TEXT
from ridgeline.models.hf.vision import TOWERS, Tower, gemma4, kimi, llama4, qwen2_5_vl, qwen2_vl, qwen3_vl
from ridgeline.models.spec import ModelSpec, Vision


def text_of(cfg: Config, usual: str, fixed: bool = True) -> ModelSpec:
    """The language model in `text_config`; its own model_type chooses the reader unless the family fixes it."""
    raw = cfg.data.get("text_config")
    named = raw.get("model_type") if isinstance(raw, Mapping) else None
    kind = usual if fixed or named is None else named
    if not isinstance(kind, str) or kind not in TEXT:
        close = near(kind, TEXT) if isinstance(kind, str) else []
        cfg.bad("text_config.model_type", kind, f"one of {', '.join(close or sorted(TEXT))}")
        kind = usual
    inner = cfg.child("text_config", defaults(kind)) or cfg.adopt("text_config", {}, defaults(kind))
    if not fixed and raw is None:
        cfg.bad("text_config", None, "the language model's own keys", "missing key 'text_config': add it")
    return TEXT[kind](inner)


def vision_of(cfg: Config, tower: Tower, usual: str) -> Vision:
    """The encoder in `vision_config`."""
    inner = cfg.child("vision_config", defaults(usual)) or cfg.adopt("vision_config", {}, defaults(usual))
    inner.ignore("model_type")
    return tower(inner)


def chosen(cfg: Config, usual: str) -> Vision:
    """The encoder in `vision_config`, of the kind that its model_type says."""
    raw = cfg.data.get("vision_config")
    kind = raw.get("model_type", usual) if isinstance(raw, Mapping) else usual
    if raw is None:
        cfg.bad("vision_config", None, "the encoder's own keys", "missing key 'vision_config': add it")
    if not isinstance(kind, str) or kind not in TOWERS:
        cfg.bad("vision_config.model_type", kind, f"one of {', '.join(TOWERS)}")
        kind = usual
    return vision_of(cfg, TOWERS[kind], kind)


def joined(cfg: Config, text: ModelSpec, vision: Vision, tied: bool | None = None) -> ModelSpec:
    """Text and vision together; the top level's `tie_word_embeddings` wins over the text config's."""
    own = text.embedding.tied if tied is None else tied
    return replace(text, vision=vision, embedding=replace(text.embedding, tied=cfg.flag("tie_word_embeddings", own)))


def _either(cfg: Config, text: ModelSpec, vision: Vision) -> ModelSpec:
    """Text and vision together; the head is tied when either level says so."""
    tied = cfg.flag("tie_word_embeddings", False) or text.embedding.tied
    return replace(text, vision=vision, embedding=replace(text.embedding, tied=tied))


def _says_tied(cfg: Config, usual: bool) -> bool:
    """What the text config itself says about tying, if it does."""
    raw = cfg.data.get("text_config")
    said = raw.get("tie_word_embeddings") if isinstance(raw, Mapping) else None
    return said if isinstance(said, bool) else usual


def _features(cfg: Config) -> int:
    """Encoder layers whose outputs the projector reads side by side: one unless `vision_feature_layer` lists more."""
    value = cfg.data.get("vision_feature_layer")
    cfg.ignore("vision_feature_layer", "projector_hidden_act")
    if value is None or type(value) is int:
        return 1
    if isinstance(value, list) and 0 < len(value) <= 64 and all(type(item) is int for item in value):
        return len(value)
    cfg.bad("vision_feature_layer", value, "a layer or a short list of layers")
    return 1


def llava(cfg: Config) -> ModelSpec:
    """LLaVA 1.5: CLIP, two linear layers, and any language model."""
    text, vision = text_of(cfg, "llama", fixed=False), chosen(cfg, "clip_vision_model")
    cfg.only("vision_feature_select_strategy", "default", "full")
    cfg.ignore("vocab_size")  # of the text config, repeated in old files
    below = cfg.data.get("vision_config")
    classed = not isinstance(below, Mapping) or below.get("model_type", "clip_vision_model") == "clip_vision_model"
    whole = cfg.word("vision_feature_select_strategy", "default") == "full" and classed  # the class token, too
    wide, bias = text.hidden, cfg.flag("multimodal_projector_bias", True)
    projector = vision.hidden * _features(cfg) * wide + wide * wide + 2 * wide * bias
    vision = replace(vision, projector_params=projector, tokens=vision.tokens + whole)
    return _either(cfg, text, vision)


def mistral3(cfg: Config) -> ModelSpec:
    """Mistral Small 3.1 and later: Pixtral's encoder, patches merged two by two, two linear layers."""
    text, vision = text_of(cfg, "mistral", fixed=False), chosen(cfg, "pixtral")
    merge, bias = cfg.count("spatial_merge_size", 2), cfg.flag("multimodal_projector_bias", False)
    seen, wide = vision.hidden, text.hidden
    merger = seen + seen * seen * merge**2
    projector = merger + seen * _features(cfg) * wide + wide * wide + 2 * wide * bias
    vision = replace(
        vision, projector_params=projector, tokens=max(1, vision.tokens // merge**2),
        sizing=replace(vision.sizing, merge=merge),
    )  # fmt: skip
    return joined(cfg, text, vision)


def gemma3(cfg: Config) -> ModelSpec:
    """Gemma 3: SigLIP, pooled to a fixed number of tokens, and one matrix."""
    text, vision = text_of(cfg, "gemma3_text"), chosen(cfg, "siglip_vision_model")
    projector = vision.hidden * text.hidden + vision.hidden
    tokens = cfg.count("mm_tokens_per_image", 256)
    pooled = max(1, math.isqrt(vision.patches) // max(1, math.isqrt(tokens)))
    vision = replace(
        vision, projector_params=projector, tokens=tokens, sizing=replace(vision.sizing, merge=pooled)
    )  # fmt: skip
    return joined(cfg, text, vision, tied=_says_tied(cfg, True))


def gemma4_seeing(cfg: Config) -> ModelSpec:
    """Gemma 4 with images: its own encoder and one matrix. Sound is refused."""
    cfg.ignore("vision_soft_tokens_per_image")
    if cfg.has("audio_config"):
        cfg.bad("audio_config", cfg.data["audio_config"], "nothing", "sound encoders are not described yet")
    cfg.ignore("audio_config")
    text = text_of(cfg, "gemma4_text")
    if not cfg.has("vision_config"):
        return replace(text, embedding=replace(text.embedding, tied=cfg.flag("tie_word_embeddings", True)))
    vision = vision_of(cfg, gemma4, "gemma4_vision")
    vision = replace(vision, projector_params=vision.hidden * text.hidden)
    return joined(cfg, text, vision, tied=_says_tied(cfg, True))


def llama4_seeing(cfg: Config) -> ModelSpec:
    """Llama 4 with images: the text config alone says whether the head is tied."""
    cfg.ignore("tie_word_embeddings")
    text, vision = text_of(cfg, "llama4_text"), vision_of(cfg, llama4, "llama4_vision_model")
    raw = cfg.child("vision_config", defaults("llama4_vision_model"))
    wide = raw.count("vision_output_dim") if raw else int(defaults("llama4_vision_model")["vision_output_dim"])
    return replace(text, vision=replace(vision, projector_params=vision.projector_params + wide * text.hidden))


def kimi_k25(cfg: Config) -> ModelSpec:
    """Kimi K2.5: Kimi K2 with its own encoder and a projector of two linear layers."""
    cfg.ignore("projection_layer_norm_eps", "use_unified_vision_chunk", "video_placeholder")
    text, vision = text_of(cfg, "deepseek_v3", fixed=False), vision_of(cfg, kimi, "kimi_k25_vision")
    if cfg.count("projection_hidden_size", vision.hidden) != vision.hidden:
        cfg.clash(
            "projection_hidden_size", cfg.count("projection_hidden_size"), f"the encoder's width, {vision.hidden}"
        )
    raw = cfg.child("vision_config", defaults("kimi_k25_vision"))
    merge = raw.square("merge_kernel_size") if raw else 2
    last = merge**2 * vision.hidden * text.hidden + text.hidden
    return joined(cfg, text, replace(vision, projector_params=vision.projector_params + last))


def _qwen(usual: str, tower: Tower, seen: str) -> Reader:
    """A Qwen family with images: nested configs."""

    def read(cfg: Config) -> ModelSpec:
        cfg.only("language_model_only", False)
        text, vision = text_of(cfg, usual), vision_of(cfg, tower, seen)
        return joined(cfg, text, vision, tied=_says_tied(cfg, False))

    return read


def _qwen2(usual: str, tower: Tower, seen: str) -> Reader:
    """Qwen2-VL and 2.5-VL: nested configs, or the text keys at the top level as first published."""

    def read(cfg: Config) -> ModelSpec:
        vision = vision_of(cfg, tower, seen)
        if not cfg.has("text_config"):
            text = TEXT[usual](cfg.flattened(("vision_config", "text_config"), defaults(usual)))
            return replace(text, vision=vision)
        return _either(cfg, text_of(cfg, usual), vision)

    return read


MULTIMODAL: Mapping[str, Reader] = MappingProxyType(
    {
        "gemma3": gemma3,
        "gemma4": gemma4_seeing,
        "kimi_k25": kimi_k25,
        "llama4": llama4_seeing,
        "llava": llava,
        "mistral3": mistral3,
        "qwen2_5_vl": _qwen2("qwen2_5_vl_text", qwen2_5_vl, "qwen2_5_vl_vision"),
        "qwen2_vl": _qwen2("qwen2_vl_text", qwen2_vl, "qwen2_vl_vision"),
        "qwen3_5": _qwen("qwen3_5_text", qwen3_vl, "qwen3_5_vision"),
        "qwen3_5_moe": _qwen("qwen3_5_moe_text", qwen3_vl, "qwen3_5_vision"),
        "qwen3_vl": _qwen("qwen3_vl_text", qwen3_vl, "qwen3_vl_vision"),
        "qwen3_vl_moe": _qwen("qwen3_vl_moe_text", qwen3_vl, "qwen3_vl_vision"),
    }
)
