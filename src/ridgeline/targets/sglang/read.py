"""Turn a command line of `python -m sglang.launch_server`, alone or in a script, or its YAML file into settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from ridgeline.core.errors import InputError
from ridgeline.targets.command_line import Arguments, read_arguments
from ridgeline.targets.option_reader import OptionReader, tables
from ridgeline.targets.options import options
from ridgeline.targets.serving_launch import commands_of, replicas_in
from ridgeline.targets.serving_reader import imported, model_named, none_found, reader_of, take_knobs
from ridgeline.targets.sglang.names import DISPATCH, DTYPES, ID, KV_DTYPES, NUMBERS, ONLINE, ROUTERS, STORED, SWITCHES
from ridgeline.targets.target import Files, Imported

ROUTED = ("-m", "sglang_router.launch_server")  # replicas behind a router of their own
PROGRAMS = (("-m", "sglang.launch_server"), ("sglang", "serve"), ("launch_server.py",), ROUTED)
POLICIES = {"cache_aware": "prefix-aware", "round_robin": "round-robin", "power_of_two": "least-loaded"}
APART = {
    "host": "where the server listens decides nothing",
    "port": "where the server listens decides nothing",
    "api-key": "who may ask decides nothing",
    "served-model-name": "a name decides nothing",
    "trust-remote-code": "where code comes from decides nothing",
    "nnodes": "nodes follow from the system",
    "node-rank": "nodes follow from the system",
    "dist-init-addr": "nodes follow from the system",
    "*log*": "logging decides nothing here",
    "tokenizer*": "tokenizing is not priced",
    "*": "an SGLang option that is not priced",
}


def read(files: Files) -> Imported:
    """The first SGLang server among the files, and the load that a `vllm bench serve` beside it describes."""
    found = commands_of(files, *PROGRAMS)
    if found:
        script, words = found[0]
        arguments, replicas = read_arguments(words, options(ID)), replicas_in(script)
    else:
        arguments, replicas = _configured(files), 1
    reader = reader_of(arguments, next(iter(files), ""))
    given = str(reader.take("model-path", default="") or next(iter(arguments.words), ""))
    plan = read_engine(reader, replicas)
    routed = commands_of(files, ROUTED)
    if routed:
        plan["serving"]["router"] = _policy(reader, routed[0][1])
    return imported(ID, files, reader, plan, model_named(reader, files, given), APART)


def _policy(reader: OptionReader, words: Sequence[str]) -> str:
    """How SGLang's router deals requests: by what a replica has cached, unless told."""
    said = dict(pairwise(words)).get("--router-policy", "cache_aware")
    if said not in POLICIES:
        reader.assumptions.append(f"router-policy {said[:40]}: read as cache_aware")
    return POLICIES.get(said, "prefix-aware")


def read_engine(reader: OptionReader, replicas: int = 1) -> dict[str, Any]:
    """What an SGLang engine is told: mesh, formats, knobs, and replicas behind its own controller."""
    ranks, dp = reader.degree("tp-size"), reader.degree("dp-size")
    together = reader.switch("enable-dp-attention", default=False)
    plan: dict[str, Any] = {"tp": max(1, ranks // dp) if together else ranks, "pp": reader.degree("pp-size")}
    ep = reader.degree("ep-size")
    plan |= {"ep": ep} if ep > 1 else {}
    way = {word: name for name, word in DISPATCH.items()}.get(str(reader.take("moe-a2a-backend", default="")))
    plan |= {"moe_dispatch": way} if way and ep > 1 else {}
    plan |= {"precision": _precision(reader), "engine": ID}
    numbers = {knob: knob.replace("_", "-") for knob in NUMBERS}
    own = take_knobs(reader, numbers, {knob: knob.replace("_", "-") for knob in SWITCHES})
    serving: dict[str, Any] = {"sglang": own} if own else {}
    serving["replicas"] = replicas if together else dp * replicas
    if together:
        serving["data_parallel_size"] = dp
    router = {word: name for name, word in ROUTERS.items()}.get(str(reader.take("load-balance-method", default="")))
    serving |= {"router": router} if router else {}
    drafts = reader.take("speculative-algorithm")
    if drafts is not None:
        tokens = reader.count("speculative-num-steps") or (reader.count("speculative-num-draft-tokens") or 2) - 1
        reader.take("speculative-num-draft-tokens")
        reader.take("speculative-eagle-topk")
        kind = "ngram" if str(drafts).upper() == "NGRAM" else "mtp"
        plan["speculation"] = {"draft": kind, "draft_tokens": max(1, tokens)}
    plan |= {"serving": serving, "dp": dp * replicas}
    if reader.switch("disable-cuda-graph", default=False):
        plan["graph"] = "none"
    if reader.switch("enable-torch-compile", default=False):
        plan["compiled"] = True
    return plan


def _precision(reader: OptionReader) -> dict[str, Any]:
    names = {word: name for name, word in DTYPES.items()} | {"half": "fp16", "float": "fp32"}
    wide = reader.word("dtype", among={**names, "auto": "bf16"}, default="bf16")
    found: dict[str, Any] = {"compute": wide, "weights": wide, "activations": wide}
    method = reader.take("quantization")
    known = {word: means for means, word in ONLINE.items()} | STORED
    if isinstance(method, str) and method in known:
        found |= {"compute": known[method][0], "weights": known[method][1]}
    elif method is not None:
        reader.taken.discard("quantization")
        reader.assumptions.append(f"quantization {method}: read as {wide}, for its formats are not known here")
    cached = {word: name for name, word in KV_DTYPES.items()} | {"bfloat16": "bf16", "auto": wide}
    return found | {"kv": reader.word("kv-cache-dtype", among=cached, default=wide)}


def _configured(files: Files) -> Arguments:
    for table in tables(files, ".yaml", ".yml"):
        if _is_config(table.data):
            return Arguments(options={str(key).replace("_", "-"): value for key, value in table.data.items()})
    raise none_found(files, "sglang.launch_server")


def _is_config(data: Mapping[str, Any]) -> bool:
    keys = {str(key).replace("_", "-") for key in data}
    return bool(keys & {"mem-fraction-static", "chunked-prefill-size", "max-running-requests", "tp-size"})


def recognises(files: Files) -> bool:
    """A command that runs SGLang's server, or a YAML file of its options."""
    try:
        return bool(commands_of(files, *PROGRAMS)) or any(
            _is_config(table.data) for table in tables(files, ".yaml", ".yml")
        )
    except InputError:
        return False
