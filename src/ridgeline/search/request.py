"""Turn what somebody asks of `plan` (a model, systems, sizes, pins, a goal) into a PlanRequest, the one question.

`PlanRequest.from_options` takes the words of a command line or a form. What is wrong with them is told in those words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import TypedDict, Unpack

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.files import SUFFIXES, read_table
from ridgeline.core.records import dataclass
from ridgeline.cost import Calibration
from ridgeline.models.load import model as load_model
from ridgeline.plan.scenario_file import confine
from ridgeline.search.objectives import OBJECTIVES, Goal, Objective, pair, tokens_of
from ridgeline.search.pins import PinSettings, join_pins, pin_settings, settings_table
from ridgeline.search.target import ExportTarget


class PlanOptions(TypedDict, total=False):
    """A request in words, as `ridgeline plan` takes them.

    on              systems such as "64xh100-sxm,64xh200-sxm"
    settings        `key=value`: pins of the plan (plan.tp=2..8), or any key of a scenario
    space           a file whose [space] pins like settings
    objective       time, cost, energy, memory or chips
    tokens          of the run, such as 2T
    chips           sizes, 64..4096 or 64,96,128
    frontier        two of the objectives, such as time,cost
    """

    on: str
    seq: int | None
    global_batch: int | None
    engine: str
    settings: Sequence[str]
    space: Path | None
    objective: str
    tokens: str
    days: float | None
    chips: str
    top: int
    headroom: str
    frontier: str
    refine: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What is asked of `plan`.

    table      as a scenario file: model and whatever else is given; `system` where no other system is named
    systems    names or files; each is searched
    settings   `key=value` upon the table, none of them about the plan
    pins       the choices that are left of the plan
    goal       what is minimised, and the run it is for
    chips      sizes to search, as a range or a list; absent: as the systems say
    headroom   share of a chip's memory that a plan must leave free; absent: as measured peaks ask for
    top        plans that are listed
    frontier   the two quantities of the Pareto front; absent: time and memory, or between sizes time and money
    refine     whether stage boundaries and recompute by stage are chosen too
    calibration   what plans are priced with; absent: the shipped parameters
    target     the target of an export that plans have to be told to; absent: any, within their engine
    """

    table: JsonMapping
    systems: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    pins: PinSettings = field(default_factory=PinSettings)
    goal: Goal = Goal()
    chips: str | None = None
    headroom: float | None = None
    top: int = 5
    frontier: tuple[str, str] | None = None
    refine: bool = True
    calibration: Calibration | None = None
    target: ExportTarget | None = None

    @classmethod
    def from_options(cls, model: str, **options: Unpack[PlanOptions]) -> PlanRequest:
        """The request that options mean; `model` is a catalog id, a config.json or a scenario file.

        >>> asked = PlanRequest.from_options("llama3-8b", on="8xh100-sxm", tokens="2T", settings=["plan.tp=2..8"])
        >>> asked.systems, asked.goal.tokens, dict(asked.pins.values)
        (('8xh100-sxm',), 2000000000000.0, {'tp': ('2..8',)})
        """
        axes = pair(options["frontier"]) if options.get("frontier") else None
        pins, remainder = _pins(options)
        table = request_table(model, options, remainder)
        systems = tuple(name.strip() for name in options.get("on", "").split(",") if name.strip())
        if not systems and "system" not in table:
            raise InputError(no_system())
        return cls(
            table=MappingProxyType(table),
            systems=systems,
            settings=remainder,
            pins=pins,
            goal=_goal(options),
            chips=options.get("chips") or None,
            headroom=_share(options["headroom"]) if options.get("headroom") else None,
            top=options.get("top", 5),
            frontier=axes,
            refine=options.get("refine", True),
        )


def _pins(options: PlanOptions) -> tuple[PinSettings, tuple[str, ...]]:
    """Pins of the space file and of the settings, and the settings that are not about the plan."""
    problems: list[Problem] = []
    pins, space = PinSettings(), options.get("space")
    if space is not None:
        file = read_table(space)
        body = file.data.get("space")
        problems += [not_among(key, key, ("space",), "remove it") for key in file.data if key != "space"]
        if not isinstance(body, dict):
            problems.append(Problem(path="space", given=str(space), expected="a table [space]", where=str(space)))
            body = {}
        pins = pin_settings(body, space.name, problems)
    current, remainder = settings_table(options.get("settings", ()), problems)
    if options.get("engine"):
        current["engine"] = options["engine"]
    pins = join_pins(pins, pin_settings(current, "--set", problems))
    if problems:
        raise InputError(problems)
    return pins, tuple(remainder)


def no_system() -> Problem:
    """What is told where neither an option nor a file names a system."""
    todo = "for example --on 64xh100-sxm; `ridgeline show systems` lists them"
    return Problem(path="--on", given="nothing", expected="a system", todo=todo)


def request_table(model: str, options: PlanOptions, settings: Sequence[str]) -> JsonObject:
    """The scenario table that is meant, with the options that are keys of its workload."""
    table = read_request(model, settings)
    work = table.get("workload", {})
    got = {"seq": options.get("seq"), "global_batch": options.get("global_batch")}
    more = {key: value for key, value in got.items() if value is not None}
    if more and isinstance(work, dict):
        drop = ("tokens_per_batch",) if "global_batch" in more else ()
        table["workload"] = {**{key: value for key, value in work.items() if key not in drop}, **more}
    return table


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


def _goal(options: PlanOptions) -> Goal:
    days = options.get("days")
    if days is not None and not 0 < days < float("inf"):
        raise InputError(Problem(path="--days", given=f"{days:g}", expected="a number of days above 0"))
    tokens = tokens_of(options["tokens"]) if options.get("tokens") else None
    return Goal(objective=_objective(options.get("objective", ""), days), tokens=tokens, days=days)


def _objective(name: str, days: float | None) -> Objective:
    """The objective of that name; unnamed, the fewest chips for a deadline, or else time."""
    name_words = name or ("chips" if days is not None else "time")
    result = next((catalog_entry for catalog_entry in OBJECTIVES if catalog_entry == name_words), None)
    if result is None:
        raise InputError(not_among("--objective", name_words, OBJECTIVES))
    return result


def _share(text: str) -> float:
    """A share as `3%` or `0.03`."""
    bare = text.strip()
    try:
        value = float(bare.removesuffix("%")) / (100 if bare.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise InputError(Problem(path="--headroom", given=repr(text), expected="a share such as 3% or 0.03, below 1"))
    return value
