"""Turn a scenario file, and what the command line sets upon it, into a Scenario; all problems at once, with lines.

model = "llama3-70b"                # catalog id, path to a config.json, or a table of dimensions
system = "64xh100-sxm"              # or a path to a TOML file, or a table
[chip]                              # optional: numbers of the chip that differ
[engine]                            # optional: habits of the plan's engine that differ, or an engine of your own
[workload]                          # kind = "train" | "prefill" | "decode" | "serve" | "rl", ...
[plan]                              # tp, pp, dp, ..., everything optional
[measured]                          # optional: what a run of it took, for `--anchor`; predictions do not read it
[unread]                            # optional: options of imported files that nobody understood; see `plan.unread`

A setting below a short form turns it into a table first: upon `recompute = "full"`, `plan.recompute.layers=2` makes
`{ kind = "full", layers = 2 }`. A table of another kind replaces the one that is there, and a trace of requests the
lengths that stood beside it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ridgeline.core.documents import JsonMapping, JsonObject, JsonValue
from ridgeline.core.dtype import ALIASES, DTYPES, dtype
from ridgeline.core.errors import InputError, Problem, UnknownId, not_among
from ridgeline.core.files import INSIDE, SUFFIXES, Table, path_within, read_table
from ridgeline.core.records import dataclass
from ridgeline.core.table import decode_into
from ridgeline.hardware.load import merge, system_table
from ridgeline.hardware.load import system as load_system
from ridgeline.hardware.system import System
from ridgeline.models.dimensions import MOST_LAYERS
from ridgeline.models.load import model as load_model
from ridgeline.models.load import model_table
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.capability import unsupported_decisions
from ridgeline.plan.check import check, check_known, with_length
from ridgeline.plan.engine import ENGINES, Engine, default_engine, default_engine_note
from ridgeline.plan.engine import engine as load_engine
from ridgeline.plan.plan import NARROW, Plan, shares
from ridgeline.plan.rl_plan import MODEL_ROLES
from ridgeline.plan.rl_workload import Rl, lengths_table
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import SCHEDULES
from ridgeline.plan.unread import LOG_WIDTHS, unread_distance, unread_options
from ridgeline.plan.workload import Serve, Train, Workload

KEYS = ("model", "system", "chip", "workload", "plan", "engine", "name", "notes", "measured", "unread")
ARRIVALS, LENGTHS = "workload.arrivals", ("isl", "osl", "range_ratio", "lengths")
# a setting below one of these turns its short form into a table: the short form goes under this name
SHORT = {
    "model": "base",
    "system": "base",
    "chip": "base",
    "engine": "base",
    "plan.schedule": "name",
    "plan.precision": "name",
    "plan.recompute": "kind",
    "workload.optimizer": "name",
}


def unknown_keys(table: JsonMapping) -> list[Problem]:
    """Keys that no scenario has."""
    return [not_among(str(key), str(key), KEYS, "remove it") for key in table if key not in KEYS]


def apply_settings(data: JsonObject, settings: Iterable[str]) -> list[Problem]:
    """Write each `key.path=value` into the table; what cannot be written comes back as problems.

    A parent is written before its children, whichever was said first: `plan.recompute.layers=2` stays when
    `plan.recompute=full` follows it. Of one key said twice the later counts.
    """
    problems: list[Problem] = []
    settings_in_order = parents_first(settings)
    for setting in settings_in_order:  # lengths of requests make way for those of a file that a setting names
        key, _, text = setting.partition("=")
        value, work = parse_value(text), data.get("workload")
        is_trace = isinstance(value, str) or (isinstance(value, Mapping) and value.get("kind") == "trace")
        if isinstance(work, Mapping) and (key.strip() == "workload.lengths" or (key.strip() == ARRIVALS and is_trace)):
            data["workload"] = {name: entry for name, entry in work.items() if name not in LENGTHS}
    for setting in settings_in_order:
        _set(data, setting, problems)
    return problems


def parents_first(settings: Iterable[str]) -> list[str]:
    """Settings by depth of their key, otherwise in order.

    >>> parents_first(["plan.recompute.layers=2", "plan.tp=2", "plan.recompute=full"])
    ['plan.tp=2', 'plan.recompute=full', 'plan.recompute.layers=2']
    """
    return sorted(settings, key=lambda setting: setting.partition("=")[0].count("."))


def told_by(settings: Iterable[str], problem: Problem) -> Problem:
    """The problem with `--set` as its place where a setting wrote what it is about."""
    paths = [setting.partition("=")[0].strip() for setting in settings]
    is_set = any(f"{problem.path}.".startswith(f"{path}.") for path in paths if path)
    return replace(problem, where="--set") if is_set and not problem.where else problem


def _set(data: JsonObject, setting: str, problems: list[Problem]) -> None:
    """Apply one `key.path=value`; the value is TOML where it parses as such, otherwise a string."""
    path, equals, text = setting.partition("=")
    keys = [part.strip() for part in path.split(".")]
    if not equals or not all(keys):
        problems.append(
            Problem(path="--set", given=repr(setting), expected="key.path=value", todo="for example plan.tp=4")
        )
        return
    if keys[0] not in KEYS:
        problems.extend(unknown_keys({keys[0]: None}))
        return
    value = parse_value(text)
    at: JsonObject = data
    for depth, key in enumerate(keys[:-1]):
        below, here = at.get(key), ".".join(keys[: depth + 1])
        if here == "plan.offload":
            below = shares(below)
        elif isinstance(below, str):
            below = {SHORT.get(here, "kind" if key == "attention" else "value"): below}
        at[key] = dict(below) if isinstance(below, Mapping) else {}
        at = at[key]
    at[keys[-1]] = _join_values(at.get(keys[-1]), value)


def _join_values(there: object, value: object) -> object:
    """A table is joined with the one that is there, unless it is of another kind: then nothing of that is left."""
    if not isinstance(value, Mapping) or not isinstance(there, Mapping):
        return value
    return dict(value) if value.get("kind", there.get("kind")) != there.get("kind") else merge(there, value)


def parse_value(text: str) -> JsonValue:
    """A setting's value: TOML where it parses as such, otherwise the text itself.

    >>> parse_value("4"), parse_value("8 TB/s"), parse_value("true"), parse_value("[1, 2]")
    (4, '8 TB/s', True, [1, 2])
    """
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML, or a number or a nesting that nobody means
        return text.strip()


FILES = (
    *("model", "system", "model.base", "system.base", "chip.base"),
    *("workload.arrivals", "workload.arrivals.file", "workload.lengths"),
    *(
        f"workload.{lengths}{key}"
        for lengths in ("prompt_tokens", "response_tokens", "agent.turns", "agent.tool_tokens")
        for key in ("", ".file")
    ),
    *(f"workload.roles.{role}{key}" for role in MODEL_ROLES for key in ("", ".model")),
)  # keys that may name a file
SERVING_ENGINE = "vllm"  # where a plan that serves names none
MEASURED = {
    "type": "object",
    "description": "what a run of the scenario took; `--anchor` reads it, a prediction does not",
    "additionalProperties": False,
    "properties": {
        "step_time_s": {"type": "number", "exclusiveMinimum": 0},
        "tokens_per_s_per_chip": {"type": "number", "exclusiveMinimum": 0},
        "notes": {"type": "string"},
    },
}
UNREAD = {
    "type": "object",
    "description": "options of imported files that nobody understood, by the decision they may make",
    "additionalProperties": False,
    "properties": {name: {"type": "array", "items": {"type": "string"}} for name in LOG_WIDTHS},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadTable:
    """The [workload] table; `kind` decides which keys it takes."""

    workload: Workload


def read_scenario(path: Path | str, settings: Iterable[str] = ()) -> Scenario:
    """The scenario in a TOML, JSON or YAML file with `key.path=value` settings applied, or an `InputError`."""
    path, settings = Path(path), tuple(settings)
    table = read_table(path)
    try:
        return scenario(table.data, settings, folder=path.parent)
    except InputError as wrong:
        raise InputError(
            [_locate_problem(problem, table, settings) for problem in wrong.problems] or str(wrong)
        ) from None


def _locate_problem(problem: Problem, table: Table, settings: tuple[str, ...]) -> Problem:
    """The problem with its place: the command line where it was set there, otherwise the file's line."""
    if problem.path == "--set":
        return problem
    for setting in settings:
        path = setting.partition("=")[0].strip()
        unknown = problem.path not in table.data and path.split(".")[0] == problem.path
        if f"{problem.path}.".startswith(f"{path}.") or unknown:
            return replace(problem, where="--set")
    return table.locate(problem)


