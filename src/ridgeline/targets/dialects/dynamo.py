"""Dynamo: a deployment of a frontend and workers, their scripts, and such files read back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, not_among
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.decisions import serving_decisions_of
from ridgeline.targets.dialects import sglang, tensorrt_llm, vllm
from ridgeline.targets.imports.option_reader import (
    OptionReader,
    false_where_unreadable,
    flatten,
    nest_options,
    read_arguments,
    tables,
)
from ridgeline.targets.launchers.launch import ON_NODE, comment, header, nodes_of
from ridgeline.targets.ledger import Lose, Piece, Say, admit_options, export_of, gather, lose
from ridgeline.targets.options import options
from ridgeline.targets.serving.engine import (
    EngineSplit,
    chips_taken,
    common_pieces,
    imported_server,
    model_named,
    model_path,
    none_found,
    reader_of,
    replica_of,
)
from ridgeline.targets.serving.scripts import (
    BENCH,
    ServerLaunch,
    bench_script,
    commands_of,
    launch_script,
    replicas_in,
    words_of,
)
from ridgeline.targets.tables import words as table_words
from ridgeline.targets.target import Export, Files, Imported
from ridgeline.targets.yaml_text import yaml_text

ID = "dynamo"
FILE = "deployment.yaml"

MODULES = {"vllm": "dynamo.vllm", "sglang": "dynamo.sglang", "tensorrt-llm": "dynamo.trtllm"}
RUNTIMES = {"vllm": "vllm-runtime", "sglang": "sglang-runtime", "tensorrt-llm": "tensorrtllm-runtime"}
MODEL_OPTION = {"vllm": "--model", "sglang": "--model-path", "tensorrt-llm": "--model"}
ROUTERS = {"round-robin": "round-robin", "least-loaded": "least-loaded", "prefix-aware": "kv"}
FIELDS = "--override-engine-args"  # of a TensorRT-LLM worker: the fields of its YAML as a JSON object
KINDS = {"both": "worker", "prefill": "prefill", "decode": "decode"}
WRITERS = {"vllm": vllm.engine_pieces, "sglang": sglang.engine_pieces, "tensorrt-llm": tensorrt_llm.engine_pieces}
READERS = {"vllm": vllm.read_engine, "sglang": sglang.read_engine, "tensorrt-llm": tensorrt_llm.read_engine}
TRANSFER = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
FRONTEND = "dynamo.frontend"
APART = table_words("dynamo", "apart")
AXES = ("tp", "pp", "ep")


def write(scenario: Scenario) -> Export:
    """deployment.yaml, the scripts of frontend and workers, and bench.sh."""
    engine = scenario.plan.engine
    decisions = serving_decisions_of(scenario)
    if engine not in WRITERS:
        raise InputError(not_among("plan.engine", engine, WRITERS, "Dynamo wraps one of these"))
    workers = workers_of(scenario)
    replica = next(iter(workers.values()))
    pieces = [*common_pieces(scenario, ID, engine), *_engine(scenario, engine, replica), *_fleet(scenario)]
    ledger = gather(decisions, pieces)
    title = options(ID).title
    router = {"--router-mode": ROUTERS[scenario.plan.serving.router]}
    arguments = {name: arguments_of(scenario, engine, name, worker) for name, worker in workers.items()}
    files = {FILE: comment(header(scenario, title)) + yaml_text(_deployment(scenario, router, workers, arguments))}
    program = 'exec python3 -m dynamo.frontend --http-host "$HOST" --http-port "$PORT"'
    front = ServerLaunch(program=program, arguments=router, weights=model_path(scenario), replicas=1, chips=1)
    files[ON_NODE] = launch_script(scenario, front, title)
    for name, worker in workers.items():
        files[f"{name}.sh"] = launch_script(
            scenario,
            (
                ServerLaunch(
                    program=f'exec python3 -m {MODULES[engine]} {MODEL_OPTION[engine]} "$MODEL"',
                    arguments=arguments[name],
                    weights=model_path(scenario),
                    replicas=worker.count,
                    chips=worker.chips,
                    nodes=worker.nodes,
                    rendezvous=f'--nnodes {worker.nodes} --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR"',
                )
            ),
            title,
        )
    files[BENCH] = bench_script(scenario, ledger.options, title, model_path(scenario))
    return export_of(ID, files, ledger)


def workers_of(scenario: Scenario) -> Mapping[str, EngineSplit]:
    """Every kind of worker by name."""
    pools, mesh = scenario.plan.serving.pools, scenario.plan.mesh
    if not pools:
        return {"worker": replica_of(scenario)}
    workers: dict[str, EngineSplit] = {}
    chips_per_node = nodes_of(scenario.system)[1]
    for pool in pools:
        tp, pp, ep = pool.tp or mesh.tp, pool.pp or mesh.pp, pool.ep or mesh.ep
        name = KINDS[pool.role]
        name = name if name not in workers else f"{name}-{len(workers)}"
        nodes = -(-tp * pp * pool.dp // chips_per_node)
        workers[name] = EngineSplit(count=pool.replicas, tp=tp, pp=pp, ep=ep, dp=pool.dp, nodes=nodes)
    return workers


def _engine(scenario: Scenario, engine: str, one: EngineSplit) -> Iterator[Piece]:
    """What every worker is told; how each pool is split is said of the pool."""
    yield from admit_options(WRITERS[engine](scenario, one), options(engine))
    for number, worker in enumerate(workers_of(scenario).values() if scenario.plan.serving.pools else ()):
        if engine == "tensorrt-llm" and worker.dp > 1 and worker.tp > 1:
            why = f"attention DP goes over all ranks: written with {worker.tp * worker.dp} of them, tp 1"
            yield from lose(why, *(f"plan.serving.pools.{number}.{field}" for field in ("tp", "dp")))
        for field in ("role", "replicas", "tp", "pp", "ep", "dp"):
            yield Say(f"pool {number}", number, f"plan.serving.pools.{number}.{field}")
        yield Lose(f"plan.serving.pools.{number}.system", "which nodes a pod runs on is said by selectors of yours")


def _fleet(scenario: Scenario) -> Iterator[Piece]:
    yield Say("--router-mode", ROUTERS[scenario.plan.serving.router], "plan.serving.router")
    if not scenario.plan.serving.pools:
        yield Say("replicas", replica_of(scenario).count, "plan.serving.replicas")
    else:
        chips = sum(worker.count * worker.chips for worker in workers_of(scenario).values())
        yield chips_taken(scenario, chips)


def arguments_of(scenario: Scenario, engine: str, name: str, worker: EngineSplit) -> JsonObject:
    """The options of a worker."""
    options_written = gather({}, admit_options(WRITERS[engine](scenario, worker), options(engine))).options
    arguments: JsonObject = dict(options_written)
    if engine == "tensorrt-llm":
        arguments = {FIELDS: json.dumps(nest_options(options_written))}
    role = name.partition("-")[0]
    if role != "worker":
        arguments["--disaggregation-mode"] = role
        if engine == "vllm":
            arguments["--kv-transfer-config"] = TRANSFER
        if engine == "sglang":
            arguments["--disaggregation-transfer-backend"] = "nixl"
    return arguments


def _deployment(
    scenario: Scenario, router: JsonMapping, workers: Mapping[str, EngineSplit], arguments: Mapping[str, JsonObject]
) -> JsonObject:
    engine = scenario.plan.engine
    image = f"nvcr.io/nvidia/ai-dynamo/{RUNTIMES[engine]}:{options(ID).version}"
    front = {"name": "main", "image": image, "command": ["python3", "-m", "dynamo.frontend"], "args": _flat(router)}
    parts: list[JsonObject] = [_component("Frontend", "frontend", 1, front)]
    weights = model_path(scenario) or "MODEL"
    for name, worker in workers.items():
        container: JsonObject = {
            "name": "main",
            "image": image,
            "command": ["python3", "-m", MODULES[engine]],
            "args": _flat({MODEL_OPTION[engine]: weights, **arguments[name]}),
        }
        container["resources"] = {"limits": {"nvidia.com/gpu": str(-(-worker.chips // worker.nodes))}}
        part = _component(name, name.partition("-")[0], worker.count, container)
        parts.append(part | ({"multinode": {"nodeCount": worker.nodes}} if worker.nodes > 1 else {}))
    name = re.sub(r"[^a-z0-9-]+", "-", (scenario.name or scenario.model.id).lower())[:50].strip("-") or "ridgeline"
    return {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": name},
        "spec": {"components": parts},
    }


def _component(name: str, kind: str, replicas: int, container: JsonObject) -> JsonObject:
    return {"name": name, "type": kind, "replicas": replicas, "podTemplate": {"spec": {"containers": [container]}}}


def _flat(arguments: JsonMapping) -> list[str]:
    return [word for option, value in arguments.items() for word in words_of(option, value)]


def read(files: Files) -> Imported:
    """Frontend and workers, from a deployment where there is one, else from scripts."""
    parts = _deployment_parts(files) or _script_parts(files)
    workers = [(module, words, count) for module, words, count in parts if module in MODULES.values()]
    if not workers:
        raise none_found(files, "python3 -m dynamo.vllm, dynamo.sglang or dynamo.trtllm")
    workers_read = [_read_worker(*worker) for worker in workers]
    reader, plan, _, model_given = workers_read[0]
    pools = [pool for _, _, pool, _ in workers_read]
    serving = plan.get("serving", {})
    if len(pools) == 1 and pools[0]["role"] == "both":
        serving |= {"replicas": pools[0]["replicas"]}
        serving |= {"data_parallel_size": pools[0]["dp"]} if pools[0]["dp"] > 1 else {}
    else:
        serving |= {"pools": pools}
    modes = [read_arguments(words, options(ID)).options.get("router-mode") for at, words, _ in parts if at == FRONTEND]
    router = {word: name for name, word in ROUTERS.items()}.get(str(modes[0])) if modes else None
    serving |= {"router": router} if router and (serving.get("replicas", 1) > 1 or "pools" in serving) else {}
    plan["serving"] = serving
    plan["dp"] = 1 if "pools" in serving else int(serving["replicas"] * serving.get("data_parallel_size", 1))
    return imported_server(ID, files, reader, plan, model_named(reader, files, model_given), APART)


def _read_worker(module: str, words: list[str], count: int) -> tuple[OptionReader, JsonObject, JsonObject, str]:
    """The options of one kind of worker: the plan they make, and the pool."""
    engine = next(name for name, wraps in MODULES.items() if wraps == module)
    reader = reader_of(read_arguments(words, options(engine), options(ID)), module)
    fields = reader.take(FIELDS[2:])
    with suppress(ValueError, RecursionError):
        fields_read = json.loads(fields) if isinstance(fields, str) else None
        reader.options |= dict(flatten(fields_read)) if isinstance(fields_read, Mapping) else {}
    role = str(reader.take("disaggregation-mode", default="both"))
    model_given = str(reader.take("model", "model-path", default=""))
    plan = READERS[engine](reader)
    plan |= {"engine": engine}
    dp = plan.get("serving", {}).pop("data_parallel_size", None) or reader.degree("data-parallel-size")
    plan.pop("dp", None)
    plan.get("serving", {}).pop("replicas", None)
    pool = {"role": role if role in ("prefill", "decode") else "both", "replicas": count, "dp": dp}
    return reader, plan, pool | {axis: plan[axis] for axis in AXES if axis in plan}, model_given


def _deployment_parts(files: Files) -> list[tuple[str, list[str], int]]:
    """(module, words, replicas) of every component of a deployment."""
    parts_found: list[tuple[str, list[str], int]] = []
    for table in tables(files, ".yaml", ".yml"):
        for part in _tables_at(table.data, "spec", "components"):
            for container in _tables_at(part, "podTemplate", "spec", "containers"):
                words = [str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ()))]
                if "-m" in words[:-1]:
                    at = words.index("-m") + 1
                    count = part.get("replicas", 1)
                    replicas = count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else 1
                    parts_found.append((words[at], words[at + 1 :], replicas))
    return parts_found


def _tables_at(table: object, *keys: str) -> list[JsonMapping]:
    for key in keys:
        table = table.get(key) if isinstance(table, Mapping) else None
    return [part for part in table if isinstance(part, Mapping)] if isinstance(table, list) else []


def _script_parts(files: Files) -> list[tuple[str, list[str], int]]:
    parts_found = []
    for module in (FRONTEND, *MODULES.values()):
        parts_found += [(module, words, replicas_in(script)) for script, words in commands_of(files, ("-m", module))]
    return parts_found


@false_where_unreadable
def recognises(files: Files) -> bool:
    """A deployment of Dynamo, or a script that starts a worker of it."""
    parts = _deployment_parts(files) or _script_parts(files)
    return any(module in (FRONTEND, *MODULES.values()) for module, _, _ in parts)
