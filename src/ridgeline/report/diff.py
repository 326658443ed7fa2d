"""Turn a Diff into a sheet of facts, and the sheet into a page: what changed, by cause, phase, layer and class."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from ridgeline.core.units import signed_share
from ridgeline.report.cells import NANO, better_or_worse, blocks, clean, grid, signed, time
from ridgeline.report.sheets.diff import DiffItemSheet, DiffSheet, PlaceSheet, SideSheet
from ridgeline.trace.diff import Diff, DiffSide, Item, Place

ITEMS = 40  # of a cause in a sheet
SHOWN = 4  # of a cause on a page
LEAST = 0.02  # of the whole difference: smaller items are not on the page
ROUNDING = 0.05  # microseconds: less is not shown


def diff_sheet(found: Diff) -> DiffSheet:
    """Everything a diff says; times of one step and chip, in microseconds."""
    return {
        "kind": "diff",
        "before": _side(found.before),
        "after": _side(found.after),
        "difference_us": found.delta_ns / NANO,
        "difference_share": found.slower,
        "matched_by": found.by,
        "causes": [
            {
                "cause": one.cause,
                "meaning": one.meaning,
                "us": one.delta_ns / NANO,
                "items": [_item(item) for item in one.items[:ITEMS]],
                "more": max(0, len(one.items) - ITEMS),
            }
            for one in found.causes
        ],
        "phases": [_place(one) for one in found.phases],
        "layers": [_place(one) for one in found.layers],
        "classes": [_place(one) for one in found.classes],
    }


def _side(side: DiffSide) -> SideSheet:
    return {
        "label": side.label,
        "predicted": side.predicted,
        "steps": side.steps,
        "chips": side.chips,
        "step_us": side.step_ns / NANO,
        "chip_name": side.chip_name or None,
    }


def _item(item: Item) -> DiffItemSheet:
    return {
        "phase": item.phase,
        "class": item.class_,
        "name": item.name,
        "before_us": item.before_ns / NANO,
        "after_us": item.after_ns / NANO,
        "calls_before": item.calls_before,
        "calls_after": item.calls_after,
        "us": item.delta_ns / NANO,
        "kernels_before": list(item.kernels_before),
        "kernels_after": list(item.kernels_after),
    }


def _place(one: Place) -> PlaceSheet:
    return {"id": one.id, "before_us": one.before_ns / NANO, "after_us": one.after_ns / NANO, "us": one.delta_ns / NANO}


# -- the page ---------------------------------------------------------------------------------------------------------


def draw_diff(sheet: DiffSheet, console: Console) -> None:
    """Print the page of a diff."""
    console.print(page(sheet))


def draw_runs(sheets: Sequence[DiffSheet], console: Console) -> None:
    """Print all runs beside the first, with the cause that adds most to each."""
    table = grid("left", "right", "right", "left")
    first = sheets[0]["before"]
    table.add_row(clean(first["label"]), time(first["step_us"]), "", "")
    for one in sheets:
        share = signed_share(one["difference_share"]) if one["difference_share"] else "0.0%"
        most = one["causes"][0] if one["causes"] else None
        told = f"{most['cause']} {signed(most['us'])}" if most else ""
        table.add_row(clean(one["after"]["label"]), time(one["after"]["step_us"]), share, Text(told, style="dim"))
    console.print(blocks([Text("all runs, against the first", style="dim"), table]))


def page(sheet: DiffSheet) -> RenderableType:
    """The two steps, the causes of their difference with the largest items, and where it lies."""
    return blocks(
        _head(sheet), _causes(sheet), _places("phase", sheet["phases"]), _places("class", sheet["classes"]),
        _places("layer", sheet["layers"]),
    )  # fmt: skip


def both_ends(name: str, most: int = 70) -> str:
    """A long name without its middle: kernels of one template begin alike and end differently.

    >>> both_ends("split_embedding_backward_" + "a" * 80 + "_kernel_small", 30)
    'split_embedding…a_kernel_small'
    """
    half = most // 2
    return name if len(name) <= most else f"{name[:half]}…{name[-(most - half - 1) :]}"


def _head(sheet: DiffSheet) -> list[RenderableType]:
    table = grid("left", "left", "right", "left")
    for mark, one in (("A", sheet["before"]), ("B", sheet["after"])):
        chips = f"{one['chips']} chips" if one["chips"] > 1 else "one chip"
        what = "predicted" if one["predicted"] else f"mean of {one['steps']} step(s), {chips} {one['chip_name'] or ''}"
        table.add_row(mark, clean(one["label"]), time(one["step_us"]), Text(what, style="dim"))
    share = sheet["difference_us"] / (sheet["before"]["step_us"] or 1.0)
    whole = Text(signed(sheet["difference_us"]), style="bold")
    table.add_row("", Text("B − A", style="bold"), whole, signed_share(share))
    return [table]


def _causes(sheet: DiffSheet) -> list[RenderableType]:
    if not sheet["causes"]:
        return [Text("no difference", style="dim")]
    table = grid("left", "right", "left", "left")
    largest = max(abs(one["us"]) for one in sheet["causes"]) or 1.0
    whole = max(abs(sheet["difference_us"]), largest)
    for one in sheet["causes"]:
        if abs(one["us"]) < ROUNDING:
            continue
        table.add_row(
            Text(one["cause"], style="bold"), signed(one["us"]), better_or_worse(one["us"] / largest),
            Text(one["meaning"], style="dim"),
        )  # fmt: skip
        for item in [item for item in one["items"] if abs(item["us"]) >= LEAST * whole][:SHOWN]:
            name = clean(both_ends(item["name"]))
            calls = f"{item['calls_before']:,.0f} → {item['calls_after']:,.0f}"
            table.add_row(
                Text(f"  {item['phase']}, {item['class']}", style="dim"), Text(signed(item["us"]), style="dim"),
                Text(calls, style="dim"), Text.assemble(name, style="dim"),
            )  # fmt: skip
    match = f"causes, which sum to the difference; kernels matched by {sheet['matched_by']}"
    return [Text(match, style="dim"), table]


def _places(by: str, places: Sequence[PlaceSheet]) -> list[RenderableType]:
    rows = [one for one in places if abs(one["us"]) >= ROUNDING]
    if not rows:
        return []
    table = grid("left", "right", "right", "right", "left")
    largest = max(abs(one["us"]) for one in rows)
    for one in rows[:40]:
        table.add_row(
            one["id"], time(one["before_us"]), time(one["after_us"]), signed(one["us"]),
            better_or_worse(one["us"] / largest),
        )  # fmt: skip
    return [Text(f"by {by}", style="dim"), table]
