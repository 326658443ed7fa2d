"""Turn configs of models that hear into ModelSpecs: an audio config, a text config and what joins them.

Qwen2-Audio, Voxtral         Whisper's encoder over windows of 30 seconds, pooled positions, linear layers
towers of Qwen's omni models  the same layers over short chunks, without padding
token2wav, code2wav          networks that make sound of codes; they are counted, never priced
qwen2_5_omni, qwen3_omni_moe thinker, talker and vocoder of one file; ..._thinker the thinker alone

The thinker of an omni model is the model. Talker and vocoder are companions: they are counted, to the parameter, and
take no part in a step of the thinker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from ridgeline.models.hf.config import Config, defaults
from ridgeline.models.hf.decoders import read_family
from ridgeline.models.hf.multimodal import text_of, vision_of
from ridgeline.models.hf.parts import LAYER, Reader, bias_traits, divide, experts, heads, hidden_size, mlp, model
from ridgeline.models.hf.vision import Tower, qwen2_5_vl, qwen3_vl
from ridgeline.models.params import count
from ridgeline.models.sizing import Clip
from ridgeline.models.spec import Attention, Audio, Block, Companion, Mlp, ModelSpec

WINDOW = 30  # seconds that Whisper's feature extractor fills
AudioTower = Callable[[Config], Audio]


def audio_of(cfg: Config, tower: AudioTower, usual: str) -> Audio:
    """The encoder in `audio_config`."""
    inner = cfg.child("audio_config", defaults(usual)) or cfg.adopt("audio_config", {}, defaults(usual))
    inner.ignore("model_type")
    return tower(inner)


def _layers(cfg: Config, key_bias: bool) -> Audio:
    """Whisper's layers, without what stands around them."""
    cfg.understand("layers")
    hidden, count = cfg.count(("d_model", "hidden_size")), cfg.count(HEADS)
    attention = Attention(
        heads=count, kv_heads=count, head_dim=divide(cfg, HEADS[0], hidden, count), positions="none", qkv_bias=True,
        out_bias=True, key_bias=key_bias, causal=False,
    )  # fmt: skip
    ffn = mlp(cfg, INNER, "activation_function", gated=False, bias=True)
    return Audio(
        hidden=hidden,
        block=Block(mixer=attention, ffn=ffn, norm=LAYER),
        layers=cfg.layers(("encoder_layers", "num_hidden_layers")),
    )


HEADS = ("encoder_attention_heads", "num_attention_heads")
INNER = ("encoder_ffn_dim", "intermediate_size")


def _convolution_rate(cfg: Config, audio: Audio) -> Audio:
    """Two convolutions of three spectra each, the second of which halves, and a norm behind the layers."""
    bins, hidden = cfg.count("num_mel_bins"), audio.hidden
    weights = 3 * bins * hidden + hidden + 3 * hidden * hidden + hidden
    return replace(
        audio, front=2 * 3 * bins * hidden + 3 * hidden**2, other_params=weights + LAYER.params(hidden)
    )  # fmt: skip


def whisper_tower(cfg: Config) -> Audio:
    """Whisper's encoder: clips filled up to 30 seconds, keys without biases, computed positions."""
    audio = _convolution_rate(cfg, _layers(cfg, key_bias=False))
    return replace(audio, clip=Clip(chunk=WINDOW * 100, window=WINDOW * 50, padded=WINDOW))


