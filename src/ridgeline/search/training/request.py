"""Turn what somebody asks of `plan` into a PlanRequest, and that into cases to search: each a scenario and its pins.

`PlanRequest.from_options` takes the words of a command line or a form. What is wrong with them is told in those words.
Nothing but a model and a system is needed; what is left out takes a default that is stated as an assumption.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import Unpack

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem, UnknownId, not_among
from ridgeline.core.files import read_table
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
from ridgeline.plan.scenario_file import apply_settings, assemble, described_engine, told_by
from ridgeline.plan.workload import Train
from ridgeline.search.choices import closest_chips
from ridgeline.search.request import (
    SearchOptions,
    SearchRequest,
    named_goal,
    named_systems,
    no_system,
    read_request,
    read_space,
)
from ridgeline.search.training.objectives import (
    OBJECTIVES,
    Goal,
    Objective,
    PlanOutcome,
    chosen,
    divisible_batch,
    pair,
    quarters,
    sizes_of,
    tokens_of,
)
from ridgeline.search.training.pins import PinSettings, join_pins, pin_settings, pins_of, settings_table
from ridgeline.search.training.space import Pins

SEQ, GLOBAL_BATCH = 8192, 1024
SERVED = ("prefill", "decode")  # kinds of workload that no search trains
LARGEST = 16384  # chips that are tried for a deadline unless a range is given
KEPT = ("engine", "precision", *keys(Switches))  # of a plan that came with a scenario; the rest is searched
SystemRef = str | JsonMapping | None  # a system's name or file, or its table; None: what the scenario names


class PlanOptions(SearchOptions, total=False):
    """A request in words, as `ridgeline plan` takes them.

    tokens          of the run, such as 2T
    chips           sizes, 64..4096 or 64,96,128
    frontier        two of the objectives, such as time,cost
    """

    seq: int | None
    global_batch: int | None
    tokens: str
    days: float | None
    chips: str
    top: int
    headroom: str
    frontier: str
    refine: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest(SearchRequest):
    """What is asked of `plan`.

    settings   `key=value` upon the table, none of them about the plan
    pins       the choices that are left of the plan
    goal       what is minimised, and the run it is for
    chips      sizes to search, as a range or a list; absent: as the systems say
    headroom   share of a chip's memory that a plan must leave free; absent: as measured peaks ask for
    top        plans that are listed
    frontier   the two quantities of the Pareto front; absent: time and memory, or between sizes time and money
    refine     whether stage boundaries and recompute by stage are chosen too
    calibration   what plans are priced with; absent: the shipped parameters
    """

    settings: tuple[str, ...] = ()
    pins: PinSettings = field(default_factory=PinSettings)
    goal: Goal = Goal()
    chips: str | None = None
    headroom: float | None = None
    top: int = 5
    frontier: tuple[str, str] | None = None
    refine: bool = True
    calibration: Calibration | None = None

    @classmethod
    def from_options(cls, model: str, **options: Unpack[PlanOptions]) -> PlanRequest:
        """The request that options mean; `model` is a catalog id, a config.json or a scenario file.

        >>> asked = PlanRequest.from_options("llama3-8b", on="8xh100-sxm", tokens="2T", settings=["plan.tp=2..8"])
        >>> asked.systems, asked.goal.tokens, dict(asked.pins.values)
        (('8xh100-sxm',), 2000000000000.0, {'tp': ('2..8',)})
        """
        problems: list[Problem] = []
        axes = pair(options["frontier"]) if options.get("frontier") else None
        pins, settings = _pins(options)
        table = request_table(model, options, settings)
        systems = named_systems(options, table, problems)
        if problems:
            raise InputError(problems)
        return cls(
            table=MappingProxyType(table),
            systems=systems,
            settings=settings,
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
        problems += [not_among(key, key, ("space",), "remove it") for key in read_table(space).data if key != "space"]
        pins = pin_settings(read_space(space, problems), space.name, problems)
    table, remainder = settings_table(options.get("settings", ()), problems)
    if options.get("engine"):
        table["engine"] = options["engine"]
    pins = join_pins(pins, pin_settings(table, "--set", problems))
    if problems:
        raise InputError(problems)
    return pins, tuple(remainder)


def request_table(model: str, options: PlanOptions, settings: Sequence[str]) -> JsonObject:
    """The scenario table that is meant, with the options that are keys of its workload."""
    table = read_request(model, settings)
    work = table.get("workload", {})
    sizes = {"seq": options.get("seq"), "global_batch": options.get("global_batch")}
    stated_sizes = {key: value for key, value in sizes.items() if value is not None}
    if stated_sizes and isinstance(work, dict):
        if "global_batch" in stated_sizes:
            work = {key: value for key, value in work.items() if key != "tokens_per_batch"}
        table["workload"] = {**work, **stated_sizes}
    return table


def _goal(options: PlanOptions) -> Goal:
    """What is minimised; unnamed, the fewest chips for a deadline, or else time."""
    days = options.get("days")
    if days is not None and not 0 < days < float("inf"):
        raise InputError(Problem(path="--days", given=f"{days:g}", expected="a number of days above 0"))
    tokens = tokens_of(options["tokens"]) if options.get("tokens") else None
    usual: Objective = "chips" if days is not None else "time"
    return Goal(objective=named_goal(options, usual, OBJECTIVES), tokens=tokens, days=days)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCase:
    """One system of one size under one engine: a space to search.

    table    the scenario as a file would say it, without its plan
    given    whether the scenario came with a plan of its own, which is then compared with what is found
    """

    scenario: Scenario
    pins: Pins
    table: JsonMapping
    given: bool = False


def search_cases(
    request: PlanRequest, search: Callable[[TrainingCase], PlanOutcome], skipped: list[str]
) -> Iterator[PlanOutcome]:
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
            outcome, chips = search(case), case.scenario.system.chips
            yield outcome
            if chosen([outcome], request.goal) is None:
                below = chips
                continue
            fewest = chips
            for smaller in _between(request, str(ref), below, chips):
                outcome = search(smaller)
                yield outcome
                if chosen([outcome], request.goal) is not None:
                    fewest = min(fewest, smaller.scenario.system.chips)
            skipped.extend(_with_another_batch(request, str(ref), search, (below, chips, fewest)))
            break


def cases(request: PlanRequest, skipped: list[str]) -> Iterator[TrainingCase]:
    """Every space to search, sizes in rising order; those that cannot be built are told in `skipped`."""
    for ref in request.systems or (request.table.get("system"),):
        for system_name in _sizes(request, ref, skipped):
            yield from _engines(request, system_name)


def _between(request: PlanRequest, ref: str, below: int, above: int) -> Iterator[TrainingCase]:
    """Sizes between one that misses the deadline and one that meets it."""
    for chips in quarters(below, above):
        try:
            yield from _engines(request, resize_name(ref, chips))
        except InputError:
            continue  # a size that the system does not come in


def _with_another_batch(
    request: PlanRequest, ref: str, search: Callable[[TrainingCase], PlanOutcome], sizes: tuple[int, int, int]
) -> Iterator[str]:
    """The smallest size between two that meets the deadline with another global batch, below the fewest chips found."""
    below, above, fewest = sizes
    for neighbour in _between(request, ref, below, above):
        chips, work = neighbour.scenario.system.chips, neighbour.scenario.workload
        batch = divisible_batch(work.sequences, chips) if isinstance(work, Train) and work.global_batch else None
        if chips >= fewest or batch is None:
            continue
        rebatched = replace(request, settings=(*request.settings, f"workload.global_batch={batch}"))
        outcome = search(_case(rebatched, resize_name(ref, chips), neighbour.scenario.plan.engine))
        if chosen([outcome], request.goal) is not None and outcome.run is not None:
            yield (
                f"{chips} chips would do with a global batch of {batch} sequences instead of {work.sequences}: "
                f"{outcome.run.days:.1f} days, {fewest - chips} chips fewer"
            )
            return


def _engines(request: PlanRequest, ref: SystemRef) -> Iterator[TrainingCase]:
    """One system under each engine asked for, or that the target runs on it; an [engine] is searched as it is."""
    engines, target = request.pins.engines, request.target
    if target is not None and described_engine(request.table) is None:
        system = _system(request.table if ref is None else {"system": ref})
        able = target.engines(system) if system is not None else engines
        if missing := [id for id in engines if id not in able]:
            got = f"{', '.join(missing)} with --to {target.id}"
            expectation = f"an engine that {target.id} runs: {', '.join(able) or 'none of the catalog'}"
            todo = "leave out --engine, or --to"
            raise InputError(Problem(path="--engine", given=got, expected=expectation, todo=todo))
        engines = engines or able
    for engine in engines or (None,):
        yield _case(request, ref, engine)


def _sizes(request: PlanRequest, ref: SystemRef, skipped: list[str]) -> Iterator[SystemRef]:
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
    for chips in sizes_of(text, closest_chips(load_system(ref))):
        system_name = resize_name(ref, chips)
        try:
            load_system(system_name)
        except InputError as wrong:
            skipped.append(f"{chips} chips left out: {wrong}")
        else:
            yield system_name


def _case(request: PlanRequest, ref: SystemRef, engine: str | None) -> TrainingCase:
    """The space of one system; everything wrong with the input at once as an `InputError`."""
    table = copy.deepcopy(dict(request.table))
    if ref is not None:
        table["system"] = ref
    problems = apply_settings(table, request.settings)
    plan_table = table.pop("plan", {})
    plan_table = plan_table if isinstance(plan_table, Mapping) else {}
    if (kind := _kind(table)) in SERVED:
        todo = f"`ridgeline predict` takes a {kind}; `ridgeline plan MODEL --serve` plans a deployment"
        problems.append(Problem(path="workload.kind", given=kind, expected="train", todo=todo))
        raise InputError(dict.fromkeys(problems))
    usual, notes = _defaults(table, plan_table, engine)
    if request.target is not None and engine and engine not in request.pins.engines:
        notes.append(f"engine = {engine}: what {request.target.id} runs")
    fixed_keys = {key: value for key, value in plan_table.items() if key in KEPT}
    fixed_keys = {"engine": usual, "precision": "bf16", **fixed_keys, **({"engine": engine} if engine else {})}
    built, faults = assemble({**table, "plan": {"dp": 1, "microbatch": 1, "recompute": "none", **fixed_keys}})
    problems += [problem for problem in faults if built is None or not problem.path.startswith("plan.")]
    if problems or built is None:
        raise InputError(dict.fromkeys(problems))
    given_scenario = assemble({**table, "plan": {**plan_table, **fixed_keys}})[0] if plan_table else None
    plan = given_scenario.plan if given_scenario else built.plan
    built = replace(built, plan=plan, assumptions=tuple(dict.fromkeys((*notes, *built.assumptions))))
    pins = pins_of(request.pins, built, problems)
    if problems:
        raise InputError(dict.fromkeys(problems))
    return TrainingCase(scenario=built, pins=pins, table=MappingProxyType(table), given=given_scenario is not None)


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
    notes: list[str] = []
    if _kind(table) not in SERVED:  # whose engine and length a scenario's own defaults know
        usual, notes = _defaults(table, plan_table)
        plan_table = {"engine": usual, "precision": "bf16", **plan_table}
    built, faults = assemble({**table, "plan": plan_table})
    problems += faults if "system" in table else [no_system(), *(fault for fault in faults if fault.path != "system")]
    if problems or built is None:
        raise InputError([told_by(settings, problem) for problem in dict.fromkeys(problems)])
    return replace(built, assumptions=tuple(dict.fromkeys((*notes, *built.assumptions))))


def _kind(table: JsonMapping) -> str:
    """The kind of workload that a table asks for."""
    work = table.get("workload")
    return str(work.get("kind", "train")) if isinstance(work, Mapping) else "train"


def _defaults(table: JsonObject, plan: JsonMapping, engine: str | None = None) -> tuple[str, list[str]]:
    """Fill in what the workload leaves out; the engine where none is named, and what was assumed, a line each."""
    notes = []
    custom_engine, system = described_engine(table), _system(table)
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
    if not engine and not custom_engine and "engine" not in plan:
        notes.append(default_engine_note(system))
    if "precision" not in plan:
        notes.append("precision = bf16 unless searched: not given")
    return custom_engine or default_engine(system), notes


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
