"""Images, video and sound: diffusion transformers and image encoders, by the sizes that a workload gives."""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline import predict, scenario
from ridgeline.core.errors import InputError
from ridgeline.ir.ops import Attend, MatMul
from ridgeline.lowering.program import lower
from ridgeline.models.facts import audio_flops, forward_flops_per_token, image_flops, latent_flops
from ridgeline.models.hf import from_config
from ridgeline.models.params import count
from ridgeline.sim.memory.serving import serving_memory
from ridgeline.sim.phase_prediction import PhasePrediction
from ridgeline.sim.prediction import Prediction

FLUX = {"_class_name": "FluxTransformer2DModel", "guidance_embeds": True}
WAN = {"_class_name": "WanTransformer3DModel"}
SD3 = {"_class_name": "SD3Transformer2DModel", "num_layers": 24, "num_attention_heads": 24}
DIT = {"_class_name": "DiTTransformer2DModel"}
# parameters of the models that diffusers 0.42 builds on the meta device from these configs
PARAMETERS = [
    (FLUX, 11_901_408_320), ({**FLUX, "guidance_embeds": False}, 11_891_178_560), (SD3, 2_028_328_000),
    ({**SD3, "num_layers": 38, "num_attention_heads": 38, "qk_norm": "rms_norm"}, 8_056_627_520),
    (WAN, 14_288_491_584), ({**WAN, "num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30}, 1_418_996_800),
    (DIT, 749_808_016), ({**DIT, "attention_bias": False, "num_layers": 3, "patch_size": 4}, 82_842_688),
    ({**SD3, "qk_norm": "rms_norm", "dual_attention_layers": list(range(13))}, 2_243_171_520),
    ({**WAN, "in_channels": 36, "image_dim": 1280, "added_kv_proj_dim": 5120}, 16_394_878_784),
    ({"_class_name": "QwenImageTransformer2DModel"}, 20_430_401_088),
    ({"_class_name": "HunyuanVideoTransformer3DModel"}, 12_821_012_544),
    ({"_class_name": "CogVideoXTransformer3DModel"}, 1_693_783_872),
    (
        {"_class_name": "CogVideoXTransformer3DModel", "num_attention_heads": 48, "num_layers": 42, "patch_size_t": 2,
         "patch_bias": False, "in_channels": 32, "ofs_embed_dim": 512}, 5_571_594_880,
    ),
    ({"_class_name": "PixArtTransformer2DModel", "caption_channels": 4096}, 611_349_152),
    ({"_class_name": "SanaTransformer2DModel"}, 1_604_462_752),
    ({"_class_name": "LTXVideoTransformer3DModel"}, 1_923_385_472),
]  # fmt: skip


@pytest.mark.parametrize(("config", "built"), PARAMETERS)
def test_diffusers_configs_have_the_parameters_that_diffusers_builds(config: dict[str, Any], built: int) -> None:
    assert count(from_config(config)).total == built


@pytest.mark.parametrize(
    ("config", "work", "seq"),
    [
        (FLUX, {"height": 1024}, 4096 + 512),
        (SD3, {"height": 1024, "width": 512}, 2048 + 333),
        (WAN, {"height": 480, "width": 832, "frames": 81}, 21 * 30 * 52),
        (DIT, {"height": 256}, 256),
    ],
)
def test_sizes_are_lengths_and_products_are_the_models_flops(
    config: dict[str, Any], work: dict[str, Any], seq: int
) -> None:
    made = scenario({"model": config, "system": "8xh100-sxm", "workload": {**work, "global_batch": 8}, "plan": {}})
    assert made.workload.seq == seq
    assert any(f"seq = {seq}" in line for line in made.assumptions)
    program = lower(made)
    ran = params = 0.0
    for section, often in zip(program.sections, program.stages[0], strict=True):
        for op in section.forward:
            ran += often * (2 * op.m * op.n * op.k * op.groups if isinstance(op, MatMul) else 0)
            ran += often * (op.flops if isinstance(op, Attend) else 0)
        params += often * section.params
    own = seq * forward_flops_per_token(made.model, seq, source=made.encoder_tokens).total + latent_flops(
        made.model, seq
    )
    assert own <= ran * 1.0001  # the last text stream of Stable Diffusion 3 among it
    assert ran < 1.12 * own if config is not DIT else ran < 1.6 * own  # heads of 72 run as 128
    assert params == count(made.model).total


def test_a_denoising_step_and_a_training_step_grow_with_the_picture() -> None:
    steps = []
    for side in (512, 1024):
        work = {"kind": "prefill", "height": side}
        made = predict(scenario({"model": FLUX, "system": "1xh100-sxm", "workload": work, "plan": {"engine": "vllm"}}))
        assert isinstance(made, PhasePrediction)
        assert made.fits
        steps.append(made.step_time_s)
    assert 2.5 < steps[1] / steps[0] < 6
    assert 0.06 < steps[1] < 0.3  # 12 billion parameters over 4,608 tokens on one H100


@pytest.mark.parametrize("plan", [{"tp": 4}, {"shard": "zero3"}, {"pp": 2, "tp": 2}, {"cp": 2, "tp": 2}])
def test_video_is_predicted_under_every_kind_of_plan(plan: dict[str, Any]) -> None:
    work = {"height": 256, "frames": 17, "global_batch": 16}
    model = {**WAN, "num_layers": 8}
    made = predict(scenario({"model": model, "system": "8xh100-sxm", "workload": work, "plan": plan}))
    assert isinstance(made, Prediction)
    assert 0.02 < made.utilization.mfu < made.utilization.hfu < 1


def test_other_classes_of_diffusers_are_named() -> None:
    with pytest.raises(InputError, match=r"UNet2DConditionModel.*FluxTransformer2DModel"):
        from_config({"_class_name": "UNet2DConditionModel"})
    with pytest.raises(InputError, match="image_condition_type"):
        from_config({"_class_name": "HunyuanVideoTransformer3DModel", "image_condition_type": "token_replace"})


def _seen(**work: Any) -> Prediction:
    table = {"seq": 4096, "global_batch": 64, **work}
    plan = {"tp": 2, "dp": 4, "shard": "zero1", "microbatch": 2}
    made = predict(scenario({"model": "llava-1.5-7b", "system": "8xh100-sxm", "workload": table, "plan": plan}))
    assert isinstance(made, Prediction)
    return made


def test_towers_are_counted_frozen_or_trained() -> None:
    none, some, frozen = _seen(), _seen(images=4), _seen(images=4, towers="frozen")
    assert none.step_time_s < frozen.step_time_s < some.step_time_s
    one = image_flops(some.scenario.model)
    more = some.utilization.model_flops - none.utilization.model_flops
    assert more == pytest.approx(3 * 64 * 4 * one)
    assert frozen.utilization.model_flops - none.utilization.model_flops == pytest.approx(64 * 4 * one)
    assert any("images = 0: the image encoder" in line for line in none.assumptions)
    peaks = [made.memory.stages[0].peak_bytes for made in (none, frozen, some)]
    assert peaks[0] < peaks[1] < peaks[2]


def test_images_fit_into_their_sequence_and_have_a_size() -> None:
    with pytest.raises(InputError, match=r"images = 8, expected at most seq \(4096\) tokens: they become 4,608"):
        _seen(images=8)
    large = _seen(images=1, height=672)  # resized to the encoder's own square
    assert large.step_time_s == _seen(images=1).step_time_s
    for wrong, told in (
        ({"audio_s": 3}, "hears nothing"),
        ({"frames": 9}, "1, or videos of so many frames"),
        ({"width": 9}, "a height too"),
        ({"images": 1, "height": 4096, "width": 4}, "at most 1 : 200"),
        ({"images": 1, "height": 336, "image_tokens": 576}, "height and width, or image_tokens"),
    ):
        with pytest.raises(InputError, match=told):
            _seen(**wrong)
    text = {"model": "llama3-8b", "system": "8xh100-sxm", "plan": {"tp": 8}}
    with pytest.raises(InputError, match="sees no video"):
        scenario({**text, "workload": {"seq": 4096, "global_batch": 8, "videos": 1, "frames": 8}})


def test_prompts_with_images_take_longer_to_read() -> None:
    base = {"model": "llava-1.5-7b", "system": "1xh100-sxm", "plan": {"engine": "vllm"}}
    plain, seen = (
        predict(scenario({**base, "workload": {"kind": "prefill", "seq": 4096, "images": many}})) for many in (0, 6)
    )
    assert isinstance(plain, PhasePrediction)
    assert isinstance(seen, PhasePrediction)
    assert plain.step_time_s < seen.step_time_s < 1.5 * plain.step_time_s


def test_clips_of_whisper_are_filled_up() -> None:
    base = {"model": {"model_type": "whisper"}, "system": "1xh100-sxm", "plan": {}}
    made = scenario({**base, "workload": {"seq": 64, "global_batch": 8, "audio_s": 10}})
    assert made.encoder_tokens == 1500
    with pytest.raises(InputError, match="at most 30: longer sound is several sequences"):
        scenario({**base, "workload": {"seq": 64, "global_batch": 8, "audio_s": 31}})


OMNI = {"model_type": "qwen2_5_omni", "thinker_config": {"vision_config": {"hidden_size": 1280}}}


def _omni(**work: Any) -> Prediction:
    table = {"seq": 16384, "global_batch": 32, **work}
    plan = {"tp": 2, "pp": 2, "dp": 2, "shard": "zero1"}
    made = predict(scenario({"model": OMNI, "system": "8xh100-sxm", "workload": table, "plan": plan}))
    assert isinstance(made, Prediction)
    return made


def test_video_and_sound_run_on_the_first_stage_and_count() -> None:
    none = _omni()
    both = {"videos": 1, "frames": 16, "height": 480, "width": 640, "audio_s": 60}
    some, frozen = _omni(**both), _omni(**both, towers="frozen")
    assert none.step_time_s < frozen.step_time_s < some.step_time_s
    seen, heard = some.scenario.vision_input, some.scenario.audio_input
    assert (seen.tokens, heard.tokens) == (8 * 17 * 23, 1500)
    one = image_flops(some.scenario.model, seen) + audio_flops(some.scenario.model, heard)
    more = some.utilization.model_flops - none.utilization.model_flops
    assert more == pytest.approx(3 * 32 * one)
    assert frozen.utilization.model_flops - none.utilization.model_flops == pytest.approx(32 * one)
    first, last = ([made.memory.stages[place].peak_bytes for made in (none, frozen, some)] for place in (0, 1))
    assert first[0] < first[1] < first[2]
    assert last[0] == last[1] == last[2]
    assert any("audio_s = 0: the audio encoder" in line for line in none.assumptions)
    assert any("companions: the talker" in line for line in some.assumptions)


def test_what_runs_is_what_is_counted() -> None:
    made = scenario({
        "model": OMNI, "system": "1xh100-sxm", "plan": {},
        "workload": {"seq": 8192, "global_batch": 1, "images": 2, "height": 700, "width": 900, "audio_s": 30},
    })  # fmt: skip
    program = lower(made, tensors=False)
    often = dict(zip((section.key.role.value for section in program.sections), program.stages[0], strict=True))
    ran = {
        name: sum(
            2 * op.m * op.n * op.k * op.groups if isinstance(op, MatMul) else op.flops
            for section in program.sections
            if section.key.role.value.startswith(name)
            for op in section.forward
            if isinstance(op, (MatMul, Attend))
            for _ in range(often[section.key.role.value])
        )
        for name in ("vision", "audio")
    }
    counted = {"vision": image_flops(made.model, made.vision_input), "audio": audio_flops(made.model, made.audio_input)}
    assert all(0.999 < ran[name] / counted[name] < 1.1 for name in ran)  # heads of 80 run as 128


def test_servers_hold_encoders_that_nothing_is_given_to() -> None:
    base = {"model": "qwen2.5-vl-7b", "system": "1xh100-sxm", "plan": {"engine": "vllm"}}
    plain, seen = (
        serving_memory(scenario({**base, "workload": {"kind": "prefill", "seq": 4096, "images": many}}))
        for many in (0, 1)
    )
    assert plain.weights == pytest.approx(seen.weights, rel=1e-3)


def test_a_denoising_step_is_never_cut_into_chunks() -> None:
    work = {"kind": "prefill", "height": 480, "width": 832, "frames": 33}
    table = {"model": {**WAN, "layers": 2}, "system": "1xh100-sxm", "workload": work, "plan": {"engine": "vllm"}}
    made = predict(scenario(table))
    assert isinstance(made, PhasePrediction)
    assert made.steps == 1
    assert made.scenario.model.layers == 2
