"""Trace one step of a plan of any size on one CPU: no memory, no peers, no values, every op as it would be dispatched.

A fake process group says it has all ranks and moves nothing; fake tensors have shapes and no numbers. The model is made
on the meta device, sharded, and emptied into fake tensors; then a step runs. Ranks that do the same are traced once,
one for each distinct stage of the pipeline. A microbatch more adds the same ops each time, so that one
and two are traced.

    pipeline   every virtual stage by itself: one microbatch forward and backward, its weights gathered, its gradients
               reduced; how often each happens stands in the action table that torch made of Ridgeline's
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ridgeline.ir.kernel import Kernel
from ridgeline.ir.rank_ops import collective_size
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.schedules import build, virtual_stages_by_rank
from ridgeline.runtime.train.assemble import Assembly, Blueprint, assemble
from ridgeline.runtime.train.data import further_tokens
from ridgeline.runtime.train.fsdp_groups import padded_elements
from ridgeline.runtime.train.layout import Layout, make_layout
from ridgeline.runtime.train.pipeline import pipeline, stage_shapes
from ridgeline.runtime.train.request import Request, has_experts
from ridgeline.runtime.train.step import Batch, Stepper, finish_gradients
from ridgeline.runtime.train.traced import TracedOps


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStage:
    """What a rank of some pipeline ranks, which all do the same, executes in a step."""

    pipeline_ranks: tuple[int, ...]
    ops: Mapping[Kernel, int]


def trace_step(request: Request, blueprint: Blueprint) -> tuple[TracedStage, ...]:
    """One traced rank of every distinct stage of the pipeline."""
    plan, ranks_of_work = blueprint.plan, dict[Any, list[int]]()
    stages_of_rank = virtual_stages_by_rank(plan.mesh.pp, plan.schedule.chunks, plan.schedule.name)
    for rank, stages in enumerate(stages_of_rank):
        ranks_of_work.setdefault(tuple(_work(blueprint, stage, stages) for stage in stages), []).append(rank)
    return tuple(
        TracedStage(pipeline_ranks=tuple(ranks), ops=trace_rank(request, blueprint, ranks[0]))
        for ranks in ranks_of_work.values()
    )


def _work(blueprint: Blueprint, stage: int, own: Sequence[int]) -> tuple[object, ...]:
    """What tells the work of a virtual stage from another's: its layers, its ends, whether neighbours are elsewhere."""
    placement, last = blueprint.placement, len(blueprint.placement) - 1
    first = sum(placement[:stage])
    layers = blueprint.model.order[first : first + placement[stage]]
    recomputed_layers = blueprint.plan.recompute.layers_of(stage, placement[stage])
    return (*layers, recomputed_layers, stage == 0, stage == last, stage - 1 in own, stage + 1 in own)


def trace_rank(request: Request, blueprint: Blueprint, stage: int) -> Counter[Kernel]:
    """What rank 0 of a pipeline stage's ranks executes in a step, by size."""
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    many = request.scenario.microbatches
    with _pretend_assembly(blueprint, stage) as assembly:
        if assembly.layout.pp.degree > 1:
            return _trace_pipeline(assembly, request)
        once = _plain(assembly, request, 1)
    if many == 1:
        return once
    with _pretend_assembly(blueprint, stage) as assembly:
        twice = _plain(assembly, request, 2)
    more = Counter(twice)
    more.subtract(once)
    return Counter({size: count for size in twice if (count := once[size] + (many - 1) * more[size])})


