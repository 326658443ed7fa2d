"""Questions that a replay answers: fused, faster, overlapped, without launch gaps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from spans import Sketch
from traces import Recipe, make, write

from ridgeline.core.errors import InputError
from ridgeline.trace.analysis.what_if import answer_questions, parse
from ridgeline.trace.classes import built_in, classify
from ridgeline.trace.graph.dependency_graph import DependencyGraph, graph_of
from ridgeline.trace.read.readers import read_timeline
from ridgeline.trace.timeline import Timeline


def graph(line: Timeline) -> DependencyGraph:
    return graph_of(line, built_in())


def after(line: Timeline, *questions: str) -> float:
    """Span in microseconds with the last answer's change made."""
    return answer_questions(graph(line), built_in(), questions)[-1].after_ns / 1000


class TestFusion:
    def chain(self, folder: Path) -> Timeline:
        sketch = Sketch()
        for place in range(3):
            sketch.launched("elementwise_kernel", -60 + 4 * place, 12 * place, 10)
        return sketch.launched("gemm", -40, 36, 100).read(folder)

    def test_as_long_as_all_where_bytes_are_unknown(self, tmp_path: Path) -> None:
        assert after(self.chain(tmp_path), "fuse elementwise") == 132.0  # 30 + 2 + 100: two gaps less

    def test_as_long_as_the_longest(self, tmp_path: Path) -> None:
        assert after(self.chain(tmp_path), "fuse elementwise to longest") == 112.0

    def test_by_bytes(self, tmp_path: Path) -> None:
        line = self.chain(tmp_path)

        def sizes(rows: np.ndarray) -> np.ndarray:
            return np.full(len(rows), 4_000)

        assert (
            answer_questions(graph(line), built_in(), ["fuse elementwise"], sizes)[0].after_ns == 114_000
        )  # 12 + 2 + 100


class TestQuestions:
    @pytest.mark.parametrize("text", ["matmul", "x2", "matmul x0", "no lunch gaps", "", "fuse", "overlap"])
    def test_what_is_no_question_is_refused(self, text: str) -> None:
        with pytest.raises(InputError, match="what-if"):
            parse(text)

    def test_an_unknown_class_names_the_nearest(self, tmp_path: Path) -> None:
        line = Sketch().launched("gemm", -4, 0, 10).read(tmp_path)
        with pytest.raises(InputError, match="did you mean 'matmul'"):
            after(line, "matmull x2")

    def test_names_and_groups(self, tmp_path: Path) -> None:
        line = Sketch().launched("my_gemm", -60, 0, 10).launched("gemm", -50, 10, 10).read(tmp_path)
        assert after(line, "my_* x2") == 15.0
        assert after(line, "compute x2") == 10.0

    def test_all_together_comes_last(self, tmp_path: Path) -> None:
        line = classify(read_timeline(write(make(replace(Recipe(), steps=1)), tmp_path / "t.json")))
        found = answer_questions(graph(line), built_in(), ["matmul x2", "no launch gaps"])
        assert [one.question for one in found] == ["matmul x2", "no launch gaps", "matmul x2 and no launch gaps"]
        assert found[2].after_ns <= min(found[0].after_ns, found[1].after_ns)
