"""Write src/ridgeline/trace/analysis/reachable.toml: the best measured share of each chip's data sheet.

Taken from the kernels table of the calibration (matrix products and BabelStream, as shares of the peak) and from the
profiles that come with Ridgeline. Only the shares are kept; the trace floor reads no calibration.
"""

from __future__ import annotations

import argparse
import csv
import json

from ridgeline.hardware.load import CHIPS
from ridgeline.runtime import best_measured
from tools.pages import ROOT, write_or_check

SOURCE = ROOT / "src" / "ridgeline"
INTO = SOURCE / "trace" / "analysis" / "reachable.toml"
FORMATS = {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "fp8": "fp8", "nvfp4": "fp4"}
PRODUCTS = ("torch matmul max achievable", "cuBLASLt GEMM")  # searches for the best shape
HEAD = """# The best share of a chip's data sheet that anybody measured, by number format; memory: of its bandwidth.
# Written by `python -m tools docs reachable`; do not edit.
"""


def from_kernels() -> dict[str, dict[str, float]]:
    """Best shares by chip and format in the kernels table."""
    shares: dict[str, dict[str, float]] = {}
    with (SOURCE / "calibrate" / "truth" / "kernels.csv").open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            key = FORMATS.get(row["precision"]) if row["kernel"].startswith(PRODUCTS) else None
            key = "memory" if row["kernel"].startswith(("BabelStream Copy", "BabelStream Triad")) else key
            chip = CHIPS.get(row["x_chip"])
            if key is None or chip is None:
                continue
            peak = chip.hbm.bandwidth if key == "memory" else chip.peak.get(key)
            if row["pct_of_peak"]:
                _keep(shares, chip.id, key, float(row["pct_of_peak"]) / 100)
            elif row["unit"] == "TFLOPS" and peak is not None:
                _keep(shares, chip.id, key, float(row["value"]) * 1e12 / peak.value)
    return shares


def same_die(found: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """The same, with the shares of formats for chips of the same die that nobody measured."""
    all_shares = {id: dict(shares) for id, shares in found.items()}
    for chip in CHIPS.values():
        for key, share in found.get(chip.fitted_die, {}).items():
            if key != "memory":
                all_shares.setdefault(chip.id, {}).setdefault(key, share)
    return all_shares


def _keep(found: dict[str, dict[str, float]], chip: str, key: str, share: float) -> None:
    if share <= 1:
        found.setdefault(chip, {})[key] = max(share, found.get(chip, {}).get(key, 0.0))


def from_profiles(found: dict[str, dict[str, float]]) -> None:
    """Best shares of the shipped profiles of chips."""
    for path in sorted((SOURCE / "cost" / "profiles").glob("*.json")):
        profile = json.loads(path.read_text(encoding="utf-8"))
        chip = CHIPS.get(profile["chip"] or "")
        for ceiling in best_measured([row for row in profile["rows"] if row.get("ok")]) if chip else ():
            peak = chip.peak.get(ceiling.dtype) if ceiling.what == "product" else chip.hbm.bandwidth
            if ceiling.what in ("product", "copy") and peak is not None:
                _keep(
                    found, chip.id, ceiling.dtype if ceiling.what == "product" else "memory", ceiling.value / peak.value
                )


def run(arguments: argparse.Namespace) -> int:
    """Write or check the table."""
    shares_by_chip = from_kernels()
    from_profiles(shares_by_chip)
    lines = [HEAD]
    for id, shares in sorted(same_die(shares_by_chip).items()):
        row = ", ".join(f"{key} = {share:.3f}" for key, share in sorted(shares.items()))
        lines.append(f"[chip.{id}]\nshare = {{ {row} }}\n")
    return write_or_check(INTO, "\n".join(lines), check=arguments.check, command="docs reachable")
