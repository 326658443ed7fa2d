"""Show that a plan computes what one process computes: the loss, and the gradient of every parameter.

    difference   |g - r| / max(|r|, floor)     g = under the plan, r = of one process, |.| = RMS over one parameter

The floor is a thousandth of the RMS of all gradients together: a gradient that is zero but for rounding (of a key's
bias without rotary positions, say) has no relative error of its own.

In fp32 it may be 1e-5. In a narrower format the reference itself is only as good as its rounding, so it is computed
once more in fp32 from the same weights: what rounding did to r is what it may do to g, and their difference may be the
sum of both. A parameter that exceeds its tolerance is named, the one nearest the loss first: on the way back it is the
first to diverge, and whatever lies before it inherits the error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from ridgeline.core.dtype import dtype
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.plan import Plan, Precision
from ridgeline.runtime.train.assemble import Assembly, Blueprint, assemble
from ridgeline.runtime.train.data import BatchSource, batch_of, further_tokens
from ridgeline.runtime.train.layout import Layout, full_of
from ridgeline.runtime.train.request import Compared, Verification
from ridgeline.runtime.train.step import FIRST_SCALE, Stepper

FP32_TOLERANCE = 1e-5
ROUNDED_TWICE = 2.0  # the plan's rounding and the reference's
FLOOR = 1e-3  # of the RMS of all gradients


def verify(blueprint: Blueprint, layout: Layout, source: BatchSource, sequences: int, seq: int) -> Verification | None:
    """Compare one step's loss and gradients; every rank takes part, rank 0 answers."""
    assembly = assemble(blueprint, layout)
    loss, gradients = _gradients(assembly, source, sequences, seq)
    comparisons: list[Compared] = []
    reference_loss = float("nan")
    if layout.dp.index == layout.cp.index == layout.tp.index == 0:
        reference_loss, comparisons = _against_reference(blueprint, layout, gradients, (source, sequences, seq))
    gathered_comparisons = layout.gather_objects(comparisons)
    if layout.rank != 0:
        return None
    by_name = {comparison.name: comparison for part in gathered_comparisons for comparison in part}
    return Verification(
        loss=loss,
        reference_loss=reference_loss,
        tolerance=max((comparison.tolerance for comparison in by_name.values()), default=FP32_TOLERANCE),
        parameters=tuple(by_name[name] for name in model_order(blueprint)),  # every one, or it is a mistake of ours
    )


def _gradients(assembly: Assembly, source: BatchSource, sequences: int, seq: int) -> tuple[float, dict[str, Tensor]]:
    layout, plan = assembly.layout, assembly.blueprint.plan
    stepper = Stepper(assembly=assembly, microbatches=sequences // (layout.dp.degree * plan.microbatch))
    stepper.scale = FIRST_SCALE if plan.precision.weights.id == "fp16" else 1.0
    further = further_tokens(assembly.blueprint.model)
    loss = float(stepper.gradients(batch_of(source, 0, sequences, seq, layout, further)))
    parameters = assembly.parameters()
    parameters.pop(assembly.embedding_copy, None)
    return loss, {
        name: (torch.zeros(parameter.shape) if parameter.grad is None else full_of(parameter.grad)).float()
        / stepper.scale
        for name, parameter in parameters.items()
    }


def model_order(blueprint: Blueprint) -> list[str]:
    """Names of all parameters from the embedding to the head."""
    return list(assemble(alone_of(blueprint), Layout(device="meta")).parameters())


def alone_of(blueprint: Blueprint, precision: Precision | None = None) -> Blueprint:
    """The same model in one process, one microbatch after the other, op by op: no own kernel, no compiler."""
    plan = blueprint.plan
    single = Plan(mesh=Mesh(), microbatch=plan.microbatch, precision=precision or plan.precision, engine=plan.engine)
    return replace(
        blueprint, plan=single, placement=(blueprint.model.layers,), compiled=False, fuses=frozenset({"norm"})
    )


def _against_reference(
    blueprint: Blueprint, layout: Layout, gradients: dict[str, Tensor], data: tuple[BatchSource, int, int]
) -> tuple[float, list[Compared]]:
    single_layout = Layout(device=layout.device)
    loss, reference = _gradients(assemble(alone_of(blueprint), single_layout), *data)
    tolerances = dict.fromkeys(reference, FP32_TOLERANCE)
    floor = FLOOR * _rms(reference.values())
    if blueprint.plan.precision.weights.id != "fp32":
        for name, exact in _exact(blueprint, single_layout, data).items():
            rounding = _difference(reference[name], exact, floor)
            tolerances[name] = max(FP32_TOLERANCE, ROUNDED_TWICE * rounding)
    return loss, [
        Compared(name=name, difference=_difference(gradient, reference[name], floor), tolerance=tolerances[name])
        for name, gradient in gradients.items()
    ]


def _exact(blueprint: Blueprint, alone: Layout, data: tuple[BatchSource, int, int]) -> dict[str, Tensor]:
    """Gradients in fp32 from the weights as they are stored."""
    wide = dtype("fp32")
    single_parameters = assemble(alone_of(blueprint), alone).parameters()
    precision = Precision(compute=wide, weights=wide, activations=wide, kv=wide)
    assembly = assemble(alone_of(replace(blueprint, gradients=wide), precision), alone)
    with torch.no_grad():
        for name, parameter in assembly.parameters().items():
            parameter.copy_(single_parameters[name])
    return _gradients(assembly, *data)[1]


def _rms(tensors: Iterable[Tensor]) -> float:
    squares, elements = zip(
        *((float(tensor.float().square().sum()), tensor.numel()) for tensor in tensors), strict=True
    )
    return float((sum(squares) / sum(elements)) ** 0.5)


def _difference(one: Tensor, other: Tensor, floor: float) -> float:
    return _rms([one.float() - other.float()]) / max(_rms([other]), floor)
