"""What launches cost, and how far the host ran ahead."""

from __future__ import annotations

from pathlib import Path

import pytest
from traces import Recipe, make, write

from ridgeline.trace.analyze_traces import Analysis, analyze


def run(recipe: Recipe, folder: Path) -> Analysis:
    return analyze(write(make(recipe), folder / "t.json"))


class TestLaunches:
    def test_queue_and_delay(self, tmp_path: Path) -> None:
        recipe = Recipe(gap_us=60.0)
        (found,) = run(recipe, tmp_path).launches
        many = recipe.steps * recipe.layers
        assert (found.spans, found.calls, found.unlinked) == (3 * many, 3 * many, 0)
        assert found.call_ns == 1500
        # launched -4.5, -1 and 1.5 us before or after the product starts at 0; the reduction starts at 60, the
        # elementwise kernel at 100: of the three only the last starts with nothing queued behind it
        assert found.empty_queue == pytest.approx(1 / 3)
        assert found.queue_depth == pytest.approx(2 / 3)

    def test_replays(self, tmp_path: Path) -> None:
        recipe = Recipe(graph=True)
        (found,) = run(recipe, tmp_path).launches
        assert (found.graph_replays, found.graph_spans) == (recipe.steps, 3 * recipe.steps * recipe.layers)
