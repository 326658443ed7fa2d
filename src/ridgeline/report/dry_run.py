"""Draw a dry run: every op of every distinct stage."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from ridgeline.ir.op_comparison import DryRun

OWN = "ridgeline"


def draw_dry(run: DryRun, screen: Console) -> None:
    """A table for each distinct stage: all ops, or those that differ where some do; the verdict last."""
    for stage in run.stages:
        wrong = [op for op in stage.ops if not op.equal]
        if not run.equal and not wrong:
            continue
        held = ", ".join(map(str, stage.pipeline_ranks))
        table = Table(title=f"pipeline rank {held}", title_justify="left", box=None, pad_edge=False)
        for name in ("op", "size", "expected", "traced", "as"):
            table.add_column(name, justify="right" if name in ("expected", "traced") else "left", overflow="fold")
        for op in wrong or stage.ops:
            unit = " B" if op.way == "buckets" else ""
            name = op.label or "(nothing expected)"
            table.add_row(name, op.size, f"{op.expected:,}{unit}", f"{op.traced:,}{unit}", op.way)
        screen.print(table)
    if run.engine_given != OWN:
        screen.print(f"engine {OWN}: what runs here, in place of {run.engine_given}")
    many = sum(len(stage.ops) for stage in run.stages)
    verdict = "all as expected" if run.equal else f"{len(run.differences)} differ"
    screen.print(f"{run.ranks} rank(s), {len(run.stages)} distinct stage(s), {many} sizes of ops: {verdict}")
