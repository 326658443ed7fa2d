"""A table laid over another: keys merge, what must stand alone replaces, lists are merged by name."""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline.core.catalog import overlay
from ridgeline.core.errors import InputError


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    return overlay(base, over, lambda below, above: "value" in above, "system")


def test_tables_merge_at_every_depth() -> None:
    base = {"a": {"b": {"c": 1, "d": 2}}, "e": 3}
    assert merged(base, {"a": {"b": {"c": 9}}, "f": 4}) == {"a": {"b": {"c": 9, "d": 2}}, "e": 3, "f": 4}
    assert base == {"a": {"b": {"c": 1, "d": 2}}, "e": 3}, "nothing is changed in place"


def test_what_stands_alone_replaces() -> None:
    assert merged({"q": {"value": 1, "source": "x"}}, {"q": {"value": 2}}) == {"q": {"value": 2}}
    assert merged({"q": {"a": 1}}, {"q": 2}) == {"q": 2}
    assert merged({"q": 2}, {"q": {"a": 1}}) == {"q": {"a": 1}}


def test_a_named_list_is_merged_by_name() -> None:
    tiers = [{"name": "up", "chips": 8}, {"name": "out", "chips": 64}]
    assert merged({"tiers": tiers}, {"tiers": {"out": {"chips": 32}}})["tiers"] == [
        {"name": "up", "chips": 8},
        {"name": "out", "chips": 32},
    ]
    with pytest.raises(InputError, match=r"system\.tiers\.ouf: got 'ouf', expected one of up, out"):
        merged({"tiers": tiers}, {"tiers": {"ouf": {}}})


@pytest.mark.parametrize("below", [[], [1, 2], ["a"], [{"kind": "x"}]])
def test_a_list_without_names_is_replaced(below: list[Any]) -> None:
    assert merged({"x": below}, {"x": {"a": 1}}) == {"x": {"a": 1}}
