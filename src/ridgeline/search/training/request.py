"""Turn what somebody asks of `plan` into a PlanRequest, and that into cases to search: each a scenario and its pins.

`PlanRequest.from_options` takes the words of a command line or a form. What is wrong with them is told in those words.
Nothing but a model and a system is needed; what is left out takes a default that is stated as an assumption.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict, Unpack

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem, UnknownId, not_among
from ridgeline.core.files import SUFFIXES, read_table
from ridgeline.core.records import dataclass
from ridgeline.core.table import keys
from ridgeline.cost import Calibration
from ridgeline.hardware.load import resize_name
from ridgeline.hardware.load import system as load_system
from ridgeline.hardware.system import System
from ridgeline.models.load import model as load_model
from ridgeline.plan.engine import default_engine, default_engine_note
from ridgeline.plan.plan import Switches
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble, confine, described_engine
from ridgeline.plan.settings import apply_settings, told_by
from ridgeline.plan.workload import Train
from ridgeline.search.target import ExportTarget
from ridgeline.search.training.objectives import (
    OBJECTIVES,
    Goal,
    Objective,
    Outcome,
    chosen,
    divisible_batch,
    pair,
    quarters,
    sizes_of,
    tokens_of,
)
from ridgeline.search.training.pins import PinSettings, join_pins, pin_settings, pins_of, settings_table
from ridgeline.search.training.space import Pins


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


SEQ, GLOBAL_BATCH = 8192, 1024
LARGEST = 16384  # chips that are tried for a deadline unless a range is given
KEPT = ("engine", "precision", *keys(Switches))  # of a plan that came with a scenario; the rest is searched


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One system of one size under one engine: a space to search.

    table    the scenario as a file would say it, without its plan
    given    whether the scenario came with a plan of its own, which is then compared with what is found
    """

    scenario: Scenario
    pins: Pins
    table: JsonMapping
    given: bool = False


def search_cases(request: PlanRequest, search: Callable[[Case], Outcome], skipped: list[str]) -> Iterator[Outcome]:
    """The outcome of every case of a request, one after the other; sizes that cannot be built are told in `skipped`.

    For the fewest chips sizes are searched upwards until the deadline is met, and then those just below that. A size
    of these that misses it only because the global batch does not divide by 3, 5 or 7 is told with one that does.
    """
    if request.goal.objective != "chips" or request.chips is not None:
        yield from (search(case) for case in cases(request, skipped))
        return
    for ref in request.systems or (request.table.get("system"),):
        below = 0
        for case in cases(replace(request, systems=(str(ref),)), skipped):
            found, chips = search(case), case.scenario.system.chips
            yield found
            if chosen([found], request.goal) is None:
                below = chips
                continue
            fewest = chips
            for smaller in _between(request, str(ref), below, chips):
                found = search(smaller)
                yield found
                if chosen([found], request.goal) is not None:
                    fewest = min(fewest, smaller.scenario.system.chips)
            skipped.extend(_with_another_batch(request, str(ref), search, (below, chips, fewest)))
            break


def cases(request: PlanRequest, skipped: list[str]) -> Iterator[Case]:
    """Every space to search, sizes in rising order; those that cannot be built are told in `skipped`."""
    for ref in request.systems or (request.table.get("system"),):
        for system_name in _sizes(request, ref, skipped):
            yield from _engines(request, system_name)


def _between(request: PlanRequest, ref: str, below: int, above: int) -> Iterator[Case]:
    """Sizes between one that misses the deadline and one that meets it."""
    for chips in quarters(below, above):
        try:
            yield from _engines(request, resize_name(ref, chips))
        except InputError:
            continue  # a size that the system does not come in


def _with_another_batch(
    request: PlanRequest, ref: str, search: Callable[[Case], Outcome], sizes: tuple[int, int, int]
) -> Iterator[str]:
    """The smallest size between two that meets the deadline with another global batch, below the fewest chips found."""
    below, above, fewest = sizes
    for neighbour in _between(request, ref, below, above):
        chips, work = neighbour.scenario.system.chips, neighbour.scenario.workload
        other = divisible_batch(work.sequences, chips) if isinstance(work, Train) and work.global_batch else None
        if chips >= fewest or other is None:
            continue
        settings = (*request.settings, f"workload.global_batch={other}")
        found = search(
            case(replace(request, settings=settings), resize_name(ref, chips), neighbour.scenario.plan.engine)
        )
        if chosen([found], request.goal) is not None and found.run is not None:
            yield (
                f"{chips} chips would do with a global batch of {other} sequences instead of {work.sequences}: "
                f"{found.run.days:.1f} days, {fewest - chips} chips fewer"
            )
            return


def _engines(request: PlanRequest, ref: Any) -> Iterator[Case]:
    """One system under each engine asked for, or that the target runs."""
    for engine in _target_engines(request, ref) or request.pins.engines or (None,):
        yield case(request, ref, engine)


def _target_engines(request: PlanRequest, ref: Any) -> tuple[str, ...]:
    """Engines that the target runs on a system, of those asked for; none without a target, or with an [engine]."""
    system = _system({**request.table, "system": request.table.get("system") if ref is None else ref})
    if request.target is None or system is None or described_engine(dict(request.table)) is not None:
        return ()
    able, pinned_engines = request.target.engines(system), request.pins.engines
    if other := [id for id in pinned_engines if id not in able]:
        got = f"{', '.join(other)} with --to {request.target.id}"
        expectation = f"an engine that {request.target.id} runs: {', '.join(able) or 'none of the catalog'}"
        raise InputError(Problem(path="--engine", given=got, expected=expectation, todo="leave out --engine, or --to"))
    return pinned_engines or able


