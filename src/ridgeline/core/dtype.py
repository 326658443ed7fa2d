"""Turn a number format's name into its exact storage, block scales included."""

from __future__ import annotations

from collections.abc import Container, Mapping
from fractions import Fraction
from types import MappingProxyType

from ridgeline.core.errors import UnknownId
from ridgeline.core.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DType:
    """A number format.

    bits              stored bits of one element, scales apart
    block             elements that share one scale; 0 when there is none
    scale_bits        bits of that shared scale
    tensor_scale_bits bits of a further scale kept once per tensor
    peak              key of the chip's peak rate this format computes at (`fp8` for mxfp8, `fp4` for nvfp4)
    """

    id: str
    bits: int
    peak: str
    block: int = 0
    scale_bits: int = 0
    tensor_scale_bits: int = 0

    @property
    def bits_per_element(self) -> Fraction:
        """Stored bits of one element of a large tensor: element bits plus its share of the block scale.

        >>> dtype("mxfp4").bits_per_element, dtype("nvfp4").bits_per_element
        (Fraction(17, 4), Fraction(9, 2))
        """
        return Fraction(self.bits) + (Fraction(self.scale_bits, self.block) if self.block else 0)

    @property
    def bytes_per_element(self) -> float:
        """`bits_per_element` in bytes, for arithmetic over large tensors."""
        return (self.bits + (self.scale_bits / self.block if self.block else 0)) / 8

    def storage_bytes(self, elements: int, rows: int = 1) -> int:
        """Exact bytes of a tensor of `rows` rows of `elements` each; blocks never cross a row.

            rows * (ceil(n * bits / 8) + ceil(n / block) * scale_bits / 8) + tensor_scale_bits / 8

        n = elements of a row. Alignment padding that a kernel may ask for is not counted.

        >>> dtype("nvfp4").storage_bytes(16), dtype("mxfp8").storage_bytes(33), dtype("bf16").storage_bytes(3)
        (13, 35, 6)
        """
        row = -(-elements * self.bits // 8)
        if self.block:
            row += -(-elements // self.block) * self.scale_bits // 8
        return rows * row + self.tensor_scale_bits // 8

    def __str__(self) -> str:
        return self.id


# Block formats: OCP Microscaling v1.0 (32 elements, one e8m0 scale); NVFP4 (16 elements, one e4m3 scale, one fp32 per
# tensor). tf32 is a way of multiplying: it is stored as fp32.
DTYPES: Mapping[str, DType] = MappingProxyType(
    {
        item.id: item
        for item in (
            DType(id="fp64", bits=64, peak="fp64"),
            DType(id="fp32", bits=32, peak="fp32"),
            DType(id="tf32", bits=32, peak="tf32"),
            DType(id="bf16", bits=16, peak="bf16"),
            DType(id="fp16", bits=16, peak="fp16"),
            DType(id="fp8-e4m3", bits=8, peak="fp8"),
            DType(id="fp8-e5m2", bits=8, peak="fp8"),
            DType(id="mxfp8", bits=8, peak="fp8", block=32, scale_bits=8),
            DType(id="mxfp4", bits=4, peak="fp4", block=32, scale_bits=8),
            DType(id="nvfp4", bits=4, peak="fp4", block=16, scale_bits=8, tensor_scale_bits=32),
            DType(id="int8", bits=8, peak="int8"),
            DType(id="int4", bits=4, peak="int4"),
        )
    }
)
PEAKS = tuple(dict.fromkeys(item.peak for item in DTYPES.values()))
"""Keys of the peaks that formats are multiplied at, in the order of their columns."""
# other spellings met in configs and tables
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "float64": "fp64",
        "float32": "fp32",
        "float": "fp32",
        "float16": "fp16",
        "half": "fp16",
        "bfloat16": "bf16",
        "fp8": "fp8-e4m3",
        "e4m3": "fp8-e4m3",
        "e5m2": "fp8-e5m2",
        "float8_e4m3fn": "fp8-e4m3",
        "float8_e5m2": "fp8-e5m2",
    }
)

KERNEL_FORMATS: Mapping[str, str] = MappingProxyType({"fp8_block": "fp8-e4m3"})
"""Formats that only tables of kernels know, by the format whose elements and peak they have."""
# element types as torch names them, and as its profilers write them: key of the peak they are multiplied at, and bytes
# of one stored element (4-bit ones come in pairs)
TORCH_TYPES: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "float64": ("fp64", 8), "float32": ("fp32", 4), "float16": ("fp16", 2), "bfloat16": ("bf16", 2),
        "float8_e4m3fn": ("fp8", 1), "float8_e5m2": ("fp8", 1), "float8_e4m3fnuz": ("fp8", 1),
        "float8_e5m2fnuz": ("fp8", 1), "float4_e2m1fn_x2": ("fp4", 1), "int8": ("int8", 1), "uint8": ("int8", 1),
        "int16": ("int16", 2), "int32": ("int32", 4), "int64": ("int64", 8), "bool": ("bool", 1),
    }
)  # fmt: skip
PROFILED_TYPES: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        written: TORCH_TYPES[name]
        for written, name in {
            "double": "float64", "float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
            "c10::Float8_e4m3fn": "float8_e4m3fn", "c10::Float8_e5m2": "float8_e5m2",
            "c10::Float8_e4m3fnuz": "float8_e4m3fnuz", "c10::Float8_e5m2fnuz": "float8_e5m2fnuz",
            "c10::Float4_e2m1fn_x2": "float4_e2m1fn_x2", "signed char": "int8", "unsigned char": "uint8",
            "short": "int16", "int": "int32", "long int": "int64", "long": "int64", "bool": "bool",
        }.items()
    }
)  # fmt: skip
SIXTEEN_BITS = ("bf16", "fp16")  # multiplied at the same peak wherever only one of the two is published


def dtype(name: str) -> DType:
    """The format of that name or alias.

    >>> dtype("bfloat16").id, dtype("fp8").id
    ('bf16', 'fp8-e4m3')
    """
    format_ = DTYPES.get(ALIASES.get(name, name))
    if format_ is None:
        raise UnknownId("dtype", name, [*DTYPES, *ALIASES], todo="see docs/concepts/dtypes.md")
    return format_


def peak_key(name: str, published: Container[str] = ()) -> str:
    """The key of the peak at which a format is multiplied; of two 16-bit formats the one that is published.

    >>> peak_key("nvfp4"), peak_key("fp8_block"), peak_key("fp16"), peak_key("fp16", ("bf16", "fp8"))
    ('fp4', 'fp8', 'fp16', 'bf16')
    """
    format_ = DTYPES.get(ALIASES.get(name, KERNEL_FORMATS.get(name, name)))
    key = format_.peak if format_ is not None else name
    if key in SIXTEEN_BITS and key not in published:
        return next((twin for twin in SIXTEEN_BITS if twin in published), key)
    return key


def element_bytes(name: str, default: float = 2.0) -> float:
    """Bytes of one element of a kernel's format; `default` where a kernel states none.

    >>> element_bytes("bf16"), element_bytes("fp8_block"), element_bytes("nvfp4"), element_bytes("")
    (2.0, 1.0, 0.5625, 2.0)
    """
    format_ = DTYPES.get(ALIASES.get(name, KERNEL_FORMATS.get(name, name)))
    return format_.bytes_per_element if format_ is not None else default