def qwen2_5_omni_tower(cfg: Config) -> Audio:
    """Qwen2.5-Omni: chunks of `2 * n_window` spectra that see nothing else; positions pooled two by two, one matrix."""
    audio = _convolution_rate(cfg, _layers(cfg, key_bias=False))
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
    chunk_length = spans[2]
    drawn = 9 * wide * (spans[0] * rows[0] + wide * (spans[1] * rows[1] + spans[2] * rows[2]))
    front = round(drawn / chunk_length) + wide * rows[2] * hidden
    return replace(
        audio,
        front=front,
        clip=Clip(chunk=chunk, halvings=3, window=max(1, chunk_length * (cfg.count("n_window_infer") // chunk))),
        projector_params=hidden**2 + hidden + hidden * out + out,
        other_params=convolutions + wide * rows[2] * hidden + LAYER.params(hidden),
    )


def qwen2_audio(cfg: Config) -> ModelSpec:
    """Qwen2-Audio: Whisper's encoder, positions pooled two by two, one matrix."""
    text, audio = text_of(cfg, "qwen2", fixed=False), audio_of(cfg, whisper_tower, "qwen2_audio_encoder")
    projector = audio.hidden * text.hidden + text.hidden
    audio = replace(audio, clip=replace(audio.clip, pool=2), projector_params=projector)
    return _with_audio(cfg, text, audio)


def voxtral(cfg: Config) -> ModelSpec:
    """Voxtral: Whisper's encoder, four positions side by side in two linear layers; silence becomes tokens, too."""
    cfg.ignore("projector_hidden_act", "hidden_size", "vocab_size")
    text, audio = text_of(cfg, "llama", fixed=False), audio_of(cfg, whisper_tower, "voxtral_encoder")
    ffn = audio.block.ffn
    inner = ffn.hidden if isinstance(ffn, Mlp) else 1
    several = divide(cfg, "audio_config.intermediate_size", inner, audio.hidden)
    projector = inner * text.hidden + text.hidden**2
    clip = replace(audio.clip, pool=several, silence=True)
    return _with_audio(cfg, text, replace(audio, clip=clip, projector_params=projector))


def _with_audio(cfg: Config, text: ModelSpec, audio: Audio) -> ModelSpec:
    """Text and sound together; the head is tied where either level says so."""
    tied = cfg.flag("tie_word_embeddings", False) or text.embedding.tied
    return replace(text, audio=audio, embedding=replace(text.embedding, tied=tied))


HEARING: Mapping[str, Callable[[Config], ModelSpec]] = {"qwen2_audio": qwen2_audio, "voxtral": voxtral}


TIME = 256  # sines and cosines of a timestep
MOST = 64  # entries of a list of layers that are worth a look


def _conv(inputs: int, outputs: int, kernel: int = 1) -> int:
    """Parameters of a convolution, or of a linear layer (kernel 1), with its bias."""
    return inputs * outputs * kernel + outputs


def _sizes(cfg: Config, key: str) -> tuple[int, ...]:
    sizes = cfg.counts(key)
    if not sizes or len(sizes) > MOST or min(sizes) < 1:
        cfg.bad(key, sizes, f"up to {MOST} whole numbers")
        return (1,)
    return sizes


def _speaker(cfg: Config, mel: int, out: int) -> int:
    """ECAPA-TDNN: what a voice sounds like, of its spectra."""
    channels, kernels = _sizes(cfg, "enc_channels"), _sizes(cfg, "enc_kernel_sizes")
    scale, squeeze_channels = cfg.count("enc_res2net_scale"), cfg.count("enc_se_channels")
    total = _conv(mel, channels[0], kernels[0])
    for before, channel, kernel in zip(channels, channels[1:-1], kernels[1:], strict=False):
        part = channel // scale
        total += _conv(before, channel) + (scale - 1) * _conv(part, part, kernel) + _conv(channel, channel)
        total += _conv(channel, squeeze_channels) + _conv(squeeze_channels, channel)
    last, attention_channels = channels[-1], cfg.count("enc_attention_channels")
    pooling = _conv(3 * last, attention_channels) + _conv(attention_channels, last)
    return total + _conv(last, last, kernels[-1]) + pooling + _conv(2 * last, out)


def _spectra(cfg: Config) -> int:
    """The diffusion transformer: six vectors of modulation a layer, attention and mlp with biases."""
    hidden, mel, width = cfg.count("hidden_size"), cfg.count("mel_dim"), cfg.count("emb_dim")
    inner, wide = cfg.count("num_attention_heads") * cfg.count("head_dim"), cfg.count("ff_mult") * hidden
    layer = _conv(hidden, 6 * hidden) + 3 * _conv(hidden, inner) + _conv(inner, hidden)
    layer += _conv(hidden, wide) + _conv(wide, hidden)
    voice = cfg.count("enc_dim")
    ends = _conv(TIME, hidden) + _conv(hidden, hidden) + (cfg.count("num_embeds") + 1) * width
    ends += _conv(mel + voice + cfg.count("enc_emb_dim") + width, hidden) + _speaker(cfg, mel, voice)
    return cfg.layers() * layer + ends + _conv(hidden, 2 * hidden) + _conv(hidden, mel)


def _bigvgan(cfg: Config) -> int:
    """Upsampling convolutions, each followed by residual blocks of six convolutions and six learned activations."""
    first, kernels = cfg.count("upsample_initial_channel"), _sizes(cfg, "resblock_kernel_sizes")
    ups = _sizes(cfg, "upsample_kernel_sizes")[: len(_sizes(cfg, "upsample_rates"))]
    total = _conv(cfg.count("mel_dim"), first, 7)
    for level, kernel in enumerate(ups):
        before, channel = first >> level, first >> (level + 1)
        total += _conv(before, channel, kernel) + sum(
            6 * _conv(channel, channel, size) + 6 * 2 * channel for size in kernels
        )
    last = first >> len(ups)
    return total + 2 * last + 7 * last


def token2wav(spectra: Config, sound: Config) -> int:
    """Parameters of Qwen2.5-Omni's vocoder."""
    return _spectra(spectra) + _bigvgan(sound)


def code2wav(cfg: Config) -> int:
    """Parameters of Qwen3-Omni's vocoder."""
    hidden, inner = cfg.count("hidden_size"), cfg.count("intermediate_size")
    count, several = cfg.count("num_attention_heads"), cfg.count("num_key_value_heads")
    size = cfg.size("head_dim", 0) or divide(cfg, "num_attention_heads", hidden, count)
    biases = (count + 2 * several) * size + hidden if cfg.flag("attention_bias", False) else 0
    attention = 2 * hidden * count * size + 2 * hidden * several * size + biases
    layer = attention + 3 * hidden * inner + 4 * hidden  # norms and scales of both parts
    total = cfg.layers() * layer + hidden + cfg.count("codebook_size") * cfg.count("num_quantizers") * hidden
    for factor in _sizes(cfg, "upsampling_ratios"):
        total += _conv(hidden, hidden, factor) + 7 * hidden + hidden + 2 * hidden
        total += _conv(hidden, 4 * hidden) + _conv(4 * hidden, hidden) + hidden
    return total + _upsampling_params(cfg.count("decoder_dim"), hidden, _sizes(cfg, "upsample_rates"))


def _upsampling_params(first: int, inputs: int, rates: Sequence[int]) -> int:
    total = _conv(inputs, first, 7)
    for level, rate in enumerate(rates):
        before, channel = first >> level, first >> (level + 1)
        unit = 4 * channel + _conv(channel, channel, 7) + _conv(channel, channel)
        total += 2 * before + _conv(before, channel, 2 * rate) + 3 * unit
    last = first >> len(rates)
    return total + 2 * last + _conv(last, 1, 7)


def _thinker(cfg: Config, text: str, towers: tuple[Tower, AudioTower], kind: str) -> ModelSpec:
    """Text, image encoder and audio encoder of one config."""
    cfg.understand("thinker")
    usual = defaults(f"{kind}_text")
    inner = cfg.child("text_config", usual) or cfg.adopt("text_config", {}, usual)
    vision = vision_of(cfg, towers[0], f"{kind}_vision_encoder")
    audio = audio_of(cfg, towers[1], f"{kind}_audio_encoder")
    spec = read_family(inner, text)
    tied = cfg.flag("tie_word_embeddings", False)
    return replace(spec, vision=vision, audio=audio, embedding=replace(spec.embedding, tied=tied))


def _with_companions(cfg: Config, thinker: Callable[[Config], ModelSpec], speak: tuple[Companion, ...]) -> ModelSpec:
    inner = cfg.child("thinker_config") or cfg.adopt("thinker_config", {}, {})
    return replace(thinker(inner), companions=speak if cfg.flag("enable_audio_output", True) else ())


def qwen2_5_omni_thinker(cfg: Config) -> ModelSpec:
    """Qwen2.5-Omni's thinker: Qwen2.5 text, Qwen2.5-VL's image encoder, Whisper's layers over chunks of two seconds."""
    return _thinker(cfg, "qwen2", (qwen2_5_vl, qwen2_5_omni_tower), "qwen2_5_omni")


def qwen2_5_omni(cfg: Config) -> ModelSpec:
    """Qwen2.5-Omni: the thinker; a talker of Qwen2.5's layers that reads its states; token2wav."""
    talker = cfg.aside("talker_config", defaults("qwen2_5_omni_talker"))
    spec, width = read_family(talker, "qwen2"), talker.count("embedding_size")
    layers = count(replace(spec, vocab=0)).total
    talker_params = layers + spec.vocab * (width + spec.hidden) + width * spec.hidden + spec.hidden
    wave = cfg.aside("token2wav_config", defaults("qwen2_5_omni_token2wav"))
    spectra = wave.aside("dit_config", defaults("qwen2_5_omni_dit"))
    sound = wave.aside("bigvgan_config", defaults("qwen2_5_omni_bigvgan"))
    speak = (
        Companion(name="talker", params=talker_params),
        Companion(name="token2wav", params=token2wav(spectra, sound)),
    )
    return _with_companions(cfg, qwen2_5_omni_thinker, speak)


def qwen3_omni_thinker(cfg: Config) -> ModelSpec:
    """Qwen3-Omni's thinker: Qwen3 text with experts, Qwen3-VL's image encoder, an audio encoder of its own."""
    return _thinker(cfg, "qwen3_moe", (qwen3_vl, qwen3_omni_tower), "qwen3_omni_moe")


def qwen3_omni(cfg: Config) -> ModelSpec:
    """Qwen3-Omni: the thinker; a talker with experts and a predictor of further codes; code2wav."""
    cfg.understand("qwen3_omni")
    talker = cfg.aside("talker_config", defaults("qwen3_omni_moe_talker"))
    text = talker.aside("text_config", defaults("qwen3_omni_moe_talker_text"))
    attention = heads(text, hidden_size(text), qk_norm="head", **bias_traits(text))
    moe = experts(text, shared_hidden=text.size("shared_expert_intermediate_size"), shared_gate=True)
    spec, inner = model(text, [Block(mixer=attention, ffn=moe)] * text.layers()), text.count("intermediate_size")
    projection_params = 2 * (talker.count("thinker_hidden_size") * inner + inner + inner * spec.hidden + spec.hidden)
    ahead = talker.aside("code_predictor_config", defaults("qwen3_omni_moe_talker_code_predictor"))
    further, groups = read_family(ahead, "qwen3"), ahead.count("num_code_groups")
    codes = count(replace(further, vocab=0)).total + 2 * (groups - 1) * further.vocab * further.hidden
    talker_params = (
        count(replace(spec, embedding=replace(spec.embedding, tied=False))).total + projection_params + codes
    )
    sound = cfg.aside("code2wav_config", defaults("qwen3_omni_moe_code2wav"))
    speak = Companion(name="talker", params=talker_params), Companion(name="code2wav", params=code2wav(sound))
    return _with_companions(cfg, qwen3_omni_thinker, speak)


OMNI: Mapping[str, Reader] = MappingProxyType(
    {
        "qwen2_5_omni": qwen2_5_omni,
        "qwen2_5_omni_thinker": qwen2_5_omni_thinker,
        "qwen3_omni_moe": qwen3_omni,
        "qwen3_omni_moe_thinker": qwen3_omni_thinker,
    }
)
