"""Element types as compilers write them, as formats of `core.dtype` or as torch names them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_MLIR = {
    "f64": "fp64", "f32": "fp32", "tf32": "fp32", "f16": "fp16", "bf16": "bf16", "f8E4M3FN": "fp8-e4m3", "f8E4M3":
    "fp8-e4m3",
    "f8E4M3FNUZ": "fp8-e4m3", "f8E4M3B11FNUZ": "fp8-e4m3", "f8E5M2": "fp8-e5m2", "f8E5M2FNUZ": "fp8-e5m2",
    "i1": "bool", "i2": "int4", "i4": "int4", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "index":
    "int64",
}  # fmt: skip
_XLA = {
    "pred": "bool", "s2": "int4", "s4": "int4", "u2": "int4", "u4": "int4", "s8": "int8", "u8": "uint8", "s16":
    "int16", "u16": "int16",
    "s32": "int32", "u32": "int32", "s64": "int64", "u64": "int64", "f8e4m3fn": "fp8-e4m3", "f8e4m3": "fp8-e4m3",
    "f8e4m3fnuz": "fp8-e4m3", "f8e4m3b11fnuz": "fp8-e4m3", "f8e5m2": "fp8-e5m2", "f8e5m2fnuz": "fp8-e5m2",
}  # fmt: skip
_SCRIPT = {
    "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8-e4m3",
    "float8_e5m2": "fp8-e5m2", "int4": "int4", "uint4": "int4", "int8": "int8", "uint8": "uint8", "int16": "int16",
    "int32": "int32",
    "int64": "int64", "uint16": "int16", "uint32": "int32", "uint64": "int64", "bool": "bool", "handle": "int64",
}  # fmt: skip
ELEMENT_TYPES: Mapping[str, str] = MappingProxyType(
    {**_SCRIPT, **_MLIR, **_XLA, **{f"{sign}i{bits}": f"int{bits}" for sign in "us" for bits in (8, 16, 32, 64)}}
)
"""Formats by every spelling of MLIR, XLA and TVM script."""
WIDEST = "int64"  # what an element type that no table lists is counted as
EXPORTED_TYPES: Mapping[int, str] = MappingProxyType(
    {
        1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "fp16", 7: "fp32", 8: "fp64", 9: "fp32",
        10: "fp64", 12: "bool", 13: "bf16", 28: "int16", 29: "fp8-e4m3", 30: "fp8-e5m2", 31: "fp8-e4m3",
        32: "fp8-e5m2", 33: "uint8", 34: "int32", 35: "int64",
    }
)  # fmt: skip
"""Formats of as many bytes by the numbers of torch's export schema."""


def exported_format(number: object) -> str:
    """The format of an element type in torch's export schema; the widest where the number is new."""
    return EXPORTED_TYPES.get(number, WIDEST) if isinstance(number, int) else WIDEST


def element_format(word: str) -> str:
    """The format of a word; the widest where nobody knows it, never the narrowest.

    >>> element_format("f32"), element_format("s32"), element_format("complex<f32>"), element_format("ui8")
    ('fp32', 'int32', 'int64', 'int8')
    """
    return ELEMENT_TYPES.get(word.strip(), WIDEST)
