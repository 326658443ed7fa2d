"""Turn what a library would do into a sheet of facts, and the sheet into a terminal page."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ridgeline.calibrate.collective_times import expected_seconds
from ridgeline.comm.libraries.choice import LibraryChoice, library_choice
from ridgeline.comm.libraries.options import Option
from ridgeline.core.units import format_quantity
from ridgeline.cost.library_times.question import Kind, Question
from ridgeline.report.cells import blocks, clean, facts, headed, listed
from ridgeline.report.sheets.collective import BenchmarkSheet, LibraryChoiceSheet, OptionSheet, SweepSheet
from ridgeline.report.sheets.plain import plain

KINDS: dict[str, Kind] = {"allreduce": "all-reduce", "allgather": "all-gather", "reducescatter": "reduce-scatter"}
SWEPT = tuple(4**power for power in range(5, 17))  # 1 KiB to 4 GiB


def library_choice_sheet(found: LibraryChoice) -> LibraryChoiceSheet:
    """Everything the choice says, beside what a benchmark would measure."""
    return {
        "kind": "library choice",
        "possible": True,
        "library": found.library,
        "version": found.version,
        "collective": found.collective,
        "topology": found.system.name,
        "ranks": found.system.chips,
        "size_bytes": found.size_bytes,
        "algorithm": found.chosen.algorithm,
        "protocol": found.chosen.protocol,
        "channels": found.chosen.channels,
        "seconds": found.chosen.seconds,
        "algbw": found.algbw,
        "busbw": found.busbw,
        "bus_factor": found.bus_factor,
        "options": [_option(option, found.bus_factor) for option in found.options],
        "not_offered": plain(list(found.not_offered)),
        "why": list(found.why),
        "ranges": plain(list(found.ranges)),
        "measured": _measured(found, found.size_bytes),
        "sweep": [_swept(found, size) for size in SWEPT],
        "assumptions": list(found.notes),
    }


def _option(option: Option, bus_factor: float) -> OptionSheet:
    algbw = option.size_bytes / option.seconds
    return {
        "algorithm": option.algorithm,
        "protocol": option.protocol,
        "seconds": option.seconds,
        "latency_s": option.latency_s,
        "bytes_s": option.bytes_s,
        "algbw": algbw,
        "busbw": algbw * bus_factor,
        "channels": option.channels,
    }


def _measured(found: LibraryChoice, size: float) -> BenchmarkSheet:
    kind = KINDS.get(found.collective, "all-gather")  # a broadcast moves what an all-gather does: all bytes to all
    asked = Question(kind=kind, size=size, ranks=found.system.chips, system=found.system)
    seconds, low, high = expected_seconds(asked)
    algbw = size / seconds
    return {"seconds": seconds, "low": low, "high": high, "algbw": algbw, "busbw": algbw * found.bus_factor}


def _swept(found: LibraryChoice, size: int) -> SweepSheet:
    there = library_choice(found.collective, on=found.system, size=float(size), library=found.library)
    measured = _measured(found, float(size))
    return {
        "size_bytes": size,
        "algorithm": there.chosen.algorithm,
        "protocol": there.chosen.protocol,
        "channels": there.chosen.channels,
        "seconds": there.chosen.seconds,
        "busbw": there.busbw,
        "measured_seconds": measured["seconds"],
        "measured_busbw": measured["busbw"],
    }


def draw_library_choice(sheet: LibraryChoiceSheet, console: Console) -> None:
    """Print what is taken and why, the table of options, and a sweep over sizes."""
    size = format_quantity(sheet["size_bytes"], "B", 4)
    name = _name(sheet["algorithm"], sheet["protocol"])
    title = f"{sheet['library']} {sheet['version']}: {sheet['collective']} of {size} on {sheet['topology']} by {name}"
    measured = sheet["measured"]
    span = f"{_s(measured['low'])} to {_s(measured['high'])}"
    rows = facts(
        ("its own estimate", _s(sheet["seconds"])),
        ("a benchmark would measure", f"{_s(measured['seconds'])}, nine of ten {span}"),
        ("algbw", f"{_rate(sheet['algbw'])}: size over time"),
        ("busbw", f"{_rate(sheet['busbw'])}: times {sheet['bus_factor']:.4g}, what a rank sends per byte of size"),
        ("channels", str(sheet["channels"] or "")),
    )
    refused = [f"{one['algorithm']}: {one['reason']}" for one in sheet["not_offered"]]
    console.print(
        blocks(
            [Text.assemble(clean(title), style="bold")],
            [rows],
            [_options(sheet)],
            listed("why", sheet["why"]),
            listed("not considered", refused),
            [_sweep(sheet)],
            listed("assumed", sheet["assumptions"]),
        )
    )


def _options(sheet: LibraryChoiceSheet) -> Table:
    names = ("algorithm", "protocol", "time", "latency", "bytes", "busbw", "channels")
    table = headed(names, right=names[2:])
    for one in sheet["options"]:
        times = (_s(one["seconds"]), _s(one["latency_s"]), _s(one["bytes_s"]))
        table.add_row(one["algorithm"], one["protocol"], *times, _rate(one["busbw"]), str(one["channels"] or ""))
    return table


def _sweep(sheet: LibraryChoiceSheet) -> Table:
    names = ("size", "takes", "channels", "its estimate", "busbw", "measured", "measured busbw")
    table = headed(names, right=("size", *names[2:]))
    for one in sheet["sweep"]:
        table.add_row(
            format_quantity(one["size_bytes"], "B", 3),
            _name(one["algorithm"], one["protocol"]),
            str(one["channels"] or ""),
            _s(one["seconds"]),
            _rate(one["busbw"]),
            _s(one["measured_seconds"]),
            _rate(one["measured_busbw"]),
        )
    return table


def _name(algorithm: str, protocol: str) -> str:
    return f"{algorithm}/{protocol}" if protocol else algorithm


def _s(seconds: float) -> str:
    return format_quantity(seconds, "s", 3)


def _rate(bytes_per_s: float) -> str:
    return format_quantity(bytes_per_s, "B/s", 3)
