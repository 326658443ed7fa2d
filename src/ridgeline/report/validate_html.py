"""Draw a Validation as a page: predicted against measured, residuals by group, and the rows that are furthest off."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ridgeline.calibrate.validation import Validation, ValidationCase
from ridgeline.core.units import signed_share
from ridgeline.report.cells import percent
from ridgeline.report.html import (
    Scale,
    details,
    dot,
    escape_text,
    facts,
    label,
    rule,
    section,
    svg,
    table,
)
from ridgeline.report.skeleton import PageHead, newest_run_year, page_document
from ridgeline.report.validate import worst

SIDE, EDGE, RIM = 540, 62, 16  # of the scatter, in pixels: all of it, left and below, right and above
WIDE, TALL, NAMES = 860, 22, 210  # of a strip of residuals
BOUND = 0.5  # residuals beyond are drawn at the rim
BIN = 0.05  # of the histogram


def validation_page(found: Validation, of: str, command: str = "") -> str:
    """The whole page; every piece of text from a table is escaped."""
    errors = found.errors
    figures = (
        (f"{errors.n:,}", "rows predicted"), (f"{len(found.skipped):,}", "skipped"),
        (percent(errors.mape), "mean |residual|"), (percent(errors.median_ape), "median"),
        (percent(errors.p90_ape), "nine of ten within"), (percent(errors.coverage90), "inside the 90 % interval"),
    )  # fmt: skip
    strips = "".join(
        f"<h2>Residuals by {escape_text(by)}</h2><figure>{_strips(found, by)}</figure>" for by in found.groupings
    )
    rows = [(*_cells(case), reason) for case, reason in worst(found)]
    furthest = section("Furthest off", ("row", "measured", "predicted", "residual", "look first at"), rows, text=(0, 4))
    body = (
        f"{facts(figures)}<h2>Predicted against measured</h2>{LEGEND}"
        f'<figure><div class="side">{_scatter(found.cases)}{_histogram(found.cases)}</div>'
        f"<figcaption>Left: seconds of a {_what(found)}, both axes logarithmic; dashed lines at ±25 %. Right: rows by "
        f"residual, which is predicted / measured − 1. Point at a dot for its row.</figcaption></figure>"
        f"{strips}{furthest}{_skipped_section(found)}{_all(found.cases)}"
    )
    return page_document(_head(found, of, command), body, "validate")


LEGEND = (
    '<p class="key"><span><i class="swatch in"></i>measured inside the 90 % interval</span>'
    '<span><i class="swatch out"></i>outside</span></p>'
)


def _what(found: Validation) -> str:
    return {"training": "step", "inference": "serving run"}.get(found.kind, "collective")


def _head(found: Validation, of: str, command: str) -> PageHead:
    errors = found.errors
    cross_validated = sum(case.cross_validated for case in found.cases)
    sources = len({case.row.source for case in found.cases})
    return PageHead(
        verb="validate",
        question=f"How near are predictions to measurements: {of}?",
        answer=f"{errors.n:,} rows are predicted with a mean |residual| of {percent(errors.mape)}, "
        f"median {percent(errors.median_ape)}; nine of ten lie within {percent(errors.p90_ape)}.",
        certainty=f"{percent(errors.coverage90)} of measurements lie inside the 90 % interval. {cross_validated:,} "
        f"rows were predicted by parameters that no run of their group was fitted to; they are of {sources} sources.",
        subject=(("Rows", of), ("Kind", f"{found.kind}, {len(found.skipped):,} of {found.rows:,} rows skipped")),
        evidence=f"The newest bundled run is of {newest_run_year()}.",
        command=command,
    )


def _dot(case: ValidationCase, x: float, y: float, radius: float) -> str:
    measured, predicted = (f"{value:.4g}{_unit(case)}" for value in (case.measured_s, case.predicted_s))
    sentence = f"{case.row.id}: {measured} measured, {predicted} predicted ({_signed_residual(case)})"
    return dot(x, y, radius, kind="in" if case.covered else "out", told=sentence)


def _unit(case: ValidationCase) -> str:
    """Seconds, or the metric that numbers are in."""
    return f" {case.metric}" if case.metric else " s"


def _signed_residual(case: ValidationCase) -> str:
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
    place = Scale(low=low, high=max(high, low + 1), start=EDGE, end=SIDE - RIM)
    marks = []
    for power in range(low, high + 1):
        at, name = place(power), _power_of_ten_label(power)
        marks.append(rule(f"M{at:.1f} {RIM}V{SIDE - EDGE}M{EDGE} {SIDE - at:.1f}H{SIDE - RIM}"))
        marks.append(label(name, at, SIDE - EDGE + 20, anchor="end" if power == high else "middle"))
        marks.append(label(name, EDGE - 8, SIDE - at + (4 if power > low else 0), anchor="end"))
    for shift in (-math.log10(1.25), 0.0, math.log10(1.25)):
        start, end = place(low + max(0.0, -shift)), place(high - max(0.0, shift))
        rise = place(low + shift) - EDGE
        marks.append(rule(f"M{start:.1f} {SIDE - start - rise:.1f}L{end:.1f} {SIDE - end - rise:.1f}", "line"))
    dots = (
        _dot(case, place(math.log10(case.measured_s)), SIDE - place(math.log10(case.predicted_s)), 3.2)
        for case in cases
    )
    across = label("measured, logarithmic", (SIDE + EDGE) / 2, SIDE - 12, anchor="middle", faint=False)
    up = f'<text transform="translate(14 {SIDE / 2}) rotate(-90)" text-anchor="middle">predicted, logarithmic</text>'
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
        marks.append(f"{shape}<title>{escape_text(f'{count} rows, {span}')}</title></rect>")
    for tick in (-BOUND, -BOUND / 2, 0.0, BOUND / 2, BOUND):
        x = left + (tick / BIN + half) * step
        marks.append(rule(f"M{x:.1f} 12V{tall - bottom + 4}", "rule" if tick else "zero"))
        marks.append(label(_plus(tick, 0), x, tall - bottom + 18, anchor="middle"))
    marks.append(label("residual", left + half * step, tall - 10, anchor="middle", faint=False))
    marks.append(label(str(max(counts)), left - 6, 18, anchor="end"))
    return svg(wide, tall, marks)


def _power_of_ten_label(power: int) -> str:
    """A power of ten of a second as people say it.

    >>> _power_of_ten_label(-3), _power_of_ten_label(2)
    ('1 ms', '100 s')
    """
    return f"{10 ** (power % 3)} {('us', 'ms')[power // 3 + 2]}" if -6 <= power < 0 else f"{10.0**power:,g} s"


def _strips(found: Validation, grouping: str) -> str:
    """One strip of dots per group: where its residuals lie, and their mean size."""
    groups, members = found.by(grouping), found.cases_by(grouping)
    end, bottom = WIDE - 70, TALL * len(groups) + 6
    place = Scale(low=-BOUND, high=BOUND, start=NAMES, end=end)
    marks = []
    for tick in (-0.5, -0.25, 0.0, 0.25, 0.5):
        name_text = {-0.5: "≤ −50 %", 0.5: "≥ +50 %"}.get(tick, _plus(tick, 0))
        marks.append(rule(f"M{place(tick):.1f} 0V{bottom}", "rule" if tick else "zero"))
        marks.append(label(name_text, place(tick), bottom + 14, anchor="middle"))
    for index, (name, errors) in enumerate(groups.items()):
        middle = TALL * index + TALL / 2 + 3
        marks.append(label(name[:26], NAMES - 12, middle + 4, anchor="end", faint=False))
        size_text = f"{percent(errors.mape)}, {errors.n} row{'s' * (errors.n > 1)}"
        marks.append(label(size_text, end + 10, middle + 4))
        for number, case in enumerate(members[name]):
            at = place(min(BOUND, max(-BOUND, case.residual)))
            marks.append(_dot(case, at, middle + (number * 7 % 11 - 5) * 0.9, 2.4))
    return svg(WIDE + 50, bottom + 22, marks)


def _cells(case: ValidationCase) -> tuple[str, ...]:
    return (
        case.row.id,
        f"{case.measured_s:.4g}{_unit(case)}",
        f"{case.predicted_s:.4g}{_unit(case)}",
        _signed_residual(case),
    )


def _skipped_section(found: Validation) -> str:
    rows = [(item.id, item.reason) for item in found.skipped]
    return details("Skipped", f"{len(rows)} rows", table(("row", "reason"), rows, text=(0, 1))) if rows else ""


def _all(cases: Sequence[ValidationCase]) -> str:
    head = ("row", "measured", "predicted", "residual", "low", "high", "chip")
    rows = [
        (*_cells(case), f"{case.low_s:.4g}{_unit(case)}", f"{case.high_s:.4g}{_unit(case)}", case.chip)
        for case in cases
    ]
    return details("Every row", f"{len(rows)} rows", table(head, rows))
