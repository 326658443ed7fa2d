"""Turn the replicas that an engine can run into those that the target of an export can be told.

The target is asked about one replica of every kind, so that nothing is declared twice: what its writer would report as
lost is not searched (see `targets/deployment_target.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.hardware.system import System
from ridgeline.plan.scenario import Scenario
from ridgeline.search.deployments.shape import Shape
from ridgeline.search.deployments.space import DeploymentSpace, shapes
from ridgeline.search.plan_target import DeploymentTarget, Untold, named

TURNED = ("precision", "speculation", "tokens", "seqs", "prefix")  # what is turned replica by replica


def told_engines(target: DeploymentTarget, system: System, asked: tuple[str, ...]) -> tuple[str, ...]:
    """Engines that the target runs on a system, of those asked for; an `InputError` where it runs none of them."""
    able = target.engines(system)
    if wrong := [one for one in asked if one not in able]:
        raise InputError(not_among("--engine", wrong[0], able, f"{target.id} runs these"))
    return asked or able


def told_space(scenario: Scenario, space: DeploymentSpace, target: DeploymentTarget) -> DeploymentSpace:
    """The choices that the target can be told; an `InputError` where an axis is left without any."""
    kinds = list(shapes(scenario, space))
    if not kinds:
        return space  # the search says why none can run
    plain = next((one for one in kinds if not target.untold(one.scenario(scenario))), None)
    if plain is None:
        raise _nothing(target, target.untold(kinds[0].scenario(scenario)))
    kept: dict[str, Any] = {
        axis: tuple(one for one in space.of(axis) if not target.untold(plain.turned(axis, one).scenario(scenario)))
        for axis in TURNED
    }
    kept["split"] = tuple(one for one in space.split if not target.untold(_split(scenario, plain, one)))
    for axis, choices in kept.items():
        if not choices:
            raise _nothing(target, tuple(_asked(scenario, space, plain, axis, target)))
    return replace(space, **kept, target=target)


def _split(scenario: Scenario, plain: Shape, split: str) -> Scenario:
    if split == "aggregated":
        return plain.scenario(scenario)
    return plain.pooled(scenario, (plain.pool("prefill", 1), plain.pool("decode", 1)))


def _asked(
    scenario: Scenario, space: DeploymentSpace, plain: Shape, axis: str, target: DeploymentTarget
) -> Iterator[Untold]:
    """What the target cannot be told of the first choice along an axis."""
    (first, *_) = space.of(axis)
    made = _split(scenario, plain, first) if axis == "split" else plain.turned(axis, first).scenario(scenario)
    yield from target.untold(made)


def _nothing(target: DeploymentTarget, untold: tuple[Untold, ...]) -> InputError:
    why = "; ".join(dict.fromkeys(one.why for one in untold))
    todo = "unpin it, or choose another target"
    return InputError(Problem(path="--to", given=f"{target.id} for {named(untold)}", expected=why[:200], todo=todo))
