"""Turn a serving scenario into what every engine says alike (load, model, fleet, formats, knobs), and options back.

An engine's own words stand in its table; `weigh_unread` says which options change what is simulated although nothing
here reads them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import cache

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import Table
from ridgeline.plan.scenario import Scenario, serving
from ridgeline.plan.serving_plan import KNOBS
from ridgeline.targets.decisions import replicas_of, serving_decisions_of
from ridgeline.targets.dialects.verl.names import weights_of
from ridgeline.targets.imports.model_names import UNKNOWN, named_exactly
from ridgeline.targets.imports.option_reader import (
    Arguments,
    OptionReader,
    false_where_unreadable,
    holds,
    model_in,
    read_arguments,
    tables,
)
from ridgeline.targets.launchers.launch import nodes_of
from ridgeline.targets.ledger import Fixed, Ledger, Lose, Piece, Say, admit_options, gather, habits
from ridgeline.targets.options import LONG_FORMATS, DocumentedOptions, options
from ridgeline.targets.serving.scripts import ServerLaunch, commands_of, load_pieces, read_load, replicas_in
from ridgeline.targets.tables import names as table_names
from ridgeline.targets.tables import tables as engine_tables
from ridgeline.targets.tables import words as table_words
from ridgeline.targets.target import Files, Imported, Unread
from ridgeline.targets.vendors import runs_on

MODEL = "MODEL"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSplit:
    """How one engine is split: data-parallel ranks step together; `count` of them serve."""

    count: int
    tp: int
    pp: int
    ep: int
    dp: int
    nodes: int = 1

    @property
    def chips(self) -> int:
        return self.tp * self.pp * self.dp


def replica_of(scenario: Scenario) -> EngineSplit:
    """The replicas of a scenario without pools of their own."""
    mesh, ranks = scenario.plan.mesh, scenario.plan.serving.data_parallel_size
    nodes = -(-mesh.tp * mesh.pp * ranks // nodes_of(scenario.system)[1])
    return EngineSplit(count=replicas_of(scenario), tp=mesh.tp, pp=mesh.pp, ep=mesh.ep, dp=ranks, nodes=nodes)


def model_path(scenario: Scenario) -> str:
    """The published weights of a catalog model; empty where there are none."""
    weights_path = weights_of(scenario.model) or ""
    return weights_path if re.fullmatch(r"[\w./-]{1,200}", weights_path) else ""


def common_pieces(scenario: Scenario, target: str, engine: str) -> Iterator[Piece]:
    """The load, the model, and what no engine is told."""
    yield from load_pieces(serving(scenario).workload)
    yield from runs_on(scenario, target)
    yield Fixed("plan.engine", engine, f"what runs it is {options(engine).target}")
    weights = model_path(scenario)
    if weights:
        yield Say(MODEL, weights, "model.*")
        if scenario.model.vision is not None:
            yield Lose("model.vision*", "requests of text alone do not run the encoder")
    else:
        why = "no published weights are known of it: set MODEL to a folder whose config.json says the same"
        yield Lose("model.*", why)
    replica = replica_of(scenario)
    yield chips_taken(scenario, replica.count * replica.chips)
    yield from habits("serving", "common_pieces")
    for table in KNOBS.kinds:
        if table != knob_table(engine):
            yield Lose(f"plan.serving.{table}.*", "knobs of another engine")


def chips_taken(scenario: Scenario, taken: int) -> Fixed:
    """Replicas say how many chips they take; the others stay free, which nobody has to be told."""
    chips = scenario.system.chips
    why = f"{taken} chips that the replicas take" + " of it" * (taken < chips)
    return Fixed("system.chips", max(chips, taken), why)


def knob_table(engine: str) -> str:
    """The table of a plan that holds an engine's knobs."""
    return engine.replace("-", "_")


def knobs(scenario: Scenario, engine: str) -> dict[str, tuple[object, str]]:
    """What the plan sets, by the engine's own name: the value, and the decision it is."""
    engine_knobs = scenario.plan.serving.knobs
    if engine_knobs is None or KNOBS.key_of(engine_knobs) != knob_table(engine):
        return {}
    values = {field.name: getattr(engine_knobs, field.name) for field in fields(engine_knobs)}
    path = f"plan.serving.{knob_table(engine)}"
    return {name: (value, f"{path}.{name}") for name, value in values.items() if value not in (None, "")}


def graph_pieces(scenario: Scenario, *, eager: Say, compiled: Say) -> Iterator[Piece]:
    """How graphs are turned off and compilation on."""
    if scenario.plan.switches.graph == "none":
        yield eager
    yield from habits("serving", "graph_pieces")
    if scenario.plan.switches.compiled:
        yield compiled


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


