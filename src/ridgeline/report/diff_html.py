"""Turn Diffs into one HTML file: steps side by side, causes as bars that sum to the difference, places in tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ridgeline.core.units import signed_share
from ridgeline.report.cells import signed, time
from ridgeline.report.diff import both_ends
from ridgeline.report.html import HOUSE, document, escaped, facts, label, rule, svg, table
from ridgeline.trace.diff import CauseTime, Diff, Place

WIDE, TALL, NAMES = 860, 24, 190  # of the chart of causes, in pixels
ITEMS = 25  # of a cause
STYLE = (
    HOUSE
    + """
.less { fill: var(--in); fill-opacity: .75; } .more { fill: var(--out); fill-opacity: .8; }
.sum { fill: var(--faint); fill-opacity: .5; } details { margin: .6rem 0; }
td.text { max-width: 34rem; overflow-wrap: anywhere; }
"""
)


def diff_page(diffs: Sequence[Diff]) -> str:
    """The page of one or several diffs, each against the first run; names of strangers are escaped."""
    first = diffs[0].before
    runs = table(
        ("run", "chip", "step", "B − A", ""),
        [(first.label, first.chip_name or "", time(first.step_ns), "", "")]
        + [
            (one.after.label, one.after.chip_name or "", time(one.after.step_ns),
             signed(one.delta_ns), signed_share(one.slower) if one.slower else "0.0%")
            for one in diffs
        ],
        text=(1,),
    )  # fmt: skip
    body = f"<h1>Why steps differ</h1>{runs}" + "".join(_one(one) for one in diffs)
    return document(title=f"Ridgeline: {first.label} and {len(diffs)} more", body=body, style=STYLE)


def _one(diff: Diff) -> str:
    before, after = diff.before, diff.after
    told = (
        (time(before.step_ns), f"A: {before.label}"), (time(after.step_ns), f"B: {after.label}"),
        (signed(diff.delta_ns), "B − A, a step and chip"),
        (signed_share(diff.slower) if diff.slower else "0.0%", "of A's step"),
    )  # fmt: skip
    places = "".join(
        _places(by, rows) for by, rows in (("phase", diff.phases), ("class", diff.classes), ("layer", diff.layers))
    )
    return (
        f"<h2>{escaped(before.label)} → {escaped(after.label)}</h2>{facts(told)}"
        f"<figure>{_bars(diff)}<figcaption>Causes sum to the difference. Work is matched by "
        f"{escaped(diff.by)}.</figcaption></figure>"
        f"{''.join(map(_cause, diff.causes))}{places}"
    )


def _bars(diff: Diff) -> str:
    """Causes as a waterfall from A's step to B's."""
    causes = diff.causes
    levels = [0.0]
    for one in causes:
        levels.append(levels[-1] + one.delta_ns)
    low, high = min(levels), max(levels)
    scale = (WIDE - NAMES - 90) / ((high - low) or 1.0)

    def x(value: float) -> float:
        return NAMES + (value - low) * scale

    marks = [rule(f"M{x(0):.1f} 4V{(len(causes) + 1) * TALL:.1f}")]
    for place, (one, begin) in enumerate(zip(causes, levels, strict=False)):
        marks += _bar(
            one.cause, one.delta_ns, (x(begin), x(begin + one.delta_ns)), place, "more" if one.delta_ns > 0 else "less"
        )
    marks += _bar("B − A", diff.delta_ns, (x(0), x(levels[-1])), len(causes), "sum")
    return svg(WIDE, (len(causes) + 1) * TALL + 8, marks)


def _bar(name: str, us: float, ends: tuple[float, float], place: int, kind: str) -> Iterable[str]:
    left, right = sorted(ends)
    top = place * TALL + 4
    size = f'x="{left:.1f}" y="{top}" width="{max(1.0, right - left):.1f}" height="{TALL - 8}"'
    yield label(name, NAMES - 10, top + 12, anchor="end", faint=False)
    yield f'<rect class="{kind}" {size}><title>{escaped(f"{name}: {signed(us)}")}</title></rect>'
    yield label(signed(us), right + 6, top + 12)


def _cause(one: CauseTime) -> str:
    rows = [
        (
            signed(item.delta_ns), f"{item.phase}, {item.class_}", both_ends(item.name, 120),
            f"{item.calls_before:,.0f} → {item.calls_after:,.0f}",
            time(item.before_ns), time(item.after_ns),
            _kernels(item.kernels_before, item.kernels_after),
        )
        for item in one.items[:ITEMS]
    ]  # fmt: skip
    head = ("", "where", "what", "calls", "A", "B", "kernels")
    return (
        f"<details><summary><b>{escaped(one.cause)}</b> {escaped(signed(one.delta_ns))}: {escaped(one.meaning)}"
        f"</summary>{table(head, rows, text=(1, 2, 6))}</details>"
    )


def _kernels(before: Sequence[str], after: Sequence[str]) -> str:
    """Which kernels ran for an op on each side."""
    names = [both_ends(names[0], 60) if names else "" for names in (before, after)]
    return "" if not any(names) else names[0] if names[0] == names[1] else f"{names[0]} → {names[1]}"


def _places(by: str, places: Sequence[Place]) -> str:
    rows = [(one.id, time(one.before_ns), time(one.after_ns), signed(one.delta_ns)) for one in places if one.delta_ns]
    return f"<h2>By {by}</h2>{table((by, 'A', 'B', 'B − A'), rows[:60])}" if rows else ""
