"""Turn the vision part of a config into an image encoder: its layers, and the parameters around them.

A tower that takes images of any size is described at the size its position table was made for, or at `ANY_IMAGE` pixels
a side when it has no such table; `Vision.image` says which. How images of other sizes are cut (`Vision.sizing`) is in
no config.json: the rules and limits here are those of the processors that are published beside these models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from ridgeline.models.hf.config import Config, Keys
from ridgeline.models.hf.parts import LAYER, RMS, divide
from ridgeline.models.sizing import Sizing
from ridgeline.models.spec import Attention, Block, Mlp, Vision

ANY_IMAGE = 448  # pixels a side; a multiple of every patch and merge size in use
PIXELS_2 = (56 * 56, 12_845_056), (128 * 28 * 28, 768 * 28 * 28)  # of an image, of a frame: Qwen2-VL, Qwen2.5-VL
PIXELS_3 = (256 * 256, 4096 * 4096), (4096, 24576 * 1024)  # of an image, of a whole video: Qwen3-VL and later
TILES_LLAMA = 16
HEADS = ("num_attention_heads", "num_heads", "vt_num_attention_heads")  # one idea, three names
Tower = Callable[[Config], Vision]


def _heads(cfg: Config, hidden: int, bias: bool = True, window: int = 0) -> Attention:
    """An encoder's attention: all heads have keys and values of their own."""
    count = cfg.count(HEADS)
    size = divide(cfg, "num_attention_heads", hidden, count)
    return Attention(heads=count, kv_heads=count, head_dim=size, qkv_bias=bias, out_bias=bias, window=window)


def _block(cfg: Config, hidden: int, ffn: Mlp) -> Block:
    """An encoder's usual layer: layer norms and biases."""
    return Block(mixer=_heads(cfg, hidden), ffn=ffn, norm=LAYER)


def _plain(cfg: Config, key: Keys = "intermediate_size") -> Mlp:
    return Mlp(hidden=cfg.count(key), gated=False, bias=True, activation=cfg.word("hidden_act"))


