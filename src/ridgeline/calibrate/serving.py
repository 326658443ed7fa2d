"""Turn measured rows of servers under load into cases: every metric of a row beside what its simulation gives.

Steps are priced by the shipped parameters, which no such row took part in; the one number that rows gave is the time
of the front end. Intervals are residuals of other configurations in the bundled table.

Columns of `serving.csv`: the `x_` columns tell chip, model, rate, lengths and knobs; what they leave blank is the
engine's default. Arrivals are evenly spaced unless the row says otherwise; lengths are the means, or spread as its text
tells. The shared-prefix workloads of `inference-perf` draw from few prompts, groups x users of them, which come again
and again: after the first round they are in the prefix cache.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import log, sqrt
from types import MappingProxyType

import numpy as np

from ridgeline.calibrate.truth.rows import TRUTH, Row, Skipped
from ridgeline.calibrate.validation import Validation, ValidationCase
from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, MissingNumber
from ridgeline.plan.scenario import Scenario, serving
from ridgeline.plan.scenario_file import scenario as scenario_of
from ridgeline.plan.workload import Poisson
from ridgeline.serving import (
    FRONT_END_S,
    Request,
    ServingMetrics,
    StepPricing,
    instances_of,
    load_of,
    served_by,
    unservable,
)
from ridgeline.serving.simulation import Piece

STAGE_S = 600.0  # of one rate after the other, where a row has several
MOST = 1500  # requests of a rate that are simulated: a steady load does not change after them
PROMPTS = MappingProxyType({"general": 9 * 5, "codegen": 11 * 4, "roleplay": 10 * 5, "reasoning": 23 * 1})
"""Distinct prompts (groups x users) of `inference-perf` workloads of these names, as rows that state them do."""
LATENCIES = ("ttft_mean_ms", "ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms", "e2e_mean_ms", "e2e_p99_ms", "x_tpot_ms")
PRINTED_TPOT = ("tpot_mean_ms", "tpot_p50_ms", "tpot_p90_ms", "tpot_p99_ms")
THROUGHPUT = "throughput_out_tok_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRow:
    """A row as a scenario: its requests, and what was measured by column, in the column's unit.

    queued           TTFT counts from the engine's queue, not from the client
    printed_tokens   output tokens of a request as the load generator counted them, which its throughput uses
    """

    row: Row
    scenario: Scenario
    requests: tuple[Request, ...]
    measured: Mapping[str, float]
    queued: bool
    printed_tokens: float | None


def serving_row(row: Row) -> ServingRow | Skipped:
    """The row's scenario, or the reason why nothing can be predicted for it."""
    reason = _unusable(row)
    if reason:
        return Skipped(id=row.id, reason=reason)
    try:
        built = scenario_of(_table(row))
    except InputError as wrong:
        return Skipped(id=row.id, reason=str(wrong).replace("\n", "; ")[:300])
    match = re.search(r"osl mean (\d+)", row["isl_osl"])
    return ServingRow(
        row=row,
        scenario=built,
        requests=_requests(row, built),
        measured=MappingProxyType(dict(_row_metrics(row))),
        queued="queued" in f"{row['source']} {row['notes']}",
        printed_tokens=float(match[1]) if match else None,
    )


def _unusable(row: Row) -> str:
    """Why a row cannot be simulated; empty where it can."""
    if not row["x_chip"] or not row["x_model"]:
        return "no catalog id of the chip or the model"
    if not row["x_rate"]:
        return "no request rate: how many requests run at once is not known"
    if any(_number(rate) is None for rate in row["x_rate"].split(";")):
        return f"a request rate that is no number: {row['x_rate'][:40]}"
    if _number(row["x_isl"]) is None or _number(row["x_osl"]) is None:
        return "no lengths of prompts and answers"
    if "OVERLOAD" in row["x_flag"]:
        return "overload: the queue grows without end, and what was measured depends on when clients gave up"
    if row["engine"] and "vllm" not in row["engine"].lower() and "sglang" not in row["engine"].lower():
        return f"an engine whose scheduler is not simulated: {row['engine'][:40]}"
    if not any(_row_metrics(row)):
        return "nothing measured that is predicted"
    return ""


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < 1e12 else None


