"""vLLM: the arguments of `vllm serve` in a launch script, and such command lines read back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.models.load import MODELS
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.decisions import has_experts
from ridgeline.targets.imports.option_reader import (
    Arguments,
    OptionReader,
    false_where_unreadable,
    flatten,
    holds,
    read_arguments,
    tables,
)
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say, lose
from ridgeline.targets.options import options
from ridgeline.targets.serving.engine import (
    EngineSplit,
    engine_words,
    fleet_pieces,
    imported_server,
    json_option,
    model_named,
    none_found,
    reader_of,
    replica_of,
)
from ridgeline.targets.serving.scripts import commands_of, replicas_in, server_export
from ridgeline.targets.tables import words as table_words
from ridgeline.targets.target import Export, Files, Imported, refusal

ID = "vllm"

GRAPHS = {"none": "NONE", "partial": "PIECEWISE", "full": "FULL"}
ENGINE = engine_words(ID, "vLLM")
RENDEZVOUS = '--nnodes {nodes} --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"'
PROGRAMS = (("vllm", "serve"), ("-m", "vllm.entrypoints.openai.api_server"), ("vllm-openai",))
COUNT = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([kmgt])|(\d{1,12})([KMGT])")
POWERS = "kmgt"
MODES = {word: kind for kind, word in GRAPHS.items()} | {"FULL_DECODE_ONLY": "full", "FULL_AND_PIECEWISE": "full"}
"""What a mode of graphs does with decode steps."""
APART = table_words("vllm", "apart")


def engine_pieces(scenario: Scenario, one: EngineSplit) -> Iterator[Piece]:
    """Everything that a vLLM engine is told."""
    yield from mesh(scenario, one)
    yield from ENGINE.pieces(scenario)
    installed = options(ID).version
    why = f"arguments of {installed}; the server has the rules of what is installed"
    yield Fixed("plan.serving.vllm.version", installed, why)
    yield from _graphs(scenario)
    if scenario.plan.speculation is not None:
        drafts = scenario.plan.speculation
        config_text = json.dumps({"method": drafts.draft, "num_speculative_tokens": drafts.draft_tokens})
        path = "plan.speculation"
        yield Say("--speculative-config", config_text, f"{path}.draft_tokens", f"{path}.draft")
        if drafts.draft == "eagle":
            yield Lose(f"{path}.draft", "its head is a checkpoint of its own: add model to --speculative-config")


def mesh(scenario: Scenario, one: EngineSplit) -> Iterator[Piece]:
    """Tensor, pipeline and data ranks; experts go over tensor and data ranks together, or are split like the rest."""
    yield Say("--tensor-parallel-size", one.tp, "plan.tp")
    yield Say("--pipeline-parallel-size", one.pp, "plan.pp")
    if one.dp > 1:
        yield Say("--data-parallel-size", one.dp, "plan.serving.data_parallel_size")
        if not has_experts(scenario.model):
            why = "ranks of a model without experts do not wait for each other: they are replicas"
            yield from lose(why, "plan.serving.data_parallel_size", "plan.serving.replicas")
    if not has_experts(scenario.model):
        return
    group = one.tp * one.dp
    if one.ep == group and group > 1:
        yield Say("--enable-expert-parallel", True, "plan.ep")
    elif one.ep > 1:
        yield Say("--enable-expert-parallel", True)
        yield Lose("plan.ep", f"experts go over all {group} ranks of tp x data_parallel_size: written so")
    yield Fixed("plan.ep", 1, "experts are split like every matrix")
    yield Lose("plan.etp", "expert parallelism takes all ranks of tp x data_parallel_size, or none")
    dispatch = {"all-to-all": "allgather_reducescatter", "deepep": "deepep_low_latency"}
    word = dispatch.get(scenario.plan.switches.moe_dispatch or "")
    if word and group > 1:
        yield Say("--all2all-backend", word, "plan.moe_dispatch")
    else:
        yield Lose("plan.moe_dispatch", "tokens are exchanged by all-gather, or with DeepEP")


def _graphs(scenario: Scenario) -> Iterator[Piece]:
    """Graphs and compilation as vLLM does unless told; eager means neither."""
    graph, is_compiled = scenario.plan.switches.graph, scenario.plan.switches.compiled
    if graph == "none" and is_compiled in (None, False):
        yield Say("--enforce-eager", True, "plan.graph", "plan.compiled")
        return
    settings: dict[str, object] = {}
    if graph is not None:
        settings["cudagraph_mode"] = GRAPHS[graph]
    if is_compiled is not None:
        settings["mode"] = 3 if is_compiled else 0
    if settings:
        yield Say("--compilation-config", json.dumps(settings), "plan.graph", "plan.compiled")


def write(scenario: Scenario) -> Export:
    """launch.sh and bench.sh."""
    replica = replica_of(scenario)
    one_server = has_own_balancer(scenario, replica)
    if one_server:
        paths = ("plan.serving.replicas", "plan.serving.router")
        fleet: Iterable[Piece] = (Say("--data-parallel-size", replica.count, *paths),)
    else:
        fleet = fleet_pieces(replica, "a router before them")
    ledger, how = ENGINE.server(
        scenario,
        (*engine_pieces(scenario, replica), *fleet),
        program='exec vllm serve "$MODEL" --host "$HOST" --port "$PORT"',
        rendezvous=RENDEZVOUS.format(nodes=replica.nodes),
        **({"replicas": 1} if one_server else {}),
    )
    return server_export(ID, scenario, ledger, how)


def has_own_balancer(scenario: Scenario, one: EngineSplit) -> bool:
    """Whether replicas are ranks of one server, whose front end gives requests to the least loaded.

    Ranks of a mixture of experts would step together, and those of several nodes need a server on each.
    """
    stands_alone = one.dp == 1 and not has_experts(scenario.model)
    fits = one.count * one.chips <= scenario.system.node
    return one.count > 1 and stands_alone and fits and scenario.plan.serving.router == "least-loaded"


def read(files: Files) -> Imported:
    """The first `vllm serve` among the files, and the load that a `vllm bench serve` beside it describes."""
    commands = commands_of(files, *PROGRAMS)
    if commands:
        script, words = commands[0]
        levels = (re.sub(r"^-O([0-3])$", r"--optimization-level=\1", word) for word in words)
        arguments, replicas = read_arguments(levels, options(ID)), replicas_in(script)
    else:
        arguments, replicas = _config_options(files), 1
    reader = reader_of(arguments, next(iter(files), ""))
    _merge_config(reader, files)
    model_given = str(reader.take("model", default="") or next(iter(arguments.words), ""))
    plan = read_engine(reader) | {"engine": ID}
    dp = reader.degree("data-parallel-size")
    model = model_named(reader, files, model_given)
    together = plan.get("ep", 1) > 1 or (model is not None and has_experts(MODELS[model]))
    if together:  # ranks of data that share experts step together; others are replicas behind the server's balancer
        fleet: JsonObject = {"replicas": replicas, "data_parallel_size": dp}
    else:
        fleet = {"replicas": dp * replicas} | ({"router": "least-loaded"} if dp > 1 else {})
    plan["serving"] = plan.get("serving", {}) | fleet
    plan["dp"] = dp * replicas
    return imported_server(ID, files, reader, plan, model, APART)


def read_engine(reader: OptionReader) -> JsonObject:
    """What a vLLM engine is told: mesh, formats, knobs."""
    plan: JsonObject = {"tp": reader.degree("tensor-parallel-size"), "pp": reader.degree("pipeline-parallel-size")}
    if reader.switch("enable-expert-parallel"):
        plan["ep"] = plan["tp"] * reader.degree("data-parallel-size")
    backends = {"deepep": "deepep", "allgather": "all-to-all", "naive": "all-to-all"}
    backend = str(reader.take("all2all-backend", default=""))
    ways = [way for word, way in backends.items() if backend.startswith(word)]
    plan |= {"moe_dispatch": ways[0]} if ways else {}
    formats = ENGINE.read_formats(reader)
    words = {word: name for name, word in ENGINE.kv_dtypes.items()}
    words |= {"fp8": "fp8-e4m3", "auto": formats["activations"]}
    kv = reader.take("kv-cache-dtype", default="auto")
    if str(kv) not in words:
        raise refusal(repr(kv)[:60], f"one of {', '.join(words)}", path="--kv-cache-dtype")
    plan["precision"] = formats | {"kv": words[str(kv)]}
    if engine_knobs := {knob: parse_count(value) for knob, value in ENGINE.read_knobs(reader).items()}:
        plan["serving"] = {"vllm": engine_knobs}
    if drafts := json_option(reader, "speculative-config"):
        method = str(drafts.get("method", "ngram"))
        kind = "eagle" if method.startswith("eagle") else "mtp" if "mtp" in method else "ngram"
        plan["speculation"] = {"draft": kind, "draft_tokens": drafts.get("num_speculative_tokens", 1)}
    return plan | _read_graphs(reader)


def parse_count(value: object) -> object:
    """A count as vLLM reads it: small letters are powers of 1000, capitals of 1024; anything else as it stands.

    >>> parse_count("8k"), parse_count("25.6k"), parse_count("8K"), parse_count("fcfs"), parse_count(7)
    (8000, 25600, 8192, 'fcfs', 7)
    """
    match = COUNT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    if match[1]:
        return round(float(match[1]) * 1000 ** (POWERS.index(match[2]) + 1))
    return int(match[3]) * 1024 ** (POWERS.index(match[4].lower()) + 1)


def _read_graphs(reader: OptionReader) -> JsonObject:
    if reader.switch("enforce-eager"):
        return {"graph": "none", "compiled": False}
    graph_plan: JsonObject = {}
    overall = reader.take("optimization-level")
    if overall is not None:
        graph_plan |= {"compiled": False, "graph": "none"} if str(overall) == "0" else {"compiled": True}
    settings = json_option(reader, "compilation-config")
    mode = str(settings.get("cudagraph_mode", ""))
    if mode in MODES:
        graph_plan["graph"] = MODES[mode]
    level = settings.get("mode", settings.get("level"))
    if level is not None:
        graph_plan["compiled"] = level not in (0, "0", "NONE")
    return graph_plan


def _config_options(files: Files) -> Arguments:
    """The options of a YAML file as `vllm serve --config` reads it."""
    for table in tables(files, ".yaml", ".yml"):
        if _is_config(table.data):
            return Arguments(options={str(key).replace("_", "-"): value for key, value in table.data.items()})
    raise none_found(files, "vllm serve")


def _merge_config(reader: OptionReader, files: Files) -> None:
    """A file that `--config` names, where it is among the files; what the command line says stands above it."""
    name = reader.take("config")
    if not isinstance(name, str):
        return
    for table in tables(files, ".yaml", ".yml"):
        if table.source.rpartition("/")[2] == name.rpartition("/")[2]:
            file_options = {str(key).replace("_", "-"): value for key, value in flatten(table.data)}
            reader.options = file_options | reader.options


def _is_config(data: JsonMapping) -> bool:
    keys = {str(key).replace("_", "-") for key in data}
    return bool(keys & {"tensor-parallel-size", "max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization"})


@false_where_unreadable
def recognises(files: Files) -> bool:
    """A command that runs `vllm serve`, or a YAML file of its options."""
    if commands_of(files, *PROGRAMS):
        return True
    return holds(files, _is_config, ".yaml", ".yml") and not commands_of(files, ("-m", "dynamo.vllm"))
