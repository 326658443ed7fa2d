"""vLLM: the arguments of `vllm serve` in a launch script, and such command lines read back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError
from ridgeline.models.load import MODELS
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.decisions import has_experts, serving_decisions_of
from ridgeline.targets.imports.command_line import Arguments, read_arguments
from ridgeline.targets.imports.option_reader import OptionReader, flatten, tables
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say, admit_options, gather
from ridgeline.targets.options import options
from ridgeline.targets.serving.launch import Launch, commands_of, replicas_in
from ridgeline.targets.serving.load import server_export
from ridgeline.targets.serving.pieces import (
    COMPUTE,
    SCALING,
    WEIGHTS,
    FormatWords,
    Replica,
    cache_format,
    common_pieces,
    format_pieces,
    knobs,
    model_path,
    pools_lost,
    replica_of,
    wide_format,
)
from ridgeline.targets.serving.reader import (
    imported_server,
    json_option,
    model_named,
    none_found,
    reader_of,
    take_knobs,
)
from ridgeline.targets.tables import names as table_names
from ridgeline.targets.tables import words as table_words
from ridgeline.targets.target import Export, Files, Imported, refusal

ID = "vllm"

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
KV_DTYPES = table_words("vllm", "kv_dtypes")
# weights that are quantised while they are loaded: (compute, weights, what shares a scale) -> method
ONLINE = {
    ("fp8-e4m3", "fp8-e4m3", "tensor"): "fp8_per_tensor",
    ("fp8-e4m3", "fp8-e4m3", "row"): "fp8_per_channel",
    ("fp8-e4m3", "fp8-e4m3", "block"): "fp8_per_block",
    ("fp8-e4m3", "fp8-e4m3", None): "fp8",
    ("mxfp8", "mxfp8", "block"): "mxfp8",
    ("mxfp8", "mxfp8", None): "mxfp8",
    ("bf16", "int8", None): "int8_per_channel_weight_only",
    ("nvfp4", "nvfp4", "block"): "nvfp4_per_token",
    ("nvfp4", "nvfp4", None): "nvfp4_per_token",
}
# how a checkpoint that is quantised already is named, where somebody says it: the method -> (compute, weights)
STORED = {"modelopt_fp4": ("nvfp4", "nvfp4"), "mxfp4": ("bf16", "mxfp4"), "modelopt_mxfp8": ("mxfp8", "mxfp8")}
GRAPHS = {"none": "NONE", "partial": "PIECEWISE", "full": "FULL"}
SWITCHES = ("enable_prefix_caching", "enable_chunked_prefill", "async_scheduling", "scheduler_reserve_full_isl")
NUMBERS = table_names("vllm", "numbers")


def option(knob: str) -> str:
    """The argument of a knob.

    >>> option("max_num_seqs")
    '--max-num-seqs'
    """
    return f"--{knob.replace('_', '-')}"


WORDS = FormatWords(
    title="vLLM", dtype="--dtype", dtypes=DTYPES, kv_dtype="--kv-cache-dtype", kv_dtypes=KV_DTYPES
)  # fmt: skip


def engine_pieces(scenario: Scenario, one: Replica) -> Iterator[Piece]:
    """Everything that a vLLM engine is told."""
    yield from mesh(scenario, one)
    for part in (_formats, _knobs, _graphs, _speculation):
        yield from part(scenario)


def mesh(scenario: Scenario, one: Replica) -> Iterator[Piece]:
    """Tensor, pipeline and data ranks; experts go over tensor and data ranks together, or are split like the rest."""
    yield Say("--tensor-parallel-size", one.tp, "plan.tp")
    yield Say("--pipeline-parallel-size", one.pp, "plan.pp")
    if one.dp > 1:
        yield Say("--data-parallel-size", one.dp, "plan.serving.data_parallel_size")
        if not has_experts(scenario.model):
            why = "ranks of a model without experts do not wait for each other: they are replicas"
            yield Lose("plan.serving.data_parallel_size", why)
            yield Lose("plan.serving.replicas", why)
    yield Fixed("plan.serving.data_parallel_size", 1, "one rank of data")
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


def _formats(scenario: Scenario) -> Iterator[Piece]:
    """Weights as a checkpoint has them, in one of three formats, or quantised while they are loaded."""
    yield from format_pieces(scenario, WORDS, _online_quantization(scenario))
    yield from cache_format(scenario, WORDS)


def _online_quantization(scenario: Scenario) -> Say | None:
    """How weights are narrowed while they are loaded; a method may say which values share a scale."""
    precision = scenario.plan.precision
    formats = precision.compute.id, precision.weights.id
    if wide_format(scenario, WORDS) not in ("bf16", "fp16"):
        return None
    if (*formats, precision.scaling) in ONLINE:
        return Say("--quantization", ONLINE[(*formats, precision.scaling)], COMPUTE, WEIGHTS, SCALING)
    method = ONLINE.get((*formats, None))
    return Say("--quantization", method, COMPUTE, WEIGHTS) if method is not None else None


def _knobs(scenario: Scenario) -> Iterator[Piece]:
    for name, (value, path) in knobs(scenario, ID).items():
        if name in SWITCHES or name in NUMBERS:
            yield Say(option(name), value, path)
    option_list = options(ID).version
    yield Fixed(
        "plan.serving.vllm.version",
        option_list,
        f"arguments of {option_list}; the server has the rules of what is installed",
    )


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


def _speculation(scenario: Scenario) -> Iterator[Piece]:
    drafts = scenario.plan.speculation
    if drafts is None:
        return
    config_text = json.dumps({"method": drafts.draft, "num_speculative_tokens": drafts.draft_tokens})
    path = "plan.speculation"
    yield Say("--speculative-config", config_text, f"{path}.draft_tokens", f"{path}.draft")
    if drafts.draft == "eagle":
        yield Lose(f"{path}.draft", "its head is a checkpoint of its own: add model to --speculative-config")


RENDEZVOUS = '--nnodes {nodes} --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"'


def write(scenario: Scenario) -> Export:
    """launch.sh and bench.sh."""
    decisions = serving_decisions_of(scenario)
    replica = replica_of(scenario)
    pieces_said = [
        *common_pieces(scenario, ID, ID),
        *engine_pieces(scenario, replica),
        *_fleet(scenario, replica),
        pools_lost(),
    ]
    ledger = gather(decisions, admit_options(pieces_said, options(ID)))
    has_balancer = has_own_balancer(scenario, replica)
    how = Launch(
        program='exec vllm serve "$MODEL" --host "$HOST" --port "$PORT"',
        arguments={name: value for name, value in ledger.options.items() if name.startswith("--")},
        weights=model_path(scenario),
        replicas=1 if has_balancer else replica.count,
        chips=replica.chips,
        nodes=replica.nodes,
        rendezvous=RENDEZVOUS.format(nodes=replica.nodes),
    )
    return server_export(ID, scenario, ledger, how)


def has_own_balancer(scenario: Scenario, one: Replica) -> bool:
    """Whether replicas are ranks of one server, whose front end gives requests to the least loaded.

    Ranks of a mixture of experts would step together, and those of several nodes need a server on each.
    """
    stands_alone = one.dp == 1 and not has_experts(scenario.model)
    fits = one.count * one.chips <= scenario.system.node
    return one.count > 1 and stands_alone and fits and scenario.plan.serving.router == "least-loaded"


def _fleet(scenario: Scenario, one: Replica) -> Iterator[Piece]:
    if has_own_balancer(scenario, one):
        paths = ("plan.serving.replicas", "plan.serving.router")
        yield Say("--data-parallel-size", one.count, *paths)
        return
    yield Say("REPLICAS", one.count, "plan.serving.replicas")
    why = "replicas are servers of their own, on ports from PORT on: put a router before them"
    yield Lose("plan.serving.router", why, yours=True)
    yield Fixed("plan.serving.router", "round-robin", "one replica")


PROGRAMS = (("vllm", "serve"), ("-m", "vllm.entrypoints.openai.api_server"), ("vllm-openai",))
COUNT = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([kmgt])|(\d{1,12})([KMGT])")
POWERS = "kmgt"
MODES = {word: kind for kind, word in GRAPHS.items()} | {"FULL_DECODE_ONLY": "full", "FULL_AND_PIECEWISE": "full"}
"""What a mode of graphs does with decode steps."""
APART = table_words("vllm", "apart")


def read(files: Files) -> Imported:
    """The first `vllm serve` among the files, and the load that a `vllm bench serve` beside it describes."""
    commands = commands_of(files, *PROGRAMS)
    if commands:
        script, words = commands[0]
        arguments = read_arguments(_levels(words), options(ID))
        replicas = replicas_in(script)
    else:
        arguments, replicas = _config_options(files), 1
    reader = reader_of(arguments, next(iter(files), ""))
    _merge_config(reader, files)
    model_given = str(reader.take("model", default="") or next(iter(arguments.words), ""))
    plan = read_engine(reader) | {"engine": ID}
    dp = reader.degree("data-parallel-size")
    model = model_named(reader, files, model_given)
    together = plan.get("ep", 1) > 1 or (model is not None and has_experts(MODELS[model]))
    plan["serving"] = plan.get("serving", {}) | _read_fleet(together, dp, replicas)
    plan["dp"] = dp * replicas
    return imported_server(ID, files, reader, plan, model, APART)


def _levels(words: Iterable[str]) -> Iterator[str]:
    """`-O3` as the option that vLLM makes of it."""
    for word in words:
        if re.fullmatch(r"-O[0-3]", word):
            yield f"--optimization-level={word[2]}"
        else:
            yield word


def _read_fleet(together: bool, dp: int, replicas: int) -> JsonObject:
    """Ranks of data that share experts step together; others are replicas behind the server's own balancer."""
    if together:
        return {"replicas": replicas, "data_parallel_size": dp}
    if dp > 1:
        return {"replicas": dp * replicas, "router": "least-loaded"}
    return {"replicas": replicas}


