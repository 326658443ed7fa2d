"""Encoders of images and sound against transformers' own: tokens by its processors, flops by a counted forward."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("PIL")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from ridgeline.models.facts import audio_flops, image_flops  # noqa: E402
from ridgeline.models.hf import from_config  # noqa: E402
from ridgeline.models.media_tokens import audio_input, image_input, video_input  # noqa: E402
from ridgeline.models.spec import ModelSpec  # noqa: E402

transformers.logging.set_verbosity_error()
DRAW = random.Random(7)
SIZES = [(224, 224), (1080, 1920), (100, 1500), (3000, 4000), (30, 31)]
SIZES += [(DRAW.randint(60, 3000), DRAW.randint(60, 3000)) for _ in range(40)]
LLAMA, QWEN = {"text_config": {"model_type": "llama"}}, {"text_config": {"model_type": "qwen2"}}
SMALL = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 4}
CLIP = {**SMALL, "model_type": "clip_vision_model", "image_size": 336, "patch_size": 14}
SIGLIP = {**CLIP, "model_type": "siglip_vision_model", "vision_use_head": False}


def _pil(kind: str, name: str, **keys: Any) -> Any:
    folder = getattr(transformers.models, kind)
    return getattr(getattr(folder, f"image_processing_pil_{kind}"), f"{name}ImageProcessorPil")(**keys)


def _patches(kind: str, name: str, merge: int, **keys: Any) -> Callable[[int, int], int]:
    made = _pil(kind, name, **keys)
    return lambda high, wide: made.get_number_of_image_patches(high, wide, {}) // merge**2


def _anyres(processor: Any, grids: list[list[int]], side: int, less: int, **keys: Any) -> Callable[[int, int], int]:
    made = processor.__new__(processor)
    made.image_processor = type("Grids", (), {"image_grid_pinpoints": grids})()
    for key, value in keys.items():
        setattr(made, key, value)
    return lambda high, wide: made._get_number_of_features(high, wide, side, side) - less


def _split(high: int, wide: int) -> int:
    made = _pil("smolvlm", "SmolVLM", size={"longest_edge": 2048}, max_image_size={"longest_edge": 512})
    _, rows, columns = made.get_number_of_image_patches(high, wide, {})
    return int(67 + 66 * columns * rows + rows)


NEXT = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
ONE = [[384 * high, 384 * wide] for high in range(1, 7) for wide in range(1, 7)]
PROCESSORS: dict[str, tuple[dict[str, Any], Callable[[], Callable[[int, int], int]]]] = {
    "qwen2_5_vl": (
        {}, lambda: _patches("qwen2_vl", "Qwen2VL", 2, size={"shortest_edge": 3136, "longest_edge": 12845056})
    ),
    "qwen3_vl": (
        {},
        lambda: _patches(
            "qwen2_vl", "Qwen2VL", 2, patch_size=16, size={"shortest_edge": 65536, "longest_edge": 16777216}
        ),
    ),
    "glm4v": ({}, lambda: _patches("glm4v", "Glm4v", 2)),
    "llava_next": (
        {**LLAMA, "vision_config": CLIP},
        lambda: _anyres(
            transformers.LlavaNextProcessor, NEXT, 336, 1, patch_size=14, num_additional_image_tokens=1
        ),
    ),
    "llava_onevision": (
        {**QWEN, "vision_config": {**SIGLIP, "image_size": 384}, "vision_feature_select_strategy": "full"},
        lambda: _anyres(
            transformers.LlavaOnevisionProcessor, ONE, 384, 0, num_image_tokens=729, vision_aspect_ratio="anyres_max_9"
        ),
    ),
    "smolvlm": (
        {**LLAMA, "scale_factor": 4, "vision_config": {"image_size": 512, "patch_size": 16}}, lambda: _split
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", PROCESSORS)
def test_tokens_of_any_image_are_the_processors(kind: str) -> None:
    keys, made = PROCESSORS[kind]
    vision = from_config({"model_type": kind, **keys}).vision
    assert vision is not None
    theirs = made()
    wrong = [size for size in SIZES if image_input(vision, *size).tokens != theirs(*size)]
    assert not wrong


def test_tiles_of_internvl_are_the_processors() -> None:
    vision = from_config({"model_type": "internvl", **QWEN}).vision
    assert vision is not None
    made = _pil("got_ocr2", "GotOcr2", size={"height": 448, "width": 448}, crop_to_patches=True)
    for size in SIZES:
        assert image_input(vision, *size).views == made.get_number_of_image_patches(*size, {})


TEXT = {
    "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 512,
    "num_key_value_heads": 4, "head_dim": 64,
}  # fmt: skip
TURNED = {**TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12]}}
TOWER = {"depth": 3, "hidden_size": 320, "intermediate_size": 856, "num_heads": 4, "out_hidden_size": 256}
SOUND = {"d_model": 256, "encoder_layers": 3, "encoder_attention_heads": 4, "encoder_ffn_dim": 1024}


def _made(kind: str, name: str, keys: dict[str, Any]) -> tuple[Any, ModelSpec]:
    config = transformers.AutoConfig.for_model(kind, **keys)
    built = getattr(transformers, name)(config).eval()
    for part in built.modules():
        if hasattr(part, "config"):
            part.config._attn_implementation = "eager"
    return built, from_config({**keys, "model_type": kind})


def _flops(run: Callable[[], Any]) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "tower"),
    [
        ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", {**TOWER, "fullatt_block_indexes": [1]}),
        ("qwen3_vl", "Qwen3VLForConditionalGeneration", {**TOWER, "deepstack_visual_indexes": [1]}),
        ("glm4v", "Glm4vForConditionalGeneration", TOWER),
    ],
)
def test_flops_of_patches_of_images_and_video(kind: str, name: str, tower: dict[str, Any]) -> None:
    built, spec = _made(kind, name, {"text_config": TURNED, "vision_config": tower})
    vision = spec.vision
    assert vision is not None
    high, wide, steps = 20 * vision.patch, 38 * vision.patch, 3
    pixels = torch.zeros(20 * 38, vision.patch_inputs)
    one = _flops(lambda: built.model.get_image_features(pixels, torch.tensor([[1, 20, 38]])))
    several = _flops(
        lambda: built.model.get_video_features(pixels.repeat(steps, 1), torch.tensor([[steps, 20, 38]]))
    )  # fmt: skip
    assert image_flops(spec, image_input(vision, high, wide)) == pytest.approx(one, rel=0.005)
    assert image_flops(spec, video_input(vision, 2 * steps, high, wide)) == pytest.approx(several, rel=0.005)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "keys"),
    [
        ("llava", "LlavaForConditionalGeneration", {"text_config": {**TEXT, "model_type": "llama"}}),
        ("internvl", "InternVLForConditionalGeneration", {"text_config": {**TEXT, "model_type": "qwen2"}}),
        ("paligemma", "PaliGemmaForConditionalGeneration", {"text_config": {**TEXT, "model_type": "gemma"}}),
        ("gemma3", "Gemma3ForConditionalGeneration", {"text_config": TEXT, "mm_tokens_per_image": 36}),
    ],
)
def test_flops_of_one_view(kind: str, name: str, keys: dict[str, Any]) -> None:
    towers = {"llava": CLIP, "internvl": {**SMALL, "image_size": [336, 336], "patch_size": [14, 14]}}
    more = {"projection_dim": 256} if kind == "paligemma" else {}
    built, spec = _made(kind, name, {**keys, **more, "vision_config": towers.get(kind, SIGLIP)})
    assert spec.vision is not None
    theirs = _flops(lambda: built.model.get_image_features(torch.zeros(1, 3, 336, 336)))
    assert image_flops(spec, image_input(spec.vision, 336, 336)) == pytest.approx(theirs, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [10, 23.77])
@pytest.mark.parametrize("kind", ["qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"])
def test_flops_and_tokens_of_sound(kind: str, seconds: float) -> None:
    name = {"qwen2": "Qwen2_5OmniThinker", "qwen3": "Qwen3OmniMoeThinker"}[kind[:5]] + "ForConditionalGeneration"
    tower = {**TOWER, ("fullatt_block_indexes" if kind[4] == "2" else "deepstack_visual_indexes"): [1]}
    keys = {"text_config": TURNED, "vision_config": tower, "audio_config": {**SOUND, "output_dim": 256}}
    built, spec = _made(kind, name, keys)
    assert spec.audio is not None
    heard, spectra = audio_input(spec.audio.clip, seconds), round(100 * seconds)
    own = getattr(built, "model", built).audio_tower
    found: list[Any] = []
    theirs = _flops(lambda: found.append(own(torch.zeros(128, spectra), feature_lens=torch.tensor([spectra]))))
    assert heard.tokens == found[0].last_hidden_state.shape[0]
    assert audio_flops(spec, heard) == pytest.approx(theirs, rel=0.01)


@pytest.mark.slow
def test_flops_of_sound_filled_up() -> None:
    keys = {"text_config": {**TEXT, "model_type": "llama"}, "audio_config": SMALL}
    built, spec = _made("voxtral", "VoxtralForConditionalGeneration", keys)
    assert spec.audio is not None
    theirs = _flops(lambda: built.model.get_audio_features(torch.zeros(2, 128, 3000)))
    assert math.isclose(audio_flops(spec, audio_input(spec.audio.clip, 40)), theirs, rel_tol=0.005)
