"""Turn sizes of images and video in a workload into lengths: tokens of latents, patches of an image encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ridgeline.models.spec import ModelSpec
from ridgeline.plan.serve import Serve
from ridgeline.plan.workload import Decode, Workload


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


def with_images(model: ModelSpec, work: Workload) -> ModelSpec:
    """The model with its image encoder at the size of the workload's images."""
    if model.vision is None or isinstance(work, (Serve, Decode)) or work.height is None:
        return model
    return replace(model, vision=model.vision.sized(work.height, work.width or work.height))
