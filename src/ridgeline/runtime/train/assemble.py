"""Make every virtual stage that a rank holds and shard it over the data-parallel ranks.

    none    weights on every rank, gradients all-reduced once a step (fully_shard over replicate x 1)
    zero1   states sharded: gradients reduce-scattered once a step, weights stay gathered through it
    zero2   the same, gradients after every microbatch
    zero3   weights gathered for each layer, forward and backward; under a pipeline for a whole stage, as torch's
            pipeline runtime does, since a split backward needs them twice

A shard degree below dp x cp is hybrid sharding. Experts are sharded over the replicas of their own mesh.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from ridgeline.core.documents import JsonObject
from ridgeline.core.dtype import DType
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.plan import Plan, Precision
from ridgeline.plan.resolve import resolve_scaling
from ridgeline.plan.schedules import virtual_stages_by_rank
from ridgeline.runtime.train.layer import MixtureOfExperts
from ridgeline.runtime.train.layout import Layout
from ridgeline.runtime.train.offload import ActivationOffload
from ridgeline.runtime.train.request import ForwardConstants, recomputed_parts
from ridgeline.runtime.train.stage import Stage
from ridgeline.runtime.train.weights import Maker, begin, fill, first_value

if TYPE_CHECKING:
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """What is trained and how: all that every rank must know alike.

    placement   layers of each virtual stage
    gradients   the format in which they are accumulated and reduced
    compiled    layers are compiled one by one (torch.compile)
    values      the head gives one value for each token, as a critic's does, instead of logits
    fuses       words of `ir.fusions.FUSIONS`: what runs as one kernel
    """

    model: ModelSpec
    constants: ForwardConstants
    plan: Plan
    placement: tuple[int, ...]
    gradients: DType
    seed: int = 0
    compiled: bool = False
    values: bool = False
    fuses: frozenset[str] = frozenset({"norm", "cross-entropy", "optimizer"})


@dataclass(slots=True, kw_only=True)
class Assembly:
    """What this rank holds: its stages by virtual stage, and where it stands."""

    layout: Layout
    stages: dict[int, Stage]
    blueprint: Blueprint

    @property
    def virtual_stages(self) -> int:
        return len(self.blueprint.placement)

    @property
    def embedding_copy(self) -> str:
        """The name of the embedding in the last stage: a tied head, or what multi-token prediction reads; or none."""
        model = self.blueprint.model
        if self.virtual_stages == 1:
            return ""
        return "head.weight" if model.embedding.tied else "embedding_copy" if model.mtp else ""

    def parameters(self) -> dict[str, nn.Parameter]:
        """By name; a copy of the embedding that a later stage holds has the name that `embedding_copy` says."""
        parameters_by_name: dict[str, nn.Parameter] = {}
        for stage in self.stages.values():
            parameters_by_name |= dict(stage.named_parameters())
        return parameters_by_name


def assemble(blueprint: Blueprint, layout: Layout) -> Assembly:
    plan = blueprint.plan
    make = Maker(
        layout=layout, constants=blueprint.constants, dtype=TORCH_DTYPES[plan.precision.weights.id],
        fuses=blueprint.fuses, compiled=blueprint.compiled, narrow=narrow_scaling(plan.precision),
    )  # fmt: skip
    offload = ActivationOffload(layout.device, plan.offload.activations) if plan.offload.activations else None
    stage_indices = virtual_stages_by_rank(plan.mesh.pp, plan.schedule.chunks, plan.schedule.name)[layout.pp.index]
    stages = {index: _stage(make, blueprint, index) for index in stage_indices}
    for stage in stages.values():
        begin(stage, "", blueprint.seed, blueprint.constants.numerics.norm_offset or 0.0)
        head = stage.head if blueprint.model.embedding.tied and stage.embedding is None else None
        copy = stage.embedding_copy if head is None else head.weight
        if copy is not None and not copy.is_meta:
            with torch.no_grad():
                fill(copy, first_value("embedding.weight", copy, blueprint.seed))
        if blueprint.compiled:
            for layer in (*stage.layers.values(), *(predictor.layer for predictor in stage.mtp)):
                layer.compile()
        stage.offload = offload
        if layout.sharded is not None:
            _shard(stage, blueprint, layout)
        elif TORCH_DTYPES[blueprint.gradients.id] != make.dtype:
            for parameter in stage.parameters():
                parameter.grad_dtype = TORCH_DTYPES[blueprint.gradients.id]
    return Assembly(layout=layout, stages=stages, blueprint=blueprint)


def narrow_scaling(precision: Precision) -> Literal["", "tensor", "row"]:
    """What shares a scale where a plan's products are in 8 bits; empty where they are wider.

    >>> from ridgeline.core.dtype import dtype
    >>> narrow_scaling(Precision()), narrow_scaling(Precision(compute=dtype("fp8")))
    ('', 'tensor')
    """
    if precision.compute.peak != "fp8":
        return ""
    return "row" if resolve_scaling(precision) == "row" else "tensor"


def _stage(make: Maker, blueprint: Blueprint, index: int) -> Stage:
    placement = blueprint.placement
    first = sum(placement[:index])
    recompute, model = blueprint.plan.recompute, blueprint.model
    recomputed_layers = recompute.layers_of(index, placement[index])
    layers = [
        (layer, recomputed_parts(recompute, str(model.order[layer]), covered=layer - first < recomputed_layers))
        for layer in range(first, first + placement[index])
    ]
    ahead = recomputed_parts(recompute, "", covered=True)  # beyond every count of layers, as lowering has it
    ends = index == 0, index == len(placement) - 1
    return Stage(make, model, layers, ends, ahead, outputs=1 if blueprint.values else model.vocab)


def _shard(stage: Stage, blueprint: Blueprint, layout: Layout) -> None:
    """FSDP2 on every layer and on the stage; gradients are summed, not averaged: the loss is already a mean."""
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    fsdp_options: JsonObject = {
        "reshard_after_forward": blueprint.plan.sharding.shard == "zero3" and layout.pp.degree == 1,
        "mp_policy": MixedPrecisionPolicy(reduce_dtype=TORCH_DTYPES[blueprint.gradients.id]),
    }
    expert_parameters: set[nn.Parameter] = set()
    units = [(layer, layer) for layer in stage.layers.values()] + [
        (predictor, predictor.layer) for predictor in stage.mtp
    ]
    for unit, layer in units:
        experts = layer.ffn.experts if isinstance(getattr(layer, "ffn", None), MixtureOfExperts) else None
        if experts is not None and layout.experts is not None:
            if layout.sharded_experts is not None:
                fully_shard(experts, mesh=layout.sharded_experts, **fsdp_options)
            else:
                expert_parameters |= set(experts.parameters())
        fully_shard(unit, mesh=layout.sharded, ignored_params=expert_parameters, **fsdp_options)
    fully_shard(stage, mesh=layout.sharded, ignored_params=expert_parameters, **fsdp_options)
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def shard_groups(module: nn.Module) -> Iterator[FSDPParamGroup]:
    """Parameter groups of a module and of all modules inside it that are sharded."""
    from torch.distributed.fsdp import FSDPModule

    for part in module.modules():
        if isinstance(part, FSDPModule):
            state = part._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None)
            single_group = getattr(state, "_fsdp_param_group", None)
            yield from groups if groups is not None else [single_group] if single_group else []


def padded_elements(module: nn.Module) -> dict[int, int]:
    """Elements that travel for the weights of a group, and that they are, where rows were added to cut them evenly."""
    elements: dict[int, int] = {}
    for group in shard_groups(module):
        ranks = group.mesh_info.shard_mesh_size
        there = sum(fsdp_param.padded_sharded_param_size.numel() * ranks for fsdp_param in group.fsdp_params)
        elements[there] = sum(fsdp_param._orig_size.numel() for fsdp_param in group.fsdp_params)
    return {there: local for there, local in elements.items() if there != local}


def gathered_weights(module: nn.Module) -> Iterator[Tensor]:
    """Whole weights as they are gathered; their memory comes and goes."""
    for group in shard_groups(module):
        for fsdp_param in group.fsdp_params:
            yield from getattr(fsdp_param, "all_gather_outputs", ())
