"""Turn the vision part of a config into an image encoder: its layers, and the parameters around them.

A tower that takes images of any size is described at the size its position table was made for, or at `ANY_IMAGE` pixels
a side when it has no such table; `Vision.image` says which. How images of other sizes are cut (`Vision.sizing`) is in
no config.json: the rules and limits here are those of the processors that are published beside these models.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import read_text
from ridgeline.models.hf.config import Config, Keys
from ridgeline.models.hf.parts import LAYER, RMS, divide, mlp
from ridgeline.models.sizing import Rule, Sizing
from ridgeline.models.spec import Attention, Block, Mlp, ModelSpec, Vision

ANY_IMAGE = 448  # pixels a side; a multiple of every patch and merge size in use
PIXELS_2 = (56 * 56, 12_845_056), (128 * 28 * 28, 768 * 28 * 28)  # of an image, of a frame: Qwen2-VL, Qwen2.5-VL
PIXELS_3 = (256 * 256, 4096 * 4096), (4096, 24576 * 1024)  # of an image, of a whole video: Qwen3-VL and later
TILES_LLAMA = 16
HEADS = ("num_attention_heads", "num_heads", "vt_num_attention_heads")  # one idea, three names
Tower = Callable[[Config], Vision]


def _heads(cfg: Config, hidden: int, bias: bool = True, window: int = 0, keys: tuple[str, ...] = HEADS) -> Attention:
    """An encoder's attention: all heads have keys and values of their own."""
    count = cfg.count(keys)
    size = divide(cfg, keys[0], hidden, count)
    return Attention(heads=count, kv_heads=count, head_dim=size, qkv_bias=bias, out_bias=bias, window=window)


def _block(cfg: Config, hidden: int, ffn: Mlp) -> Block:
    """An encoder's usual layer: layer norms and biases."""
    return Block(mixer=_heads(cfg, hidden), ffn=ffn, norm=LAYER)


def _plain(cfg: Config, key: Keys = "intermediate_size") -> Mlp:
    return mlp(cfg, key, gated=False, bias=True)


