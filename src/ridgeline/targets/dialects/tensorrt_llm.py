"""TensorRT-LLM: the YAML of `trtllm-serve` and a launch script, and such files read back."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.core.documents import JsonObject
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.decisions import has_experts
from ridgeline.targets.imports.option_reader import (
    Arguments,
    OptionReader,
    flatten,
    nest_options,
    read_arguments,
    tables,
)
from ridgeline.targets.launchers.launch import comment, header
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say, lose
from ridgeline.targets.options import options
from ridgeline.targets.serving.engine import (
    MODEL,
    EngineSplit,
    engine_words,
    fleet_pieces,
    graph_pieces,
    has_server,
    imported_server,
    model_named,
    none_found,
    reader_of,
    replica_of,
)
from ridgeline.targets.serving.scripts import PREFIX, commands_of, replicas_in, server_export
from ridgeline.targets.tables import words as table_words
from ridgeline.targets.target import Export, Files, Imported
from ridgeline.targets.yaml_text import yaml_text

ID = "tensorrt-llm"
FILE = "extra_llm_api_options.yaml"

ENGINE = engine_words(ID, "TensorRT-LLM", "dtype", "kv_cache_config.dtype")
DRAFTS = {"mtp": "MTP", "eagle": "Eagle", "ngram": "NGram"}
FIELDS = table_words("tensorrt-llm", "fields")  # options of the command line -> fields of the file that they are too
KEYS = frozenset({"kv_cache_config", "cuda_graph_config", "moe_expert_parallel_size", "enable_attention_dp"})
PROGRAMS = (("trtllm-serve", "serve"), ("trtllm-serve",))
APART = table_words("tensorrt-llm", "apart")


def engine_pieces(scenario: Scenario, one: EngineSplit) -> Iterator[Piece]:
    """Everything that a TensorRT-LLM engine is told."""
    yield from _mesh(scenario, one)
    yield from ENGINE.pieces(scenario)
    is_compiled = Say("torch_compile_config.enable_fullgraph", True, "plan.compiled")
    yield from graph_pieces(scenario, eager=Say("cuda_graph_config", None, "plan.graph"), compiled=is_compiled)
    drafts = scenario.plan.speculation
    if drafts is None:
        return
    field = "num_nextn_predict_layers" if drafts.draft == "mtp" else "max_draft_len"
    yield Say("speculative_config.decoding_type", DRAFTS[drafts.draft], "plan.speculation.draft")
    yield Say(f"speculative_config.{field}", drafts.draft_tokens, "plan.speculation.draft_tokens")
    if drafts.draft == "eagle":
        yield Lose("plan.speculation.draft", "its head is a checkpoint of its own: add speculative_model_dir")


def _mesh(scenario: Scenario, one: EngineSplit) -> Iterator[Piece]:
    """Tensor ranks count all ranks of a stage; with attention DP each of them handles requests of its own."""
    yield Say("tensor_parallel_size", one.tp * one.dp, "plan.tp")
    yield Say("pipeline_parallel_size", one.pp, "plan.pp")
    if one.dp > 1 and one.tp == 1:
        yield Say("enable_attention_dp", True, "plan.serving.data_parallel_size", "plan.tp")
    elif one.dp > 1:
        yield Say("enable_attention_dp", True)
        why = f"attention DP goes over all ranks: written with {one.tp * one.dp} of them, tp 1"
        yield from lose(why, "plan.serving.data_parallel_size", "plan.tp")
    if has_experts(scenario.model):
        yield Say("moe_expert_parallel_size", one.ep, "plan.ep")
        yield Lose("plan.etp", "ranks that expert parallelism leaves split the experts")
        yield Fixed("plan.moe_dispatch", "all-to-all", "tokens are exchanged over NVLink or all-gathered")


def write(scenario: Scenario) -> Export:
    """The YAML file, launch.sh and bench.sh."""
    replica = replica_of(scenario)
    fleet = fleet_pieces(replica, "a router before them, or export to dynamo", several=replica.count > 1)
    ledger, how = ENGINE.server(
        scenario,
        (*engine_pieces(scenario, replica), *fleet),
        program=f'exec trtllm-serve "$MODEL" --host "$HOST" --port "$PORT" --config "$(dirname "$0")/{FILE}"',
        rendezvous="# start it under `srun --mpi=pmix` with a task for each chip",
    )
    engine_options = {name: value for name, value in ledger.options.items() if not name.startswith(PREFIX)}
    fields = {name: value for name, value in engine_options.items() if name not in (MODEL, "REPLICAS")}
    file = {FILE: comment(header(scenario, options(ID).title)) + yaml_text(nest_options(fields))}
    return server_export(ID, scenario, ledger, how, file)


def read(files: Files) -> Imported:
    """The first `trtllm-serve` among the files with the YAML beside it, and a load."""
    commands = commands_of(files, *PROGRAMS)
    arguments, replicas = Arguments(), 1
    if commands:
        script, words = commands[0]
        arguments, replicas = read_arguments(words, options(ID)), replicas_in(script)
    reader = reader_of(arguments, next(iter(files), ""))
    reader.options = {FIELDS.get(name, name): value for name, value in reader.options.items()}
    config_name = str(reader.options.get("config", "")).rpartition("/")[2]
    yaml_tables = [
        table
        for table in tables(files, ".yaml", ".yml")
        if KEYS & set(table.data) or (config_name and table.source.rpartition("/")[2] == config_name)
    ]
    if not commands and not yaml_tables:
        raise none_found(files, "trtllm-serve")
    for table in yaml_tables:  # the file stands above the command line
        reader.options |= dict(flatten(table.data))
    model_given = next(iter(arguments.words), "")
    plan = read_engine(reader, replicas)
    return imported_server(ID, files, reader, plan, model_named(reader, files, model_given), APART)


def read_engine(reader: OptionReader, replicas: int = 1) -> JsonObject:
    """What a TensorRT-LLM engine is told."""
    ranks = reader.degree("tensor_parallel_size")
    together = reader.switch("enable_attention_dp")
    plan: JsonObject = {"tp": 1 if together else ranks, "pp": reader.degree("pipeline_parallel_size"), "engine": ID}
    ep = reader.degree("moe_expert_parallel_size")
    plan |= {"ep": ep} if ep > 1 else {}
    formats = ENGINE.read_formats(reader)
    plan["precision"] = formats | {"kv": ENGINE.read_cache_format(reader, formats["activations"])}
    serving: JsonObject = {"replicas": replicas}
    engine_knobs = ENGINE.read_knobs(reader)
    serving |= {"tensorrt_llm": engine_knobs} if engine_knobs else {}
    if together:
        serving["data_parallel_size"] = ranks
    plan |= {"serving": serving, "dp": (ranks if together else 1) * replicas}
    if "cuda_graph_config" in reader and reader.take("cuda_graph_config") is None:
        plan["graph"] = "none"
    if reader.switch("torch_compile_config.enable_fullgraph"):
        plan["compiled"] = True
    drafts = {word: name for name, word in DRAFTS.items()}.get(str(reader.take("speculative_config.decoding_type")))
    if drafts is not None:
        tokens = reader.count("speculative_config.num_nextn_predict_layers", "speculative_config.max_draft_len")
        plan["speculation"] = {"draft": drafts, "draft_tokens": tokens or 1}
    return plan


def recognises(files: Files) -> bool:
    """A command that runs `trtllm-serve`, or a YAML file of its fields."""
    return has_server(files, PROGRAMS, frozenset(key.replace("_", "-") for key in KEYS))
