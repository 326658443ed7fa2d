"""What SGLang's server, and whatever wraps it, is told of one engine: how it is split, its formats, its scheduler."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.plan.scenario import Scenario
from ridgeline.targets.decisions import has_experts
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say
from ridgeline.targets.serving_pieces import Replica, knobs
from ridgeline.targets.sglang.names import DISPATCH, DTYPES, ID, KV_DTYPES, NUMBERS, ONLINE, SWITCHES


def engine_pieces(scenario: Scenario, one: Replica) -> Iterator[Piece]:
    """Everything that an SGLang engine is told."""
    yield from mesh(scenario, one)
    for part in (_formats, _cache_format, _knobs, _graphs, _speculation):
        yield from part(scenario)


def mesh(scenario: Scenario, one: Replica) -> Iterator[Piece]:
    """`--tp-size` counts all ranks of a stage; with DP attention they form dp groups for attention."""
    yield Say("--tp-size", one.tp * one.dp, "plan.tp")
    yield Say("--pp-size", one.pp, "plan.pp")
    if one.dp > 1:
        yield Say("--dp-size", one.dp, "plan.serving.data_parallel_size", "plan.tp")
        yield Say("--enable-dp-attention", True, "plan.serving.data_parallel_size")
    yield Fixed("plan.serving.data_parallel_size", 1, "one rank of data")
    if not has_experts(scenario.model):
        return
    yield Say("--ep-size", one.ep, "plan.ep")
    yield Lose("plan.etp", "ranks that expert parallelism leaves split the experts")
    way = scenario.plan.switches.moe_dispatch
    if way is not None and way in DISPATCH:
        yield Say("--moe-a2a-backend", DISPATCH[way], "plan.moe_dispatch")
    else:
        yield Lose("plan.moe_dispatch", "tokens are exchanged by collectives, or with DeepEP")


def _formats(scenario: Scenario) -> Iterator[Piece]:
    precision = scenario.plan.precision
    compute, weights, activations = precision.compute.id, precision.weights.id, precision.activations.id
    wide = activations if activations in DTYPES else "bf16"
    method = ONLINE.get((compute, weights))
    yield Say("--dtype", DTYPES[wide], *(["plan.precision.activations"] if wide == activations else []))
    if compute == weights == wide:
        yield Say("--dtype", DTYPES[wide], "plan.precision.compute", "plan.precision.weights")
    elif method is not None:
        yield Say("--quantization", method, "plan.precision.compute", "plan.precision.weights")
    why = "a checkpoint in such a format says so in its config.json, and SGLang reads it there: use one as MODEL"
    for name, value in (("compute", compute), ("weights", weights), ("activations", activations)):
        if value != wide and method is None:
            yield Lose(f"plan.precision.{name}", why)
    yield Lose("plan.precision.scaling", "which values share a scale follows from the method")
    for name in ("compute", "weights", "activations"):
        yield Fixed(f"plan.precision.{name}", wide, "products are multiplied as weights are stored")


def _cache_format(scenario: Scenario) -> Iterator[Piece]:
    kv = scenario.plan.precision.kv.id
    if kv == scenario.plan.precision.activations.id:
        yield Say("--kv-cache-dtype", "auto", "plan.precision.kv")
    elif kv in KV_DTYPES:
        yield Say("--kv-cache-dtype", KV_DTYPES[kv], "plan.precision.kv")
    else:
        yield Lose("plan.precision.kv", f"the cache holds {', '.join(KV_DTYPES)}: written as auto")


def _knobs(scenario: Scenario) -> Iterator[Piece]:
    for name, (value, path) in knobs(scenario, ID).items():
        if name in SWITCHES and value is not True:
            yield Fixed(path, False, "prefixes are kept unless told otherwise")
        elif name in SWITCHES or name in NUMBERS:
            yield Say(f"--{name.replace('_', '-')}", value, path)


def _graphs(scenario: Scenario) -> Iterator[Piece]:
    graph, compiled = scenario.plan.switches.graph, scenario.plan.switches.compiled
    if graph == "none":
        yield Say("--disable-cuda-graph", True, "plan.graph")
    yield Fixed("plan.graph", "full", "decode steps replay graphs")
    if compiled:
        yield Say("--enable-torch-compile", True, "plan.compiled")
    yield Fixed("plan.compiled", False, "not compiled unless told")


def _speculation(scenario: Scenario) -> Iterator[Piece]:
    drafts = scenario.plan.speculation
    if drafts is None:
        return
    path = "plan.speculation"
    words = {"mtp": "EAGLE", "eagle": "EAGLE", "ngram": "NGRAM"}
    yield Say("--speculative-algorithm", words[drafts.draft], f"{path}.draft")
    yield Say("--speculative-num-draft-tokens", drafts.draft_tokens + 1, f"{path}.draft_tokens")
    if drafts.draft != "ngram":
        yield Say("--speculative-num-steps", drafts.draft_tokens, f"{path}.draft_tokens")
        yield Say("--speculative-eagle-topk", 1)
    if drafts.draft == "eagle":
        yield Lose(f"{path}.draft", "its head is a checkpoint of its own: add --speculative-draft-model-path")
