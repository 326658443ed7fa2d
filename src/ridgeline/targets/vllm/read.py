"""Turn a command line of `vllm serve`, alone or in a script, or its `--config` file into settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.models.load import MODELS
from ridgeline.targets.command_line import Arguments, read_arguments
from ridgeline.targets.decisions import has_experts
from ridgeline.targets.option_reader import OptionReader, flatten, tables
from ridgeline.targets.options import options
from ridgeline.targets.serving_launch import commands_of, replicas_in
from ridgeline.targets.serving_reader import imported, json_option, model_named, none_found, reader_of, take_knobs
from ridgeline.targets.target import Files, Imported
from ridgeline.targets.vllm.names import DTYPES, GRAPHS, ID, KV_DTYPES, NUMBERS, ONLINE, STORED, SWITCHES

PROGRAMS = (("vllm", "serve"), ("-m", "vllm.entrypoints.openai.api_server"), ("vllm-openai",))
COUNT = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([kmgt])|(\d{1,12})([KMGT])")
POWERS = "kmgt"
MODES = {word: kind for kind, word in GRAPHS.items()} | {"FULL_DECODE_ONLY": "full", "FULL_AND_PIECEWISE": "full"}
"""What a mode of graphs does with decode steps."""
APART = {
    "host": "where the server listens decides nothing",
    "port": "where the server listens decides nothing",
    "api-key": "who may ask decides nothing",
    "served-model-name": "a name decides nothing",
    "trust-remote-code": "where code comes from decides nothing",
    "master-*": "nodes follow from the system",
    "nnodes": "nodes follow from the system",
    "node-rank": "nodes follow from the system",
    "*log*": "logging decides nothing here",
    "tokenizer*": "tokenizing is not priced",
    "*": "a vLLM option that is not priced",
}


def read(files: Files) -> Imported:
    """The first `vllm serve` among the files, and the load that a `vllm bench serve` beside it describes."""
    found = commands_of(files, *PROGRAMS)
    if found:
        script, words = found[0]
        arguments = read_arguments(_levels(words), options(ID))
        replicas = replicas_in(script)
    else:
        arguments, replicas = _configured(files), 1
    reader = reader_of(arguments, next(iter(files), ""))
    _merge_config(reader, files)
    given = str(reader.take("model", default="") or next(iter(arguments.words), ""))
    plan = read_engine(reader) | {"engine": ID}
    dp = reader.degree("data-parallel-size")
    model = model_named(reader, files, given)
    together = plan.get("ep", 1) > 1 or (model is not None and has_experts(MODELS[model]))
    plan["serving"] = plan.get("serving", {}) | _fleet(together, dp, replicas)
    plan["dp"] = dp * replicas
    return imported(ID, files, reader, plan, model, APART)


def _levels(words: Iterable[str]) -> Iterator[str]:
    """`-O3` as the option that vLLM makes of it."""
    for word in words:
        if re.fullmatch(r"-O[0-3]", word):
            yield f"--optimization-level={word[2]}"
        else:
            yield word


def _fleet(together: bool, dp: int, replicas: int) -> dict[str, Any]:
    """Ranks of data that share experts step together; others are replicas behind the server's own balancer."""
    if together:
        return {"replicas": replicas, "data_parallel_size": dp}
    if dp > 1:
        return {"replicas": dp * replicas, "router": "least-loaded"}
    return {"replicas": replicas}


