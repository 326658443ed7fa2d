"""Turn the preprocessor_config.json beside a config.json into the limits of a model's images and video.

    preprocessor_config.json           size, min_pixels and max_pixels, patches, soft tokens of images
    video_preprocessor_config.json     the same of video

Only limits are taken; which rule cuts an image is the model's own. A file that is not there changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ridgeline.core.documents import JsonMapping
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import read_text
from ridgeline.models.sizing import Rule, Sizing
from ridgeline.models.spec import ModelSpec, Vision

IMAGES, VIDEO = "preprocessor_config.json", "video_preprocessor_config.json"
BIGGEST = 1024 * 1024  # bytes; most are one kilobyte
MOST = 2**53
# of each rule: keys of the least and the most that its limits speak of, the first that a file has
LEAST: Mapping[Rule, tuple[str, ...]] = {
    "area": ("min_pixels", "size.min_pixels", "size.shortest_edge"),
    "canvas": ("min_patches",),
}
LIMITS: Mapping[Rule, tuple[str, ...]] = {
    "area": ("max_pixels", "size.max_pixels", "size.longest_edge"),
    "longest": ("size.longest_edge",),
    "split": ("size.longest_edge",),
    "canvas": ("max_patches",),
    "fit": ("max_patches",),
    "budget": ("max_soft_tokens",),
    "native": ("max_patches",),
}


def as_processed(spec: ModelSpec, folder: Path) -> ModelSpec:
    """The model with the limits that the processors in its folder have."""
    vision = spec.vision
    if vision is None:
        return spec
    return replace(spec, vision=_with_limits(vision, _table(folder / IMAGES), _table(folder / VIDEO)))


def _with_limits(vision: Vision, images: JsonMapping, video: JsonMapping) -> Vision:
    image_sizing = _with_sizes(vision.sizing, images, IMAGES)
    return replace(vision, sizing=image_sizing, video=_with_sizes(vision.video, video, VIDEO) if vision.video else None)


def _with_sizes(own: Sizing, table: JsonMapping, file: str) -> Sizing:
    least = _first(table, LEAST.get(own.rule, ()), file)
    limit = _first(table, LIMITS.get(own.rule, ()), file)
    return replace(own, least=own.least if least is None else least, most=own.most if limit is None else limit)


def _first(table: JsonMapping, keys: tuple[str, ...], file: str) -> int | None:
    for key in keys:
        outer, _, inner = key.partition(".")
        below = table.get(outer)
        value = below.get(inner) if inner and isinstance(below, Mapping) else None if inner else below
        if value is None:
            continue
        if type(value) is not int or not 0 < value <= MOST:
            raise InputError(Problem(path=key, given=repr(value)[:60], expected="a whole number above 0", where=file))
        return value
    return None


def _table(path: Path) -> JsonMapping:
    if not path.is_file():
        return {}
    try:
        table = json.loads(read_text(path, BIGGEST))
    except (ValueError, RecursionError):
        expectation = "a processor's settings"
        raise InputError(Problem(path="", given="no JSON", expected=expectation, where=str(path))) from None
    return table if isinstance(table, Mapping) else {}
