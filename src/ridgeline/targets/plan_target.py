"""Turn a target into the answers that a search asks of it, by what its own writer and reader say of a scenario.

Nothing is declared twice: what `export` would report as lost is what a search leaves out, and what the files mean when
they are read again is what the target does by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ridgeline.core.encode import plain
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.hardware.system import System
from ridgeline.plan.engine import ENGINES
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble
from ridgeline.plan.workload import Train
from ridgeline.search.plan_target import Untold
from ridgeline.search.told_space import ENGINE, GRADIENTS, OPEN, OVERLAP, SEQUENCE_PARALLEL
from ridgeline.targets.decisions import decisions_of
from ridgeline.targets.registry import TARGETS, TRAIN
from ridgeline.targets.reread import meaning, reread
from ridgeline.targets.target import Export, Lost
from ridgeline.targets.vendors import refuse_other_chips

PLAIN = "llama3-8b"  # every target has a word for this model
HARMLESS = ("model.context", "model.numerics.", "workload.task")  # no step depends on them


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportTarget:
    """A target of `export`, as a search asks it."""

    id: str
    _judged: dict[tuple[object, ...], bool] = field(default_factory=dict)

    def engines(self, system: System) -> tuple[str, ...]:
        """Engines that the target's own files run on these chips.

        >>> from ridgeline.hardware.load import system
        >>> [training_target(id).engines(system("8xh100-sxm")) for id in ("torchtitan", "verl")]
        [('torchtitan',), ('megatron-core', 'torch-eager')]
        """
        found: list[str] = []
        for id in (id for id in ENGINES if ENGINES[id].serves is None):
            probe = _probe(system, id)
            refuse_other_chips(probe, self.id)
            found += [id] if ENGINE not in _paths(TARGETS[self.id].write(probe)) else []
        known = [id for id in found if system.chip.vendor in (ENGINES[id].supports.vendors or (system.chip.vendor,))]
        return tuple(known or found)

    def untold(self, scenario: Scenario) -> tuple[Untold, ...]:
        """Lost decisions of the plan; of the model and the workload those without which the step is another.

        >>> import ridgeline
        >>> made = ridgeline.scenario({"model": "llama3-8b", "system": "8xh100-sxm",
        ...     "workload": {"seq": 8192, "global_batch": 64}, "plan": {"engine": "torchtitan", "shard": "zero1"}})
        >>> [one.path for one in training_target("torchtitan").untold(made)]
        ['plan.shard']
        """
        try:
            made = TARGETS[self.id].write(scenario)
        except InputError as wrong:
            return tuple(Untold(path=one.path, value=one.given, why=one.expected) for one in wrong.problems)
        lost = [one for one in made.lost if not one.yours and not one.path.startswith(_harmless(scenario))]
        own = [one for one in lost if one.path.startswith("plan.")]
        if not own and lost and not self._is_same(made, scenario, lost):
            own = lost
        return tuple(Untold(path=one.path, value=str(plain(one.value)), why=one.why) for one in own)

    def _is_same(self, made: Export, scenario: Scenario, lost: list[Lost]) -> bool:
        """Whether the step is the same without these, as the files read again tell it; asked once for each set."""
        key = (scenario.model.id, scenario.plan.engine, *(one.path for one in lost))
        if key not in self._judged:
            check = reread(made, scenario)
            seen = {one.path for one in check.differs}
            self._judged[key] = check.verdict == "same" and all(one.path in seen for one in lost)
        return self._judged[key]

    def habits(self, scenario: Scenario) -> Mapping[str, Any]:
        """What the files mean, of switches and formats that they cannot say as the scenario has them."""
        try:
            made = TARGETS[self.id].write(scenario)
            lost = tuple(_paths(made))
            wanted = [path for path in lost if _is_habit(path)]
            if not wanted or ENGINE in lost:
                return {}
            after = decisions_of(meaning(made, TARGETS[self.id].read(made.files), scenario))
        except InputError:
            return {}
        return {path: after[path] for path in wanted if path in after}


def training_target(id: str) -> ExportTarget:
    """The target of that id, or an `InputError` with those that train."""
    if id not in TRAIN:
        raise InputError(not_among("--to", id, TRAIN))
    return ExportTarget(id=id)


def _paths(made: Export) -> Iterator[str]:
    """The lost decisions that no script of the user's can make good."""
    return (one.path for one in made.lost if not one.yours)


def _harmless(scenario: Scenario) -> tuple[str, ...]:
    """Decisions that no step depends on; without images an encoder of them takes no part in one."""
    work = scenario.workload
    return HARMLESS if isinstance(work, Train) and work.images else (*HARMLESS, "model.vision")


def _is_habit(path: str) -> bool:
    return path.startswith(OVERLAP) or path in (*OPEN, GRADIENTS, SEQUENCE_PARALLEL)


def _probe(system: System, engine: str) -> Scenario:
    """A plain run on a system, under an engine."""
    work = {"seq": 4096, "global_batch": system.chips}
    built, problems = assemble({"model": PLAIN, "system": system, "workload": work, "plan": {"engine": engine}})
    if built is None:
        raise InputError(problems or [Problem(path="system", given=system.name, expected="a system")])
    return built
