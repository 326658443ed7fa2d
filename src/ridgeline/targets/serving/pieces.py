"""What every export of a serving scenario says alike: the load, the model, the fleet, and one replica's share of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ridgeline.plan.scenario import Scenario, serving
from ridgeline.plan.serving_plan import KNOBS
from ridgeline.targets.decisions import replicas_of
from ridgeline.targets.dialects.verl.names import weights_of
from ridgeline.targets.launchers.launch import nodes_of
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say, habits
from ridgeline.targets.options import options
from ridgeline.targets.serving.load import load_pieces
from ridgeline.targets.vendors import runs_on

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
    chips_per_node = nodes_of(scenario.system)[1]
    return Replica(
        count=replicas_of(scenario),
        tp=mesh.tp,
        pp=mesh.pp,
        ep=mesh.ep,
        dp=serving.data_parallel_size,
        nodes=-(-chips // chips_per_node),
    )


def model_path(scenario: Scenario) -> str:
    """The published weights of a catalog model; empty where there are none."""
    weights_path = weights_of(scenario.model) or ""
    return weights_path if re.fullmatch(r"[\w./-]{1,200}", weights_path) else ""


def common_pieces(scenario: Scenario, target: str, engine: str) -> Iterator[Piece]:
    """The load, the model, and what no engine is told."""
    yield from load_pieces(serving(scenario).workload)
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
    replica = replica_of(scenario)
    yield chips_taken(scenario, replica.count * replica.chips)
    yield from habits("serving", "common_pieces")
    for table in KNOBS.kinds:
        if table != knob_table(engine):
            yield Lose(f"plan.serving.{table}.*", "knobs of another engine")


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
    engine_knobs = scenario.plan.serving.knobs
    if engine_knobs is None or KNOBS.key_of(engine_knobs) != knob_table(engine):
        return {}
    values = {field.name: getattr(engine_knobs, field.name) for field in fields(engine_knobs)}
    path = f"plan.serving.{knob_table(engine)}"
    return {name: (value, f"{path}.{name}") for name, value in values.items() if value not in (None, "")}


COMPUTE, WEIGHTS, ACTIVATIONS = (f"plan.precision.{name}" for name in ("compute", "weights", "activations"))
SCALING, KV = "plan.precision.scaling", "plan.precision.kv"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatWords:
    """The words of one engine.

    title      what people call it
    dtype      its option for the format of activations, and that option's word for each of our formats
    kv_dtype   the same of the KV cache
    """

    title: str
    dtype: str
    dtypes: Mapping[str, str]
    kv_dtype: str
    kv_dtypes: Mapping[str, str]


def wide_format(scenario: Scenario, words: FormatWords) -> str:
    """The format that an engine is asked to compute in: that of activations, bf16 where it has no word for it."""
    activations = scenario.plan.precision.activations.id
    return activations if activations in words.dtypes else "bf16"


def format_pieces(scenario: Scenario, words: FormatWords, quantised: Say | None = None) -> Iterator[Piece]:
    """Weights as a checkpoint has them; `quantised` is what is said where the engine narrows them while it loads."""
    precision, wide = scenario.plan.precision, wide_format(scenario, words)
    formats_by_path = {
        COMPUTE: precision.compute.id,
        WEIGHTS: precision.weights.id,
        ACTIVATIONS: precision.activations.id,
    }
    yield Say(words.dtype, words.dtypes[wide], *([ACTIVATIONS] if formats_by_path[ACTIVATIONS] == wide else []))
    if formats_by_path[COMPUTE] == formats_by_path[WEIGHTS] == wide:
        yield Say(words.dtype, words.dtypes[wide], COMPUTE, WEIGHTS)
    elif quantised is not None:
        yield quantised
    else:
        why = f"a checkpoint in such a format says so in its config.json, and {words.title} reads it there: use one"
        for path, value in formats_by_path.items():
            if value != wide:
                yield Lose(path, f"{why} as MODEL", yours=True)
    if quantised is None or SCALING not in quantised.paths:
        yield Lose(SCALING, "which values share a scale follows from the method")
    for path in formats_by_path:
        yield Fixed(path, wide, "products are multiplied as weights are stored")


def cache_format(scenario: Scenario, words: FormatWords) -> Iterator[Piece]:
    """The KV cache in the format of activations, or in one that the engine has a word for."""
    kv = scenario.plan.precision.kv.id
    if kv == scenario.plan.precision.activations.id:
        yield Say(words.kv_dtype, "auto", KV)
    elif kv in words.kv_dtypes:
        yield Say(words.kv_dtype, words.kv_dtypes[kv], KV)
    else:
        yield Lose(KV, f"the cache holds {', '.join(words.kv_dtypes)}: written as auto")


def graph_pieces(scenario: Scenario, *, eager: Say, compiled: Say) -> Iterator[Piece]:
    """How graphs are turned off and compilation on."""
    if scenario.plan.switches.graph == "none":
        yield eager
    yield from habits("serving", "graph_pieces")
    if scenario.plan.switches.compiled:
        yield compiled
