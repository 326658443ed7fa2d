"""Turn a plan's recompute into what software with one way for all layers is told, and into what changes by that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args, get_type_hints

from ridgeline.export.ledger import Lose
from ridgeline.export.nearest import STRENGTH, nearest, price
from ridgeline.plan.plan import Recompute
from ridgeline.plan.scenario import Scenario

PARTS: tuple[str, ...] = get_args(get_args(get_type_hints(Recompute)["parts"])[0])
KEYS = ("kind", "parts", "layers", "rest", "blocks")


def same_everywhere(scenario: Scenario) -> Recompute:
    """One kind for all layers: the most that any layer has, or a block that predicts further tokens.

    >>> import ridgeline
    >>> made = ridgeline.scenario({"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 8192,
    ...     "global_batch": 8}, "plan": {"pp": 2, "recompute": {"kind": "full", "layers": [3, 0]}}})
    >>> str(same_everywhere(made)), str(same_in_stages(made))
    ('full', 'full (3 layers of each stage)')
    """
    own = scenario.plan.recompute
    found = replace(nearest(scenario, PARTS), layers=None, parts=own.parts)
    ahead = own.kind if scenario.model.mtp is not None else "none"
    return replace(found, kind=max(found.kind, ahead, key=STRENGTH.index))


def same_in_stages(scenario: Scenario) -> Recompute:
    """One number of fully recomputed layers for every virtual stage, or one kind for all layers."""
    found = nearest(scenario, PARTS)
    some = isinstance(found.layers, int) and found.layers < max(scenario.placement)
    if found.kind == "full" and some and scenario.model.mtp is None:
        return replace(found, parts=scenario.plan.recompute.parts)
    return same_everywhere(scenario)


def changed(scenario: Scenario, written: Recompute, why: str) -> Iterator[Lose]:
    """A loss for every key that is written otherwise, with what that costs; `why` is what hinders the target."""
    own = scenario.plan.recompute
    keys = [key for key in KEYS if getattr(own, key) != getattr(written, key)]
    if own.kind != written.kind:
        keys.append("parts")
    told = f"{why}; {price(scenario, written)}" if keys else ""
    for key in keys:
        yield Lose(f"plan.recompute.{key}", told)