def read_engine(reader: OptionReader) -> dict[str, Any]:
    """What a vLLM engine is told: mesh, formats, knobs."""
    plan: dict[str, Any] = {"tp": reader.degree("tensor-parallel-size"), "pp": reader.degree("pipeline-parallel-size")}
    if reader.switch("enable-expert-parallel", default=False):
        plan["ep"] = plan["tp"] * reader.degree("data-parallel-size")
    backends = {"deepep": "deepep", "allgather": "all-to-all", "naive": "all-to-all"}
    backend = str(reader.take("all2all-backend", default=""))
    ways = [way for word, way in backends.items() if backend.startswith(word)]
    plan |= {"moe_dispatch": ways[0]} if ways else {}
    plan["precision"] = _precision(reader)
    dashed = {knob: knob.replace("_", "-") for knob in (*NUMBERS, *SWITCHES)}
    numbers = {knob: dashed[knob] for knob in NUMBERS}
    own = take_knobs(reader, numbers, {knob: dashed[knob] for knob in SWITCHES})
    own = {knob: counted(value) for knob, value in own.items()}
    serving: dict[str, Any] = {"vllm": own} if own else {}
    if serving:
        plan["serving"] = serving
    drafts = json_option(reader, "speculative-config")
    if drafts:
        plan["speculation"] = {
            "draft": _drafted(str(drafts.get("method", "ngram"))),
            "draft_tokens": drafts.get("num_speculative_tokens", 1),
        }
    return plan | _graphs(reader)


def counted(value: Any) -> Any:
    """A count as vLLM reads it: small letters are powers of 1000, capitals of 1024; anything else as it stands.

    >>> counted("8k"), counted("25.6k"), counted("8K"), counted("fcfs"), counted(7)
    (8000, 25600, 8192, 'fcfs', 7)
    """
    found = COUNT.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return value
    if found[1]:
        return round(float(found[1]) * 1000 ** (POWERS.index(found[2]) + 1))
    return int(found[3]) * 1024 ** (POWERS.index(found[4].lower()) + 1)


def _drafted(method: str) -> str:
    return "eagle" if method.startswith("eagle") else "mtp" if "mtp" in method else "ngram"


def _graphs(reader: OptionReader) -> dict[str, Any]:
    if reader.switch("enforce-eager", default=False):
        return {"graph": "none", "compiled": False}
    found: dict[str, Any] = {}
    overall = reader.take("optimization-level")
    if overall is not None:
        found |= {"compiled": False, "graph": "none"} if str(overall) == "0" else {"compiled": True}
    settings = json_option(reader, "compilation-config")
    mode = str(settings.get("cudagraph_mode", ""))
    if mode in MODES:
        found["graph"] = MODES[mode]
    level = settings.get("mode", settings.get("level"))
    if level is not None:
        found["compiled"] = level not in (0, "0", "NONE")
    return found


def _precision(reader: OptionReader) -> dict[str, Any]:
    names = {word: name for name, word in DTYPES.items()} | {"half": "fp16", "float": "fp32"}
    wide = reader.word("dtype", among={**names, "auto": "bf16"}, default="bf16")
    found: dict[str, Any] = {"compute": wide, "weights": wide, "activations": wide, "kv": wide}
    method = reader.take("quantization")
    known = {word: means for means, word in ONLINE.items()} | {word: (*two, None) for word, two in STORED.items()}
    if isinstance(method, str) and method in known:
        compute, weights, scaling = known[method]
        found |= {"compute": compute if compute != "bf16" else wide, "weights": weights}
        found |= {"scaling": scaling} if scaling else {}
    elif method is not None:
        reader.taken.discard("quantization")
        reader.assumptions.append(f"quantization {method}: read as {wide}, for its formats are not known here")
    cached = {word: name for name, word in KV_DTYPES.items()} | {"fp8": "fp8-e4m3", "auto": wide}
    kv = reader.take("kv-cache-dtype", default="auto")
    if str(kv) not in cached:
        raise InputError(Problem(path="--kv-cache-dtype", given=repr(kv)[:60], expected=f"one of {', '.join(cached)}"))
    return found | {"kv": cached[str(kv)]}


def _configured(files: Files) -> Arguments:
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
            held = {str(key).replace("_", "-"): value for key, value in flatten(table.data)}
            reader.options = held | reader.options


def _is_config(data: Mapping[str, Any]) -> bool:
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
