"""Trace one step of a plan of any size on one CPU: no memory, no peers, no values, every op as torch dispatches it.

A fake process group says it has all ranks and moves nothing; fake tensors have shapes and no numbers. The model is made
on the meta device, sharded, and emptied into fake tensors; then a step runs. Ranks that do the same are traced once,
one for each distinct stage of the pipeline. A microbatch more adds the same ops each time, so that one and two are
traced.

    pipeline   every virtual stage by itself: one microbatch forward and backward, its weights gathered, its gradients
               reduced; how often each happens stands in the action table that torch made of Ridgeline's

What is left out is bookkeeping and not work: collectives of a single number (the loss, the gradient norm), of integers
(rows for each expert), and among one rank; and products with one column, which are sums.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch._ops import OpOverload
from torch.distributed.pipelining import PipelineStage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ridgeline.core.documents import JsonMapping
from ridgeline.ir.kernel import PRODUCT_OPERANDS, Kernel
from ridgeline.ir.rank_ops import attention_size, collective_size, grouped_size, product_size
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.schedules import build, virtual_stages_by_rank
from ridgeline.runtime.train.assemble import Assembly, Blueprint, assemble, padded_elements
from ridgeline.runtime.train.data import further_tokens
from ridgeline.runtime.train.layout import make_layout
from ridgeline.runtime.train.pipeline import pipeline, stage_shapes
from ridgeline.runtime.train.request import RunRequest, has_experts
from ridgeline.runtime.train.step import Batch, Stepper, finish_gradients

ATTENTION = ("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
             "_scaled_dot_product_cudnn_attention")  # fmt: skip
GROUPED = "aten::_grouped_mm"
# what a collective's payload is: the whole tensor, which one of its two tensors is
COLLECTIVES: Mapping[str, tuple[str, bool]] = {
    "c10d::allreduce_": ("all-reduce", True),
    "c10d::_allgather_base_": ("all-gather", True),
    "c10d::_reduce_scatter_base_": ("reduce-scatter", True),
    "c10d::alltoall_base_": ("all-to-all", False),
    "c10d::send": ("send", False),
    "_c10d_functional::all_reduce": ("all-reduce", True),
    "_c10d_functional::all_gather_into_tensor": ("all-gather", True),
    "_c10d_functional::reduce_scatter_tensor": ("reduce-scatter", True),
    "_c10d_functional::all_to_all_single": ("all-to-all", False),
}


class TracedOps(TorchDispatchMode):  # type: ignore[misc]
    """How often each op of each size was dispatched while this mode was on.

    padded   elements of a shard group as they travel -> as they are, where rows were added to cut them evenly
    """

    def __init__(self, padded: Mapping[int, int] | None = None) -> None:
        super().__init__()
        self.seen: Counter[Kernel] = Counter()
        self.padded = padded or {}

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Sequence[Tensor] = (), kwargs: JsonMapping | None = None
    ) -> Tensor:
        name = func._schema.name
        out = _grouped_output(*args, **(kwargs or {})) if name == GROUPED else func(*args, **(kwargs or {}))
        size = self._size(name, args, kwargs or {})
        if size is not None:
            self.seen[size] += 1
        return out

    def _size(self, name: str, args: Sequence[Tensor], kwargs: JsonMapping) -> Kernel | None:
        space, _, op = name.partition("::")
        if space != "aten":
            return self._collective(name, args)
        if op in PRODUCT_OPERANDS:
            left_operand, right = PRODUCT_OPERANDS[op]
            *groups, m, k = args[left_operand].shape
            n = args[right].shape[-1]
            return None if min(m, n, k) == 1 else product_size(groups[0] if groups else 1, m, n, k)
        if name == GROUPED:
            a, b, ends = args[0], args[1], kwargs.get("offs", args[2] if len(args) > 2 else None)
            if b.dim() == 3:
                return grouped_size(b.shape[0], a.shape[0], b.shape[1], b.shape[2])
            return grouped_size(1 if ends is None else ends.shape[0], a.shape[1], a.shape[0], b.shape[1], weights=True)
        if op.startswith(ATTENTION):
            backward = op.endswith("backward")
            q, k, v = args[1:4] if backward else args[:3]
            batch, heads, queries, wide = q.shape
            return attention_size(batch * heads, (queries, k.shape[2]), (wide, v.shape[3]), backward=backward)
        return None

    def _collective(self, name: str, args: Sequence[Tensor]) -> Kernel | None:
        if name not in COLLECTIVES:
            return None
        kind, full_operand = COLLECTIVES[name]
        tensors = [x for x in tree_leaves(args) if isinstance(x, Tensor)]
        ranks = _ranks(args)
        if not tensors or len(ranks) < 2:
            return None
        if kind == "send":
            stride = abs(ranks[args[2]] - dist.get_rank())
            return collective_size(kind, 2, stride, tensors[0].numel() * tensors[0].element_size())
        payload = max(tensors, key=Tensor.numel) if full_operand else tensors[-1]
        elements = self.padded.get(payload.numel(), payload.numel())
        if elements == 1 or not payload.is_floating_point():
            return None
        stride, size = ranks[1] - ranks[0], elements * payload.element_size()
        if kind == "all-gather" and "functional" in name:
            size *= len(ranks)
        return collective_size(kind, len(ranks), stride, size)


def _grouped_output(left: Tensor, right: Tensor, offs: Tensor | None = None, *_: object, **__: object) -> Tensor:
    """What a grouped product gives, by shape alone; torch's own fake kernel knows 16-bit formats only."""
    if right.dim() == 3:
        return left.new_empty(left.shape[0], right.shape[2])
    assert offs is not None
    return left.new_empty(offs.shape[0], left.shape[0], right.shape[1])


