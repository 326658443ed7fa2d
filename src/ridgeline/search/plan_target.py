"""What a search asks of the target of an export: which decisions of a plan it cannot be told, and what it does instead.

The target itself is above this floor and handed in as a value (`PlanTarget`). `AskedTarget` remembers its answers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from ridgeline.core.records import dataclass
from ridgeline.hardware.system import System
from ridgeline.plan.plan import Plan
from ridgeline.plan.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Untold:
    """A decision that a target cannot be told, by its path in a scenario, with its value in words and the reason."""

    path: str
    value: str
    why: str


def named(untold: Iterable[Untold]) -> str:
    """Decisions with their values, in one line; of a model's parts their names.

    >>> named([Untold(path="plan.shard", value="zero1", why=""), Untold(path="model.mtp.depth", value="1", why="")])
    'plan.shard = zero1, model.mtp'
    """
    parts = (
        ".".join(one.path.split(".")[:2]) if one.path.startswith("model.") else f"{one.path} = {one.value}"
        for one in untold
    )
    return ", ".join(dict.fromkeys(parts))


class DeploymentTarget(Protocol):
    """A target of an export, as far as a search of deployments asks it."""

    @property
    def id(self) -> str:
        """Its name, as `export --to` takes it."""

    def engines(self, system: System) -> tuple[str, ...]:
        """Engines that it runs on a system's chips; an `InputError` where it does not run on them."""

    def untold(self, scenario: Scenario) -> tuple[Untold, ...]:
        """The decisions of a scenario that change its step and that the target cannot be told; empty: it can, all."""


class PlanTarget(DeploymentTarget, Protocol):
    """A target of an export, as far as a search of training plans asks it."""

    def habits(self, scenario: Scenario) -> Mapping[str, Any]:
        """Decision -> what the target does by itself, where a scenario has it otherwise and it cannot be told."""


class AskedTarget:
    """A target and what it answered; one for all searches of a request."""

    def __init__(self, target: PlanTarget) -> None:
        self.target = target
        self._known: dict[Hashable, tuple[Untold, ...]] = {}
        self._habits: dict[Hashable, Mapping[str, Any]] = {}

    @property
    def id(self) -> str:
        """The target's name."""
        return self.target.id

    def untold(self, scenario: Scenario) -> tuple[Untold, ...]:
        """What it cannot be told of a scenario."""
        return self.of_kind(scenario, str(scenario.plan), lambda: scenario.plan)

    def of_kind(self, scenario: Scenario, kind: Hashable, one: Callable[[], Plan]) -> tuple[Untold, ...]:
        """What it cannot be told of a kind of plans, by one of them."""
        key = _asked_of(scenario), kind
        if key not in self._known:
            self._known[key] = self.target.untold(replace(scenario, plan=one()))
        return self._known[key]

    def habits(self, scenario: Scenario) -> Mapping[str, Any]:
        """What it does by itself in place of what a scenario has."""
        key = _asked_of(scenario), str(scenario.plan)
        if key not in self._habits:
            self._habits[key] = self.target.habits(scenario)
        return self._habits[key]


def _asked_of(scenario: Scenario) -> Hashable:
    """What of a scenario is not its plan."""
    work = scenario.workload
    return scenario.model.id, scenario.system.name, scenario.engine.id, work.seq, work.sequences
