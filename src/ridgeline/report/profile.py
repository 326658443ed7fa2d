"""Turn profiles, and what differs between two, into sheets of facts, and the sheets into pages."""

from __future__ import annotations

from collections import Counter

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import format_quantity, signed_share
from ridgeline.cost.profile import Ceiling, Profile, ceilings
from ridgeline.cost.profile_compare import ProfileDiff, slow_chips
from ridgeline.hardware.load import CHIPS, chip
from ridgeline.report.cells import DASH, blocks, clean, facts, headed, listed, percent
from ridgeline.report.sheets.plain import plain
from ridgeline.report.sheets.profile import BestRateSheet, ProfileDiffSheet, ProfileSheet

SHOWN = 20  # kernels that differ, on a page
MOST = 400  # of them in a sheet


def profile_sheet(profile: Profile) -> ProfileSheet:
    """Everything that a profile comes down to."""
    known = chip(profile.chip) if profile.chip in CHIPS else None
    return {
        "kind": "profile",
        "chip": profile.chip or None,
        "title": profile.title,
        "device": dict(profile.device),
        "software": dict(profile.software),
        "taken": profile.taken,
        "rows": dict(Counter(row.op for row in profile.rows if row.ok)),
        "failed": {row.name: row.error for row in profile.rows if not row.ok},
        "ceilings": [_ceiling(one) for one in ceilings(profile, known)],
        "slow": plain(list(slow_chips(profile))),
    }


def _ceiling(one: Ceiling) -> BestRateSheet:
    return {
        "name": one.name,
        "unit": one.unit,
        "measured": one.measured,
        "datasheet": one.datasheet,
        "share": one.share,
        "joules": one.joules,
        "where": one.where,
    }


def draw_profile(sheet: ProfileSheet, console: Console) -> None:
    """Print what was measured, its ceilings, and the chips that are slow."""
    told = [f"{op} {count}" for op, count in sheet["rows"].items()]
    head = facts(("chip", sheet["chip"] or "not of the catalog"), ("taken", sheet["taken"]), ("rows", ", ".join(told)))
    slow = [
        f"rank {one['rank']} loses {percent(one['loses'])} over {one['kernels']} kernels,"
        f" {one['deviations']:.0f} deviations from its peers; most on {one['worst']} ({percent(one['worst_loses'])})"
        for one in sheet["slow"]
    ]
    failed = [f"{name}: {why}" for name, why in sheet["failed"].items()]
    console.print(
        blocks(
            [Text.assemble(clean(sheet["title"]), style="bold"), head],
            [_ceilings(sheet)],
            listed("slow chips", slow, style="bold yellow"),
            listed("did not run", failed, most=5),
        )
    )


def _ceilings(sheet: ProfileSheet) -> Table:
    columns = ("measured", "data sheet", "share", "energy")
    table = headed(("ceiling", *columns, "reached by"), right=columns)
    for one in sheet["ceilings"]:
        sheet_rate = DASH if one["datasheet"] is None else format_quantity(one["datasheet"], one["unit"], 4)
        per = {"FLOP/s": "J/FLOP", "B/s": "J/B"}.get(one["unit"], "J")
        energy = DASH if one["joules"] is None else f"{one['joules'] * 1e12:.3g} p{per}"
        rate = format_quantity(one["measured"], one["unit"], 4)
        table.add_row(clean(one["name"]), rate, sheet_rate, percent(one["share"]), energy, clean(one["where"]))
    return table


def profile_diff_sheet(found: ProfileDiff) -> ProfileDiffSheet:
    """Everything a difference of two profiles says."""
    return {
        "kind": "profile diff",
        "before": found.before,
        "after": found.after,
        "facts": {name: list(pair) for name, pair in found.facts.items()},
        "groups": [
            {"group": one.name, "rows": one.rows, "ratio": one.ratio, "slower": one.slower, "faster": one.faster}
            for one in found.groups
        ],
        "rows": [
            {"name": row.name, "before_s": row.before_s, "after_s": row.after_s, "ratio": row.ratio}
            for row in found.different[:MOST]
        ],
        "failed": list(found.failed),
        "only": list(found.only),
    }


def draw_profile_diff(sheet: ProfileDiffSheet, console: Console) -> None:
    """Print what differs between two profiles."""
    title = Text.assemble(clean(f"{sheet['before']}  ->  {sheet['after']}"), style="bold")
    changed = [f"{name}: {before} -> {after}" for name, (before, after) in sheet["facts"].items()]
    groups = headed(("group", "kernels", "B / A", "slower", "faster"), right=("kernels", "B / A", "slower", "faster"))
    for one in sheet["groups"]:
        cells = (str(one["rows"]), signed_share(one["ratio"] - 1, unit=" %"), str(one["slower"]), str(one["faster"]))
        groups.add_row(one["group"], *cells)
    rows: list[RenderableType] = []
    if sheet["rows"]:
        table = headed(("beyond their spread", "A", "B", "B / A"), right=("A", "B", "B / A"))
        for row in sheet["rows"][:SHOWN]:
            times = (format_quantity(row["before_s"], "s", 4), format_quantity(row["after_s"], "s", 4))
            table.add_row(clean(row["name"]), *times, signed_share(row["ratio"] - 1, unit=" %"))
        rows = [table]
    only = [f"{sheet['only'][0]} rows in A alone, {sheet['only'][1]} in B alone"] if any(sheet["only"]) else []
    console.print(
        blocks(
            [title], listed("changed", changed), [groups], rows, listed("ran in one only", sheet["failed"], most=5),
            listed("not compared", only),
        )
    )  # fmt: skip
