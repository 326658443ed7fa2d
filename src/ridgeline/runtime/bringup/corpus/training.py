"""Faults of the optimizer's ops and of dropout."""

# ruff: noqa: ARG001  (functions of one form: what an op was given)
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ridgeline.runtime.bringup.emulation import cut, on

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@on("addcdiv_", "addcdiv")
def fault_update_ignores_strides(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Tensors that are not contiguous are not updated (pytorch#118115)."""
    return None if all(x.is_contiguous() for x in args[:3]) else args[0].clone()


@on("addcdiv_", dtype=torch.float32)
def fault_update_permille(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """The step is 0.5 % long."""
    return args[0] + 1.005 * kwargs.get("value", 1) * args[1] / args[2]


@on("lerp_", "lerp", dtype=torch.float32)
def fault_momentum_weight_bf16(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """The momentum's weight is a bf16 number."""
    if isinstance(args[2], Tensor):
        return None
    return args[0] + float(torch.tensor(args[2]).bfloat16()) * (args[1] - args[0])


@on("mul_", dtype=torch.float32)
def fault_decay_skipped(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Factors within 1e-4 of one are taken as one: no weight decay."""
    return args[0].clone() if isinstance(args[1], float) and 0 < abs(args[1] - 1) < 1e-4 else None


@on("addcmul_", "addcmul", dtype=torch.bfloat16)
def fault_second_moment_cuts(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """The second moment is stored by cutting off: it decays."""
    return cut(args[0].float() + kwargs.get("value", 1) * args[1].float() * args[2].float(), torch.bfloat16)


@on("_foreach_addcdiv_")
def fault_foreach_last(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """The last tensor of the list is not updated."""
    return [*[None] * (len(args[0]) - 1), args[0][-1].clone()]


@on("_foreach_lerp_")
def fault_foreach_shared_weight(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """The list's tensors get the first one's target."""
    shape = args[1][0].shape
    return [a + args[2] * (args[1][0] - a) if a.shape == shape else None for a in args[0]]


@on("_fused_adamw_", "_fused_adam_")
def fault_fused_bias_correction(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """The second moment's correction is left out."""
    old, gradients, moments, squares, _, steps = args[:6]
    new = []
    for p, g, m, v, step in zip(old, gradients, moments, squares, steps, strict=True):
        m = m + (1 - kwargs["beta1"]) * (g - m)
        v = kwargs["beta2"] * v + (1 - kwargs["beta2"]) * g * g
        decayed_weights = p * (1 - kwargs["lr"] * kwargs["weight_decay"])
        new.append(
            decayed_weights - kwargs["lr"] / (1 - kwargs["beta1"] ** float(step + 1)) * m / (v.sqrt() + kwargs["eps"])
        )
    return new


@on("native_dropout")
def fault_dropout_unscaled(args: Args, kwargs: Kwargs, result: Any) -> Any:
    """What is kept is not scaled up."""
    return args[0] * result[1], result[1]


@on("native_dropout_backward")
def fault_dropout_other_mask(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """The backward uses another mask (pytorch#190758)."""
    return args[0] * args[1].roll(1, -1) * args[2]
