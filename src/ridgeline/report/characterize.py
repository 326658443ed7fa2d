"""Draw a characterization: ceilings, failures, counts."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from ridgeline.core.units import format_quantity
from ridgeline.report.cells import clean
from ridgeline.runtime.measure import Characterization


def draw_characterization(found: Characterization, console: Console) -> None:
    """The ceilings, then what failed and why, then the counts."""
    device = found.device.get("name", "")
    table = Table(box=None, title=None, pad_edge=False)
    for name in ("best measured", "format", "value", "at"):
        table.add_column(name, justify="right" if name == "value" else "left")
    for one in found.ceilings:
        value = f"{one.value:.3g} J" if one.unit == "J" else format_quantity(one.value, one.unit, 4)
        table.add_row(one.what, one.dtype, value, clean(one.at))
    console.print(clean(f"{device} ({found.chip or 'no chip of the catalog'})"))
    console.print(table)
    for lack in found.failure_counts:
        who = " ".join(part for part in (lack.op, lack.impl, lack.dtype) if part)
        console.print(clean(f"failing: {who}, {lack.rows} rows: {lack.why}"))
    if found.waited:
        said = "threads waited for a core in every run; measure again with fewer threads, or when nobody else computes"
        console.print(clean(f"beside other work: {found.waited} rows, {said}"))
    counts = ", ".join(f"{count} {op}" for op, count in found.counts.items())
    console.print(clean(f"{found.path}: {sum(found.counts.values())} rows ({counts}); {found.left} cases left out"))
