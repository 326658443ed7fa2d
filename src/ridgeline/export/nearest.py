"""Turn a plan's recompute into the nearest one that a target can say: the same, or more of it, never less.

A target that takes one number for all stages, or names modules for all layers, cannot say what refinement found for
each stage. Written instead is the least that recomputes at least as much in every layer, so that what fitted still
fits; `price` says what the difference costs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ridgeline.models.spec import LatentAttention, Moe
from ridgeline.plan.plan import Recompute
from ridgeline.plan.scenario import Scenario
from ridgeline.sim.predict import predict
from ridgeline.sim.prediction import Prediction

STRENGTH = ("none", "selective", "full")


def plain(scenario: Scenario) -> Recompute:
    """The plan's recompute without what changes nothing: all layers need no number, none of them no kind, and parts
    that no layer has are nothing to compute again.

    >>> import ridgeline
    >>> made = ridgeline.scenario({"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 4096,
    ...     "global_batch": 8}, "plan": {"pp": 2, "recompute": {"kind": "full", "layers": [16, 16]}}})
    >>> str(plain(made))
    'full'
    """
    chosen = scenario.plan.recompute
    if chosen.kind == "selective":
        absent = _absent(scenario)
        chosen = replace(chosen, parts=tuple(part for part in chosen.parts if part not in absent))
        chosen = chosen if chosen.parts else replace(chosen, kind="none")
    if chosen.kind == "none":
        return replace(chosen, layers=None, rest="none")
    counts = again(scenario)
    if counts == scenario.placement:
        return replace(chosen, layers=None, rest="none")
    if not any(counts):
        return replace(chosen, kind=chosen.rest, layers=None, rest="none")
    if all(min(held, max(counts)) == count for held, count in zip(scenario.placement, counts, strict=True)):
        return replace(chosen, layers=max(counts))
    return chosen


def _absent(scenario: Scenario) -> set[str]:
    """Parts that no layer of the model has."""
    blocks = scenario.model.blocks
    latent = any(isinstance(block.mixer, LatentAttention) for block in blocks)
    experts = any(isinstance(block.ffn, Moe) for block in blocks)
    return {name for name, there in (("latent-up", latent), ("moe", experts)) if not there}


def again(scenario: Scenario) -> tuple[int, ...]:
    """Layers of each virtual stage that do the plan's kind of recompute."""
    chosen = scenario.plan.recompute
    return tuple(chosen.layers_of(stage, held) for stage, held in enumerate(scenario.placement))


def nearest(scenario: Scenario, parts: Collection[str], *, some_selective: bool = False) -> Recompute:
    """The least recompute, at least the plan's in every layer, of a target that can say:

    none; all layers whole; the first N layers of every virtual stage whole; these `parts` of all layers
    (of the first N layers of every virtual stage where `some_selective`)
    """
    chosen = plain(scenario)
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


def price(scenario: Scenario, written: Recompute) -> str:
    """What a plan with another recompute costs, in words.

    >>> import ridgeline
    >>> made = ridgeline.scenario({"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 4096,
    ...     "global_batch": 64}, "plan": {"pp": 4, "recompute": {"kind": "full", "layers": [4, 2, 0, 0]}}})
    >>> price(made, nearest(made, ())).split(" by ")[0]
    'written: full (4 layers of each stage), which makes the step longer'
    """
    told = f"written: {written}" + (f" of {', '.join(written.parts)}" if written.kind == "selective" else "")
    before, after = predict(scenario), predict(replace(scenario, plan=replace(scenario.plan, recompute=written)))
    if not isinstance(before, Prediction) or not isinstance(after, Prediction):
        return told
    change = after.step_time_s / before.step_time_s - 1
    if abs(change) < 5e-4:
        return f"{told}, which takes as long"
    return f"{told}, which makes the step {'longer' if change > 0 else 'shorter'} by {abs(change):.1%}"
