"""Turn a DynamoGraphDeployment, or scripts that start Dynamo's frontend and workers, into settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ridgeline.core.errors import InputError
from ridgeline.targets.command_line import read_arguments
from ridgeline.targets.dynamo.names import FIELDS, ID, MODULES, ROUTERS
from ridgeline.targets.option_reader import OptionReader, flatten, tables
from ridgeline.targets.options import options
from ridgeline.targets.serving_launch import commands_of, replicas_in
from ridgeline.targets.serving_reader import imported, model_named, none_found, reader_of
from ridgeline.targets.sglang.read import read_engine as sglang_engine
from ridgeline.targets.target import Files, Imported
from ridgeline.targets.tensorrt_llm.read import read_engine as tensorrt_engine
from ridgeline.targets.vllm.read import read_engine as vllm_engine

ENGINES = {"vllm": vllm_engine, "sglang": sglang_engine, "tensorrt-llm": tensorrt_engine}
FRONTEND = "dynamo.frontend"
APART = {
    "http-*": "where the frontend listens decides nothing",
    "host": "where the server listens decides nothing",
    "port": "where the server listens decides nothing",
    "kv-transfer-config": "how the cache is moved follows from the system's links",
    "disaggregation-*": "how the cache is moved follows from the system's links",
    "*": "an option that is not priced",
}
AXES = ("tp", "pp", "ep")


def read(files: Files) -> Imported:
    """Frontend and workers, from a deployment where there is one, else from scripts."""
    parts = _deployed(files) or _scripted(files)
    workers = [(module, words, count) for module, words, count in parts if module in MODULES.values()]
    if not workers:
        raise none_found(files, "python3 -m dynamo.vllm, dynamo.sglang or dynamo.trtllm")
    first: OptionReader | None = None
    pools: list[dict[str, Any]] = []
    plan: dict[str, Any] = {}
    given = ""
    for module, words, count in workers:
        reader, own, pool, named = _worker(module, words, count)
        pools.append(pool)
        if first is None:
            first, plan, given = reader, own, named
    assert first is not None
    serving = plan.setdefault("serving", {}) | _fleet(pools)
    router = _router(parts)
    serving |= {"router": router} if router and (serving.get("replicas", 1) > 1 or "pools" in serving) else {}
    plan["serving"] = serving
    plan["dp"] = _ranks(serving)
    return imported(ID, files, first, plan, model_named(first, files, given), APART)


def _worker(module: str, words: list[str], count: int) -> tuple[OptionReader, dict[str, Any], dict[str, Any], str]:
    """The options of one kind of worker: the plan they make, and the pool."""
    engine = next(name for name, wraps in MODULES.items() if wraps == module)
    arguments = read_arguments(words, options(engine), options(ID))
    reader = reader_of(arguments, module)
    fields = reader.take(FIELDS[2:])
    if isinstance(fields, str):
        try:
            held = json.loads(fields)
        except (ValueError, RecursionError):
            held = None
        if isinstance(held, Mapping):
            reader.options |= dict(flatten(held))
    role = str(reader.take("disaggregation-mode", default="both"))
    given = str(reader.take("model", "model-path", default=""))
    plan = ENGINES[engine](reader)
    plan |= {"engine": engine}
    dp = plan.get("serving", {}).pop("data_parallel_size", None) or reader.degree("data-parallel-size")
    plan.pop("dp", None)
    plan.get("serving", {}).pop("replicas", None)
    pool = {"role": role if role in ("prefill", "decode") else "both", "replicas": count, "dp": dp}
    return reader, plan, pool | {axis: plan[axis] for axis in AXES if axis in plan}, given


def _fleet(pools: list[dict[str, Any]]) -> dict[str, Any]:
    """Replicas of one kind, or pools."""
    if len(pools) == 1 and pools[0]["role"] == "both":
        found = {"replicas": pools[0]["replicas"]}
        return found | ({"data_parallel_size": pools[0]["dp"]} if pools[0]["dp"] > 1 else {})
    return {"pools": pools}


def _ranks(serving: Mapping[str, Any]) -> int:
    if "pools" in serving:
        return 1
    return int(serving["replicas"] * serving.get("data_parallel_size", 1))


def _router(parts: list[tuple[str, list[str], int]]) -> str | None:
    for module, words, _ in parts:
        if module == FRONTEND:
            mode = read_arguments(words, options(ID)).options.get("router-mode")
            return {word: name for name, word in ROUTERS.items()}.get(str(mode))
    return None


def _deployed(files: Files) -> list[tuple[str, list[str], int]]:
    """(module, words, replicas) of every component of a deployment."""
    found: list[tuple[str, list[str], int]] = []
    for table in tables(files, ".yaml", ".yml"):
        for part in _components(table.data):
            for container in _containers(part):
                words = [str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ()))]
                if "-m" in words[:-1]:
                    at = words.index("-m") + 1
                    count = part.get("replicas", 1)
                    replicas = count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else 1
                    found.append((words[at], words[at + 1 :], replicas))
    return found


def _components(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    spec = data.get("spec")
    parts = spec.get("components", ()) if isinstance(spec, Mapping) else ()
    return [part for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []


def _containers(part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    at: Any = part
    for key in ("podTemplate", "spec", "containers"):
        at = at.get(key) if isinstance(at, Mapping) else None
    return [one for one in at if isinstance(one, Mapping)] if isinstance(at, list) else []


def _scripted(files: Files) -> list[tuple[str, list[str], int]]:
    found = []
    for module in (FRONTEND, *MODULES.values()):
        found += [(module, words, replicas_in(script)) for script, words in commands_of(files, ("-m", module))]
    return found


def recognises(files: Files) -> bool:
    """A deployment of Dynamo, or a script that starts a worker of it."""
    try:
        parts = _deployed(files) or _scripted(files)
    except InputError:
        return False
    return any(module in (FRONTEND, *MODULES.values()) for module, _, _ in parts)
