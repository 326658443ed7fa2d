"""Turn the config.json of a diffusion transformer of video, as diffusers writes it, into a ModelSpec.

WanTransformer3DModel             Wan 2: text, and an image, by cross attention; one modulation for all layers
HunyuanVideoTransformer3DModel    HunyuanVideo: MMDiT layers, then one stream; text refined before
CogVideoXTransformer3DModel       CogVideoX: text and latents in one stream, modulated apart
LTXVideoTransformer3DModel        LTX-Video: cross attention, latents of 32 pixels and 8 frames
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ridgeline.models.hf.config import Config
from ridgeline.models.hf.diffusion_parts import (
    BARE,
    SCALE,
    TEXT,
    TIME,
    VIDEO_FRAMES,
    attention_of,
    diffuser,
    linear,
    modulated_once,
    plain_mlp,
)
from ridgeline.models.hf.parts import LAYER
from ridgeline.models.spec import Block, Head, LatentSpace, ModelSpec

IMAGE_PATCHES = 257  # of CLIP's image, which a video continues
SMALL_WAN = 48  # channels of the latents of Wan 2.2's 5B model, whose autoencoder shrinks sides by 16
REFINED_TEXT = 256  # tokens of HunyuanVideo's text
LTX_TEXT, LTX_SCALE, LTX_FRAMES = 128, 32, 8


def wan(cfg: Config) -> ModelSpec:
    """Wan 2.1 and 2.2: latent frames of video, cross attention of text, learned vectors beside the modulation that all
    layers share. Where a video continues an image, cross attention reads that image's patches, too: their keys and
    values are counted, and priced as if they were text."""
    cfg.ignore("rope_max_seq_len", "freq_dim", "eps", "pos_embed_seq_len")
    image, added = cfg.size("image_dim", 0), cfg.size("added_kv_proj_dim", 0)
    cfg.only("qk_norm", "rms_norm_across_heads")
    attention = attention_of(cfg, qk_norm="full" if cfg.has("qk_norm") or "qk_norm" not in cfg.data else "none")
    hidden, channels, text = attention.heads * attention.head_dim, cfg.count("in_channels"), cfg.count("text_dim")
    sizes = cfg.counts("patch_size") or (1, 2, 2)
    time, side = (sizes[0], sizes[1]) if len(sizes) == 3 and sizes[1] == sizes[2] and min(sizes) > 0 else (0, 0)
    if not side:
        cfg.bad("patch_size", sizes, "frames, and two equal sides")
        time, side = 1, 2
    volume = time * side**2
    scale = 2 * SCALE if channels == SMALL_WAN else SCALE
    norm = 2 * hidden if cfg.flag("cross_attn_norm") else 0
    cross = replace(attention, positions="none")
    seen = 2 * linear(added, hidden) + hidden if added else 0
    embedded = 2 * image + linear(image, image) + linear(image, hidden) + 2 * hidden if image else 0
    block = Block(
        mixer=attention, cross=cross, ffn=plain_mlp(cfg.count("ffn_dim")), norm=BARE, norms=3, extra=norm + seen,
        modulation=6, modulation_width=0,
    )  # fmt: skip
    per_step, timed = modulated_once(hidden)
    read = TEXT + (IMAGE_PATCHES if image else 0)
    space = LatentSpace(
        inputs=channels * volume, pixels=scale * side, frames=VIDEO_FRAMES * time, text=read, joint=False,
        per_text=text * hidden + hidden**2, per_step=per_step,
        other_params=timed + embedded + linear(text, hidden) + linear(hidden, hidden)
        + linear(channels * volume, hidden),
    )  # fmt: skip
    outputs = cfg.count("out_channels") * volume
    head = Head(kind="tokens", outputs=outputs, extra=2 * hidden + outputs)
    return diffuser(hidden, [block] * cfg.layers("num_layers"), head, space)


def hunyuan_video(cfg: Config) -> ModelSpec:
    """HunyuanVideo: MMDiT layers and single ones as FLUX has them; layers of their own refine the text before."""
    cfg.ignore("rope_theta", "rope_axes_dim")
    cfg.only("qk_norm", "rms_norm")
    if cfg.has("image_condition_type"):
        cfg.bad("image_condition_type", cfg.data["image_condition_type"], "nothing", "images beside text are not read")
    cfg.ignore("image_condition_type")
    attention = attention_of(cfg, qk_norm="head")
    hidden, text = attention.heads * attention.head_dim, cfg.count("text_embed_dim")
    inner = round(cfg.number("mlp_ratio") * hidden)
    volume = cfg.count("patch_size_t") * cfg.count("patch_size") ** 2
    inputs, outputs = cfg.count("in_channels") * volume, cfg.count("out_channels") * volume
    double = Block(mixer=attention, ffn=plain_mlp(inner), norm=BARE, streams=2, modulation=6)
    single = Block(
        mixer=replace(attention, out_bias=False), ffn=plain_mlp(inner), norm=BARE, norms=1, parallel=True, modulation=3
    )
    layers = [double] * cfg.layers("num_layers") + [single] * cfg.layers("num_single_layers")
    timestep = TIME * hidden + hidden**2
    pooled = cfg.count("pooled_projection_dim") * hidden + hidden**2
    steps = 2 if cfg.flag("guidance_embeds", False) else 1
    refining = 4 * linear(hidden, hidden) + linear(hidden, 4 * hidden) + linear(4 * hidden, hidden)
    refining += 2 * LAYER.params(hidden) + linear(hidden, 2 * hidden)
    refiner = cfg.layers("num_refiner_layers") * refining
    ends = linear(text, hidden) + timestep + 2 * hidden + linear(text, hidden) + linear(hidden, hidden)
    products = cfg.layers("num_refiner_layers") * 12 * hidden**2 + text * hidden
    space = LatentSpace(
        inputs=inputs, pixels=SCALE * cfg.count("patch_size"), frames=VIDEO_FRAMES * cfg.count("patch_size_t"),
        text=REFINED_TEXT, per_text=products, per_step=(steps + 1) * timestep + pooled + text * hidden + hidden**2,
        other_params=steps * (timestep + 2 * hidden) + pooled + 2 * hidden + refiner + ends + linear(inputs, hidden),
    )  # fmt: skip
    head = Head(kind="tokens", outputs=outputs, extra=linear(hidden, 2 * hidden) + outputs)
    return diffuser(hidden, layers, head, space)


def cogvideox(cfg: Config) -> ModelSpec:
    """CogVideoX: text and latents pass through the same weights and are modulated apart, by a narrow timestep."""
    cfg.ignore("flip_sin_to_cos", "freq_shift", "sample_width", "sample_height", "sample_frames", "norm_eps")
    cfg.ignore("temporal_compression_ratio", "spatial_interpolation_scale", "temporal_interpolation_scale", "dropout")
    cfg.ignore("timestep_activation_fn", "use_rotary_positional_embeddings", "activation_fn")
    cfg.only("norm_elementwise_affine", True)
    if cfg.flag("use_learned_positional_embeddings", False):
        cfg.bad("use_learned_positional_embeddings", True, "false", "learned positions are not described")
    bias = cfg.flag("attention_bias")
    attention = attention_of(cfg, qkv_bias=bias, qk_norm="head")
    hidden, timed = attention.heads * attention.head_dim, cfg.count("time_embed_dim")
    frames, timely = cfg.count("patch_size_t", 1), cfg.has("patch_size_t")
    patch, text = cfg.count("patch_size"), cfg.count("text_embed_dim")
    inputs, outputs = (cfg.count(key) * patch**2 * frames for key in ("in_channels", "out_channels"))
    offset = cfg.size("ofs_embed_dim", 0)
    block = Block(
        mixer=attention, ffn=plain_mlp(4 * hidden), norm=LAYER, extra=2 * attention.head_dim, modulation=12,
        modulation_width=timed,
    )  # fmt: skip
    biased = hidden if cfg.flag("patch_bias", True) or timely else 0  # patches of several frames always have one
    steps = hidden * timed + timed**2 + (2 * offset**2 if offset else 0)
    space = LatentSpace(
        inputs=inputs, pixels=SCALE * patch, frames=VIDEO_FRAMES * frames, text=cfg.count("max_text_seq_length"),
        per_text=text * hidden, per_step=steps,
        other_params=steps + 2 * timed + 2 * offset + linear(text, hidden) + inputs * hidden + biased,
    )  # fmt: skip
    ends = LAYER.params(hidden) + linear(timed, 2 * hidden) + LAYER.params(hidden) + outputs
    head = Head(kind="tokens", outputs=outputs, extra=ends)
    return diffuser(hidden, [block] * cfg.layers("num_layers"), head, space)


def ltx(cfg: Config) -> ModelSpec:
    """LTX-Video: PixArt's layers with rotary positions and norms of queries and keys."""
    cfg.ignore("norm_eps", "activation_fn", "timestep_scale_multiplier", "causal_temporal_positioning")
    cfg.only("norm_elementwise_affine", False)
    cfg.only("qk_norm", "rms_norm_across_heads")
    bias, out = cfg.flag("attention_bias"), cfg.flag("attention_out_bias")
    attention = attention_of(cfg, qk_norm="full", qkv_bias=bias, out_bias=out)
    hidden, inputs = attention.heads * attention.head_dim, cfg.count("in_channels")
    cfg.only("cross_attention_dim", hidden)
    patch, text = cfg.count("patch_size"), cfg.count("caption_channels")
    block = Block(
        mixer=attention, cross=replace(attention, positions="none"), ffn=plain_mlp(4 * hidden), norm=BARE,
        modulation=6, modulation_width=0,
    )  # fmt: skip
    per_step, timed = modulated_once(hidden)
    space = LatentSpace(
        inputs=inputs, pixels=LTX_SCALE * patch, frames=LTX_FRAMES * cfg.count("patch_size_t"), text=LTX_TEXT,
        joint=False, per_text=text * hidden + hidden**2, per_step=per_step,
        other_params=timed + linear(text, hidden) + linear(hidden, hidden) + linear(inputs, hidden),
    )  # fmt: skip
    outputs = cfg.count("out_channels", inputs)
    head = Head(kind="tokens", outputs=outputs, extra=2 * hidden + outputs)
    return diffuser(hidden, [block] * cfg.layers("num_layers"), head, space)


