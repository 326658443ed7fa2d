"""Tokens of images, video and sound against what the processors of transformers 5.22 give, written down by hand."""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline.models.facts import audio_flops, image_flops
from ridgeline.models.hf import from_config
from ridgeline.models.load import model
from ridgeline.models.media_tokens import audio_input, image_input, tokens_input, video_input
from ridgeline.models.sizing import Clip, EncoderInput, Sizing
from ridgeline.models.spec import ModelSpec, Vision

LLAMA, QWEN = {"text_config": {"model_type": "llama"}}, {"text_config": {"model_type": "qwen2"}}
CLIP = {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14}
SIGLIP = {"model_type": "siglip_vision_model", "image_size": 384, "patch_size": 14, "vision_use_head": False}
SMOL = {"image_size": 512, "patch_size": 16}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {}, "qwen3_vl": {}, "glm4v": {}, "internvl": QWEN, "llama4": {"vision_config": {"image_size": 336}},
    "llava_next": {**LLAMA, "vision_config": CLIP},
    "llava_onevision": {**QWEN, "vision_config": SIGLIP, "vision_feature_select_strategy": "full"},
    "smolvlm": {**LLAMA, "scale_factor": 4, "vision_config": SMOL},
    "mistral3": {
        "text_config": {"model_type": "mistral"}, "spatial_merge_size": 2,
        "vision_config": {"model_type": "pixtral", "image_size": 1540, "patch_size": 14},
    },
    "gemma3": {"vision_config": {**SIGLIP, "image_size": 896}},
    "gemma4": {"text_config": {"hidden_size_per_layer_input": 0}, "vision_config": {"patch_size": 16}},
    "kimi_k25": {"text_config": {"model_type": "deepseek_v3"}},
}  # fmt: skip


def _read(kind: str) -> ModelSpec:
    return from_config({"model_type": kind, **CONFIGS[kind]})


def _vision(kind: str) -> Vision:
    vision = _read(kind).vision
    assert vision is not None
    return vision


# (height, width): tokens; each by the formula of the processor's own file, in comments
IMAGES: dict[str, dict[tuple[int, int], int]] = {
    # sides to multiples of 28: 1092 x 1932, 28 x 1512, 644 x 476; 3000 x 4000 has fewer than 12,845,056 pixels
    "qwen2_5_vl": {(1080, 1920): 39 * 69, (30, 1500): 54, (640, 480): 23 * 17, (3000, 4000): 107 * 143},
    # multiples of 32; 100 x 100 is below 65,536 pixels: scaled by 2.56 to 256
    "qwen3_vl": {(1080, 1920): 34 * 60, (100, 100): 64},
    # two frames of an image count against 28 * 28 * 15000 pixels
    "glm4v": {(1080, 1920): 39 * 69, (3000, 4000): 75 * 100},
    # the canvas of 672 x 672 has 48 rows, of which the image takes 36
    "llava_next": {(480, 640): 576 + 36 * 48 + 36, (300, 1000): 576 + 22 * 72 + 22},
    # the canvas of 768 x 768 has 54 rows, of which the image takes 40; beyond nine tiles tokens are shrunk
    "llava_onevision": {(480, 640): 729 + 40 * 54 + 40, (3000, 4000): 729 + 70 * 93 + 70},
    # 4 x 3 tiles of 448 and the whole image, 256 tokens each, two marks; a small square is one view
    "internvl": {(900, 1200): 13 * 256 + 2, (400, 400): 256 + 2},
    # 2048 x 1536: 4 x 3 tiles of 512; 64 tokens and two marks a tile, a mark a row, the whole image with three
    "smolvlm": {(900, 1200): 67 + 3 * (66 * 4 + 1), (512, 512): 67 + 4 * (66 * 4 + 1)},
    # at most 1540 pixels a side, up to multiples of 28; a break ends each row
    "mistral3": {(448, 616): 16 * (22 + 1), (1080, 1920): 31 * (55 + 1)},
    "gemma3": {(900, 1200): 256, (100, 5000): 256},
    # at most 280 tokens of 48 pixels a side
    "gemma4": {(768, 768): 256, (480, 640): 14 * 19, (100, 1500): 4 * 64},
    # never enlarged, padded to multiples of 28
    "kimi_k25": {(1080, 1920): 39 * 69, (30, 30): 4},
    # up to 16 tiles of 336: 3 x 4 for 900 x 1300, a separator behind each, the whole image, three marks
    "llama4": {(900, 1300): 13 * 144 + 12 + 3, (300, 300): 144 + 3},
}


@pytest.mark.parametrize("kind", IMAGES)
def test_tokens_of_images_are_those_of_the_processor(kind: str) -> None:
    vision = _vision(kind)
    found = {size: image_input(vision, *size).tokens for size in IMAGES[kind]}
    assert found == IMAGES[kind]