def _ranks(args: Sequence[Tensor]) -> list[int]:
    """Ranks of the group a collective runs in, which it is handed as an object or by name."""
    for arg in args:
        if isinstance(arg, torch.ScriptObject):
            try:
                return list(dist.get_process_group_ranks(dist.ProcessGroup.unbox(arg)))
            except RuntimeError:  # the operation of a reduction
                continue
    names = [arg for arg in args if isinstance(arg, str)]
    if names:
        return list(dist.get_process_group_ranks(dist.distributed_c10d._resolve_process_group(names[-1])))
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStage:
    """What a rank of some pipeline ranks, which all do the same, executes in a step."""

    pipeline_ranks: tuple[int, ...]
    ops: Mapping[Kernel, int]


def trace_step(request: RunRequest, blueprint: Blueprint) -> tuple[TracedStage, ...]:
    plan, ranks_of_work = blueprint.plan, dict[tuple[object, ...], list[int]]()
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


def trace_rank(request: RunRequest, blueprint: Blueprint, stage: int) -> Counter[Kernel]:
    """What rank 0 of a pipeline stage's ranks executes in a step, by size."""
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    many = request.scenario.microbatches
    with _pretend_assembly(blueprint, stage) as assembly:
        if assembly.layout.pp.degree > 1:
            return _trace_pipeline(assembly, request)
        once = _trace_plain(assembly, request, 1)
    if many == 1:
        return once
    with _pretend_assembly(blueprint, stage) as assembly:
        twice = _trace_plain(assembly, request, 2)
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
            warnings.filterwarnings("ignore", message=".*returned a view tensor")  # nothing writes into an output
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

    for cache in (*vars(_redistribute).values(), DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding):
        if hasattr(cache, "cache_clear"):
            cache.cache_clear()
    getattr(_redistribute, "clear_redistribute_planner_cache", lambda: None)()
    getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", lambda: None)()


def _trace_plain(assembly: Assembly, request: RunRequest, microbatches: int) -> Counter[Kernel]:
    work, layout = request.train, assembly.layout
    shape = (microbatches * request.scenario.plan.microbatch, work.seq // layout.cp.degree)
    targets, tokens = _targets(request.scenario.model, shape), torch.zeros(shape, dtype=torch.int64)
    with TracedOps(_padding(assembly)) as tracer:
        stepper = Stepper(assembly=assembly, microbatches=microbatches)
        stepper.gradients(Batch(tokens=tokens, targets=targets, total=work.tokens))
    return Counter(tracer.seen)


def _trace_pipeline(assembly: Assembly, request: RunRequest) -> Counter[Kernel]:
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
        for overlap in runtime.pipeline_order_with_comms[layout.pp.index]:
            for action in overlap.sub_actions or (overlap,):  # a forward and a backward that overlap are two
                if action.stage_index == stage.stage_index:
                    kernels.update(actions.get(action.computation_type.name, {}))
    with TracedOps(_padding(assembly)) as tracer:
        finish_gradients(assembly)
    return kernels + Counter(tracer.seen)


def _stage_actions(
    assembly: Assembly, stage: PipelineStage, shape: tuple[int, int], stepper: Stepper
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
    like = stage_shapes(assembly, stage.stage_index, shape)["input_args"]
    stage_input = torch.zeros(like.shape, dtype=like.dtype, requires_grad=like.is_floating_point())
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
    mesh = assembly.blueprint.plan.mesh
    sends = {
        name: Counter({collective_size("send", 2, mesh.ranks // mesh.pp, tensor.numel() * tensor.element_size()): 1})
        for name, tensor in (("SEND_F", out), ("SEND_B", stage_input))
    }
    kinds = {"UNSHARD": gather.seen, "FORWARD": forward.seen, "REDUCE_GRAD": reduce.seen, **sends}
    return {**kinds, "FULL_BACKWARD": backward.seen, "BACKWARD_WEIGHT": backward.seen}


def _targets(model: ModelSpec, shape: tuple[int, int]) -> Tensor:
    """What follows every token, and what follows that for every depth of multi-token prediction."""
    further = further_tokens(model)
    return torch.zeros((shape[0], 1 + further, shape[1]) if further else shape, dtype=torch.int64)


def _padding(assembly: Assembly) -> dict[int, int]:
    return {there: local for stage in assembly.stages.values() for there, local in padded_elements(stage).items()}
