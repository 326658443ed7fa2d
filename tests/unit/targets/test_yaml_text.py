"""What is written as YAML is read back as it was, whatever its strings look like."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.targets.yaml_text import yaml_text

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LEAF = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | TEXT
VALUE = st.recursive(LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))


@given(st.dictionaries(TEXT, VALUE, max_size=4))
def test_tables_survive(table: dict[str, Any]) -> None:
    found = yaml.safe_load(yaml_text(table))
    assert repr(found) == repr(table)  # True is not 1, and 1 is not 1.0


@pytest.mark.parametrize(
    "word", ["null", "yes", "1e-5", "0x10", 'a "b": c # d', "a\nb", "*x", "&x", "!x", "", "~", "08"]
)
def test_words_stay_words(word: str) -> None:
    assert yaml.safe_load(yaml_text({"a": {word or "empty": [word]}})) == {"a": {word or "empty": [word]}}


def test_small_numbers_stay_numbers_and_nothing_is_an_alias() -> None:
    again = ["mlp", "moe"]
    text = yaml_text({"rate": 1e-05, "one": again, "two": again})
    assert yaml.safe_load(text)["rate"] == 1e-05
    assert "&" not in text
