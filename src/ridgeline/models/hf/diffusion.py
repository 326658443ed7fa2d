"""Turn the config.json of a diffusion transformer of images, as diffusers writes it, into a ModelSpec.

    DiTTransformer2DModel          DiT: class labels, one stream, six vectors a layer
    SD3Transformer2DModel          Stable Diffusion 3: MMDiT, latents and text with weights of their own
    FluxTransformer2DModel         FLUX.1: MMDiT layers, then layers of one stream with attention and mlp side by side
    QwenImageTransformer2DModel    Qwen-Image: MMDiT layers throughout
    PixArtTransformer2DModel       PixArt: text by cross attention, one modulation for all layers
    SanaTransformer2DModel         Sana: linear attention, cross attention, an mlp with a convolution

`_class_name` chooses the reader; those of video are in `video_diffusion`.
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
    attention_of,
    diffuser,
    linear,
    modulated_once,
    plain_mlp,
)
from ridgeline.models.hf.video_diffusion import USUAL_VIDEO, VIDEO
from ridgeline.models.spec import Attention, Block, Captured, Head, LatentSpace, ModelSpec, Product

SHORT_TEXT = 333  # 77 of two CLIPs and 256 of T5, as Stable Diffusion 3's pipeline has by default
LATENTS = 4096 / (4096 + SHORT_TEXT)  # of the tokens of an image of 1024 pixels, those that are no text
CAPTION = 300  # tokens that PixArt Sigma's and Sana's pipelines pad text to
LARGE = 128  # latents a side of the PixArt that is told sizes
JOINT, SIZES = "joint_attention_dim", "use_additional_conditions"
DEEP_SCALE = 32  # pixels a side of one latent of Sana's autoencoder


def flux(cfg: Config) -> ModelSpec:
    """FLUX.1: latents arrive packed two by two, so that a token is 16 pixels a side."""
    cfg.ignore("axes_dims_rope", "axes_dim_rope", "theta")
    attention = attention_of(cfg, qk_norm="head")
    hidden, inputs = attention.heads * attention.head_dim, cfg.count("in_channels")
    patch, outputs = cfg.count("patch_size", 1), cfg.count("out_channels", cfg.count("in_channels"))
    text, pooled = cfg.count("joint_attention_dim"), cfg.count("pooled_projection_dim")
    steps = 2 if cfg.flag("guidance_embeds", False) else 1
    double = Block(mixer=attention, ffn=plain_mlp(4 * hidden), norm=BARE, streams=2, modulation=6)
    single = Block(
        mixer=replace(attention, out_bias=False), ffn=plain_mlp(4 * hidden), norm=BARE, norms=1, parallel=True,
        modulation=3,
    )  # fmt: skip
    timestep = steps * (TIME * hidden + hidden**2) + pooled * hidden + hidden**2
    space = LatentSpace(
        inputs=inputs * patch**2, pixels=2 * SCALE * patch, text=TEXT, per_text=text * hidden, per_step=timestep,
        other_params=timestep + (2 * steps + 2) * hidden + linear(text, hidden) + linear(inputs, hidden),
    )  # fmt: skip
    head = Head(kind="tokens", outputs=patch**2 * outputs, extra=linear(hidden, 2 * hidden) + patch**2 * outputs)
    layers = [double] * cfg.layers("num_layers") + [single] * cfg.layers("num_single_layers")
    return diffuser(hidden, layers, head, space)


def sd3(cfg: Config) -> ModelSpec:
    """Stable Diffusion 3 and 3.5: in the last layer text gives keys and values and goes no further. In
    `dual_attention_layers` (3.5 medium) latents see each other once more, in an attention of their own, which no
    tensor rank splits."""
    cfg.ignore("sample_size", "pos_embed_max_size")
    cfg.only("qk_norm", "rms_norm")
    attention = attention_of(cfg, positions="none", qk_norm="head" if cfg.has("qk_norm") else "none")
    hidden, patch, channels = attention.heads * attention.head_dim, cfg.count("patch_size"), cfg.count("in_channels")
    cfg.only("caption_projection_dim", hidden)
    text, pooled = cfg.count("joint_attention_dim"), cfg.count("pooled_projection_dim")
    outputs = patch**2 * cfg.count("out_channels", channels)
    block = Block(mixer=attention, ffn=plain_mlp(4 * hidden), norm=BARE, streams=2, modulation=6)
    normed = 2 * attention.head_dim if attention.qk_norm == "head" else 0
    last = replace(block, streams=1, extra=5 * linear(hidden, hidden) + normed)
    timestep = TIME * hidden + hidden**2 + pooled * hidden + hidden**2
    space = LatentSpace(
        inputs=channels * patch**2, pixels=SCALE * patch, text=SHORT_TEXT, per_text=text * hidden, per_step=timestep,
        other_params=timestep + 4 * hidden + linear(text, hidden) + linear(channels * patch**2, hidden),
    )  # fmt: skip
    head = Head(kind="tokens", outputs=outputs, extra=linear(hidden, 2 * hidden) + outputs)
    layers = [block] * (cfg.layers("num_layers") - 1) + [last]
    dual = set(cfg.counts("dual_attention_layers"))
    layers = [_twice(one, hidden, normed) if place in dual else one for place, one in enumerate(layers)]
    return diffuser(hidden, layers, head, space)


def _twice(block: Block, hidden: int, normed: int) -> Block:
    """An MMDiT layer whose latents have a second attention, and three further vectors of modulation for it. Of the
    tokens of an image of 1024 pixels `LATENTS` are latents: as many pass, and as many heads stand for their pairs."""
    mixer = block.mixer
    assert isinstance(mixer, Attention)
    heads = max(1, round(mixer.heads * LATENTS**2))
    products = (
        Product(label="qkv", inputs=hidden, outputs=3 * hidden, rows=LATENTS),
        Product(label="out", inputs=hidden, outputs=hidden, rows=LATENTS),
    )
    part = Captured(
        products=products, scores=(replace(mixer, heads=heads, kv_heads=heads),),
        params=4 * linear(hidden, hidden) + normed, saved=4.0 * hidden, streams=4.0 * hidden, kernels=4.0, mixes=True,
    )  # fmt: skip
    return replace(block, captured=part, extra=block.extra + 3 * linear(hidden, hidden))


def dit(cfg: Config) -> ModelSpec:
    """DiT: every layer embeds timestep and class by itself, as diffusers builds it."""
    cfg.ignore("sample_size", "norm_num_groups", "upcast_attention", "norm_eps", "activation_fn")
    cfg.only("norm_type", "ada_norm_zero")
    cfg.only("norm_elementwise_affine", False)
    bias = cfg.flag("attention_bias")
    attention = attention_of(cfg, positions="none", qkv_bias=bias)
    hidden, patch, channels = attention.heads * attention.head_dim, cfg.count("patch_size"), cfg.count("in_channels")
    rows = (cfg.count("num_embeds_ada_norm") + 1) * hidden
    own = linear(TIME, hidden) + linear(hidden, hidden) + rows
    block = Block(mixer=attention, ffn=plain_mlp(4 * hidden), norm=BARE, modulation=6, extra=own)
    layers = cfg.layers("num_layers")
    space = LatentSpace(
        inputs=channels * patch**2, pixels=SCALE * patch, per_step=layers * (TIME * hidden + hidden**2),
        other_params=linear(channels * patch**2, hidden),
    )  # fmt: skip
    outputs = patch**2 * cfg.count("out_channels", channels)
    head = Head(kind="tokens", outputs=outputs, extra=linear(hidden, 2 * hidden) + outputs)
    return diffuser(hidden, [block] * layers, head, space)


def qwen_image(cfg: Config) -> ModelSpec:
    """Qwen-Image: MMDiT layers throughout; text of Qwen2.5-VL, normed; latents arrive packed two by two."""
    cfg.ignore("axes_dims_rope", "guidance_embeds", "zero_cond_t")
    cfg.only("use_additional_t_cond", False)
    cfg.only("use_layer3d_rope", False)
    attention = attention_of(cfg, qk_norm="head")
    hidden, inputs, text = attention.heads * attention.head_dim, cfg.count("in_channels"), cfg.count(JOINT)
    patch = cfg.count("patch_size")
    block = Block(mixer=attention, ffn=plain_mlp(4 * hidden), norm=BARE, streams=2, modulation=6)
    timestep = TIME * hidden + hidden**2
    space = LatentSpace(
        inputs=inputs, pixels=2 * SCALE, text=TEXT, per_text=text * hidden, per_step=timestep,
        other_params=timestep + 2 * hidden + text + linear(text, hidden) + linear(inputs, hidden),
    )  # fmt: skip
    outputs = patch**2 * cfg.count("out_channels", inputs)
    head = Head(kind="tokens", outputs=outputs, extra=linear(hidden, 2 * hidden) + outputs)
    return diffuser(hidden, [block] * cfg.layers("num_layers"), head, space)


def pixart(cfg: Config) -> ModelSpec:
    """PixArt Alpha and Sigma: text by cross attention, one modulation for all layers; the larger Alpha is told size and
    aspect ratio, too."""
    cfg.ignore("norm_num_groups", "upcast_attention", "norm_eps", "activation_fn", "interpolation_scale", "dropout")
    cfg.ignore("num_embeds_ada_norm", "double_self_attention", "num_vector_embeds", "only_cross_attention")
    cfg.ignore("use_linear_projection")
    cfg.only("norm_type", "ada_norm_single")
    cfg.only("norm_elementwise_affine", False)
    cfg.only("attention_type", "default")
    bias, size = cfg.flag("attention_bias"), cfg.count("sample_size")
    attention = attention_of(cfg, positions="none", qkv_bias=bias)
    hidden, channels = attention.heads * attention.head_dim, cfg.count("in_channels")
    cfg.only("cross_attention_dim", hidden)
    patch, text = cfg.count("patch_size"), cfg.size("caption_channels", 0)
    block = Block(
        mixer=attention, cross=attention, ffn=plain_mlp(4 * hidden), norm=BARE, modulation=6, modulation_width=0
    )
    per_step, timed = modulated_once(hidden)
    third = hidden // 3
    told = 2 * (linear(TIME, third) + linear(third, third)) if cfg.flag(SIZES, size == LARGE) else 0
    captions = linear(text, hidden) + linear(hidden, hidden) if text else 0
    space = LatentSpace(
        inputs=channels * patch**2, pixels=SCALE * patch, text=CAPTION, joint=False,
        per_text=text * hidden + hidden**2 if text else 0, per_step=per_step,
        other_params=timed + told + captions + linear(channels * patch**2, hidden),
    )  # fmt: skip
    outputs = patch**2 * cfg.count("out_channels", channels)
    head = Head(kind="tokens", outputs=outputs, extra=2 * hidden + outputs)
    return diffuser(hidden, [block] * cfg.layers("num_layers"), head, space)


def sana(cfg: Config) -> ModelSpec:
    """Sana: linear attention, whose state is one matrix a head; cross attention; a gated mlp with a convolution over
    neighbours. Attention and mlp are priced product by product, whole on every tensor rank."""
    cfg.ignore("norm_eps", "dropout", "interpolation_scale", "guidance_embeds_scale", "timestep_scale", "sample_size")
    cfg.only("norm_elementwise_affine", False)
    cfg.only("guidance_embeds", False)
    heads, size = cfg.count("num_attention_heads"), cfg.count("attention_head_dim")
    hidden, bias = heads * size, cfg.flag("attention_bias")
    crossing = cfg.count("num_cross_attention_heads"), cfg.count("cross_attention_head_dim")
    cfg.only("cross_attention_dim", hidden)
    normed = cfg.has("qk_norm")
    cfg.only("qk_norm", "rms_norm_across_heads")
    cross = Attention(
        heads=crossing[0], kv_heads=crossing[0], head_dim=crossing[1], positions="none", qkv_bias=True, out_bias=True,
        causal=False, qk_norm="full" if normed else "none",
    )  # fmt: skip
    inner = int(cfg.number("mlp_ratio") * hidden)
    products = (
        Product(label="qkv", inputs=hidden, outputs=3 * hidden),
        Product(label="state", inputs=size, outputs=size + 1, rows=2.0, groups=heads, weights=False),
        Product(label="out", inputs=hidden, outputs=hidden),
        Product(label="inverted", inputs=hidden, outputs=2 * inner),
        Product(label="depthwise", inputs=9, outputs=2 * inner),
        Product(label="point", inputs=inner, outputs=hidden),
    )
    own = 3 * hidden * hidden + 3 * hidden * bias + linear(hidden, hidden) + 2 * hidden * normed
    own += linear(hidden, 2 * inner) + 9 * 2 * inner + 2 * inner + inner * hidden
    part = Captured(
        products=products, streams=8.0 * hidden + 6.0 * inner, kernels=20.0, params=own,
        saved=8.0 * hidden + 6.0 * inner, mixes=True,
    )  # fmt: skip
    block = Block(mixer=None, cross=cross, ffn=None, norm=BARE, captured=part, modulation=6, modulation_width=0)
    channels, patch, text = cfg.count("in_channels"), cfg.count("patch_size"), cfg.count("caption_channels")
    per_step, timed = modulated_once(hidden)
    space = LatentSpace(
        inputs=channels * patch**2, pixels=DEEP_SCALE * patch, text=CAPTION, joint=False,
        per_text=text * hidden + hidden**2, per_step=per_step,
        other_params=timed + linear(text, hidden) + linear(hidden, hidden) + hidden
        + linear(channels * patch**2, hidden),
    )  # fmt: skip
    outputs = patch**2 * cfg.count("out_channels", channels)
    head = Head(kind="tokens", outputs=outputs, extra=2 * hidden + outputs)
    return diffuser(hidden, [block] * cfg.layers("num_layers"), head, space)


# what diffusers assumes for a key that a file leaves out
USUAL: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "DiTTransformer2DModel": {
            "num_attention_heads": 16, "attention_head_dim": 72, "in_channels": 4, "num_layers": 28, "patch_size": 2,
            "attention_bias": True, "num_embeds_ada_norm": 1000,
        },
        "FluxTransformer2DModel": {
            "num_attention_heads": 24, "attention_head_dim": 128, "in_channels": 64, "num_layers": 19,
            "num_single_layers": 38, "joint_attention_dim": 4096, "pooled_projection_dim": 768,
        },
        "SD3Transformer2DModel": {
            "num_attention_heads": 18, "attention_head_dim": 64, "in_channels": 16, "num_layers": 18, "patch_size": 2,
            "joint_attention_dim": 4096, "pooled_projection_dim": 2048, "out_channels": 16,
        },
        "PixArtTransformer2DModel": {
            "num_attention_heads": 16, "attention_head_dim": 72, "in_channels": 4, "out_channels": 8, "num_layers": 28,
            "cross_attention_dim": 1152, "attention_bias": True, "sample_size": 128, "patch_size": 2,
        },
        "QwenImageTransformer2DModel": {
            "num_attention_heads": 24, "attention_head_dim": 128, "in_channels": 64, "out_channels": 16,
            "num_layers": 60, "joint_attention_dim": 3584, "patch_size": 2,
        },
        "SanaTransformer2DModel": {
            "num_attention_heads": 70, "attention_head_dim": 32, "in_channels": 32, "out_channels": 32,
            "num_layers": 20, "num_cross_attention_heads": 20, "cross_attention_head_dim": 112,
            "cross_attention_dim": 2240, "caption_channels": 2304, "mlp_ratio": 2.5, "attention_bias": False,
            "patch_size": 1,
        },
        **USUAL_VIDEO,
    }
)  # fmt: skip
DIFFUSION: Mapping[str, Callable[[Config], ModelSpec]] = MappingProxyType(
    {
        "DiTTransformer2DModel": dit,
        "FluxTransformer2DModel": flux,
        "SD3Transformer2DModel": sd3,
        "PixArtTransformer2DModel": pixart,
        "QwenImageTransformer2DModel": qwen_image,
        "SanaTransformer2DModel": sana,
        **VIDEO,
    }
)
