"""Turn what somebody asks of `plan --serve` into cases: a serve scenario without a plan, and the space to search.

A load without a rate asks for the most goodput; one with a rate, or a trace, for the cheapest deployment that holds it.
Of the plan these keys are searched; any other takes one value and is kept:

plan.tp=2,4   plan.pp=1   plan.ep=8                     degrees of a replica: one, several, or a range 2..8
plan.serving.data_parallel_size=1..8                    attention ranks of a replica
plan.serving.replicas=4                                 replicas in all
plan.serving.pools=none  |  prefill+decode              only aggregated, or only disaggregated
plan.precision=bf16,fp8   plan.precision.kv=fp8         formats; a narrow name means products and weights
plan.speculation.draft_tokens=1,3                       speculation, with draft and acceptance
plan.serving.vllm.max_num_seqs=64,256                   batch limit; token budget and prefix cache likewise

The same keys stand in a file under [space].
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Unpack

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem, UnitError
from ridgeline.core.records import dataclass
from ridgeline.core.table import decode_into
from ridgeline.core.units import parse_quantity
from ridgeline.hardware.load import system as load_system
from ridgeline.plan.engine import ENGINES
from ridgeline.plan.plan import Plan
from ridgeline.plan.scenario import Scenario, serving
from ridgeline.plan.scenario_file import apply_settings, assemble, described_engine, parents_first, parse_value
from ridgeline.plan.serving_plan import SEARCHED_KNOBS
from ridgeline.search.choices import MOST_CHOICES, listed_values, range_bounds, sizes_within
from ridgeline.search.deployment.fleet import GOALS, Goal
from ridgeline.search.deployment.space import DeploymentSpace, deployment_space, expressible_space, target_engines
from ridgeline.search.request import SearchOptions, SearchRequest, named_goal, named_systems, read_request, read_space
from ridgeline.serving import StepPricing

ISL, OSL, PERCENTILE = 1024, 256, 99.0
LASTS_S, FEWEST, MOST = 120.0, 2000, 20_000  # how long a generated load lasts, and its requests
SERVING = ("vllm", "sglang", "tensorrt-llm")
COUNTS = {"tp": "tp", "pp": "pp", "ep": "ep", "serving.data_parallel_size": "dp", "serving.replicas": "replicas"}
SPLITS = {"none": ("aggregated",), "prefill+decode": ("disaggregated",)}
TABLES = ("precision", "speculation")
PinnedKeys = Mapping[str, tuple[object, ...]]
"""Dotted key under [plan] -> its values."""


def pinned_table(table: JsonMapping, prefix: str = "") -> dict[str, tuple[object, ...]]:
    """The keys of a [space] or [plan] table, dotted, with their values.

    >>> pinned_table({"tp": "2,4", "serving": {"vllm": {"max_num_seqs": [64, 256]}}})
    {'tp': (2, 4), 'serving.vllm.max_num_seqs': (64, 256)}
    """
    pins: dict[str, tuple[object, ...]] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            pins |= pinned_table(value, f"{prefix}{key}.")
        else:
            pins[f"{prefix}{key}"] = listed_values(value, of_tables=False)
    return pins


def searched_keys(pins: PinnedKeys) -> tuple[JsonObject, dict[str, tuple[object, ...]]]:
    """Fixed keys of the plan as a table, and the pins of searched axes."""
    knobs = {f"serving.{engine}.{name}" for engine, names in SEARCHED_KNOBS.items() for name in names.values()}
    fixed: JsonObject = {}
    searched: dict[str, tuple[object, ...]] = {}
    for key, values in pins.items():
        if key in (*COUNTS, "serving.pools", *TABLES) or key.split(".")[0] in TABLES or key in knobs:
            searched[key] = values
            continue
        at = fixed
        *above, last = key.split(".")
        for name in above:
            at = at.setdefault(name, {})
        at[last] = values[0] if len(values) == 1 else list(values)
    return fixed, searched


def pinned_space(space: DeploymentSpace, pins: PinnedKeys, problems: list[Problem]) -> DeploymentSpace:
    """The space with its pinned axes; what cannot be read is told."""

    def refuse(key: str, given: object, expected: str) -> None:
        problems.append(Problem(path=f"plan.{key}", given=repr(given), expected=expected, where="--set"))

    def counts(key: str, tried: Iterable[int]) -> Iterator[int]:
        for value in pins[key]:
            if bounds := range_bounds(value):
                yield from sizes_within(bounds, tried, bounds[1])
            elif isinstance(value, int) and not isinstance(value, bool) and value > 0:
                yield value
            else:
                refuse(key, value, "a whole number above 0, several, or a range such as 2..8")

    changes: JsonObject = {
        axis: tuple(dict.fromkeys(counts(key, space.of(axis)))) for key, axis in COUNTS.items() if key in pins
    }
    for names in SEARCHED_KNOBS.values():
        for axis, name in names.items():
            for key in (f"serving.{engine}.{name}" for engine in SEARCHED_KNOBS):
                if key in pins and axis == "prefix":
                    changes[axis] = tuple(bool(value) != name.startswith("disable_") for value in pins[key])
                elif key in pins:
                    changes[axis] = pins[key]
    if "serving.pools" in pins:
        value = str(pins["serving.pools"][0])
        if value not in SPLITS:
            refuse("serving.pools", pins["serving.pools"][0], " or ".join(SPLITS))
        changes["split"] = SPLITS.get(value, space.split)
    for table in TABLES:
        if table_pins := {key: values for key, values in pins.items() if key.split(".")[0] == table}:
            changes[table] = tuple(_tables(table, table_pins, problems))
    for key, values in pins.items():
        if len(values) > MOST_CHOICES:
            refuse(key, f"{len(values)} choices", f"at most {MOST_CHOICES}")
    return replace(space, **changes)


def _tables(table: str, pins: PinnedKeys, problems: list[Problem]) -> Iterator[object]:
    """Every combination of a table's keys, decoded as a scenario file's."""
    for values in product(*pins.values()):
        body: JsonObject = {}
        for key, value in zip(pins, values, strict=True):
            part = key.partition(".")[2]
            if part:
                body[part] = value
            elif table == "precision":
                body |= {"name": value, **({} if value in ("bf16", "fp16", "fp32", "tf32") else {"weights": value})}
            elif value in ("none", False):
                body = {"none": True}
            else:
                body["draft"] = value
        if body == {"none": True}:
            yield None
        elif (plan := decode_into(Plan, {table: body}, "plan", problems)) is not None:
            yield getattr(plan, table)


class DeploymentOptions(SearchOptions, total=False):
    """A question in words, as `ridgeline plan --serve` takes them.

    requests          a trace file: arrivals and lengths
    rate, isl, osl    requests per second, prompt and output tokens, where there is no trace
    ttft ... e2e      limits such as "500 ms"
    """

    requests: Path | None
    rate: float | None
    isl: int | None
    osl: int | None
    ttft: str
    tpot: str
    itl: str
    e2e: str
    percentile: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentRequest(SearchRequest):
    """What is asked of `plan --serve`; its table is without a plan.

    plan       keys of the plan that are given and not searched
    pins       dotted keys of the plan -> the choices that are left
    goal       cost, chips, or goodput
    """

    engines: tuple[str, ...]
    plan: JsonMapping
    pins: PinnedKeys
    goal: Goal = "cost"
    priced: StepPricing | None = None

    @classmethod
    def from_options(cls, model: str, **options: Unpack[DeploymentOptions]) -> DeploymentRequest:
        """The question that options mean; `model` is a catalog id, a config.json or a scenario file.

        >>> asked = DeploymentRequest.from_options("llama3-8b", on="8xh100-sxm", rate=12.0, ttft="500ms")
        >>> asked.goal, asked.table["workload"]["arrivals"], asked.table["workload"]["objective"]
        ('cost', {'kind': 'poisson', 'rate': 12.0}, {'percentile': 99.0, 'ttft': '0.5 s'})
        """
        settings = parents_first(options.get("settings", ()))
        table = copy.deepcopy(read_request(model, settings))
        problems = apply_settings(table, [setting for setting in settings if not setting.startswith("plan.")])
        plan_table = table.pop("plan", {})
        pins = pinned_table(_fixed_keys(plan_table)) if isinstance(plan_table, Mapping) else {}
        space = options.get("space")
        if space is not None:
            pins |= pinned_table(read_space(space, problems))
        for setting in settings:
            key, equals, text = setting.partition("=")
            if equals and key.startswith("plan."):
                pins |= pinned_table({key.strip()[5:]: parse_value(text)})
        engines = tuple(str(item) for item in pins.pop("engine", ()))
        engines = (options["engine"],) if options.get("engine") else engines
        workload_table = _workload(table, options, problems)
        systems = named_systems(options, table, problems)
        if problems:
            raise InputError(problems)
        fixed, searched = searched_keys(pins)
        return cls(
            table=MappingProxyType(table),
            systems=systems,
            engines=engines,
            plan=MappingProxyType(fixed),
            pins=MappingProxyType(searched),
            goal=named_goal(options, "cost" if workload_table else "goodput", GOALS),
        )


def _fixed_keys(plan: JsonMapping) -> JsonObject:
    """Of a plan that came with a scenario what a search keeps: the engine, formats, and settings of its scheduler."""
    serving = plan.get("serving", {})
    fixed = {key: plan[key] for key in ("engine", "precision", "speculation") if key in plan}
    if isinstance(serving, Mapping):
        fixed["serving"] = {key: serving[key] for key in (*SEARCHED_KNOBS, "router") if key in serving}
    return fixed


def _workload(table: JsonObject, options: DeploymentOptions, problems: list[Problem]) -> bool:
    """Fill the workload in; whether it has a rate of its own."""
    raw = table.get("workload", {})
    work: JsonObject = dict(raw) if isinstance(raw, Mapping) and raw.get("kind") == "serve" else {}
    trace, rate = options.get("requests"), options.get("rate")
    if rate is not None and not 0 < rate < float("inf"):
        problems.append(Problem(path="--rate", given=f"{rate:g}", expected="requests per second, above 0"))
    has_rate = bool(work) or trace is not None or rate is not None
    if trace is not None:
        work = {key: value for key, value in work.items() if key not in ("isl", "osl", "lengths", "range_ratio")}
        work["arrivals"] = {"kind": "trace", "file": str(trace), **({"rate": rate} if rate else {})}
    elif rate is not None or "arrivals" not in work:
        work["arrivals"] = {"kind": "poisson", "rate": rate or 1.0}
        work.setdefault("requests", int(min(max((rate or 1.0) * LASTS_S, FEWEST), MOST)))
    if trace is None and "lengths" not in work and not _has_trace(work):
        lengths = {"isl": options.get("isl"), "osl": options.get("osl")}
        stated_lengths = {key: value for key, value in lengths.items() if value is not None}
        work = {"isl": ISL, "osl": OSL, **work, **stated_lengths}
    elif trace is not None and (options.get("isl") or options.get("osl")):
        problems.append(
            Problem(path="--isl", given="lengths and a trace", expected="one of them", todo="drop --isl, --osl")
        )
    limits = dict(work.get("objective", {}))
    for name in ("ttft", "tpot", "itl", "e2e"):
        text = options.get(name)
        if isinstance(text, str) and text:
            limits[name] = f"{_seconds(name, text, problems):.10g} s"
    percentile = options.get("percentile")
    limits = {"percentile": PERCENTILE, **limits, **({"percentile": percentile} if percentile is not None else {})}
    table["workload"] = {"kind": "serve", **work, "objective": limits}
    return has_rate


def _has_trace(work: JsonMapping) -> bool:
    arrivals = work.get("arrivals")
    return isinstance(arrivals, str) or (isinstance(arrivals, Mapping) and arrivals.get("kind") == "trace")


def _seconds(name: str, text: str, problems: list[Problem]) -> float:
    try:
        value = parse_quantity(text, "s")
    except (InputError, UnitError):
        value = 0.0
    if not 0 < value < float("inf"):
        problems.append(Problem(path=f"--{name}", given=repr(text), expected="a time such as 500ms, above 0"))
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentCase:
    """One system under one engine: a scenario, the space to search, and the scenario's table without a plan."""

    scenario: Scenario
    space: DeploymentSpace
    table: JsonMapping