# what diffusers assumes for a key that a file leaves out
USUAL_VIDEO: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "CogVideoXTransformer3DModel": {
            "num_attention_heads": 30, "attention_head_dim": 64, "in_channels": 16, "out_channels": 16,
            "time_embed_dim": 512, "text_embed_dim": 4096, "num_layers": 30, "attention_bias": True, "patch_size": 2,
            "max_text_seq_length": 226, "patch_bias": True,
        },
        "HunyuanVideoTransformer3DModel": {
            "num_attention_heads": 24, "attention_head_dim": 128, "in_channels": 16, "out_channels": 16,
            "num_layers": 20, "num_single_layers": 40, "num_refiner_layers": 2, "mlp_ratio": 4.0, "patch_size": 2,
            "patch_size_t": 1, "guidance_embeds": True, "text_embed_dim": 4096, "pooled_projection_dim": 768,
        },
        "LTXVideoTransformer3DModel": {
            "num_attention_heads": 32, "attention_head_dim": 64, "in_channels": 128, "out_channels": 128,
            "cross_attention_dim": 2048, "num_layers": 28, "patch_size": 1, "patch_size_t": 1,
            "caption_channels": 4096, "attention_bias": True, "attention_out_bias": True,
        },
        "WanTransformer3DModel": {
            "num_attention_heads": 40, "attention_head_dim": 128, "in_channels": 16, "num_layers": 40,
            "text_dim": 4096, "ffn_dim": 13824, "cross_attn_norm": True, "out_channels": 16,
        },
    }
)  # fmt: skip
VIDEO: Mapping[str, Callable[[Config], ModelSpec]] = MappingProxyType(
    {
        "CogVideoXTransformer3DModel": cogvideox,
        "HunyuanVideoTransformer3DModel": hunyuan_video,
        "LTXVideoTransformer3DModel": ltx,
        "WanTransformer3DModel": wan,
    }
)
