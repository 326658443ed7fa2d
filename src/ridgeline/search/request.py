"""Turn the words of a command line or a form into what every search is asked: a scenario's table, systems, a goal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, TypeVar

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.files import SUFFIXES, read_table
from ridgeline.core.records import dataclass
from ridgeline.models.load import model as load_model
from ridgeline.plan.scenario_file import confine
from ridgeline.search.target import ExportTarget

GoalT = TypeVar("GoalT", bound=str)


class SearchOptions(TypedDict, total=False):
    """Words that every search takes.

    on          systems such as "64xh100-sxm,64xh200-sxm"
    settings    `key=value`: pins of the plan (plan.tp=2..8), or any key of a scenario
    space       a file whose [space] pins like settings
    objective   what is minimised: to train time, cost, energy, memory or chips; to serve cost, chips or goodput
    """

    on: str
    engine: str
    settings: Sequence[str]
    space: Path | None
    objective: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """What is asked of any search.

    table      as a scenario file: model and whatever else is given; `system` where no other system is named
    systems    names or files; each is searched
    target     the target of an export that every answer has to be expressible in; absent: any, within its engine
    """

    table: JsonMapping
    systems: tuple[str, ...] = ()
    target: ExportTarget | None = None


def read_request(name: str, settings: Sequence[str] = ()) -> JsonObject:
    """The scenario table that a model's name, a model's file or a scenario file means; paths in it are resolved."""
    path = Path(name)
    if path.suffix.lower() in SUFFIXES and path.is_file():
        table = read_table(path).data
        if "model" in table and ("workload" in table or "system" in table or "plan" in table):
            if problems := confine(table, path.parent, settings):
                raise InputError(problems)
            return table
    load_model(name)  # an unknown name is told at once, with its near matches
    return {"model": name}


def read_space(path: Path, problems: list[Problem]) -> JsonMapping:
    """The table [space] of a file; without one a problem."""
    body = read_table(path).data.get("space")
    if not isinstance(body, dict):
        problems.append(Problem(path="space", given=str(path), expected="a table [space]", where=str(path)))
        return {}
    return body


def named_systems(options: SearchOptions, table: JsonMapping, problems: list[Problem]) -> tuple[str, ...]:
    """The systems that options name; a problem where the table has none either."""
    systems = tuple(name.strip() for name in options.get("on", "").split(",") if name.strip())
    problems += [] if systems or "system" in table else [no_system()]
    return systems


def no_system() -> Problem:
    """What is told where neither an option nor a file names a system."""
    todo = "for example --on 64xh100-sxm; `ridgeline show systems` lists them"
    return Problem(path="--on", given="nothing", expected="a system", todo=todo)


def named_goal(options: SearchOptions, usual: GoalT, goals: Sequence[GoalT]) -> GoalT:
    """The objective that options name, of those there are; the usual one where they name none."""
    name = options.get("objective") or usual
    goal = next((goal for goal in goals if goal == name), None)
    if goal is None:
        raise InputError(not_among("--objective", name, goals))
    return goal
