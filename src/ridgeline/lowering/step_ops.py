"""Turn what ranks hold and train into the ops of a step beside its sections: sends, gathers, gradient sync, optimizer.

    none            all-reduce of gradients
    zero1, zero2    reduce-scatter of gradients, all-gather of weights after the optimizer
    zero3           weights gathered layer by layer, gradients scattered the same way; sharded gradients are reduced
                    among the replicas of a shard (hybrid shard)

Dense parameters are shared by the dp x cp ranks of a tensor rank, those of experts by edp ranks. Sizes are columns: by
section, by pipeline rank, or over a hundred thousand plans. Where rows of a column differ in what they shard, an op
that a row does not have is one over a single rank, which costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.core.arrays import Array, Mask
from ridgeline.ir.ops import Axis, Collective, CollectiveKind, HostCopy, Stream
from ridgeline.ir.program import Section, StepOps
from ridgeline.lowering.plan_columns import PlanColumns, facts_of


def step_ops(sections: Sequence[Section], stages: Sequence[Sequence[int]], plans: PlanColumns) -> StepOps:
    """The ops of one scenario; `stages` says how often each section stands in each pipeline rank."""
    trained_columns = np.array(stages, dtype=np.float64) @ np.array([trained_params(section) for section in sections])
    params = np.array([(float(item.params), float(item.expert_params)) for item in sections]).T
    states, state_copy = optimizer(trained_columns.T, plans)
    return StepOps(
        send=boundary_send(plans),
        layer_gather=layer_gather(params, plans) if plans.layer_by_layer[0] else (),
        layer_scatter=layer_scatter(params, plans) if plans.layer_by_layer[0] else (),
        offload=offload(np.array([float(item.offloadable) for item in sections]), plans),
        accumulate=accumulate(trained_columns.T, plans),
        embedding_reduce=embedding_reduce(plans),
        grad_reduce=grad_reduce(trained_columns.T, plans),
        param_gather=param_gather(trained_columns.T, plans),
        optimizer=states,
        optimizer_copy=state_copy,
    )


def trained_params(section: Section) -> tuple[float, float]:
    """Dense and expert parameters that get gradients: experts where everything is trained."""
    dense, expert, trained_count = float(section.params), float(section.expert_params), float(section.trained)
    return trained_count, expert if trained_count >= dense else 0.0


def boundary_send(plans: PlanColumns) -> Collective:
    """One microbatch's activations, or their gradients, to the neighbouring stage: each tensor rank sends its share."""
    return Collective(
        label="activations", kind="send", axis="pp", payload_bytes=plans.boundary_bytes, ranks=plans.pp,
        stride=plans.stage_stride,
    )  # fmt: skip


def offload(saved_bytes: Array, plans: PlanColumns) -> HostCopy:
    """The plan's share of saved activations, one way."""
    return HostCopy(label="activations", payload_bytes=saved_bytes * plans.offload)


def layer_gather(params: Array, plans: PlanColumns) -> tuple[Collective, ...]:
    """zero3: the weights of a layer, whole for the time it runs; `params` dense and expert ones by section."""
    return _sharded_ops(params, plans, "gather weights", plans.weight_bytes)


def layer_scatter(params: Array, plans: PlanColumns) -> tuple[Collective, ...]:
    """zero3: the gradients of a layer, summed and scattered to who holds the shard."""
    return _sharded_ops(params, plans, "scatter gradients", plans.gradient_bytes, kind="reduce-scatter")


def _sharded_ops(
    params: Array, plans: PlanColumns, label: str, size: Array, kind: CollectiveKind = "all-gather"
) -> tuple[Collective, ...]:
    dense, expert = params
    ops = [_op(label, kind, "shard", dense * size, plans.shard_degree, plans.replica_stride)]
    if expert.any():
        ranks = np.where(expert > 0, np.minimum(plans.edp, plans.shard_degree), 1.0)
        ops.append(_op(f"{label} of experts", kind, "shard", expert * size, ranks, plans.expert_stride))
    return tuple(ops)


