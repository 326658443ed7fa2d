"""Write what the bundled rows of servers under load say: residuals that intervals are taken from, and the page's table.

    python docs/serving.py [--check]

Rewrites `src/ridgeline/calibrate/truth/serving_residuals.json` and the table in `docs/concepts/serving.md`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from ridgeline.calibrate.serving import RESIDUALS, residuals_text
from ridgeline.calibrate.validate import Case, validate
from ridgeline.core.files import write_text

PAGE = Path(__file__).parent / "concepts" / "serving.md"
BEGIN, END = "<!-- serving rows -->", "<!-- end of serving rows -->"
METRICS = (
    "e2e_mean_ms",
    "e2e_p99_ms",
    "ttft_mean_ms",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "x_tpot_ms",
    "throughput_out_tok_s",
)


def main() -> None:
    """Write both, or say that they are out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    cases = validate("serving").cases
    figures = [(case.row, case.metric, case.measured_s / case.predicted_s) for case in cases]
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    page = f"{head}{BEGIN}\n{table(cases)}{END}{rest.split(END)[1]}"
    made = {RESIDUALS: residuals_text(figures), PAGE: page}
    stale = [path for path, new in made.items() if not path.exists() or path.read_text(encoding="utf-8") != new]
    if parser.parse_args().check:
        raise SystemExit("\n".join(f"{path} is out of date" for path in stale) or 0)
    for path in stale:
        write_text(path, made[path])
        print(f"wrote {path}")


def table(cases: tuple[Case, ...]) -> str:
    """Medians of |residual| by metric, of rows without a flag and of the others."""
    lines = [
        "| metric | rows without a flag | median | mean | bias | flagged rows | median |",
        "|---|---|---|---|---|---|---|",
    ]
    for metric in METRICS:
        plain = np.array([case.residual for case in cases if case.metric == metric and not case.row["x_flag"]])
        other = np.array([case.residual for case in cases if case.metric == metric and case.row["x_flag"]])
        more = f"{len(other)} | {np.median(np.abs(other)):.1%}" if len(other) else "0 | "
        size = np.abs(plain)
        lines.append(
            f"| `{metric}` | {len(plain)} | {np.median(size):.1%} | {size.mean():.1%} | {plain.mean():+.1%} | {more} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
