"""What every export of a serving scenario says alike: the load, the model, the fleet, and one replica's share of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ridgeline.plan.scenario import Scenario
from ridgeline.plan.serve import Serve
from ridgeline.targets.launch import nodes_of
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say
from ridgeline.targets.options import options
from ridgeline.targets.serving_decisions import replicas_of
from ridgeline.targets.serving_load import load_pieces
from ridgeline.targets.vendors import runs_on
from ridgeline.targets.verl.names import weights_of

TABLES = ("vllm", "sglang", "static", "tensorrt_llm")  # knobs of one engine each
MODEL = "MODEL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """How one engine is split: data-parallel ranks step together; `count` of them serve."""

    count: int
    tp: int
    pp: int
    ep: int
    dp: int
    nodes: int = 1

    @property
    def chips(self) -> int:
        return self.tp * self.pp * self.dp


def replica_of(scenario: Scenario) -> Replica:
    """The replicas of a scenario without pools of their own."""
    mesh, serving = scenario.plan.mesh, scenario.plan.serving
    chips = mesh.tp * mesh.pp * serving.data_parallel_size
    each = nodes_of(scenario.system)[1]
    return Replica(
        count=replicas_of(scenario),
        tp=mesh.tp,
        pp=mesh.pp,
        ep=mesh.ep,
        dp=serving.data_parallel_size,
        nodes=-(-chips // each),
    )


def model_path(scenario: Scenario) -> str:
    """The published weights of a catalog model; empty where there are none."""
    found = weights_of(scenario.model) or ""
    return found if re.fullmatch(r"[\w./-]{1,200}", found) else ""


def common_pieces(scenario: Scenario, target: str, engine: str) -> Iterator[Piece]:
    """The load, the model, and what no engine is told."""
    assert isinstance(scenario.workload, Serve)
    yield from load_pieces(scenario.workload)
    yield from runs_on(scenario, target)
    yield Fixed("plan.engine", engine, f"what runs it is {options(engine).target}")
    weights = model_path(scenario)
    if weights:
        yield Say(MODEL, weights, "model.*")
        if scenario.model.vision is not None:
            yield Lose("model.vision*", "requests of text alone do not run the encoder")
    else:
        yield Lose(
            "model.*", "no published weights are known of it: set MODEL to a folder whose config.json says the same"
        )
    one = replica_of(scenario)
    yield chips_taken(scenario, one.count * one.chips)
    yield Lose("plan.serving.autoscale*", "replicas are started by hand: an autoscaler is software of its own")
    for path in ("failures*", "mtbf", "restart"):
        yield Lose(f"plan.serving.{path}", "failures happen; nobody asks for them")
    for table in TABLES:
        if table != knob_table(engine):
            yield Lose(f"plan.serving.{table}.*", "knobs of another engine")
    yield Lose("plan.speculation.acceptance", "how often drafts are right is a matter of model and text")
    yield Fixed("plan.attention", "flash", "attention is a fused kernel")


def chips_taken(scenario: Scenario, taken: int) -> Fixed:
    """Replicas say how many chips they take; the others stay free, which nobody has to be told."""
    chips = scenario.system.chips
    return Fixed(
        "system.chips", max(chips, taken), f"{taken} chips that the replicas take" + " of it" * (taken < chips)
    )


def pools_lost() -> Lose:
    """For an engine whose own server is one kind of replica."""
    return Lose("plan.serving.pools*", "pools of prefill and decode need a router between them: export to dynamo")


def knob_table(engine: str) -> str:
    """The table of a plan that holds an engine's knobs."""
    return engine.replace("-", "_")


def knobs(scenario: Scenario, engine: str) -> dict[str, tuple[Any, str]]:
    """What the plan sets, by the engine's own name: the value, and the decision it is."""
    own = getattr(scenario.plan.serving, knob_table(engine), None)
    values = {name: getattr(own, name) for name in getattr(own, "__slots__", ())}
    path = f"plan.serving.{knob_table(engine)}"
    return {name: (value, f"{path}.{name}") for name, value in values.items() if value not in (None, "")}