def test_tokens_of_video() -> None:
    pairs = video_input(_vision("qwen2_5_vl"), 9, 480, 640)  # 476 x 644 pixels, an odd frame is paired with itself
    assert (pairs.views, pairs.positions, pairs.tokens) == (5, 34 * 46, 5 * 17 * 23)
    whole = video_input(_vision("qwen3_vl"), 768, 1080, 1920)  # 25,165,824 pixels over all frames
    assert whole.tokens == 384 * 4 * 7
    assert video_input(_vision("glm4v"), 8, 480, 640).tokens == 4 * 17 * 23
    assert video_input(_vision("llava_onevision"), 6).tokens == 6 * 14 * 14 + 1  # pooled two by two, one newline
    assert video_input(_vision("internvl"), 6, 900, 1200).tokens == 6 * 256  # a tile a frame
    assert video_input(_vision("gemma3"), 4).tokens == 4 * 256
    assert video_input(_vision("gemma4"), 4, 480, 640).tokens == 4 * 7 * 9
    kimi = video_input(_vision("kimi_k25"), 8, 448, 448)  # four frames see each other and are averaged
    assert (kimi.views, kimi.positions, kimi.tokens) == (2, 4 * 1024, 2 * 256)


def test_tokens_of_sound() -> None:
    thirty = Clip(chunk=3000, window=1500, padded=30, pool=2)
    whisper = audio_input(thirty, 10)  # Qwen2-Audio: the layers read 30 s, the language model ten
    assert (whisper.total, whisper.projected, whisper.tokens) == (1500, 750, 250)
    voxtral = from_config({"model_type": "voxtral", **LLAMA})
    assert voxtral.audio is not None
    assert audio_input(voxtral.audio.clip, 40).tokens == 2 * 375  # silence becomes tokens, too
    omni = from_config({"model_type": "qwen2_5_omni_thinker"})
    assert omni.audio is not None
    heard = audio_input(omni.audio.clip, 23.77)  # 2377 spectra: 11 chunks of 200 and one of 177
    assert (round(heard.total), heard.tokens) == (1189, 594)
    third = from_config({"model_type": "qwen3_omni_moe_thinker", "text_config": {"head_dim": 128}})
    assert third.audio is not None
    assert audio_input(third.audio.clip, 23.77).tokens == 23 * 13 + 10
    assert audio_input(thirty, 0) == EncoderInput()


def test_windows_at_the_border_are_smaller() -> None:
    vision = _vision("qwen2_5_vl")
    assert image_input(vision, 448, 448).window == 64
    assert image_input(vision, 308, 616).window == pytest.approx((2 * 64 + 36) / 22 * (5 * 64 + 16) / 44)


def test_two_sizes_have_as_many_positions_and_pairs_as_both() -> None:
    one, other = EncoderInput(views=2, positions=1000, tokens=5), EncoderInput(views=30, positions=77, tokens=7)
    both = one + other
    assert both.total == pytest.approx(one.total + other.total)
    assert both.total * both.positions == pytest.approx(2 * 1000**2 + 30 * 77**2, rel=1e-3)
    assert both.tokens == 12
    assert one + EncoderInput() == one == EncoderInput() + one


def test_tokens_instead_of_a_size() -> None:
    assert tokens_input(_vision("qwen2_5_vl"), 300).positions == 1200
    tiled = tokens_input(_vision("internvl"), 7 * 256)
    assert (tiled.views, tiled.positions, tiled.tokens) == (7, 1024, 1792)


def test_flops_of_a_tower_by_hand() -> None:
    spec = model("qwen2.5-vl-7b")
    assert spec.vision is not None
    layer = 2 * (4 * 1280**2 + 3 * 1280 * 3420)
    scores = 4 * 1280 * (4 * 1024 + 28 * 64)
    merger = 5120**2 + 5120 + 5120 * 3584 + 3584 + 1280
    expected = 1024 * (2 * 1176 * 1280 + 32 * layer + scores) + 2 * 256 * merger
    assert image_flops(spec, image_input(spec.vision, 448, 448)) == pytest.approx(expected)
    omni = from_config({"model_type": "qwen2_5_omni_thinker"})
    assert omni.audio is not None
    position = 2 * (2 * 3 * 128 * 1280 + 3 * 1280**2) + 32 * (2 * 12 * 1280**2 + 4 * 100 * 1280)
    heard = 500 * position + 2 * 250 * (1280 * 3584 + 3584)
    assert audio_flops(omni, audio_input(omni.audio.clip, 10)) == pytest.approx(heard)


def test_a_model_without_a_rule_takes_whole_patches() -> None:
    vision = _vision("qwen2_5_vl")
    plain = image_input(type(vision)(**{**_fields(vision), "sizing": Sizing()}), 450, 620)
    assert (plain.positions, plain.tokens) == (32 * 44, 352)


def _fields(vision: Vision) -> dict[str, Any]:
    return {name: getattr(vision, name) for name in vision.__dataclass_fields__}
