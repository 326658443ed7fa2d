"""Turn a Roofline into a sheet of facts, the sheet into a terminal page, an SVG, a PNG or a page of HTML."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import format_quantity
from ridgeline.report.cells import DASH, blocks, clean, headed, listed, percent
from ridgeline.report.sheets.profile import RidgeSheet, RooflineSheet
from ridgeline.sim.roofline import Roofline

SHOWN = 24  # ops on a page


def roofline_sheet(found: Roofline) -> RooflineSheet:
    """Everything a roofline says."""
    whole = found.seconds
    return {
        "kind": "roofline",
        "model": found.scenario.model.id,
        "chip": found.scenario.system.chip.id,
        "phase": found.phase,
        "seconds": whole,
        "peaks": dict(found.peaks),
        "measured_peaks": dict(found.measured_peaks),
        "memory": dict(found.memory),
        "measured_memory": dict(found.measured_memory),
        "ridges": _ridges(found),
        "bounds": found.bounds,
        "ops": [
            {
                "op": op.label,
                "phase": op.phase,
                "count": op.count,
                "flops": op.flops,
                "bytes": op.moved,
                "seconds": op.seconds,
                "intensity": op.intensity,
                "flops_per_s": op.flops / op.seconds if op.seconds else 0.0,
                "share": op.seconds / whole,
                "bound": op.bound,
                "roof": found.roof_s(op) / op.seconds if op.seconds else 1.0,
                "evidence": op.evidence.label,
            }
            for op in found.ops
        ],
        "notes": list(found.notes),
    }


def _ridges(found: Roofline) -> list[RidgeSheet]:
    """By format and level of memory: data sheet over data sheet, and measured over measured."""
    made: list[RidgeSheet] = []
    for dtype, peak in found.peaks.items():
        best = found.measured_peaks.get(dtype)
        for level in dict.fromkeys((*found.memory, *found.measured_memory)):
            sheet, real = found.memory.get(level), found.measured_memory.get(level)
            made.append(
                {
                    "dtype": dtype,
                    "level": level,
                    "intensity": peak / sheet if sheet else None,
                    "measured": best / real if best and real else None,
                }
            )
    return made


def draw_roofline(sheet: RooflineSheet, console: Console) -> None:
    """Print the roofs, what is under each, and every op."""
    title = (
        f"{sheet['model']} on {sheet['chip']}, {sheet['phase']}: {format_quantity(sheet['seconds'], 's', 4)} of kernels"
    )
    under = "   ".join(f"{name} {percent(share)}" for name, share in sheet["bounds"].items())
    console.print(
        blocks(
            [Text.assemble(clean(title), style="bold"), Text.assemble(("under the roof of ", "dim"), under)],
            [_roofs(sheet)],
            [_ops(sheet)],
            listed("notes", sheet["notes"]),
        )
    )


def _roofs(sheet: RooflineSheet) -> Table:
    columns = ("data sheet", "measured", "ridge", "measured ridge")
    table = headed(("roof", *columns), right=columns)
    for name, rate in sheet["peaks"].items():
        best = sheet["measured_peaks"].get(name)
        ridges = [one for one in sheet["ridges"] if one["dtype"] == name and one["level"] == "hbm"]
        at = [_per_byte(ridges[0][key]) if ridges else DASH for key in ("intensity", "measured")]
        table.add_row(name, format_quantity(rate, "FLOP/s", 4), _rate(best, "FLOP/s"), *at)
    for level in dict.fromkeys((*sheet["memory"], *sheet["measured_memory"])):
        rates = (_rate(sheet["memory"].get(level), "B/s"), _rate(sheet["measured_memory"].get(level), "B/s"))
        table.add_row(f"memory, {level}", *rates, "", "")
    return table


def _rate(value: float | None, unit: str) -> str:
    return DASH if value is None else format_quantity(value, unit, 4)


def _per_byte(value: float | None) -> str:
    return DASH if value is None else f"{value:.0f} FLOP/B"


def _ops(sheet: RooflineSheet) -> Table:
    columns = ("runs", "time", "share", "FLOP/B", "rate", "of its roof")
    table = headed(("op", *columns, "limit", "evidence"), right=columns)
    for op in sheet["ops"][:SHOWN]:
        rate = (
            format_quantity(op["flops_per_s"], "FLOP/s", 3)
            if op["flops"]
            else format_quantity(op["bytes"] / op["seconds"], "B/s", 3)
        )
        cells = (
            f"{op['count']:.0f}", format_quantity(op["seconds"], "s", 3), percent(op["share"]),
            f"{op['intensity']:.3g}" if op["flops"] else DASH, rate, percent(op["roof"]),
        )  # fmt: skip
        table.add_row(clean(f"{op['op']} ({op['phase']})"), *cells, op["bound"], op["evidence"])
    if len(sheet["ops"]) > SHOWN:
        rest = sum(op["share"] for op in sheet["ops"][SHOWN:])
        table.add_row(Text(f"… {len(sheet['ops']) - SHOWN} more with --json", style="dim"), "", "", percent(rest))
    return table


def span_of(sheet: RooflineSheet) -> tuple[float, float, float, float]:
    """Least and most intensity, least and most flops/s of a chart that holds all ops and roofs."""
    peak = max(sheet["peaks"].values(), default=1.0)
    memory = sheet["memory"]["hbm"]
    known = [op for op in sheet["ops"] if op["flops"]]
    low = min([op["intensity"] for op in known] + [peak / memory / 30])
    high = max([op["intensity"] for op in known] + [peak / memory * 8])
    slow = min([op["flops_per_s"] for op in known] + [low * memory])
    return 10 ** math.floor(math.log10(low)), high * 1.5, slow * 0.6, peak * 1.8
