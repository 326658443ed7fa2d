"""Draw a Roofline on a terminal: roofs, ridges and ops."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import format_quantity
from ridgeline.report.cells import DASH, blocks, clean, headed, listed, percent
from ridgeline.sim.roofline import Roofline

SHOWN = 24  # ops on a page


def draw_roofline(roofline: Roofline, console: Console) -> None:
    """Print the roofs, what is under each, and every op."""
    scenario, seconds = roofline.scenario, format_quantity(roofline.seconds, "s", 4)
    title = f"{scenario.model.id} on {scenario.system.chip.id}, {roofline.phase}: {seconds} of kernels"
    under = "   ".join(f"{name} {percent(share)}" for name, share in roofline.bounds.items())
    console.print(
        blocks(
            [Text.assemble(clean(title), style="bold"), Text.assemble(("under the roof of ", "dim"), under)],
            [_roofs(roofline)],
            [_ops(roofline)],
            listed("notes", roofline.notes),
        )
    )


def _roofs(roofline: Roofline) -> Table:
    columns = ("data sheet", "measured", "ridge", "measured ridge")
    table = headed(("roof", *columns), right=columns)
    for name, rate in roofline.peaks.items():
        best = roofline.measured_peaks.get(name)
        ridges = [one for one in roofline.ridges if one.dtype == name and one.level == "hbm"]
        at = [_per_byte(ridges[0].intensity), _per_byte(ridges[0].measured)] if ridges else [DASH, DASH]
        table.add_row(name, format_quantity(rate, "FLOP/s", 4), _rate(best, "FLOP/s"), *at)
    for level in dict.fromkeys((*roofline.memory, *roofline.measured_memory)):
        rates = (_rate(roofline.memory.get(level), "B/s"), _rate(roofline.measured_memory.get(level), "B/s"))
        table.add_row(f"memory, {level}", *rates, "", "")
    return table


def _rate(value: float | None, unit: str) -> str:
    return DASH if value is None else format_quantity(value, unit, 4)


def _per_byte(value: float | None) -> str:
    return DASH if value is None else f"{value:.0f} FLOP/B"


def _ops(roofline: Roofline) -> Table:
    columns = ("runs", "time", "share", "FLOP/B", "rate", "of its roof")
    table = headed(("op", *columns, "limit", "evidence"), right=columns)
    ops = roofline.placed_ops
    for placed in ops[:SHOWN]:
        rate = (
            format_quantity(placed.op.flops_per_s, "FLOP/s", 3)
            if placed.op.flops
            else format_quantity(placed.op.moved / placed.op.seconds, "B/s", 3)
        )
        cells = (
            f"{placed.op.count:.0f}", format_quantity(placed.op.seconds, "s", 3), percent(placed.share),
            f"{placed.op.intensity:.3g}" if placed.op.flops else DASH, rate, percent(placed.roof),
        )  # fmt: skip
        table.add_row(
            clean(f"{placed.op.label} ({placed.op.phase})"), *cells, placed.op.bound, placed.op.evidence.label
        )
    if len(ops) > SHOWN:
        rest = sum(placed.share for placed in ops[SHOWN:])
        table.add_row(Text(f"… {len(ops) - SHOWN} more with --json", style="dim"), "", "", percent(rest))
    return table


def span_of(roofline: Roofline) -> tuple[float, float, float, float]:
    """Least and most intensity, least and most flops/s of a chart that holds all ops and roofs."""
    peak = max(roofline.peaks.values(), default=1.0)
    memory = roofline.memory["hbm"]
    known = [placed for placed in roofline.placed_ops if placed.op.flops]
    low = min([placed.op.intensity for placed in known] + [peak / memory / 30])
    high = max([placed.op.intensity for placed in known] + [peak / memory * 8])
    slow = min([placed.op.flops_per_s for placed in known] + [low * memory])
    return 10 ** math.floor(math.log10(low)), high * 1.5, slow * 0.6, peak * 1.8
