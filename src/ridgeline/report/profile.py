"""Draw a profile, and what differs between two."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import format_quantity, signed_share
from ridgeline.cost import ProfileDiff, ProfileReport
from ridgeline.report.cells import DASH, blocks, clean, facts, headed, listed, percent

SHOWN = 20  # kernels that differ, on a page


def draw_profile(report: ProfileReport, console: Console) -> None:
    """Print what was measured, its ceilings, and the chips that are slow."""
    told = [f"{op} {count}" for op, count in report.rows.items()]
    chip = report.chip_id or "not of the catalog"
    head = facts(("chip", chip), ("taken", report.profile.taken), ("rows", ", ".join(told)))
    slow = [
        f"rank {one.rank} loses {percent(one.loses)} over {one.kernels} kernels,"
        f" {one.deviations:.0f} deviations from its peers; most on {one.worst} ({percent(one.worst_loses)})"
        for one in report.slow
    ]
    failed = [f"{name}: {why}" for name, why in report.failed.items()]
    console.print(
        blocks(
            [Text.assemble(clean(report.profile.title), style="bold"), head],
            [_ceilings(report)],
            listed("slow chips", slow, style="bold yellow"),
            listed("did not run", failed, most=5),
        )
    )


def _ceilings(report: ProfileReport) -> Table:
    columns = ("measured", "data sheet", "share", "energy")
    table = headed(("ceiling", *columns, "reached by"), right=columns)
    for one in report.ceilings:
        sheet_rate = DASH if one.datasheet is None else format_quantity(one.datasheet, one.unit, 4)
        per = {"FLOP/s": "J/FLOP", "B/s": "J/B"}.get(one.unit, "J")
        energy = DASH if one.joules is None else f"{one.joules * 1e12:.3g} p{per}"
        rate = format_quantity(one.measured, one.unit, 4)
        table.add_row(clean(one.name), rate, sheet_rate, percent(one.share), energy, clean(one.where))
    return table


def draw_profile_diff(diff: ProfileDiff, console: Console) -> None:
    """Print what differs between two profiles."""
    title = Text.assemble(clean(f"{diff.before}  ->  {diff.after}"), style="bold")
    changed = [f"{name}: {before} -> {after}" for name, (before, after) in diff.facts.items()]
    groups = headed(("group", "kernels", "B / A", "slower", "faster"), right=("kernels", "B / A", "slower", "faster"))
    for one in diff.groups:
        cells = (str(one.rows), signed_share(one.ratio - 1, unit=" %"), str(one.slower), str(one.faster))
        groups.add_row(one.name, *cells)
    rows: list[RenderableType] = []
    if diff.different:
        table = headed(("beyond their spread", "A", "B", "B / A"), right=("A", "B", "B / A"))
        for row in diff.different[:SHOWN]:
            times = (format_quantity(row.before_s, "s", 4), format_quantity(row.after_s, "s", 4))
            table.add_row(clean(row.name), *times, signed_share(row.ratio - 1, unit=" %"))
        rows = [table]
    only = [f"{diff.only[0]} rows in A alone, {diff.only[1]} in B alone"] if any(diff.only) else []
    console.print(
        blocks(
            [title], listed("changed", changed), [groups], rows, listed("ran in one only", diff.failed, most=5),
            listed("not compared", only),
        )
    )  # fmt: skip
