"""Turn a plan's recompute into the nearest one that a target can express: the same, or more of it, never less.

A target that takes one number for all stages, or names modules for all layers, cannot say what refinement found for
each stage. Written instead is the least that recomputes at least as much in every layer, so that what fitted still
fits; `price` says what the difference costs, and only then is anything predicted.

    nearest           for targets that name modules, or a number of layers of each virtual stage (Megatron)
    same_in_stages    for targets with one number of layers for each virtual stage
    same_everywhere   for targets with one way for all layers
    changed           the losses that a fallback brings
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import get_args, get_type_hints

from ridgeline.models.spec import LatentAttention, Moe
from ridgeline.plan.plan import Recompute
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.ledger import Lose, Say, lose

STRENGTH = ("none", "selective", "full")
PARTS: tuple[str, ...] = get_args(get_args(get_type_hints(Recompute)["parts"])[0])
KEYS = ("kind", "parts", "layers", "rest", "blocks")


def normal_recompute(scenario: Scenario) -> Recompute:
    """The plan's recompute without what changes nothing: all layers need no number, none of them no kind, and parts
    that no layer has are nothing to compute again.

    >>> import ridgeline
    >>> made = ridgeline.scenario({"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 4096,
    ...     "global_batch": 8}, "plan": {"pp": 2, "recompute": {"kind": "full", "layers": [16, 16]}}})
    >>> str(normal_recompute(made))
    'full'
    """
    chosen = scenario.plan.recompute
    if chosen.kind == "selective":
        blocks = scenario.model.blocks
        latent = any(isinstance(block.mixer, LatentAttention) for block in blocks)
        experts = any(isinstance(block.ffn, Moe) for block in blocks)
        absent = {name for name, there in (("latent-up", latent), ("moe", experts)) if not there}
        chosen = replace(chosen, parts=tuple(part for part in chosen.parts if part not in absent))
        chosen = chosen if chosen.parts else replace(chosen, kind="none")
    if chosen.kind == "none":
        return replace(chosen, layers=None, rest="none")
    kind_of_plan = scenario.plan.recompute
    counts = tuple(kind_of_plan.layers_of(stage, layers) for stage, layers in enumerate(scenario.placement))
    if counts == scenario.placement:
        return replace(chosen, layers=None, rest="none")
    if not any(counts):
        return replace(chosen, kind=chosen.rest, layers=None, rest="none")
    most, stages = max(counts), zip(scenario.placement, counts, strict=True)
    if all(min(layers, most) == count for layers, count in stages):
        return replace(chosen, layers=max(counts))
    return chosen


def nearest(scenario: Scenario, parts: Collection[str], *, some_selective: bool = False) -> Recompute:
    """The least recompute, at least the plan's in every layer, of a target that can say:

    none; all layers whole; the first N layers of every virtual stage whole; these `parts` of all layers
    (of the first N layers of every virtual stage where `some_selective`)
    """
    chosen = normal_recompute(scenario)
    if chosen.blocks:
        kinds = (chosen.kind, *chosen.blocks.values())
        chosen = replace(chosen, kind=max(kinds, key=STRENGTH.index), blocks={}, layers=None, rest="none")
    if chosen.kind == "none":
        return chosen
    if chosen.rest != "none":  # two ways in one stage: the stronger of them everywhere
        chosen = replace(chosen, layers=None, rest="none")
    if isinstance(chosen.layers, tuple):
        chosen = replace(chosen, layers=max(chosen.layers))
    if chosen.kind == "full":
        return chosen
    if not set(chosen.parts) <= set(parts):
        wider = tuple(sorted({"mlp" if part == "activation" else part for part in chosen.parts}))
        if not set(wider) <= set(parts):
            return replace(chosen, kind="full")
        chosen = replace(chosen, parts=wider)
    return chosen if some_selective else replace(chosen, layers=None)


def same_everywhere(scenario: Scenario) -> Recompute:
    """One kind for all layers: the most that any layer has, or a block that predicts further tokens.

    >>> import ridgeline
    >>> made = ridgeline.scenario({"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 8192,
    ...     "global_batch": 8}, "plan": {"pp": 2, "recompute": {"kind": "full", "layers": [3, 0]}}})
    >>> str(same_everywhere(made)), str(same_in_stages(made))
    ('full', 'full (3 layers of each stage)')
    """
    chosen_recompute = scenario.plan.recompute
    fallback = replace(nearest(scenario, PARTS), layers=None, parts=chosen_recompute.parts)
    ahead = chosen_recompute.kind if scenario.model.mtp is not None else "none"
    return replace(fallback, kind=max(fallback.kind, ahead, key=STRENGTH.index))


def same_in_stages(scenario: Scenario) -> Recompute:
    """One number of fully recomputed layers for every virtual stage, or one kind for all layers."""
    fallback = nearest(scenario, PARTS)
    some = isinstance(fallback.layers, int) and fallback.layers < max(scenario.placement)
    if fallback.kind == "full" and some and scenario.model.mtp is None:
        return replace(fallback, parts=scenario.plan.recompute.parts)
    return same_everywhere(scenario)


def price(scenario: Scenario, written: Recompute) -> str:
    """What a plan with another recompute costs, in words.

    >>> import ridgeline
    >>> made = ridgeline.scenario({"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 4096,
    ...     "global_batch": 64}, "plan": {"pp": 4, "recompute": {"kind": "full", "layers": [4, 2, 0, 0]}}})
    >>> price(made, nearest(made, ())).split(" by ")[0]
    'written: full (4 layers of each stage), which makes the step longer'
    """
    from ridgeline.sim.predict_step import predict  # heavy, and asked for only where something is written otherwise
    from ridgeline.sim.prediction import Prediction

    message = f"written: {written}" + (f" of {', '.join(written.parts)}" if written.kind == "selective" else "")
    before, after = predict(scenario), predict(replace(scenario, plan=replace(scenario.plan, recompute=written)))
    if not isinstance(before, Prediction) or not isinstance(after, Prediction):
        return message
    change = after.step_time_s / before.step_time_s - 1
    if abs(change) < 5e-4:
        return f"{message}, which takes as long"
    return f"{message}, which makes the step {'longer' if change > 0 else 'shorter'} by {abs(change):.1%}"


def checkpointing_pieces(scenario: Scenario, option: str, *, switches_off: bool = False) -> Iterator[Say | Lose]:
    """Recompute of all layers or of none, by one switch (or one that `switches_off`)."""
    cover = same_everywhere(scenario)
    yield from fallback_losses(scenario, cover, "one way for all layers")
    yield Say(option, (cover.kind == "none") == switches_off, "plan.recompute.kind")
    if cover.kind == "selective":
        why = "gradient checkpointing is full or none: written as full"
        yield from lose(why, "plan.recompute.kind", "plan.recompute.parts")


def fallback_losses(scenario: Scenario, written: Recompute, why: str) -> Iterator[Lose]:
    """A loss for every key that is written otherwise, with what that costs; `why` is what hinders the target."""
    chosen_recompute = scenario.plan.recompute
    keys = [key for key in KEYS if getattr(chosen_recompute, key) != getattr(written, key)]
    if chosen_recompute.kind != written.kind:
        keys.append("parts")
    message = f"{why}; {price(scenario, written)}" if keys else ""
    for key in keys:
        yield Lose(f"plan.recompute.{key}", message)
