"""Turn a question that a target of an export cannot be told, whatever the plan, into the problem that says why.

A model that the target has no words for makes every plan untellable: plain plans of each sharding and along each axis
are asked about, so that nobody sweeps a space in vain.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ridgeline.core.errors import Problem
from ridgeline.models.load import MODELS
from ridgeline.plan.scenario import Scenario
from ridgeline.search.plan_target import AskedTarget, Untold, named
from ridgeline.search.space import Space
from ridgeline.search.told_space import plain_plans

MOST_NAMED = 3  # decisions that stand against a plan


def of_the_question(scenario: Scenario, space: Space, target: AskedTarget) -> tuple[Untold, ...]:
    """What stands against every plain plan, where for one of them it is the model or the workload; else nothing."""
    found: tuple[Untold, ...] = ()
    for plan in plain_plans(scenario, space):
        untold = target.untold(replace(scenario, plan=plan))
        if not untold:
            return ()
        if not any(one.path.startswith("plan.") for one in untold):
            found = found or untold
    return found


def untellable(scenario: Scenario, target: AskedTarget, untold: tuple[Untold, ...], given: str) -> Problem:
    """The problem: what was given, what of it stands against it, and what to do instead."""
    whole = any(one.path == "model.hidden" for one in untold)
    words = "the model" if whole else named(untold[:MOST_NAMED])
    reasons = dict.fromkeys(one.why for one in untold)
    expected = f"a plan that {target.id} can be told; not {words}: {'; '.join(reasons)}"
    return Problem(path="--to", given=given, expected=expected, todo=_instead(scenario, untold))


def _instead(scenario: Scenario, untold: Iterable[Untold]) -> str:
    """What to do about decisions that a target cannot be told."""
    of_model = [one.path for one in untold if one.path.startswith("model.")]
    if of_model and all(path.startswith("model.mtp") for path in of_model):
        return "add --set model.mtp=0 to plan it without them, or use another target"
    if of_model and scenario.model.id in MODELS:
        return "use another target"
    if of_model:
        return "name the model by its id in the catalog, or use another target"
    return "use another target, change the question, or leave out --to"
