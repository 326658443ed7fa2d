"""Turn a scenario into the same one with another size of its model or of its batch: the next one that the plan allows.

Sizes are whole numbers that heads, tensor ranks, tiles and pipeline stages have to divide. So an elasticity of a size
is that of a step to the next possible value, up and down, with the step said beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from math import lcm

from ridgeline.core.records import dataclass
from ridgeline.models.spec import Attention, Block, LatentAttention, Mlp, ModelSpec, Moe
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Decode, Prefill, Train

TILE = 128  # columns that products are cut into


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeParameter:
    """One size of a model or workload: its value, the step that the plan allows, and how to change it."""

    parameter: str
    title: str
    value: int
    step: int
    change: Callable[[int], Scenario]


def model_parameters(scenario: Scenario) -> tuple[SizeParameter, ...]:
    """Every size that a scenario's time follows from."""
    return (*_stack_sizes(scenario), *_layer_sizes(scenario), *_work_sizes(scenario))


def _stack_sizes(scenario: Scenario) -> Iterator[SizeParameter]:
    model, plan = scenario.model, scenario.plan
    stages = plan.virtual_stages
    by = stages if model.layers % stages == 0 else 1
    yield SizeParameter(
        parameter="model.layers",
        title="layers",
        value=model.layers,
        step=by,
        change=lambda layers: _with_model(scenario, with_layers(model, layers)),
    )
    yield SizeParameter(
        parameter="model.hidden",
        title="width of the residual stream",
        value=model.hidden,
        step=lcm(TILE, plan.mesh.tp),
        change=lambda width: _with_model(scenario, replace(model, hidden=width)),
    )
    yield SizeParameter(
        parameter="model.vocab",
        title="vocabulary",
        value=model.vocab,
        step=lcm(TILE, plan.mesh.tp),
        change=lambda rows: _with_model(scenario, replace(model, vocab=rows)),
    )


def _layer_sizes(scenario: Scenario) -> Iterator[SizeParameter]:
    """Sizes of the commonest layer's parts; a change moves every layer that has the same."""
    model, mesh = scenario.model, scenario.plan.mesh
    block = max(model.counts(), key=lambda entry: entry[1])[0]
    mixer, ffn = block.mixer, block.ffn
    if isinstance(mixer, Attention):
        yield _part(scenario, "mixer", "heads", "query heads", mixer.heads, lcm(mixer.kv_heads, mesh.tp))
        yield _part(scenario, "mixer", "kv_heads", "key-value heads", mixer.kv_heads, max(1, mixer.kv_heads // 2))
        yield _part(scenario, "mixer", "head_dim", "size of a head", mixer.head_dim, 16)
    elif isinstance(mixer, LatentAttention):
        yield _part(scenario, "mixer", "heads", "heads", mixer.heads, mesh.tp)
        yield _part(scenario, "mixer", "kv_rank", "key-value latent", mixer.kv_rank, 64)
    if isinstance(ffn, Mlp):
        yield _part(scenario, "ffn", "hidden", "width of the feed-forward", ffn.hidden, lcm(TILE, mesh.tp))
    elif isinstance(ffn, Moe):
        yield _part(scenario, "ffn", "hidden", "width of an expert", ffn.hidden, lcm(TILE, mesh.etp))
        yield _part(scenario, "ffn", "experts", "experts", ffn.experts, lcm(mesh.ep, ffn.groups or 1))
        yield _part(scenario, "ffn", "topk", "experts of a token", ffn.topk, 1)


PATHS = {"mixer": "attention", "ffn": "ffn"}


def _part(scenario: Scenario, place: str, field: str, title: str, value: int, step: int) -> SizeParameter:
    model = scenario.model

    def change(size: int) -> Scenario:
        blocks = tuple(_changed_block(block, place, field, (value, size)) for block in model.blocks)
        return _with_model(scenario, replace(model, blocks=blocks))

    path = f"model.{PATHS[place]}.{field}"
    return SizeParameter(parameter=path, title=title, value=value, step=step, change=change)


def _changed_block(block: Block, place: str, field: str, sizes: tuple[int, int]) -> Block:
    part = getattr(block, place)
    if getattr(part, field, None) != sizes[0]:
        return block
    return replace(block, **{place: replace(part, **{field: sizes[1]})})


def _work_sizes(scenario: Scenario) -> Iterator[SizeParameter]:
    work, plan = scenario.workload, scenario.plan
    mesh = plan.mesh
    if isinstance(work, Decode):
        yield _work(scenario, "batch", "requests at once", work.batch, mesh.dp * mesh.pp)
        yield _work(scenario, "context", "cached tokens of a request", work.context, TILE)
    elif isinstance(work, Prefill):
        yield _work(scenario, "seq", "tokens of a prompt", work.seq, TILE)
        yield _work(scenario, "batch", "prompts at once", work.batch, mesh.dp)
    elif isinstance(work, Train):
        yield _work(scenario, "seq", "tokens of a sequence", work.seq, lcm(TILE, 2 * mesh.cp * mesh.tp))
        name = "global_batch" if work.global_batch else "tokens_per_batch"
        if name == "global_batch":
            yield _work(scenario, name, "sequences of a step", work.sequences, mesh.dp * plan.microbatch)


def _work(scenario: Scenario, field: str, title: str, value: int, step: int) -> SizeParameter:
    return SizeParameter(
        parameter=f"workload.{field}",
        title=title,
        value=value,
        step=step,
        change=lambda size: _with_work(scenario, field, size),
    )


def _with_work(scenario: Scenario, field: str, size: int) -> Scenario:
    work = scenario.workload
    values = {entry.name: getattr(work, entry.name) for entry in fields(work)}
    return replace(scenario, workload=type(work)(**{**values, field: size}))


def with_layers(model: ModelSpec, layers: int) -> ModelSpec:
    """A model with another number of layers: those of the commonest kind are added or taken away at the end of their
    last run."""
    places = list(model.order)
    common = max(set(places), key=places.count)
    last = len(places) - 1 - places[::-1].index(common)
    grown = layers - len(places)
    order = (
        places[: last + 1] + [common] * grown + places[last + 1 :] if grown > 0 else _shorter(places, common, -grown)
    )
    return replace(model, order=tuple(order))


def _shorter(places: list[int], common: int, fewer: int) -> list[int]:
    within_limits = list(places)
    for _ in range(fewer):
        within_limits.pop(len(within_limits) - 1 - within_limits[::-1].index(common))
    return within_limits


def _with_model(scenario: Scenario, model: ModelSpec) -> Scenario:
    return replace(scenario, model=model)
