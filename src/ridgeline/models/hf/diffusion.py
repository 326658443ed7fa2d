"""Turn the config.json of a diffusion transformer, as diffusers writes it, into a ModelSpec.

    DiTTransformer2DModel       DiT: class labels, one stream, six vectors a layer
    SD3Transformer2DModel       Stable Diffusion 3: MMDiT, latents and text with weights of their own
    FluxTransformer2DModel      FLUX.1: MMDiT layers, then layers of one stream with attention and mlp side by side
    WanTransformer3DModel       Wan 2: video; text by cross attention, one modulation for all layers

`_class_name` chooses the reader. A token is a patch of latents; what an autoencoder's latent stands for in pixels and
frames is not in these files: 8 pixels, and 4 frames for video, as the autoencoders that are published with them have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ridgeline.models.hf.config import Config
from ridgeline.models.spec import Attention, Block, Embedding, Head, LatentSpace, Mlp, ModelSpec, Norm, from_layers

BARE = Norm(kind="layer", weight=False)
SCALE = 8  # pixels a side of one latent
VIDEO_FRAMES = 4  # frames of one latent frame
TIME = 256  # sines and cosines that a timestep becomes
TEXT = 512  # tokens of T5 that FLUX and Wan pad text to
SHORT_TEXT = 333  # 77 of two CLIPs and 256 of T5, as Stable Diffusion 3's pipeline has by default


def _linear(inputs: int, outputs: int) -> int:
    """Parameters of a linear layer with its bias."""
    return inputs * outputs + outputs


def _attention(cfg: Config, **traits: Any) -> Attention:
    heads, size = cfg.count("num_attention_heads"), cfg.count("attention_head_dim")
    usual: dict[str, Any] = {"qkv_bias": True, "out_bias": True, "positions": "rope", "causal": False}
    return Attention(heads=heads, kv_heads=heads, head_dim=size, **{**usual, **traits})


def _plain(hidden: int) -> Mlp:
    return Mlp(hidden=hidden, gated=False, bias=True, activation="gelu_pytorch_tanh")


def _whole(hidden: int, layers: list[Block], head: Head, space: LatentSpace) -> ModelSpec:
    blocks, order = from_layers(layers)
    return ModelSpec(
        id="", name="", hidden=hidden, vocab=0, embedding=Embedding(), blocks=blocks, order=order, norm=BARE,
        head=head, latent_space=space,
    )  # fmt: skip


def flux(cfg: Config) -> ModelSpec:
    """FLUX.1: latents arrive packed two by two, so that a token is 16 pixels a side."""
    cfg.ignore("axes_dims_rope", "axes_dim_rope", "theta")
    attention = _attention(cfg, qk_norm="head")
    hidden, inputs = attention.heads * attention.head_dim, cfg.count("in_channels")
    patch, outputs = cfg.count("patch_size", 1), cfg.count("out_channels", cfg.count("in_channels"))
    text, pooled = cfg.count("joint_attention_dim"), cfg.count("pooled_projection_dim")
    steps = 2 if cfg.flag("guidance_embeds", False) else 1
    double = Block(mixer=attention, ffn=_plain(4 * hidden), norm=BARE, streams=2, modulation=6)
    single = Block(
        mixer=replace(attention, out_bias=False), ffn=_plain(4 * hidden), norm=BARE, norms=1, parallel=True,
        modulation=3,
    )  # fmt: skip
    timestep = steps * (TIME * hidden + hidden**2) + pooled * hidden + hidden**2
    space = LatentSpace(
        inputs=inputs * patch**2, pixels=2 * SCALE * patch, text=TEXT, per_text=text * hidden, per_step=timestep,
        other_params=timestep + (2 * steps + 2) * hidden + _linear(text, hidden) + _linear(inputs, hidden),
    )  # fmt: skip
    head = Head(kind="tokens", outputs=patch**2 * outputs, extra=_linear(hidden, 2 * hidden) + patch**2 * outputs)
    layers = [double] * cfg.layers("num_layers") + [single] * cfg.layers("num_single_layers")
    return _whole(hidden, layers, head, space)


def sd3(cfg: Config) -> ModelSpec:
    """Stable Diffusion 3 and 3.5 large: in the last layer text gives keys and values and goes no further."""
    cfg.ignore("sample_size", "pos_embed_max_size")
    if cfg.counts("dual_attention_layers"):
        cfg.bad(
            "dual_attention_layers", cfg.data["dual_attention_layers"], "none", "a second attention is not described"
        )
    cfg.only("qk_norm", "rms_norm")
    attention = _attention(cfg, positions="none", qk_norm="head" if cfg.has("qk_norm") else "none")
    hidden, patch, channels = attention.heads * attention.head_dim, cfg.count("patch_size"), cfg.count("in_channels")
    cfg.only("caption_projection_dim", hidden)
    text, pooled = cfg.count("joint_attention_dim"), cfg.count("pooled_projection_dim")
    outputs = patch**2 * cfg.count("out_channels", channels)
    block = Block(mixer=attention, ffn=_plain(4 * hidden), norm=BARE, streams=2, modulation=6)
    normed = 2 * attention.head_dim if attention.qk_norm == "head" else 0
    last = replace(block, streams=1, extra=5 * _linear(hidden, hidden) + normed)
    timestep = TIME * hidden + hidden**2 + pooled * hidden + hidden**2
    space = LatentSpace(
        inputs=channels * patch**2, pixels=SCALE * patch, text=SHORT_TEXT, per_text=text * hidden, per_step=timestep,
        other_params=timestep + 4 * hidden + _linear(text, hidden) + _linear(channels * patch**2, hidden),
    )  # fmt: skip
    head = Head(kind="tokens", outputs=outputs, extra=_linear(hidden, 2 * hidden) + outputs)
    return _whole(hidden, [block] * (cfg.layers("num_layers") - 1) + [last], head, space)


def wan(cfg: Config) -> ModelSpec:
    """Wan 2.1 and 2.2 from text: latent frames of video, cross attention of text, learned vectors beside the
    modulation that all layers share."""
    cfg.ignore("rope_max_seq_len", "freq_dim", "eps")
    for key in ("image_dim", "added_kv_proj_dim", "pos_embed_seq_len"):
        if cfg.has(key):
            cfg.bad(key, cfg.data[key], "nothing", "images beside text are not described")
        cfg.ignore(key)
    cfg.only("qk_norm", "rms_norm_across_heads")
    attention = _attention(cfg, qk_norm="full" if cfg.has("qk_norm") or "qk_norm" not in cfg.data else "none")
    hidden, channels, text = attention.heads * attention.head_dim, cfg.count("in_channels"), cfg.count("text_dim")
    sizes = cfg.counts("patch_size") or (1, 2, 2)
    time, side = (sizes[0], sizes[1]) if len(sizes) == 3 and sizes[1] == sizes[2] and min(sizes) > 0 else (0, 0)
    if not side:
        cfg.bad("patch_size", sizes, "frames, and two equal sides")
        time, side = 1, 2
    volume = time * side**2
    norm = 2 * hidden if cfg.flag("cross_attn_norm") else 0
    cross = replace(attention, positions="none")
    block = Block(
        mixer=attention, cross=cross, ffn=_plain(cfg.count("ffn_dim")), norm=BARE, norms=3, extra=6 * hidden + norm
    )
    per_step = TIME * hidden + hidden**2 + 6 * hidden**2
    space = LatentSpace(
        inputs=channels * volume, pixels=SCALE * side, frames=VIDEO_FRAMES * time, text=TEXT, joint=False,
        per_text=text * hidden + hidden**2, per_step=per_step,
        other_params=per_step + 8 * hidden + _linear(text, hidden) + _linear(hidden, hidden)
        + _linear(channels * volume, hidden),
    )  # fmt: skip
    outputs = cfg.count("out_channels") * volume
    head = Head(kind="tokens", outputs=outputs, extra=2 * hidden + outputs)
    return _whole(hidden, [block] * cfg.layers("num_layers"), head, space)


def dit(cfg: Config) -> ModelSpec:
    """DiT: every layer embeds timestep and class by itself, as diffusers builds it."""
    cfg.ignore("sample_size", "norm_num_groups", "upcast_attention", "norm_eps", "activation_fn")
    cfg.only("norm_type", "ada_norm_zero")
    cfg.only("norm_elementwise_affine", False)
    bias = cfg.flag("attention_bias")
    attention = _attention(cfg, positions="none", qkv_bias=bias)
    hidden, patch, channels = attention.heads * attention.head_dim, cfg.count("patch_size"), cfg.count("in_channels")
    rows = (cfg.count("num_embeds_ada_norm") + 1) * hidden
    own = _linear(TIME, hidden) + _linear(hidden, hidden) + rows
    block = Block(mixer=attention, ffn=_plain(4 * hidden), norm=BARE, modulation=6, extra=own)
    layers = cfg.layers("num_layers")
    space = LatentSpace(
        inputs=channels * patch**2, pixels=SCALE * patch, per_step=layers * (TIME * hidden + hidden**2),
        other_params=_linear(channels * patch**2, hidden),
    )  # fmt: skip
    outputs = patch**2 * cfg.count("out_channels", channels)
    head = Head(kind="tokens", outputs=outputs, extra=_linear(hidden, 2 * hidden) + outputs)
    return _whole(hidden, [block] * layers, head, space)


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
        "WanTransformer3DModel": {
            "num_attention_heads": 40, "attention_head_dim": 128, "in_channels": 16, "num_layers": 40,
            "text_dim": 4096, "ffn_dim": 13824, "cross_attn_norm": True, "out_channels": 16,
        },
    }
)  # fmt: skip
DIFFUSION: Mapping[str, Callable[[Config], ModelSpec]] = MappingProxyType(
    {
        "DiTTransformer2DModel": dit,
        "FluxTransformer2DModel": flux,
        "SD3Transformer2DModel": sd3,
        "WanTransformer3DModel": wan,
    }
)
