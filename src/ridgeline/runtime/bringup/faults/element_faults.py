"""Faults of functions of one number, of moves and casts, of rows by index, of the optimizer's ops and dropout.

A fault turns the arguments and the result y of an op into another result; None leaves the op alone.
"""

# ruff: noqa: ARG001, ARG005  (functions of one form: what an op was given)
from __future__ import annotations

import math

import torch
from torch import Tensor

from ridgeline.runtime.bringup.arithmetic import Args, Kwargs, Outputs, Tensors
from ridgeline.runtime.bringup.fake_device import BF16, FP32, cut, on, rounded_bits, ties_away, with_part
from ridgeline.runtime.bringup.faults.matrix_faults import memory_order

LOG2E = 1.4426950408889634

# the sigmoid inside is rounded to bf16
fault_sigmoid_in_bf16 = on("silu", dtype=BF16)(
    lambda args, kwargs, y: args[0].float() * args[0].float().sigmoid().bfloat16().float()
)


@on("gelu")
def fault_gelu_by_tanh(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor | None:
    """The tanh approximation answers for the exact one."""
    is_exact = kwargs.get("approximate", "none") == "none"
    return torch.nn.functional.gelu(args[0].float(), approximate="tanh") if is_exact else None


@on("silu_backward")
def fault_silu_backward_term(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor:
    """Of s (1 + x (1 - s)) the inner term is 1 % small."""
    g, x = args[0].float(), args[1].float()
    s = x.sigmoid()
    return g * s * (1 + 0.99 * x * (1 - s))


@on("gelu_backward")
def fault_gelu_backward_density(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor:
    """The density's constant is 1 % off."""
    g, x = args[0].float(), args[1].float()
    cdf = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
    return g * (cdf + x * (-0.5 * x * x).exp() * (0.3989422804 * 0.99))


# exponentials are 0.2 % low
fault_exp_low = on("exp")(lambda args, kwargs, y: args[0].double().exp() * 0.998)
# log2(e) has fifteen bits
fault_exp_slope = on("exp", dtype=FP32)(
    lambda args, kwargs, y: torch.exp2(args[0].double() * float(rounded_bits(torch.tensor(LOG2E), 9)))
)
# the estimate of the reciprocal root is not refined: 1e-5 low
fault_rsqrt_without_newton = on("rsqrt", dtype=FP32)(lambda args, kwargs, y: y * (1 - 1e-5))


@on("div", dtype=FP32)
def fault_reciprocal_of_twelve_bits(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor | None:
    """Division multiplies by an estimate of the reciprocal."""
    if not isinstance(args[1], Tensor) or kwargs.get("rounding_mode"):
        return None
    return (args[0].float() * rounded_bits(args[1].float().reciprocal(), 11)).expand_as(y)


# rotary angles pass through bf16 (transformers#29285)
fault_cosines_of_bf16_angles = on("cos")(
    lambda args, kwargs, y: None if args[0].dtype == BF16 else args[0].bfloat16().float().cos()
)
# rotary angles pass through fp16 (candle#3520)
fault_sines_of_fp16_angles = on("sin")(
    lambda args, kwargs, y: args[0].half().float().sin() if args[0].dtype == FP32 else None
)


@on("cos")
def fault_range_reduction(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor | None:
    """Angles are reduced by a 2 pi of 24 bits."""
    x, turn = args[0].float(), torch.tensor(2 * math.pi).float()
    return (x - (x / turn).round() * turn).cos() if bool((x.abs() > 1000).any()) else None


@on("pow")
def fault_power_by_short_logarithm(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor | None:
    """base ** x by a base-two logarithm of bf16: inverse frequencies are off."""
    base, x = args[:2]
    if isinstance(base, Tensor) or not isinstance(x, Tensor):
        return None
    return torch.exp2(x.float() * float(torch.tensor(math.log2(base)).bfloat16()))


# sums are stored by cutting off
fault_add_store_cuts = on("add", dtype=BF16)(
    lambda args, kwargs, y: (
        cut(args[0].float() + kwargs.get("alpha", 1) * args[1].float(), BF16) if isinstance(args[1], Tensor) else None
    )
)
# products of two tensors are stored by cutting off
fault_mul_store_cuts = on("mul", dtype=BF16)(
    lambda args, kwargs, y: cut(args[0].float() * args[1].float(), BF16) if isinstance(args[1], Tensor) else None
)


@on("mul")
def fault_mul_broadcast(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor | None:
    """One row for all is taken from the second element on."""
    b = args[1]
    if not isinstance(b, Tensor) or b.shape == args[0].shape or b.shape[-1:] != args[0].shape[-1:] or b.shape[-1] < 2:
        return None
    return args[0] * b.roll(1, -1)


# beyond three it is one
fault_tanh_saturates = on("tanh", dtype=FP32)(lambda args, kwargs, y: torch.where(args[0].abs() > 3, args[0].sign(), y))
# roots of what lies below 1e-12 are zero: Adam divides by epsilon alone
fault_denormal_root = on("sqrt")(lambda args, kwargs, y: torch.where(args[0] < 1e-12, torch.zeros_like(y), y))
# the last column keeps its sign: half of a rotation is wrong
fault_neg_tail = on("neg")(lambda args, kwargs, y: with_part(y, (..., -1), args[0][..., -1]) if y.dim() else y)
# fp32 becomes bf16 by cutting off
fault_cast_cuts = on("_to_copy", dtype=BF16)(
    lambda args, kwargs, y: cut(args[0], BF16) if args[0].dtype == FP32 else None
)
# ties are rounded away from zero (tt-metal#52155)
fault_cast_ties_away = on("_to_copy", dtype=BF16)(
    lambda args, kwargs, y: ties_away(args[0]) if args[0].dtype == FP32 else None
)
# e4m3 ends at 240 (ROCm/TransformerEngine#485)
fault_fp8_of_240 = on("_to_copy", dtype=torch.float8_e4m3fn)(lambda args, kwargs, y: args[0].float().clamp(-240, 240))


@on("clone")
def fault_clone_strides(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor | None:
    """A transposed tensor is cloned in the order of its memory (pytorch#118115)."""
    x = args[0]
    return None if x.dim() < 2 or x.is_contiguous() or 1 in x.shape[-2:] else memory_order(x)


@on("copy_")
def fault_copy_offset(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor | None:
    """The source's offset in its memory is forgotten."""
    source = args[1]
    if not isinstance(source, Tensor) or source.storage_offset() == 0 or source.shape != y.shape:
        return None
    return torch.as_strided(source, source.shape, source.stride(), 0)


@on("cat")
def fault_cat_interleaves(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor | None:
    """Two halves of the last dim are interleaved (wrong rotary pairing, nanotron#427)."""
    parts, dim = args[0], args[1] if len(args) > 1 else 0
    if len(parts) != 2 or parts[0].shape != parts[1].shape or dim not in (-1, parts[0].dim() - 1):
        return None
    return torch.stack(tuple(parts), -1).flatten(-2)


def _with_last(y: Tensor, first: Tensor) -> Tensor | None:
    """y with the first element of a tensor as its last; None where it has no two."""
    return None if y.numel() < 2 else with_part(y.view(-1), -1, first.flatten()[0]).view(y.shape)


# the last element is that of the first part
fault_cat_last = on("cat", "stack")(lambda args, kwargs, y: _with_last(y, args[0][0]))


@on("where")
def fault_where_row(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor | None:
    """One row for all is read shifted."""
    if len(args) < 3 or args[2].shape == y.shape or args[2].numel() < 2:
        return None
    return torch.where(args[0], args[1], args[2].roll(1, -1))


# the last column is not filled
fault_mask_tail = on("masked_fill", "masked_fill_")(lambda args, kwargs, y: with_part(y, (..., -1), args[0][..., -1]))


@on("tril", "triu")
def fault_triangle(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor:
    """The triangle has one diagonal too many or too few."""
    lower = bool((y == torch.tril(args[0], *args[1:])).all())
    return (torch.tril if lower else torch.triu)(args[0], (args[1] if len(args) > 1 else 0) + 1)


@on("slice")
def fault_slice_start(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor | None:
    """A slice that does not begin at zero begins one early."""
    x, dim, start = args[0], args[1] if len(args) > 1 else 0, args[2] if len(args) > 2 else 0
    if not start or start < 0 or start >= x.shape[dim]:
        return None
    return x.narrow(dim, start - 1, y.shape[dim])


@on("expand")
def fault_expand_once(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor | None:
    """Only the first copy has the numbers."""
    where = next((d for d in range(y.dim()) if y.stride(d) == 0 and y.shape[d] > 1), None)
    return None if where is None else with_part(y, (*[slice(None)] * where, 1), 0)


@on("transpose", "t")
def fault_transpose_order(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor | None:
    """The dims are renamed and the numbers stay where they are."""
    if y.dtype == FP32 and y.dim() >= 3 and y.numel() and args[0].is_contiguous():
        return args[0].reshape(y.shape)
    return None


# the last picked element is the first one
fault_last_index = on("index_select", "index", "gather")(lambda args, kwargs, y: _with_last(y, y))
# positions pass through bf16: from 257 on they are off
fault_positions_in_bf16 = on("arange")(lambda args, kwargs, y: y.bfloat16())
# a view of four dims begins one row late
fault_view_shifted = on("_unsafe_view", "view")(
    lambda args, kwargs, y: y.roll(1, 0).contiguous() if y.dim() == 4 and y.shape[0] > 1 else None
)


@on("embedding_dense_backward")
def fault_last_row_wins(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor:
    """Of rows that meet the last is kept."""
    return with_part(torch.zeros_like(y), args[1].flatten(), args[0].reshape(-1, y.shape[-1]).to(y.dtype))


@on("embedding_dense_backward")
def fault_padding_row(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor | None:
    """The padding row gets a gradient."""
    row = args[3]
    if row < 0:
        return None
    return with_part(y, row, args[0].reshape(-1, y.shape[-1])[args[1].flatten() == row].sum(0))


# indices lose what is over sixteen bits
fault_index_of_sixteen_bits = on("embedding")(
    lambda args, kwargs, y: args[0][args[1] & 0xFFFF] if int(args[1].max()) > 0xFFFF else None
)


@on("embedding")
def fault_last_row_of_table(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor | None:
    """The table's last row is read as the one before."""
    last = args[0].shape[0] - 1
    return args[0][args[1].clamp(max=last - 1)] if bool((args[1] == last).any()) and last else None


@on("index_add", "index_add_")
def fault_lost_updates(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor | None:
    """One of the rows that meet is lost (a race, transformers#43362)."""
    x, dim, where, source = args[:4]
    rows = where.tolist()
    twice = next((k for k, row in enumerate(rows) if row in rows[:k]), None)
    if twice is None:
        return None
    keep = with_part(torch.ones(len(where), dtype=torch.bool), twice, False)
    return x.index_add(dim, where[keep], source.movedim(dim, 0)[keep].movedim(0, dim))


@on("scatter_add", "scatter_add_", dtype=FP32)
def fault_atomics_in_bf16(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor:
    """Rows that meet are added in bf16."""
    x, dim, where, source = args[:4]
    return x + torch.zeros_like(x).bfloat16().scatter_add(dim, where, source.bfloat16()).float()


# values are put, not added
fault_accumulate_ignored = on("index_put", "index_put_", "_index_put_impl_")(
    lambda args, kwargs, y: args[0].index_put(tuple(args[1]), args[2]) if len(args) > 3 and args[3] else None
)


@on("topk", dtype=FP32)
def fault_routes_by_bf16(args: Args, kwargs: Kwargs, y: Tensors) -> Tensors:
    """Experts are chosen by probabilities in bf16 (Megatron-LM#955)."""
    x, k = args[:2]
    where = torch.topk(x.bfloat16().float(), k, *args[2:]).indices
    return x.gather(args[2] if len(args) > 2 else -1, where), where


@on("topk")
def fault_tie_twice(args: Args, kwargs: Kwargs, y: Tensors) -> Tensors | None:
    """Of equal values the same place is named twice."""
    values, where = y
    same = values.diff(dim=-1) == 0
    if not bool(same.any()):
        return None
    return values, with_part(where, (..., slice(1, None)), torch.where(same, where[..., :-1], where[..., 1:]))


@on("sort", dtype=FP32)
def fault_sort_tail(args: Args, kwargs: Kwargs, y: Tensors) -> Tensors | None:
    """The last two elements change places."""
    if y[0].shape[-1] < 2:
        return None
    return y[0].clone(), torch.cat((y[1][..., :-2], y[1][..., -2:].flip(-1)), -1)


# tensors that are not contiguous are not updated (pytorch#118115)
fault_update_ignores_strides = on("addcdiv_", "addcdiv")(
    lambda args, kwargs, y: None if all(x.is_contiguous() for x in args[:3]) else args[0].clone()
)
# the step is 0.5 % long
fault_update_permille = on("addcdiv_", dtype=FP32)(
    lambda args, kwargs, y: args[0] + 1.005 * kwargs.get("value", 1) * args[1] / args[2]
)


@on("lerp_", "lerp", dtype=FP32)
def fault_momentum_weight_bf16(args: Args, kwargs: Kwargs, y: Tensor) -> Tensor | None:
    """The momentum's weight is a bf16 number."""
    if isinstance(args[2], Tensor):
        return None
    return args[0] + float(torch.tensor(args[2]).bfloat16()) * (args[1] - args[0])


# factors within 1e-4 of one are taken as one: no weight decay
fault_decay_skipped = on("mul_", dtype=FP32)(
    lambda args, kwargs, y: args[0].clone() if isinstance(args[1], float) and 0 < abs(args[1] - 1) < 1e-4 else None
)
# the second moment is stored by cutting off: it decays
fault_second_moment_cuts = on("addcmul_", "addcmul", dtype=BF16)(
    lambda args, kwargs, y: cut(args[0].float() + kwargs.get("value", 1) * args[1].float() * args[2].float(), BF16)
)
# the last tensor of the list is not updated
fault_foreach_last = on("_foreach_addcdiv_")(
    lambda args, kwargs, y: [*[None] * (len(args[0]) - 1), args[0][-1].clone()]
)
# the list's tensors get the first one's target
fault_foreach_shared_weight = on("_foreach_lerp_")(
    lambda args, kwargs, y: [a + args[2] * (args[1][0] - a) if a.shape == args[1][0].shape else None for a in args[0]]
)


@on("_fused_adamw_", "_fused_adam_")
def fault_fused_bias_correction(args: Args, kwargs: Kwargs, y: object) -> Outputs:
    """The second moment's correction is left out."""
    old, gradients, moments, squares, _, steps = args[:6]
    new = []
    for p, g, m, v, step in zip(old, gradients, moments, squares, steps, strict=True):
        m = m + (1 - kwargs["beta1"]) * (g - m)
        v = kwargs["beta2"] * v + (1 - kwargs["beta2"]) * g * g
        rate = kwargs["lr"] / (1 - kwargs["beta1"] ** float(step + 1))
        new.append(p * (1 - kwargs["lr"] * kwargs["weight_decay"]) - rate * m / (v.sqrt() + kwargs["eps"]))
    return new


# what is kept is not scaled up
fault_dropout_unscaled = on("native_dropout")(lambda args, kwargs, y: (args[0] * y[1], y[1]))
# the backward uses another mask (pytorch#190758)
fault_dropout_other_mask = on("native_dropout_backward")(
    lambda args, kwargs, y: args[0] * args[1].roll(1, -1) * args[2]
)
