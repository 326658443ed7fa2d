"""Ridgeline's action table through torch's pipeline runtime: the one place that touches its private names.

Every action becomes one of torch's with the same letter, in the same order; torch adds sends, receives, and the gathers
and reductions of sharded stages around them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, schedules

from ridgeline.core.documents import JsonObject
from ridgeline.plan.schedules import Action, Overlap, Phase, ScheduleTable, Step
from ridgeline.runtime.train.assemble import TORCH_DTYPES, Assembly

_KINDS = {
    Phase.FORWARD: schedules.FORWARD,
    Phase.BACKWARD: schedules.FULL_BACKWARD,
    Phase.BACKWARD_INPUT: schedules.BACKWARD_INPUT,
    Phase.BACKWARD_WEIGHT: schedules.BACKWARD_WEIGHT,
}


def torch_action(table: ScheduleTable, rank: int, step: Step) -> schedules._Action:
    """A step of the table as torch writes it."""
    if isinstance(step, Overlap):
        pair = tuple(torch_action(table, rank, half) for half in (step.forward, step.backward))
        return schedules._Action(-1, schedules.OVERLAP_F_B, None, pair)
    assert isinstance(step, Action)
    stage = table.virtual_stage(rank, step.chunk)
    return schedules._Action(stage, _KINDS[step.phase], step.microbatch)


def pipeline(
    assembly: Assembly, table: ScheduleTable, shape: tuple[int, int], loss: Callable[[Tensor, Tensor], Tensor]
) -> schedules._PipelineScheduleRuntime:
    """What runs the table on this rank: `.step(tokens, target=..., losses=...)`.

    shape    sequences and tokens of one microbatch on this rank
    """
    layout = assembly.layout
    count = assembly.virtual_stages
    stages = [
        PipelineStage(module, index, count, torch.device(layout.device), group=layout.pp.group,
                      **stage_shapes(assembly, index, shape))
        for index, module in assembly.stages.items()
    ]  # fmt: skip
    runtime = schedules._PipelineScheduleRuntime(stages, table.microbatches, loss_fn=loss, scale_grads=False)
    rows = enumerate(table.rows)
    runtime._prepare_schedule_with_comms(
        {rank: [torch_action(table, rank, step) for step in row] for rank, row in rows}
    )
    return runtime


def stage_shapes(assembly: Assembly, index: int, shape: tuple[int, int]) -> JsonObject:
    """What a stage is given and gives, so that torch need not run it to find out."""
    layout, blueprint = assembly.layout, assembly.blueprint
    split = layout.tp.degree if layout.sequence_parallel else 1
    dtype = TORCH_DTYPES[blueprint.plan.precision.weights.id]
    tokens = torch.empty(shape, dtype=torch.int64, device="meta")
    between, logits = (
        torch.empty(*size, dtype=dtype, device="meta", requires_grad=True)
        for size in (
            (shape[0], shape[1] // split, blueprint.model.hidden),
            (*shape, blueprint.model.vocab // layout.tp.degree),
        )
    )
    last, ahead = index == assembly.virtual_stages - 1, blueprint.model.mtp
    out = (logits,) * (1 + ahead.depth) if last and ahead else logits if last else between
    return {"input_args": tokens if index == 0 else between, "output_args": out}
