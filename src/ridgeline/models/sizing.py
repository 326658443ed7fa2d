"""How processors cut images, video and sound before an encoder reads them, and what it reads then, as frozen values.

`ridgeline.models.media_tokens` and `ridgeline.models.media_tokens` turn pixels, frames and seconds into an
`EncoderInput` by these rules.
"""

from __future__ import annotations

from typing import Literal

from ridgeline.core.records import dataclass
from ridgeline.core.table import Count, Size

Rule = Literal["any", "square", "area", "longest", "anyres", "canvas", "fit", "split", "budget", "native"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderInput:
    """What an encoder reads of an image, a video, a clip, or of all those of one sequence.

    views      runs through its layers: positions of one view see each other, and no others
    positions  patches, or frames of sound, of one view
    window     positions that one sees in a layer that is windowed
    projected  positions that pass the projector
    tokens     positions of the language model's sequence
    """

    views: float = 0.0
    positions: int = 1
    window: float = 1.0
    projected: float = 0.0
    tokens: float = 0.0

    @property
    def total(self) -> float:
        """Positions of all views."""
        return self.views * self.positions

    def times(self, factor: float) -> EncoderInput:
        """So many of the same."""
        return EncoderInput(
            views=self.views * factor, positions=self.positions, window=self.window,
            projected=self.projected * factor, tokens=self.tokens * factor,
        )  # fmt: skip

    def __add__(self, other: EncoderInput) -> EncoderInput:
        """Both: views of one mean size, with as many positions and as many pairs of them (to the rounding of one).

        p = (v1 p1^2 + v2 p2^2) / (v1 p1 + v2 p2)      views = (v1 p1 + v2 p2) / p

        >>> EncoderInput(views=1, positions=100) + EncoderInput(views=1, positions=300)
        EncoderInput(views=1.6, positions=250, window=1.0, projected=0.0, tokens=0.0)
        """
        total = self.total + other.total
        if not other.total or not self.total:
            return self if self.total else other
        pairs = self.total * self.positions + other.total * other.positions
        mean = max(1, round(pairs / total))
        return EncoderInput(
            views=total / mean, positions=mean,
            window=(self.total * self.window + other.total * other.window) / total,
            projected=self.projected + other.projected, tokens=self.tokens + other.tokens,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """How a processor cuts an image, as it is published with the model.

    rule      any      as many whole patches as fit, tokens in proportion
              square   resized to the encoder's own side, whatever its size (CLIP, SigLIP)
              area     sides rounded to whole merged patches, between `least` and `most` pixels (Qwen-VL, GLM-V)
              longest  sides of at most `most` pixels, rounded up to whole merged patches (Pixtral)
              anyres   the best of `grids` cut into tiles, beside the whole image (LLaVA-NeXT, OneVision)
              canvas   `least` to `most` tiles of the nearest aspect ratio, beside the whole image (InternVL)
              fit      up to `most` tiles that the image fits into best, beside the whole image (Llama 4)
              split    the longer side made `most` pixels, cut into tiles, beside the whole image (Idefics 3, SmolVLM)
              budget   as large as at most `most` tokens allow (Gemma 4)
              native   shrunk to at most `most` patches, padded to whole merged patches (Kimi)
    merge     patches a side that become one token
    breaks    a token ends every row, or every row of tiles
    marks     tokens around an image; of `split` and `fit`, around each tile too
    grids     height and width of the canvases, in pixels
    frames    video frames that one patch, or one token, stands for
    whole     limits are of all frames together
    """

    rule: Rule = "any"
    merge: Count = 1
    least: Size = 0
    most: Size = 0
    breaks: bool = False
    marks: Size = 0
    grids: tuple[tuple[int, int], ...] = ()
    frames: Count = 1
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """How sound is cut before an encoder's layers.

    rate      spectra of one second
    chunk     spectra that its convolutions see at once; 0: all
    halvings  convolutions that halve a length, odd ones rounded up
    window    positions that see each other in the layers; 0: all of a clip
    padded    seconds to which a clip is filled up with silence that the layers read; 0: none
    silence   that silence becomes tokens, too
    pool      positions that become one token
    """

    rate: Count = 100
    chunk: Size = 0
    halvings: Size = 1
    window: Size = 0
    padded: Size = 0
    silence: bool = False
    pool: Count = 1
