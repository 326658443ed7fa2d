"""Turn a serving scenario into a Dynamo deployment: a frontend that routes, and workers of one engine.

`deployment.yaml` is what Dynamo's operator takes on Kubernetes (DynamoGraphDeployment); `launch.sh` starts the frontend
and `worker.sh` (or `prefill.sh` and `decode.sh`) one worker on machines without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ridgeline.core.errors import InputError, not_among
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.dynamo.names import FIELDS, FILE, ID, KINDS, MODEL_OPTION, MODULES, ROUTERS, RUNTIMES
from ridgeline.targets.launch import ON_NODE, comment, header, nodes_of
from ridgeline.targets.ledger import Lose, Piece, Say, admitted, exported, gather
from ridgeline.targets.option_reader import nested
from ridgeline.targets.options import options
from ridgeline.targets.serving_decisions import serving_decisions_of
from ridgeline.targets.serving_launch import Launch, launch_script
from ridgeline.targets.serving_load import BENCH, bench_script
from ridgeline.targets.serving_pieces import Replica, chips_taken, common_pieces, model_path, replica_of
from ridgeline.targets.sglang.write_engine import engine_pieces as sglang_pieces
from ridgeline.targets.target import Export
from ridgeline.targets.tensorrt_llm.write_engine import engine_pieces as tensorrt_pieces
from ridgeline.targets.vllm.write_engine import engine_pieces as vllm_pieces
from ridgeline.targets.yaml_text import yaml_text

ENGINES = {"vllm": vllm_pieces, "sglang": sglang_pieces, "tensorrt-llm": tensorrt_pieces}
TRANSFER = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'


def write(scenario: Scenario) -> Export:
    """deployment.yaml, the scripts of frontend and workers, and bench.sh."""
    engine = scenario.plan.engine
    decisions = serving_decisions_of(scenario)
    if engine not in ENGINES:
        raise InputError(not_among("plan.engine", engine, ENGINES, "Dynamo wraps one of these"))
    workers = workers_of(scenario)
    one = next(iter(workers.values()))
    pieces = [*common_pieces(scenario, ID, engine), *_engine(scenario, engine, one), *_fleet(scenario)]
    ledger = gather(decisions, pieces)
    title = options(ID).title
    router = {"--router-mode": ROUTERS[scenario.plan.serving.router]}
    arguments = {name: arguments_of(scenario, engine, name, worker) for name, worker in workers.items()}
    files = {FILE: comment(header(scenario, title)) + yaml_text(_deployment(scenario, router, workers, arguments))}
    files[ON_NODE] = launch_script(scenario, _frontend(scenario, router), title)
    for name, worker in workers.items():
        how = _worker(scenario, engine, worker, arguments[name])
        files[f"{name}.sh"] = launch_script(scenario, how, title)
    files[BENCH] = bench_script(scenario, ledger.options, title, model_path(scenario))
    return exported(ID, files, ledger)


def workers_of(scenario: Scenario) -> Mapping[str, Replica]:
    """Every kind of worker by name."""
    pools, mesh = scenario.plan.serving.pools, scenario.plan.mesh
    if not pools:
        return {"worker": replica_of(scenario)}
    found: dict[str, Replica] = {}
    each = nodes_of(scenario.system)[1]
    for pool in pools:
        tp, pp, ep = pool.tp or mesh.tp, pool.pp or mesh.pp, pool.ep or mesh.ep
        name = KINDS[pool.role]
        name = name if name not in found else f"{name}-{len(found)}"
        nodes = -(-tp * pp * pool.dp // each)
        found[name] = Replica(count=pool.replicas, tp=tp, pp=pp, ep=ep, dp=pool.dp, nodes=nodes)
    return found


def _engine(scenario: Scenario, engine: str, one: Replica) -> Iterator[Piece]:
    """What every worker is told; how each pool is split is said of the pool."""
    yield from _admitted(scenario, engine, one)
    for number, worker in enumerate(workers_of(scenario).values() if scenario.plan.serving.pools else ()):
        if engine == "tensorrt-llm" and worker.dp > 1 and worker.tp > 1:
            for field in ("tp", "dp"):
                why = f"attention DP goes over all ranks: written with {worker.tp * worker.dp} of them, tp 1"
                yield Lose(f"plan.serving.pools.{number}.{field}", why)
        for field in ("role", "replicas", "tp", "pp", "ep", "dp"):
            yield Say(f"pool {number}", number, f"plan.serving.pools.{number}.{field}")
        yield Lose(f"plan.serving.pools.{number}.system", "which nodes a pod runs on is said by selectors of yours")


def _admitted(scenario: Scenario, engine: str, one: Replica) -> Iterator[Piece]:
    found = ENGINES[engine](scenario, one)
    return admitted(found, options(engine))


def _fleet(scenario: Scenario) -> Iterator[Piece]:
    yield Say("--router-mode", ROUTERS[scenario.plan.serving.router], "plan.serving.router")
    if not scenario.plan.serving.pools:
        yield Say("replicas", replica_of(scenario).count, "plan.serving.replicas")
    else:
        chips = sum(worker.count * worker.chips for worker in workers_of(scenario).values())
        yield chips_taken(scenario, chips)


def arguments_of(scenario: Scenario, engine: str, name: str, worker: Replica) -> dict[str, Any]:
    """The options of a worker."""
    found = gather({}, _admitted(scenario, engine, worker)).options
    if engine == "tensorrt-llm":
        arguments: dict[str, Any] = {FIELDS: json.dumps(nested(found))}
    else:
        arguments = dict(found)
    role = name.partition("-")[0]
    if role != "worker":
        arguments["--disaggregation-mode"] = role
        if engine == "vllm":
            arguments["--kv-transfer-config"] = TRANSFER
        if engine == "sglang":
            arguments["--disaggregation-transfer-backend"] = "nixl"
    return arguments


def _frontend(scenario: Scenario, router: Mapping[str, Any]) -> Launch:
    program = 'exec python3 -m dynamo.frontend --http-host "$HOST" --http-port "$PORT"'
    return Launch(program=program, arguments=router, weights=model_path(scenario), replicas=1, chips=1)


def _worker(scenario: Scenario, engine: str, worker: Replica, arguments: Mapping[str, Any]) -> Launch:
    return Launch(
        program=f'exec python3 -m {MODULES[engine]} {MODEL_OPTION[engine]} "$MODEL"',
        arguments=arguments,
        weights=model_path(scenario),
        replicas=worker.count,
        chips=worker.chips,
        nodes=worker.nodes,
        rendezvous=f'--nnodes {worker.nodes} --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR"',
    )


def _deployment(
    scenario: Scenario,
    router: Mapping[str, Any],
    workers: Mapping[str, Replica],
    arguments: Mapping[str, dict[str, Any]],
) -> dict[str, Any]:
    """A DynamoGraphDeployment."""
    engine = scenario.plan.engine
    image = f"nvcr.io/nvidia/ai-dynamo/{RUNTIMES[engine]}:{options(ID).version}"
    front = {"name": "main", "image": image, "command": ["python3", "-m", "dynamo.frontend"], "args": _flat(router)}
    parts: list[dict[str, Any]] = [_component("Frontend", "frontend", 1, front)]
    weights = model_path(scenario) or "MODEL"
    for name, worker in workers.items():
        own = {MODEL_OPTION[engine]: weights, **arguments[name]}
        container: dict[str, Any] = {
            "name": "main",
            "image": image,
            "command": ["python3", "-m", MODULES[engine]],
            "args": _flat(own),
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


def _component(name: str, kind: str, replicas: int, container: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "type": kind, "replicas": replicas, "podTemplate": {"spec": {"containers": [container]}}}


def _flat(arguments: Mapping[str, Any]) -> list[str]:
    """Options as plain words."""
    found: list[str] = []
    for option, value in arguments.items():
        if isinstance(value, bool):
            found.append(option if value else f"--no-{option[2:]}")
        else:
            values = value if isinstance(value, tuple) else (value,)
            found += [option, *(f"{part:g}" if isinstance(part, float) else str(part) for part in values)]
    return found
