"""Draw why a step of post-training takes longer than predicted: a line for each phase, and one for each pool."""

from __future__ import annotations

from rich.console import Console
from rich.table import Column, Table

from ridgeline.calibrate.explain_rl import RlExplanation
from ridgeline.core.units import format_quantity, signed_share
from ridgeline.report.cells import clean


def draw_rl_explanation(explanation: RlExplanation, console: Console) -> None:
    """The step, then what each phase adds to its gap, then how long each pool works."""
    measured, predicted = (format_quantity(value, "s") for value in (explanation.measured_s, explanation.predicted_s))
    share = signed_share(explanation.residual)
    console.print(clean(f"{explanation.name}: step {measured} over {explanation.steps} steps"), markup=False)
    console.print(f"predicted {predicted}, {share} on it")
    columns = (Column(name, justify="left" if name == "phase" else "right") for name in _COLUMNS)
    table = Table(*columns, box=None, pad_edge=False)
    for row in explanation.phases:
        sign = "+" if row.gap_s >= 0 else "-"
        gap = f"{sign}{format_quantity(abs(row.gap_s), 's')}"
        table.add_row(row.phase, format_quantity(row.predicted_s, "s"), format_quantity(row.measured_s, "s"), gap)
    console.print(table)
    for pool in explanation.pools:
        busy, expected = (format_quantity(value, "s") for value in (pool.measured_s, pool.predicted_s))
        console.print(f"{pool.pool}: {pool.processes} process(es) work {busy} of a step, predicted {expected}")


_COLUMNS = ("phase", "predicted", "measured", "gap")
