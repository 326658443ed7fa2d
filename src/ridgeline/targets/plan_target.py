"""Turn a target of an export into what a search asks of it: the engines it runs, what it can express, and why not.

What a target can express is declared in `capabilities/ID.toml`; a test holds the table against the target's own writer.
Reasons are that writer's, of the very plan that is asked about.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from ridgeline.core.encode import plain
from ridgeline.core.errors import InputError, not_among
from ridgeline.core.records import dataclass
from ridgeline.hardware.system import System
from ridgeline.plan.capability import Capability, UnsupportedDecision, read_capability
from ridgeline.plan.engine import ENGINES
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.targets.registry import SERVE, TARGETS, TRAIN
from ridgeline.targets.reread import reread
from ridgeline.targets.target import Export, Lost
from ridgeline.targets.vendors import refuse_other_chips

FOLDER = Path(__file__).parent / "capabilities"
HARMLESS = ("model.context", "model.numerics.", "workload.task")  # no step depends on them
ACCEPTANCE = "plan.speculation.acceptance"  # a fact of the text, which no file says


@cache
def capability_of(target: str) -> Capability:
    """What a target declares.

    >>> capability_of("torchtitan").engines
    ('torchtitan',)
    """
    path = FOLDER / f"{target}.toml"
    return read_capability(tomllib.loads(path.read_text(encoding="utf-8")), str(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class _SearchedTarget:
    id: str

    @property
    def capability(self) -> Capability:
        """Which values of each decision it can express."""
        return capability_of(self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTarget(_SearchedTarget):
    """A target of `export` that trains, as a search asks it."""

    def engines(self, system: System) -> tuple[str, ...]:
        """Engines that the target's own files run on these chips.

        >>> from ridgeline.hardware.load import system
        >>> [training_target(id).engines(system("8xh100-sxm")) for id in ("torchtitan", "verl")]
        [('torchtitan',), ('megatron-core', 'torch-eager')]
        """
        refuse_other_chips(system, self.id)
        ids = self.capability.engines
        made_for = [id for id in ids if system.chip.vendor in (ENGINES[id].supports.vendors or (system.chip.vendor,))]
        return tuple(made_for or ids)

    def unsupported_decisions(self, scenario: Scenario) -> tuple[UnsupportedDecision, ...]:
        """Lost decisions of the plan; of the model and the workload those without which the step is another.

        >>> import ridgeline
        >>> scenario = ridgeline.scenario({"model": "llama3-8b", "system": "8xh100-sxm",
        ...     "workload": {"seq": 8192, "global_batch": 64}, "plan": {"engine": "torchtitan", "shard": "zero1"}})
        >>> [item.path for item in training_target("torchtitan").unsupported_decisions(scenario)]
        ['plan.shard']
        """
        try:
            export = TARGETS[self.id].write(scenario)
        except InputError as error:
            return tuple(_of_problems(error))
        work = scenario.workload  # without images an encoder of them takes no part in a step
        harmless = HARMLESS if isinstance(work, Train) and work.images else (*HARMLESS, "model.vision")
        lost = [item for item in export.lost if not item.yours and not item.path.startswith(harmless)]
        of_plan = [item for item in lost if item.path.startswith("plan.")]
        if not of_plan and lost and not _is_same_step(export, scenario, lost):
            of_plan = lost
        return tuple(_decision_of(item) for item in of_plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingTarget(_SearchedTarget):
    """A target of `export` that serves, as a search asks it."""

    def engines(self, system: System) -> tuple[str, ...]:
        """Engines that the target starts on these chips.

        >>> from ridgeline.hardware.load import system
        >>> eight = system("8xh100-sxm")
        >>> serving_target("sglang").engines(eight), serving_target("dynamo").engines(eight)
        (('sglang',), ('sglang', 'tensorrt-llm', 'vllm'))
        """
        refuse_other_chips(system, self.id)
        return self.capability.engines

    def unsupported_decisions(self, scenario: Scenario) -> tuple[UnsupportedDecision, ...]:
        """Lost decisions of the plan that no set-up of the user's can make good."""
        try:
            lost = TARGETS[self.id].write(scenario).lost
        except InputError as error:
            return tuple(_of_problems(error))
        return tuple(
            _decision_of(item)
            for item in lost
            if item.path.startswith("plan.") and item.path != ACCEPTANCE and not item.yours
        )


def training_target(id: str) -> TrainingTarget:
    """The target of that id, or an `InputError` with those that train."""
    if id not in TRAIN:
        raise InputError(not_among("--to", id, TRAIN))
    return TrainingTarget(id=id)


def serving_target(id: str) -> ServingTarget:
    """The target of that id, or an `InputError` with those that serve."""
    if id not in SERVE:
        raise InputError(not_among("--to", id, SERVE, "the others train: leave --serve out"))
    return ServingTarget(id=id)


def _of_problems(error: InputError) -> list[UnsupportedDecision]:
    return [UnsupportedDecision(path=item.path, value=item.given, why=item.expected) for item in error.problems]


def _decision_of(lost: Lost) -> UnsupportedDecision:
    return UnsupportedDecision(path=lost.path, value=str(plain(lost.value)), why=lost.why)


def _is_same_step(export: Export, scenario: Scenario, lost: list[Lost]) -> bool:
    """Whether the step is the same without these, as the files read again tell it."""
    check = reread(export, scenario)
    differing = {item.path for item in check.differs}
    return check.verdict == "same" and all(item.path in differing for item in lost)