def accumulate(trained: Array, plans: PlanColumns) -> Stream:
    """Adding the gradients of one microbatch to those before, where the weight-gradient products do not.

        w + 2 g    bytes a parameter: the new one read, the buffer read and written; of zero3 on the rank's shard alone

    w = bytes of a gradient as its product writes it, g = of the buffer (4 where DeepSpeed's bf16 optimizer or Megatron
    without fused accumulation add in 32 bits).
    """
    dense, expert = trained
    three = plans.shard == 3
    degree = np.where(three, plans.shard_degree, 1.0)
    expert_degree = np.where(three, np.minimum(plans.edp, plans.shard_degree), 1.0)
    added_bytes = (dense / degree + expert / expert_degree) * plans.accumulate_bytes
    return Stream(label="gradient accumulation", stream_bytes=added_bytes)


def accumulations(plans: PlanColumns) -> Array:
    """How often a rank adds in a step: for every microbatch, or all but the first, whose gradients are the buffer."""
    return plans.microbatches - 1 + plans.accumulate_first


def embedding_reduce(plans: PlanColumns) -> Collective:
    """All-reduce of a tied embedding's gradient between the first and the last stage, which hold a copy each; where a
    schedule is V-shaped one rank has both ends, and under zero3 (FSDP2: whenever it shards) each rank its shard."""
    two_copies = (plans.pp > 1) & (plans.shared_rows > 0) & ~facts_of(plans.schedule, "v_shaped")
    sharded_states = (plans.shard == 3) | ((plans.shard > 0) & (plans.hybrid > 0))
    size = plans.shared_rows * plans.gradient_bytes / np.where(sharded_states, plans.shard_degree, 1.0)
    stride = np.maximum(plans.pp - 1, 1.0) * plans.stage_stride
    return _op("sum embedding gradients", "all-reduce", "pp", size, _ranks(two_copies, np.full_like(size, 2.0)), stride)


def grad_reduce(trained: Array, plans: PlanColumns) -> tuple[Collective, ...]:
    """Gradient reduction over data-parallel ranks; `trained` dense and expert parameters."""
    reductions: list[Collective] = []
    plain, sharded_optimizer, three = plans.shard == 0, (plans.shard == 1) | (plans.shard == 2), plans.shard == 3
    size = plans.gradient_bytes
    if plain.any():
        reductions += _over_replicas(trained, plans, plain, "reduce gradients", "all-reduce", size)
    if sharded_optimizer.any():
        reduced_bytes = size * np.where((plans.shard == 2) & (plans.reduces_each > 0), plans.microbatches, 1.0)
        reductions += _over_sharded(
            trained, plans, sharded_optimizer, "scatter gradients", "reduce-scatter", reduced_bytes
        )
        if (few := sharded_optimizer & (plans.hybrid > 0)).any():
            reductions += _over_shard_replicas(trained, plans, few)
    if three.any():
        stage_gathers = three & ~plans.layer_by_layer
        if stage_gathers.any():
            reductions += _over_shards(trained, plans, stage_gathers, "scatter gradients", "reduce-scatter", size)
        reductions += _over_shard_replicas(trained, plans, three)
    return tuple(reductions)


def param_gather(trained: Array, plans: PlanColumns) -> tuple[Collective, ...]:
    """Weights that zero1 and zero2 gather once their shard is updated, and zero3 where it gathers whole stages."""
    sharded_optimizer, stage_gathers = (
        (plans.shard == 1) | (plans.shard == 2),
        (plans.shard == 3) & ~plans.layer_by_layer,
    )
    gathers: list[Collective] = []
    if sharded_optimizer.any():
        gathers += _over_sharded(trained, plans, sharded_optimizer, "gather weights", "all-gather", plans.weight_bytes)
    if stage_gathers.any():
        gathers += _over_shards(trained, plans, stage_gathers, "gather weights", "all-gather", plans.weight_bytes)
    return tuple(gathers)


