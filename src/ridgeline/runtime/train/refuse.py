"""What this engine cannot do, said before anything starts, each with the nearest scenario that would work."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from ridgeline.core.errors import Problem
from ridgeline.models.hf.numerics import compared_types
from ridgeline.models.load import MODELS
from ridgeline.models.numerics import Numerics, numerics_of, unknown_numerics
from ridgeline.models.spec import Attention, Block, LatentAttention, Mlp, ModelSpec, Moe, Mtp
from ridgeline.plan.capability import Capability, PlanFacts, read_capability
from ridgeline.plan.resolve import resolve
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import SCHEDULES
from ridgeline.plan.workload import Train
from ridgeline.runtime.train.request import PARTS, all_blocks, has_experts

ACTIVATION_NAMES = ("silu", "swish", "swiglu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2")


def refusals(scenario: Scenario) -> tuple[Problem, ...]:
    """Every reason why `run` will not start; `check` has said what no engine could do."""
    return tuple(problem for rule in RULES for problem in rule(scenario))


def _workload(scenario: Scenario) -> Iterator[Problem]:
    workload = scenario.workload
    if not isinstance(workload, Train):
        yield Problem(path="workload.kind", given=workload.kind, expected="train", todo="`run` trains")
        return
    yield from _undeclared_values(scenario)
    if workload.document_tokens < workload.seq:
        given_text, expected_text = str(workload.document), "absent: a document fills its sequence"
        yield Problem(path="workload.document", given=given_text, expected=expected_text, todo="leave it out")


@cache
def capability() -> Capability:
    """What `run` executes, as its table declares it."""
    path = Path(__file__).parent / "capability.toml"
    return read_capability(tomllib.loads(path.read_text(encoding="utf-8")), str(path))


def _undeclared_values(scenario: Scenario) -> Iterator[Problem]:
    facts = PlanFacts.of(scenario)
    for limit, broken in capability().broken(facts):
        if broken:
            path = limit.decision if limit.decision.startswith("workload.") else f"plan.{limit.decision}"
            given_text = str(facts.values[limit.decision])
            yield Problem(path=path, given=given_text, expected=limit.expected, todo=limit.todo)


def _model(scenario: Scenario) -> Iterator[Problem]:
    model = scenario.model
    if model.mtp is not None:
        yield from _prediction(scenario, model.mtp)
    yield from model_refusals(model)
    yield from numerics_refusals(numerics_of(model))
    if model.id in MODELS and "norm epsilon" in unknown_numerics(model) and _has_uncommon_norms(model):
        expectation = "a config.json: where its norms stand and what it multiplies are not in the catalog"
        yield Problem(path="model", given=model.id, expected=expectation, todo='set model = "FOLDER/config.json"')


def _has_uncommon_norms(model: ModelSpec) -> bool:
    """Whether a layer has two norms a part, or norms over all heads: families that have them differ in where."""
    return any(
        block.norms > 2 or (isinstance(block.mixer, Attention) and block.mixer.qk_norm == "full")
        for block in model.blocks
    )


def model_refusals(model: ModelSpec) -> Iterator[Problem]:
    """What of an architecture the reference engine does not build."""
    if model.vision is not None:
        yield Problem(path="model.vision", given="an image encoder", expected="a language model alone")
    if model.encoder is not None:
        yield Problem(path="model.encoder", given="an encoder", expected="a language model alone")
    if model.latent_space is not None:
        yield Problem(path="model.latent_space", given="a diffusion transformer", expected="a language model")
    if model.head is not None:
        yield Problem(path="model.head", given=model.head.kind, expected="a language model's own head")
    if model.embedding.width:
        yield Problem(path="model.embedding_width", given=str(model.embedding.width), expected="as wide as hidden")
    for block in all_blocks(model):
        for what in _block(block):
            yield Problem(path="model", given=what, expected="attention or MLA with mlp or moe, as README lists")


def numerics_refusals(numerics: Numerics) -> Iterator[Problem]:
    """What a model multiplies that the reference engine does not, or that nobody compared with transformers."""
    if numerics.family and numerics.family not in compared_types():
        expectation = f"a type whose forward was compared with transformers: {', '.join(compared_types())}"
        todo = "describe the model by its dimensions in the scenario, which then trains from scratch"
        yield Problem(path="model.model_type", given=numerics.family, expected=expectation, todo=todo)
    for key in numerics.unread:
        expectation = f"none: it multiplies something that models of type {numerics.family!r} are not known to"
        yield Problem(path=f"model.{key}", given="a value", expected=expectation, todo="remove it if it has no effect")


def _prediction(scenario: Scenario, mtp: Mtp) -> Iterator[Problem]:
    """Multi-token prediction looks tokens up a second time, by their rows alone."""
    embedding, todo = scenario.model.embedding, "use --set model.mtp=0"
    if embedding.positions or embedding.norm:
        given_text = f"{mtp.depth} with {'learned positions' if embedding.positions else 'a norm behind the embedding'}"
        yield Problem(path="model.mtp", given=given_text, expected="an embedding of rows", todo=todo)
    schedule = scenario.plan.schedule.name
    several = "a tied embedding" if embedding.tied else f"depth {mtp.depth}" if mtp.depth > 1 else ""
    if several and scenario.plan.mesh.pp > 1 and SCHEDULES[schedule].splits_backward:
        expected_text = "a whole backward: torch's split one knows no weight that is read at two depths of a stage"
        given_text, todo = f"{schedule} with {several} and mtp", 'set plan.schedule = "1f1b" or "interleaved"'
        yield Problem(path="plan.schedule", given=given_text, expected=expected_text, todo=todo)


def _block(block: Block) -> Iterator[str]:
    mixer, ffn = block.mixer, block.ffn
    if block.captured is not None:
        yield "captured layers, of which ops are known and not the code"
    if block.beside is not None:
        yield "two mixers side by side"
    parts = (mixer is not None) + (ffn is not None)
    if block.parallel or block.extra or block.norms not in (parts, 2 * parts):
        yield "layers whose parts stand side by side, or with other norms than one or two a part"
    if isinstance(mixer, Attention):
        odd = {"gate": mixer.gate, "sinks": mixer.sinks, "chunked": mixer.chunked, "alibi": mixer.positions == "alibi"}
        odd |= {"both ways": not mixer.causal, "relative positions": mixer.positions == "relative"}
        odd |= {"keys as values": mixer.keys_as_values}
        odd |= {"keys of another layer": mixer.kv_shared}
        yield from (f"attention with {name}" for name, there in odd.items() if there)
    elif isinstance(mixer, LatentAttention):
        if mixer.indexer is not None:
            yield "sparse attention"
    elif mixer is not None:
        yield mixer.kind
    if isinstance(ffn, (Mlp, Moe)) and ffn.activation not in ACTIVATION_NAMES:
        yield f"activation {ffn.activation}"
    if isinstance(ffn, Moe) and (ffn.latent or ffn.bias or ffn.idle):
        yield "experts with a latent, biases or idle choices"


def _formats(scenario: Scenario) -> Iterator[Problem]:
    precision = scenario.plan.precision
    is_mixed = precision.compute.id not in (precision.weights.id, "fp8-e4m3")
    if is_mixed or precision.activations.id != precision.weights.id:
        given_text = f"compute {precision.compute.id}, weights {precision.weights.id}"
        yield Problem(path="plan.precision", given=given_text, expected="one format; a wider master is the optimizer's")


def _tensor(scenario: Scenario) -> Iterator[Problem]:
    tp, model = scenario.plan.mesh.tp, scenario.model
    if model.vocab % tp:
        given_text, expected_text = str(model.vocab), f"a multiple of tp ({tp}): the vocabulary is split"
        todo = f"use --set model.vocab={-(-model.vocab // tp) * tp}"
        yield Problem(path="model.vocab", given=given_text, expected=expected_text, todo=todo)
    if tp > 1 and any(isinstance(block.mixer, Attention) and block.mixer.qk_norm == "full" for block in model.blocks):
        expected_text = "1: a norm over all heads is not split over tensor ranks"
        yield Problem(path="plan.tp", given=str(tp), expected=expected_text, todo="use tp = 1")
    if scenario.plan.mesh.cp > 1 and numerics_of(model).score_softcap:
        yield Problem(path="plan.cp", given=str(scenario.plan.mesh.cp), expected="1: capped scores", todo="use cp = 1")
    for block in all_blocks(model):
        if isinstance(block.mixer, Attention) and block.mixer.kv_heads % tp:
            heads = block.mixer.kv_heads
            expected_text = f"a divisor of key-value heads ({heads}): copies of heads are not implemented"
            yield Problem(path="plan.tp", given=str(tp), expected=expected_text, todo=f"use tp = {heads}")


def _memory(scenario: Scenario) -> Iterator[Problem]:
    recompute = scenario.plan.recompute
    kinds = {recompute.kind, *recompute.blocks.values(), recompute.rest if recompute.layers is not None else "none"}
    if "selective" in kinds:
        for part in recompute.parts:
            if part not in PARTS:
                expected_text = f"some of {', '.join(PARTS)}"
                yield Problem(path="plan.recompute.parts", given=part, expected=expected_text)


def _graph(scenario: Scenario) -> Iterator[Problem]:
    """A graph of the whole step: one process on a chip, whose host need not look at anything."""
    plan, graph = scenario.plan, resolve(scenario).graph
    if graph == "none":
        return
    reasons = {
        f"graph = {graph!r}": graph == "partial",
        f"{plan.mesh.ranks} ranks": plan.mesh.ranks > 1,
        "experts, whose sizes the host learns": has_experts(scenario.model),
        "offload": bool(plan.offload.activations or plan.offload.optimizer),
        "fp16, whose scale the host moves": plan.precision.weights.id == "fp16",
        "a host without an accelerator": scenario.system.chip.vendor == "host",
    }
    for given_text, so in reasons.items():
        if so:
            expected_text = "a full graph of one rank on a CUDA device, without experts and offload"
            yield Problem(path="plan.graph", given=given_text, expected=expected_text, todo='set plan.graph = "none"')


RULES: tuple[Callable[[Scenario], Iterator[Problem]], ...] = (_workload, _model, _formats, _tensor, _memory, _graph)
