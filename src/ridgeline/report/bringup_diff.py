"""Turn the difference of two reports of bring-up into a sheet, and the sheet into a page of the terminal."""

from __future__ import annotations

from typing import Any, cast

from rich.console import Console, RenderableType
from rich.text import Text

from ridgeline.core.units import format_quantity, signed_share
from ridgeline.report.cells import blocks, clean, headed, listed
from ridgeline.report.sheets.bringup import BringUpDiffSheet, ChangedOpSheet, WrongOpSheet
from ridgeline.report.sheets.plain import plain
from ridgeline.runtime.bringup.compare import OpChange, ReportDiff

MOST = 200  # changed ops in a sheet
SHOWN = 8  # on a page


def bringup_diff_sheet(found: ReportDiff) -> BringUpDiffSheet:
    """Everything that differs."""
    return {
        "kind": "bringup diff",
        "worse": found.worse,
        "models": list(found.models),
        "devices": list(found.devices),
        "verdicts": list(found.verdicts),
        "environment": plain(found.environment),
        "new": cast("list[WrongOpSheet]", plain(found.new)),
        "gone": cast("list[WrongOpSheet]", plain(found.gone)),
        "lacks": plain(found.lacks),
        "regained": plain(found.regained),
        "ops": list(found.ops),
        "no_longer": list(found.no_longer),
        "fingerprint": plain(found.fingerprint),
        "step_ratio": found.step_ratio,
        "slower": [_change(one) for one in found.changed if one.ratio > 1][:MOST],
        "faster": [_change(one) for one in found.changed if one.ratio < 1][:MOST],
    }


def _change(one: OpChange) -> ChangedOpSheet:
    return {
        "op": one.op,
        "dtype": one.dtype,
        "shapes": [list(shape) for shape in one.shapes],
        "before_s": one.before_s,
        "after_s": one.after_s,
        "ratio": one.ratio,
    }


def draw_bringup_diff(sheet: BringUpDiffSheet, console: Console) -> None:
    """Print what differs, what is worse first."""
    sides = [f"{model} on {device}" for model, device in zip(sheet["models"], sheet["devices"], strict=True)]
    title = sides[0] if sides[0] == sides[1] else "  ->  ".join(sides)
    style = "bold red" if sheet["worse"] else "bold"
    console.print(
        blocks(
            [Text.assemble(clean(title), ": ", clean("  ->  ".join(sheet["verdicts"])), style=style)],
            listed("changed", _pairs(sheet["environment"])),
            listed("newly wrong", [_finding(one) for one in sheet["new"]], style="bold red"),
            listed("no longer wrong", [_finding(one) for one in sheet["gone"]], style="bold green"),
            *(listed(f"newly {name}", ops, most=SHOWN, style="bold yellow") for name, ops in sheet["lacks"].items()),
            *(listed(f"no longer {name}", ops, most=SHOWN) for name, ops in sheet["regained"].items()),
            listed("fingerprint", _pairs(sheet["fingerprint"]), style="bold yellow"),
            listed("ops of B alone", sheet["ops"], most=SHOWN),
            listed("ops of A alone", sheet["no_longer"], most=SHOWN),
            _speed(sheet),
        )
    )


def _pairs(changes: dict[str, list[str]]) -> list[str]:
    return [f"{name}: {before} -> {after}" for name, (before, after) in changes.items()]


def _finding(one: Any) -> str:
    told = {key: one.get(key, "") for key in ("op", "dtype", "phase", "module", "statistic")}
    return f"{told['op']} {told['dtype']}, {told['phase']} of {told['module']}: {told['statistic']}"


def _speed(sheet: BringUpDiffSheet) -> list[RenderableType]:
    if sheet["step_ratio"] is None:
        return []
    whole = Text(f"all timed ops: {signed_share(sheet['step_ratio'] - 1, unit=' %')}")
    rows = [*sheet["slower"], *sheet["faster"]][:SHOWN]
    if not rows:
        return [whole]
    table = headed(("beyond their spread", "format", "shapes", "A", "B", "B / A"), right=("A", "B", "B / A"))
    for one in rows:
        times = (format_quantity(one["before_s"], "s", 3), format_quantity(one["after_s"], "s", 3))
        shapes = ", ".join("x".join(map(str, shape)) or "1" for shape in one["shapes"][:3])
        table.add_row(clean(one["op"]), clean(one["dtype"]), shapes, *times, signed_share(one["ratio"] - 1, unit=" %"))
    return [whole, table]