def deployment_cases(request: DeploymentRequest) -> Iterator[DeploymentCase]:
    """Every space to search; what is wrong with the input is an `InputError`."""
    for system in request.systems or (None,):
        engines: tuple[str | None, ...] = request.engines or (None,)
        if request.target is not None:
            described = described_engine(request.table)
            named_engines = request.engines or ((described,) if described else ())
            engines = target_engines(request.target, load_system(system or request.table["system"]), named_engines)
        for engine in engines:
            yield _case(request, system, engine)


def _case(request: DeploymentRequest, system: str | None, engine: str | None) -> DeploymentCase:
    table = dict(request.table)
    if system is not None:
        table["system"] = system
    usual = engine or described_engine(table) or SERVING[0]
    if usual in ENGINES and ENGINES[usual].serves is None:
        expectation = f"software that serves: {', '.join(SERVING)}"
        raise InputError(Problem(path="plan.engine", given=usual, expected=expectation))
    chips = load_system(table["system"]).chips
    built, faults = assemble({**table, "plan": {**request.plan, "engine": usual, "dp": chips}})
    problems = list(faults)
    if built is None or problems:
        raise InputError(problems)
    notes = [f"engine = {usual}: not given"] if engine is None and described_engine(table) is None else []
    if not any(key.split(".")[0] == "precision" for key in request.pins):
        notes.append("precision is searched: what narrow formats do to answers is not judged; pin plan.precision=bf16")
    work = serving(built).workload
    built = replace(built, assumptions=(*notes, *built.assumptions))
    shared = bool(work.prefix) or _has_trace(table["workload"])
    space = pinned_space(deployment_space(built, shares_prefixes=shared), request.pins, problems)
    if problems:
        raise InputError(problems)
    if request.target is not None:
        space = expressible_space(built, space, request.target)
    return DeploymentCase(scenario=built, space=space, table=MappingProxyType(table))
