"""What `vllm serve`, and whatever wraps it, is told of one engine: how it is split, its formats, its scheduler."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ridgeline.plan.scenario import Scenario
from ridgeline.targets.decisions import has_experts
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say
from ridgeline.targets.options import options
from ridgeline.targets.serving_formats import (
    COMPUTE,
    SCALING,
    WEIGHTS,
    FormatWords,
    cache_format,
    format_pieces,
    wide_format,
)
from ridgeline.targets.serving_pieces import Replica, knobs
from ridgeline.targets.vllm.names import DTYPES, GRAPHS, ID, KV_DTYPES, NUMBERS, ONLINE, SWITCHES, option

WORDS = FormatWords(
    title="vLLM", dtype="--dtype", dtypes=DTYPES, kv_dtype="--kv-cache-dtype", kv_dtypes=KV_DTYPES
)  # fmt: skip


def engine_pieces(scenario: Scenario, one: Replica) -> Iterator[Piece]:
    """Everything that a vLLM engine is told."""
    yield from mesh(scenario, one)
    for part in (_formats, _knobs, _graphs, _speculation):
        yield from part(scenario)


def mesh(scenario: Scenario, one: Replica) -> Iterator[Piece]:
    """Tensor, pipeline and data ranks; experts go over tensor and data ranks together, or are split like the rest."""
    yield Say("--tensor-parallel-size", one.tp, "plan.tp")
    yield Say("--pipeline-parallel-size", one.pp, "plan.pp")
    if one.dp > 1:
        yield Say("--data-parallel-size", one.dp, "plan.serving.data_parallel_size")
        if not has_experts(scenario.model):
            why = "ranks of a model without experts do not wait for each other: they are replicas"
            yield Lose("plan.serving.data_parallel_size", why)
            yield Lose("plan.serving.replicas", why)
    yield Fixed("plan.serving.data_parallel_size", 1, "one rank of data")
    if not has_experts(scenario.model):
        return
    group = one.tp * one.dp
    if one.ep == group and group > 1:
        yield Say("--enable-expert-parallel", True, "plan.ep")
    elif one.ep > 1:
        yield Say("--enable-expert-parallel", True)
        yield Lose("plan.ep", f"experts go over all {group} ranks of tp x data_parallel_size: written so")
    yield Fixed("plan.ep", 1, "experts are split like every matrix")
    yield Lose("plan.etp", "expert parallelism takes all ranks of tp x data_parallel_size, or none")
    dispatch = {"all-to-all": "allgather_reducescatter", "deepep": "deepep_low_latency"}
    word = dispatch.get(scenario.plan.switches.moe_dispatch or "")
    if word and group > 1:
        yield Say("--all2all-backend", word, "plan.moe_dispatch")
    else:
        yield Lose("plan.moe_dispatch", "tokens are exchanged by all-gather, or with DeepEP")


def _formats(scenario: Scenario) -> Iterator[Piece]:
    """Weights as a checkpoint has them, in one of three formats, or quantised while they are loaded."""
    yield from format_pieces(scenario, WORDS, _quantised(scenario))
    yield from cache_format(scenario, WORDS)


def _quantised(scenario: Scenario) -> Say | None:
    """How weights are narrowed while they are loaded; a method may say which values share a scale."""
    precision = scenario.plan.precision
    formats = precision.compute.id, precision.weights.id
    if wide_format(scenario, WORDS) not in ("bf16", "fp16"):
        return None
    if (*formats, precision.scaling) in ONLINE:
        return Say("--quantization", ONLINE[(*formats, precision.scaling)], COMPUTE, WEIGHTS, SCALING)
    method = ONLINE.get((*formats, None))
    return Say("--quantization", method, COMPUTE, WEIGHTS) if method is not None else None


def _knobs(scenario: Scenario) -> Iterator[Piece]:
    for name, (value, path) in knobs(scenario, ID).items():
        if name in SWITCHES or name in NUMBERS:
            yield Say(option(name), value, path)
    known = options(ID).version
    yield Fixed(
        "plan.serving.vllm.version", known, f"arguments of {known}; the server has the rules of what is installed"
    )


def _graphs(scenario: Scenario) -> Iterator[Piece]:
    """Graphs and compilation as vLLM does unless told; eager means neither."""
    graph, compiled = scenario.plan.switches.graph, scenario.plan.switches.compiled
    if graph == "none" and compiled in (None, False):
        yield Say("--enforce-eager", True, "plan.graph", "plan.compiled")
        return
    settings: dict[str, object] = {}
    if graph is not None:
        settings["cudagraph_mode"] = GRAPHS[graph]
    if compiled is not None:
        settings["mode"] = 3 if compiled else 0
    if settings:
        yield Say("--compilation-config", json.dumps(settings), "plan.graph", "plan.compiled")


def _speculation(scenario: Scenario) -> Iterator[Piece]:
    drafts = scenario.plan.speculation
    if drafts is None:
        return
    said = json.dumps({"method": drafts.draft, "num_speculative_tokens": drafts.draft_tokens})
    path = "plan.speculation"
    yield Say("--speculative-config", said, f"{path}.draft_tokens", f"{path}.draft")
    if drafts.draft == "eagle":
        yield Lose(f"{path}.draft", "its head is a checkpoint of its own: add model to --speculative-config")
