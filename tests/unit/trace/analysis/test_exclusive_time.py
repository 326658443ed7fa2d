"""Each nanosecond of a chip stands in one place."""

from __future__ import annotations

from pathlib import Path

from traces import Recipe, make, write

from ridgeline.trace.analysis.exclusive_time import exclusive_time
from ridgeline.trace.classes import built_in
from ridgeline.trace.read.readers import read_timeline


def test_own_times_and_gaps_are_the_span(tmp_path: Path) -> None:
    recipe = Recipe()
    found = exclusive_time(read_timeline(write(make(recipe), tmp_path / "t.json")), built_in())
    layers = recipe.steps * recipe.layers
    assert found.step_ns == (layers * recipe.layer_us - recipe.gap_us) * 1000 / recipe.steps
