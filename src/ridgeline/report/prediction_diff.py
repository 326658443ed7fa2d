"""Draw a PredictionDiff: two times, the classes that sum to their difference, what bounds them, and other figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from ridgeline.calibrate.prediction_diff import (
    ClassChange,
    FigureChange,
    MetricChange,
    PredictionDiff,
    PredictionDiffs,
    PredictionSide,
    ServingChange,
    TimeChange,
)
from ridgeline.core.units import format_gib, format_quantity, signed_quantity, signed_share
from ridgeline.cost.step_part import Bound
from ridgeline.hardware.what_if import system_title
from ridgeline.report.cells import DASH, better_or_worse, blocks, clean, grid
from ridgeline.report.html import escape_text, facts, section, table
from ridgeline.report.serve import LIMITS, METRICS
from ridgeline.report.skeleton import PageHead, page_document, prediction_evidence

LEAST = 1e-9  # of a time: a smaller change is rounding
ARROW = "→"


def draw_prediction_diff(diff: PredictionDiff, console: Console) -> None:
    """Print the two times, the classes of their difference, what bounds them, and figures beside it."""
    serving = () if diff.serving is None else (_metrics(diff.serving), _decode_step(diff.serving))
    console.print(blocks(_head(diff), _classes(diff.time, f"by class of {diff.of}"), _figures(diff), *serving))


def draw_prediction_diffs(diffs: PredictionDiffs, console: Console) -> None:
    """Print each prediction against the first, then all of them below each other."""
    first = diffs.runs[0].before
    rows: list[tuple[RenderableType, ...]] = [(clean(first.label), format_quantity(first.time_s, "s"), "", "")]
    for diff in diffs.runs:
        draw_prediction_diff(diff, console)
        largest_change = diff.time.classes[0] if diff.time.difference_s else None
        sentence = (
            f"{largest_change.name} {signed_quantity(largest_change.difference_s, 's', 4)}" if largest_change else ""
        )
        rows.append(
            (clean(diff.after.label), format_quantity(diff.after.time_s, "s"), signed_share(diff.slower),
             Text(sentence, style="dim"))
        )  # fmt: skip
    heading = Text("all of them, against the first", style="dim")
    console.print(blocks([heading, grid("left", "right", "right", "left", rows=rows)]))


def side_title(side: PredictionSide) -> str:
    """The model, the machine with what was changed of it, and the engine."""
    scenario = side.scenario
    return f"{scenario.model.id} on {system_title(scenario.system)}, {scenario.plan.engine}"


def misfits(diff: PredictionDiff) -> list[str]:
    """Which sides do not fit in memory, in a sentence each."""
    sides = (("A", diff.before), ("B", diff.after))
    return [f"{mark} does not fit in memory; its time is what it would take if it did"
            for mark, side in sides if not side.fits]  # fmt: skip


def _head(diff: PredictionDiff) -> Iterator[RenderableType]:
    for sentence in misfits(diff):
        yield Text(sentence, style="bold red")
    rows: list[tuple[RenderableType, ...]] = [
        (mark, clean(side.label), format_quantity(side.time_s, "s"), Text(_interval(side), style="dim"),
         Text.assemble(clean(side_title(side)), style="dim"))
        for mark, side in (("A", diff.before), ("B", diff.after))
    ]  # fmt: skip
    whole_change = Text(signed_quantity(diff.time.difference_s, "s", 4), style="bold")
    rows.append(("", Text("B − A", style="bold"), whole_change, signed_share(diff.slower), ""))
    yield grid("left", "left", "right", "left", "left", rows=rows)


def _interval(side: PredictionSide) -> str:
    if side.low_s is None or side.high_s is None:
        return "mean of its requests"
    return f"{format_quantity(side.low_s, 's', 3)} to {format_quantity(side.high_s, 's', 3)}"


def class_rows(time: TimeChange) -> list[ClassChange]:
    """The classes that changed by more than rounding."""
    least = LEAST * max(time.before_s, time.after_s)
    return [change for change in time.classes if abs(change.difference_s) > least]


def bound_words(change: ClassChange) -> str:
    """What bounds a class; on both sides where that changed."""
    bounds = [bound for bound in (change.before_bound, change.after_bound) if bound]
    return f" {ARROW} ".join(dict.fromkeys(bounds))


def limit_words(time: TimeChange) -> list[str]:
    """The share of a time that each bound limits, before and after."""
    names: dict[Bound, None] = dict.fromkeys([*time.before_bounds, *time.after_bounds])
    return [
        f"{name} {time.before_bounds.get(name, 0.0) / time.before_s:.0%} {ARROW} "
        f"{time.after_bounds.get(name, 0.0) / time.after_s:.0%}"
        for name in names
    ]


def _classes(time: TimeChange, title: str) -> Iterator[RenderableType]:
    changes = class_rows(time)
    if not changes:
        yield Text("no difference", style="dim")
        return
    yield Text(f"{title}; the changes sum to the difference", style="dim")
    largest = max(abs(change.difference_s) for change in changes)
    yield grid(
        "left", "right", "right", "right", "left", "left", "left",
        rows=(
            (change.name, format_quantity(change.before_s, "s"), format_quantity(change.after_s, "s"),
             signed_quantity(change.difference_s, "s", 4), better_or_worse(change.difference_s / largest),
             bound_words(change), Text(change.meaning, style="dim"))
            for change in changes
        ),
    )  # fmt: skip
    if time.before_bounds:
        yield Text.assemble(("limited by ", "dim"), "  ".join(limit_words(time)))


def figure_text(value: float | None, unit: str) -> str:
    """A figure as people read it.

    >>> figure_text(0.375, ""), figure_text(2**34, "B"), figure_text(64.58, "tokens/s/user"), figure_text(None, "USD")
    ('0.375', '16.0 GiB', '64.6', '–')
    """
    if value is None:
        return DASH
    if unit == "B":
        return format_gib(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def figure_cells(change: FigureChange) -> tuple[str, str, str, str, str]:
    """Name, both figures, unit, and by how much they differ."""
    share = "" if change.ratio in (None, 1.0) else signed_share(change.ratio - 1)
    unit = "" if change.unit == "B" else change.unit
    return change.name, figure_text(change.before, change.unit), figure_text(change.after, change.unit), unit, share


def _figures(diff: PredictionDiff) -> Iterator[RenderableType]:
    rows = [("beside it", "A", "B", "", ""), *map(figure_cells, diff.figures)]
    yield grid("left", "right", "right", "left", "right", rows=rows)


def metric_cells(change: MetricChange) -> list[tuple[str, ...]]:
    """A row of each side, and one of what changed."""
    rows = [
        (name, mark, *(format_quantity(value, "s") for value in figures.values()))
        for name, mark, figures in ((METRICS[change.metric], "A", change.before_s), ("", "B", change.after_s))
    ]
    shares = (signed_share(change.after_s[head] / old - 1) if old else "" for head, old in change.before_s.items())
    return [*rows, ("", "", *shares)]


def _metrics(serving: ServingChange) -> Iterator[RenderableType]:
    heads = list(serving.metrics[0].before_s)
    rows = [row for change in serving.metrics for row in metric_cells(change)]
    table = grid("left", "left")
    for _ in heads:
        table.add_column(justify="right", no_wrap=True)
    for row in [("", "", *heads), *rows]:
        table.add_row(*row)
    yield table
    for mark, running in (("A", serving.before), ("B", serving.after)):
        yield Text.assemble((f"what makes requests of {mark} wait  ", "dim"), wait_words(running.limit))


def wait_words(limit: str) -> str:
    """What was exhausted while the queue grew."""
    return LIMITS.get(limit, "no request waited for another")


def _decode_step(serving: ServingChange) -> Iterator[RenderableType]:
    step = serving.decode_step
    if step is None:
        return
    times = f"{format_quantity(step.before_s, 's')} {ARROW} {format_quantity(step.after_s, 's')}"
    batches = f"{serving.before.batch:.3g} {ARROW} {serving.after.batch:.3g} requests"
    yield from _classes(step, f"a decode step at the average batch, {batches}: {times}")


# -- page -------------------------------------------------------------------------------------------------------------


def prediction_diff_page(result: PredictionDiff | PredictionDiffs, command: str = "") -> str:
    """The page of one or several comparisons, each with the first; names of strangers are escaped."""
    diffs = result.runs if isinstance(result, PredictionDiffs) else (result,)
    first = diffs[0].before
    rows = [("A", first, "", "")] + [
        ("B", diff.after, signed_quantity(diff.time.difference_s, "s", 4), signed_share(diff.slower)) for diff in diffs
    ]
    overview = table(
        ("", "scenario", "what", "time", "interval", "B − A", ""),
        [
            (mark, side.label, side_title(side), format_quantity(side.time_s, "s"), _interval(side), change, share)
            for mark, side, change, share in rows
        ],
        text=(0, 1, 2),
    )
    body = overview + "".join(map(_comparison, diffs))
    return page_document(_page_head(diffs, command), body)


def _page_head(diffs: Sequence[PredictionDiff], command: str) -> PageHead:
    first, diff = diffs[0].before, max(diffs, key=lambda diff: abs(diff.time.difference_s))
    after = diff.after
    change = f"{signed_quantity(diff.time.difference_s, 's', 4)} ({signed_share(diff.slower)})"
    way = "slower" if diff.time.difference_s > 0 else "faster"
    question = f"Why is {after.label} predicted {way} than {first.label}?"
    sides = (first, *(diff.after for diff in diffs))
    return PageHead(
        verb="diff",
        question=question if len(diffs) == 1 else f"How do {len(diffs)} scenarios differ from {first.label}?",
        answer=f"{after.label} takes {format_quantity(after.time_s, 's')} and {first.label} "
        f"{format_quantity(first.time_s, 's')}: {change}.",
        certainty="Each prediction has its own 90 % interval, which stands beside it; classes sum to the difference.",
        subject=tuple((chr(ord("A") + min(place, 25)), side_title(side)) for place, side in enumerate(sides)),
        evidence=prediction_evidence(),
        command=command,
    )


def _comparison(diff: PredictionDiff) -> str:
    figures = (
        (format_quantity(diff.before.time_s, "s"), f"A: {diff.before.label}"),
        (format_quantity(diff.after.time_s, "s"), f"B: {diff.after.label}"),
        (signed_quantity(diff.time.difference_s, "s", 4), f"B − A, {diff.of}"),
        (signed_share(diff.slower), "of A"),
    )
    warnings = "".join(f"<p><b>{escape_text(sentence)}</b></p>" for sentence in misfits(diff))
    beside_table = section("Beside it", ("", "A", "B", "unit", ""), [figure_cells(change) for change in diff.figures],
                     text=(0, 3))  # fmt: skip
    heading = f"<h2>{escape_text(diff.before.label)} {ARROW} {escape_text(diff.after.label)}</h2>"
    by_class = _class_table(diff.time, f"By class of {diff.of}")
    return f"{heading}{warnings}{facts(figures)}{by_class}{beside_table}{_serving_part(diff.serving)}"


def _class_table(time: TimeChange, title: str) -> str:
    rows: Sequence[Sequence[object]] = [
        (change.name, format_quantity(change.before_s, "s"), format_quantity(change.after_s, "s"),
         signed_quantity(change.difference_s, "s", 4), bound_words(change), change.meaning)
        for change in class_rows(time)
    ]  # fmt: skip
    limits = f"<p>Limited by {escape_text(', '.join(limit_words(time)))}.</p>" if time.before_bounds else ""
    return section(title, ("class", "A", "B", "B − A", "bound", "what it is"), rows, text=(0, 4, 5)) + limits


def _serving_part(serving: ServingChange | None) -> str:
    if serving is None:
        return ""
    heads: Mapping[str, float] = serving.metrics[0].before_s
    metrics = section("Requests", ("", "", *heads), [row for change in serving.metrics for row in metric_cells(change)],
                      text=(0, 1))  # fmt: skip
    waits = "".join(
        f"<p>What makes requests of {mark} wait: {escape_text(wait_words(running.limit))}.</p>"
        for mark, running in (("A", serving.before), ("B", serving.after))
    )
    step = "" if serving.decode_step is None else _class_table(serving.decode_step, "A decode step, average batch")
    return metrics + waits + step