def scenario(table: JsonMapping, settings: Iterable[str] = (), folder: Path | None = None) -> Scenario:
    """The scenario a table describes; an impossible one is an `InputError` that lists every reason.

    From a program, `model` and `system` may also be a ModelSpec and a System.
    """
    built, problems = assemble(table, settings, folder)
    if problems or built is None:
        raise InputError(problems)
    return built


def assemble(
    table: JsonMapping, settings: Iterable[str] = (), folder: Path | None = None
) -> tuple[Scenario | None, tuple[Problem, ...]]:
    """The scenario as far as it can be built, and every problem: an impossible plan is a value with its reasons."""
    problems = unknown_keys(table)
    values = {key: value for key, value in table.items() if isinstance(value, (ModelSpec, System))}
    data = {**copy.deepcopy({key: value for key, value in table.items() if key not in values}), **values}
    settings = tuple(settings)
    problems += confine(data, folder, settings) if folder else []
    problems += apply_settings(data, settings)
    model = _model(data, problems)
    system = _system(data, problems)
    raw = data.get("workload", {})
    raw = {"kind": "train", **raw} if isinstance(raw, Mapping) else raw
    raw, size_notes = with_length(raw, model)
    of_workload: list[Problem] = []
    workload = decode_into(WorkloadTable, {"workload": raw}, "", of_workload)
    if of_workload and isinstance(raw, Mapping):
        from ridgeline.plan.workload_words import name_keys

        of_workload = name_keys(raw.get("kind"), of_workload)
    problems += of_workload
    plan_table = dict(data.get("plan", {})) if isinstance(data.get("plan", {}), Mapping) else data["plan"]
    if isinstance(plan_table, dict) and "engine" not in plan_table and (own_engine := described_engine(data)):
        plan_table["engine"] = own_engine
    assumptions = [*size_notes, *_complete(plan_table, system, workload.workload if workload else None)]
    plan = decode_into(Plan, plan_table, "plan", problems)
    unread, unread_problems = unread_options(data.get("unread", {}))
    problems += unread_problems
    engine = _engine(data, _named_engine(plan_table), problems)
    if model is None or system is None or workload is None or plan is None:
        load = workload.workload if workload else None
        problems.extend(check_known(model=model, system=system, workload=load, plan=plan, engine=engine))
        problems.extend(_schedule_name(plan_table) if plan is None else ())
        return None, tuple(dict.fromkeys(problems))
    if plan.virtual_stages > MOST_LAYERS:  # before any list of stages is made
        return None, (*problems, _too_many_stages(plan, model))
    if engine is None:
        engine = ENGINES[Plan().engine]  # stands in, so that the rest is checked too
    else:
        plan = replace(plan, engine=engine.id)  # an alias, or what a table starts from, means the same
    built = Scenario(
        model=model, system=system, workload=workload.workload, engine=engine, plan=plan,
        name=str(data.get("name", "")), unread=unread,
    )  # fmt: skip
    problems.extend(check(built))
    notes = (
        *_given_parts(data), *assumptions, *system.assumptions, *_placement_notes(built), *_beyond(built),
        *unsupported_decisions(built), *filter(None, (unread_distance(unread)[1],)),
    )  # fmt: skip
    return replace(built, assumptions=notes), tuple(dict.fromkeys(problems))


