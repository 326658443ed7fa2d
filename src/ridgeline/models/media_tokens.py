"""Turn pixels, frames and seconds into what encoders of images and sound read, by the rules of published processors.

image_input(vision, 1080, 1920)        one image
video_input(vision, 64, 480, 640)      one video of 64 frames
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from ridgeline.models.sizing import Clip, EncoderInput, Rule, Sizing
from ridgeline.models.spec import Attention, Vision

TILED = frozenset({"square", "anyres", "canvas", "fit", "split"})
MOST_TILES = 256
LARGEST_TILED = 4096  # pixels a side that Idefics 3 shrinks an image to before it cuts tiles


def image_input(vision: Vision, height: int | None = None, width: int | None = None) -> EncoderInput:
    """What the encoder reads of one image of so many pixels; of its own size where none is given.

    >>> from ridgeline.models.load import model
    >>> seen = image_input(model("qwen2.5-vl-7b").vision, 1080, 1920)
    >>> seen.positions, seen.tokens  # 1092 x 1932 pixels: 78 x 138 patches of 14, merged two by two
    (10764, 2691.0)
    """
    high = height or vision.image
    return _RULES[vision.sizing.rule](vision, vision.sizing, high, width or high)


def video_input(vision: Vision, frames: int, height: int | None = None, width: int | None = None) -> EncoderInput:
    """What the encoder reads of one video: frames are images of their own unless the model has a rule for video.

    Patches of `Sizing.frames` frames are embedded together and see those of the same frames alone (Qwen-VL, GLM-V);
    Kimi's patches see those of all these frames, and its merger averages over them.
    """
    sizing = vision.video
    high = height or vision.image
    wide = width or high
    if sizing is None:
        return image_input(vision, high, wide).times(frames)
    steps = -(-frames // sizing.frames)
    if sizing.rule == "area":
        return _area(vision, sizing, high, wide, frames).times(steps)
    frame = _RULES[sizing.rule](vision, sizing, high, wide)
    if sizing.rule == "native":
        return EncoderInput(
            views=steps, positions=frame.positions * min(sizing.frames, frames), window=frame.window,
            projected=steps * frame.projected, tokens=steps * frame.tokens,
        )  # fmt: skip
    marks = sizing.marks if sizing.rule == "square" else 0  # of the video, not of each frame
    bare = frame.tokens - marks
    video = frame.times(frames)
    return EncoderInput(
        views=video.views, positions=video.positions, window=video.window, projected=video.projected,
        tokens=frames * bare + marks,
    )  # fmt: skip


def tokens_input(vision: Vision, tokens: int) -> EncoderInput:
    """What the encoder reads of an image that takes so many tokens: whole views where it cuts tiles, otherwise one of
    patches in proportion."""
    image = image_input(vision)
    if vision.sizing.rule not in TILED:
        patches = max(1, round(tokens * vision.patches / vision.tokens))
        return EncoderInput(
            views=1, positions=patches, window=min(image.window, patches), projected=tokens, tokens=tokens
        )  # fmt: skip
    view = _view(vision, vision.sizing)
    views = max(1, round(tokens / view.tokens))
    return EncoderInput(
        views=views, positions=view.positions, window=view.window, projected=views * view.projected, tokens=tokens
    )


def _grid(vision: Vision, rows: int, columns: int, merge: int, tokens: float | None = None) -> EncoderInput:
    """One view of so many rows and columns of patches."""
    merged = float(rows * columns // merge**2)
    return EncoderInput(
        views=1, positions=rows * columns, window=_window_positions(vision, rows, columns), projected=merged,
        tokens=merged if tokens is None else tokens,
    )  # fmt: skip


def _window_positions(vision: Vision, rows: int, columns: int) -> float:
    """Patches that one sees in a windowed layer, those at the borders less: square windows of whole patches."""
    mixer = vision.block.mixer
    window = mixer.window if isinstance(mixer, Attention) else 0
    side = math.isqrt(window)
    if not window or side * side != window:
        return float(min(window or rows * columns, rows * columns))
    return _mean_run(rows, side) * _mean_run(columns, side)


def _mean_run(length: int, side: int) -> float:
    many, remainder = divmod(length, side)
    return (many * side**2 + remainder**2) / length


def _any(vision: Vision, _: Sizing, height: int, width: int) -> EncoderInput:
    rows, columns = max(1, height // vision.patch), max(1, width // vision.patch)
    tokens = max(1, vision.tokens * rows * columns // vision.patches)
    grid = _grid(vision, rows, columns, 1, float(tokens))
    return EncoderInput(
        views=1, positions=grid.positions, window=grid.window, projected=float(tokens), tokens=float(tokens)
    )


def _view(vision: Vision, own: Sizing) -> EncoderInput:
    """The encoder's own square: tokens of `own.merge` patches a side; what is projected is the model's own number."""
    side = max(1, vision.image // vision.patch)
    grid = _grid(vision, side, side, 1)
    tokens = vision.tokens if own is vision.sizing else math.ceil(side / own.merge) ** 2
    return EncoderInput(
        views=1, positions=grid.positions, window=grid.window, projected=float(vision.tokens), tokens=float(tokens)
    )


def _square(vision: Vision, own: Sizing, *_: int) -> EncoderInput:
    view = _view(vision, own)
    return _tile_views(view, 1, view.tokens + own.marks)


def _tile_views(view: EncoderInput, views: int, tokens: float) -> EncoderInput:
    return EncoderInput(
        views=views, positions=view.positions, window=view.window, projected=views * view.projected, tokens=tokens
    )


def _area(vision: Vision, own: Sizing, height: int, width: int, frames: int = 1) -> EncoderInput:
    """Sides rounded to whole merged patches; both scaled where all pixels are more than `most` or less than `least`."""
    factor = vision.patch * own.merge
    clip_frames = max(frames, own.frames) if own.whole else 1
    if own.whole and min(height, width) < factor:
        scale = factor / min(height, width)
        height, width = int(height * scale), int(width * scale)
    high, wide = round(height / factor) * factor, round(width / factor) * factor
    repeats = round(clip_frames / own.frames) * own.frames if own.whole else 1
    if own.most and repeats * high * wide > own.most:
        scale = math.sqrt(clip_frames * height * width / own.most)
        high, wide = (max(factor, math.floor(side / scale / factor) * factor) for side in (height, width))
    elif repeats * high * wide < own.least:
        scale = math.sqrt(own.least / (clip_frames * height * width))
        high, wide = (math.ceil(side * scale / factor) * factor for side in (height, width))
    return _grid(vision, max(1, high // vision.patch), max(1, wide // vision.patch), own.merge)


def _longest(vision: Vision, own: Sizing, height: int, width: int) -> EncoderInput:
    ratio = max(height, width) / own.most if own.most else 1.0
    if ratio > 1:
        height, width = math.floor(height / ratio), math.floor(width / ratio)
    step = vision.patch * own.merge
    rows, columns = (max(1, (side - 1) // step + 1) for side in (height, width))
    tokens = float(rows * (columns + own.breaks))
    return _grid(vision, rows * own.merge, columns * own.merge, own.merge, tokens)


def _anyres(vision: Vision, own: Sizing, height: int, width: int) -> EncoderInput:
    """Tiles of the best canvas, without the padding around the image, a token at the end of each row; and the image."""
    view, side = _view(vision, own), max(1, vision.image // vision.patch)
    high, wide = _best_canvas(own.grids or ((vision.image, vision.image),), height, width)
    tiles = max(1, high // vision.image), max(1, wide // vision.image)
    rows, columns = tiles[0] * side, tiles[1] * side
    if width / height > columns / rows:
        rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
    else:
        columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
    ratio = math.sqrt(rows * columns / (own.most * side**2)) if own.most else 1.0
    if ratio > 1.1:
        rows, columns = int(rows // ratio), int(columns // ratio)
    return _tile_views(view, tiles[0] * tiles[1] + 1, rows * columns + rows + view.tokens)


def _best_canvas(grids: tuple[tuple[int, int], ...], height: int, width: int) -> tuple[int, int]:
    """The canvas in which most of the image's own pixels stand; of those, the one that wastes least."""

    def worth(grid: tuple[int, int]) -> tuple[int, int]:
        scale = min(grid[1] / width, grid[0] / height)
        used = min(int(width * scale) * int(height * scale), width * height)
        return used, -(grid[0] * grid[1] - used)

    return max(grids, key=worth)


