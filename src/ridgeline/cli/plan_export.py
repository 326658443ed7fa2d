"""Turn a recommendation into a folder that launches it: the scenario, and the files of its target."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.core.records import dataclass

if TYPE_CHECKING:
    from ridgeline.plan.scenario import Scenario

SCENARIO = "scenario.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOut:
    """What is wanted of an answer: a scenario file or with `to` a folder that starts it, a page, a picture."""

    output: Path | None
    html: Path | None
    picture: Path | None
    json: bool
    to: str = ""
    force: bool = False

    @property
    def folder(self) -> Path | None:
        """Where the files of a target go: a name that is not a scenario file's is a folder's, where there is one."""
        from ridgeline.core.files import SUFFIXES

        named = self.output is not None and self.output.suffix.lower() in SUFFIXES
        return self.output if self.to and not named else None


def refuse_filled(folder: Path | None, force: bool) -> None:
    """Say before the search that a folder cannot take the files, or holds some already."""
    from ridgeline.core.errors import InputError, Problem

    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as wrong:
        given = wrong.strerror or str(wrong)
        raise InputError(Problem(path=str(folder), given=given, expected="a folder that can be made")) from None
    if not os.access(folder, os.W_OK):
        given = "a folder that cannot be written"
        raise InputError(Problem(path=str(folder), given=given, expected="one that can", todo="choose another"))
    if any(folder.iterdir()) and not force:
        given, todo = f"{folder}, which holds files", "choose another, or add --force"
        raise InputError(Problem(path="--output", given=given, expected="an empty folder", todo=todo))


def export_into(folder: Path, scenario: Scenario, told: str, to: str) -> Iterator[str]:
    """Write the scenario and the target's files; a line for each, then what they mean and what is left to the user."""
    from ridgeline.cli.export import lost_lines
    from ridgeline.core.files import write_text
    from ridgeline.targets import check_lines, export

    made = export(scenario, to=to)
    for name, text in {SCENARIO: told, **made.files}.items():
        write_text(folder / name, text)
        yield f"written: {folder / name}"
    yield from check_lines(made.check) if made.check else ()
    yield from lost_lines(made)
