"""Storage of number formats, block scales included, derived by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.core.dtype import DTYPES, dtype
from ridgeline.core.errors import UnknownId


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("fp64", 64),
        ("fp32", 32),
        ("tf32", 32),
        ("bf16", 16),
        ("fp16", 16),
        ("fp8-e4m3", 8),
        ("fp8-e5m2", 8),
        ("mxfp8", Fraction(33, 4)),  # one 8-bit scale for 32 elements
        ("mxfp4", Fraction(17, 4)),
        ("nvfp4", Fraction(9, 2)),  # one 8-bit scale for 16 elements
        ("int8", 8),
        ("int4", 4),
    ],
)
def test_bits_per_element(name: str, bits: Fraction | int) -> None:
    assert dtype(name).bits_per_element == bits


@pytest.mark.parametrize(
    ("name", "elements", "rows", "size"),
    [
        ("bf16", 4096, 4096, 4096 * 4096 * 2),
        ("int4", 3, 1, 2),  # three half bytes need two bytes
        ("mxfp4", 32, 1, 17),
        ("mxfp4", 33, 2, 2 * (17 + 2)),  # a row of 33 needs 17 bytes of elements and 2 scales
        ("nvfp4", 32, 1, 16 + 2 + 4),  # and one fp32 for the tensor
        ("nvfp4", 0, 1, 4),
    ],
)
def test_storage(name: str, elements: int, rows: int, size: int) -> None:
    assert dtype(name).storage_bytes(elements, rows) == size


@given(st.sampled_from(sorted(DTYPES)), st.integers(1, 10**6))
def test_storage_is_the_rate_rounded_up(name: str, elements: int) -> None:
    item = dtype(name)
    ideal = item.bits_per_element * elements / 8 + Fraction(item.tensor_scale_bits, 8)
    assert ideal <= item.storage_bytes(elements) <= ideal + 2


def test_unknown_dtype_suggests() -> None:
    with pytest.raises(UnknownId, match="bf16"):
        dtype("bf61")