def _canvas(vision: Vision, own: Sizing, height: int, width: int) -> EncoderInput:
    """Tiles of the aspect ratio nearest to the image's; of equal ones more tiles, to twice the image's area."""
    view, aspect = _view(vision, own), width / height
    tile_limit = min(own.most, MOST_TILES)
    sizes = [(wide, high) for wide in range(1, tile_limit + 1) for high in range(1, tile_limit // wide + 1)]
    best, nearest = (1, 1), math.inf
    for grid in sorted((size for size in sizes if size[0] * size[1] >= own.least), key=lambda one: one[0] * one[1]):
        aspect_gap = abs(aspect - grid[0] / grid[1])
        enough = width * height > 0.5 * vision.image**2 * grid[0] * grid[1]
        if aspect_gap < nearest or (aspect_gap == nearest and enough):
            best, nearest = grid, aspect_gap
    tiles = best[0] * best[1]
    views = tiles + 1 if tiles > 1 else 1
    return _tile_views(view, views, views * view.tokens + own.marks)


def _fit(vision: Vision, own: Sizing, height: int, width: int) -> EncoderInput:
    """Tiles of the canvas that enlarges the image least, or shrinks it least; of equal ones the smallest."""
    view = _view(vision, own)
    tile_limit = max(1, min(own.most, MOST_TILES))
    grids = [(high, wide) for high in range(1, tile_limit + 1) for wide in range(1, tile_limit // high + 1)]

    def scale(grid: tuple[int, int]) -> float:
        return min(grid[0] * vision.image / height, grid[1] * vision.image / width)

    larger = [scale(grid) for grid in grids if scale(grid) >= 1]
    chosen = min(larger) if larger else max(map(scale, grids))
    best = min((grid for grid in grids if scale(grid) == chosen), key=lambda grid: grid[0] * grid[1])
    tiles = best[0] * best[1]
    if tiles == 1:
        return _tile_views(view, 1, view.tokens + own.marks)
    return _tile_views(view, tiles + 1, (tiles + 1) * view.tokens + tiles + own.marks)


def _split(vision: Vision, own: Sizing, height: int, width: int) -> EncoderInput:
    """The longer side made `most` pixels, then cut into tiles: each with two marks, each row with one."""
    view, tile = _view(vision, own), vision.image
    longest = min(own.most, LARGEST_TILED)
    if width >= height:
        wide, high = longest, int(longest / (width / height))
        high += high % 2
    else:
        high, wide = longest, int(longest * (width / height))
        wide += wide % 2
    rows, columns = math.ceil(max(1, high) / tile), math.ceil(max(1, wide) / tile)
    if rows * columns == 1:
        return _tile_views(view, 1, view.tokens + own.marks)
    return _tile_views(view, rows * columns + 1, view.tokens + own.marks + rows * ((view.tokens + 2) * columns + 1))


def _budget(vision: Vision, own: Sizing, height: int, width: int) -> EncoderInput:
    step, patch_limit = own.merge * vision.patch, own.most * own.merge**2
    factor = math.sqrt(patch_limit * vision.patch**2 / (height * width))
    high, wide = math.floor(factor * height / step), math.floor(factor * width / step)
    if not high:
        high, wide = 1, max(1, min(width // height, own.most))
    elif not wide:
        high, wide = max(1, min(height // width, own.most)), 1
    return _grid(vision, high * own.merge, wide * own.merge, own.merge)


def _native(vision: Vision, own: Sizing, height: int, width: int) -> EncoderInput:
    """Shrunk to at most `most` patches in all and `least` a side, padded to whole merged patches."""
    patch, side = vision.patch, (own.least or own.most) * vision.patch
    patches = max(1.0, height // patch) * max(1.0, width // patch)
    scale = min(1.0, math.sqrt(own.most / patches), side / height, side / width) if own.most else 1.0
    step = own.merge * patch
    rows, columns = (math.ceil(min(max(1, int(length * scale)), side) / step) * own.merge for length in (height, width))
    return _grid(vision, rows, columns, own.merge)


_RULES: Mapping[Rule, Callable[[Vision, Sizing, int, int], EncoderInput]] = MappingProxyType(
    {
        "any": _any, "square": _square, "area": _area, "longest": _longest, "anyres": _anyres, "canvas": _canvas,
        "fit": _fit, "split": _split, "budget": _budget, "native": _native,
    }
)  # fmt: skip


def audio_input(clip: Clip, seconds: float) -> EncoderInput:
    """What an encoder reads of one clip of so many seconds.

        spectra = rate * seconds      positions: each chunk halved by every convolution      tokens = positions / pool

    Whisper's extractor fills 30 seconds; where it does not, positions see those of their window alone.

    >>> audio_input(Clip(chunk=200, window=100, pool=2), 10).tokens        # Qwen2.5-Omni: 25 a second
    250.0
    >>> audio_input(Clip(chunk=100, halvings=3, window=104), 10).tokens    # Qwen3-Omni: 13 a second
    130.0
    """
    samples = max(0, round(clip.rate * seconds))
    if not samples:
        return EncoderInput()
    step = clip.padded * clip.rate
    run = math.ceil(samples / step) * step if step else samples
    positions, token_positions = _positions(clip, run), _positions(clip, run if clip.silence else samples)
    tokens = float(token_positions // clip.pool)
    window = min(clip.window or positions, positions)
    many, remainder = divmod(positions, window)
    encoder_input = EncoderInput(views=many, positions=window, window=window)
    if remainder:
        encoder_input = encoder_input + EncoderInput(views=1, positions=remainder, window=remainder)
    return EncoderInput(
        views=encoder_input.views, positions=encoder_input.positions, window=encoder_input.window,
        projected=float(positions // clip.pool), tokens=tokens,
    )  # fmt: skip


def _positions(clip: Clip, spectra: int) -> int:
    """Positions that so many spectra become, chunk by chunk."""
    many, remainder = divmod(spectra, clip.chunk) if clip.chunk else (0, spectra)
    return many * _halve_length(clip.chunk, clip.halvings) + _halve_length(remainder, clip.halvings)


def _halve_length(length: int, times: int) -> int:
    for _ in range(times):
        length = -(-length // 2)
    return length
