"""What SGLang's server, and whatever wraps it, is told of one engine: how it is split, its formats, its scheduler."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.plan.scenario import Scenario
from ridgeline.targets.decisions import has_experts
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say
from ridgeline.targets.serving_formats import COMPUTE, WEIGHTS, FormatWords, cache_format, format_pieces, graph_pieces
from ridgeline.targets.serving_pieces import Replica, knobs
from ridgeline.targets.sglang.names import DISPATCH, DTYPES, ID, KV_DTYPES, NUMBERS, ONLINE, SWITCHES

WORDS = FormatWords(
    title="SGLang", dtype="--dtype", dtypes=DTYPES, kv_dtype="--kv-cache-dtype", kv_dtypes=KV_DTYPES
)  # fmt: skip


def engine_pieces(scenario: Scenario, one: Replica) -> Iterator[Piece]:
    """Everything that an SGLang engine is told."""
    yield from mesh(scenario, one)
    for part in (_formats, _knobs, _graphs, _speculation):
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
    method = ONLINE.get((precision.compute.id, precision.weights.id))
    quantised = Say("--quantization", method, COMPUTE, WEIGHTS) if method is not None else None
    yield from format_pieces(scenario, WORDS, quantised)
    yield from cache_format(scenario, WORDS)


def _knobs(scenario: Scenario) -> Iterator[Piece]:
    for name, (value, path) in knobs(scenario, ID).items():
        if name in SWITCHES and value is not True:
            yield Fixed(path, False, SWITCHES[name])
        elif name in SWITCHES or name in NUMBERS:
            yield Say(f"--{name.replace('_', '-')}", value, path)


def _graphs(scenario: Scenario) -> Iterator[Piece]:
    eager = Say("--disable-cuda-graph", True, "plan.graph")
    yield from graph_pieces(scenario, eager=eager, compiled=Say("--enable-torch-compile", True, "plan.compiled"))


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