def _too_many_stages(plan: Plan, model: ModelSpec) -> Problem:
    expected = f"at most {MOST_LAYERS} stages (pp x chunks); {model.name} has {model.layers} layers"
    return Problem(path="plan.pp", given=str(plan.mesh.pp)[:40], expected=expected)


def schema() -> JsonObject:
    """The JSON schema of scenario files, for editors."""
    from ridgeline.core.schema import schema as of

    ref = {"type": "string"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Ridgeline scenario",
        "type": "object",
        "required": ["model", "system", "workload"],
        "additionalProperties": False,
        "properties": {
            "name": {"type": "string"},
            "notes": {"type": "string"},
            "model": {"anyOf": [ref, {"type": "object"}], "description": "catalog id, path, or table of dimensions"},
            "system": {"anyOf": [ref, {"type": "object"}], "description": "name such as 64xh100-sxm, path, or table"},
            "chip": {"type": "object", "description": "numbers of the chip that differ from the catalog"},
            "engine": {"type": "object", "description": "habits of the engine that differ, or an engine of your own"},
            "workload": of(Workload),
            "plan": of(Plan),
            "measured": MEASURED,
            "unread": UNREAD,
        },
    }


def confine(data: JsonObject, folder: Path, settings: Iterable[str] = ()) -> list[Problem]:
    """Resolve paths written in a file against its folder; one that leaves it is removed and told, unless it is set."""
    problems: list[Problem] = []
    replaced_keys = {setting.partition("=")[0].strip() for setting in settings}
    for key in FILES:
        *outer, name = key.split(".")
        table: object = data
        for part in outer:
            table = table.get(part) if isinstance(table, dict) else None
        root = key.split(".")[0]
        ref = table.get(name) if isinstance(table, dict) else None
        if key in replaced_keys or not isinstance(ref, str) or not isinstance(table, dict):
            continue
        if not _is_path(key, ref, folder):
            continue
        target = path_within(folder, ref)
        if target is not None:
            table[name] = str(target)
        else:
            todo = f"copy it there, or pass --set {key}=PATH"
            problems.append(Problem(path=key, given=repr(ref), expected=INSIDE, todo=todo))
            del data[root]
    return problems


