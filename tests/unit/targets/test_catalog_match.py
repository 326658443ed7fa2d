"""A table of dimensions is known by the name of the model that has them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import ridgeline
from ridgeline.models.spec import ModelSpec
from ridgeline.targets.imports.model_names import known_as

LABELS = ("id", "name", "source")


def bare(spec: ModelSpec) -> ModelSpec:
    return replace(spec, id="", name="", source="", vision=None)


def dimensions(id: str) -> dict[str, Any]:
    return {key: value for key, value in ridgeline.MODELS.table(id).items() if key not in LABELS}


@pytest.mark.parametrize("id", sorted(ridgeline.MODELS))
def test_every_catalog_model_is_known_by_its_dimensions(id: str) -> None:
    found = known_as(dimensions(id))
    assert isinstance(found, str)
    assert bare(ridgeline.model(found)) == bare(ridgeline.model(id))
    assert known_as(dimensions(id), prefer=id) == id


def test_what_is_unsure_is_filled_in() -> None:
    assert known_as(dimensions("llama3-70b")) == "llama3-70b"
    assert known_as({**dimensions("llama3-70b"), "vocab": 7}, unsure=("vocab",)) == "llama3-70b"
    other = {**dimensions("llama3-70b"), "layers": 7}
    assert known_as(other) == other
    longer = {**dimensions("llama3-70b"), "context": 7}
    assert known_as(longer) == {"base": "llama3-70b", "context": 7}
    assert known_as(longer, unsure=("context",)) == "llama3-70b"
