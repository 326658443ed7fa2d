"""Which options of serving engines change what is simulated although nothing here reads them, and in what way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import Table
from ridgeline.models.load import find_name
from ridgeline.targets.imports.command_line import Arguments, read_arguments
from ridgeline.targets.imports.option_reader import OptionReader, model_in, tables
from ridgeline.targets.options import Options, options
from ridgeline.targets.serving.launch import commands_of, replicas_in
from ridgeline.targets.serving.load import read_load
from ridgeline.targets.tables import words as table_words
from ridgeline.targets.target import Files, Imported, Unread

SCHEDULES = "scheduling that is not simulated"
CACHES = "a KV cache that is not simulated"
COSTS = "work that is not priced"
MATTERS = table_words("serving", "matters")
"""Names or patterns of options, without their dashes -> what they change."""
QUIET = ("false", "none", "null", "'none'", "'null'", "0")


def weigh_unread(unread: Iterable[Unread]) -> Iterator[Unread]:
    """What was not read, with what it changes where it changes something and is not switched off.

    >>> told = weigh_unread(Unread(option=name, value="4", why="") for name in ("--stream-interval", "seed"))
    >>> [(part.option, part.matters) for part in told]
    [('--stream-interval', True), ('seed', False)]
    """
    for part in unread:
        name = part.option.lstrip("-").replace("_", "-")
        why = next((why for pattern, why in MATTERS.items() if fnmatchcase(name, pattern)), "")
        off = str(part.value).lower() in QUIET
        if not why or off:
            yield part
        else:  # one that this version does not have keeps the names nearest to it
            yield replace(part, why=part.why if part.why.startswith("no option") else why, matters=True)


NOT_PRICED = "not priced"
UNKNOWN_LOAD = {"kind": "serve", "arrivals": {"kind": "poisson", "rate": 1.0}, "isl": 1024, "osl": 128}
BENCH_PROGRAM = ("vllm", "bench", "serve")
GENERATOR = (  # what a load generator is told apart from the load
    "backend", "model", "host", "port", "dataset-name", "ignore-eos", "save-result", "save-detailed", "result-filename",
    "result-dir", "tokenizer", "base-url", "endpoint", "percentile-metrics", "disable-tqdm", "num-warmups",
    "temperature",
)  # fmt: skip
BENCH = Options(
    target="vllm bench serve", version=options("vllm").version, source="", choices={}, aliases={},
    flags=frozenset({"ignore-eos", "save-result", "save-detailed", "disable-tqdm"}),
    values=frozenset({
        "request-rate", "burstiness", "max-concurrency", "num-prompts", "seed", "random-input-len", "random-output-len",
        "random-range-ratio", "random-prefix-len", "goodput", "metric-percentiles",
    } | set(GENERATOR)),
)  # fmt: skip


def reader_of(found: Arguments, source: str) -> OptionReader:
    """The options as something to take from; what is taken nowhere ends as unread."""
    reader = OptionReader(Table(data={}, source=source))
    reader.options = dict(found.options)
    reader.notes += found.strange
    return reader


def first_server(
    files: Files, programs: tuple[tuple[str, ...], ...], keys: frozenset[str], known: Options
) -> tuple[Arguments, int]:
    """The options and replicas of the first server among the files: of a command, else of a YAML file with its keys."""
    commands = commands_of(files, *programs)
    if commands:
        script, words = commands[0]
        return read_arguments(words, known), replicas_in(script)
    for table in tables(files, ".yaml", ".yml"):
        if keys & _dashed_keys(table.data):
            return Arguments(options={str(key).replace("_", "-"): value for key, value in table.data.items()}), 1
    raise none_found(files, " ".join(programs[0]).removeprefix("-m "))


def has_server(files: Files, programs: tuple[tuple[str, ...], ...], keys: frozenset[str]) -> bool:
    """Whether a command starts one of the programs, or a YAML file has one of the keys."""
    try:
        if commands_of(files, *programs):
            return True
        return any(keys & _dashed_keys(table.data) for table in tables(files, ".yaml", ".yml"))
    except InputError:
        return False


def _dashed_keys(data: JsonMapping) -> set[str]:
    return {str(key).replace("_", "-") for key in data}


def take_knobs(reader: OptionReader, numbers: Mapping[str, str], switches: Mapping[str, str]) -> JsonObject:
    """Knobs by their option: numbers and words as they stand, switches as true or false."""
    knob_values: JsonObject = {}
    for knob, name in numbers.items():
        value = reader.take(name)
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            knob_values[knob] = value
        elif value is not None:
            reader.problems.append(Problem(path=f"--{name}", given=repr(value)[:60], expected="one value"))
    for knob, name in switches.items():
        value = reader.take(name)
        if isinstance(value, bool):
            knob_values[knob] = value
    return knob_values


def json_option(reader: OptionReader, name: str) -> JsonObject:
    """An option that is a JSON object, with parts that were given behind dots."""
    value_given = reader.take(name)
    json_table: JsonObject = {}
    if isinstance(value_given, str):
        try:
            object_read = json.loads(value_given)
        except (ValueError, RecursionError):
            object_read = None
        if not isinstance(object_read, dict):
            reader.problems.append(Problem(path=f"--{name}", given=value_given[:60], expected="a JSON object"))
        else:
            json_table |= object_read
    for inner in [option for option in reader.options if option.startswith(f"{name}.")]:
        json_table[inner.removeprefix(f"{name}.").replace("-", "_")] = reader.take(inner)
    return json_table


def model_named(reader: OptionReader, files: Files, given: str) -> str | None:
    """The catalog model of a name or path; a file that Ridgeline wrote says it at its top."""
    for name in (given[:200], given[:200].rstrip("/").rpartition("/")[2]):
        entry = find_name(name) if name else None
        if entry and not entry[1]:
            return entry[0]
    written = model_in(files)
    if written is None and given:
        reader.notes.append(Unread(option="model", value=given[:60], why="no catalog entry is it"))
    return written


def load_in(files: Files, notes: list[str], unread: list[Unread]) -> JsonObject:
    """The workload of a `vllm bench serve` among the files; an assumed one without it."""
    for _, words in commands_of(files, BENCH_PROGRAM):
        arguments_read = read_arguments(words, BENCH)
        unread += arguments_read.strange
        work = read_load(arguments_read.options)
        if "arrivals" not in work:
            notes.append("arrivals: all requests at once are read as a closed loop of as many users")
            work["arrivals"] = {"kind": "closed-loop", "concurrency": int(work["requests"])}
        return work
    notes.append("the load is not in the files: 1 request/s of 1024 and 128 tokens is assumed")
    return dict(UNKNOWN_LOAD)


def imported_server(
    target: str, files: Files, reader: OptionReader, plan: JsonObject, model: str | None, apart: Mapping[str, str]
) -> Imported:
    """The settings with everything that did not reach them."""
    assumptions = list(reader.assumptions)
    more: list[Unread] = []
    settings: JsonObject = {"model": model} if model else {}
    settings |= {"workload": load_in(files, assumptions, more), "plan": plan}
    unread = tuple(weigh_unread((*reader.unread(apart), *more)))
    return Imported(target=target, settings=settings, unread=unread, assumptions=tuple(assumptions))


def none_found(files: Files, program: str) -> InputError:
    given_text = ", ".join(sorted(files)[:5]) or "no file"
    return InputError(Problem(path="", given=given_text, expected=f"a script or command line that runs {program}"))
