"""Turn a command line of `trtllm-serve` and the YAML file it names into settings."""

from __future__ import annotations

from typing import Any

from ridgeline.core.errors import InputError
from ridgeline.targets.command_line import Arguments, read_arguments
from ridgeline.targets.option_reader import OptionReader, flatten, tables
from ridgeline.targets.options import options
from ridgeline.targets.serving_launch import commands_of, replicas_in
from ridgeline.targets.serving_reader import imported, model_named, none_found, reader_of, take_knobs
from ridgeline.targets.target import Files, Imported
from ridgeline.targets.tensorrt_llm.names import DRAFTS, DTYPES, FIELDS, ID, KNOBS, KV_DTYPES, SWITCHES

PROGRAMS = (("trtllm-serve", "serve"), ("trtllm-serve",))
APART = {
    "host": "where the server listens decides nothing",
    "port": "where the server listens decides nothing",
    "config": "the file is read",
    "*log*": "logging decides nothing here",
    "*": "a TensorRT-LLM option that is not priced",
}


def read(files: Files) -> Imported:
    """The first `trtllm-serve` among the files with the YAML beside it, and a load."""
    found = commands_of(files, *PROGRAMS)
    arguments, replicas = Arguments(), 1
    if found:
        script, words = found[0]
        arguments, replicas = read_arguments(words, options(ID)), replicas_in(script)
    reader = reader_of(arguments, next(iter(files), ""))
    reader.options = {FIELDS.get(name, name): value for name, value in reader.options.items()}
    named = str(reader.options.get("config", "")).rpartition("/")[2]
    held = [
        table
        for table in tables(files, ".yaml", ".yml")
        if _is_config(table.data) or (named and table.source.rpartition("/")[2] == named)
    ]
    if not found and not held:
        raise none_found(files, "trtllm-serve")
    for table in held:  # the file stands above the command line
        reader.options |= dict(flatten(table.data))
    given = next(iter(arguments.words), "")
    plan = read_engine(reader, replicas)
    return imported(ID, files, reader, plan, model_named(reader, files, given), APART)


def read_engine(reader: OptionReader, replicas: int = 1) -> dict[str, Any]:
    """What a TensorRT-LLM engine is told."""
    ranks = reader.degree("tensor_parallel_size")
    together = reader.switch("enable_attention_dp", default=False)
    plan: dict[str, Any] = {"tp": 1 if together else ranks, "pp": reader.degree("pipeline_parallel_size"), "engine": ID}
    ep = reader.degree("moe_expert_parallel_size")
    plan |= {"ep": ep} if ep > 1 else {}
    names = {word: name for name, word in DTYPES.items()}
    wide = reader.word("dtype", among={**names, "auto": "bf16"}, default="bf16")
    cached = {word: name for name, word in KV_DTYPES.items()} | {"auto": wide}
    kv = reader.word("kv_cache_config.dtype", among=cached, default=wide)
    plan["precision"] = {"compute": wide, "weights": wide, "activations": wide, "kv": kv}
    serving: dict[str, Any] = {"replicas": replicas}
    numbers = {knob: field for knob, field in KNOBS.items() if knob not in SWITCHES}
    own = take_knobs(reader, numbers, {knob: KNOBS[knob] for knob in SWITCHES})
    serving |= {"tensorrt_llm": own} if own else {}
    if together:
        serving["data_parallel_size"] = ranks
    plan |= {"serving": serving, "dp": (ranks if together else 1) * replicas}
    if "cuda_graph_config" in reader and reader.take("cuda_graph_config") is None:
        plan["graph"] = "none"
    if reader.switch("torch_compile_config.enable_fullgraph", default=False):
        plan["compiled"] = True
    drafts = {word: name for name, word in DRAFTS.items()}.get(str(reader.take("speculative_config.decoding_type")))
    if drafts is not None:
        tokens = reader.count("speculative_config.num_nextn_predict_layers", "speculative_config.max_draft_len")
        plan["speculation"] = {"draft": drafts, "draft_tokens": tokens or 1}
    return plan


def _is_config(data: dict[str, Any]) -> bool:
    return bool(set(data) & {"kv_cache_config", "cuda_graph_config", "moe_expert_parallel_size", "enable_attention_dp"})


def recognises(files: Files) -> bool:
    """A command that runs `trtllm-serve`, or a YAML file of its fields."""
    try:
        return bool(commands_of(files, *PROGRAMS)) or any(
            _is_config(table.data) for table in tables(files, ".yaml", ".yml")
        )
    except InputError:
        return False
