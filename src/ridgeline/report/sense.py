"""Draw a SensitivityAnswer on a terminal: what limits, what one per cent of each number is worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import format_duration, format_quantity, signed_number
from ridgeline.design import Elasticity, RegimeChange, SaturationCurve, SensitivityAnswer
from ridgeline.hardware.what_if import system_title
from ridgeline.report.cells import DASH, better_or_worse, blocks, clean, header_table, list_lines

LEAST = 5e-5  # elasticities below it are counted, not listed
COLUMNS = ("value", "elasticity", "1 % is worth", "changes below", "changes above")


def draw_sensitivity(answer: SensitivityAnswer, console: Console) -> None:
    """Print every elasticity that matters, and the curve where one was asked for."""
    title = Text.assemble(clean(sense_title(answer)), style="bold")
    checks = Text(f"sum over rates, less times: {answer.rate_sum:.9f} (complete: -1)", style="dim")
    console.print(
        blocks(
            [title, clean(f"{metric_words(answer)}; most of it is {answer.limiter}")],
            [_table("machine", answer.machine), checks],
            [_table("model and workload", answer.model)],
            [] if answer.curve is None else [_curve(answer.curve, answer)],
            list_lines("notes", [*_quiet_notes(answer), *answer.notes]),
        )
    )


def sense_title(answer: SensitivityAnswer) -> str:
    """What was asked of what."""
    scenario = answer.scenario
    return (
        f"{scenario.model.id} on {system_title(scenario.system)}, {scenario.workload.kind}: what limits {answer.metric}"
    )


def metric_words(answer: SensitivityAnswer) -> str:
    """The metric with its unit and interval."""
    form = format_duration if answer.unit == "s" else "{:.4g} USD".format
    if answer.low is None or answer.high is None:
        return form(answer.value)
    return f"{form(answer.value)} ({form(answer.low)} to {form(answer.high)})"


def strength_words(entry: Elasticity) -> str:
    """An elasticity, both sides where they differ."""
    if entry.kink:
        return f"{signed_number(entry.below)} below, {signed_number(entry.above)} above"
    return signed_number(entry.elasticity, 4)


def value_words(entry: Elasticity) -> str:
    """A value with its unit."""
    if not entry.unit:
        return f"{entry.value:,.0f}"
    return format_quantity(entry.value, entry.unit, 4) if entry.unit not in ("USD/h",) else f"{entry.value:g} USD/h"


def change_words(change: RegimeChange | None) -> str:
    """Where the next regime begins, and what limits there."""
    return DASH if change is None else f"x {change.factor:.3g}: {change.limiter}"


def worth_words(entry: Elasticity) -> str:
    """What one per cent is worth, for a year of the system."""
    if entry.usd_per_hour_per_percent is None:
        return DASH
    return f"{entry.usd_per_hour_per_percent * HOURS_OF_YEAR:,.0f} USD/yr"


HOURS_OF_YEAR = 8766


def _table(name: str, entries: Sequence[Elasticity]) -> Table:
    table = header_table((name, *COLUMNS[:1], "", *COLUMNS[1:]), right=COLUMNS[:3])
    for entry in entries:
        if matters(entry):
            table.add_row(*_cells(entry))
    return table


def matters(entry: Elasticity) -> bool:
    """Whether a line is worth reading: an elasticity, or a regime that is near."""
    return (
        abs(entry.elasticity) >= LEAST or entry.kink or entry.lower_change is not None or entry.upper_change is not None
    )


def _cells(entry: Elasticity) -> Iterator[RenderableType]:
    yield clean(entry.parameter)
    yield value_words(entry)
    yield better_or_worse(entry.elasticity)
    yield strength_words(entry)
    yield worth_words(entry)
    yield change_words(entry.lower_change)
    yield change_words(entry.upper_change)


def _curve(curve: SaturationCurve, answer: SensitivityAnswer) -> Table:
    head = f"{curve.parameter}: worth its money up to x {curve.knee_factor:.3g}, then {curve.next_limiter} limits"
    table = header_table((head, "value", answer.metric, "limited by"), right=("value", answer.metric))
    for point in curve.points[::4]:
        table.add_row(
            f"x {point.factor:.3g}", format_quantity(point.value, curve.unit, 3), f"{point.metric:.4g}", point.limiter
        )
    table.add_row("unlimited", "", f"{curve.floor:.4g}", "")
    return table


def _quiet_notes(answer: SensitivityAnswer) -> Iterator[str]:
    quiet = [entry.parameter for entry in (*answer.machine, *answer.model) if not matters(entry)]
    if quiet:
        yield f"without effect here: {', '.join(quiet)}"
    yield f"money: {answer.basis.source}"
