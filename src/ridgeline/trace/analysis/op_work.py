"""Turn types as profilers write them into formats and bytes; and say what one call of an op asks for."""

from __future__ import annotations

from dataclasses import dataclass

SIZES = {
    "double": ("fp64", 8), "float": ("fp32", 4), "c10::Half": ("fp16", 2), "c10::BFloat16": ("bf16", 2),
    "c10::Float8_e4m3fn": ("fp8", 1), "c10::Float8_e5m2": ("fp8", 1), "c10::Float8_e4m3fnuz": ("fp8", 1),
    "c10::Float8_e5m2fnuz": ("fp8", 1), "c10::Float4_e2m1fn_x2": ("fp4", 1), "signed char": ("int8", 1),
    "unsigned char": ("int8", 1), "short": ("int16", 2), "int": ("int32", 4), "long int": ("int64", 8),
    "long": ("int64", 8), "bool": ("bool", 1),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OpWork:
    """What one call of an op asks for."""

    flops: float
    size_bytes: float
    dtype: str
