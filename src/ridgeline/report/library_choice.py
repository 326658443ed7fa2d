"""Draw what a communication library would do: its choice and why, its options, and a sweep over sizes."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ridgeline.comm.libraries.choice import LibraryChoice
from ridgeline.core.units import format_quantity
from ridgeline.report.cells import blocks, clean, facts, headed, listed


def draw_library_choice(choice: LibraryChoice, console: Console) -> None:
    """Print what is taken and why, the table of options, and a sweep over sizes."""
    size, chosen, measured = format_quantity(choice.size_bytes, "B", 4), choice.chosen, choice.measured
    where = f"{choice.collective} of {size} on {choice.system.name}"
    expected = ""
    if measured is not None:
        expected = f"{_s(measured.seconds)}, nine of ten {_s(measured.low)} to {_s(measured.high)}"
    rows = facts(
        ("its own estimate", _s(chosen.seconds)),
        ("a benchmark would measure", expected),
        ("algbw", f"{_rate(choice.algbw)}: size over time"),
        ("busbw", f"{_rate(choice.busbw)}: times {choice.bus_factor:.4g}, what a rank sends per byte of size"),
        ("channels", str(chosen.channels or "")),
    )
    refused = [f"{option.algorithm}: {option.reason}" for option in choice.not_offered]
    title = clean(f"{choice.library} {choice.version}: {where} by {chosen.name}")
    console.print(
        blocks(
            [Text.assemble(title, style="bold")],
            [rows],
            [_options(choice)],
            listed("why", list(choice.why)),
            listed("not considered", refused),
            [_sweep(choice)],
            listed("assumed", list(choice.notes)),
        )
    )


def _options(choice: LibraryChoice) -> Table:
    names = ("algorithm", "protocol", "time", "latency", "bytes", "busbw", "channels")
    table = headed(names, right=names[2:])
    for option in choice.compared:
        times = (_s(option.seconds), _s(option.latency_s), _s(option.bytes_s))
        rate, channels = _rate(option.busbw), str(option.channels or "")
        table.add_row(option.algorithm, option.protocol, *times, rate, channels)
    return table


def _sweep(choice: LibraryChoice) -> Table:
    names = ("size", "takes", "channels", "its estimate", "busbw", "measured", "measured busbw")
    table = headed(names, right=("size", *names[2:]))
    for point in choice.sweep:
        table.add_row(
            format_quantity(point.size_bytes, "B", 3),
            f"{point.algorithm}/{point.protocol}" if point.protocol else point.algorithm,
            str(point.channels or ""),
            _s(point.seconds),
            _rate(point.busbw),
            _s(point.measured_seconds),
            _rate(point.measured_busbw),
        )
    return table


def _s(seconds: float) -> str:
    return format_quantity(seconds, "s", 3)


def _rate(bytes_per_s: float) -> str:
    return format_quantity(bytes_per_s, "B/s", 3)