def self_contained(table: JsonMapping, folder: Path = Path()) -> JsonObject:
    """The table of a scenario with the model and system files that it names, from a folder, written into it."""
    entire_table = dict(table)
    for key, read in (("model", model_table), ("system", system_table)):
        ref = entire_table.get(key)
        if isinstance(ref, str) and _names_file(ref, folder) and (folder / ref).exists():
            entire_table[key] = read(folder / ref)
    return entire_table


def _is_path(key: str, ref: str, folder: Path) -> bool:
    """Whether what stands under a key is a path: a trace always, lengths unless they are a number, a model may be."""
    if not key.startswith("workload.") or key.startswith("workload.roles."):
        return _names_file(ref, folder)
    table = lengths_table(ref) if not key.endswith((".file", "arrivals", "workload.lengths")) else {"kind": "file"}
    return bool(ref) and isinstance(table, Mapping) and table["kind"] == "file"


def _names_file(ref: str, folder: Path) -> bool:
    """Whether it is a path, and no published name such as meta-llama/Llama-3.1-8B."""
    try:
        return ref.endswith(SUFFIXES) or ("/" in ref and (folder / ref).exists()) or (folder / ref).is_dir()
    except (OSError, ValueError):  # a name no file system takes
        return False


REQUIRED = {
    "model": ("a catalog id, a path to a config.json or a table of dimensions", 'add model = "llama3-8b"'),
    "system": ("a name such as 64xh100-sxm, a path or a table", 'add system = "64xh100-sxm"'),
}


