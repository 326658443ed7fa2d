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

from ridgeline.core.dtype import PROFILED_TYPES
from ridgeline.ir.kernel import PRODUCT_OPERANDS, Kernel, attention_kernel, product_kernel, stream_kernel
from ridgeline.trace.analysis.library_op_kernels import library_op_kernel
from ridgeline.trace.side_tables import RecordedShape

Formula = Callable[[RecordedShape], Kernel | None]


def op_kernel(op: str, shape: RecordedShape) -> Kernel | None:
    """What an op with these operands asks for; None where no formula is known or the operands do not say.

    >>> shape = RecordedShape(dims=((128, 64), (64, 32)), types=("c10::BFloat16", "c10::BFloat16"))
    >>> kernel = op_kernel("aten::mm", shape)
    >>> kernel.flops, kernel.bytes, kernel.dtype
    (524288, 28672, 'bf16')
    """
    formula = FORMULAS.get(op)
    try:
        kernel = (
            formula(shape) if formula is not None else None if op.startswith("aten::") else library_op_kernel(op, shape)
        )
    except (IndexError, TypeError, ValueError, ZeroDivisionError):
        return None
    return kernel if kernel is not None and 0 <= kernel.flops < 1e21 and 0 < kernel.bytes < 1e15 else None


def _type(shape: RecordedShape, at: int) -> tuple[str, int]:
    profiled_type = PROFILED_TYPES.get(shape.types[at])
    if profiled_type is None:
        raise ValueError(shape.types[at])
    return profiled_type


def _product(left: int, right: int) -> Formula:
    """[.., m, k] x [.., k, n] at these positions."""

    def formula(shape: RecordedShape) -> Kernel | None:
        a, b = shape.dims[left], shape.dims[right]
        if len(a) < 2 or len(b) < 2:
            return None
        (dtype, left_size), (_, two) = _type(shape, left), _type(shape, right)
        weights = b[-2] * b[-1] * (prod(a[:-2]) if len(b) > 2 else 1)
        traffic_bytes = prod(a) * left_size + weights * two + prod(a[:-1]) * b[-1] * max(left_size, two, 2)
        return product_kernel(a, b, dtype, traffic_bytes)

    return formula


def _linear(shape: RecordedShape) -> Kernel | None:
    a, weight = shape.dims[0], shape.dims[1]
    if len(weight) != 2 or a[-1] != weight[1]:
        return None
    m, k, n = prod(a[:-1]), a[-1], weight[0]
    (dtype, left_size), (_, two) = _type(shape, 0), _type(shape, 1)
    return product_kernel((m, k), (k, n), dtype, m * k * left_size + k * n * two + m * n * left_size)


def _grouped_product(shape: RecordedShape) -> Kernel | None:
    a, b = shape.dims[0], shape.dims[1]
    dtype, size = _type(shape, 0)
    if len(a) == 2 and len(b) == 3:  # rows of all groups behind each other
        m, k, n = a[0], a[1], b[2]
        traffic_bytes = (m * k + prod(b) + m * n) * size
        return Kernel(op="grouped_gemm", dtype=dtype, dims={"rows": m, "n": n, "k": k}, moved=traffic_bytes)
    return None


def _attention(query: int, causal: int, *, heads_first: bool = True, backward: bool = False) -> Formula:
    """Attention with query, key and value at successive positions and the causal switch among the scalars."""

    def formula(shape: RecordedShape) -> Kernel | None:
        q, k, v = shape.dims[query : query + 3]
        if min(len(q), len(k), len(v)) < 4:
            return None
        dtype, size = _type(shape, query)
        heads, seq = (1, 2) if heads_first else (2, 1)
        is_causal = shape.concrete[causal].lower() in ("true", "1")
        traffic_bytes = (prod(q) + prod(k) + prod(v) + prod(q[:3]) * v[3]) * size
        return attention_kernel(
            q[0] * q[heads], (q[seq], k[seq]), (q[3], v[3]), dtype, causal=is_causal, backward=backward,
            moved=traffic_bytes * 2 if backward else traffic_bytes,
        )  # fmt: skip

    return formula


def _convolution(image: int, *, stride: int, padding: int, factor: int = 1) -> Formula:
    """A convolution with image and weight at successive positions; dilation stands behind both stride and padding."""
    places = (stride, padding, max(stride, padding) + 1)

    def formula(shape: RecordedShape) -> Kernel | None:
        x, weight = shape.dims[image], shape.dims[image + 1]
        if len(x) != len(weight) or len(x) < 3:
            return None
        steps, pads, dilation = (_numbers(shape.concrete[place]) for place in places)
        sides = [
            (size + 2 * pad - gap * (window - 1) - 1) // step + 1
            for size, window, step, pad, gap in zip(x[2:], weight[2:], steps, pads, dilation, strict=True)
        ]
        dtype, size = _type(shape, image)
        pixels, channels = x[0] * prod(sides), weight[0]
        traffic_bytes = (prod(x) + prod(weight) + pixels * channels) * size
        dims = {"groups": factor, "m": pixels, "n": channels, "k": prod(weight[1:])}
        return Kernel(op="convolution", dtype=dtype, dims=dims, moved=factor * traffic_bytes)

    return formula


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.strip("[]").split(",")]


def _elementwise(writes: int = 1) -> Formula:
    """Every tensor operand read once, the largest shape written ``writes`` times; a list of tensors is read whole."""

    def formula(shape: RecordedShape) -> Kernel | None:
        sizes: list[int] = []
        largest, dtype, width = 0, "", 0
        for dims, name in zip(shape.dims, shape.types, strict=False):
            profiled_type = PROFILED_TYPES.get(name)
            if profiled_type is None or not dims:
                continue
            count = _count(dims)
            sizes.append(count * profiled_type[1])
            if count > largest:
                largest, (dtype, width) = count, profiled_type
        if not largest:
            return None
        return stream_kernel(sum(sizes) + writes * largest * width, dtype)

    return formula


def _rows(shape: RecordedShape) -> Kernel | None:
    """Rows of a table by their numbers, read and written once; the numbers are the last operand with dims."""
    table, numbers = shape.dims[0], next(dims for dims in reversed(shape.dims[1:]) if dims)
    dtype, size = _type(shape, 0)
    return stream_kernel(2 * prod(numbers) * prod(table[1:]) * size, dtype)


def _added_rows(values: int) -> Formula:
    """Rows added to a table where their numbers say: values read, the table's rows read and written."""

    def formula(shape: RecordedShape) -> Kernel | None:
        dtype, size = _type(shape, values)
        return stream_kernel(3 * prod(shape.dims[values]) * size, dtype)

    return formula


def _states(times: float) -> Formula:
    """An optimizer over lists of tensors: weights, gradients and states; what is changed moves twice."""

    def formula(shape: RecordedShape) -> Kernel | None:
        lists = [dims for dims in shape.dims if dims and isinstance(dims[0], tuple)]
        if not lists:
            return None
        return stream_kernel(sum(map(_count, lists)) * 4 * times, "fp32")

    return formula


def _count(dims: Any) -> int:
    if dims and isinstance(dims[0], tuple):
        return sum(_count(dim) for dim in dims)
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
    **{f"aten::{name}": _product(*places) for name, places in PRODUCT_OPERANDS.items()},
    "aten::linear": _linear,
    "aten::_grouped_mm": _grouped_product,
    "aten::_scaled_grouped_mm": _grouped_product,
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
