"""Turn configs of models that hear into ModelSpecs: an audio config, a text config and what joins them.

Qwen2-Audio, Voxtral         Whisper's encoder over windows of 30 seconds, pooled positions, linear layers
towers of Qwen's omni models  the same layers over short chunks, without padding
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ridgeline.models.hf.config import Config
from ridgeline.models.hf.multimodal import text_of
from ridgeline.models.hf.parts import LAYER, defaults, divide
from ridgeline.models.sizing import Clip
from ridgeline.models.spec import Attention, Audio, Block, Mlp, ModelSpec

WINDOW = 30  # seconds that Whisper's feature extractor fills
AudioTower = Callable[[Config], Audio]


def audio_of(cfg: Config, tower: AudioTower, usual: str) -> Audio:
    """The encoder in `audio_config`."""
    inner = cfg.child("audio_config", defaults(usual)) or cfg.adopt("audio_config", {}, defaults(usual))
    inner.ignore("model_type")
    return tower(inner)


def _layers(cfg: Config, key_bias: bool) -> Audio:
    """Whisper's layers, without what stands around them."""
    cfg.ignore("encoder_layerdrop", "is_encoder_decoder", "num_hidden_layers", "scale_embedding", "vocab_size")
    cfg.ignore("max_source_positions")
    hidden, count = cfg.count(("d_model", "hidden_size")), cfg.count(HEADS)
    attention = Attention(
        heads=count, kv_heads=count, head_dim=divide(cfg, HEADS[0], hidden, count), positions="none", qkv_bias=True,
        out_bias=True, key_bias=key_bias, causal=False,
    )  # fmt: skip
    ffn = Mlp(hidden=cfg.count(INNER), gated=False, bias=True, activation=cfg.word("activation_function"))
    return Audio(
        hidden=hidden,
        block=Block(mixer=attention, ffn=ffn, norm=LAYER),
        layers=cfg.layers(("encoder_layers", "num_hidden_layers")),
    )


HEADS = ("encoder_attention_heads", "num_attention_heads")
INNER = ("encoder_ffn_dim", "intermediate_size")


def _convolved(cfg: Config, audio: Audio) -> Audio:
    """Two convolutions of three spectra each, the second of which halves, and a norm behind the layers."""
    bins, hidden = cfg.count("num_mel_bins"), audio.hidden
    weights = 3 * bins * hidden + hidden + 3 * hidden * hidden + hidden
    return replace(
        audio, front=2 * 3 * bins * hidden + 3 * hidden**2, other_params=weights + LAYER.params(hidden)
    )  # fmt: skip


def whisper_tower(cfg: Config) -> Audio:
    """Whisper's encoder: clips filled up to 30 seconds, keys without biases, computed positions."""
    audio = _convolved(cfg, _layers(cfg, key_bias=False))
    return replace(audio, clip=Clip(chunk=WINDOW * 100, window=WINDOW * 50, padded=WINDOW))


def qwen2_5_omni_tower(cfg: Config) -> Audio:
    """Qwen2.5-Omni: chunks of `2 * n_window` spectra that see nothing else; positions pooled two by two, one matrix."""
    audio = _convolved(cfg, _layers(cfg, key_bias=False))
    chunk, out = 2 * cfg.count("n_window"), cfg.count("output_dim")
    return replace(
        audio,
        clip=Clip(chunk=chunk, window=-(-chunk // 2), pool=2),
        projector_params=audio.hidden * out + out,
        other_params=audio.other_params + 2 * out,  # the vectors that begin and end a clip
    )


def qwen3_omni_tower(cfg: Config) -> Audio:
    """Qwen3-Omni: three convolutions over time and pitch, chunks of `2 * n_window` spectra, windows of
    `n_window_infer`, two linear layers."""
    cfg.ignore("conv_chunksize")
    audio = _layers(cfg, key_bias=True)
    bins, wide, out = cfg.count("num_mel_bins"), cfg.count("downsample_hidden_size"), cfg.count("output_dim")
    rows = [-(-bins // 2**times) for times in (1, 2, 3)]  # pitches behind each convolution
    hidden, chunk = audio.hidden, 2 * cfg.count("n_window")
    convolutions = 9 * wide + wide + 2 * (9 * wide**2 + wide)
    spans = [-(-chunk // 2**times) for times in (1, 2, 3)]  # positions of a chunk behind each convolution
    each = spans[2]
    drawn = 9 * wide * (spans[0] * rows[0] + wide * (spans[1] * rows[1] + spans[2] * rows[2]))
    front = round(drawn / each) + wide * rows[2] * hidden
    return replace(
        audio,
        front=front,
        clip=Clip(chunk=chunk, halvings=3, window=max(1, each * (cfg.count("n_window_infer") // chunk))),
        projector_params=hidden**2 + hidden + hidden * out + out,
        other_params=convolutions + wide * rows[2] * hidden + LAYER.params(hidden),
    )


def qwen2_audio(cfg: Config) -> ModelSpec:
    """Qwen2-Audio: Whisper's encoder, positions pooled two by two, one matrix."""
    text, audio = text_of(cfg, "qwen2", fixed=False), audio_of(cfg, whisper_tower, "qwen2_audio_encoder")
    projector = audio.hidden * text.hidden + text.hidden
    audio = replace(audio, clip=replace(audio.clip, pool=2), projector_params=projector)
    return _heard(cfg, text, audio)


def voxtral(cfg: Config) -> ModelSpec:
    """Voxtral: Whisper's encoder, four positions side by side in two linear layers; silence becomes tokens, too."""
    cfg.ignore("projector_hidden_act", "hidden_size", "vocab_size")
    text, audio = text_of(cfg, "llama", fixed=False), audio_of(cfg, whisper_tower, "voxtral_encoder")
    ffn = audio.block.ffn
    inner = ffn.hidden if isinstance(ffn, Mlp) else 1
    several = divide(cfg, "audio_config.intermediate_size", inner, audio.hidden)
    projector = inner * text.hidden + text.hidden**2
    clip = replace(audio.clip, pool=several, silence=True)
    return _heard(cfg, text, replace(audio, clip=clip, projector_params=projector))


def _heard(cfg: Config, text: ModelSpec, audio: Audio) -> ModelSpec:
    """Text and sound together; the head is tied where either level says so."""
    tied = cfg.flag("tie_word_embeddings", False) or text.embedding.tied
    return replace(text, audio=audio, embedding=replace(text.embedding, tied=tied))


HEARING: Mapping[str, Callable[[Config], ModelSpec]] = {"qwen2_audio": qwen2_audio, "voxtral": voxtral}