UNKNOWN_LOAD = {"kind": "serve", "arrivals": {"kind": "poisson", "rate": 1.0}, "isl": 1024, "osl": 128}
BENCH_PROGRAM = ("vllm", "bench", "serve")
BENCH = DocumentedOptions(
    target="vllm bench serve",
    version=options("vllm").version,
    source="",
    choices={},
    aliases={},
    flags=frozenset(table_names("serving", "bench_flags")),
    values=frozenset(table_names("serving", "bench_values")),
)


def reader_of(found: Arguments, source: str) -> OptionReader:
    """The options as something to take from; what is taken nowhere ends as unread."""
    reader = OptionReader(Table(data={}, source=source))
    reader.options = dict(found.options)
    reader.notes += found.strange
    return reader


def first_server(
    files: Files, programs: tuple[tuple[str, ...], ...], keys: frozenset[str], known: DocumentedOptions
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


@false_where_unreadable
def has_server(files: Files, programs: tuple[tuple[str, ...], ...], keys: frozenset[str]) -> bool:
    """Whether a command starts one of the programs, or a YAML file has one of the keys."""
    commands = commands_of(files, *programs)
    return bool(commands) or holds(files, lambda data: bool(keys & _dashed_keys(data)), ".yaml", ".yml")


def _dashed_keys(data: JsonMapping) -> set[str]:
    return {str(key).replace("_", "-") for key in data}


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
    exact = named_exactly(given[:200], given[:200].rstrip("/").rpartition("/")[2])
    written = exact or model_in(files)
    if written is None and given:
        reader.note("model", given[:60], UNKNOWN, matters=False)
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


COMPUTE, WEIGHTS, ACTIVATIONS = (f"plan.precision.{name}" for name in ("compute", "weights", "activations"))
SCALING, KV = "plan.precision.scaling", "plan.precision.kv"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWords:
    """The words of one engine, read both ways.

    title        what people call it
    dtype        its option for the format of activations, with the words of `LONG_FORMATS`
    kv_dtype     its option for the format of the KV cache, with the words of `kv_dtypes`
    also_dtypes  further words for formats of activations that are read
    online       (compute, weights, what shares a scale) -> the method that narrows weights while they are loaded
    from_16_bits whether only bf16 and fp16 are narrowed; products that stay wide are in either of them
    stored       how a checkpoint that is quantised already is named -> (compute, weights)
    knobs        a knob of the plan -> its option; those of `switches` are true or false
    quiet        a switch that is only written where it is on -> what the engine does otherwise
    """

    id: str
    title: str
    dtype: str
    kv_dtype: str
    kv_dtypes: Mapping[str, str]
    also_dtypes: Mapping[str, str]
    online: Mapping[tuple[str, str, str | None], str]
    from_16_bits: bool
    stored: Mapping[str, tuple[str, str]]
    knobs: Mapping[str, str]
    switches: tuple[str, ...]
    quiet: Mapping[str, str]

    def pieces(self, scenario: Scenario) -> Iterator[Piece]:
        """Formats and knobs."""
        yield from self._formats(scenario)
        kv = scenario.plan.precision.kv.id
        if kv == scenario.plan.precision.activations.id:
            yield Say(self.kv_dtype, "auto", KV)
        elif kv in self.kv_dtypes:
            yield Say(self.kv_dtype, self.kv_dtypes[kv], KV)
        else:
            yield Lose(KV, f"the cache holds {', '.join(self.kv_dtypes)}: written as auto")
        for knob, (value, path) in knobs(scenario, self.id).items():
            if knob in self.quiet and value is not True:
                yield Fixed(path, False, self.quiet[knob])
            elif knob in self.knobs:
                yield Say(self.knobs[knob], value, path)

    def _formats(self, scenario: Scenario) -> Iterator[Piece]:
        """Weights as a checkpoint has them, or as the engine narrows them while it loads.

        It computes in the format of activations, or in bf16 where it has no word for that.
        """
        precision = scenario.plan.precision
        compute, weights, activations = precision.compute.id, precision.weights.id, precision.activations.id
        wide = activations if activations in LONG_FORMATS else "bf16"
        method = self.online.get((compute, weights, precision.scaling))
        paths: tuple[str, ...] = (COMPUTE, WEIGHTS, SCALING)
        if method is None:
            method, paths = self.online.get((compute, weights, None)), paths[:2]
        yield Say(self.dtype, LONG_FORMATS[wide], *([ACTIVATIONS] if activations == wide else []))
        is_narrowed = method is not None and (not self.from_16_bits or wide != "fp32")
        if compute == weights == wide:
            yield Say(self.dtype, LONG_FORMATS[wide], COMPUTE, WEIGHTS)
        elif is_narrowed:
            yield Say("--quantization", method, *paths)
        else:
            why = f"a checkpoint in such a format says so in its config.json, and {self.title} reads it there: use one"
            for path, value in ((COMPUTE, compute), (WEIGHTS, weights), (ACTIVATIONS, activations)):
                if value != wide:
                    yield Lose(path, f"{why} as MODEL", yours=True)
        if not is_narrowed or SCALING not in paths:
            yield Lose(SCALING, "which values share a scale follows from the method")
        for path in (COMPUTE, WEIGHTS, ACTIVATIONS):
            yield Fixed(path, wide, "products are multiplied as weights are stored")

    def read_formats(self, reader: OptionReader) -> JsonObject:
        """The formats of products, weights and activations; the cache as wide as these."""
        words = {word: name for name, word in LONG_FORMATS.items()} | dict(self.also_dtypes) | {"auto": "bf16"}
        wide = reader.word("dtype", among=words, default="bf16")
        formats: JsonObject = {"compute": wide, "weights": wide, "activations": wide, "kv": wide}
        method = reader.take("quantization") if self.stored else None
        known_words = {word: means for means, word in self.online.items()}
        known_words |= {word: (*means, None) for word, means in self.stored.items()}
        if isinstance(method, str) and method in known_words:
            compute, weights, scaling = known_words[method]
            formats |= {"compute": wide if compute == "bf16" and self.from_16_bits else compute, "weights": weights}
            formats |= {"scaling": scaling} if scaling else {}
        elif method is not None:
            reader.taken.discard("quantization")
            reader.assumptions.append(f"quantization {method}: read as {wide}, for its formats are not known here")
        return formats

    def read_cache_format(self, reader: OptionReader, wide: str) -> str:
        """The format of the KV cache: that of activations unless told otherwise."""
        cache_words = {word: name for name, word in self.kv_dtypes.items()}
        cache_words |= ({"bfloat16": "bf16"} if "bf16" in cache_words else {}) | {"auto": wide}
        return str(reader.word(self.kv_dtype.lstrip("-"), among=cache_words, default=wide))

    def read_knobs(self, reader: OptionReader) -> JsonObject:
        """Knobs by their option: numbers and words as they stand, then switches as true or false."""
        knob_values: JsonObject = {}
        for knob in (*(knob for knob in self.knobs if knob not in self.switches), *self.switches):
            name = self.knobs[knob].lstrip("-")
            value = reader.take(name)
            if isinstance(value, bool) if knob in self.switches else type(value) in (int, float, str):
                knob_values[knob] = value
            elif value is not None and knob not in self.switches:
                reader.problems.append(Problem(path=f"--{name}", given=repr(value)[:60], expected="one value"))
        return knob_values

    def server(self, scenario: Scenario, said: Iterable[Piece], **how: object) -> tuple[Ledger, ServerLaunch]:
        """The account of one server's pieces, and how its replicas are started."""
        replica = replica_of(scenario)
        pools = Lose("plan.serving.pools*", "pools of prefill and decode need a router between them: export to dynamo")
        every_piece = [*common_pieces(scenario, self.id, self.id), *said, pools]
        ledger = gather(serving_decisions_of(scenario), admit_options(every_piece, options(self.id)))
        settings: JsonObject = {"replicas": replica.count, "chips": replica.chips, "nodes": replica.nodes, **how}
        arguments = {name: value for name, value in ledger.options.items() if name.startswith("--")}
        return ledger, ServerLaunch(arguments=arguments, weights=model_path(scenario), **settings)


@cache
def engine_words(id: str, title: str, dtype: str = "--dtype", kv_dtype: str = "--kv-cache-dtype") -> EngineWords:
    """The words of an engine by its table."""
    rows = engine_tables(id)
    listed_knobs = {knob: f"--{knob.replace('_', '-')}" for knob in (*rows.get("numbers", ()), *rows["switches"])}
    return EngineWords(
        id=id,
        title=title,
        dtype=dtype,
        kv_dtype=kv_dtype,
        kv_dtypes=table_words(id, "kv_dtypes"),
        also_dtypes=rows.get("also_dtypes", {}),
        online={(compute, weights, scale or None): word for compute, weights, scale, word in rows.get("online", ())},
        from_16_bits=rows.get("from_16_bits", False),
        stored={word: tuple(means) for word, means in rows.get("stored", {}).items()},
        knobs=rows.get("knobs", listed_knobs),
        switches=table_names(id, "switches"),
        quiet=rows.get("quiet", {}),
    )


def fleet_pieces(replica: EngineSplit, before_them: str, *, several: bool = True) -> Iterator[Piece]:
    """Replicas that are servers of their own; `before_them` is what deals requests to them."""
    yield Say("REPLICAS", replica.count, "plan.serving.replicas")
    if several:
        why = f"replicas are servers of their own, on ports from PORT on: put {before_them}"
        yield Lose("plan.serving.router", why, yours=True)
    yield Fixed("plan.serving.router", "round-robin", "one replica")
