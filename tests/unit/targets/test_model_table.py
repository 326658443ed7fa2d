"""A model written as a table of dimensions reads back as the same model."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ridgeline
from ridgeline.core.toml_text import toml_text
from ridgeline.models.spec import ModelSpec
from ridgeline.targets.model_table import dimensions, known_as


def bare(spec: ModelSpec) -> ModelSpec:
    return replace(spec, id="", name="", source="", vision=None)


@pytest.mark.parametrize("id", sorted(ridgeline.MODELS))
def test_every_catalog_model_survives(id: str) -> None:
    import tomllib

    spec = ridgeline.model(id)
    table = tomllib.loads(toml_text(dimensions(spec)))
    assert bare(ridgeline.model(table)) == bare(spec)


def test_known_models_are_named() -> None:
    assert known_as(dimensions(ridgeline.model("llama3-70b"))) == "llama3-70b"
    assert known_as({**dimensions(ridgeline.model("llama3-70b")), "vocab": 7}, unsure=("vocab",)) == "llama3-70b"
    other = {**dimensions(ridgeline.model("llama3-70b")), "layers": 7}
    assert known_as(other) == other