def _patches(cfg: Config, image: int, patch: int) -> int:
    """Patches of one image."""
    if image < patch:
        cfg.clash("image_size", image, f"at least one patch of {patch}")
    return max(1, image // patch) ** 2


SQUARE = Sizing(rule="square")


def square_frame(cfg: Config, check: bool = True) -> JsonObject:
    """Sizes of a tower over square images of one size: width, layers, patches, numbers of one of them."""
    hidden, patch, image = cfg.count("hidden_size"), cfg.square("patch_size"), cfg.square("image_size")
    tokens = _patches(cfg, image, patch) if check else max(1, image // patch) ** 2
    inputs, layers = cfg.count("num_channels") * patch**2, cfg.layers()
    sizes = {"hidden": hidden, "patch": patch, "image": image, "tokens": tokens}
    return sizes | {"inputs": inputs, "layers": layers}


def clip(cfg: Config) -> Vision:
    """CLIP: a class token, learned positions, a norm before and after the layers."""
    cfg.ignore("projection_dim", "vocab_size")
    frame = square_frame(cfg)
    hidden, tokens = frame["hidden"], frame["tokens"]
    rows = hidden + frame["inputs"] * hidden + (tokens + 1) * hidden
    block, outer_params = _block(cfg, hidden, _plain(cfg)), rows + 2 * LAYER.params(hidden)
    return Vision(**frame, block=block, other_params=outer_params, sizing=SQUARE)


def siglip(cfg: Config) -> Vision:
    """SigLIP: learned positions, a norm after the layers and, unless switched off, an attention-pooling head."""
    cfg.ignore("projection_dim", "vocab_size", "projector_hidden_act", "num_image_tokens")
    frame, ffn = square_frame(cfg), _plain(cfg)
    hidden = frame["hidden"]
    rows = frame["inputs"] * hidden + hidden + frame["tokens"] * hidden
    pooling = hidden + 4 * hidden**2 + 4 * hidden + LAYER.params(hidden) + 2 * hidden * ffn.hidden + ffn.hidden + hidden
    head = pooling if cfg.flag("vision_use_head", True) else 0
    outer_params = rows + LAYER.params(hidden) + head
    return Vision(**frame, block=_block(cfg, hidden, ffn), other_params=outer_params, sizing=SQUARE)


def pixtral(cfg: Config) -> Vision:
    """Pixtral: rotary positions, gated mlps, no biases."""
    cfg.ignore("vocab_size")
    frame, ffn = square_frame(cfg), mlp(cfg)
    hidden = frame["hidden"]
    mixer = _heads(cfg, hidden, bias=False)
    cfg.only("head_dim", mixer.head_dim)
    sizing = Sizing(rule="longest", most=frame["image"], breaks=True)
    outer_params = frame["inputs"] * hidden + hidden
    return Vision(**frame, block=Block(mixer=mixer, ffn=ffn), other_params=outer_params, sizing=sizing)


def intern(cfg: Config) -> Vision:
    """InternViT: a class token, learned positions, layer scales; biases by switch."""
    cfg.understand("intern_tower")
    frame = square_frame(cfg, check=False)
    hidden = frame["hidden"]
    mixer = replace(
        _heads(cfg, hidden), qkv_bias=cfg.flag("attention_bias"), positions="learned",
        qk_norm="full" if cfg.flag("use_qk_norm", False) else "none",
    )  # fmt: skip
    rows = cfg.flag("use_absolute_position_embeddings", True) * (frame["tokens"] + 1) * hidden
    norm = LAYER if cfg.word("norm_type", "layer_norm") == "layer_norm" else RMS
    pool_norm = 0 if cfg.flag("use_mean_pooling", True) else norm.params(hidden)
    block = Block(mixer=mixer, ffn=_plain(cfg), norm=norm, extra=2 * hidden)
    return Vision(**frame, block=block, other_params=hidden + frame["inputs"] * hidden + hidden + rows + pool_norm)


def smol(cfg: Config) -> Vision:
    """SigLIP's layers as Idefics 3 has them: learned positions, a norm behind the layers."""
    cfg.ignore("max_num_images", "size", "tie_word_embeddings", "use_base_siglip", "vocab_size")
    frame = square_frame(cfg, check=False)
    hidden = frame["hidden"]
    block = Block(mixer=replace(_heads(cfg, hidden), positions="learned"), ffn=_plain(cfg), norm=LAYER)
    outer_params = frame["inputs"] * hidden + hidden + frame["tokens"] * hidden + LAYER.params(hidden)
    return Vision(**frame, block=block, other_params=outer_params)


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


def _qwen_frame(cfg: Config, hidden: int, image: int = ANY_IMAGE) -> JsonObject:
    """Sizes of a tower over images of any size, whose patches are made of several frames."""
    patch = cfg.square("patch_size")
    inputs = cfg.count(("in_channels", "in_chans")) * cfg.square("temporal_patch_size") * patch**2
    sizes = {"hidden": hidden, "patch": patch, "image": image, "tokens": _patches(cfg, image, patch)}
    return sizes | {"layers": cfg.layers("depth"), "inputs": inputs, "other_params": inputs * hidden}


def qwen2_vl(cfg: Config) -> Vision:
    """Qwen2-VL: rotary positions; `hidden_size` is the language model's width."""
    hidden = cfg.count("embed_dim")
    cfg.ignore("spatial_patch_size")
    ffn = Mlp(hidden=cfg.count("mlp_ratio") * hidden, gated=False, bias=True, activation=cfg.word("hidden_act"))
    vision = Vision(**_qwen_frame(cfg, hidden), block=_block(cfg, hidden, ffn))
    return _with_merger(cfg, vision, norm=LAYER.params(hidden), out="hidden_size")


def qwen2_5_vl(cfg: Config) -> Vision:
    """Qwen2.5-VL: gated mlps and windowed attention in all layers but a few."""
    hidden = cfg.count("hidden_size")
    cfg.ignore("tokens_per_second", "spatial_patch_size", "in_chans")
    ffn, frame = mlp(cfg, bias=True), _qwen_frame(cfg, hidden)
    full = {index for index in cfg.counts("fullatt_block_indexes") if index < frame["layers"]}
    mixer = _heads(cfg, hidden, window=(cfg.count("window_size") // frame["patch"]) ** 2)
    vision = Vision(**frame, block=Block(mixer=mixer, ffn=ffn), windowed=frame["layers"] - len(full))
    return _with_merger(cfg, vision, norm=RMS.params(hidden))


def qwen3_vl(cfg: Config) -> Vision:
    """Qwen3-VL, Qwen 3.5: learned positions too, and mergers for the layers in `deepstack_visual_indexes`."""
    hidden, rows = cfg.count("hidden_size"), cfg.count("num_position_embeddings")
    frame = _qwen_frame(cfg, hidden, max(1, math.isqrt(rows)) * cfg.square("patch_size"))
    frame["other_params"] += hidden + rows * hidden
    vision = Vision(**frame, block=_block(cfg, hidden, _plain(cfg)))
    return _with_merger(cfg, vision, norm=LAYER.params(hidden), mergers=len(cfg.counts("deepstack_visual_indexes")))


def glm(cfg: Config) -> Vision:
    """GLM-4V: gated mlps, a convolution that merges patches, a gated merger."""
    hidden, patch, image = cfg.count("hidden_size"), cfg.square("patch_size"), cfg.square("image_size")
    merge, out = cfg.count("spatial_merge_size"), cfg.count("out_hidden_size")
    mixer = _heads(cfg, hidden, keys=("num_heads",))
    mixer = replace(mixer, qkv_bias=cfg.flag("attention_bias"), out_bias=False)
    inner, patches = cfg.count("intermediate_size"), max(1, image // patch) ** 2
    frames = cfg.square("temporal_patch_size")
    inputs = cfg.count(("in_channels", "in_chans")) * frames * patch**2
    area = Sizing(rule="area", merge=merge, least=112 * 112, most=28 * 28 * 15000, frames=frames, whole=True)
    return Vision(
        hidden=hidden,
        block=Block(mixer=mixer, ffn=mlp(cfg, "out_hidden_size")),
        layers=cfg.layers("depth"),
        patch=patch,
        image=image,
        tokens=max(1, patches // merge**2),
        inputs=inputs,
        projector_params=out * hidden * merge**2 + out + out**2 + LAYER.params(out) + 3 * out * inner,
        other_params=inputs * hidden + hidden + patches * hidden + 2 * RMS.params(hidden),
        sizing=area,
        video=replace(area, most=28 * 28 * 2 * 30000),
    )


def llama4(cfg: Config) -> Vision:
    """Llama 4: a class token, learned positions, and an adapter that shuffles patches into wider tokens."""
    cfg.understand("llama4_vision")
    frame, ffn = square_frame(cfg), _plain(cfg)
    hidden, tokens = frame["hidden"], frame["tokens"]
    rows = hidden + frame["inputs"] * hidden + (tokens + 1) * hidden
    into, out = cfg.count("projector_input_dim"), cfg.count("projector_output_dim")
    return Vision(
        **{**frame, "tokens": max(1, tokens // 4)},
        block=_block(cfg, hidden, ffn),
        projector_params=ffn.hidden * into + out * out,
        other_params=rows + 2 * LAYER.params(hidden),
        sizing=Sizing(rule="fit", merge=2, most=TILES_LLAMA, marks=3),
        video=Sizing(rule="square", merge=2),
    )


def kimi(cfg: Config) -> Vision:
    """Kimi K2.5: learned positions on a grid, merged two by two. Older files prefix its keys with `vt_`."""
    cfg.understand("kimi")
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
    cfg.understand("gemma4_vision")
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


IMAGES, VIDEO = "preprocessor_config.json", "video_preprocessor_config.json"
BIGGEST_PROCESSOR = 1024 * 1024  # bytes; most are one kilobyte
MOST = 2**53
# of each rule: keys of the least and the most that its limits speak of, the first that a file has
LEAST: Mapping[Rule, tuple[str, ...]] = {
    "area": ("min_pixels", "size.min_pixels", "size.shortest_edge"),
    "canvas": ("min_patches",),
}
LIMITS: Mapping[Rule, tuple[str, ...]] = {
    "area": ("max_pixels", "size.max_pixels", "size.longest_edge"),
    "longest": ("size.longest_edge",),
    "split": ("size.longest_edge",),
    "canvas": ("max_patches",),
    "fit": ("max_patches",),
    "budget": ("max_soft_tokens",),
    "native": ("max_patches",),
}


def as_processed(spec: ModelSpec, folder: Path) -> ModelSpec:
    """The model with the limits of images and video that the processors in its folder have. Which rule cuts an image is
    the model's own; a file that is not there changes nothing."""
    vision = spec.vision
    if vision is None:
        return spec
    sizing = _with_sizes(vision.sizing, _table(folder / IMAGES), IMAGES)
    video = _with_sizes(vision.video, _table(folder / VIDEO), VIDEO) if vision.video else None
    return replace(spec, vision=replace(vision, sizing=sizing, video=video))


def _with_sizes(own: Sizing, table: JsonMapping, file: str) -> Sizing:
    least = _first(table, LEAST.get(own.rule, ()), file)
    limit = _first(table, LIMITS.get(own.rule, ()), file)
    return replace(own, least=own.least if least is None else least, most=own.most if limit is None else limit)


def _first(table: JsonMapping, keys: tuple[str, ...], file: str) -> int | None:
    for key in keys:
        outer, _, inner = key.partition(".")
        below = table.get(outer)
        value = below.get(inner) if inner and isinstance(below, Mapping) else None if inner else below
        if value is None:
            continue
        if type(value) is not int or not 0 < value <= MOST:
            raise InputError(Problem(path=key, given=repr(value)[:60], expected="a whole number above 0", where=file))
        return value
    return None


def _table(path: Path) -> JsonMapping:
    if not path.is_file():
        return {}
    try:
        table = json.loads(read_text(path, BIGGEST_PROCESSOR))
    except (ValueError, RecursionError):
        expectation = "a processor's settings"
        raise InputError(Problem(path="", given="no JSON", expected=expectation, where=str(path))) from None
    return table if isinstance(table, Mapping) else {}