def read_engine(reader: OptionReader) -> JsonObject:
    """What a vLLM engine is told: mesh, formats, knobs."""
    plan: JsonObject = {"tp": reader.degree("tensor-parallel-size"), "pp": reader.degree("pipeline-parallel-size")}
    if reader.switch("enable-expert-parallel", default=False):
        plan["ep"] = plan["tp"] * reader.degree("data-parallel-size")
    backends = {"deepep": "deepep", "allgather": "all-to-all", "naive": "all-to-all"}
    backend = str(reader.take("all2all-backend", default=""))
    ways = [way for word, way in backends.items() if backend.startswith(word)]
    plan |= {"moe_dispatch": ways[0]} if ways else {}
    plan["precision"] = _precision(reader)
    dashed_options = {knob: knob.replace("_", "-") for knob in (*NUMBERS, *SWITCHES)}
    numbers = {knob: dashed_options[knob] for knob in NUMBERS}
    engine_knobs = take_knobs(reader, numbers, {knob: dashed_options[knob] for knob in SWITCHES})
    engine_knobs = {knob: parse_count(value) for knob, value in engine_knobs.items()}
    serving: JsonObject = {"vllm": engine_knobs} if engine_knobs else {}
    if serving:
        plan["serving"] = serving
    drafts = json_option(reader, "speculative-config")
    if drafts:
        plan["speculation"] = {
            "draft": _draft_kind(str(drafts.get("method", "ngram"))),
            "draft_tokens": drafts.get("num_speculative_tokens", 1),
        }
    return plan | _read_graphs(reader)


