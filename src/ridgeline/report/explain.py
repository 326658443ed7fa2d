"""Turn an Explanation into a sheet of facts, and the sheet into a page: the gap in order, and who should change."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.text import Text

from ridgeline.calibrate.explain import Explanation, GapPart
from ridgeline.core.units import DECIMAL, format_quantity, signed_share
from ridgeline.report.cells import NANO, better_or_worse, blocks, clean, grid, listed, signed, time
from ridgeline.report.diff import diff_sheet
from ridgeline.report.sheets.diff import ExplanationSheet, GapPartSheet

LEAST = 0.05  # microseconds: less is rounding
COLOURS = {"model": "cyan", "machine": "yellow", "unclear": "magenta", "nothing": "dim"}


def explanation_sheet(found: Explanation) -> ExplanationSheet:
    """Everything an explanation says; times of one step and chip, in microseconds."""
    span = found.prediction.interval
    return {
        "kind": "explanation",
        "scenario": found.scenario.name,
        "model": found.scenario.model.id,
        "system": found.scenario.system.name,
        "engine": found.scenario.plan.engine,
        "trace": list(found.analysis.timeline.about.sources),
        "predicted_us": found.predicted_ns / NANO,
        "measured_us": found.measured_ns / NANO,
        "gap_us": found.gap_ns / NANO,
        "residual": found.predicted_ns / found.measured_ns - 1 if found.measured_ns else None,
        "interval_us": [span.low * DECIMAL["M"], span.high * DECIMAL["M"]],
        "inside_interval": found.inside,
        "parts": [_part(part) for part in found.parts],
        "classes": [
            {
                "class": one.class_,
                "predicted_us": one.predicted_ns / NANO,
                "measured_us": one.measured_ns / NANO,
                "gap_us": one.gap_ns / NANO,
            }
            for one in found.by_class()
        ],
        "by_change": {change: gap / NANO for change, gap in found.by_change().items()},
        "doubts": list(found.doubts),
        "causes": diff_sheet(found.diff)["causes"],
    }


def _part(part: GapPart) -> GapPartSheet:
    return {
        "phase": part.phase,
        "class": part.class_,
        "predicted_us": part.predicted_ns / NANO,
        "measured_us": part.measured_ns / NANO,
        "gap_us": part.gap_ns / NANO,
        "share_of_gap": part.share,
        "residual": part.residual,
        "efficiency": part.efficiency,
        "bound": part.bound,
        "change": part.change,
        "why": part.why,
        "action": part.action,
    }


def draw_explanation(sheet: ExplanationSheet, console: Console) -> None:
    """Print the page of an explanation."""
    console.print(page(sheet))


def page(sheet: ExplanationSheet) -> RenderableType:
    """Predicted and measured, why that may be unfair, the gap in order, and what to change on which side."""
    doubts = listed("doubtful", sheet["doubts"], style="yellow")
    return blocks(_head(sheet), doubts, _gap(sheet), _todo(sheet))


def _head(sheet: ExplanationSheet) -> list[RenderableType]:
    low, high = sheet["interval_us"]
    table = grid("left", "right", "left")
    inside = "inside" if sheet["inside_interval"] else "outside"
    span = f"{format_quantity(low * DECIMAL['u'], 's', 3)} to {format_quantity(high * DECIMAL['u'], 's', 3)}"
    table.add_row("predicted", time(sheet["predicted_us"]), Text(f"{sheet['engine']}; {span}", style="dim"))
    table.add_row("measured", time(sheet["measured_us"]), Text(f"{inside} the interval of the prediction", style="dim"))
    residual = "" if sheet["residual"] is None else f"residual {signed_share(sheet['residual'])}"
    table.add_row(Text("gap", style="bold"), Text(signed(sheet["gap_us"]), style="bold"), residual)
    title = f"{sheet['model']} on {sheet['system']}   {', '.join(sheet['trace'][:2])}"
    return [Text.assemble(clean(title), style="bold"), table]


def _gap(sheet: ExplanationSheet) -> list[RenderableType]:
    """Classes, the largest gap first, and below each its phases where it has several."""
    table = grid("left", "right", "right", "right", "left", "left", "left")
    largest = max((abs(one["gap_us"]) for one in sheet["classes"]), default=1.0) or 1.0
    small: list[float] = []
    for one in sheet["classes"]:
        parts = [part for part in sheet["parts"] if part["class"] == one["class"] and abs(part["gap_us"]) >= LEAST]
        if all(part["change"] == "nothing" for part in parts):
            small.append(one["gap_us"])
            continue
        alone = parts[0] if len(parts) == 1 else None
        table.add_row(
            Text(one["class"] + (f", {alone['phase']}" if alone else ""), style="bold"), time(one["predicted_us"]),
            time(one["measured_us"]), signed(one["gap_us"]), better_or_worse(one["gap_us"] / largest / 2),
            *_verdict(alone),
        )  # fmt: skip
        for part in [] if alone else parts:
            times = (time(part["predicted_us"]), time(part["measured_us"]), signed(part["gap_us"]))
            dim = [Text(word, style="dim") for word in (f"  {part['phase']}", *times)]
            table.add_row(*dim, "", *_verdict(part))
    if small:
        table.add_row(Text("the rest", style="dim"), "", "", signed(sum(small)), "", *_verdict(None))
    head = "class and phase, predicted, measured, gap, what should change; gaps of classes sum to the whole"
    return [Text(head, style="dim"), table]


def _verdict(part: GapPartSheet | None) -> tuple[Text, Text]:
    """Who should change, and why; nothing for a sum of parts."""
    if part is None:
        return Text(""), Text("")
    return Text(part["change"], style=COLOURS[part["change"]]), Text(part["why"], style="dim")


def _todo(sheet: ExplanationSheet) -> list[RenderableType]:
    """Of whom how much is, and each action once, beside the largest part that asks for it."""
    parts = ", ".join(f"{change} {signed(gap)}" for change, gap in sheet["by_change"].items())
    table = grid("left", "left", "left")
    seen: set[str] = set()
    for part in sheet["parts"]:
        if part["action"] and part["action"] not in seen:
            seen.add(part["action"])
            where = f"{part['phase']} {part['class']} {signed(part['gap_us'])}"
            table.add_row(
                Text(f"  {part['change']}", style=COLOURS[part["change"]]),
                Text(where, style="dim"),
                clean(part["action"]),
            )
    return [Text.assemble(("of the gap ", "dim"), parts), *([table] if seen else [])]
