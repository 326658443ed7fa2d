"""Draw a Diff: what changed, by cause, phase, layer and class."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from ridgeline.core.units import signed_share
from ridgeline.report.cells import better_or_worse, blocks, clean, grid, signed, time
from ridgeline.trace.diff import Diff, Place

SHOWN = 4  # of a cause on a page
LEAST = 0.02  # of the whole difference: smaller items are not on the page
ROUNDING = 50  # nanoseconds: less is not shown


# -- the page ---------------------------------------------------------------------------------------------------------


def draw_diff(diff: Diff, console: Console) -> None:
    """Print the page of a diff."""
    console.print(page(diff))


def draw_runs(diffs: Sequence[Diff], console: Console) -> None:
    """Print all runs beside the first, with the cause that adds most to each."""
    table = grid("left", "right", "right", "left")
    first = diffs[0].before
    table.add_row(clean(first.label), time(first.step_ns), "", "")
    for one in diffs:
        share = signed_share(one.slower) if one.slower else "0.0%"
        most = one.causes[0] if one.causes else None
        told = f"{most.cause} {signed(most.delta_ns)}" if most else ""
        table.add_row(clean(one.after.label), time(one.after.step_ns), share, Text(told, style="dim"))
    console.print(blocks([Text("all runs, against the first", style="dim"), table]))


def page(diff: Diff) -> RenderableType:
    """The two steps, the causes of their difference with the largest items, and where it lies."""
    return blocks(
        _head(diff), _causes(diff), _places("phase", diff.phases), _places("class", diff.classes),
        _places("layer", diff.layers),
    )  # fmt: skip


def both_ends(name: str, most: int = 70) -> str:
    """A long name without its middle: kernels of one template begin alike and end differently.

    >>> both_ends("split_embedding_backward_" + "a" * 80 + "_kernel_small", 30)
    'split_embedding…a_kernel_small'
    """
    half = most // 2
    return name if len(name) <= most else f"{name[:half]}…{name[-(most - half - 1) :]}"


def _head(diff: Diff) -> list[RenderableType]:
    table = grid("left", "left", "right", "left")
    for mark, one in (("A", diff.before), ("B", diff.after)):
        chips = f"{one.chips} chips" if one.chips > 1 else "one chip"
        what = "predicted" if one.predicted else f"mean of {one.steps} step(s), {chips} {one.chip_name or ''}"
        table.add_row(mark, clean(one.label), time(one.step_ns), Text(what, style="dim"))
    share = diff.delta_ns / (diff.before.step_ns or 1.0)
    whole = Text(signed(diff.delta_ns), style="bold")
    table.add_row("", Text("B − A", style="bold"), whole, signed_share(share))
    return [table]


def _causes(diff: Diff) -> list[RenderableType]:
    if not diff.causes:
        return [Text("no difference", style="dim")]
    table = grid("left", "right", "left", "left")
    largest = max(abs(one.delta_ns) for one in diff.causes) or 1.0
    whole = max(abs(diff.delta_ns), largest)
    for one in diff.causes:
        if abs(one.delta_ns) < ROUNDING:
            continue
        table.add_row(
            Text(one.cause, style="bold"), signed(one.delta_ns), better_or_worse(one.delta_ns / largest),
            Text(one.meaning, style="dim"),
        )  # fmt: skip
        for item in [item for item in one.items if abs(item.delta_ns) >= LEAST * whole][:SHOWN]:
            name = clean(both_ends(item.name))
            calls = f"{item.calls_before:,.0f} → {item.calls_after:,.0f}"
            table.add_row(
                Text(f"  {item.phase}, {item.class_}", style="dim"), Text(signed(item.delta_ns), style="dim"),
                Text(calls, style="dim"), Text.assemble(name, style="dim"),
            )  # fmt: skip
    match = f"causes, which sum to the difference; kernels matched by {diff.by}"
    return [Text(match, style="dim"), table]


def _places(by: str, places: Sequence[Place]) -> list[RenderableType]:
    rows = [one for one in places if abs(one.delta_ns) >= ROUNDING]
    if not rows:
        return []
    table = grid("left", "right", "right", "right", "left")
    largest = max(abs(one.delta_ns) for one in rows)
    for one in rows[:40]:
        table.add_row(
            one.id, time(one.before_ns), time(one.after_ns), signed(one.delta_ns),
            better_or_worse(one.delta_ns / largest),
        )  # fmt: skip
    return [Text(f"by {by}", style="dim"), table]