def _is_given(key: str, data: JsonMapping, problems: list[Problem]) -> bool:
    """Whether a table has what every scenario needs; where it has not, and nothing was said of it yet, a problem."""
    if key not in data and not any(problem.path.split(".")[0] == key for problem in problems):
        expected, todo = REQUIRED[key]
        problems.append(Problem(path=key, given="nothing", expected=expected, todo=todo))
    return key in data


def _model(data: JsonMapping, problems: list[Problem]) -> ModelSpec | None:
    if not _is_given("model", data, problems):
        return None
    if isinstance(data["model"], ModelSpec):
        return data["model"]
    try:
        return load_model(data["model"])
    except InputError as wrong:
        problems.extend(_under("model", wrong))
    return None


def _system(data: JsonMapping, problems: list[Problem]) -> System | None:
    if not _is_given("system", data, problems):
        return None
    if isinstance(data["system"], System) and "chip" not in data:
        return data["system"]
    chip = data.get("chip", {})
    if not isinstance(data["system"], (str, Mapping)) or not isinstance(chip, Mapping):
        key = "system" if isinstance(chip, Mapping) else "chip"
        problems.append(Problem(path=key, given=repr(data[key])[:60], expected="a string or a table"))
        return None
    try:
        return load_system(data["system"], chip)
    except InputError as wrong:
        problems.extend(_under("system", wrong))
    return None


def described_engine(data: JsonMapping) -> str | None:
    """The engine that an [engine] table is or starts from, where no plan names one."""
    table = data.get("engine")
    if not isinstance(table, Mapping):
        return None
    if "base" in table:
        return str(table["base"])
    return str(table.get("id", "custom")) if {"launch", "supports"} <= set(table) else None


def _named_engine(plan_table: object) -> str:
    """The engine that a [plan] table names; the usual one where it names none, or not by a word."""
    engine_name = plan_table.get("engine") if isinstance(plan_table, Mapping) else None
    return engine_name if isinstance(engine_name, str) else Plan().engine


def _schedule_name(plan_table: object) -> list[Problem]:
    """A misspelt schedule, where the rest of the [plan] table cannot be read."""
    written = plan_table.get("schedule") if isinstance(plan_table, Mapping) else None
    name = written.get("name") if isinstance(written, Mapping) else written
    is_schedule = not isinstance(name, str) or name in SCHEDULES
    return [] if is_schedule else [not_among("plan.schedule.name", str(name), SCHEDULES)]


def _engine(data: JsonMapping, named: str, problems: list[Problem]) -> Engine | None:
    """The engine that the plan names, with what the [engine] table says of it; or that table's own engine."""
    table = data.get("engine", {})
    if not isinstance(table, Mapping):
        problems.append(Problem(path="engine", given=repr(table)[:60], expected="a table; a plan names its engine"))
        return None
    is_complete = "base" not in table and {"launch", "supports"} <= set(table)
    base = ENGINES.resolve(str(table.get("base", named)))
    if named not in (table.get("id", "custom"), table.get("base")) and (is_complete or ENGINES.resolve(named) != base):
        names = sorted({str(table.get("id", "custom")), str(table.get("base", "custom"))} - {"custom"})
        problems.append(not_among("plan.engine", named, names or ENGINES, "name the engine that [engine] describes"))
        return None
    if not is_complete and base is None:
        problems.append(not_among("plan.engine", str(table.get("base", named)), ENGINES))
        return None
    try:
        return load_engine(table if is_complete else {**table, "base": base})
    except InputError as wrong:
        problems.extend(_under("engine", wrong))
    return None


def _under(key: str, wrong: InputError) -> list[Problem]:
    """The error's problems with paths that begin at the scenario's root."""
    if isinstance(wrong, UnknownId) or not wrong.problems:
        text = str(wrong)
        first = wrong.problems[0] if wrong.problems else Problem(path=key, given=text, expected="a usable description")
        return [replace(first, path=key)]
    roots = (key, "chip", "system", "engine")
    return [
        problem
        if problem.path.split(".")[0].split("[")[0] in roots
        else replace(problem, path=".".join(filter(None, (key, problem.path))))
        for problem in wrong.problems
    ]


