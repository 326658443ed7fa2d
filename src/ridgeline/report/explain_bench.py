"""Draw the explanation of a load generator's results."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ridgeline.calibrate.explain_bench import METRICS, BenchExplanation, BenchLoad
from ridgeline.core.units import format_quantity, signed_quantity, signed_share
from ridgeline.report.cells import clean, headed, listed


def draw_bench_explanation(explanation: BenchExplanation, console: Console) -> None:
    """A table for each load."""
    if explanation.anchor:
        numbers = explanation.step_numbers.items()
        parts = ", ".join(f"{name} {format_quantity(seconds, 's', 3)}" for name, seconds in numbers)
        fit = f" (mean |residual| of E2E there {explanation.anchored.e2e_mape if explanation.anchored else 0:.1%})"
        console.print(Text.assemble("anchored on ", clean(explanation.anchor), f"{fit}: {parts}"))
        console.print()
    for load in explanation.loads:
        console.print(Text(_title(load), style="bold"))
        causes = list(load.causes)
        heads = ["measured", "predicted", "residual", "spread", *(["cold"] if explanation.anchor else []), *causes]
        table = headed(["", *heads], right=heads)
        for name in METRICS:
            row = [_seconds(load.measured[name]), _seconds(load.predicted[name])]
            row += [signed_share(load.residuals[name]), f"{load.spread[name]:.0%}"]
            row += [_seconds(load.cold[name])] if explanation.anchor else []
            row += [signed_quantity(load.causes[cause][name], "s", 3) for cause in causes]
            table.add_row(name.upper(), *row)
        console.print(table)
        console.print()
    for line in listed("notes", explanation.notes):
        console.print(line)


def _title(load: BenchLoad) -> str:
    rate = f"{load.finite_rate:g} requests/s" if load.finite_rate else "all at once"
    limit = f", at most {load.max_concurrency} at a time" if load.max_concurrency else ""
    times = f"median of {load.repeats} repeats" if load.repeats > 1 else "one run"
    return f"{rate}{limit}: {times}, {load.requests:,} requests; medians of requests"


def _seconds(value: float) -> str:
    return format_quantity(value, "s", 4)
