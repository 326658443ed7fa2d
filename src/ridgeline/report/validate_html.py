"""Turn a Validation into one HTML file: charts as inline SVG, no script, nothing fetched from anywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ridgeline.calibrate.validation import Validation, ValidationCase
from ridgeline.core.units import signed_share
from ridgeline.report.cells import percent
from ridgeline.report.html import HOUSE, document, dot, escaped, facts, label, rule, svg, table
from ridgeline.report.scale import Scale
from ridgeline.report.validate import worst

SIDE, EDGE = 540, 56  # of the scatter, in pixels
WIDE, TALL, NAMES = 760, 22, 190  # of a strip of residuals
BOUND = 0.5  # residuals beyond are drawn at the rim
BIN = 0.05  # of the histogram
STYLE = (
    HOUSE
    + """
.side { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-end; }
.zero { stroke: var(--faint); } .bar { fill: var(--in); fill-opacity: .7; }
.in { fill: var(--in); fill-opacity: .55; } .out { fill: var(--out); fill-opacity: .75; }
.swatch { display: inline-block; width: .7em; height: .7em; border-radius: 50%; }
.swatch.in { background: var(--in); } .swatch.out { background: var(--out); }
@media print { details { display: none; } }
"""
)


def page(found: Validation, of: str) -> str:
    """The whole page; every piece of text from a table is escaped."""
    errors = found.errors
    told = (
        (f"{errors.n:,}", "rows predicted"), (f"{len(found.skipped):,}", "skipped"),
        (percent(errors.mape), "mean |residual|"), (percent(errors.median_ape), "median"),
        (percent(errors.p90_ape), "nine of ten within"), (percent(errors.coverage90), "inside the 90 % interval"),
    )  # fmt: skip
    what = {"training": "step", "inference": "serving run"}.get(found.kind, "collective")
    legend = (
        '<span class="swatch in"></span> measured inside the 90 % interval &nbsp; '
        '<span class="swatch out"></span> outside'
    )
    strips = "".join(
        f"<h2>Residuals by {escaped(by)}</h2><figure>{_strips(found, by)}</figure>" for by in found.groupings
    )
    body = (
        f"<h1>Predicted against measured: {escaped(of)}</h1>{facts(told)}"
        f"<p>Residual = predicted / measured − 1. Dots: {legend}</p>"
        f'<figure><div class="side">{_scatter(found.cases)}{_histogram(found.cases)}</div><figcaption>Left: seconds of '
        f"a {what}, both axes logarithmic; dashed lines at ±25 %. Right: rows by residual. Point at a dot for its row."
        f"</figcaption></figure>{strips}{_worst(found)}{_skipped(found)}{_all(found.cases)}"
    )
    return document(title=f"Ridgeline: {of}", body=body, style=STYLE)


def _dot(case: ValidationCase, x: float, y: float, radius: float) -> str:
    seen, made = (f"{value:.4g}{_unit(case)}" for value in (case.measured_s, case.predicted_s))
    told = f"{case.row.id}: {seen} measured, {made} predicted ({_signed(case)})"
    return dot(x, y, radius, kind="in" if case.covered else "out", told=told)


def _unit(case: ValidationCase) -> str:
    """Seconds, or the metric that numbers are in."""
    return f" {case.metric}" if case.metric else " s"


def _signed(case: ValidationCase) -> str:
    return _plus(case.residual, 1)


def _plus(residual: float, digits: int) -> str:
    """A residual with its sign; none for nothing.

    >>> _plus(-0.25, 0), _plus(0.0, 0), _plus(1.424, 1)
    ('−25 %', '0 %', '+142.4 %')
    """
    return signed_share(residual, digits, " %") if residual else "0 %"


def _scatter(cases: Sequence[ValidationCase]) -> str:
    if not cases:
        return "<p>No row could be predicted.</p>"
    values = [math.log10(value) for case in cases for value in (case.measured_s, case.predicted_s)]
    low, high = math.floor(min(values)), math.ceil(max(values))
    place = Scale(low=low, high=max(high, low + 1), start=EDGE, end=SIDE - EDGE)
    marks = []
    for power in range(low, high + 1):
        at, told = place(power), _seconds(power)
        marks.append(rule(f"M{at:.1f} {EDGE}V{SIDE - EDGE}M{EDGE} {SIDE - at:.1f}H{SIDE - EDGE}"))
        marks.append(label(told, at, SIDE - EDGE + 16, anchor="middle"))
        marks.append(label(told, EDGE - 6, SIDE - at + 4, anchor="end"))
    for shift in (-math.log10(1.25), 0.0, math.log10(1.25)):
        start, end = place(low + max(0.0, -shift)), place(high - max(0.0, shift))
        rise = place(low + shift) - EDGE
        marks.append(rule(f"M{start:.1f} {SIDE - start - rise:.1f}L{end:.1f} {SIDE - end - rise:.1f}", "line"))
    dots = (
        _dot(case, place(math.log10(case.measured_s)), SIDE - place(math.log10(case.predicted_s)), 3.2)
        for case in cases
    )
    across = label("measured", SIDE / 2, SIDE - 12, anchor="middle", faint=False)
    up = f'<text transform="translate(14 {SIDE / 2}) rotate(-90)" text-anchor="middle">predicted</text>'
    return svg(SIDE, SIDE, [*marks, *dots, across, up])


def _histogram(cases: Sequence[ValidationCase]) -> str:
    """Rows by residual, those beyond the bound in the outermost bars."""
    if not cases:
        return ""
    half = round(BOUND / BIN)
    counts = [0] * (2 * half)
    for case in cases:
        counts[max(0, min(2 * half - 1, math.floor(case.residual / BIN) + half))] += 1
    wide, tall, left, bottom = 370, 280, 40, 48
    step, scale = (wide - left - 26) / len(counts), (tall - bottom - 12) / max(counts)
    marks = []
    for place, count in enumerate(counts):
        height = count * scale
        low, high = (_plus((place + edge - half) * BIN, 0) for edge in (0, 1))
        span = {0: f"below {high}", len(counts) - 1: f"above {low}"}.get(place, f"{low} to {high}")
        x, y = left + place * step, tall - bottom - height
        shape = f'<rect class="bar" x="{x + 0.5:.1f}" y="{y:.1f}" width="{step - 1:.1f}" height="{height:.1f}">'
        marks.append(f"{shape}<title>{escaped(f'{count} rows, {span}')}</title></rect>")
    for tick in (-BOUND, -BOUND / 2, 0.0, BOUND / 2, BOUND):
        x = left + (tick / BIN + half) * step
        marks.append(rule(f"M{x:.1f} 12V{tall - bottom + 4}", "rule" if tick else "zero"))
        marks.append(label(_plus(tick, 0), x, tall - bottom + 18, anchor="middle"))
    marks.append(label("residual", left + half * step, tall - 10, anchor="middle", faint=False))
    marks.append(label(str(max(counts)), left - 6, 18, anchor="end"))
    return svg(wide, tall, marks)


def _seconds(power: int) -> str:
    """A power of ten of a second as people say it.

    >>> _seconds(-3), _seconds(2)
    ('1 ms', '100 s')
    """
    return f"{10 ** (power % 3)} {('µs', 'ms')[power // 3 + 2]}" if -6 <= power < 0 else f"{10.0**power:g} s"


def _strips(found: Validation, grouping: str) -> str:
    """One strip of dots per group: where its residuals lie, and their mean size."""
    groups = found.by(grouping)
    members: dict[str, list[ValidationCase]] = {name: [] for name in groups}
    for case in found.cases:
        members[found.groupings[grouping](case)].append(case)
    end, bottom = WIDE - 70, TALL * len(groups) + 6
    place = Scale(low=-BOUND, high=BOUND, start=NAMES, end=end)
    marks = []
    for tick in (-0.5, -0.25, 0.0, 0.25, 0.5):
        told = {-0.5: "≤ −50 %", 0.5: "≥ +50 %"}.get(tick, _plus(tick, 0))
        marks.append(rule(f"M{place(tick):.1f} 0V{bottom}", "rule" if tick else "zero"))
        marks.append(label(told, place(tick), bottom + 14, anchor="middle"))
    for index, (name, errors) in enumerate(groups.items()):
        middle = TALL * index + TALL / 2 + 3
        marks.append(label(name[:26], NAMES - 12, middle + 4, anchor="end", faint=False))
        told = f"{percent(errors.mape)}, {errors.n} row{'s' * (errors.n > 1)}"
        marks.append(label(told, end + 10, middle + 4))
        for number, case in enumerate(members[name]):
            at = place(min(BOUND, max(-BOUND, case.residual)))
            marks.append(_dot(case, at, middle + (number * 7 % 11 - 5) * 0.9, 2.4))
    return svg(WIDE + 50, bottom + 22, marks)


def _cells(case: ValidationCase) -> tuple[str, ...]:
    return (case.row.id, f"{case.measured_s:.4g}{_unit(case)}", f"{case.predicted_s:.4g}{_unit(case)}", _signed(case))


def _worst(found: Validation) -> str:
    head = ("row", "measured", "predicted", "residual", "look first at")
    rows = [(*_cells(case), reason) for case, reason in worst(found)]
    return f"<h2>Furthest off</h2>{table(head, rows, text=(0, 4))}" if rows else ""


def _skipped(found: Validation) -> str:
    rows = [(item.id, item.reason) for item in found.skipped]
    cells = table(("row", "reason"), rows, text=(0, 1))
    return f"<h2>Skipped</h2><details><summary>{len(rows)} rows</summary>{cells}</details>" if rows else ""


def _all(cases: Sequence[ValidationCase]) -> str:
    head = ("row", "measured", "predicted", "residual", "low", "high", "chip")
    rows = [
        (*_cells(case), f"{case.low_s:.4g}{_unit(case)}", f"{case.high_s:.4g}{_unit(case)}", case.chip)
        for case in cases
    ]
    return f"<h2>Every row</h2><details><summary>{len(rows)} rows</summary>{table(head, rows)}</details>"
