"""Turn sizes of images, video and sound in a workload into lengths, and into the reasons why they do not fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ridgeline.core.errors import Problem
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.serve import Serve
from ridgeline.plan.workload import Decode, Prefill, Train

MOST_ASPECT = 200  # of an image's sides, as processors have it


def with_length(table: Any, model: ModelSpec | None) -> tuple[Any, list[str]]:
    """A [workload] table with the `seq` that its height, width and frames mean to a diffusion transformer, where it
    gives none, and what that is; text that stands beside the latents is counted."""
    space = model.latent_space if model else None
    if space is None or not isinstance(table, Mapping) or "seq" in table:
        return table, []
    height = table.get("height")
    sizes = height, table.get("width", height), table.get("frames", 1)
    if not all(type(size) is int and size > 0 for size in sizes):
        return table, []
    latents = space.tokens(*sizes)  # type: ignore[arg-type]
    seq = latents + (space.text if space.joint else 0)
    told = f"seq = {seq}: {sizes[0]} x {sizes[1]} pixels, {sizes[2]} frames are {latents} tokens"
    return {**table, "seq": seq}, [told + (f", beside {space.text} of text" if space.joint else "")]


def media(scenario: Scenario) -> Iterator[Problem]:
    """Images and sound take tokens of their sequence; their sizes ask for a model that sees, hears or makes some."""
    model, work = scenario.model, scenario.workload
    if isinstance(work, Serve):
        return
    listens = model.audio is not None or (model.encoder is not None and model.encoder.reads == "audio")
    if work.audio_s is not None and not listens:
        yield Problem(path="workload.audio_s", given=f"{work.audio_s:g}", expected=f"nothing: {model.id} hears nothing")
    encoder = model.encoder
    if encoder is not None and encoder.per_second and (work.audio_s or 0) * encoder.per_second > encoder.context:
        expected = f"at most {encoder.context / encoder.per_second:g}: longer sound is several sequences"
        yield Problem(path="workload.audio_s", given=f"{work.audio_s:g}", expected=expected, todo="cut it into windows")
    if not isinstance(work, Decode):
        yield from _sizes(model, work)
        yield from _fits(scenario, work)


def _sizes(model: ModelSpec, work: Train | Prefill) -> Iterator[Problem]:
    """Sizes of images and video that the model can use."""
    makes, sees = model.latent_space is not None, model.vision is not None
    for key in ("height", "width", "image_tokens"):
        value = getattr(work, key)
        if value is not None and not sees and not (makes and key != "image_tokens"):
            yield Problem(path=f"workload.{key}", given=str(value), expected=f"nothing: {model.id} has no images")
    if work.videos and not sees:
        yield Problem(path="workload.videos", given=f"{work.videos:g}", expected=f"0: {model.id} sees no video")
    if work.frames > 1 and not makes and not work.videos:
        expected = f"1: {model.id} makes no video" if not sees else "1, or videos of so many frames"
        yield Problem(path="workload.frames", given=str(work.frames), expected=expected, todo="set videos = 1")
    if work.width is not None and work.height is None:
        yield Problem(path="workload.width", given=str(work.width), expected="a height too", todo="set height")
    if work.image_tokens is not None and work.height is not None and not work.videos:
        expected = "height and width, or image_tokens"
        yield Problem(path="workload.image_tokens", given=str(work.image_tokens), expected=expected)
    high, wide = work.height or 1, work.width or work.height or 1
    if max(high, wide) > MOST_ASPECT * min(high, wide):
        expected = f"sides of at most 1 : {MOST_ASPECT}, which processors refuse beyond"
        yield Problem(path="workload.width", given=f"{high} x {wide} pixels", expected=expected)


def _fits(scenario: Scenario, work: Train | Prefill) -> Iterator[Problem]:
    """What images, videos and sound become stands in the sequence."""
    seen, heard = scenario.seen, scenario.heard
    if math.ceil(seen.tokens + heard.tokens) <= work.seq:
        return
    told = {"images": work.images, "videos": work.videos, "audio_s": work.audio_s or 0}
    asked = [(key, value) for key, value in told.items() if value]
    given = ", ".join(f"{key} = {value:g}" for key, value in asked)
    expected = f"at most seq ({work.seq}) tokens: they become {seen.tokens + heard.tokens:,.0f}"
    yield Problem(path=f"workload.{asked[0][0]}", given=given, expected=expected, todo="use a longer seq")
