"""Turn the config.json of a diffusion transformer of images or video, as diffusers writes it, into a ModelSpec.

    DiTTransformer2DModel          DiT: class labels, one stream, six vectors a layer
    SD3Transformer2DModel          Stable Diffusion 3: MMDiT, latents and text with weights of their own
    FluxTransformer2DModel         FLUX.1: MMDiT layers, then layers of one stream with attention and mlp side by side
    QwenImageTransformer2DModel    Qwen-Image: MMDiT layers throughout
    PixArtTransformer2DModel       PixArt: text by cross attention, one modulation for all layers
    SanaTransformer2DModel         Sana: linear attention, cross attention, an mlp with a convolution
    WanTransformer3DModel          Wan 2: text, and an image, by cross attention; one modulation for all layers
    HunyuanVideoTransformer3DModel HunyuanVideo: MMDiT layers, then one stream; text refined before
    CogVideoXTransformer3DModel    CogVideoX: text and latents in one stream, modulated apart
    LTXVideoTransformer3DModel     LTX-Video: cross attention, latents of 32 pixels and 8 frames

`_class_name` chooses the reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ridgeline.core.documents import JsonObject
from ridgeline.models.hf.config import Config
from ridgeline.models.hf.parts import LAYER
from ridgeline.models.spec import (
    Attention,
    Block,
    Captured,
    Embedding,
    Head,
    LatentSpace,
    Mlp,
    ModelSpec,
    Norm,
    Product,
    from_layers,
)

BARE = Norm(kind="layer", weight=False)
SCALE = 8  # pixels a side of one latent
VIDEO_FRAMES = 4  # frames of one latent frame
TIME = 256  # sines and cosines that a timestep becomes
TEXT = 512  # tokens that FLUX's, Qwen-Image's and Wan's pipelines take of a text at most


def linear(inputs: int, outputs: int) -> int:
    """Parameters of a linear layer with its bias."""
    return inputs * outputs + outputs


def attention_of(cfg: Config, **traits: Any) -> Attention:
    """Attention both ways, every head with keys and values of its own, biases everywhere."""
    heads, size = cfg.count("num_attention_heads"), cfg.count("attention_head_dim")
    usual: JsonObject = {"qkv_bias": True, "out_bias": True, "positions": "rope", "causal": False}
    return Attention(heads=heads, kv_heads=heads, head_dim=size, **{**usual, **traits})


def plain_mlp(hidden: int) -> Mlp:
    """Two matrices with biases and a gelu."""
    return Mlp(hidden=hidden, gated=False, bias=True, activation="gelu_pytorch_tanh")


def diffuser(hidden: int, layers: list[Block], space: LatentSpace, outputs: int, ends: int) -> ModelSpec:
    """Layers between an embedding of latents and scores of every token; `ends` are parameters before these scores."""
    blocks, order = from_layers(layers)
    return ModelSpec(
        id="", name="", hidden=hidden, vocab=0, embedding=Embedding(), blocks=blocks, order=order, norm=BARE,
        head=Head(kind="tokens", outputs=outputs, extra=ends + outputs), latent_space=space,
    )  # fmt: skip


def mmdit_layers(attention: Attention, inner: int) -> tuple[Block, Block]:
    """A layer of latents and text with weights of their own, and one of a single stream with its parts side by side."""
    double = Block(mixer=attention, ffn=plain_mlp(inner), norm=BARE, streams=2, modulation=6)
    single = replace(double, mixer=replace(attention, out_bias=False), norms=1, parallel=True, streams=1, modulation=3)
    return double, single


def modulated_once(hidden: int) -> tuple[int, int]:
    """Six vectors that all layers share, made of the timestep (adaLN-single): multiply-adds, and parameters."""
    products = TIME * hidden + hidden**2 + 6 * hidden**2
    return products, products + 8 * hidden


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
    text, pooled_width = cfg.count("joint_attention_dim"), cfg.count("pooled_projection_dim")
    steps = 2 if cfg.flag("guidance_embeds", False) else 1
    double, single = mmdit_layers(attention, 4 * hidden)
    timestep = steps * (TIME * hidden + hidden**2) + pooled_width * hidden + hidden**2
    space = LatentSpace(
        inputs=inputs * patch**2, pixels=2 * SCALE * patch, text=TEXT, per_text=text * hidden, per_step=timestep,
        other_params=timestep + (2 * steps + 2) * hidden + linear(text, hidden) + linear(inputs, hidden),
    )  # fmt: skip
    layers = [double] * cfg.layers("num_layers") + [single] * cfg.layers("num_single_layers")
    return diffuser(hidden, layers, space, patch**2 * outputs, linear(hidden, 2 * hidden))


def sd3(cfg: Config) -> ModelSpec:
    """Stable Diffusion 3 and 3.5: in the last layer text gives keys and values and goes no further. In
    `dual_attention_layers` (3.5 medium) latents see each other once more, in an attention of their own, which no
    tensor rank splits."""
    cfg.understand("sd3")
    attention = attention_of(cfg, positions="none", qk_norm="head" if cfg.has("qk_norm") else "none")
    hidden, patch, channels = attention.heads * attention.head_dim, cfg.count("patch_size"), cfg.count("in_channels")
    cfg.only("caption_projection_dim", hidden)
    text, pooled_width = cfg.count("joint_attention_dim"), cfg.count("pooled_projection_dim")
    outputs = patch**2 * cfg.count("out_channels", channels)
    block, _ = mmdit_layers(attention, 4 * hidden)
    norm_params = 2 * attention.head_dim if attention.qk_norm == "head" else 0
    last = replace(block, streams=1, extra=5 * linear(hidden, hidden) + norm_params)
    timestep = TIME * hidden + hidden**2 + pooled_width * hidden + hidden**2
    space = LatentSpace(
        inputs=channels * patch**2, pixels=SCALE * patch, text=SHORT_TEXT, per_text=text * hidden, per_step=timestep,
        other_params=timestep + 4 * hidden + linear(text, hidden) + linear(channels * patch**2, hidden),
    )  # fmt: skip
    layers = [block] * (cfg.layers("num_layers") - 1) + [last]
    dual = set(cfg.counts("dual_attention_layers"))
    layers = [_twice(layer, hidden, norm_params) if place in dual else layer for place, layer in enumerate(layers)]
    return diffuser(hidden, layers, space, outputs, linear(hidden, 2 * hidden))


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
    cfg.understand("dit")
    bias = cfg.flag("attention_bias")
    attention = attention_of(cfg, positions="none", qkv_bias=bias)
    hidden, patch, channels = attention.heads * attention.head_dim, cfg.count("patch_size"), cfg.count("in_channels")
    rows = (cfg.count("num_embeds_ada_norm") + 1) * hidden
    label_params = linear(TIME, hidden) + linear(hidden, hidden) + rows
    block = Block(mixer=attention, ffn=plain_mlp(4 * hidden), norm=BARE, modulation=6, extra=label_params)
    layers = cfg.layers("num_layers")
    space = LatentSpace(
        inputs=channels * patch**2, pixels=SCALE * patch, per_step=layers * (TIME * hidden + hidden**2),
        other_params=linear(channels * patch**2, hidden),
    )  # fmt: skip
    outputs = patch**2 * cfg.count("out_channels", channels)
    return diffuser(hidden, [block] * layers, space, outputs, linear(hidden, 2 * hidden))


def qwen_image(cfg: Config) -> ModelSpec:
    """Qwen-Image: MMDiT layers throughout; text of Qwen2.5-VL, normed; latents arrive packed two by two."""
    cfg.understand("qwen_image")
    attention = attention_of(cfg, qk_norm="head")
    hidden, inputs, text = attention.heads * attention.head_dim, cfg.count("in_channels"), cfg.count(JOINT)
    patch = cfg.count("patch_size")
    block, _ = mmdit_layers(attention, 4 * hidden)
    timestep = TIME * hidden + hidden**2
    space = LatentSpace(
        inputs=inputs, pixels=2 * SCALE, text=TEXT, per_text=text * hidden, per_step=timestep,
        other_params=timestep + 2 * hidden + text + linear(text, hidden) + linear(inputs, hidden),
    )  # fmt: skip
    outputs = patch**2 * cfg.count("out_channels", inputs)
    return diffuser(hidden, [block] * cfg.layers("num_layers"), space, outputs, linear(hidden, 2 * hidden))


def pixart(cfg: Config) -> ModelSpec:
    """PixArt Alpha and Sigma: text by cross attention, one modulation for all layers; the larger Alpha is told size and
    aspect ratio, too."""
    cfg.understand("pixart")
    bias, size = cfg.flag("attention_bias"), cfg.count("sample_size")
    attention = attention_of(cfg, positions="none", qkv_bias=bias)
    hidden, channels = attention.heads * attention.head_dim, cfg.count("in_channels")
    cfg.only("cross_attention_dim", hidden)
    patch, text = cfg.count("patch_size"), cfg.size("caption_channels", 0)
    block = Block(
        mixer=attention, cross=attention, ffn=plain_mlp(4 * hidden), norm=BARE, modulation=6, modulation_width=0
    )
    per_step, time_params = modulated_once(hidden)
    third = hidden // 3
    size_params = 2 * (linear(TIME, third) + linear(third, third)) if cfg.flag(SIZES, size == LARGE) else 0
    captions = linear(text, hidden) + linear(hidden, hidden) if text else 0
    space = LatentSpace(
        inputs=channels * patch**2, pixels=SCALE * patch, text=CAPTION, joint=False,
        per_text=text * hidden + hidden**2 if text else 0, per_step=per_step,
        other_params=time_params + size_params + captions + linear(channels * patch**2, hidden),
    )  # fmt: skip
    outputs = patch**2 * cfg.count("out_channels", channels)
    return diffuser(hidden, [block] * cfg.layers("num_layers"), space, outputs, 2 * hidden)


def sana(cfg: Config) -> ModelSpec:
    """Sana: linear attention, whose state is one matrix a head; cross attention; a gated mlp with a convolution over
    neighbours. Attention and mlp are priced product by product, whole on every tensor rank."""
    cfg.understand("sana")
    heads, size = cfg.count("num_attention_heads"), cfg.count("attention_head_dim")
    hidden, bias = heads * size, cfg.flag("attention_bias")
    crossing = cfg.count("num_cross_attention_heads"), cfg.count("cross_attention_head_dim")
    cfg.only("cross_attention_dim", hidden)
    has_qk_norm = cfg.has("qk_norm")
    cross = Attention(
        heads=crossing[0], kv_heads=crossing[0], head_dim=crossing[1], positions="none", qkv_bias=True, out_bias=True,
        causal=False, qk_norm="full" if has_qk_norm else "none",
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
    linear_attention = 3 * hidden * hidden + 3 * hidden * bias + linear(hidden, hidden) + 2 * hidden * has_qk_norm
    linear_attention += linear(hidden, 2 * inner) + 9 * 2 * inner + 2 * inner + inner * hidden
    part = Captured(
        products=products, streams=8.0 * hidden + 6.0 * inner, kernels=20.0, params=linear_attention,
        saved=8.0 * hidden + 6.0 * inner, mixes=True,
    )  # fmt: skip
    block = Block(mixer=None, cross=cross, ffn=None, norm=BARE, captured=part, modulation=6, modulation_width=0)
    channels, patch, text = cfg.count("in_channels"), cfg.count("patch_size"), cfg.count("caption_channels")
    per_step, time_params = modulated_once(hidden)
    space = LatentSpace(
        inputs=channels * patch**2, pixels=DEEP_SCALE * patch, text=CAPTION, joint=False,
        per_text=text * hidden + hidden**2, per_step=per_step,
        other_params=time_params + linear(text, hidden) + linear(hidden, hidden) + hidden
        + linear(channels * patch**2, hidden),
    )  # fmt: skip
    outputs = patch**2 * cfg.count("out_channels", channels)
    return diffuser(hidden, [block] * cfg.layers("num_layers"), space, outputs, 2 * hidden)


IMAGE_PATCHES = 257  # of CLIP's image, which a video continues
SMALL_WAN = 48  # channels of the latents of Wan 2.2's 5B model, whose autoencoder shrinks sides by 16
REFINED_TEXT = 256  # tokens of HunyuanVideo's text
LTX_TEXT, LTX_SCALE, LTX_FRAMES = 128, 32, 8


def wan(cfg: Config) -> ModelSpec:
    """Wan 2.1 and 2.2: latent frames of video, cross attention of text, learned vectors beside the modulation that all
    layers share. Where a video continues an image, cross attention reads that image's patches, too: their keys and
    values are counted, and priced as if they were text."""
    cfg.understand("wan")
    image, image_keys = cfg.size("image_dim", 0), cfg.size("added_kv_proj_dim", 0)
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
    image_attention = 2 * linear(image_keys, hidden) + hidden if image_keys else 0
    image_embedding = 2 * image + linear(image, image) + linear(image, hidden) + 2 * hidden if image else 0
    block = Block(
        mixer=attention, cross=cross, ffn=plain_mlp(cfg.count("ffn_dim")), norm=BARE, norms=3,
        extra=norm + image_attention, modulation=6, modulation_width=0,
    )  # fmt: skip
    per_step, time_params = modulated_once(hidden)
    read = TEXT + (IMAGE_PATCHES if image else 0)
    space = LatentSpace(
        inputs=channels * volume, pixels=scale * side, frames=VIDEO_FRAMES * time, text=read, joint=False,
        per_text=text * hidden + hidden**2, per_step=per_step,
        other_params=time_params + image_embedding + linear(text, hidden) + linear(hidden, hidden)
        + linear(channels * volume, hidden),
    )  # fmt: skip
    outputs = cfg.count("out_channels") * volume
    return diffuser(hidden, [block] * cfg.layers("num_layers"), space, outputs, 2 * hidden)


def hunyuan_video(cfg: Config) -> ModelSpec:
    """HunyuanVideo: MMDiT layers and single ones as FLUX has them; layers of their own refine the text before."""
    cfg.understand("hunyuan_video")
    if cfg.has("image_condition_type"):
        cfg.bad("image_condition_type", cfg.data["image_condition_type"], "nothing", "images beside text are not read")
    attention = attention_of(cfg, qk_norm="head")
    hidden, text = attention.heads * attention.head_dim, cfg.count("text_embed_dim")
    inner = round(cfg.number("mlp_ratio") * hidden)
    volume = cfg.count("patch_size_t") * cfg.count("patch_size") ** 2
    inputs, outputs = cfg.count("in_channels") * volume, cfg.count("out_channels") * volume
    double, single = mmdit_layers(attention, inner)
    layers = [double] * cfg.layers("num_layers") + [single] * cfg.layers("num_single_layers")
    timestep = TIME * hidden + hidden**2
    pool = cfg.count("pooled_projection_dim") * hidden + hidden**2
    steps = 2 if cfg.flag("guidance_embeds", False) else 1
    refining = 4 * linear(hidden, hidden) + linear(hidden, 4 * hidden) + linear(4 * hidden, hidden)
    refining += 2 * LAYER.params(hidden) + linear(hidden, 2 * hidden)
    refiner = cfg.layers("num_refiner_layers") * refining
    ends = linear(text, hidden) + timestep + 2 * hidden + linear(text, hidden) + linear(hidden, hidden)
    products = cfg.layers("num_refiner_layers") * 12 * hidden**2 + text * hidden
    space = LatentSpace(
        inputs=inputs, pixels=SCALE * cfg.count("patch_size"), frames=VIDEO_FRAMES * cfg.count("patch_size_t"),
        text=REFINED_TEXT, per_text=products, per_step=(steps + 1) * timestep + pool + text * hidden + hidden**2,
        other_params=steps * (timestep + 2 * hidden) + pool + 2 * hidden + refiner + ends + linear(inputs, hidden),
    )  # fmt: skip
    return diffuser(hidden, layers, space, outputs, linear(hidden, 2 * hidden))


def cogvideox(cfg: Config) -> ModelSpec:
    """CogVideoX: text and latents pass through the same weights and are modulated apart, by a narrow timestep."""
    cfg.understand("cogvideox")
    if cfg.flag("use_learned_positional_embeddings", False):
        cfg.bad("use_learned_positional_embeddings", True, "false", "learned positions are not described")
    bias = cfg.flag("attention_bias")
    attention = attention_of(cfg, qkv_bias=bias, qk_norm="head")
    hidden, time_width = attention.heads * attention.head_dim, cfg.count("time_embed_dim")
    frames, timely = cfg.count("patch_size_t", 1), cfg.has("patch_size_t")
    patch, text = cfg.count("patch_size"), cfg.count("text_embed_dim")
    inputs, outputs = (cfg.count(key) * patch**2 * frames for key in ("in_channels", "out_channels"))
    offset = cfg.size("ofs_embed_dim", 0)
    block = Block(
        mixer=attention, ffn=plain_mlp(4 * hidden), norm=LAYER, extra=2 * attention.head_dim, modulation=12,
        modulation_width=time_width,
    )  # fmt: skip
    patch_bias = hidden if cfg.flag("patch_bias", True) or timely else 0  # patches of several frames always have one
    steps = hidden * time_width + time_width**2 + (2 * offset**2 if offset else 0)
    space = LatentSpace(
        inputs=inputs, pixels=SCALE * patch, frames=VIDEO_FRAMES * frames, text=cfg.count("max_text_seq_length"),
        per_text=text * hidden, per_step=steps,
        other_params=steps + 2 * time_width + 2 * offset + linear(text, hidden) + inputs * hidden + patch_bias,
    )  # fmt: skip
    ends = LAYER.params(hidden) + linear(time_width, 2 * hidden) + LAYER.params(hidden)
    return diffuser(hidden, [block] * cfg.layers("num_layers"), space, outputs, ends)


def ltx(cfg: Config) -> ModelSpec:
    """LTX-Video: PixArt's layers with rotary positions and norms of queries and keys."""
    cfg.understand("ltx")
    bias, out = cfg.flag("attention_bias"), cfg.flag("attention_out_bias")
    attention = attention_of(cfg, qk_norm="full", qkv_bias=bias, out_bias=out)
    hidden, inputs = attention.heads * attention.head_dim, cfg.count("in_channels")
    cfg.only("cross_attention_dim", hidden)
    patch, text = cfg.count("patch_size"), cfg.count("caption_channels")
    block = Block(
        mixer=attention, cross=replace(attention, positions="none"), ffn=plain_mlp(4 * hidden), norm=BARE,
        modulation=6, modulation_width=0,
    )  # fmt: skip
    per_step, time_params = modulated_once(hidden)
    space = LatentSpace(
        inputs=inputs, pixels=LTX_SCALE * patch, frames=LTX_FRAMES * cfg.count("patch_size_t"), text=LTX_TEXT,
        joint=False, per_text=text * hidden + hidden**2, per_step=per_step,
        other_params=time_params + linear(text, hidden) + linear(hidden, hidden) + linear(inputs, hidden),
    )  # fmt: skip
    outputs = cfg.count("out_channels", inputs)
    return diffuser(hidden, [block] * cfg.layers("num_layers"), space, outputs, 2 * hidden)


DIFFUSION: Mapping[str, Callable[[Config], ModelSpec]] = MappingProxyType(
    {
        "DiTTransformer2DModel": dit,
        "FluxTransformer2DModel": flux,
        "SD3Transformer2DModel": sd3,
        "PixArtTransformer2DModel": pixart,
        "QwenImageTransformer2DModel": qwen_image,
        "SanaTransformer2DModel": sana,
        "CogVideoXTransformer3DModel": cogvideox,
        "HunyuanVideoTransformer3DModel": hunyuan_video,
        "LTXVideoTransformer3DModel": ltx,
        "WanTransformer3DModel": wan,
    }
)
