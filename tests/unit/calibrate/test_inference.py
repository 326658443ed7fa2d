"""Rows of serving runs beside their predictions: what each kind of row means, and what is refused with a reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ridgeline.calibrate.inference import fit_serving, price_run, run_columns, run_values
from ridgeline.calibrate.truth.inference_rows import InferenceRow, inference_of
from ridgeline.calibrate.truth.rows import Row, Skipped
from ridgeline.calibrate.validate import validate
from ridgeline.cost.calibration import SERVING_PARAMETERS, ServingCalibration, default_calibration, shipped_serving

CELLS = {
    "accelerator": "H100", "n": "4", "model": "Llama 3.1 70B", "precision": "FP8", "tp": "4", "pp": "1", "ep": "",
    "engine_version": "TensorRT-LLM 0.19 (PyTorch backend)", "isl": "1000", "osl": "1000", "x_chip": "h100-sxm",
    "concurrency_batch": "max-load (inf rate)", "metric": "output_tokens_per_s_total", "value": "8000", "notes": "",
}  # fmt: skip


def row(**cells: str) -> Row:
    return Row(id=cells.pop("id", "mine-1"), table="mine.csv", cells={**CELLS, **cells})


def read(**cells: str) -> InferenceRow:
    found = inference_of(row(**cells))
    assert isinstance(found, InferenceRow), found
    return found


def reason(**cells: str) -> str:
    found = inference_of(row(**cells))
    assert isinstance(found, Skipped)
    return found.reason


def predicted(item: InferenceRow) -> float:
    made = price_run(item, default_calibration())
    assert not isinstance(made, str)
    return float(run_columns([made]).predict_runs(run_values([made], shipped_serving()))[0])


def test_own_rows_are_within_five_percent() -> None:
    found = validate("inference", where=["source=h200inf"])
    assert len(found.cases) == 11
    assert found.errors.mape is not None
    assert found.errors.mape < 0.05


def test_rows_at_maximum_load_are_within_twenty_percent(tmp_path: Path) -> None:
    found = validate("inference", where=["source=trtllm019", "osl=2000"])
    assert len(found.cases) == 30
    assert all(case.cross_validated and case.metric == "output_tokens_per_s_total" for case in found.cases)
    assert found.errors.mape is not None
    assert found.errors.mape < 0.2


def test_a_total_counts_all_chips_and_per_gpu_one() -> None:
    """TensorRT-LLM up to 1.0 prints tokens/s of the whole group, 1.1 of one GPU: the metric says which."""
    whole, each = predicted(read()), predicted(read(metric="output_tokens_per_s_per_gpu"))
    assert whole == pytest.approx(4 * each)


def test_attention_ranks_of_a_mixture_of_experts() -> None:
    mesh = read(model="DeepSeek R1", n="4", tp="1", ep="4", notes="DEPn = attention-DP n").scenario.plan.mesh
    assert (mesh.tp, mesh.dp, mesh.ep) == (1, 4, 4)
    counted = read(model="DeepSeek R1", n="64", tp="64", ep="8", engine_version="sglang 0.5.9", x_chip="b200-sxm",
                   metric="tpot_ms", concurrency_batch="64")  # fmt: skip
    assert (counted.scenario.system.chips, counted.scenario.plan.mesh.dp) == (8, 8)


def test_narrow_weights_on_a_chip_without_their_unit_are_widened() -> None:
    precision = read(model="gpt-oss-120b", precision="fp4").scenario.plan.precision
    assert (precision.weights.id, precision.compute.id) == ("mxfp4", "bf16")


@pytest.mark.parametrize(
    ("cells", "begins"),
    [
        ({"metric": "joy"}, "metric: joy is not predicted"),
        ({"model": "llama-90"}, "model: 'llama-90' is not in the catalog"),
        ({"isl": ""}, "isl: blank"),
        ({"tp": ""}, "tp: blank"),
        ({"tp": "3"}, "tp: "),
        ({"engine_version": "mine"}, "engine_version: 'mine' names no serving engine"),
        ({"precision": "odd"}, "precision: 'odd'"),
        ({"value": "-1"}, "value: "),
        ({"metric": "tpot_ms", "concurrency_batch": "many"}, "concurrency_batch: 'many'"),
        ({"metric": "ttft_ms", "notes": "disagg; P 1x(tp1 pp1 dp1 ep1 bs1) D 1x(tp1 pp1 dp1 ep1 bs1)"}, "notes: "),
    ],
)
def test_a_row_that_leaves_its_answer_open_is_refused(cells: dict[str, str], begins: str) -> None:
    assert reason(**cells).startswith(begins)


def test_what_does_not_fit_is_refused() -> None:
    made = price_run(read(model="Llama 3.1 405B", n="1", tp="1"), default_calibration())
    assert isinstance(made, str)
    assert "do not fit" in made


def test_slopes_are_those_of_the_figures() -> None:
    """Against differences of the logarithm, parameter by parameter."""
    items = [
        read(), read(metric="ttft_ms", concurrency_batch="8"),
        read(model="gpt-oss-120b", precision="fp4", n="1", tp="1"),
        read(model="DeepSeek R1", n="8", tp="1", ep="8", notes="DEP", x_chip="h200-sxm"),
    ]  # fmt: skip
    runs = [made for item in items if not isinstance(made := price_run(item, default_calibration()), str)]
    assert len(runs) == 4
    columns, serving = run_columns(runs), shipped_serving()
    found, slopes = columns.slopes(run_values(runs, serving))
    for name in SERVING_PARAMETERS:
        moved = ServingCalibration(offsets={**serving.offsets, name: serving.offsets.get(name, 0.0) + 1e-5})
        after = np.log(columns.predict_runs(run_values(runs, moved)))
        assert np.allclose((after - found) / 1e-5, slopes[name], atol=2e-4), name


def test_a_fit_finds_what_made_the_figures() -> None:
    """Runs whose figures a slower engine made: its step is found again, beyond what the prior holds back."""
    loads = [("1000", "1000"), ("128", "2048"), ("2048", "128"), ("500", "2000")]
    made = [price_run(read(id=f"a-{isl}{osl}", isl=isl, osl=osl), default_calibration()) for isl, osl in loads]
    runs = [one for one in made if not isinstance(one, str)]
    truth = ServingCalibration(offsets={"decode_attention": 0.4})
    figures = run_columns(runs).predict_runs(run_values(runs, truth))
    for run, figure in zip(runs, figures.tolist(), strict=True):
        object.__setattr__(run.item, "measured", figure)
    found = run_columns(runs).predict_runs(run_values(runs, fit_serving(runs)))
    assert np.abs(found / figures - 1).max() < 0.03
