"""Turn seconds of sound into what an audio encoder reads, as the feature extractors of published models do."""

from __future__ import annotations

import math

from ridgeline.models.sizing import Clip, EncoderInput


def audio_input(clip: Clip, seconds: float) -> EncoderInput:
    """What an encoder reads of one clip of so many seconds.

        spectra = rate * seconds      positions: each chunk halved by every convolution      tokens = positions / pool

    Whisper's extractor fills 30 seconds; where it does not, positions see those of their window alone.

    >>> audio_input(Clip(chunk=200, window=100, pool=2), 10).tokens        # Qwen2.5-Omni: 25 a second
    250.0
    >>> audio_input(Clip(chunk=100, halvings=3, window=104), 10).tokens    # Qwen3-Omni: 13 a second
    130.0
    """
    heard = max(0, round(clip.rate * seconds))
    if not heard:
        return EncoderInput()
    step = clip.padded * clip.rate
    run = math.ceil(heard / step) * step if step else heard
    positions, told = _positions(clip, run), _positions(clip, run if clip.silence else heard)
    tokens = float(told // clip.pool)
    window = min(clip.window or positions, positions)
    many, rest = divmod(positions, window)
    found = EncoderInput(views=many, positions=window, window=window)
    if rest:
        found = found + EncoderInput(views=1, positions=rest, window=rest)
    return EncoderInput(
        views=found.views, positions=found.positions, window=found.window,
        projected=float(positions // clip.pool), tokens=tokens,
    )  # fmt: skip


def _positions(clip: Clip, spectra: int) -> int:
    """Positions that so many spectra become, chunk by chunk."""
    many, rest = divmod(spectra, clip.chunk) if clip.chunk else (0, spectra)
    return many * _halved(clip.chunk, clip.halvings) + _halved(rest, clip.halvings)


def _halved(length: int, times: int) -> int:
    for _ in range(times):
        length = -(-length // 2)
    return length
