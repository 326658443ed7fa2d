"""Write the figures of benchmarks/run_h200.json into `concepts/running.md`: the tables between their markers.

The file comes from `python benchmarks/run_h200.py benchmarks/run_h200.json` on a machine with the chip, all rows in one
run; predictions are made again here, with the engine and the calibration as they are now.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import ridgeline
from tools.pages import ROOT, replace_block, write_or_check

sys.path.insert(0, str(ROOT / "benchmarks"))

from run_cases import CASES

PAGE = ROOT / "docs" / "concepts" / "running.md"
ROWS = ROOT / "benchmarks" / "run_h200.json"
GIB = 2**30
TERA = 1e12


def speed(rows: dict[str, dict[str, Any]]) -> str:
    """Llama-3-8B on 1 x 8192 tokens, each switch against the row it belongs to."""
    flops = rows["8b compiled"]["flops"]
    lines = ["| 1 x 8192 tokens of Llama-3-8B | ms a step | TFLOP/s | GiB at most |", "|---|---|---|---|"]
    for id, row in rows.items():
        if id.startswith("8b "):
            name = id[3:].replace("plain", "plain PyTorch, compiled")
            cells = f"{row['step_s'] * 1e3:.0f} | {flops / row['step_s'] / TERA:.0f} | {row['peak_bytes'] / GIB:.1f}"
            lines.append(f"| {name} | {cells} |")
    return "\n".join(lines)


def predicted_table(rows: dict[str, dict[str, Any]]) -> str:
    """Predicted against measured, every case: time and memory."""
    lines = ["| | predicted ms | measured ms | | predicted GiB | measured GiB |", "|---|---|---|---|---|---|"]
    for case in CASES:
        row = rows.get(case.id)
        if row is None:
            continue
        prediction = ridgeline.predict(case.scenario)
        off = prediction.step_time_s / row["step_s"] - 1
        memory = f"{prediction.memory.allocated_bytes / GIB:.1f} | {row['peak_bytes'] / GIB:.1f}"
        times = f"{prediction.step_time_s * 1e3:.0f} | {row['step_s'] * 1e3:.0f}"
        lines.append(f"| {case.id} | {times} | {off * 100:+.1f} % | {memory} |")
    return "\n".join(lines)


def run(arguments: argparse.Namespace) -> int:
    """Write or check the page."""
    rows = {row["id"]: row for row in json.loads(ROWS.read_text(encoding="utf-8"))["rows"] if "failed" not in row}
    text = replace_block(PAGE.read_text(encoding="utf-8"), "run speed", speed(rows))
    text = replace_block(text, "run predicted", predicted_table(rows))
    return write_or_check(PAGE, text, check=arguments.check, command="figures run")
