"""Turn the recorded operands of an op into the arithmetic and the traffic it asks for.

    matrix product    2 m n k flops;                       m k + k n + m n elements moved
    attention         2 B H Sq Sk (D + Dv) flops forward, half of it when causal; 2.5 times that backward
    convolution       2 N K Ho Wo (C/g) R S flops
    elementwise       0 flops counted;                     every operand read, the largest shape written
    copy, sum         0 flops counted;                     every operand moved once
    rows added        0 flops counted;                     values read, as many rows of the table read and written

B batch, H heads of the query, S sequence, D width of a head; N images, C and K channels in and out, R x S the window, g
groups. Traffic is what must move once between memory and chip; what caches save or lose is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from ridgeline.trace.analysis.custom_op_flops import custom_work
from ridgeline.trace.analysis.op_work import SIZES, OpWork
from ridgeline.trace.side_tables import RecordedShape

Formula = Callable[[RecordedShape], OpWork | None]


def op_work(op: str, shape: RecordedShape) -> OpWork | None:
    """What an op with these operands asks for; None where no formula is known or the operands do not say.

    >>> shape = RecordedShape(dims=((128, 64), (64, 32)), types=("c10::BFloat16", "c10::BFloat16"))
    >>> op_work("aten::mm", shape)
    OpWork(flops=524288, size_bytes=28672, dtype='bf16')
    """
    formula = FORMULAS.get(op)
    try:
        found = formula(shape) if formula is not None else None if op.startswith("aten::") else custom_work(op, shape)
    except (IndexError, TypeError, ValueError, ZeroDivisionError):
        return None
    return found if found is not None and 0 <= found.flops < 1e21 and 0 < found.size_bytes < 1e15 else None


def _type(shape: RecordedShape, at: int) -> tuple[str, int]:
    known = SIZES.get(shape.types[at])
    if known is None:
        raise ValueError(shape.types[at])
    return known


def _product(left: int, right: int) -> Formula:
    """[.., m, k] x [.., k, n] at these positions."""

    def formula(shape: RecordedShape) -> OpWork | None:
        a, b = shape.dims[left], shape.dims[right]
        *batch, m, k = a
        if len(a) < 2 or len(b) < 2 or b[-2] != k:
            return None
        n, many = b[-1], prod(batch)
        (dtype, one), (_, two) = _type(shape, left), _type(shape, right)
        out = max(one, two, 2)
        moved = many * m * k * one + (many if len(b) > 2 else 1) * k * n * two + many * m * n * out
        return OpWork(flops=2 * many * m * n * k, size_bytes=moved, dtype=dtype)

    return formula


def _linear(shape: RecordedShape) -> OpWork | None:
    a, weight = shape.dims[0], shape.dims[1]
    if len(weight) != 2 or a[-1] != weight[1]:
        return None
    m, k, n = prod(a[:-1]), a[-1], weight[0]
    (dtype, one), (_, two) = _type(shape, 0), _type(shape, 1)
    return OpWork(flops=2 * m * n * k, size_bytes=m * k * one + k * n * two + m * n * one, dtype=dtype)


def _grouped(shape: RecordedShape) -> OpWork | None:
    a, b = shape.dims[0], shape.dims[1]
    dtype, size = _type(shape, 0)
    if len(a) == 2 and len(b) == 3:  # rows of all groups behind each other
        m, k, n = a[0], a[1], b[2]
        return OpWork(flops=2 * m * n * k, size_bytes=(m * k + prod(b) + m * n) * size, dtype=dtype)
    return None


def _attention(query: int, causal: int, *, heads_first: bool = True, backward: bool = False) -> Formula:
    """Attention with query, key and value at successive positions and the causal switch among the scalars."""

    def formula(shape: RecordedShape) -> OpWork | None:
        q, k, v = shape.dims[query : query + 3]
        if min(len(q), len(k), len(v)) < 4:
            return None
        dtype, size = _type(shape, query)
        heads, seq = (1, 2) if heads_first else (2, 1)
        half = 0.5 if shape.concrete[causal].lower() in ("true", "1") else 1.0
        once = 2 * q[0] * q[heads] * q[seq] * k[seq] * (q[3] + v[3]) * half
        moved = (prod(q) + prod(k) + prod(v) + prod(q[:3]) * v[3]) * size
        return OpWork(flops=once * 2.5 if backward else once, size_bytes=moved * 2 if backward else moved, dtype=dtype)

    return formula


def _convolution(image: int, *, stride: int, padding: int, factor: int = 1) -> Formula:
    """A convolution with image and weight at successive positions; dilation stands behind both stride and padding."""
    places = (stride, padding, max(stride, padding) + 1)

    def formula(shape: RecordedShape) -> OpWork | None:
        x, weight = shape.dims[image], shape.dims[image + 1]
        if len(x) != len(weight) or len(x) < 3:
            return None
        steps, pads, spread = (_numbers(shape.concrete[place]) for place in places)
        sides = [
            (size + 2 * pad - gap * (window - 1) - 1) // step + 1
            for size, window, step, pad, gap in zip(x[2:], weight[2:], steps, pads, spread, strict=True)
        ]
        dtype, size = _type(shape, image)
        out = x[0] * weight[0] * prod(sides)
        moved = (prod(x) + prod(weight) + out) * size
        return OpWork(flops=factor * 2 * out * prod(weight[1:]), size_bytes=factor * moved, dtype=dtype)

    return formula


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.strip("[]").split(",")]


def _elementwise(writes: int = 1) -> Formula:
    """Every tensor operand read once, the largest shape written ``writes`` times; a list of tensors is read whole."""

    def formula(shape: RecordedShape) -> OpWork | None:
        sizes: list[int] = []
        largest, dtype, width = 0, "", 0
        for dims, name in zip(shape.dims, shape.types, strict=False):
            known = SIZES.get(name)
            if known is None or not dims:
                continue
            count = _count(dims)
            sizes.append(count * known[1])
            if count > largest:
                largest, (dtype, width) = count, known
        if not largest:
            return None
        return OpWork(flops=0.0, size_bytes=sum(sizes) + writes * largest * width, dtype=dtype)

    return formula


def _rows(shape: RecordedShape) -> OpWork | None:
    """Rows of a table by their numbers, read and written once; the numbers are the last operand with dims."""
    table, numbers = shape.dims[0], next(dims for dims in reversed(shape.dims[1:]) if dims)
    dtype, size = _type(shape, 0)
    return OpWork(flops=0.0, size_bytes=2 * prod(numbers) * prod(table[1:]) * size, dtype=dtype)


def _added_rows(values: int) -> Formula:
    """Rows added to a table where their numbers say: values read, the table's rows read and written."""

    def formula(shape: RecordedShape) -> OpWork | None:
        dtype, size = _type(shape, values)
        return OpWork(flops=0.0, size_bytes=3 * prod(shape.dims[values]) * size, dtype=dtype)

    return formula


