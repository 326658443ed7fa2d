"""Turn a serving scenario into the script that starts `vllm serve`, and the script that loads it."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.plan.scenario import Scenario
from ridgeline.targets.decisions import has_experts
from ridgeline.targets.launch import ON_NODE
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say, admitted, exported, gather
from ridgeline.targets.options import options
from ridgeline.targets.serving_decisions import serving_decisions_of
from ridgeline.targets.serving_launch import Launch, launch_script
from ridgeline.targets.serving_load import BENCH, bench_script
from ridgeline.targets.serving_pieces import Replica, common_pieces, model_path, pools_lost, replica_of
from ridgeline.targets.target import Export
from ridgeline.targets.vllm.names import ID
from ridgeline.targets.vllm.write_engine import engine_pieces

RENDEZVOUS = '--nnodes {nodes} --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"'


def write(scenario: Scenario) -> Export:
    """launch.sh and bench.sh."""
    decisions = serving_decisions_of(scenario)
    one = replica_of(scenario)
    found = [*common_pieces(scenario, ID, ID), *engine_pieces(scenario, one), *_fleet(scenario, one), pools_lost()]
    ledger = gather(decisions, admitted(found, options(ID)))
    balanced = joined(scenario, one)
    how = Launch(
        program='exec vllm serve "$MODEL" --host "$HOST" --port "$PORT"',
        arguments={name: value for name, value in ledger.options.items() if name.startswith("--")},
        weights=model_path(scenario),
        replicas=1 if balanced else one.count,
        chips=one.chips,
        nodes=one.nodes,
        rendezvous=RENDEZVOUS.format(nodes=one.nodes),
    )
    title = options(ID).title
    load = bench_script(scenario, ledger.options, title, how.weights)
    return exported(ID, {ON_NODE: launch_script(scenario, how, title), BENCH: load}, ledger)


def joined(scenario: Scenario, one: Replica) -> bool:
    """Whether replicas are ranks of one server, whose front end gives requests to the least loaded.

    Ranks of a mixture of experts would step together, and those of several nodes need a server on each.
    """
    alone = one.dp == 1 and not has_experts(scenario.model)
    fits = one.count * one.chips <= scenario.system.node
    return one.count > 1 and alone and fits and scenario.plan.serving.router == "least-loaded"


def _fleet(scenario: Scenario, one: Replica) -> Iterator[Piece]:
    if joined(scenario, one):
        paths = ("plan.serving.replicas", "plan.serving.router")
        yield Say("--data-parallel-size", one.count, *paths)
        return
    yield Say("REPLICAS", one.count, "plan.serving.replicas")
    why = "replicas are servers of their own, on ports from PORT on: put a router before them"
    yield Lose("plan.serving.router", why, yours=True)
    yield Fixed("plan.serving.router", "round-robin", "one replica")
