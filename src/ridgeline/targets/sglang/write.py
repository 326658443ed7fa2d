"""Turn a serving scenario into the script that starts SGLang's server, and the script that loads it."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.plan.scenario import Scenario
from ridgeline.targets.launch import ON_NODE
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say, admitted, exported, gather
from ridgeline.targets.options import options
from ridgeline.targets.serving_decisions import serving_decisions_of
from ridgeline.targets.serving_launch import Launch, launch_script
from ridgeline.targets.serving_load import BENCH, bench_script
from ridgeline.targets.serving_pieces import Replica, common_pieces, model_path, pools_lost, replica_of
from ridgeline.targets.sglang.names import ID, ROUTERS
from ridgeline.targets.sglang.write_engine import engine_pieces
from ridgeline.targets.target import Export

RENDEZVOUS = '--nnodes {nodes} --node-rank "$NODE_RANK" --dist-init-addr "$MASTER_ADDR:$MASTER_PORT"'


def write(scenario: Scenario) -> Export:
    """launch.sh and bench.sh."""
    decisions = serving_decisions_of(scenario)
    one = replica_of(scenario)
    found = [*common_pieces(scenario, ID, ID), *engine_pieces(scenario, one), *_fleet(scenario, one), pools_lost()]
    ledger = gather(decisions, admitted(found, options(ID)))
    how = Launch(
        program='exec python3 -m sglang.launch_server --model-path "$MODEL" --host "$HOST" --port "$PORT"',
        arguments={name: value for name, value in ledger.options.items() if name.startswith("--")},
        weights=model_path(scenario),
        replicas=1 if joined(scenario, one) else one.count,
        chips=one.chips,
        nodes=one.nodes,
        rendezvous=RENDEZVOUS.format(nodes=one.nodes),
    )
    title = options(ID).title
    load = bench_script(scenario, ledger.options, title, how.weights)
    return exported(ID, {ON_NODE: launch_script(scenario, how, title), BENCH: load}, ledger)


def joined(scenario: Scenario, one: Replica) -> bool:
    """Whether replicas are data-parallel engines behind the server's own controller: on one node, dealt in turn."""
    fits = one.count * one.chips <= scenario.system.node
    return one.count > 1 and one.dp == 1 and fits and scenario.plan.serving.router in ROUTERS


def _fleet(scenario: Scenario, one: Replica) -> Iterator[Piece]:
    if joined(scenario, one):
        yield Say("--dp-size", one.count, "plan.serving.replicas")
        yield Say("--load-balance-method", ROUTERS[scenario.plan.serving.router], "plan.serving.router")
        return
    yield Say("REPLICAS", one.count, "plan.serving.replicas")
    if one.count > 1:
        why = "replicas are servers of their own, on ports from PORT on: put a router (sglang_router) before them"
        yield Lose("plan.serving.router", why, yours=True)
    yield Fixed("plan.serving.router", "round-robin", "one replica")
