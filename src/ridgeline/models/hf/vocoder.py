"""Turn configs of the networks that make sound of codes into their parameters; they are counted, never priced.

token2wav    Qwen2.5-Omni: a diffusion transformer makes spectra of codes, BigVGAN sound of spectra
code2wav     Qwen3-Omni: a small transformer and a stack of upsampling convolutions
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.models.hf.config import Config
from ridgeline.models.hf.parts import divide

TIME = 256  # sines and cosines of a timestep
MOST = 64  # entries of a list of layers that are worth a look


def _conv(inputs: int, outputs: int, kernel: int = 1) -> int:
    """Parameters of a convolution, or of a linear layer (kernel 1), with its bias."""
    return inputs * outputs * kernel + outputs


def _sizes(cfg: Config, key: str) -> tuple[int, ...]:
    found = cfg.counts(key)
    if not found or len(found) > MOST or min(found) < 1:
        cfg.bad(key, found, f"up to {MOST} whole numbers")
        return (1,)
    return found


def _speaker(cfg: Config, mel: int, out: int) -> int:
    """ECAPA-TDNN: what a voice sounds like, of its spectra."""
    channels, kernels = _sizes(cfg, "enc_channels"), _sizes(cfg, "enc_kernel_sizes")
    scale, squeezed = cfg.count("enc_res2net_scale"), cfg.count("enc_se_channels")
    total = _conv(mel, channels[0], kernels[0])
    for before, own, kernel in zip(channels, channels[1:-1], kernels[1:], strict=False):
        part = own // scale
        total += _conv(before, own) + (scale - 1) * _conv(part, part, kernel) + _conv(own, own)
        total += _conv(own, squeezed) + _conv(squeezed, own)
    last, attended = channels[-1], cfg.count("enc_attention_channels")
    pooled = _conv(3 * last, attended) + _conv(attended, last)
    return total + _conv(last, last, kernels[-1]) + pooled + _conv(2 * last, out)


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
        before, own = first >> level, first >> (level + 1)
        total += _conv(before, own, kernel) + sum(6 * _conv(own, own, size) + 6 * 2 * own for size in kernels)
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
    return total + _upsampled(cfg.count("decoder_dim"), hidden, _sizes(cfg, "upsample_rates"))


def _upsampled(first: int, inputs: int, rates: Sequence[int]) -> int:
    total = _conv(inputs, first, 7)
    for level, rate in enumerate(rates):
        before, own = first >> level, first >> (level + 1)
        unit = 4 * own + _conv(own, own, 7) + _conv(own, own)
        total += 2 * before + _conv(before, own, 2 * rate) + 3 * unit
    last = first >> len(rates)
    return total + 2 * last + _conv(last, 1, 7)
