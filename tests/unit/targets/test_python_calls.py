"""Methods and texts of a recipe: as in Python where it can be told, unknown where Python itself would refuse."""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline.targets.imports.python_eval import Interpreter
from ridgeline.targets.imports.python_values import Unknown
from ridgeline.targets.imports.run_files import Checkout


def _value(expression: str) -> Any:
    return Interpreter(checkout=Checkout()).load(f"n = 3\ny = {expression}", "recipe.py").scope["y"]


@pytest.mark.parametrize(
    "expression",
    [
        '"abc".split("")', '"a".join()', '"a".join("b", "c")', '"a".replace("b")', '"a".strip(["b"])',
        '"a".startswith([1])', '"a".lower("b")', "[].insert()", "[].insert(0)", "[].append()", "[1].index(2)",
        '"a".split(sep=1)', '"a".join(3)', '"a".join([1])', '"a".endswith()', "{}.get()", '{"a": 1}.pop([])',
        'f"{n:q}"', 'f"{n:99999d}"', 'f"{nosuch:>4}"', 'f"{n:{nosuch}}"', 'str([nosuch])',
    ],
)  # fmt: skip
def test_what_python_refuses_is_unknown_or_nothing(expression: str) -> None:
    assert isinstance(_value(expression), (Unknown, type(None)))


@pytest.mark.parametrize(
    "expression",
    [
        '"llama3".startswith(("qwen", "llama"))', '"a.b".endswith(("c", ".b"))', '"a,b,c".split(",", 1)',
        '"a,b".split(sep=",")', '"-".join(["a", "b"])', '"aXbX".replace("X", "yy")', '"aXbX".replace("X", "y", 1)',
        'f"{n:>8}|{n:03d}|{2.5:.2f}"', "f\"{'a'!r}\"", "f\"{'a':*^{n}}\"", "str([1, None])", "[3, 4].index(4)",
    ],
)  # fmt: skip
def test_what_python_says_is_said(expression: str) -> None:
    assert _value(expression) == eval(expression, {"n": 3})


def test_a_copy_shares_what_its_original_shares() -> None:
    scope = (
        Interpreter(checkout=Checkout())
        .load("from copy import deepcopy\na = [1]\nb = [a, a]\nc = deepcopy(b)\nc[0][0] = 2", "recipe.py")
        .scope
    )
    assert scope["c"] == [[2], [2]]
    assert scope["b"] == [[1], [1]]
