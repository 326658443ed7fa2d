"""Take the figures of the two H200 traces again: the tables of `how-to/explain-a-gap.md` between their markers.

The traces are not part of the project; without them nothing is written and the check passes, saying so.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import ridgeline
from ridgeline.calibrate.anchor import write_residuals
from tools.pages import ROOT, replace_block, write_or_check

PAGE = ROOT / "docs" / "how-to" / "explain-a-gap.md"
TRACES = ROOT.parent / "shared" / "traces" / "kineto"
SCENARIO = ROOT / "examples" / "llama3.2-1b-1xh200.toml"
EAGER, COMPILED = (TRACES / f"h200_llama1b_train_{name}.json.gz" for name in ("eager", "compiled"))
TOLD = {
    "different kernels": "elementwise, copy and loss kernels fused, the softmax of the loss and its casts above all",
    "slower kernels": "the same matrix products and attention, each a few per cent slower",
    "launch gaps": "567 spans fewer a step, 1.5 us between any two",
    "extra copies": "the same memsets",
}


def causes() -> str:
    """Why the compiled step is shorter, as a table that sums."""
    difference = ridgeline.diff(EAGER, COMPILED)
    rows = [
        f"| {cause.cause} | {cause.delta_ns / 1e6:+.2f} | {TOLD.get(cause.cause, cause.meaning)} |"
        for cause in difference.causes
    ]
    ends = f"{difference.before.step_ns / 1e6:.2f} to {difference.after.step_ns / 1e6:.2f} ms on the chip"
    total_row = f"| **sum** | **{difference.delta_ns / 1e6:+.2f}** | {ends} |"
    return "\n".join(["| cause | ms a step | what it is |", "|---|---|---|", *rows, total_row])


def remains() -> str:
    """What `explain` says of both, the three largest classes each."""
    rows = ["| | predicted ms | measured ms | largest parts of the gap |", "|---|---|---|---|"]
    for name, trace, engine in (("eager", EAGER, "torch-eager"), ("compiled", COMPILED, "torch-compile")):
        explanation = ridgeline.explain(SCENARIO, trace, settings=[f"plan.engine={engine}"])
        parts = []
        for class_gap in explanation.by_class[:3]:
            largest_part = max(class_gap.parts, key=lambda part: abs(part.gap_ns))
            roof = (
                f"{largest_part.efficiency:.0%} of the {largest_part.bound} roof; "
                if largest_part.efficiency and largest_part.gap_ns > 0
                else ""
            )
            parts.append(f"{class_gap.class_} {class_gap.gap_ns / 1e6:+.2f} ({roof}{largest_part.change})")
        times = f"{explanation.predicted_ns / 1e6:.1f} | {explanation.measured_ns / 1e6:.1f}"
        rows.append(f"| {name} | {times} | {', '.join(parts)} |")
    return "\n".join(rows)


def fit_table() -> str:
    """What a quick fit makes of the residuals of both: half a minute, so that a check leaves it out."""
    with tempfile.TemporaryDirectory() as folder:
        texts = []
        for trace, engine in ((EAGER, "torch-eager"), (COMPILED, "torch-compile")):
            path = Path(folder) / "one.csv"
            write_residuals(ridgeline.explain(SCENARIO, trace, settings=[f"plan.engine={engine}"]), path)
            texts.append(path.read_text(encoding="utf-8"))
        residuals = Path(folder) / "residuals.csv"
        residuals.write_text(texts[0] + texts[1].split("\n", 1)[1], encoding="utf-8")
        fit = ridgeline.fit_with(residuals)
    rows = ["| run | before | held out | after |", "|---|---|---|---|"]
    for name, case in zip(("eager", "compiled"), fit.cases, strict=True):
        stages = (case.before_s, case.held_out_s, case.after_s)
        rows.append(
            f"| {name} | " + " | ".join(f"{(seconds / case.measured_s - 1) * 100:+.1f} %" for seconds in stages) + " |"
        )
    return "\n".join(rows)


def run(arguments: argparse.Namespace) -> int:
    """Write all tables, or check those that take seconds."""
    if not EAGER.exists():
        print("no H200 traces here; the page stays as it is")
        return 0
    text = replace_block(PAGE.read_text(encoding="utf-8"), "h200 causes", causes())
    text = replace_block(text, "h200 remains", remains())
    if not arguments.check:
        text = replace_block(text, "h200 fitted", fit_table())
    return write_or_check(PAGE, text, check=arguments.check, command="figures gap")
