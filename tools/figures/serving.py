"""Write the figures of the serving pages: residuals of servers under load, and when disaggregation pays.

Rewrites `src/ridgeline/calibrate/truth/serving_residuals.json`, the table of rows in `docs/concepts/serving.md` and the
table in `docs/how-to/disaggregate-prefill-and-decode.md`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ridgeline.calibrate.serving import RESIDUALS
from ridgeline.calibrate.truth.rows import Row
from ridgeline.calibrate.validate import validate
from ridgeline.calibrate.validation import ValidationCase
from ridgeline.plan.scenario_file import read_scenario
from ridgeline.serving.serving_prediction import predict_serving, refuse_impossible
from tools.pages import ROOT, replace_block, write_or_check

COMMAND = "figures serving"
ROWS = ROOT / "docs" / "concepts" / "serving.md"
POOLS = ROOT / "docs" / "how-to" / "disaggregate-prefill-and-decode.md"
EXAMPLE = ROOT / "examples" / "serve-disaggregated-llama3.1-70b.toml"
METRICS = (
    *("e2e_mean_ms", "e2e_p99_ms", "ttft_mean_ms", "ttft_p50_ms", "ttft_p99_ms"),
    *("x_tpot_ms", "throughput_out_tok_s"),
)
TOGETHER = "plan.serving.pools=[]"
SHORT = ("workload.isl=512", "workload.osl=512")
CASES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("4096 + 256 tokens, 4/s: 2 prefill + 2 decode", ("workload.arrivals.rate=4",)),
    ("the same, 4 replicas together", ("workload.arrivals.rate=4", TOGETHER)),
    ("4096 + 256 tokens, 6/s: 2 prefill + 2 decode", ()),
    ("the same, 4 replicas together", (TOGETHER,)),
    ("together, `max_num_batched_tokens=1024`", (TOGETHER, "plan.serving.vllm.max_num_batched_tokens=1024")),
    ("512 + 512 tokens, 6/s: 2 prefill + 2 decode", SHORT),
    ("the same, 4 replicas together", (*SHORT, TOGETHER)),
)


def run(arguments: argparse.Namespace) -> int:
    """Write or check the residuals and both tables."""
    cases = validate("serving").cases
    figures = [(case.row, case.metric, case.measured_s / case.predicted_s) for case in cases]
    texts = {
        RESIDUALS: residuals_text(figures),
        ROWS: _with(ROWS, "serving rows", rows_table(cases)),
        POOLS: _with(POOLS, "pools", pools_table()),
    }
    return max(write_or_check(path, text, check=arguments.check, command=COMMAND) for path, text in texts.items())


def _with(page: Path, name: str, table: str) -> str:
    return replace_block(page.read_text(encoding="utf-8"), name, table, f"end of {name}")


def rows_table(cases: tuple[ValidationCase, ...]) -> str:
    """Medians of |residual| by metric, of rows without a flag and of the others."""
    lines = ["| metric | rows without a flag | median | mean | bias | flagged rows | median |", "|---" * 7 + "|"]
    for metric in METRICS:
        plain = np.array([case.residual for case in cases if case.metric == metric and not case.row["x_flag"]])
        flagged_residuals = np.array([case.residual for case in cases if case.metric == metric and case.row["x_flag"]])
        more = (
            f"{len(flagged_residuals)} | {np.median(np.abs(flagged_residuals)):.1%}"
            if len(flagged_residuals)
            else "0 | "
        )
        size = np.abs(plain)
        errors = f"{np.median(size):.1%} | {size.mean():.1%} | {plain.mean():+.1%}"
        lines.append(f"| `{metric}` | {len(plain)} | {errors} | {more} |")
    return "\n".join(lines) + "\n"


def pools_table() -> str:
    """The example with its pools and without, under three loads."""
    heads = ("load and deployment", "goodput", "TTFT p99", "TPOT p99", "ITL p99", "stalled", "transfer")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, settings in CASES:
        metrics = refuse_impossible(predict_serving(read_scenario(EXAMPLE, settings))).metrics
        goodput, time = metrics.goodput or 0.0, metrics.time
        cells = (
            name,
            f"{goodput:.2f}/s",
            f"{metrics.ttft.percentiles[99.0]:.2f} s",
            *(f"{latency.percentiles[99.0] * 1e3:.0f} ms" for latency in (metrics.tpot, metrics.itl)),
            f"{time['stalled']:.2f} s",
            f"{time['transfer'] * 1e3:.1f} ms",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def residuals_text(figures: Iterable[tuple[Row, str, float]]) -> str:
    """What intervals are taken from: measured / predicted by metric, of rows without a flag."""
    table: dict[str, list[tuple[str, float]]] = {}
    for row, metric, ratio in figures:
        if not row["x_flag"]:
            table.setdefault(metric, []).append((row.group, round(ratio, 4)))
    return json.dumps(table, indent=1) + "\n"
