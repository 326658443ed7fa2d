"""An explanation accounts for the whole gap, blames by stated rules, and offers residuals in a stated schema."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from traces import Recipe, make, write
from typer.testing import CliRunner

import ridgeline
from ridgeline.calibrate.anchor import write_residuals
from ridgeline.calibrate.explain import Explanation, explain
from ridgeline.calibrate.gap_verdict import MACHINE, MODEL
from ridgeline.calibrate.truth.rows import RESIDUAL_COLUMNS
from ridgeline.cli.main import command_line
from ridgeline.core.errors import InputError
from ridgeline.trace import write_chrome


def found(scenario: Path, recipe: Recipe) -> Explanation:
    """The recipe is of no model, so that the explanation has to be forced."""
    return explain(scenario, write(make(recipe), scenario.parent / "trace.json"), force=True)


def test_parts_sum_to_the_gap(scenario: Path) -> None:
    done = found(scenario, Recipe(layers=12, gap_us=300.0))
    assert sum(part.gap_ns for part in done.parts) == pytest.approx(done.gap_ns, abs=1.0)
    assert sum(done.by_change_ns.values()) == pytest.approx(done.gap_ns, abs=1.0)
    assert sum(part.predicted_ns for part in done.parts) == pytest.approx(done.predicted_ns, abs=1.0)
    sizes = [abs(part.gap_ns) for part in done.parts]
    assert sizes == sorted(sizes, reverse=True)


def test_idle_is_the_machines(scenario: Path) -> None:
    """24 layers, 23 gaps of 3 ms in two steps: the largest part, and no plan asks for it."""
    first = found(scenario, Recipe(layers=12, gap_us=3000.0)).parts[0]
    assert (first.class_, first.change) == ("idle, host", MACHINE)
    assert first.measured_ns == pytest.approx(23 * 3_000_000 / 2)


def test_work_that_is_faster_than_predicted_is_the_models(scenario: Path) -> None:
    done = found(scenario, Recipe(matmul_us=1.0, layers=2))
    (matmul,) = (part for part in done.parts if part.class_ == "matmul" and part.phase == "forward")
    assert matmul.change == MODEL
    assert matmul.residual is not None
    assert matmul.residual > 0


def test_slow_kernels_far_below_the_roof_are_the_machines(scenario: Path) -> None:
    """34.4 GFLOP in 2 ms are 17 TFLOP/s of 989."""
    done = found(scenario, Recipe(matmul_us=2000.0, layers=20))
    (matmul,) = (part for part in done.parts if part.class_ == "matmul" and part.phase == "forward")
    assert matmul.change == MACHINE
    assert matmul.efficiency == pytest.approx(2 * 4096 * 4096 * 1024 / 989e12 / 2e-3, rel=0.01)


def test_another_chip_is_a_doubt(scenario: Path) -> None:
    done = found(scenario, Recipe(chip="NVIDIA A100-SXM4-80GB", world=4))
    assert any("a100-80-sxm" in doubt for doubt in done.doubts)
    assert any("4 ranks" in doubt for doubt in done.doubts)


def test_residuals_have_the_stated_columns(scenario: Path, tmp_path: Path) -> None:
    done = found(scenario, Recipe())
    write_residuals(done, tmp_path / "residuals.csv")
    with (tmp_path / "residuals.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == RESIDUAL_COLUMNS
    assert len(rows) == len(done.parts)
    assert sum(float(row["measured_s"]) for row in rows) == pytest.approx(done.measured_ns / 1e9, abs=1e-6)
    for row in rows:
        if row["residual"]:
            assert float(row["residual"]) == pytest.approx(
                float(row["predicted_s"]) / float(row["measured_s"]) - 1, abs=1e-3
            )


def test_a_cell_that_a_spreadsheet_would_run_is_text(scenario: Path, tmp_path: Path) -> None:
    trace = write(make(Recipe()), tmp_path / "=1+2.json")
    write_residuals(explain(scenario, trace, force=True), tmp_path / "residuals.csv")
    with (tmp_path / "residuals.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["source"] for row in rows} == {"'=1+2.json"}
    assert any(row["residual"].startswith("-") for row in rows)  # a number stays one
    assert not [cell for row in rows for cell in row.values() if cell[:1] in ("=", "@")]


def test_the_command(scenario: Path, tmp_path: Path) -> None:
    trace = write(make(Recipe()), tmp_path / "t.json")
    words = ["explain", str(scenario), str(trace), "--force"]
    done = CliRunner().invoke(command_line(), [*words, "--json", "-o", str(tmp_path / "r.csv")])
    sheet = json.loads(done.output)
    assert sheet["gap_us"] == pytest.approx(sheet["measured_us"] - sheet["predicted_us"])
    assert (tmp_path / "r.csv").exists()
    assert CliRunner().invoke(command_line(), words).exit_code == 0


def test_no_trace_is_refused(scenario: Path) -> None:
    with pytest.raises(InputError, match="trace"):
        explain(scenario)


def test_classes_sum_to_the_gap_too(scenario: Path) -> None:
    done = found(scenario, Recipe(layers=12, gap_us=300.0))
    assert sum(one.gap_ns for one in done.by_class) == pytest.approx(done.gap_ns, abs=1.0)
    assert {part for one in done.by_class for part in one.parts} == set(done.parts)


def test_other_sizes_are_a_doubt(scenario: Path) -> None:
    """A step of the recipe has products of 8 x 2 x 4096 x 4096 x 1024 flops, far from 4 layers of a 1B model."""
    done = found(scenario, Recipe())
    assert any("another model or batch" in doubt for doubt in done.doubts)


def test_compiled_kernels_under_an_eager_scenario_are_a_doubt(scenario: Path) -> None:
    trace = make(Recipe())
    for event in trace["traceEvents"]:
        if event.get("cat") == "kernel" and "elementwise" in event["name"]:
            event["name"] = "triton_poi_fused_add_0"
    done = explain(scenario, write(trace, scenario.parent / "compiled.json"), force=True)
    assert any("plan.engine=torch-compile" in doubt for doubt in done.doubts)
    assert not any("torch.compile" in doubt for doubt in found(scenario, Recipe()).doubts)


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (Recipe(chip="NVIDIA A100-SXM4-80GB"), "got a trace of a100-80-sxm, expected h100-sxm, the scenario's chip"),
        (Recipe(world=4), "got a trace of 4 ranks, expected 1, the scenario's chips"),
        (Recipe(), "of matrix products a chip and step, expected about"),
        (Recipe(matmul_us=1.0, layers=2), "expected at least"),
    ],
)
def test_a_trace_of_something_else_is_refused(recipe: Recipe, said: str, scenario: Path) -> None:
    trace = write(make(recipe), scenario.parent / "trace.json")
    with pytest.raises(InputError, match=re.escape(said)) as refused:
        explain(scenario, trace)
    assert all("--force" in problem.todo for problem in refused.value.problems)


def test_a_trace_without_kernels_is_refused(scenario: Path) -> None:
    trace = make(Recipe())
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("cat") not in ("kernel", "gpu_memcpy")]
    with pytest.raises(InputError, match="kernel"):
        explain(scenario, write(trace, scenario.parent / "trace.json"))


def test_a_prediction_of_the_scenario_is_not_refused(scenario: Path, tmp_path: Path) -> None:
    drawn = ridgeline.timeline(ridgeline.read_scenario(scenario))
    write_chrome(drawn, tmp_path / "own.json")
    assert abs(explain(scenario, tmp_path / "own.json").gap_ns) < 1e6