def parse_count(value: Any) -> Any:
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


def _draft_kind(method: str) -> str:
    return "eagle" if method.startswith("eagle") else "mtp" if "mtp" in method else "ngram"


def _read_graphs(reader: OptionReader) -> JsonObject:
    if reader.switch("enforce-eager", default=False):
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


def _precision(reader: OptionReader) -> JsonObject:
    names = {word: name for name, word in DTYPES.items()} | {"half": "fp16", "float": "fp32"}
    wide = reader.word("dtype", among={**names, "auto": "bf16"}, default="bf16")
    formats_read: JsonObject = {"compute": wide, "weights": wide, "activations": wide, "kv": wide}
    method = reader.take("quantization")
    known_words = {word: means for means, word in ONLINE.items()} | {word: (*two, None) for word, two in STORED.items()}
    if isinstance(method, str) and method in known_words:
        compute, weights, scaling = known_words[method]
        formats_read |= {"compute": compute if compute != "bf16" else wide, "weights": weights}
        formats_read |= {"scaling": scaling} if scaling else {}
    elif method is not None:
        reader.taken.discard("quantization")
        reader.assumptions.append(f"quantization {method}: read as {wide}, for its formats are not known here")
    cache_formats = {word: name for name, word in KV_DTYPES.items()} | {"fp8": "fp8-e4m3", "auto": wide}
    kv = reader.take("kv-cache-dtype", default="auto")
    if str(kv) not in cache_formats:
        raise refusal(repr(kv)[:60], f"one of {', '.join(cache_formats)}", path="--kv-cache-dtype")
    return formats_read | {"kv": cache_formats[str(kv)]}


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


def recognises(files: Files) -> bool:
    """A command that runs `vllm serve`, or a YAML file of its options."""
    try:
        if commands_of(files, *PROGRAMS):
            return True
        return not commands_of(files, ("-m", "dynamo.vllm")) and any(
            _is_config(table.data) for table in tables(files, ".yaml", ".yml")
        )
    except InputError:
        return False