def _over_sharded(
    trained: Array, plans: PlanColumns, mine: Mask, label: str, kind: CollectiveKind, size: Array
) -> tuple[Collective, ...]:  # fmt: skip
    """zero1 and zero2: among all data-parallel ranks, or those of a shard in software that has hybrid ones."""
    if (plans.hybrid > 0).all():
        return _over_shards(trained, plans, mine, label, kind, size)
    return _over_replicas(trained, plans, mine, label, kind, size)


def _over_shards(
    trained: Array, plans: PlanColumns, mine: Mask, label: str, kind: CollectiveKind, size: Array
) -> tuple[Collective, ...]:  # fmt: skip
    """zero3 of a pipeline that gathers whole stages: once a step among the ranks of a shard."""
    dense, expert = trained
    ops = [_op(label, kind, "shard", dense * size, _ranks(mine, plans.shard_degree), plans.replica_stride)]
    if expert.any():
        ranks = _ranks(mine, np.minimum(plans.edp, plans.shard_degree))
        ops.append(_op(f"{label} of experts", kind, "shard", expert * size, ranks, plans.expert_stride))
    return tuple(ops)


def _over_replicas(
    trained: Array, plans: PlanColumns, mine: Mask, label: str, kind: CollectiveKind, size: Array
) -> tuple[Collective, ...]:  # fmt: skip
    dense, expert = trained
    ops = [_op(label, kind, "dp", dense * size, _ranks(mine, plans.replicas), plans.replica_stride)]
    if expert.any():
        ranks = _ranks(mine, plans.edp)
        ops.append(_op(f"{label} of experts", kind, "edp", expert * size, ranks, plans.expert_stride))
    return tuple(ops)


def _over_shard_replicas(trained: Array, plans: PlanColumns, mine: Mask) -> tuple[Collective, ...]:
    """Hybrid shard: gradients of a shard, summed over the groups that hold a copy of it."""
    (dense, expert), degree, size = trained, plans.shard_degree, plans.gradient_bytes
    ranks, label = _ranks(mine, plans.replicas / degree), "reduce shards"
    ops = [_op(label, "all-reduce", "replica", dense * size / degree, ranks, plans.replica_stride * degree)]
    if expert.any():
        few = np.minimum(plans.edp, degree)
        ranks, stride = _ranks(mine, plans.edp / few), plans.expert_stride * few
        ops.append(_op(f"{label} of experts", "all-reduce", "replica", expert * size / few, ranks, stride))
    return tuple(ops)


def _ranks(mine: Mask, ranks: Array) -> Array:
    """The ranks of an op where a row has it, one where it does not."""
    return ranks if mine.all() else np.where(mine, ranks, 1.0)


def _op(label: str, kind: CollectiveKind, axis: Axis, payload: Array, ranks: Array, stride: Array) -> Collective:
    return Collective(label=label, kind=kind, axis=axis, payload_bytes=payload, ranks=ranks, stride=stride)


def optimizer(trained: Array, plans: PlanColumns) -> tuple[Stream, HostCopy]:
    """States, weights and gradients that the optimizer reads and writes, by ranks that hold them.

    States that live on the host are fetched, updated on the chip and written back: states and master copy cross the
    host's link twice, weights and gradients never.
    """
    dense, expert = trained
    degree = np.where(plans.shard > 0, plans.shard_degree, 1.0)
    expert_degree = np.where(plans.shard > 0, np.minimum(plans.edp, plans.shard_degree), 1.0)
    resident_params = dense / degree + expert / expert_degree
    offloaded_bytes = resident_params * plans.state_bytes * plans.offload_optimizer
    return (
        Stream(label="optimizer", stream_bytes=resident_params * plans.optimizer_bytes),
        HostCopy(label="optimizer states", payload_bytes=2 * offloaded_bytes),
    )
