"""Arithmetic of strangers: what it comes to, and that it is refused where it is no arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from ridgeline.core.arithmetic import evaluate, names_in
from ridgeline.core.errors import InputError

SIZES = {"B": 2, "S": 512, "D": 64.0}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7), ("(1 + 2) * 3", 9), ("2 ** 3 ** 2", 512), ("-2 ** 2", -4), ("7 // 2 + 7 % 4", 6),
        ("B * S * D", 65536), ("max(B, 3) + min(1, 2, 0)", 3), ("ceil(S / 100)", 6), ("log2(S)", 9), ("1e3", 1000),
        ("S - -B", 514),
    ],
)  # fmt: skip
def test_expressions_are_what_they_would_be_in_python(text: str, value: float) -> None:
    assert evaluate(text, SIZES) == value


@pytest.mark.parametrize(
    "text",
    [
        "", "1 +", "(1", "1)", "x", "B.__class__", "__import__('os')", "open('f')", "B if S else D", "[1]", "lambda: 1",
        "1 / 0", "9 ** 9 ** 9", "2 ** 1e9", "log2(0)", "(" * 300 + ")" * 300, "-" * 399 + "1", "1" * 401, "B B",
        "max()", "(0 - 2) ** 0.5", "1e999",
    ],
)  # fmt: skip
def test_what_is_no_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        evaluate(text, SIZES, "operator.flops")


@given(some.text("0123456789BSD+-*/%(), .**", max_size=60))
def test_every_text_has_a_value_or_a_refusal(text: str) -> None:
    try:
        value = evaluate(text, SIZES)
    except InputError:
        return
    assert value == value
    assert set(names_in(text)) <= set(SIZES)
