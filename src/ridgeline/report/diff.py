"""Draw a Diff: what changed, by cause, phase, layer and class."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.text import Text

from ridgeline.calibrate.explain import Explanation, GapPart
from ridgeline.core.units import format_quantity, signed_share
from ridgeline.hardware.what_if import system_title
from ridgeline.report.cells import better_or_worse, blocks, clean, grid, list_lines, signed_time, time
from ridgeline.trace import Diff, DiffRuns

SHOWN = 4  # of a cause on a page
LEAST = 0.02  # of the whole difference: smaller items are not on the page
ROUNDING = 50  # nanoseconds: less is not shown


def draw_diff(diff: Diff, console: Console) -> None:
    """Print the two steps, the causes of their difference with the largest items, and where it lies."""
    console.print(blocks(_head(diff), _causes(diff), *(_places(diff, by) for by in diff.places)))


def draw_runs(diffs: DiffRuns, console: Console) -> None:
    """Print each run, then all of them beside the first, with the cause that adds most to each."""
    table = grid("left", "right", "right", "left")
    first = diffs.runs[0].before
    table.add_row(clean(first.label), time(first.step_ns), "", "")
    for diff in diffs.runs:
        draw_diff(diff, console)
        share = signed_share(diff.slower) if diff.slower else "0.0%"
        most = diff.causes[0] if diff.causes else None
        sentence = f"{most.cause} {signed_time(most.delta_ns)}" if most else ""
        table.add_row(clean(diff.after.label), time(diff.after.step_ns), share, Text(sentence, style="dim"))
    console.print(blocks([Text("all runs, against the first", style="dim"), table]))


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
    whole = Text(signed_time(diff.delta_ns), style="bold")
    table.add_row("", Text("B − A", style="bold"), whole, signed_share(share))
    return [table]


def _causes(diff: Diff) -> list[RenderableType]:
    if not diff.causes:
        return [Text("no difference", style="dim")]
    table = grid("left", "right", "left", "left")
    largest = max(abs(cause.delta_ns) for cause in diff.causes) or 1.0
    whole = max(abs(diff.delta_ns), largest)
    for cause in diff.causes:
        if abs(cause.delta_ns) < ROUNDING:
            continue
        table.add_row(
            Text(cause.cause, style="bold"), signed_time(cause.delta_ns), better_or_worse(cause.delta_ns / largest),
            Text(cause.meaning, style="dim"),
        )  # fmt: skip
        for item in [item for item in cause.items if abs(item.delta_ns) >= LEAST * whole][:SHOWN]:
            name = clean(both_ends(item.name))
            calls = f"{item.calls_before:,.0f} → {item.calls_after:,.0f}"
            table.add_row(
                Text(f"  {item.phase}, {item.class_}", style="dim"), Text(signed_time(item.delta_ns), style="dim"),
                Text(calls, style="dim"), Text.assemble(name, style="dim"),
            )  # fmt: skip
    match = f"causes, which sum to the difference; kernels matched by {diff.by}"
    return [Text(match, style="dim"), table]


def _places(diff: Diff, by: str) -> list[RenderableType]:
    rows = [place for place in diff.places[by] if abs(place.delta_ns) >= ROUNDING]
    if not rows:
        return []
    largest = max(abs(row.delta_ns) for row in rows)
    cells = (
        (row.id, time(row.before_ns), time(row.after_ns), signed_time(row.delta_ns),
         better_or_worse(row.delta_ns / largest))
        for row in rows[:40]
    )  # fmt: skip
    return [Text(f"by {by}", style="dim"), grid("left", "right", "right", "right", "left", rows=cells)]


# -- explain ----------------------------------------------------------------------------------------------------------


COLOURS = {"model": "cyan", "machine": "yellow", "unclear": "magenta", "nothing": "dim"}


def draw_explanation(explanation: Explanation, console: Console) -> None:
    """Print predicted and measured, why that may be unfair, the gap in order, and what to change on which side."""
    doubts = list_lines("doubtful", explanation.doubts, style="yellow")
    console.print(blocks(_explain_head(explanation), doubts, _gap(explanation), _todo(explanation)))


def _explain_head(explanation: Explanation) -> list[RenderableType]:
    low, high = explanation.prediction.interval.low, explanation.prediction.interval.high
    inside = "inside" if explanation.inside else "outside"
    span = f"{format_quantity(low, 's', 3)} to {format_quantity(high, 's', 3)}"
    scenario = explanation.scenario
    residual = "" if explanation.residual is None else f"residual {signed_share(explanation.residual)}"
    rows = (
        ("predicted", time(explanation.predicted_ns), Text(f"{scenario.plan.engine}; {span}", style="dim")),
        ("measured", time(explanation.measured_ns), Text(f"{inside} the interval of the prediction", style="dim")),
        (Text("gap", style="bold"), Text(signed_time(explanation.gap_ns), style="bold"), residual),
    )
    table = grid("left", "right", "left", rows=rows)
    sources = ", ".join(explanation.analysis.timeline.about.sources[:2])
    title = f"{scenario.model.id} on {system_title(scenario.system)}   {sources}"
    return [Text.assemble(clean(title), style="bold"), table]


def _gap(explanation: Explanation) -> list[RenderableType]:
    """Classes, the largest gap first, and below each its phases where it has several."""
    table = grid("left", "right", "right", "right", "left", "left", "left")
    largest = max((abs(one.gap_ns) for one in explanation.by_class), default=1.0) or 1.0
    small: list[float] = []
    for one in explanation.by_class:
        parts = [part for part in explanation.parts if part.class_ == one.class_ and abs(part.gap_ns) >= ROUNDING]
        if all(part.change == "nothing" for part in parts):
            small.append(one.gap_ns)
            continue
        alone = parts[0] if len(parts) == 1 else None
        table.add_row(
            Text(one.class_ + (f", {alone.phase}" if alone else ""), style="bold"), time(one.predicted_ns),
            time(one.measured_ns), signed_time(one.gap_ns), better_or_worse(one.gap_ns / largest / 2),
            *_verdict(alone),
        )  # fmt: skip
        for part in [] if alone else parts:
            times = (time(part.predicted_ns), time(part.measured_ns), signed_time(part.gap_ns))
            dim = [Text(word, style="dim") for word in (f"  {part.phase}", *times)]
            table.add_row(*dim, "", *_verdict(part))
    if small:
        table.add_row(Text("the rest", style="dim"), "", "", signed_time(sum(small)), "", *_verdict(None))
    head = "class and phase, predicted, measured, gap, what should change; gaps of classes sum to the whole"
    return [Text(head, style="dim"), table]


def _verdict(part: GapPart | None) -> tuple[Text, Text]:
    """Who should change, and why; nothing for a sum of parts."""
    if part is None:
        return Text(""), Text("")
    return Text(part.change, style=COLOURS[part.change]), Text(part.why, style="dim")


def _todo(explanation: Explanation) -> list[RenderableType]:
    """Of whom how much is, and each action once, beside the largest part that asks for it."""
    parts = ", ".join(f"{change} {signed_time(gap)}" for change, gap in explanation.by_change_ns.items())
    table = grid("left", "left", "left")
    seen: set[str] = set()
    for part in explanation.parts:
        if part.action and part.action not in seen:
            seen.add(part.action)
            where = f"{part.phase} {part.class_} {signed_time(part.gap_ns)}"
            who = Text(f"  {part.change}", style=COLOURS[part.change])
            table.add_row(who, Text(where, style="dim"), clean(part.action))
    return [Text.assemble(("of the gap ", "dim"), parts), *([table] if seen else [])]
