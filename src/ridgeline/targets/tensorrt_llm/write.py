"""Turn a serving scenario into the YAML file and the script that start `trtllm-serve`, and the script that loads it."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.plan.scenario import Scenario
from ridgeline.targets.launch import ON_NODE, comment, header
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say, exported, gather
from ridgeline.targets.option_reader import nested
from ridgeline.targets.options import options
from ridgeline.targets.serving_decisions import serving_decisions_of
from ridgeline.targets.serving_launch import Launch, launch_script
from ridgeline.targets.serving_load import BENCH, PREFIX, bench_script
from ridgeline.targets.serving_pieces import MODEL, Replica, common_pieces, model_path, pools_lost, replica_of
from ridgeline.targets.target import Export
from ridgeline.targets.tensorrt_llm.names import FILE, ID
from ridgeline.targets.tensorrt_llm.write_engine import engine_pieces
from ridgeline.targets.yaml_text import yaml_text


def write(scenario: Scenario) -> Export:
    """The YAML file, launch.sh and bench.sh."""
    decisions = serving_decisions_of(scenario)
    one = replica_of(scenario)
    found = [*common_pieces(scenario, ID, ID), *engine_pieces(scenario, one), *_fleet(one), pools_lost()]
    ledger = gather(decisions, found)
    title = options(ID).title
    own = {name: value for name, value in ledger.options.items() if not name.startswith(PREFIX)}
    fields = {name: value for name, value in own.items() if name not in (MODEL, "REPLICAS")}
    how = Launch(
        program=f'exec trtllm-serve "$MODEL" --host "$HOST" --port "$PORT" --config "$(dirname "$0")/{FILE}"',
        arguments={},
        weights=model_path(scenario),
        replicas=one.count,
        chips=one.chips,
        nodes=one.nodes,
        rendezvous="# start it under `srun --mpi=pmix` with a task for each chip",
    )
    return exported(
        ID,
        {
            FILE: comment(header(scenario, title)) + yaml_text(nested(fields)),
            ON_NODE: launch_script(scenario, how, title),
            BENCH: bench_script(scenario, ledger.options, title, how.weights),
        },
        ledger,
    )


def _fleet(one: Replica) -> Iterator[Piece]:
    yield Say("REPLICAS", one.count, "plan.serving.replicas")
    if one.count > 1:
        why = "replicas are servers of their own, on ports from PORT on: put a router before them, or export to dynamo"
        yield Lose("plan.serving.router", why, yours=True)
    yield Fixed("plan.serving.router", "round-robin", "one replica")
