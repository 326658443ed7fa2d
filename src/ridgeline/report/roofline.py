"""Draw a Roofline on a terminal, and what was measured of a machine."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import format_quantity, signed_share
from ridgeline.cost import ProfileDiff, ProfileReport
from ridgeline.hardware.what_if import chip_title
from ridgeline.report.cells import DASH, blocks, clean, facts, header_table, list_lines, percent
from ridgeline.sim.roofline import Roofline

SHOWN = 24  # ops on a page


def draw_roofline(roofline: Roofline, console: Console) -> None:
    """Print the roofs, what is under each, and every op."""
    scenario, seconds = roofline.scenario, format_quantity(roofline.seconds, "s", 4)
    title = f"{scenario.model.id} on {chip_title(scenario.system.chip)}, {roofline.phase}: {seconds} of kernels"
    under = "   ".join(f"{name} {percent(share)}" for name, share in roofline.bounds.items())
    console.print(
        blocks(
            [Text.assemble(clean(title), style="bold"), Text.assemble(("under the roof of ", "dim"), under)],
            [_roofs(roofline)],
            [_ops(roofline)],
            list_lines("notes", roofline.notes),
        )
    )


def _roofs(roofline: Roofline) -> Table:
    columns = ("data sheet", "measured", "ridge", "measured ridge")
    table = header_table(("roof", *columns), right=columns)
    for name, rate in roofline.peaks.items():
        best = roofline.measured_peaks.get(name)
        ridges = [ridge for ridge in roofline.ridges if ridge.dtype == name and ridge.level == "hbm"]
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
    table = header_table(("op", *columns, "limit", "evidence"), right=columns)
    ops = roofline.placed_ops
    for placed in ops[:SHOWN]:
        op = placed.op
        rate = format_quantity(op.flops_per_s, "FLOP/s", 3)
        if not op.flops:
            rate = format_quantity(op.moved_bytes / op.seconds, "B/s", 3) if op.seconds else DASH
        table.add_row(
            clean(f"{op.label} ({op.phase})"), f"{op.count:.0f}", format_quantity(op.seconds, "s", 3),
            percent(placed.share), f"{op.intensity:.3g}" if op.flops else DASH, rate, percent(placed.roof), op.bound,
            op.evidence.label,
        )  # fmt: skip
    if len(ops) > SHOWN:
        rest = sum(placed.share for placed in ops[SHOWN:])
        table.add_row(Text(f"… {len(ops) - SHOWN} more with --json", style="dim"), "", "", percent(rest))
    return table


# -- profile ----------------------------------------------------------------------------------------------------------


PROFILE_SHOWN = 20  # kernels that differ, on a page


def draw_profile(report: ProfileReport, console: Console) -> None:
    """Print what was measured, its ceilings, and the chips that are slow."""
    figures = [f"{op} {count}" for op, count in report.rows.items()]
    chip = report.chip_id or "not of the catalog"
    head = facts(("chip", chip), ("taken", report.profile.taken), ("rows", ", ".join(figures)))
    slow = [
        f"rank {one.rank} loses {percent(one.loses)} over {one.kernels} kernels,"
        f" {one.deviations:.0f} deviations from its peers; most on {one.worst} ({percent(one.worst_loses)})"
        for one in report.slow
    ]
    failures = [f"{name}: {why}" for name, why in report.failed.items()]
    console.print(
        blocks(
            [Text.assemble(clean(report.profile.title), style="bold"), head],
            [_ceilings(report)],
            list_lines("slow chips", slow, style="bold yellow"),
            list_lines("did not run", failures, most=5),
        )
    )


def _ceilings(report: ProfileReport) -> Table:
    columns = ("measured", "data sheet", "share", "energy")
    table = header_table(("ceiling", *columns, "reached by"), right=columns)
    for ceiling in report.ceilings:
        sheet_rate = DASH if ceiling.datasheet is None else format_quantity(ceiling.datasheet, ceiling.unit, 4)
        per = {"FLOP/s": "J/FLOP", "B/s": "J/B"}.get(ceiling.unit, "J")
        energy = DASH if ceiling.joules is None else f"{ceiling.joules * 1e12:.3g} p{per}"
        rate = format_quantity(ceiling.measured, ceiling.unit, 4)
        table.add_row(clean(ceiling.name), rate, sheet_rate, percent(ceiling.share), energy, clean(ceiling.where))
    return table


def draw_profile_diff(diff: ProfileDiff, console: Console) -> None:
    """Print what differs between two profiles."""
    title = Text.assemble(clean(f"{diff.before}  ->  {diff.after}"), style="bold")
    changed = [f"{name}: {before} -> {after}" for name, (before, after) in diff.facts.items()]
    figures, times = ("kernels", "B / A", "slower", "faster"), ("A", "B", "B / A")
    counts = (
        (group.name, str(group.rows), signed_share(group.ratio - 1, unit=" %"), str(group.slower), str(group.faster))
        for group in diff.groups
    )
    groups = header_table(("group", *figures), counts, right=figures)
    cells = (
        (clean(row.name), format_quantity(row.before_s, "s", 4), format_quantity(row.after_s, "s", 4),
         signed_share(row.ratio - 1, unit=" %"))
        for row in diff.different[:PROFILE_SHOWN]
    )  # fmt: skip
    rows = [header_table(("beyond their spread", *times), cells, right=times)] if diff.different else []
    only = [f"{diff.only[0]} rows in A alone, {diff.only[1]} in B alone"] if any(diff.only) else []
    console.print(
        blocks(
            [title], list_lines("changed", changed), [groups], rows, list_lines("ran in one only", diff.failed, most=5),
            list_lines("not compared", only),
        )
    )  # fmt: skip
