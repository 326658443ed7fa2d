"""Turn a dry run into a sheet of every op, and the sheet into tables of the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from ridgeline.ir.op_comparison import ComparedOp, DryRun
from ridgeline.ir.rank_ops import kind_of, size_text
from ridgeline.report.sheets.run import DrySheet, TracedOpSheet

OWN = "ridgeline"


def dry_sheet(found: DryRun) -> DrySheet:
    """Every op of every distinct stage."""
    return {
        "kind": "dry run",
        "equal": not found.differences,
        "ranks": found.ranks,
        "engine": OWN,
        "engine_given": found.engine_given,
        "differences": len(found.differences),
        "stages": [
            {"pipeline_ranks": list(stage.pipeline_ranks), "ops": [_op(one) for one in stage.ops]}
            for stage in found.stages
        ],
    }


def _op(one: ComparedOp) -> TracedOpSheet:
    return {
        "op": one.label,
        "kind": kind_of(one.kernel),
        "size": size_text(one.kernel),
        "sizes": [int(size) for size in one.kernel.dims.values()],
        "expected": one.expected,
        "traced": one.traced,
        "way": one.way,
        "equal": one.equal,
    }


def draw_dry(sheet: DrySheet, screen: Console) -> None:
    """A table for each distinct stage: all ops, or those that differ where some do; the verdict last."""
    for stage in sheet["stages"]:
        wrong = [op for op in stage["ops"] if not op["equal"]]
        if not sheet["equal"] and not wrong:
            continue
        held = ", ".join(map(str, stage["pipeline_ranks"]))
        table = Table(title=f"pipeline rank {held}", title_justify="left", box=None, pad_edge=False)
        for name in ("op", "size", "expected", "traced", "as"):
            table.add_column(name, justify="right" if name in ("expected", "traced") else "left", overflow="fold")
        for op in wrong or stage["ops"]:
            unit = " B" if op["way"] == "buckets" else ""
            name = op["op"] or "(nothing expected)"
            table.add_row(name, op["size"], f"{op['expected']:,}{unit}", f"{op['traced']:,}{unit}", op["way"])
        screen.print(table)
    if sheet["engine_given"] != sheet["engine"]:
        screen.print(f"engine {sheet['engine']}: what runs here, in place of {sheet['engine_given']}")
    many = sum(len(stage["ops"]) for stage in sheet["stages"])
    verdict = "all as expected" if sheet["equal"] else f"{sheet['differences']} differ"
    screen.print(f"{sheet['ranks']} rank(s), {len(sheet['stages'])} distinct stage(s), {many} sizes of ops: {verdict}")
