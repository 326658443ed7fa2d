"""Faults of functions of one number, of moves and casts, of rows by index, of the optimizer's ops and dropout."""

# ruff: noqa: ARG001  (functions of one form: what an op was given)
from __future__ import annotations

import math

import torch
from torch import Tensor

from ridgeline.runtime.bringup.arithmetic import Args, Kwargs, Outputs, Tensors
from ridgeline.runtime.bringup.fake_device import cut, on, rounded_bits, ties_away, with_part


@on("silu", dtype=torch.bfloat16)
def fault_sigmoid_in_bf16(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """The sigmoid inside is rounded to bf16."""
    return (args[0].float() * args[0].float().sigmoid().bfloat16().float()).to(result.dtype)


@on("gelu")
def fault_gelu_by_tanh(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """The tanh approximation answers for the exact one."""
    if kwargs.get("approximate", "none") != "none":
        return None
    return torch.nn.functional.gelu(args[0].float(), approximate="tanh").to(result.dtype)


@on("silu_backward")
def fault_silu_backward_term(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """Of s (1 + x (1 - s)) the inner term is 1 % small."""
    g, x = args[0].float(), args[1].float()
    s = x.sigmoid()
    return (g * s * (1 + 0.99 * x * (1 - s))).to(result.dtype)


@on("gelu_backward")
def fault_gelu_backward_density(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """The density's constant is 1 % off."""
    g, x = args[0].float(), args[1].float()
    cdf = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
    return (g * (cdf + x * (-0.5 * x * x).exp() * (0.3989422804 * 0.99))).to(result.dtype)


@on("exp")
def fault_exp_low(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """Exponentials are 0.2 % low."""
    return (args[0].double().exp() * 0.998).to(result.dtype)


@on("exp", dtype=torch.float32)
def fault_exp_slope(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """log2(e) has fifteen bits."""
    log2e = float(rounded_bits(torch.tensor(1.4426950408889634), 9))
    return torch.exp2(args[0].double() * log2e).to(result.dtype)


@on("rsqrt", dtype=torch.float32)
def fault_rsqrt_without_newton(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """The estimate of the reciprocal root is not refined: 1e-5 low."""
    return result * (1 - 1e-5)


@on("div", dtype=torch.float32)
def fault_reciprocal_of_twelve_bits(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Division multiplies by an estimate of the reciprocal."""
    if not isinstance(args[1], Tensor) or kwargs.get("rounding_mode"):
        return None
    return (args[0].float() * rounded_bits(args[1].float().reciprocal(), 11)).to(result.dtype).expand_as(result)


@on("cos")
def fault_cosines_of_bf16_angles(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Rotary angles pass through bf16 (transformers#29285)."""
    return None if args[0].dtype == torch.bfloat16 else args[0].bfloat16().float().cos().to(result.dtype)


@on("sin")
def fault_sines_of_fp16_angles(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Rotary angles pass through fp16 (candle#3520)."""
    return None if args[0].dtype != torch.float32 else args[0].half().float().sin().to(result.dtype)


@on("cos")
def fault_range_reduction(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Angles are reduced by a 2 pi of 24 bits."""
    x, turn = args[0].float(), torch.tensor(2 * math.pi).float()
    return (x - (x / turn).round() * turn).cos().to(result.dtype) if bool((x.abs() > 1000).any()) else None


@on("pow")
def fault_power_by_short_logarithm(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """base ** x by a base-two logarithm of bf16: inverse frequencies are off."""
    base, x = args[:2]
    if isinstance(base, Tensor) or not isinstance(x, Tensor):
        return None
    return torch.exp2(x.float() * float(torch.tensor(math.log2(base)).bfloat16())).to(result.dtype)


@on("add", dtype=torch.bfloat16)
def fault_add_store_cuts(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Sums are stored by cutting off."""
    if not isinstance(args[1], Tensor):
        return None
    return cut(args[0].float() + kwargs.get("alpha", 1) * args[1].float(), torch.bfloat16)


@on("mul", dtype=torch.bfloat16)
def fault_mul_store_cuts(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Products of two tensors are stored by cutting off."""
    return cut(args[0].float() * args[1].float(), torch.bfloat16) if isinstance(args[1], Tensor) else None


@on("mul")
def fault_mul_broadcast(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """One row for all is taken from the second element on."""
    b = args[1]
    if not isinstance(b, Tensor) or b.shape == args[0].shape or b.shape[-1:] != args[0].shape[-1:] or b.shape[-1] < 2:
        return None
    return args[0] * b.roll(1, -1)


@on("tanh", dtype=torch.float32)
def fault_tanh_saturates(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """Beyond three it is one."""
    return torch.where(args[0].abs() > 3, args[0].sign(), result)


@on("sqrt")
def fault_denormal_root(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """Roots of what lies below 1e-12 are zero: Adam divides by epsilon alone."""
    return torch.where(args[0] < 1e-12, torch.zeros_like(result), result)


@on("neg")
def fault_neg_tail(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """The last column keeps its sign: half of a rotation is wrong."""
    return with_part(result, (..., -1), args[0][..., -1]) if result.dim() else result


@on("_to_copy", dtype=torch.bfloat16)
def fault_cast_cuts(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """fp32 becomes bf16 by cutting off."""
    return cut(args[0], torch.bfloat16) if args[0].dtype == torch.float32 else None


@on("_to_copy", dtype=torch.bfloat16)
def fault_cast_ties_away(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Ties are rounded away from zero (tt-metal#52155)."""
    return ties_away(args[0]) if args[0].dtype == torch.float32 else None


@on("_to_copy")
def fault_fp8_of_240(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """e4m3 ends at 240 (ROCm/TransformerEngine#485)."""
    if result.dtype != torch.float8_e4m3fn:
        return None
    return args[0].float().clamp(-240, 240).to(result.dtype)


@on("clone")
def fault_clone_strides(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """A transposed tensor is cloned in the order of its memory (pytorch#118115)."""
    x = args[0]
    if x.dim() < 2 or x.is_contiguous() or 1 in x.shape[-2:]:
        return None
    return x.mT.contiguous().flatten().view(x.shape)


@on("copy_")
def fault_copy_offset(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """The source's offset in its memory is forgotten."""
    source = args[1]
    if not isinstance(source, Tensor) or source.storage_offset() == 0 or source.shape != result.shape:
        return None
    return torch.as_strided(source, source.shape, source.stride(), 0).to(result.dtype)


@on("cat")
def fault_cat_interleaves(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Two halves of the last dim are interleaved (wrong rotary pairing, nanotron#427)."""
    parts, dim = args[0], args[1] if len(args) > 1 else 0
    if len(parts) != 2 or parts[0].shape != parts[1].shape or dim not in (-1, parts[0].dim() - 1):
        return None
    return torch.stack(tuple(parts), -1).flatten(-2)


@on("cat", "stack")
def fault_cat_last(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """The last element is that of the first part."""
    if result.numel() < 2:
        return None
    wrong = result.clone()
    wrong.view(-1)[-1] = args[0][0].flatten()[0]
    return wrong


@on("where")
def fault_where_row(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """One row for all is read shifted."""
    if len(args) < 3 or args[2].shape == result.shape or args[2].numel() < 2:
        return None
    return torch.where(args[0], args[1], args[2].roll(1, -1))


@on("masked_fill", "masked_fill_")
def fault_mask_tail(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """The last column is not filled."""
    return with_part(result, (..., -1), args[0][..., -1])


@on("tril", "triu")
def fault_triangle(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """The triangle has one diagonal too many or too few."""
    lower = bool((result == torch.tril(args[0], *args[1:])).all())
    by = (args[1] if len(args) > 1 else 0) + 1
    return torch.tril(args[0], by) if lower else torch.triu(args[0], by)


@on("slice")
def fault_slice_start(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """A slice that does not begin at zero begins one early."""
    x, dim, start = args[0], args[1] if len(args) > 1 else 0, args[2] if len(args) > 2 else 0
    if not start or start < 0 or start >= x.shape[dim]:
        return None
    return x.narrow(dim, start - 1, result.shape[dim])


@on("expand")
def fault_expand_once(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Only the first copy has the numbers."""
    where = next((d for d in range(result.dim()) if result.stride(d) == 0 and result.shape[d] > 1), None)
    if where is None:
        return None
    wrong = result.clone()
    wrong.narrow(where, 1, 1).zero_()
    return wrong


@on("transpose", "t")
def fault_transpose_order(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """The dims are renamed and the numbers stay where they are."""
    if result.dtype == torch.float32 and result.dim() >= 3 and result.numel() and args[0].is_contiguous():
        return args[0].reshape(result.shape)
    return None


@on("index_select", "index", "gather")
def fault_last_index(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """The last picked element is the first one."""
    if result.numel() < 2:
        return None
    wrong = result.clone()
    wrong.view(-1)[-1] = wrong.view(-1)[0]
    return wrong


@on("arange")
def fault_positions_in_bf16(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """Positions pass through bf16: from 257 on they are off."""
    return result.to(torch.bfloat16).to(result.dtype)


@on("_unsafe_view", "view")
def fault_view_shifted(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """A view of four dims begins one row late."""
    return result.roll(1, 0).contiguous() if result.dim() == 4 and result.shape[0] > 1 else None


@on("embedding_dense_backward")
def fault_last_row_wins(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """Of rows that meet the last is kept."""
    wrong = torch.zeros_like(result)
    wrong[args[1].flatten()] = (
        args[0].flatten(0, -2).to(result.dtype) if args[0].dim() > 2 else args[0].to(result.dtype)
    )
    return wrong


@on("embedding_dense_backward")
def fault_padding_row(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """The padding row gets a gradient."""
    row = args[3]
    if row < 0:
        return None
    return with_part(result, row, args[0].reshape(-1, result.shape[-1])[args[1].flatten() == row].sum(0))


@on("embedding")
def fault_index_of_sixteen_bits(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Indices lose what is over sixteen bits."""
    return args[0][args[1] & 0xFFFF] if int(args[1].max()) > 0xFFFF else None


@on("embedding")
def fault_last_row_of_table(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """The table's last row is read as the one before."""
    last = args[0].shape[0] - 1
    return args[0][args[1].clamp(max=last - 1)] if bool((args[1] == last).any()) and last else None


@on("index_add", "index_add_")
def fault_lost_updates(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """One of the rows that meet is lost (a race, transformers#43362)."""
    x, dim, where, source = args[:4]
    first = {int(i): k for k, i in reversed(list(enumerate(where.tolist())))}
    twice = [k for k, i in enumerate(where.tolist()) if first[int(i)] != k]
    if not twice:
        return None
    keep = torch.ones(len(where), dtype=torch.bool)
    keep[twice[0]] = False
    return x.index_add(dim, where[keep], source.movedim(dim, 0)[keep].movedim(0, dim))


@on("scatter_add", "scatter_add_", dtype=torch.float32)
def fault_atomics_in_bf16(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """Rows that meet are added in bf16."""
    x, dim, where, source = args[:4]
    return x + torch.zeros_like(x).bfloat16().scatter_add(dim, where, source.bfloat16()).float()


@on("index_put", "index_put_", "_index_put_impl_")
def fault_accumulate_ignored(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Values are put, not added."""
    if len(args) < 4 or not args[3]:
        return None
    return args[0].index_put(tuple(args[1]), args[2], accumulate=False)


@on("topk", dtype=torch.float32)
def fault_routes_by_bf16(args: Args, kwargs: Kwargs, result: Tensors) -> Tensors | None:
    """Experts are chosen by probabilities in bf16 (Megatron-LM#955)."""
    x, k = args[:2]
    where = torch.topk(x.bfloat16().float(), k, *args[2:]).indices
    return x.gather(args[2] if len(args) > 2 else -1, where), where


@on("topk")
def fault_tie_twice(args: Args, kwargs: Kwargs, result: Tensors) -> Tensors | None:
    """Of equal values the same place is named twice."""
    values, where = result
    same = values.diff(dim=-1) == 0
    if not bool(same.any()):
        return None
    return values, with_part(where, (..., slice(1, None)), torch.where(same, where[..., :-1], where[..., 1:]))


@on("sort", dtype=torch.float32)
def fault_sort_tail(args: Args, kwargs: Kwargs, result: Tensors) -> Tensors | None:
    """The last two elements change places."""
    if result[0].shape[-1] < 2:
        return None
    return result[0].clone(), torch.cat((result[1][..., :-2], result[1][..., -2:].flip(-1)), -1)


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
def fault_foreach_last(args: Args, kwargs: Kwargs, result: object) -> Outputs:
    """The last tensor of the list is not updated."""
    return [*[None] * (len(args[0]) - 1), args[0][-1].clone()]


@on("_foreach_lerp_")
def fault_foreach_shared_weight(args: Args, kwargs: Kwargs, result: object) -> Outputs:
    """The list's tensors get the first one's target."""
    shape = args[1][0].shape
    return [a + args[2] * (args[1][0] - a) if a.shape == shape else None for a in args[0]]


@on("_fused_adamw_", "_fused_adam_")
def fault_fused_bias_correction(args: Args, kwargs: Kwargs, result: object) -> Outputs:
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
def fault_dropout_unscaled(args: Args, kwargs: Kwargs, result: Tensors) -> Tensors | None:
    """What is kept is not scaled up."""
    return args[0] * result[1], result[1]


@on("native_dropout_backward")
def fault_dropout_other_mask(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    """The backward uses another mask (pytorch#190758)."""
    return args[0] * args[1].roll(1, -1) * args[2]
