"""The counting script tells bare names from names with an object, and a figure above its limit from one below."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tools.house import House, _matches_mixers, is_bare, problems


def test_bare_names_are_participles_and_pronouns_without_an_object() -> None:
    assert [name for name in ("found", "_told", "asked", "exposed") if not is_bare(name)] == []
    assert [name for name in ("found_plans", "seed", "shared", "red", "Held", "step_seconds") if is_bare(name)] == []


def test_a_match_on_two_mixers_counts_and_one_on_a_single_kind_does_not() -> None:
    two = "match x:\n case Attention():\n  pass\n case Mamba2() | Recurrence():\n  pass\n"
    single = "match x:\n case Attention():\n  pass\n case Mlp():\n  pass\n"
    assert [_matches_mixers(ast.parse(text)) for text in (two, single)] == [True, False]


def test_a_figure_above_its_limit_is_named() -> None:
    figures = {"lines": 11.0, "words": 5.0, "longest_file": 10.0, "longest_function": 10.0}
    house = House(figures=figures, packages={}, doors={}, repeated=(), largest=())
    assert problems(house, {"lines": 10, "words": 5}) == ["lines is 11, at most 10 is allowed"]