def _sizes(request: PlanRequest, ref: Any, skipped: list[str]) -> Iterator[Any]:
    """What names the system at each size."""
    text = request.chips
    if text is None and request.goal.objective == "chips":
        text = f"8..{LARGEST}"
    if text is None or ref is None:
        yield ref
        return
    if not isinstance(ref, str):
        expectation = "a system named by --on when sizes are swept"
        raise InputError(Problem(path="--chips", given="a system table", expected=expectation, todo="add --on"))
    full_system = load_system(ref)
    domain = full_system.tiers[0].chips if full_system.tiers else 1
    for chips in sizes_of(text, domain):
        system_name = resize_name(ref, chips)
        try:
            load_system(system_name)
        except InputError as wrong:
            skipped.append(f"{chips} chips left out: {wrong}")
        else:
            yield system_name


def case(request: PlanRequest, ref: Any, engine: str | None) -> Case:
    """The space of one system; everything wrong with the input at once as an `InputError`."""
    table = copy.deepcopy(dict(request.table))
    if ref is not None:
        table["system"] = ref
    problems = apply_settings(table, request.settings)
    plan_table = table.pop("plan", {})
    plan_table = plan_table if isinstance(plan_table, Mapping) else {}
    custom_engine = described_engine(table)
    system = _system(table)
    usual = custom_engine or default_engine(system)
    notes = _defaults(table, plan_table, None if engine or custom_engine else default_engine_note(system))
    if request.target is not None and engine and engine not in request.pins.engines:
        notes.append(f"engine = {engine}: what {request.target.id} runs")
    fixed_keys = {key: value for key, value in plan_table.items() if key in KEPT}
    fixed_keys = {"engine": usual, "precision": "bf16", **fixed_keys, **({"engine": engine} if engine else {})}
    plain_plan = {"dp": 1, "microbatch": 1, "recompute": "none", **fixed_keys}
    built, found = assemble({**table, "plan": plain_plan})
    problems += [problem for problem in found if built is None or not problem.path.startswith("plan.")]
    if problems or built is None:
        raise InputError(dict.fromkeys(problems))
    given_scenario = assemble({**table, "plan": {**plan_table, **fixed_keys}})[0] if plan_table else None
    plan = given_scenario.plan if given_scenario else built.plan
    built = replace(built, plan=plan, assumptions=tuple(dict.fromkeys((*notes, *built.assumptions))))
    pins = pins_of(request.pins, built, problems)
    if problems:
        raise InputError(dict.fromkeys(problems))
    return Case(scenario=built, pins=pins, table=MappingProxyType(table), given=given_scenario is not None)


def one_scenario(model: str, **options: Unpack[PlanOptions]) -> Scenario:
    """The scenario that a model, a system and settings mean, by the defaults of a search, each stated as assumed.

    What a search would choose and no setting says is the plainest: data parallel over the chips that are left.

    >>> found = one_scenario("llama3-8b", on="8xh100-sxm", settings=["plan.tp=2"])
    >>> found.plan.mesh.dp, found.workload.seq, "global_batch = 1024 sequences: not given" in found.assumptions
    (4, 8192, True)
    """
    settings = tuple(options.get("settings", ()))
    try:
        table = request_table(model, options, settings)
    except UnknownId:
        table = {"model": model}  # told with everything else that is wrong
    if options.get("on"):
        table["system"] = options["on"]
    problems = apply_settings(table, settings)
    plan_table = table.get("plan", {})
    plan_table = dict(plan_table) if isinstance(plan_table, Mapping) else {}
    if options.get("engine"):
        plan_table["engine"] = options["engine"]
    custom_engine = described_engine(table)
    system = _system(table)
    usual = custom_engine or default_engine(system)
    notes = _defaults(table, plan_table, None if custom_engine else default_engine_note(system))
    built, found = assemble({**table, "plan": {"engine": usual, "precision": "bf16", **plan_table}})
    problems += found if "system" in table else [no_system(), *(one for one in found if one.path != "system")]
    if problems or built is None:
        raise InputError([told_by(settings, problem) for problem in dict.fromkeys(problems)])
    return replace(built, assumptions=tuple(dict.fromkeys((*notes, *built.assumptions))))


def _defaults(table: JsonObject, plan: JsonMapping, engine: str | None) -> list[str]:
    """Fill in what the workload leaves out; what was assumed, a line each. `engine` says so where one was chosen."""
    notes = []
    work = dict(table["workload"]) if isinstance(table.get("workload"), Mapping) else {}
    if "seq" not in work:
        work["seq"] = _longest(table)
        notes.append(f"seq = {work['seq']}: not given")
    if "global_batch" not in work and "tokens_per_batch" not in work and work.get("kind", "train") == "train":
        work["global_batch"] = GLOBAL_BATCH
        notes.append(f"global_batch = {GLOBAL_BATCH} sequences: not given")
    if "optimizer" not in work:
        notes.append("optimizer = adamw with fp32 states and master weights: not given")
    table["workload"] = {"kind": "train", **work}
    if engine is not None and "engine" not in plan:
        notes.append(engine)
    if "precision" not in plan:
        notes.append("precision = bf16 unless searched: not given")
    return notes


def _longest(table: JsonMapping) -> int:
    """The default sequence, or the longest the model was made for."""
    try:
        context = load_model(table["model"]).context
    except (InputError, KeyError):
        context = None  # told when the scenario is built
    return min(SEQ, context or SEQ)


def _system(table: JsonMapping) -> System | None:
    """The system, for the software its chips are trained with by default."""
    try:
        return load_system(table["system"])
    except (InputError, KeyError, TypeError):
        return None  # what is wrong with it is told when the scenario is built
