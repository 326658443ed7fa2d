"""Draw the difference of two reports of bring-up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from ridgeline.core.units import format_quantity, signed_share
from ridgeline.report.cells import blocks, clean, headed, listed
from ridgeline.runtime.bringup.compare import ReportDiff

SHOWN = 8  # on a page


def draw_bringup_diff(diff: ReportDiff, console: Console) -> None:
    """Print what differs, what is worse first."""
    sides = [f"{model} on {device}" for model, device in zip(diff.models, diff.devices, strict=True)]
    title = sides[0] if sides[0] == sides[1] else "  ->  ".join(sides)
    style = "bold red" if diff.worse else "bold"
    console.print(
        blocks(
            [Text.assemble(clean(title), ": ", clean("  ->  ".join(diff.verdicts)), style=style)],
            listed("changed", _pairs(diff.environment)),
            listed("newly wrong", [_finding(one) for one in diff.new], style="bold red"),
            listed("no longer wrong", [_finding(one) for one in diff.gone], style="bold green"),
            *(listed(f"newly {name}", ops, most=SHOWN, style="bold yellow") for name, ops in diff.lacks.items()),
            *(listed(f"no longer {name}", ops, most=SHOWN) for name, ops in diff.regained.items()),
            listed("fingerprint", _pairs(diff.fingerprint), style="bold yellow"),
            listed("ops of B alone", diff.ops, most=SHOWN),
            listed("ops of A alone", diff.no_longer, most=SHOWN),
            _speed(diff),
        )
    )


def _pairs(changes: Mapping[str, tuple[str, str]]) -> list[str]:
    return [f"{name}: {before} -> {after}" for name, (before, after) in changes.items()]


def _finding(one: Any) -> str:
    told = {key: one.get(key, "") for key in ("op", "dtype", "phase", "module", "statistic")}
    return f"{told['op']} {told['dtype']}, {told['phase']} of {told['module']}: {told['statistic']}"


def _speed(diff: ReportDiff) -> list[RenderableType]:
    if diff.step_ratio is None:
        return []
    whole = Text(f"all timed ops: {signed_share(diff.step_ratio - 1, unit=' %')}")
    rows = [*diff.slower, *diff.faster][:SHOWN]
    if not rows:
        return [whole]
    table = headed(("beyond their spread", "format", "shapes", "A", "B", "B / A"), right=("A", "B", "B / A"))
    for one in rows:
        times = (format_quantity(one.before_s, "s", 3), format_quantity(one.after_s, "s", 3))
        shapes = ", ".join("x".join(map(str, shape)) or "1" for shape in one.shapes[:3])
        table.add_row(clean(one.op), clean(one.dtype), shapes, *times, signed_share(one.ratio - 1, unit=" %"))
    return [whole, table]