def _complete(plan: object, system: System | None, workload: Workload | None) -> list[str]:
    """Fill in what a plan may leave out from the rest, noting each assumption."""
    notes: list[str] = []
    if not isinstance(plan, dict) or system is None:
        return notes
    if "dp" not in plan:
        degrees = [plan.get(axis, 1) for axis in ("tp", "pp", "cp")]
        if all(type(degree) is int and degree > 0 for degree in degrees):
            inner = degrees[0] * degrees[1] * degrees[2]
            plan["dp"] = max(1, _training_chips(plan, system) // inner)
            notes.append(f"dp = {plan['dp']}: the chips that tp, pp and cp leave")
    if isinstance(workload, Serve) and "engine" not in plan and "sglang" in (plan.get("serving") or ()):
        plan["engine"] = "sglang"
        notes.append("engine = sglang: whose knobs are given")
    usual = {"microbatch": 1, "precision": "bf16", "engine": default_engine(system), "recompute": "none"}
    trains = isinstance(workload, (Train, Rl))
    if workload is not None and not trains and "engine" not in plan:
        plan["engine"] = SERVING_ENGINE
        notes.append(f"engine = {SERVING_ENGINE}: not given; the default for serving")
    if workload is not None and not trains:
        notes += _narrow_weights(plan)
    for key, default in usual.items():
        if key not in plan and (trains or key == "precision"):
            plan[key] = default
            notes.append(default_engine_note(system) if key == "engine" else f"{key} = {default}: not given")
    return notes


def _training_chips(plan: JsonMapping, system: System) -> int:
    """Chips that the mesh of a plan spans: all of them, unless post-training gives some to others."""
    rl = plan.get("rl")
    train_chips = rl.get("train_chips") if isinstance(rl, Mapping) else None
    return train_chips if type(train_chips) is int and train_chips > 0 else system.chips


def _narrow_weights(plan: JsonObject) -> Iterator[str]:
    """Store weights as a narrow format's name says, where an engine serves: as vLLM and SGLang mean `fp8`."""
    precision = plan.get("precision")
    table = {"name": precision} if isinstance(precision, str) else precision
    name = table.get("name") if isinstance(table, Mapping) else None
    if not isinstance(name, str) or ALIASES.get(name, name) not in DTYPES or dtype(name).peak not in NARROW:
        return
    if isinstance(table, Mapping) and "weights" not in table:
        plan["precision"] = {"weights": name, **table}
        yield f"weights {dtype(name).id}: what {name} means to an engine; plan.precision.weights changes it"


def _given_parts(data: JsonMapping) -> list[str]:
    """What differs from the catalogs, so that a what-if never looks like the base."""
    notes: list[str] = []
    for key in ("model", "system", "chip", "engine"):
        table = data.get(key)
        if isinstance(table, Mapping) and (key in ("chip", "engine") or "base" in table):
            notes += [f"{path} = {value}: given" for path, value in _leaves(table, key) if path != f"{key}.base"]
    return notes


def _leaves(table: JsonMapping, path: str) -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}.{key}")
        else:
            yield f"{path}.{key}", value


def _placement_notes(built: Scenario) -> list[str]:
    """The default placement is an assumption where it is not an even split."""
    if built.plan.placement or built.plan.mesh.pp == 1 or built.plan.virtual_stages > built.model.layers + 2:
        return []
    placement = built.placement
    if len(set(placement)) == 1:
        return [f"placement: {placement[0]} layers on each of {len(placement)} virtual stages"]
    return [f"placement: {'-'.join(map(str, placement))} layers, embedding and output counted as slots"]


def _beyond(built: Scenario) -> Iterator[str]:
    longest, seq = built.model.context, built.workload.seq
    if longest and seq > longest:
        yield f"seq {seq} is beyond the {longest} tokens {built.model.id} was made for"