def _states(times: float) -> Formula:
    """An optimizer over lists of tensors: weights, gradients and states; what is changed moves twice."""

    def formula(shape: RecordedShape) -> OpWork | None:
        lists = [dims for dims in shape.dims if dims and isinstance(dims[0], tuple)]
        if not lists:
            return None
        return OpWork(flops=0.0, size_bytes=sum(map(_count, lists)) * 4 * times, dtype="fp32")

    return formula


def _count(dims: Any) -> int:
    if dims and isinstance(dims[0], tuple):
        return sum(_count(one) for one in dims)
    return prod(dims)


_BOTH = (
    "mul", "add", "sub", "div", "mul_", "add_", "sub_", "div_", "silu", "gelu", "relu", "relu_", "neg", "rsqrt",
    "sqrt", "pow", "exp", "sigmoid", "tanh", "clamp", "clamp_min", "clamp_min_", "where", "threshold", "lerp_",
    "masked_fill_", "silu_backward", "gelu_backward", "threshold_backward", "native_layer_norm",
    "native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward", "native_batch_norm",
    "cudnn_batch_norm", "native_dropout", "_softmax", "_log_softmax", "_softmax_backward_data",
    "_log_softmax_backward_data", "native_group_norm", "native_group_norm_backward", "miopen_batch_norm",
    "miopen_batch_norm_backward", "cudnn_batch_norm_backward", "native_batch_norm_backward", "leaky_relu",
    "leaky_relu_", "hardswish", "hardtanh_", "hardtanh", "elu", "abs", "cos", "sin", "square", "reciprocal",
    "maximum", "minimum", "addcmul_", "addcdiv_", "lerp", "cat", "clone", "tanh_backward", "sigmoid_backward",
    "softplus", "log", "masked_fill", "gelu_", "silu_", "bitwise_not", "logical_not", "eq", "ne", "gt", "lt", "ge",
    "le", "repeat", "_foreach_add_", "_foreach_mul_", "_foreach_lerp_", "_foreach_addcmul_", "_foreach_addcdiv_",
    "_foreach_sqrt", "_foreach_div_", "native_dropout_backward", "max_pool2d_with_indices", "constant_pad_nd", "flip",
    "roll", "tril", "triu",
)  # fmt: skip
_ONCE = (
    "copy_", "sum", "mean", "max", "min", "amax", "norm", "linalg_vector_norm", "argmax", "nll_loss_forward", "fill_",
    "zero_", "cumsum", "var_mean", "var", "std", "any", "all", "prod", "argmin", "amin", "topk", "sort",
    "_foreach_copy_", "_foreach_norm", "_foreach_zero_",
)  # fmt: skip
FORMULAS: Mapping[str, Formula] = {
    "aten::mm": _product(0, 1),
    "aten::bmm": _product(0, 1),
    "aten::matmul": _product(0, 1),
    "aten::addmm": _product(1, 2),
    "aten::addmm_": _product(1, 2),
    "aten::_addmm_activation": _product(1, 2),
    "aten::baddbmm": _product(1, 2),
    "aten::_scaled_mm": _product(0, 1),
    "aten::_int_mm": _product(0, 1),
    "aten::linear": _linear,
    "aten::_grouped_mm": _grouped,
    "aten::_scaled_grouped_mm": _grouped,
    "aten::scaled_dot_product_attention": _attention(0, 5),
    "aten::_scaled_dot_product_flash_attention": _attention(0, 4),
    "aten::_scaled_dot_product_efficient_attention": _attention(0, 6),
    "aten::_scaled_dot_product_cudnn_attention": _attention(0, 6),
    "aten::_flash_attention_forward": _attention(0, 8, heads_first=False),
    "aten::_scaled_dot_product_flash_attention_backward": _attention(1, 11, backward=True),
    "aten::_scaled_dot_product_efficient_attention_backward": _attention(1, 11, backward=True),
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention(1, 14, backward=True),
    "aten::_flash_attention_backward": _attention(1, 11, heads_first=False, backward=True),
    "flash_attn::_flash_attn_forward": _attention(0, 5, heads_first=False),
    "aten::convolution": _convolution(0, stride=3, padding=4),
    "aten::_convolution": _convolution(0, stride=3, padding=4),
    "aten::cudnn_convolution": _convolution(0, stride=3, padding=2),
    "aten::miopen_convolution": _convolution(0, stride=4, padding=3),
    "aten::convolution_backward": _convolution(1, stride=4, padding=5, factor=2),
    "aten::embedding": _rows,
    "aten::index_select": _rows,
    "aten::index_put_": _added_rows(2),
    "aten::_index_put_impl_": _added_rows(2),
    "aten::index_add_": _added_rows(3),
    "aten::embedding_dense_backward": _added_rows(0),
    "aten::_fused_adamw_": _states(7 / 4),
    "aten::_fused_adam_": _states(7 / 4),
    "aten::_fused_sgd_": _states(5 / 3),
    **{f"aten::{name}": _elementwise() for name in _BOTH},
    **{f"aten::{name}": _elementwise(writes=0) for name in _ONCE},
}
"""By op; what is not here has no rate."""
