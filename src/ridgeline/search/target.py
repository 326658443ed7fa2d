"""What a search asks of the target of an export, and the problem where no plan can be expressed in it.

The target is above this floor and handed in as a value. Its `capability` says which plans it can express; its own
writer, which `unsupported` asks, says why not, and judges what the table does not know: the model and the workload.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ridgeline.core.errors import Problem
from ridgeline.hardware.system import System
from ridgeline.models.load import MODELS
from ridgeline.plan.capability import Capability, UnsupportedDecision, decision_words
from ridgeline.plan.scenario import Scenario

MOST_NAMED = 3  # decisions that stand against a plan


class ExportTarget(Protocol):
    """A target of an export, as far as a search asks it."""

    @property
    def id(self) -> str:
        """Its name, as `export --to` takes it."""

    @property
    def capability(self) -> Capability:
        """Which values of each decision it can express."""

    def engines(self, system: System) -> tuple[str, ...]:
        """Engines that it runs on a system's chips; an `InputError` where it does not run on them."""

    def unsupported_decisions(self, scenario: Scenario) -> tuple[UnsupportedDecision, ...]:
        """The decisions of a scenario that change its step and that the target cannot express, as its writer says."""


def inexpressible(
    scenario: Scenario, target: ExportTarget, decisions: tuple[UnsupportedDecision, ...], given: str
) -> Problem:
    """The problem: what was given, what of it stands against it, and what to do instead."""
    model = any(item.path == "model.hidden" for item in decisions)
    words = "the model" if model else decision_words(decisions[:MOST_NAMED])
    reasons = dict.fromkeys(item.why for item in decisions)
    expectation = f"a plan that {target.id} can express; not {words}: {'; '.join(reasons)}"
    return Problem(path="--to", given=given, expected=expectation, todo=_remedy(scenario, decisions))


def _remedy(scenario: Scenario, decisions: Iterable[UnsupportedDecision]) -> str:
    """What to do about decisions that a target cannot express."""
    of_model = [item.path for item in decisions if item.path.startswith("model.")]
    if of_model and all(path.startswith("model.mtp") for path in of_model):
        return "add --set model.mtp=0 to plan it without them, or use another target"
    if of_model and scenario.model.id in MODELS:
        return "use another target"
    if of_model:
        return "name the model by its id in the catalog, or use another target"
    return "use another target, change the question, or leave out --to"
