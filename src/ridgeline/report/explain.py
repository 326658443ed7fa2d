"""Draw an Explanation: the gap in order, and who should change."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.text import Text

from ridgeline.calibrate.explain import Explanation, GapPart
from ridgeline.core.units import format_quantity, signed_share
from ridgeline.report.cells import better_or_worse, blocks, clean, grid, listed, signed, time

LEAST = 50  # nanoseconds: less is rounding
COLOURS = {"model": "cyan", "machine": "yellow", "unclear": "magenta", "nothing": "dim"}


def draw_explanation(explanation: Explanation, console: Console) -> None:
    """Print the page of an explanation."""
    console.print(page(explanation))


def page(explanation: Explanation) -> RenderableType:
    """Predicted and measured, why that may be unfair, the gap in order, and what to change on which side."""
    doubts = listed("doubtful", explanation.doubts, style="yellow")
    return blocks(_head(explanation), doubts, _gap(explanation), _todo(explanation))


def _head(explanation: Explanation) -> list[RenderableType]:
    low, high = explanation.prediction.interval.low, explanation.prediction.interval.high
    table = grid("left", "right", "left")
    inside = "inside" if explanation.inside else "outside"
    span = f"{format_quantity(low, 's', 3)} to {format_quantity(high, 's', 3)}"
    scenario = explanation.scenario
    table.add_row("predicted", time(explanation.predicted_ns), Text(f"{scenario.plan.engine}; {span}", style="dim"))
    table.add_row(
        "measured", time(explanation.measured_ns), Text(f"{inside} the interval of the prediction", style="dim")
    )
    residual = "" if explanation.residual is None else f"residual {signed_share(explanation.residual)}"
    table.add_row(Text("gap", style="bold"), Text(signed(explanation.gap_ns), style="bold"), residual)
    sources = ", ".join(explanation.analysis.timeline.about.sources[:2])
    title = f"{scenario.model.id} on {scenario.system.name}   {sources}"
    return [Text.assemble(clean(title), style="bold"), table]


def _gap(explanation: Explanation) -> list[RenderableType]:
    """Classes, the largest gap first, and below each its phases where it has several."""
    table = grid("left", "right", "right", "right", "left", "left", "left")
    largest = max((abs(one.gap_ns) for one in explanation.by_class), default=1.0) or 1.0
    small: list[float] = []
    for one in explanation.by_class:
        parts = [part for part in explanation.parts if part.class_ == one.class_ and abs(part.gap_ns) >= LEAST]
        if all(part.change == "nothing" for part in parts):
            small.append(one.gap_ns)
            continue
        alone = parts[0] if len(parts) == 1 else None
        table.add_row(
            Text(one.class_ + (f", {alone.phase}" if alone else ""), style="bold"), time(one.predicted_ns),
            time(one.measured_ns), signed(one.gap_ns), better_or_worse(one.gap_ns / largest / 2),
            *_verdict(alone),
        )  # fmt: skip
        for part in [] if alone else parts:
            times = (time(part.predicted_ns), time(part.measured_ns), signed(part.gap_ns))
            dim = [Text(word, style="dim") for word in (f"  {part.phase}", *times)]
            table.add_row(*dim, "", *_verdict(part))
    if small:
        table.add_row(Text("the rest", style="dim"), "", "", signed(sum(small)), "", *_verdict(None))
    head = "class and phase, predicted, measured, gap, what should change; gaps of classes sum to the whole"
    return [Text(head, style="dim"), table]


def _verdict(part: GapPart | None) -> tuple[Text, Text]:
    """Who should change, and why; nothing for a sum of parts."""
    if part is None:
        return Text(""), Text("")
    return Text(part.change, style=COLOURS[part.change]), Text(part.why, style="dim")


def _todo(explanation: Explanation) -> list[RenderableType]:
    """Of whom how much is, and each action once, beside the largest part that asks for it."""
    parts = ", ".join(f"{change} {signed(gap)}" for change, gap in explanation.by_change_ns.items())
    table = grid("left", "left", "left")
    seen: set[str] = set()
    for part in explanation.parts:
        if part.action and part.action not in seen:
            seen.add(part.action)
            where = f"{part.phase} {part.class_} {signed(part.gap_ns)}"
            table.add_row(
                Text(f"  {part.change}", style=COLOURS[part.change]),
                Text(where, style="dim"),
                clean(part.action),
            )
    return [Text.assemble(("of the gap ", "dim"), parts), *([table] if seen else [])]
