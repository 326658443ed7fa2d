"""What a TensorRT-LLM engine is told, by the fields of its YAML file: how it is split, its formats, its cache."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.plan.scenario import Scenario
from ridgeline.targets.decisions import has_experts
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say
from ridgeline.targets.serving_formats import FormatWords, cache_format, format_pieces, graph_pieces
from ridgeline.targets.serving_pieces import Replica, knobs
from ridgeline.targets.tensorrt_llm.names import DRAFTS, DTYPES, ID, KNOBS, KV_DTYPES

WORDS = FormatWords(
    title="TensorRT-LLM", dtype="dtype", dtypes=DTYPES, kv_dtype="kv_cache_config.dtype", kv_dtypes=KV_DTYPES
)  # fmt: skip


def engine_pieces(scenario: Scenario, one: Replica) -> Iterator[Piece]:
    """Everything that a TensorRT-LLM engine is told."""
    yield from _mesh(scenario, one)
    for part in (_formats, _knobs, _graphs, _speculation):
        yield from part(scenario)


def _mesh(scenario: Scenario, one: Replica) -> Iterator[Piece]:
    """Tensor ranks count all ranks of a stage; with attention DP each of them handles requests of its own."""
    yield Say("tensor_parallel_size", one.tp * one.dp, "plan.tp")
    yield Say("pipeline_parallel_size", one.pp, "plan.pp")
    if one.dp > 1 and one.tp == 1:
        yield Say("enable_attention_dp", True, "plan.serving.data_parallel_size", "plan.tp")
    elif one.dp > 1:
        yield Say("enable_attention_dp", True)
        why = f"attention DP goes over all ranks: written with {one.tp * one.dp} of them, tp 1"
        yield Lose("plan.serving.data_parallel_size", why)
        yield Lose("plan.tp", why)
    yield Fixed("plan.serving.data_parallel_size", 1, "one rank of data")
    if has_experts(scenario.model):
        yield Say("moe_expert_parallel_size", one.ep, "plan.ep")
        yield Lose("plan.etp", "ranks that expert parallelism leaves split the experts")
        yield Fixed("plan.moe_dispatch", "all-to-all", "tokens are exchanged over NVLink or all-gathered")


def _formats(scenario: Scenario) -> Iterator[Piece]:
    yield from format_pieces(scenario, WORDS)
    yield from cache_format(scenario, WORDS)


def _knobs(scenario: Scenario) -> Iterator[Piece]:
    for name, (value, path) in knobs(scenario, ID).items():
        yield Say(KNOBS[name], value, path)


def _graphs(scenario: Scenario) -> Iterator[Piece]:
    compiled = Say("torch_compile_config.enable_fullgraph", True, "plan.compiled")
    yield from graph_pieces(scenario, eager=Say("cuda_graph_config", None, "plan.graph"), compiled=compiled)


def _speculation(scenario: Scenario) -> Iterator[Piece]:
    drafts = scenario.plan.speculation
    if drafts is None:
        return
    field = "num_nextn_predict_layers" if drafts.draft == "mtp" else "max_draft_len"
    yield Say("speculative_config.decoding_type", DRAFTS[drafts.draft], "plan.speculation.draft")
    yield Say(f"speculative_config.{field}", drafts.draft_tokens, "plan.speculation.draft_tokens")
    if drafts.draft == "eagle":
        yield Lose("plan.speculation.draft", "its head is a checkpoint of its own: add speculative_model_dir")
