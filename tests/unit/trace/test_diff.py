"""Causes of a difference are the ones the generator made, and always sum to it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spans import Sketch
from traces import Recipe, make, straggling, write

import ridgeline
from ridgeline.calibrate.explain import diff
from ridgeline.cli.main import command_line
from ridgeline.trace.diff import Diff

EXAMPLE = "examples/llama3-70b-64xh100.toml"


def compare(folder: Path, before: Recipe, after: Recipe) -> Diff:
    return diff(write(make(before), folder / "a.json"), write(make(after), folder / "b.json"))


def causes(found: Diff) -> dict[str, float]:
    """Microseconds by cause; sums are checked on the way."""
    for view in (found.causes, found.phases, found.classes):
        assert sum(one.delta_ns for one in view) == pytest.approx(found.delta_ns, abs=1.0)
    return {one.cause: round(one.delta_ns / 1000, 3) for one in found.causes if abs(one.delta_ns) > 0.5}


BASE = Recipe(steps=2, layers=4)


class TestCauses:
    def test_slower_kernels(self, tmp_path: Path) -> None:
        assert causes(compare(tmp_path, BASE, replace(BASE, matmul_us=130.0))) == {"slower kernels": 4 * 30.0}

    def test_different_kernels(self, tmp_path: Path) -> None:
        other = replace(BASE, names=("nvjet_tst_256x128", *BASE.names[1:]), matmul_us=90.0)
        assert causes(compare(tmp_path, BASE, other)) == {"different kernels": -4 * 10.0}

    def test_launch_gaps(self, tmp_path: Path) -> None:
        found = causes(compare(tmp_path, BASE, replace(BASE, gap_us=25.0)))
        assert found == {"launch gaps": 7 * 10.0 / 2}  # seven gaps between eight layers, two steps

    def test_missing_overlap(self, tmp_path: Path) -> None:
        """60 of 80 us were hidden, then 10: 50 us a layer, and the collective itself is no slower."""
        assert causes(compare(tmp_path, BASE, replace(BASE, hidden_us=10.0))) == {"missing overlap": 4 * 50.0}

    def test_a_slower_collective_as_well_hidden(self, tmp_path: Path) -> None:
        """80 to 100 us with three quarters hidden both times: a quarter of 20 us shows."""
        found = compare(tmp_path, BASE, replace(BASE, reduce_us=100.0, hidden_us=75.0))
        assert causes(found) == {"slower kernels": 4 * 5.0}

    def test_extra_copies(self, tmp_path: Path) -> None:
        before = Sketch().launched("gemm", -4, 0, 100)
        after = Sketch().launched("gemm", -4, 0, 100)
        after.call("cudaMemcpyAsync", 50, 2, 77).add("gpu_memcpy", "Memcpy DtoD", (0, 7), 100, 30, correlation=77)
        found = diff(before.read(tmp_path), after.read(tmp_path))
        assert causes(found) == {"extra copies": 30.0}

    def test_imbalance(self, tmp_path: Path) -> None:
        """Rank 1 computes 40 us a layer longer; rank 0 waits so long in its reductions."""
        for name, late in (("even", 0.0), ("uneven", 40.0)):
            for recipe in straggling(2, late, BASE):
                write(make(recipe), tmp_path / name / f"rank{recipe.rank}.json")
        found = causes(diff(tmp_path / "even", tmp_path / "uneven"))
        # mean of two ranks: rank 1 loses 40 us a layer in compute; rank 0 waits as long
        assert found == {"slower kernels": 4 * 40.0 / 2, "imbalance": 4 * 40.0 / 2}

    @given(
        st.tuples(*[st.integers(1, 300)] * 4, st.integers(0, 40), st.booleans()),
        st.tuples(*[st.integers(1, 300)] * 4, st.integers(0, 40), st.booleans()),
    )
    def test_they_sum_whatever_the_traces(
        self, tmp_path_factory: pytest.TempPathFactory, one: tuple, other: tuple
    ) -> None:
        recipes = [
            Recipe(
                matmul_us=float(m), element_us=float(e), reduce_us=float(r), hidden_us=float(min(h, m + e, r)),
                gap_us=float(g), graph=graph, steps=1 + m % 3, layers=1 + e % 4,
            )
            for m, e, r, h, g, graph in (one, other)
        ]  # fmt: skip
        found = compare(tmp_path_factory.mktemp("d"), *recipes)
        causes(found)

    def test_timelines_of_two_predictions(self) -> None:
        """`ridgeline diff` compares scenarios by class; their timelines, as values, are compared as traces are."""
        found = diff(
            *(
                ridgeline.timeline(ridgeline.read_scenario(EXAMPLE, ["workload.global_batch=32", *settings]))
                for settings in ([], ["plan.tp=4", "plan.dp=8"])
            )
        )
        causes(found)
        assert found.by_name
        assert found.before.predicted
        assert found.after.predicted
        assert found.delta_ns != 0
        assert len(found.layers) == 81  # 80 layers and what is outside

    def test_prediction_and_trace(self, tmp_path: Path) -> None:
        found = diff(EXAMPLE, write(make(BASE), tmp_path / "b.json"), settings=["workload.global_batch=32"])
        causes(found)
        assert not found.by_name
        assert "different kernels" not in {one.cause for one in found.causes if one.delta_ns > 1}


def test_the_command_prints_json(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    files = [
        str(write(make(recipe), tmp_path / f"{name}.json"))
        for name, recipe in (("a", BASE), ("b", replace(BASE, matmul_us=110.0)))
    ]
    done = CliRunner().invoke(command_line(), ["diff", *files, "--json"])
    sheet = json.loads(done.output)
    assert sheet["difference_us"] == 40.0
    assert [(one["cause"], one["us"]) for one in sheet["causes"]] == [("slower kernels", pytest.approx(40.0))]
    assert CliRunner().invoke(command_line(), ["diff", *files]).exit_code == 0
