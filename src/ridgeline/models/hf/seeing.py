"""Turn configs of further models that see images into ModelSpecs: LLaVA-NeXT, InternVL, SmolVLM, GLM-4V, PaliGemma."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from ridgeline.models.hf.config import Config
from ridgeline.models.hf.multimodal import chosen, joined, llava, text_of, vision_of
from ridgeline.models.hf.parts import LAYER, RMS, divide
from ridgeline.models.sizing import Sizing
from ridgeline.models.spec import Attention, Block, Mlp, ModelSpec, Vision

INTERN_TILES = 12  # most tiles that InternVL's processor cuts
NEXT_GRIDS = (336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008)  # canvases where a file lists none
ONEVISION_GRIDS = tuple((384 * high, 384 * wide) for high in range(1, 7) for wide in range(1, 7))
SPLIT_TILES = 4  # tiles of the longer side, as Idefics 3's and SmolVLM's processors have it


def llava_next(cfg: Config) -> ModelSpec:
    """LLaVA-NeXT, LLaVA-OneVision: LLaVA with a vector that ends rows of tiles; frames of OneVision's video are pooled
    two by two."""
    cfg.ignore("use_image_newline_parameter")
    onevision = cfg.word("model_type") == "llava_onevision"
    grids = cfg.pairs("image_grid_pinpoints") or (ONEVISION_GRIDS if onevision else NEXT_GRIDS)
    sizing = Sizing(rule="anyres", grids=grids, most=_most_tiles(cfg) if onevision else 0)
    cfg.ignore("vision_aspect_ratio")
    found = llava(cfg)
    vision = found.vision
    if vision is None:
        return found
    video = Sizing(rule="square", merge=2, marks=1) if onevision else None
    around = vision.other_params + found.hidden
    return replace(found, vision=replace(vision, other_params=around, sizing=sizing, video=video))


def _most_tiles(cfg: Config) -> int:
    """`anyres_max_9`: tiles whose tokens are shrunk to those of nine."""
    said = cfg.word("vision_aspect_ratio", "anyres_max_9")
    most = said.removeprefix("anyres_max_")
    if not (most.isdecimal() and len(most) < 5 and int(most)):
        cfg.bad("vision_aspect_ratio", said, "anyres_max_ and a number of tiles")
        return 0
    return int(most)


def paligemma(cfg: Config) -> ModelSpec:
    """PaliGemma: SigLIP and one matrix before Gemma, whose prompt sees both ways; priced as if it were causal."""
    cfg.ignore("projection_dim", "hidden_size", "vocab_size")
    text, vision = text_of(cfg, "gemma", fixed=False), chosen(cfg, "siglip_vision_model")
    below = cfg.child("text_config")
    if below is not None:
        below.ignore("num_image_tokens")
    projector = vision.hidden * text.hidden + text.hidden
    return joined(cfg, text, replace(vision, projector_params=projector), tied=True)


def _intern_tower(cfg: Config) -> Vision:
    """InternViT: a class token, learned positions, layer scales; biases by switch."""
    cfg.ignore("use_mask_token", "use_mean_pooling", "norm_type", "layer_scale_init_value", "hidden_dropout_prob")
    cfg.only("use_mask_token", False)
    hidden, patch, image = cfg.count("hidden_size"), cfg.square("patch_size"), cfg.square("image_size")
    count = cfg.count("num_attention_heads")
    size = divide(cfg, "num_attention_heads", hidden, count)
    normed: Literal["full", "none"] = "full" if cfg.flag("use_qk_norm", False) else "none"
    attention = Attention(
        heads=count, kv_heads=count, head_dim=size, qkv_bias=cfg.flag("attention_bias"), out_bias=True,
        positions="learned", qk_norm=normed,
    )  # fmt: skip
    ffn = Mlp(hidden=cfg.count("intermediate_size"), gated=False, bias=True, activation=cfg.word("hidden_act"))
    patches = max(1, image // patch) ** 2
    rows = cfg.flag("use_absolute_position_embeddings", True) * (patches + 1) * hidden
    around = hidden + cfg.count("num_channels") * patch**2 * hidden + hidden + rows
    norm = replace(LAYER) if cfg.word("norm_type", "layer_norm") == "layer_norm" else RMS
    pooled = 0 if cfg.flag("use_mean_pooling", True) else norm.params(hidden)
    return Vision(
        hidden=hidden, block=Block(mixer=attention, ffn=ffn, norm=norm, extra=2 * hidden), layers=cfg.layers(),
        patch=patch, image=image, tokens=patches, other_params=around + pooled,
        inputs=cfg.count("num_channels") * patch**2,
    )  # fmt: skip


def internvl(cfg: Config) -> ModelSpec:
    """InternVL 3: InternViT, patches shuffled into wider tokens, a norm and two linear layers."""
    cfg.ignore("projector_hidden_act", "vision_feature_layer", "vision_feature_select_strategy")
    cfg.only("downsample_ratio", 0.5)
    text, vision = text_of(cfg, "qwen2", fixed=False), vision_of(cfg, _intern_tower, "internvl_vision")
    wide = 4 * vision.hidden
    projector = LAYER.params(wide) + wide * text.hidden + text.hidden + text.hidden**2 + text.hidden
    vision = replace(
        vision, tokens=max(1, vision.tokens // 4), projector_params=projector,
        sizing=Sizing(rule="canvas", merge=2, least=1, most=INTERN_TILES, marks=2),
        video=Sizing(rule="square", merge=2),
    )  # fmt: skip
    return joined(cfg, text, vision, tied=True)


def _smol_tower(cfg: Config) -> Vision:
    """SigLIP's layers as Idefics 3 has them: learned positions, a norm behind the layers."""
    cfg.ignore("max_num_images", "size", "tie_word_embeddings", "use_base_siglip", "vocab_size")
    hidden, patch, image = cfg.count("hidden_size"), cfg.square("patch_size"), cfg.square("image_size")
    count = cfg.count("num_attention_heads")
    size = divide(cfg, "num_attention_heads", hidden, count)
    attention = Attention(heads=count, kv_heads=count, head_dim=size, qkv_bias=True, out_bias=True, positions="learned")
    ffn = Mlp(hidden=cfg.count("intermediate_size"), gated=False, bias=True, activation=cfg.word("hidden_act"))
    patches = max(1, image // patch) ** 2
    around = cfg.count("num_channels") * patch**2 * hidden + hidden + patches * hidden + LAYER.params(hidden)
    return Vision(
        hidden=hidden, block=Block(mixer=attention, ffn=ffn, norm=LAYER), layers=cfg.layers(), patch=patch,
        image=image, tokens=patches, other_params=around, inputs=cfg.count("num_channels") * patch**2,
    )  # fmt: skip


def smolvlm(cfg: Config) -> ModelSpec:
    """SmolVLM, Idefics 3: patches shuffled into wider tokens, one matrix."""
    text, vision = text_of(cfg, "llama", fixed=False), vision_of(cfg, _smol_tower, f"{cfg.word('model_type')}_vision")
    scale = cfg.count("scale_factor")
    projector = scale**2 * vision.hidden * text.hidden
    vision = replace(
        vision, tokens=max(1, vision.tokens // scale**2), projector_params=projector,
        sizing=Sizing(rule="split", merge=scale, most=SPLIT_TILES * vision.image, marks=3),
        video=Sizing(rule="square", merge=scale),
    )  # fmt: skip
    return joined(cfg, text, vision, tied=False)


def _glm_tower(cfg: Config) -> Vision:
    """GLM-4V: gated mlps, a convolution that merges patches, a gated merger."""
    hidden, patch, image = cfg.count("hidden_size"), cfg.square("patch_size"), cfg.square("image_size")
    count, merge, out = cfg.count("num_heads"), cfg.count("spatial_merge_size"), cfg.count("out_hidden_size")
    bias = cfg.flag("attention_bias")
    size = divide(cfg, "num_heads", hidden, count)
    attention = Attention(heads=count, kv_heads=count, head_dim=size, qkv_bias=bias)
    inner, patches = cfg.count("intermediate_size"), max(1, image // patch) ** 2
    ffn = Mlp(hidden=cfg.count(("out_hidden_size",)), activation=cfg.word("hidden_act"))
    frames = cfg.square("temporal_patch_size")
    inputs = cfg.count(("in_channels", "in_chans")) * frames * patch**2
    area = Sizing(rule="area", merge=merge, least=112 * 112, most=28 * 28 * 15000, frames=frames, whole=True)
    merger = out * hidden * merge**2 + out + out**2 + LAYER.params(out) + 3 * out * inner
    return Vision(
        hidden=hidden, block=Block(mixer=attention, ffn=ffn), layers=cfg.layers("depth"), patch=patch, image=image,
        tokens=max(1, patches // merge**2), inputs=inputs,
        other_params=inputs * hidden + hidden + patches * hidden + 2 * RMS.params(hidden), projector_params=merger,
        sizing=area, video=replace(area, most=28 * 28 * 2 * 30000),
    )  # fmt: skip


def glm4v(cfg: Config) -> ModelSpec:
    """GLM-4.1V, GLM-4.6V: GLM 4's text, or that of GLM 4.5 with experts, with its own encoder."""
    experts = cfg.word("model_type") == "glm4v_moe"
    text = text_of(cfg, "glm4v_moe_text" if experts else "glm4v_text", fixed=not cfg.has("text_config"))
    vision = vision_of(cfg, _glm_tower, "glm4v_moe_vision" if experts else "glm4v_vision")
    return joined(cfg, text, vision, tied=False)
