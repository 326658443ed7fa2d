"""Turn the recorded operands of an op into the arithmetic and the traffic it asks for.

    matrix product    2 m n k flops;                       m k + k n + m n elements moved
    attention         2 B H Sq Sk (D + Dv) flops forward, half of it when causal; 2.5 times that backward
    convolution       2 N K Ho Wo (C/g) R S flops
    elementwise       0 flops counted;                     every operand read, the largest shape written
    copy, sum         0 flops counted;                     every operand moved once
    rows added        0 flops counted;                     values read, as many rows of the table read and written

B batch, H heads of the query, S sequence, D width of a head; N images, C and K channels in and out, R x S the window, g
groups. Traffic is what must move once between memory and chip; what caches save or lose is not counted.

Engines and libraries register ops of their own: vllm::, _C::, sgl_kernel::, aiter::, flash_attn::, deep_gemm::,
transformer_engine::, and kernels of Triton as ops with the kernel's arguments. Their signatures differ from version to
version, so operands are told by their shapes, not by their places, once the name says what kind of op it is:

    matrix product    [m, k] with [n, k] or [k, n]; an operand [m, n] in front is the result
    experts           tokens [T, H], weights [E, a, b] and [E, c, d], choices [T, c]:  2 T c (a b + c d) flops
    attention         [B, S, H, D] thrice, or [T, H, D] with B + 1 offsets: sequences of equal length
    norm, activation, rope, quantising, cache writes, Triton    0 flops counted; every operand moved once, those that
                      are changed in place twice

Weights of four bits stand two in a byte, so k counts double where only that fits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path

from ridgeline.core.dtype import PROFILED_TYPES
from ridgeline.core.files import read_table
from ridgeline.ir.kernel import PRODUCT_OPERANDS, Kernel, attention_kernel, product_kernel, stream_kernel
from ridgeline.trace.timeline import Dims, RecordedShape

SPACES = (
    r"^(?:vllm|_C|_C_cache_ops|_rocm_C|_moe_C|_C_custom_ar|_vllm_fa\w*|sgl_kernel|sglang|aiter|flash_attn\w*|flashinfer|"
    r"transformer_engine\w*|tex|deep_gemm|torchao|fbgemm|xformers\w*|quack|sage\w*|te_moe|cutlass\w*|marlin|machete)::"
)
KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern if pattern.startswith("^") else SPACES + r"\w*?(?:" + pattern + ")", re.IGNORECASE))
    for kind, pattern in (
        ("product", r"^triton_(tem|mm|bmm)_"),
        ("moved", r"^triton_|^_?\w+_kernel$"),
        ("cache", r"reshape_and_cache|concat_and_cache|store_kv|store_cache|set_kv|kv_cache_update|append_paged"),
        ("experts", r"fused_experts|fused_moe(?!\w*(gate|topk))|fmoe|ck_moe|moe_gemm|cutlass_moe|asm_moe|moe_stage"),
        ("rope", r"rotary|rope"),
        ("in place", r"fused_add_rms|add_rms_?norm|fused_add_layer"),
        (
            "attention",
            r"flash_attn(?!\w*bwd)(?!\w*backward)|fmha\w*(?<!bwd)|mha_fwd|\bfwd\b|fused_attn_fwd|sage\w*attn",
        ),
        ("attention backward", r"flash_attn\w*(bwd|backward)|fmha\w*bwd|mha_bwd|\bbwd\b|fused_attn_bwd"),
        ("product", r"gemm|_mm\b|scaled_mm|matmul|linear|wvsplitk|gptq|awq_dequant|f8f8|machete|marlin"),
        ("moved", r"norm|silu|gelu|swiglu|act_and_mul|quant|cast|topk|align|sum|permute|copy|fp8"),
    )
)
BYTE = ("signed char", "unsigned char", "c10::Float4_e2m1fn_x2")
"""Formats in which two weights of four bits may stand."""
Tensor = tuple[tuple[int, ...], str]


def library_op_kernel(op: str, shape: RecordedShape) -> Kernel | None:
    """What an op of an engine or a library asks for; None where its kind is not known or the operands do not fit.

    >>> shape = RecordedShape(dims=((46, 2880), (201088, 2880), ()), types=("c10::BFloat16", "c10::BFloat16", ""))
    >>> library_op_kernel("vllm::rocm_unquantized_gemm", shape).flops == 2 * 46 * 2880 * 201088
    True
    """
    kind = next((kind for kind, pattern in KINDS if pattern.search(op)), None)
    if kind is None:
        return None
    operands = [(dims, type_) for dims, type_ in zip(shape.dims, shape.types, strict=False) if dims]
    inputs = [operand for operand in operands if operand[1] in PROFILED_TYPES]
    tensors = [(dims, of) for dims, of in inputs if all(isinstance(dim, int) for dim in dims) and prod(dims) > 0]
    if not tensors:
        return None
    if kind == "product":
        return _library_product(tensors)
    if kind == "experts":
        return _experts(tensors) or _library_product(tensors)
    if kind.startswith("attention"):
        return _library_attention(tensors, shape, backward=kind.endswith("backward"))
    if kind in ("cache", "rope"):
        wide = [tensor for tensor in tensors if len(tensor[0]) >= 2 and tensor[1] in PROFILED_TYPES][:2]
        return _streaming_kernel(wide, 2.0)
    return _streaming_kernel(tensors, 2.0 if kind == "in place" else 1.0)


def _streaming_kernel(tensors: list[Tensor], times: float) -> Kernel | None:
    sizes = sorted(((prod(dims) * PROFILED_TYPES[kind][1], kind) for dims, kind in tensors), reverse=True)
    if not sizes:
        return None
    traffic_bytes = sum(size for size, _ in sizes)
    return stream_kernel(traffic_bytes * times, PROFILED_TYPES[sizes[0][1]][0])


def _library_product(tensors: list[Tensor]) -> Kernel | None:
    wide = [(dims if len(dims) == 2 else (prod(dims[:-1]), dims[-1]), kind) for dims, kind in tensors if len(dims) >= 2]
    if len(wide) < 2:
        return None
    (first, _), (second, _) = wide[:2]
    if len(wide) > 2 and _fits(second, wide[2][0]) == first[1] and first[0] == second[0]:
        wide = wide[1:]  # the result stands in front
    (left, kind), (right, right_kind) = wide[:2]
    n = _fits(left, right)
    k = left[1]
    if n is None and right_kind in BYTE:
        k = left[1] if _fits((left[0], left[1] // 2), right) else 0
        n = _fits((left[0], left[1] // 2), right) if k else None
    if n is None or not k:
        return None
    is_packed = kind in BYTE and right_kind in BYTE and "Float4" in kind
    k = k * 2 if is_packed else k
    left_size, two = PROFILED_TYPES[kind][1], PROFILED_TYPES[right_kind][1]
    traffic_bytes = left[0] * left[1] * left_size + prod(right) * two + left[0] * n * 2
    dims = {"m": left[0], "n": n, "k": k}
    return Kernel(op="gemm", dtype="fp4" if is_packed else PROFILED_TYPES[kind][0], dims=dims, moved=traffic_bytes)


def _fits(left: tuple[int, ...], right: tuple[int, ...]) -> int | None:
    """n of [m, k] x [n, k] or [k, n]; None where k is not there."""
    return right[0] if right[1] == left[1] else right[1] if right[0] == left[1] else None


def _experts(tensors: list[Tensor]) -> Kernel | None:
    weights = [(dims, kind) for dims, kind in tensors if len(dims) == 3]
    hidden = next(((dims, kind) for dims, kind in tensors if len(dims) == 2), None)
    if hidden is None or not weights or (len(weights) > 1 and weights[0][0][0] != weights[1][0][0]):
        return None
    tokens, width = hidden[0]
    widths = [dims[1] for dims, _ in tensors if len(dims) == 2 and dims[0] == tokens and dims is not hidden[0]]
    chosen = min(widths, default=0)
    if not 0 < chosen <= weights[0][0][0]:
        return None
    weight_elements = 0
    for (_, rows, columns), kind in weights[:2]:
        is_packed = kind in BYTE and columns != width and rows != width
        weight_elements += rows * columns * (2 if is_packed else 1)
    experts = min(weights[0][0][0], tokens * chosen)
    size = sum(experts * prod(dims[1:]) * PROFILED_TYPES[kind][1] for dims, kind in weights[:2])
    acts = tokens * width * PROFILED_TYPES[hidden[1]][1] * (1 + chosen)
    dims = {
        "rows": tokens * chosen,
        "n": weight_elements,
        "k": 1,
    }  # all weights that one token's expert multiplies it with
    return Kernel(op="grouped_gemm", dtype=PROFILED_TYPES[hidden[1]][0], dims=dims, moved=size + acts)


def _library_attention(tensors: list[Tensor], shape: RecordedShape, *, backward: bool) -> Kernel | None:
    heads = [(dims, kind) for dims, kind in tensors if len(dims) in (3, 4)][1 if backward else 0 :]
    if len(heads) < 3:
        return None
    (q, kind), (k, _), (v, _) = heads[:3]
    if min(len(q), len(k), len(v)) == 4:
        scores = q[0] * q[2] * q[1] * k[1]
    elif len(q) == len(k) == 3:
        offsets = [dims[0] - 1 for dims, of in tensors if len(dims) == 1 and of in ("int", "long int") and dims[0] > 1]
        scores = q[1] * q[0] * k[0] // max(1, offsets[0] if offsets else 1)
    else:
        return None
    size = (prod(q) * 2 + prod(k) + prod(v)) * PROFILED_TYPES[kind][1]
    # the first truth among the scalars of every library's forward and backward is the causal switch
    truths = [text.strip().lower() for text in shape.concrete if text.strip().lower() in ("true", "false")]
    return Kernel(
        op="attention_backward" if backward else "attention_forward",
        dtype=PROFILED_TYPES[kind][0],
        dims={"pairs": scores, "head_dim": q[-1], "value_dim": v[-1], "causal": int(truths[:1] == ["true"])},
        moved=size * (2 if backward else 1),
    )


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
        texts = (shape.concrete[place].strip("[]").split(",") for place in places)
        steps, pads, dilation = ([int(number) for number in numbers] for numbers in texts)
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


def _count(dims: Dims) -> int:
    if dims and isinstance(dims[0], tuple):
        return sum(_count(dim) for dim in dims)
    return prod(dims)


_ELEMENTWISE = read_table(Path(__file__).parent / "elementwise.toml").data
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
    **{f"aten::{name}": _elementwise() for name in _ELEMENTWISE["written"].split()},
    **{f"aten::{name}": _elementwise(writes=0) for name in _ELEMENTWISE["read"].split()},
}
"""By op; what is not here has no rate."""
