"""What a target of an export is, what writing for it yields and what reading it yields: frozen values.

A target `some-id` is the module `targets.dialects.some_id`, or the modules `read` and `write` of such a package:

    write(Scenario) -> Export, read(files) -> Imported, recognises(files) -> bool
    targets/tables/some-id.toml              the target's words for things, used in both directions
    targets/options/some-id-vVERSION.toml    the options that version documents
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.encode import plain
from ridgeline.core.errors import InputError, Problem
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.options import options

NOTHING: JsonMapping = MappingProxyType({})
DIALECTS = ("megatron-deepspeed", "nemo", "verl-update")  # read and not written: no options of their own are recorded
DECODER = "training of a decoder"  # what the files of a run that is read have to do
ROLLOUT = "a step of post-training with a rollout: GRPO, PPO and their kin"  # or those of post-training
Files = Mapping[str, str]  # relative file name -> text
Effect = Literal["none", "may change", "changes"]  # of an option that was not read, on the step


def refusal(given: str, expected: str, *, path: str = "", todo: str = "", where: str = "") -> InputError:
    """The error of one problem."""
    return InputError(Problem(path=path, given=given, expected=expected, todo=todo, where=where))


def written_words(files: Files, line: str) -> Iterator[str]:
    """What a line of this form says at the top of files that Ridgeline wrote, once for each."""
    texts = (text for text in files.values() if "Written by Ridgeline" in text)
    return (match.group(1) for text in texts if (match := re.search(line, text, re.MULTILINE)))


def other_work(given: str, *, todo: str = "", where: str = "", path: str = "") -> InputError:
    """The refusal of a run that does something else, whatever it is called with."""
    return refusal(given, DECODER, path=path, todo=todo, where=where)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A decision of the scenario that the target cannot express.

    yours   the files leave it to the user's own script, which can still do as planned
    """

    path: str
    value: Any
    why: str
    yours: bool = False

    JSON = "path value=table_value why yours"

    @property
    def table_value(self) -> Any:
        """The value as a scenario file has it."""
        return plain(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """Something a target's files say that a scenario has no place for, or that was not understood.

    matters   the reader knows that it changes what a step costs
    effect    none, may change, or changes the step: `imports.unread_effects` says which
    decision  what it decides, by the words of its name: mesh, batch, length, ...; `other` where none speaks of it
    """

    option: str
    value: str
    why: str
    matters: bool = False
    effect: Effect = "none"
    decision: str = ""

    JSON = "option value why effect decision changes_step"

    @property
    def changes_step(self) -> bool:
        """Whether it changes the step, or may."""
        return self.matters or self.effect != "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a prediction says of one step: whether it fits, and how long it takes."""

    step_time_s: float
    peak_memory_bytes: float
    capacity_bytes: float
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportDifference:
    """A decision that means something else when the files are read again."""

    path: str
    planned: Any
    written: Any

    JSON = "path planned=table_planned written=table_written"

    @property
    def table_planned(self) -> Any:
        """The planned value as a scenario file has it."""
        return plain(self.planned)

    @property
    def table_written(self) -> Any:
        """The value of the files as a scenario file has it."""
        return plain(self.written)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportCheck:
    """The files of an export read again and predicted, beside the plan they were made of.

    planned, written  None where there is no prediction: of requests under load, or where something is impossible
    why               why the files have none; empty where they have
    differs           decisions that came back with another value, or not at all
    causes            the lost decisions among these
    """

    verdict: Literal["same", "differs", "slower", "faster", "misfit", "unreadable", "not-predicted"]
    planned: Figures | None = None
    written: Figures | None = None
    why: str = ""
    differs: tuple[ExportDifference, ...] = ()
    causes: tuple[Lost, ...] = ()

    JSON = "verdict refuses planned written change why differs causes"

    @property
    def refuses(self) -> bool:
        """Whether the files would not run as planned: they no longer fit, are slower or faster, or mean no run."""
        return self.verdict in ("slower", "faster", "misfit", "unreadable")

    @property
    def change(self) -> float | None:
        """How much longer the step of the files is than the plan's: 0.05 for 5 %."""
        if self.planned is None or self.written is None:
            return None
        return self.written.step_time_s / self.planned.step_time_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A scenario as one target reads it. Every decision stands in exactly one of `expressed`, `implied` and `lost`.

    files      relative file name -> text, launch scripts among them
    expressed  decision -> the option that carries it
    implied    decision -> why nothing has to be written for it: the target does so by itself
    check      what the files mean when they are read again; None where a target's `write` was called by itself
    """

    target: str
    version: str
    files: Files
    expressed: Mapping[str, str]
    implied: Mapping[str, str]
    lost: tuple[Lost, ...]
    check: ExportCheck | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What a target's files say, as a table that `ridgeline.scenario` takes (without `system` where they name none).

    unread       options that did not reach the table, with the reason
    assumptions  what had to be assumed because the files do not say it
    per_rank     sequences each data-parallel rank handles in a step, where the files say that instead of a global
                 batch: the batch is known once the system is
    chips        how many chips the files start the run on, where they say it
    """

    target: str
    settings: JsonMapping
    unread: tuple[Unread, ...] = ()
    assumptions: tuple[str, ...] = ()
    per_rank: int | None = None
    chips: int | None = None

    JSON = "target scenario unread assumptions chips"

    @property
    def doubtful(self) -> tuple[Unread, ...]:
        """The options that were not read and change the step, or may."""
        return tuple(part for part in self.unread if part.changes_step)

    @property
    def scenario(self) -> JsonObject:
        """The table of a scenario."""
        return {key: plain(value) for key, value in self.settings.items()}

    def with_settings(self, *, workload: JsonMapping = NOTHING, plan: JsonMapping = NOTHING) -> Imported:
        """The same run with other keys of its workload and plan."""
        changes = {"workload": workload, "plan": plan}
        changed_tables = {name: {**self.settings[name], **table} for name, table in changes.items() if table}
        return replace(self, settings={**self.settings, **changed_tables})

    def with_notes(self, *before: str, after: tuple[str, ...] = ()) -> Imported:
        """The same run with further assumptions, before or behind those it has."""
        return replace(self, assumptions=(*before, *self.assumptions, *after))


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One software that a scenario can be handed to; its name, version and source are those of its recorded options.

    write       Scenario -> Export
    read        files -> Imported, or an `InputError`; text is parsed, never executed
    recognises  whether files look like this target's
    """

    id: str
    write: Callable[[Scenario], Export]
    read: Callable[[Files], Imported]
    recognises: Callable[[Files], bool]

    @property
    def title(self) -> str:
        """What its makers call it."""
        return options(self.id).target if self.id not in DIALECTS else self.id

    @property
    def version(self) -> str:
        """The version whose documented options are recorded."""
        return options(self.id).version

    @property
    def source(self) -> str:
        """Where those options are documented."""
        return options(self.id).source


def not_written(id: str, instead: str) -> Callable[[Scenario], Export]:
    """The `write` of a dialect that is read and not written."""

    def write(_: Scenario) -> Export:
        todo = f"--to {instead} writes for its software"
        raise refusal(f"{id}, which is read and not written", "a target", path="--to", todo=todo)

    return write
