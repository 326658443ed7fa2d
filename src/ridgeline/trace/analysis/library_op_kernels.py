"""Turn the operands of ops outside ATen into arithmetic and traffic, by what kind of op their name says they are.

Engines and libraries register ops of their own: vllm::, _C::, sgl_kernel::, aiter::, flash_attn::, deep_gemm::,
transformer_engine::, and kernels of Triton as ops with the kernel's arguments. Their signatures differ from version to
version, so operands are told by their shapes, not by their places:

    matrix product    [m, k] with [n, k] or [k, n]; an operand [m, n] in front is the result
    experts           tokens [T, H], weights [E, a, b] and [E, c, d], choices [T, c]:  2 T c (a b + c d) flops
    attention         [B, S, H, D] thrice, or [T, H, D] with B + 1 offsets: sequences of equal length
    norm, activation, rope, quantising, cache writes, Triton    0 flops counted; every operand moved once, those that
                      are changed in place twice

Weights of four bits stand two in a byte, so k counts double where only that fits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from typing import Any

from ridgeline.core.dtype import PROFILED_TYPES
from ridgeline.ir.kernel import Kernel, stream_kernel
from ridgeline.trace.side_tables import RecordedShape

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
    tensors = list(_tensors(shape))
    if not tensors:
        return None
    if kind == "product":
        return _product(tensors)
    if kind == "experts":
        return _experts(tensors) or _product(tensors)
    if kind.startswith("attention"):
        return _attention(tensors, shape, backward=kind.endswith("backward"))
    if kind in ("cache", "rope"):
        wide = [tensor for tensor in tensors if len(tensor[0]) >= 2 and tensor[1] in PROFILED_TYPES][:2]
        return _streaming_kernel(wide, 2.0)
    return _streaming_kernel(tensors, 2.0 if kind == "in place" else 1.0)


def _tensors(shape: RecordedShape) -> Iterator[Tensor]:
    for dims, kind in zip(shape.dims, shape.types, strict=False):
        if dims and kind in PROFILED_TYPES and all(isinstance(dim, int) for dim in dims) and prod(dims) > 0:
            yield dims, kind


def _streaming_kernel(tensors: list[Tensor], times: float) -> Kernel | None:
    """Every operand so many times."""
    sizes = sorted(((prod(dims) * PROFILED_TYPES[kind][1], kind) for dims, kind in tensors), reverse=True)
    if not sizes:
        return None
    traffic_bytes = sum(size for size, _ in sizes)
    return stream_kernel(traffic_bytes * times, PROFILED_TYPES[sizes[0][1]][0])


def _product(tensors: list[Tensor]) -> Kernel | None:
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


def _attention(tensors: list[Tensor], shape: RecordedShape, *, backward: bool) -> Kernel | None:
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
    return Kernel(
        op="attention_backward" if backward else "attention_forward",
        dtype=PROFILED_TYPES[kind][0],
        dims={"pairs": scores, "head_dim": q[-1], "value_dim": v[-1], "causal": int(_causal(shape))},
        moved=size * (2 if backward else 1),
    )


def _causal(shape: RecordedShape) -> bool:
    """The first truth among the scalars: of every library's forward and backward it is the causal switch."""
    arguments: list[Any] = [text.strip().lower() for text in shape.concrete]
    return next((text == "true" for text in arguments if text in ("true", "false")), False)
