"""Turn configs of Qwen's omni models into ModelSpecs: a thinker that sees, hears and writes; what speaks beside it.

    qwen2_5_omni, qwen3_omni_moe                     thinker, talker and vocoder of one file
    qwen2_5_omni_thinker, qwen3_omni_moe_thinker     the thinker alone

The thinker is the model. Talker and vocoder are companions: they are counted, to the parameter, and take no part in a
step of the thinker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from ridgeline.models.hf.config import Config
from ridgeline.models.hf.dense import qwen2, qwen3
from ridgeline.models.hf.hearing import AudioTower, audio_of, qwen2_5_omni_tower, qwen3_omni_tower
from ridgeline.models.hf.moe import experts, qwen3_moe
from ridgeline.models.hf.multimodal import vision_of
from ridgeline.models.hf.parts import Reader, biased, defaults, heads, hidden_size, model
from ridgeline.models.hf.vision import Tower, qwen2_5_vl, qwen3_vl
from ridgeline.models.hf.vocoder import code2wav, token2wav
from ridgeline.models.params import count
from ridgeline.models.spec import Block, Companion, ModelSpec


def _thinker(cfg: Config, text: Reader, towers: tuple[Tower, AudioTower], kind: str) -> ModelSpec:
    """Text, image encoder and audio encoder of one config."""
    cfg.ignore("position_id_per_seconds", "seconds_per_chunk", "user_token_id", "audio_start_token_id")
    cfg.ignore("audio_end_token_id", "model_type")
    usual = defaults(f"{kind}_text")
    inner = cfg.child("text_config", usual) or cfg.adopt("text_config", {}, usual)
    vision = vision_of(cfg, towers[0], f"{kind}_vision_encoder")
    audio = audio_of(cfg, towers[1], f"{kind}_audio_encoder")
    spec = text(inner)
    tied = cfg.flag("tie_word_embeddings", False)
    return replace(spec, vision=vision, audio=audio, embedding=replace(spec.embedding, tied=tied))


def _whole(cfg: Config, thinker: Callable[[Config], ModelSpec], speak: tuple[Companion, ...]) -> ModelSpec:
    inner = cfg.child("thinker_config") or cfg.adopt("thinker_config", {}, {})
    return replace(thinker(inner), companions=speak if cfg.flag("enable_audio_output", True) else ())


def qwen2_5_omni_thinker(cfg: Config) -> ModelSpec:
    """Qwen2.5-Omni's thinker: Qwen2.5 text, Qwen2.5-VL's image encoder, Whisper's layers over chunks of two seconds."""
    return _thinker(cfg, qwen2, (qwen2_5_vl, qwen2_5_omni_tower), "qwen2_5_omni")


def qwen2_5_omni(cfg: Config) -> ModelSpec:
    """Qwen2.5-Omni: the thinker; a talker of Qwen2.5's layers that reads its states; token2wav."""
    talker = cfg.aside("talker_config", defaults("qwen2_5_omni_talker"))
    spec, width = qwen2(talker), talker.count("embedding_size")
    layers = count(replace(spec, vocab=0)).total
    own = layers + spec.vocab * (width + spec.hidden) + width * spec.hidden + spec.hidden
    wave = cfg.aside("token2wav_config", defaults("qwen2_5_omni_token2wav"))
    spectra = wave.aside("dit_config", defaults("qwen2_5_omni_dit"))
    sound = wave.aside("bigvgan_config", defaults("qwen2_5_omni_bigvgan"))
    speak = Companion(name="talker", params=own), Companion(name="token2wav", params=token2wav(spectra, sound))
    return _whole(cfg, qwen2_5_omni_thinker, speak)


def qwen3_omni_thinker(cfg: Config) -> ModelSpec:
    """Qwen3-Omni's thinker: Qwen3 text with experts, Qwen3-VL's image encoder, an audio encoder of its own."""
    return _thinker(cfg, qwen3_moe, (qwen3_vl, qwen3_omni_tower), "qwen3_omni_moe")


def qwen3_omni(cfg: Config) -> ModelSpec:
    """Qwen3-Omni: the thinker; a talker with experts and a predictor of further codes; code2wav."""
    cfg.ignore("im_start_token_id", "im_end_token_id", "tts_pad_token_id", "tts_bos_token_id", "tts_eos_token_id")
    cfg.ignore("system_token_id", "user_token_id", "assistant_token_id")
    talker = cfg.aside("talker_config", defaults("qwen3_omni_moe_talker"))
    text = talker.aside("text_config", defaults("qwen3_omni_moe_talker_text"))
    attention = heads(text, hidden_size(text), qk_norm="head", **biased(text))
    moe = experts(text, shared_hidden=text.size("shared_expert_intermediate_size"), shared_gate=True)
    spec, inner = model(text, [Block(mixer=attention, ffn=moe)] * text.layers()), text.count("intermediate_size")
    headed = 2 * (talker.count("thinker_hidden_size") * inner + inner + inner * spec.hidden + spec.hidden)
    ahead = talker.aside("code_predictor_config", defaults("qwen3_omni_moe_talker_code_predictor"))
    further, groups = qwen3(ahead), ahead.count("num_code_groups")
    codes = count(replace(further, vocab=0)).total + 2 * (groups - 1) * further.vocab * further.hidden
    own = count(replace(spec, embedding=replace(spec.embedding, tied=False))).total + headed + codes
    sound = cfg.aside("code2wav_config", defaults("qwen3_omni_moe_code2wav"))
    speak = Companion(name="talker", params=own), Companion(name="code2wav", params=code2wav(sound))
    return _whole(cfg, qwen3_omni_thinker, speak)


OMNI: Mapping[str, Reader] = MappingProxyType(
    {
        "qwen2_5_omni": qwen2_5_omni,
        "qwen2_5_omni_thinker": qwen2_5_omni_thinker,
        "qwen3_omni_moe": qwen3_omni,
        "qwen3_omni_moe_thinker": qwen3_omni_thinker,
    }
)
