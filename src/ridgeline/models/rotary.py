"""Turn a model's Numerics into the frequencies of its rotary positions.

Position p turns pair i of a head by the angle p f_i, with f_i = base^(-2 i / width) and as many pairs as half the
width. A model that was stretched beyond the context of its first training changes f (rope_scaling):

    linear     f / factor
    dynamic    a larger base, once a sequence is longer than first_context (NTK)
    llama3     slow frequencies / factor, fast ones as they are, a ramp between them
    yarn       as llama3 with a ramp over dims (arXiv:2309.00071); sines and cosines are multiplied as well
    longrope   each f by a divisor of its own (arXiv:2402.13753)

Formulas are those of the models' published code, which transformers follows.
"""

from __future__ import annotations

from math import ceil, floor, log, pi, sqrt

from ridgeline.core.errors import InputError, Problem
from ridgeline.models.spec import Numerics, RotaryScaling

USUAL_BASE = 10_000.0


def rotary_frequencies(numerics: Numerics, width: int, tokens: int, *, local: bool = False) -> list[float]:
    """Radians a position of each of the width / 2 pairs, for sequences of `tokens`; `local` in a layer with a window.

    >>> [round(f, 4) for f in rotary_frequencies(Numerics(rotary_base=10000.0), 8, 128)]
    [1.0, 0.1, 0.01, 0.001]
    """
    base, scaling = numerics.rotary_base or USUAL_BASE, numerics.rotary_scaling
    if local and numerics.local_rotary_base is not None:
        return _plain(numerics.local_rotary_base, width)
    if scaling is None:
        return _plain(base, width)
    match scaling.kind:
        case "linear":
            return [f / scaling.factor for f in _plain(base, width)]
        case "dynamic":
            return _plain(_stretched_base(base, scaling, width, tokens), width)
        case "llama3":
            return [_llama3(f, scaling) for f in _plain(base, width)]
        case "yarn":
            return _yarn(_plain(base, width), scaling, base)
        case "longrope":
            return _longrope(_plain(base, width), scaling, tokens)
        case "proportional":
            scaling_names = "llama3, yarn, linear, dynamic or longrope"
            raise InputError(Problem(path="rope_parameters.rope_type", given=scaling.kind, expected=scaling_names))


def rotary_amplitude(numerics: Numerics) -> float:
    """What sines and cosines are multiplied with: 1 but for YaRN and LongRoPE."""
    scaling = numerics.rotary_scaling
    if scaling is None or scaling.kind not in ("yarn", "longrope"):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.kind == "longrope":
        return sqrt(1 + log(scaling.factor) / log(scaling.first_context)) if scaling.factor > 1 else 1.0
    if scaling.mscale and scaling.mscale_all:
        return _yarn_scale(scaling.factor, scaling.mscale) / _yarn_scale(scaling.factor, scaling.mscale_all)
    return _yarn_scale(scaling.factor, 1.0)


def score_multiplier(numerics: Numerics, width: int, *, latent: bool = False) -> float:
    """What scores of heads of that width are multiplied with: 1 / sqrt(width) where nobody says otherwise. Latent
    attention under YaRN multiplies by the square of its own factor as well.

    >>> score_multiplier(Numerics(), 64), score_multiplier(Numerics(score_scale=256.0), 64)
    (0.125, 0.0625)
    """
    if numerics.score_multiplier is not None:
        return numerics.score_multiplier
    scaling = numerics.rotary_scaling
    factor = 1 / sqrt(numerics.score_scale or width)
    if latent and scaling is not None and scaling.kind == "yarn" and scaling.mscale_all:
        factor *= _yarn_scale(scaling.factor, scaling.mscale_all) ** 2
    return factor


def _plain(base: float, width: int) -> list[float]:
    return [base ** (-pair / width) for pair in range(0, width, 2)]


def _stretched_base(base: float, scaling: RotaryScaling, width: int, tokens: int) -> float:
    if tokens <= scaling.first_context:
        return base
    stretch = scaling.factor * tokens / scaling.first_context - (scaling.factor - 1)
    return float(base * stretch ** (width / (width - 2)))


def _llama3(frequency: float, scaling: RotaryScaling) -> float:
    fast, slow = scaling.fast or 4.0, scaling.slow or 1.0
    turns = scaling.first_context * frequency / (2 * pi)  # rotations within the first context
    if turns > fast:
        return frequency
    if turns < slow:
        return frequency / scaling.factor
    share = (turns - slow) / (fast - slow)
    return (1 - share) * frequency / scaling.factor + share * frequency


def _yarn(frequencies: list[float], scaling: RotaryScaling, base: float) -> list[float]:
    pairs = len(frequencies)

    def dim_of(turns: float) -> float:
        return 2 * pairs * log(scaling.first_context / (turns * 2 * pi)) / (2 * log(base))

    low, high = dim_of(scaling.fast or 32.0), dim_of(scaling.slow or 1.0)
    if scaling.truncate:
        low, high = floor(low), ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    high += 0.001 if low == high else 0.0
    shares = [min(1.0, max(0.0, (pair - low) / (high - low))) for pair in range(pairs)]
    return [f / scaling.factor * share + f * (1 - share) for f, share in zip(frequencies, shares, strict=True)]


def _longrope(frequencies: list[float], scaling: RotaryScaling, tokens: int) -> list[float]:
    divisors = scaling.long_factors if tokens > scaling.first_context else scaling.short_factors
    return [f / divisor for f, divisor in zip(frequencies, divisors or [1.0] * len(frequencies), strict=True)]


def _yarn_scale(factor: float, weight: float) -> float:
    return 0.1 * weight * log(factor) + 1.0 if factor > 1 else 1.0