@contextmanager
def _pretend_assembly(blueprint: Blueprint, stage: int) -> Iterator[Assembly]:
    """A rank of a stage with its fake peers, in fake mode, holding fake weights."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    mesh = blueprint.plan.mesh
    if mesh.ranks > 1:
        rank = stage * mesh.ranks // mesh.pp
        dist.init_process_group("fake", rank=rank, world_size=mesh.ranks, store=FakeStore())
    try:
        layout = replace(make_layout(blueprint.plan, experts=has_experts(blueprint.model)), even=True)
        assembly = assemble(replace(blueprint, compiled=False), replace(layout, device="meta"))
        with FakeTensorMode(allow_non_fake_inputs=True), warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message=".*returned a view tensor"
            )  # nothing writes into a stage's output
            for stage_module in assembly.stages.values():
                stage_module.to_empty(device="cpu")
            assembly.layout = layout
            yield assembly
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        _forget_meshes()


def _forget_meshes() -> None:
    """What torch remembers of shardings and redistributions names process groups of a world that is gone."""
    from torch.distributed.tensor import DTensor, _redistribute

    caches: list[Any] = [
        *vars(_redistribute).values(),
        DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding,
    ]
    for cache in caches:
        if hasattr(cache, "cache_clear"):
            cache.cache_clear()
    for where, name in (
        (_redistribute, "clear_redistribute_planner_cache"),
        (torch._C, "_clear_DTensor_sharding_propagator_cache"),
    ):
        getattr(where, name, lambda: None)()


def _plain(assembly: Assembly, request: Request, microbatches: int) -> Counter[Kernel]:
    stepper = Stepper(assembly=assembly, microbatches=microbatches)
    with TracedOps(_padding(assembly)) as tracer:
        stepper.gradients(_batch(request, assembly.layout, microbatches))
    return Counter(tracer.seen)


def _batch(request: Request, layout: Layout, microbatches: int) -> Batch:
    work, plan = request.train, request.scenario.plan
    shape = (microbatches * plan.microbatch, work.seq // layout.cp.degree)
    tokens = torch.zeros(shape, dtype=torch.int64)
    return Batch(tokens=tokens, targets=_targets(request.scenario.model, shape), total=work.tokens)


def _trace_pipeline(assembly: Assembly, request: Request) -> Counter[Kernel]:
    """Each action of the rank's table by what its stage does for it."""
    layout, plan = assembly.layout, assembly.blueprint.plan
    work, many = request.train, request.scenario.microbatches
    shape = (plan.microbatch, work.seq // layout.cp.degree)
    table = build(plan.schedule.name, stages=plan.mesh.pp, microbatches=many, chunks=plan.schedule.chunks)
    stepper = Stepper(assembly=assembly, microbatches=many, total=work.tokens)
    runtime = pipeline(assembly, table, shape, stepper._loss)
    kernels: Counter[Kernel] = Counter()
    for stage in runtime._stages:
        actions = _stage_actions(assembly, stage, shape, stepper)
        for action in _flat(runtime.pipeline_order_with_comms[layout.pp.index]):
            if action.stage_index == stage.stage_index:
                kernels.update(actions.get(action.computation_type.name, {}))
    with TracedOps(_padding(assembly)) as tracer:
        finish_gradients(assembly)
    return kernels + Counter(tracer.seen)


def _flat(actions: Any) -> Iterator[Any]:
    """Actions one by one: a forward and a backward that overlap are two."""
    for action in actions:
        yield from action.sub_actions or (action,)


def _stage_actions(
    assembly: Assembly, stage: Any, shape: tuple[int, int], stepper: Stepper
) -> Mapping[str, Counter[Kernel]]:
    """Ops of each kind of action of one virtual stage; a whole backward counts with its weights' half."""
    module, padding = stage.submod, _padding(assembly)
    is_sharded = hasattr(module, "unshard")
    gather, forward, backward, reduce = (TracedOps(padding) for _ in range(4))
    with gather:
        if is_sharded:
            for part in module.modules():
                if hasattr(part, "unshard"):
                    part.unshard()
    stage_input = _stage_input(assembly, stage.stage_index, shape)
    targets = _targets(assembly.blueprint.model, shape)
    with forward:
        out = module(stage_input, further=targets)
        if stage.is_last:
            out = stepper._loss(out, targets)
    with backward:
        if is_sharded:
            module.set_is_last_backward(False)
            module.set_reshard_after_backward(False)
            module.set_requires_gradient_sync(False)
        out.backward(None if stage.is_last else torch.empty_like(out))
    with reduce:
        stage.perform_reduce_grad(1)
    sends = {name: _sent(assembly, tensor) for name, tensor in (("SEND_F", out), ("SEND_B", stage_input))}
    kinds = {"UNSHARD": gather.seen, "FORWARD": forward.seen, "REDUCE_GRAD": reduce.seen, **sends}
    return {**kinds, "FULL_BACKWARD": backward.seen, "BACKWARD_WEIGHT": backward.seen}


def _stage_input(assembly: Assembly, index: int, shape: tuple[int, int]) -> Tensor:
    """What a stage is fed: tokens, or the residual stream of the stage before."""
    like = stage_shapes(assembly, index, shape)["input_args"]
    return torch.zeros(like.shape, dtype=like.dtype, requires_grad=like.is_floating_point())


def _targets(model: ModelSpec, shape: tuple[int, int]) -> Tensor:
    """What follows every token, and what follows that for every depth of multi-token prediction."""
    further = further_tokens(model)
    return torch.zeros((shape[0], 1 + further, shape[1]) if further else shape, dtype=torch.int64)


def _sent(assembly: Assembly, tensor: Tensor) -> Counter[Kernel]:
    """One send of a stage's output, or of its input's gradient, to the neighbour in the pipeline."""
    mesh = assembly.blueprint.plan.mesh
    stride = mesh.ranks // mesh.pp
    return Counter({collective_size("send", 2, stride, tensor.numel() * tensor.element_size()): 1})


def _padding(assembly: Assembly) -> dict[int, int]:
    return {there: local for stage in assembly.stages.values() for there, local in padded_elements(stage).items()}