def _patches(cfg: Config, image: int, patch: int) -> int:
    """Patches of one image."""
    if image < patch:
        cfg.clash("image_size", image, f"at least one patch of {patch}")
    return max(1, image // patch) ** 2


SQUARE = Sizing(rule="square")


def clip(cfg: Config) -> Vision:
    """CLIP: a class token, learned positions, a norm before and after the layers."""
    cfg.ignore("projection_dim", "vocab_size")
    hidden, patch, image = cfg.count("hidden_size"), cfg.square("patch_size"), cfg.square("image_size")
    tokens = _patches(cfg, image, patch)
    rows = hidden + cfg.count("num_channels") * patch**2 * hidden + (tokens + 1) * hidden
    return Vision(
        hidden=hidden,
        block=_block(cfg, hidden, _plain(cfg)),
        layers=cfg.layers(),
        patch=patch,
        image=image,
        tokens=tokens,
        inputs=cfg.count("num_channels") * patch**2,
        other_params=rows + 2 * LAYER.params(hidden),
        sizing=SQUARE,
    )


def siglip(cfg: Config) -> Vision:
    """SigLIP: learned positions, a norm after the layers and, unless switched off, an attention-pooling head."""
    cfg.ignore("projection_dim", "vocab_size", "projector_hidden_act", "num_image_tokens")
    hidden, patch, image = cfg.count("hidden_size"), cfg.square("patch_size"), cfg.square("image_size")
    tokens, ffn = _patches(cfg, image, patch), _plain(cfg)
    rows = cfg.count("num_channels") * patch**2 * hidden + hidden + tokens * hidden
    pooling = hidden + 4 * hidden**2 + 4 * hidden + LAYER.params(hidden) + 2 * hidden * ffn.hidden + ffn.hidden + hidden
    head = pooling if cfg.flag("vision_use_head", True) else 0
    return Vision(
        hidden=hidden,
        block=_block(cfg, hidden, ffn),
        layers=cfg.layers(),
        patch=patch,
        image=image,
        tokens=tokens,
        inputs=cfg.count("num_channels") * patch**2,
        other_params=rows + LAYER.params(hidden) + head,
        sizing=SQUARE,
    )


def pixtral(cfg: Config) -> Vision:
    """Pixtral: rotary positions, gated mlps, no biases."""
    cfg.ignore("vocab_size")
    hidden, patch, image = cfg.count("hidden_size"), cfg.square("patch_size"), cfg.square("image_size")
    ffn = Mlp(hidden=cfg.count("intermediate_size"), activation=cfg.word("hidden_act"))
    mixer = _heads(cfg, hidden, bias=False)
    cfg.only("head_dim", mixer.head_dim)
    return Vision(
        hidden=hidden,
        block=Block(mixer=mixer, ffn=ffn),
        layers=cfg.layers(),
        patch=patch,
        image=image,
        tokens=_patches(cfg, image, patch),
        inputs=cfg.count("num_channels") * patch**2,
        other_params=cfg.count("num_channels") * patch**2 * hidden + hidden,
        sizing=Sizing(rule="longest", most=image, breaks=True),
    )


def _with_merger(
    cfg: Config, vision: Vision, norm: int, out: str = "out_hidden_size", mergers: int | None = None
) -> Vision:
    """Qwen's towers end in an mlp over `merge` x `merge` patches; further mergers serve deeper layers (Qwen3-VL, which
    limits the pixels of a video as a whole).

        norm + w*w + w + w*o + o          and for each further one          2*w + w*w + w + w*o + o

    w = hidden * merge * merge, o = width of the language model.
    """
    merge, text = cfg.count("spatial_merge_size"), cfg.count(out)
    wide = vision.hidden * merge**2
    linear = wide**2 + wide + wide * text + text
    tokens, frames = max(1, vision.tokens // merge**2), cfg.square("temporal_patch_size")
    image, video = PIXELS_3 if mergers is not None else PIXELS_2
    return replace(
        vision, tokens=tokens, projector_params=norm + linear + (mergers or 0) * (2 * wide + linear),
        sizing=Sizing(rule="area", merge=merge, least=image[0], most=image[1]),
        video=Sizing(
            rule="area", merge=merge, least=video[0], most=video[1], frames=frames, whole=mergers is not None
        ),
    )  # fmt: skip


def _qwen_inputs(cfg: Config, patch: int) -> int:
    return cfg.count(("in_channels", "in_chans")) * cfg.square("temporal_patch_size") * patch**2


def qwen2_vl(cfg: Config) -> Vision:
    """Qwen2-VL: rotary positions; `hidden_size` is the language model's width."""
    hidden, patch = cfg.count("embed_dim"), cfg.square("patch_size")
    cfg.ignore("spatial_patch_size")
    ffn = Mlp(hidden=cfg.count("mlp_ratio") * hidden, gated=False, bias=True, activation=cfg.word("hidden_act"))
    vision = Vision(
        hidden=hidden,
        block=_block(cfg, hidden, ffn),
        layers=cfg.layers("depth"),
        patch=patch,
        image=ANY_IMAGE,
        tokens=_patches(cfg, ANY_IMAGE, patch),
        inputs=_qwen_inputs(cfg, patch),
        other_params=_qwen_inputs(cfg, patch) * hidden,
    )
    return _with_merger(cfg, vision, norm=LAYER.params(hidden), out="hidden_size")


def qwen2_5_vl(cfg: Config) -> Vision:
    """Qwen2.5-VL: gated mlps and windowed attention in all layers but a few."""
    hidden, patch = cfg.count("hidden_size"), cfg.square("patch_size")
    cfg.ignore("tokens_per_second", "spatial_patch_size", "in_chans")
    ffn = Mlp(hidden=cfg.count("intermediate_size"), bias=True, activation=cfg.word("hidden_act"))
    layers = cfg.layers("depth")
    full = {index for index in cfg.counts("fullatt_block_indexes") if index < layers}
    mixer = _heads(cfg, hidden, window=(cfg.count("window_size") // patch) ** 2)
    vision = Vision(
        hidden=hidden,
        block=Block(mixer=mixer, ffn=ffn),
        layers=layers,
        patch=patch,
        image=ANY_IMAGE,
        tokens=_patches(cfg, ANY_IMAGE, patch),
        windowed=layers - len(full),
        inputs=_qwen_inputs(cfg, patch),
        other_params=_qwen_inputs(cfg, patch) * hidden,
    )
    return _with_merger(cfg, vision, norm=RMS.params(hidden))


def qwen3_vl(cfg: Config) -> Vision:
    """Qwen3-VL, Qwen 3.5: learned positions too, and mergers for the layers in `deepstack_visual_indexes`."""
    hidden, patch = cfg.count("hidden_size"), cfg.square("patch_size")
    rows = cfg.count("num_position_embeddings")
    image = max(1, math.isqrt(rows)) * patch
    vision = Vision(
        hidden=hidden,
        block=_block(cfg, hidden, _plain(cfg)),
        layers=cfg.layers("depth"),
        patch=patch,
        image=image,
        tokens=_patches(cfg, image, patch),
        inputs=_qwen_inputs(cfg, patch),
        other_params=_qwen_inputs(cfg, patch) * hidden + hidden + rows * hidden,
    )
    return _with_merger(cfg, vision, norm=LAYER.params(hidden), mergers=len(cfg.counts("deepstack_visual_indexes")))


def llama4(cfg: Config) -> Vision:
    """Llama 4: a class token, learned positions, and an adapter that shuffles patches into wider tokens."""
    cfg.ignore("vision_feature_select_strategy", "vision_feature_layer", "norm_eps")
    cfg.only("multi_modal_projector_bias", False)
    cfg.only("pixel_shuffle_ratio", 0.5)
    hidden, patch, image = cfg.count("hidden_size"), cfg.square("patch_size"), cfg.square("image_size")
    tokens, ffn = _patches(cfg, image, patch), _plain(cfg)
    rows = hidden + cfg.count("num_channels") * patch**2 * hidden + (tokens + 1) * hidden
    into, out = cfg.count("projector_input_dim"), cfg.count("projector_output_dim")
    return Vision(
        hidden=hidden,
        block=_block(cfg, hidden, ffn),
        layers=cfg.layers(),
        patch=patch,
        image=image,
        tokens=max(1, tokens // 4),
        inputs=cfg.count("num_channels") * patch**2,
        projector_params=ffn.hidden * into + out * out,
        other_params=rows + 2 * LAYER.params(hidden),
        sizing=Sizing(rule="fit", merge=2, most=TILES_LLAMA, marks=3),
        video=Sizing(rule="square", merge=2),
    )


def kimi(cfg: Config) -> Vision:
    """Kimi K2.5: learned positions on a grid, merged two by two. Older files prefix its keys with `vt_`."""
    cfg.ignore("merge_type", "mm_projector_type", "pos_emb_type", "projector_hidden_act", "projector_ln_eps")
    cfg.ignore("text_hidden_size", "video_attn_type", "pos_emb_time", "init_pos_emb_time", "mm_hidden_size")
    hidden, patch = cfg.count(("vt_hidden_size", "hidden_size")), cfg.square("patch_size")
    high = cfg.count(("init_pos_emb_height", "pos_emb_height"))
    wide = cfg.count(("init_pos_emb_width", "pos_emb_width"))
    ffn = _plain(cfg, ("vt_intermediate_size", "intermediate_size"))
    merge = cfg.square("merge_kernel_size")
    return Vision(
        hidden=hidden,
        block=_block(cfg, hidden, ffn),
        layers=cfg.layers(("vt_num_hidden_layers", "num_hidden_layers")),
        patch=patch,
        image=max(high, wide) * patch,
        tokens=max(1, high * wide // merge**2),
        projector_params=LAYER.params(hidden) + (merge**2 * hidden) ** 2 + merge**2 * hidden,
        other_params=3 * patch**2 * hidden + hidden + high * wide * hidden + LAYER.params(hidden),
        sizing=Sizing(rule="native", merge=merge, least=512, most=16384),
        video=Sizing(rule="native", merge=merge, least=512, most=4096, frames=4),
    )


def gemma4(cfg: Config) -> Vision:
    """Gemma 4: the text model's layers with a two-row position table; patches are pooled three by three."""
    cfg.ignore("use_clipped_linears", "standardize", "max_position_embeddings", "default_output_length")
    cfg.only("attention_bias", False)
    hidden, patch = cfg.count("hidden_size"), cfg.square("patch_size")
    count, pool = cfg.count("num_attention_heads"), cfg.count("pooling_kernel_size")
    several, size = cfg.count("num_key_value_heads"), cfg.count("head_dim")
    cfg.only("global_head_dim", size)  # the text model's wider heads do not exist here
    ffn = Mlp(hidden=cfg.count("intermediate_size"), activation=cfg.word("hidden_activation"))
    side = 16  # pooled tokens a side of a square image near its usual number of tokens
    return Vision(
        hidden=hidden,
        block=Block(mixer=Attention(heads=count, kv_heads=several, head_dim=size, qk_norm="head"), ffn=ffn, norms=4),
        layers=cfg.layers(),
        patch=patch,
        image=side * pool * patch,
        tokens=side**2,
        other_params=3 * patch**2 * hidden + 2 * cfg.count("position_embedding_size") * hidden,
        sizing=Sizing(rule="budget", merge=pool, most=280),
        video=Sizing(rule="budget", merge=pool, most=70),
    )


TOWERS: Mapping[str, Tower] = MappingProxyType(
    {"clip_vision_model": clip, "pixtral": pixtral, "siglip_vision_model": siglip}
)
