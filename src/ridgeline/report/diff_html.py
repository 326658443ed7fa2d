"""Draw why steps differ as a page: every run beside the first, and for each the causes, which sum to the difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ridgeline.core.units import signed_share
from ridgeline.report.cells import DASH, signed_time, time
from ridgeline.report.diff import both_ends
from ridgeline.report.html import escape_text, facts, inline_code, label, rule, section, svg, table
from ridgeline.report.skeleton import PageHead, page_document, prediction_evidence
from ridgeline.trace import Diff, DiffRuns

WIDE, TALL, NAMES, RIGHT = 1060, 26, 230, 110  # of the chart of causes, in pixels
ITEMS = 25  # of a cause
MOST_PLACES = 60  # lines of a table
LETTERS = 26  # runs that have a letter
STYLE = (
    ".less { fill: var(--in); } .more { fill: var(--out); } .sum { fill: var(--faint); }"
    " details summary b { color: var(--ink); }"
)


def diff_page(result: Diff | DiffRuns, command: str = "") -> str:
    """The page of one or several diffs, each against the first run; names of strangers are escaped."""
    diffs = result.runs if isinstance(result, DiffRuns) else (result,)
    several = _runs(diffs) if len(diffs) > 1 else ""
    body = several + "".join(_diff_summary(diff, alone=len(diffs) == 1) for diff in diffs)
    return page_document(_head(diffs, command), body, style=STYLE)


def _head(diffs: Sequence[Diff], command: str) -> PageHead:
    first, diff = diffs[0].before, max(diffs, key=lambda diff: abs(diff.delta_ns))
    after = diff.after
    way = "slower" if diff.delta_ns > 0 else "faster"
    most = diff.causes[0] if diff.causes else None
    cause = f", most of all by {most.cause} ({signed_time(most.delta_ns)})" if most else ""
    if len(diffs) > 1:
        question = f"Why do {len(diffs)} runs differ from {first.label}?"
    elif diff.delta_ns:
        question = f"Why is {after.label} {way} than {first.label}?"
    else:
        question = f"Do {first.label} and {after.label} differ?"
    predicted = [side for side in (first, *(diff.after for diff in diffs)) if side.predicted]
    certainty = (
        "Causes are exact for the two timelines: each nanosecond of a step stands in one place. "
        f"Work is matched by {diff.by}."
    )
    if predicted:
        certainty += f" {len(predicted)} of {1 + len(diffs)} are predictions, which have intervals of their own."
    runs = (first, *(diff.after for diff in diffs))
    sides = [
        (chr(ord("A") + place) if place < LETTERS else "", _side(run.label, run.chip_name, run.chips, run.steps))
        for place, run in enumerate(runs)
    ]
    change = signed_share(diff.slower) if diff.slower else "0.0%"
    return PageHead(
        verb="diff",
        question=question,
        answer=f"{after.label} takes {time(after.step_ns)} a step and {first.label} {time(first.step_ns)}: "
        f"{signed_time(diff.delta_ns)} ({change}){cause}.",
        certainty=certainty,
        subject=tuple(sides),
        evidence=prediction_evidence() if predicted else "Both sides are traces of runs.",
        command=command,
    )


def _side(name: str, chip: str | None, chips: int, steps: int) -> str:
    counts = f"{chips} chip{'s' * (chips > 1)} in its timeline, {steps} step{'s' * (steps > 1)}"
    return f"{name}: {chip + ', ' if chip else ''}{counts}"


def _runs(diffs: Sequence[Diff]) -> str:
    """All runs beside the first."""
    first = diffs[0].before
    rows = [(first.label, first.chip_name or DASH, time(first.step_ns), DASH, DASH)] + [
        (diff.after.label, diff.after.chip_name or DASH, time(diff.after.step_ns), signed_time(diff.delta_ns),
         signed_share(diff.slower) if diff.slower else "0.0%")
        for diff in diffs
    ]  # fmt: skip
    return f"<h2>All runs</h2>{table(('run', 'chip', 'step', 'B − A', 'of A'), rows, text=(1,))}"


def _diff_summary(diff: Diff, *, alone: bool) -> str:
    before, after = diff.before, diff.after
    figures = (
        (time(before.step_ns), f"A: {before.label}"), (time(after.step_ns), f"B: {after.label}"),
        (signed_time(diff.delta_ns), "B − A, a step and chip"),
        (signed_share(diff.slower) if diff.slower else "0.0%", "of A's step"),
    )  # fmt: skip
    places = "".join(_place_table(diff, by) for by in diff.places)
    title = "" if alone else f"<h2>{inline_code(before.label)} → {inline_code(after.label)}</h2>"
    return (
        f"{title}{facts(figures)}<h2>Causes</h2>"
        f"<figure>{_bars(diff)}<figcaption>Causes sum to the difference. Work is matched by "
        f"{escape_text(diff.by)}.</figcaption></figure>"
        f"{_cause_details(diff)}{places}"
    )


def _bars(diff: Diff) -> str:
    """Causes as a waterfall from A's step to B's."""
    causes = diff.causes
    levels = [0.0]
    for cause in causes:
        levels.append(levels[-1] + cause.delta_ns)
    low, high = min(levels), max(levels)
    scale = (WIDE - NAMES - RIGHT) / ((high - low) or 1.0)

    def x(value: float) -> float:
        return NAMES + (value - low) * scale

    marks = [rule(f"M{x(0):.1f} 4V{(len(causes) + 1) * TALL:.1f}")]
    for place, (cause, begin) in enumerate(zip(causes, levels, strict=False)):
        kind = "more" if cause.delta_ns > 0 else "less"
        marks += _bar(cause.cause, cause.delta_ns, (x(begin), x(begin + cause.delta_ns)), place, kind)
    marks += _bar("B − A", diff.delta_ns, (x(0), x(levels[-1])), len(causes), "sum")
    return svg(WIDE, (len(causes) + 1) * TALL + 8, marks, "Causes of the difference")


def _bar(name: str, nanoseconds: float, ends: tuple[float, float], place: int, kind: str) -> Iterator[str]:
    left, right = sorted(ends)
    top = place * TALL + 4
    size = f'x="{left:.1f}" y="{top}" width="{max(1.0, right - left):.1f}" height="{TALL - 8}"'
    yield label(name, NAMES - 10, top + 13, anchor="end", faint=False)
    yield f'<rect class="{kind}" {size}><title>{escape_text(f"{name}: {signed_time(nanoseconds)}")}</title></rect>'
    yield label(signed_time(nanoseconds), right + 6, top + 13, faint=False)


def _cause_details(diff: Diff) -> str:
    """Every cause with its largest items, folded."""
    head = ("B − A", "where", "what", "calls", "A", "B", "kernels")
    folds = []
    for cause in diff.causes:
        rows = [
            (
                signed_time(item.delta_ns), f"{item.phase}, {item.class_}", both_ends(item.name, 120),
                f"{item.calls_before:,.0f} → {item.calls_after:,.0f}",
                time(item.before_ns), time(item.after_ns),
                _kernels(item.kernels_before, item.kernels_after),
            )
            for item in cause.items[:ITEMS]
        ]  # fmt: skip
        columns = range(len(head)) if any(row[-1] for row in rows) else range(len(head) - 1)
        cells = table([head[at] for at in columns], [[row[at] for at in columns] for row in rows], text=(1, 2, 6))
        summary = f"<b>{escape_text(cause.cause)}</b> {escape_text(signed_time(cause.delta_ns))}: "
        folds.append(f"<details><summary>{summary}{escape_text(cause.meaning)}</summary>{cells}</details>")
    return "".join(folds)


def _kernels(before: Sequence[str], after: Sequence[str]) -> str:
    """Which kernels ran for an op on each side."""
    names = [both_ends(names[0], 60) if names else "" for names in (before, after)]
    return "" if not any(names) else names[0] if names[0] == names[1] else f"{names[0]} → {names[1]}"


def _place_table(diff: Diff, by: str) -> str:
    """Where the difference lies; a column of nothing is not drawn."""
    rows = [
        (place.id, time(place.before_ns), time(place.after_ns), signed_time(place.delta_ns))
        for place in diff.places[by]
        if place.delta_ns
    ]
    more = f'<p class="note">{len(rows) - MOST_PLACES} more in the JSON.</p>' if len(rows) > MOST_PLACES else ""
    return section(f"By {by}", (by, "A", "B", "B − A"), rows[:MOST_PLACES]) + more
