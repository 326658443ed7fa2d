"""Draw the findings of a preflight."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from ridgeline.core.units import format_quantity, signed_share
from ridgeline.report.cells import clean, percent
from ridgeline.runtime.preflight import Preflight, PreflightFinding


def draw_preflight(preflight: Preflight, console: Console) -> None:
    """The figures of all ranks, then what is wrong with whom."""
    table = Table(box=None, pad_edge=False)
    for name in ("figure", "median", "spread", "slowest", "of", "reference"):
        table.add_column(name, justify="left" if name in ("figure", "of") else "right")
    for one in preflight.figures:
        reference = format_quantity(one.reference, "s", 4) if one.reference is not None else ""
        median, slowest = (format_quantity(value, "s", 4) for value in (one.median, one.value))
        table.add_row(one.name, median, percent(one.spread), slowest, clean(one.worst), reference)
    console.print(clean(f"{preflight.ranks} ranks on {preflight.nodes} nodes: {preflight.device}"))
    console.print(table)
    for wrong in preflight.outliers:
        console.print(clean(_sentence(wrong)))
    for text in preflight.warnings:
        console.print(clean(f"worth a look: {text}"))
    if preflight.ok:
        console.print(f"nothing wrong ({preflight.seconds:.0f} s)")


def _sentence(wrong: PreflightFinding) -> str:
    """One finding in one line."""
    if wrong.gap is None:
        return (
            f"wrong {wrong.kind}: {wrong.who}: {wrong.what} is {wrong.value}, expected {wrong.expected}; {wrong.advice}"
        )
    value, expected = (format_quantity(float(one), "s", 4) for one in (wrong.value, wrong.expected))
    against = "the reference" if wrong.kind == "reference" else "its peers"
    score = f", {wrong.score:.0f} deviations" if wrong.score else ""
    name = "chip" if wrong.kind == "reference" else wrong.kind
    return (
        f"slow {name}: {wrong.who}: {wrong.what} {value}, {signed_share(wrong.gap)} on {against} "
        f"({expected}{score}); {wrong.advice}"
    )
