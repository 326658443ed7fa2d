"""Turn whatever a row reports (seconds, tokens/s, TFLOP/s, MFU) into the seconds of one step."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from ridgeline.calibrate.truth.csv_cells import RowCells, Skipped, Unusable
from ridgeline.calibrate.truth.rows import Row
from ridgeline.core.errors import MissingNumber
from ridgeline.core.units import DECIMAL
from ridgeline.models.facts import training_flops_per_token
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train

TERA = DECIMAL["T"]
SHORTEST, LONGEST = 1e-6, 1e6  # seconds; no step of a training run is outside
# attention counted over half the pairs since then: their published TFLOP/s reproduce to 1 % so, else to 7 % at best
HALVED_SINCE: Mapping[str, int] = MappingProxyType(
    dict.fromkeys(("megatron-core", "megatron-bridge", "nemo", "nemo-automodel", "maxtext", "primus"), 2025)
)
_STATED_PEAK = re.compile(r"(\d+(?:\.\d+)?) ?TF\b")


def measured_step_s(row: Row, scenario: Scenario) -> float | Skipped:
    """Seconds of one step as measured: `x_step_time_s` where given, otherwise from the row's metric.

        step_time_s             t
        tokens_per_s_per_gpu    tokens / (v * gpus)
        tflops_per_gpu          F * tokens / (v * 10**12 * gpus)
        mfu_pct                 F * tokens / (v / 100 * peak * gpus)

    v = measured value, tokens = seq * global batch, F = flops of a token as the source counts them
    (`counted_flops_per_token`), peak = of the row's precision, or the one the source divides by where it says so.

    >>> from ridgeline.calibrate.truth.rows import read_rows
    >>> from ridgeline.calibrate.truth.row_scenario import to_scenario
    >>> row = next(row for row in read_rows() if row.id == "misc-0001")  # 137 TFLOP/s, recompute counted
    >>> f"{measured_step_s(row, to_scenario(row)):.2f} s"
    '3.53 s'
    """
    cells = RowCells(row=row)
    try:
        seconds = cells.number("x_step_time_s") or _from_metric(cells, scenario)
    except Unusable as wrong:
        return Skipped(id=row.id, reason=str(wrong))
    except MissingNumber as wrong:
        return Skipped(id=row.id, reason=f"measured_metric: {wrong}")
    if not math.isfinite(seconds) or not SHORTEST <= seconds <= LONGEST:
        return Skipped(id=row.id, reason=f"measured_value: a step of {seconds:.3g} s is not believable")
    return seconds


def _from_metric(cells: RowCells, scenario: Scenario) -> float:
    metric, value = cells.text("measured_metric"), cells.number("measured_value")
    if metric not in METRICS:
        raise Unusable("measured_metric", f"got {metric[:40]!r}, expected one of {', '.join(METRICS)}")
    if value is None:
        raise Unusable("measured_value", "blank")
    if not isinstance(scenario.workload, Train):
        raise Unusable("x_task", "not a training step")
    return METRICS[metric](cells, scenario, value)


def _from_seconds(cells: RowCells, scenario: Scenario, value: float) -> float:  # noqa: ARG001
    return value


def _from_rate(cells: RowCells, scenario: Scenario, value: float) -> float:  # noqa: ARG001
    return scenario.workload.tokens / (value * scenario.system.chips)


def _from_tflops(cells: RowCells, scenario: Scenario, value: float) -> float:
    return _flops_per_chip(cells, scenario) / (value * TERA)


def _from_mfu(cells: RowCells, scenario: Scenario, value: float) -> float:
    if value > 100:
        raise Unusable("measured_value", f"got {value:g}, expected a share of the peak up to 100 %")
    stated = _STATED_PEAK.search(cells.text("flops_convention"))
    chip, compute = scenario.system.chip, scenario.plan.precision.compute
    peak = float(stated[1]) * TERA if stated else chip.peak_flops_per_s(compute).value
    return _flops_per_chip(cells, scenario) / (value / 100 * peak)


METRICS: Mapping[str, Callable[[RowCells, Scenario, float], float]] = MappingProxyType(
    {
        "step_time_s": _from_seconds,
        "tokens_per_s_per_gpu": _from_rate,
        "tflops_per_gpu": _from_tflops,
        "mfu_pct": _from_mfu,
    }
)


def _flops_per_chip(cells: RowCells, scenario: Scenario) -> float:
    flops = counted_flops_per_token(cells.row, scenario)
    return flops * scenario.workload.tokens / scenario.system.chips


def counted_flops_per_token(row: Row, scenario: Scenario) -> float:
    """Flops of one token as the row's source counts them.

    3 * forward                                 attention over all pairs (full) or over half of them (causal)
    + forward without the head                  where recompute is counted and was full
    + the scores of attention                   where recompute is counted and was selective
    * 2/3                                       low-rank adapters: frozen weights have no gradient
    """
    cells = RowCells(row=row)
    full = _counts_all_pairs(cells, scenario.plan.engine)
    train = training_flops_per_token(scenario.model, scenario.workload.seq, causal=not full)
    total = train.total
    kind = scenario.plan.recompute.kind
    if cells.flag("x_flops_with_recompute") and kind != "none":
        total += (train.total - train.head if kind == "full" else train.scores) / 3
    if isinstance(scenario.workload, Train) and scenario.workload.task == "lora":
        total *= 2 / 3
    return total


def _counts_all_pairs(cells: RowCells, engine: str) -> bool:
    """Whether the source counts attention over all pairs of tokens, as older software and most papers do."""
    stated = cells.hint("x_attn_flops", {"full": "full", "causal": "causal"})
    if stated is not None:
        return stated == "full"
    text = cells.text("flops_convention").lower()
    if "non-causal" in text or "full" in text:
        return True
    if "causal" in text or "half" in text:
        return False
    return (cells.number("year") or 0) < HALVED_SINCE.get(engine, math.inf)