def _row_metrics(row: Row) -> Iterator[tuple[str, float]]:
    """What was measured, by column. Printed TPOT counts chunks or re-tokenised text in some sources, not x_tpot_ms."""
    printed_metrics = PRINTED_TPOT if row["x_tpot_ms"] == row["tpot_mean_ms"] else ()
    for column in (*LATENCIES, *printed_metrics, THROUGHPUT):
        value = _number(row[column])
        if value is not None:
            yield column, value


def _table(row: Row) -> JsonObject:
    tp, dp = int(_number(row["tp"]) or 1), int(_number(row["x_dp"]) or 1)
    chips = int(_number(row["n"]) or tp * dp)
    precision_name = row["x_precision"].lower() or "bf16"
    narrow = precision_name in ("fp8", "int8", "int4", "nvfp4", "mxfp4")
    plan: JsonObject = {
        "tp": tp,
        "pp": max(chips // (tp * dp), 1),
        "dp": dp,
        "precision": ({"name": precision_name, "weights": precision_name} if narrow else precision_name),
    }
    plan["engine"] = "sglang" if "sglang" in row["engine"].lower() else "vllm"
    if row["x_ep"] and row["x_ep"] != "0":
        plan["ep"] = tp * dp
    serving: JsonObject = {"data_parallel_size": dp} if plan.get("ep") else {}
    if plan["engine"] == "vllm":
        serving["vllm"] = _vllm(row)
    plan["serving"] = serving
    return {
        "model": row["x_model"],
        "system": f"{chips}x{row['x_chip']}",
        "workload": {
            "kind": "serve",
            "arrivals": {"kind": "constant", "rate": _number(row["x_rate"].split(";")[0])},
            "isl": int(_number(row["x_isl"]) or 1),
            "osl": int(_number(row["x_osl"]) or 1),
        },
        "plan": plan,
    }


def _vllm(row: Row) -> JsonObject:
    knobs: JsonObject = {}
    version = re.search(r"\d+\.\d+(\.\d+)?", row["engine"])
    if version:
        knobs["version"] = version[0]
    for column, name in (("x_max_num_batched_tokens", "max_num_batched_tokens"), ("x_max_num_seqs", "max_num_seqs")):
        if (value := _number(row[column])) is not None:
            knobs[name] = int(value)
    if (share := _number(row["x_gpu_mem_util"])) is not None:
        knobs["gpu_memory_utilization"] = share
    if length := re.search(r"max_model_len=(\d+)", row["engine_config"]):
        knobs["max_model_len"] = int(length[1])
    return knobs


def _requests(row: Row, built: Scenario) -> tuple[Request, ...]:
    work = serving(built).workload
    rates = [_number(rate) or 1.0 for rate in row["x_rate"].split(";")]
    stated_count = _number(row["x_requests"])
    if len(rates) == 1:
        count = min(int(stated_count or rates[0] * STAGE_S), MOST)
        times = [place / rates[0] for place in range(count)]
        if "session" in row["workload"]:
            poisson = replace(work, arrivals=Poisson(rate=rates[0]), requests=count)
            times = [request.arrival_s for request in load_of(poisson)]
    else:
        times = list(_stages(rates))
    lengths = _lengths(row, len(times))
    distinct = _prompts(row) or len(times)
    return tuple(
        Request(
            id=f"r{index}",
            arrival_s=at,
            prompt=(Piece(seed=2 * (index % distinct), tokens=prompt),),
            output_tokens=output,
            max_new_tokens=output,
            output_seed=2 * index + 1,
        )
        for index, (at, (prompt, output)) in enumerate(zip(times, lengths, strict=True))
    )


def _stages(rates: list[float]) -> Iterator[float]:
    """Rates one after the other, all of the same length; every stage by as many requests as its share of time."""
    length = min(STAGE_S, MOST / sum(rates))
    begin = 0.0
    for rate in rates:
        yield from (begin + place / rate for place in range(int(rate * length)))
        begin += length


def _lengths(row: Row, count: int) -> list[tuple[int, int]]:
    """Lengths of requests: the means; log-normal about mean and median where the row tells both."""
    isl, osl = _number(row["x_isl"]) or 1.0, _number(row["x_osl"]) or 1.0
    dice = np.random.default_rng(0)
    columns = []
    for name, mean in (("isl", isl), ("osl", osl)):
        match = re.search(rf"{name} mean (\d+) p50 (\d+) max (\d+)", row["isl_osl"])
        if match and float(match[1]) > float(match[2]):
            sigma = sqrt(2 * log(float(match[1]) / float(match[2])))
            drawn = np.exp(dice.normal(log(float(match[2])), sigma, count))
            columns.append([int(length) for length in np.clip(drawn * mean / drawn.mean(), 1, float(match[3])).round()])
        else:
            columns.append([round(mean)] * count)
    return list(zip(*columns, strict=True))


def _prompts(row: Row) -> int:
    """How many different prompts there are; 0 where none comes twice."""
    if match := re.search(r"groups=(\d+)x(\d+)", row["workload"]):
        return int(match[1]) * int(match[2])
    return PROMPTS.get(row["x_workload"].removesuffix("-lite"), 0) if "inference-perf" in row["workload"] else 0


RESIDUALS = TRUTH / "serving_residuals.json"
MILLI = 1e-3
COVERED = (0.05, 0.95)
WIDE = math.log(2.0)  # half a width, in logarithms, of what the bundled rows do not tell
FEWEST = 4  # residuals of other configurations from which an interval is taken
PERCENTILES = (50.0, 90.0, 99.0)


def validate_serving(rows: Iterable[Row], priced: StepPricing | None = None) -> Validation:
    """The cases of a table of servers under load, one for every metric of a row; refused rows with their reasons."""
    cases: list[ValidationCase] = []
    skipped_rows: list[Skipped] = []
    for row in rows:
        read = serving_row(row)
        if isinstance(read, Skipped):
            skipped_rows.append(read)
        elif isinstance(predicted := predict_row(read, priced), Skipped):
            skipped_rows.append(predicted)
        else:
            cases += [
                ValidationCase.of(
                    row, value, predicted[metric], metric_interval(metric, row.group), part=metric, chip=row.chip,
                    engine=row["engine"], cross_validated=False, assumptions=read.scenario.assumptions, metric=metric,
                )
                for metric, value in read.measured.items()
            ]  # fmt: skip
    return Validation(kind="serving", cases=tuple(cases), skipped=tuple(skipped_rows))


def predict_row(read: ServingRow, priced: StepPricing | None = None) -> Mapping[str, float] | Skipped:
    """What is predicted for a row, by column and in its unit; or why nothing is."""
    try:
        instances = instances_of(read.scenario, priced)
        reasons = tuple(unservable(instances, read.requests))
        if reasons:
            return Skipped(id=read.row.id, reason="; ".join(map(str, reasons))[:300])
        prediction = served_by(read.scenario, instances, read.requests)
    except (InputError, MissingNumber) as wrong:
        return Skipped(id=read.row.id, reason=str(wrong).replace("\n", "; ")[:300])
    return dict(_columns(read, prediction.metrics))


def _columns(read: ServingRow, told: ServingMetrics) -> Iterator[tuple[str, float]]:
    before = FRONT_END_S if read.queued else 0.0  # where TTFT counts from the queue, the front end is not in it
    for name, quantiles in (("ttft", told.ttft), ("tpot", told.tpot), ("e2e", told.e2e)):
        less = 0.0 if name == "tpot" else before
        yield f"{name}_mean_ms", (quantiles.mean - less) / MILLI
        for percentile in PERCENTILES:
            yield f"{name}_p{percentile:g}_ms", (quantiles.percentiles[percentile] - less) / MILLI
    yield "x_tpot_ms", told.tpot.mean / MILLI
    answer_tokens = read.printed_tokens or told.output_tokens / max(told.requests, 1)
    yield THROUGHPUT, told.requests_per_s * answer_tokens


def metric_interval(metric: str, group: str) -> tuple[float, float]:
    """Low and high about a prediction of 1: quantiles of measured / predicted in other configurations."""
    logs = [math.log(ratio) for row_group, ratio in _residuals().get(metric, ()) if row_group != group and ratio > 0]
    if len(logs) < FEWEST:
        return math.exp(-WIDE), math.exp(WIDE)
    low, high = np.quantile(logs, COVERED)
    return math.exp(min(float(low), 0.0)), math.exp(max(float(high), 0.0))


@cache
def _residuals() -> Mapping[str, list[tuple[str, float]]]:
    """(configuration, measured / predicted) of the bundled rows without a flag, by metric."""
    if not RESIDUALS.exists():
        return {}
    table = json.loads(RESIDUALS.read_text(encoding="utf-8"))
    return {metric: [(str(group), float(ratio)) for group, ratio in rows] for metric, rows in table.items()}
