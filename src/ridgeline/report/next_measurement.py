"""Draw what could be measured next."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ridgeline.calibrate.next_measurement import NextMeasurements
from ridgeline.core.units import HOUR, format_quantity
from ridgeline.report.cells import clean, headed


def draw_next(found: NextMeasurements, console: Console) -> None:
    """Print the present interval, and what each measurement would leave of it."""
    now = found.prediction
    console.print(clean(now.scenario.name or now.scenario.model.id), style="bold")
    console.print(Text(f"step {_seconds(now.step_time_s)}, now {_range(now.interval.low, now.interval.high)}"))
    table = headed(("measure", "", "interval then", "width", "chip time", "pins"))
    for one in found.candidates:
        table.add_row(
            one.kind, clean(one.name), _range(one.low_s, one.high_s), f"{one.width:.1%}",
            _chip_time(one.chip_seconds), ", ".join(one.pins),
        )  # fmt: skip
    console.print(table)
    console.print(
        Text("width: of the interval then over now; chip time: rough; --json tells how to measure each", "dim")
    )


def _chip_time(seconds: float) -> str:
    return f"{seconds / HOUR:.3g} h" if seconds >= HOUR else format_quantity(seconds, "s", 3)


def _range(low: float, high: float) -> str:
    return f"{_seconds(low)} to {_seconds(high)}"


def _seconds(value: float) -> str:
    return format_quantity(value, "s", 3)
