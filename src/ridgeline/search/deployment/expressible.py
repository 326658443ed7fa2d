"""Turn the replicas that an engine can run into those that the target of an export can express, by its table."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.hardware.system import System
from ridgeline.plan.capability import UnsupportedDecision, decision_words
from ridgeline.plan.scenario import Scenario
from ridgeline.search.deployment.shape import Shape
from ridgeline.search.deployment.space import DeploymentSpace, shapes
from ridgeline.search.target import ExportTarget

SETTINGS = ("precision", "speculation", "tokens", "seqs", "prefix")  # what is set replica by replica


def target_engines(target: ExportTarget, system: System, engines: tuple[str, ...]) -> tuple[str, ...]:
    """Engines that the target runs on a system, of those asked for; an `InputError` where it runs none of them."""
    able = target.engines(system)
    if wrong := [id for id in engines if id not in able]:
        raise InputError(not_among("--engine", wrong[0], able, f"{target.id} runs these"))
    return engines or able


def expressible_space(scenario: Scenario, space: DeploymentSpace, target: ExportTarget) -> DeploymentSpace:
    """The choices that the target supports; an `InputError` where an axis is left without any."""
    kinds = list(shapes(scenario, space))
    if not kinds:
        return space  # the search says why none can run

    def able(tried: Scenario) -> bool:
        return not target.capability.unsupported_decisions(tried)

    plain = next((shape for shape in kinds if able(shape.scenario(scenario))), kinds[0])
    if decisions := target.unsupported_decisions(plain.scenario(scenario)):
        raise _nothing(target, decisions)
    choices: JsonObject = {
        axis: tuple(choice for choice in space.of(axis) if able(plain.with_setting(axis, choice).scenario(scenario)))
        for axis in SETTINGS
    }
    choices["split"] = tuple(split for split in space.split if able(_split(scenario, plain, split)))
    for axis, some in choices.items():
        if not some:
            (first, *_) = space.of(axis)
            by_pools = axis == "split"
            attempt = _split(scenario, plain, first) if by_pools else plain.with_setting(axis, first).scenario(scenario)
            raise _nothing(target, target.unsupported_decisions(attempt))
    return replace(space, **choices, target=target)


def _split(scenario: Scenario, plain: Shape, split: str) -> Scenario:
    if split == "aggregated":
        return plain.scenario(scenario)
    return plain.pooled(scenario, (plain.pool("prefill", 1), plain.pool("decode", 1)))


def _nothing(target: ExportTarget, decisions: tuple[UnsupportedDecision, ...]) -> InputError:
    why = "; ".join(dict.fromkeys(item.why for item in decisions))
    got = f"{target.id} for {decision_words(decisions)}"
    return InputError(Problem(path="--to", given=got, expected=why[:200], todo="unpin it, or choose another target"))
