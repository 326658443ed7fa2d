"""Turn a Validation into one HTML file: charts as inline SVG, no script, nothing fetched from anywhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from ridgeline.calibrate.validate import Case, Validation
from ridgeline.report.validate import percent, worst

SIDE, EDGE = 540, 56  # of the scatter, in pixels
WIDE, TALL, NAMES = 760, 22, 190  # of a strip of residuals
BOUND = 0.5  # residuals beyond are drawn at the rim
BIN = 0.05  # of the histogram
STYLE = """
:root { --paper: #fcfcfa; --ink: #1d2733; --faint: #8a94a0; --rule: #dfe3e8; --in: #2f6fb2; --out: #d1661f; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14181d; --ink: #e6e9ec; --faint: #8a94a0; --rule: #2c343d; --in: #6ba6e2; --out: #f0935a; }
}
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 60rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
p, figcaption { color: var(--faint); } figure { margin: 0; overflow-x: auto; }
.side { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-end; } svg { max-width: 100%; height: auto; }
.facts { display: flex; flex-wrap: wrap; gap: .4rem 2.2rem; margin: 1rem 0; }
.facts b { display: block; font-size: 1.35rem; font-weight: 600; color: var(--ink); }
.facts span { color: var(--faint); }
svg text { fill: var(--ink); font-size: 11px; } svg .faint { fill: var(--faint); }
.rule { stroke: var(--rule); } .line { stroke: var(--faint); stroke-dasharray: 4 3; fill: none; }
.zero { stroke: var(--faint); } .bar { fill: var(--in); fill-opacity: .7; }
.in { fill: var(--in); fill-opacity: .55; } .out { fill: var(--out); fill-opacity: .75; }
.swatch { display: inline-block; width: .7em; height: .7em; border-radius: 50%; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
th, td { text-align: right; padding: .15rem .6rem; border-bottom: 1px solid var(--rule); }
th:first-child, td:first-child, .text { text-align: left; } td:not(.text), td:first-child { white-space: nowrap; }
.wide { overflow-x: auto; } summary { cursor: pointer; color: var(--faint); }
@media print { details { display: none; } }
"""


def page(found: Validation, of: str) -> str:
    """The whole page; every piece of text from a table is escaped."""
    errors = found.errors
    told = (
        (f"{errors.n:,}", "rows predicted"), (f"{len(found.skipped):,}", "skipped"),
        (percent(errors.mape), "mean |residual|"), (percent(errors.median_ape), "median"),
        (percent(errors.p90_ape), "nine of ten within"), (percent(errors.coverage90), "inside the 90 % interval"),
    )  # fmt: skip
    what = "step" if found.kind == "training" else "collective"
    facts = "".join(f"<div><b>{_text(value)}</b><span>{_text(name)}</span></div>" for value, name in told)
    legend = (
        '<span class="swatch" style="background: var(--in)"></span> measured inside the 90 % interval &nbsp; '
        '<span class="swatch" style="background: var(--out)"></span> outside'
    )
    strips = "".join(
        f"<h2>Residuals by {grouping}</h2><figure>{_strips(found, grouping)}</figure>" for grouping in found.groupings
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Ridgeline: {_text(of)}</title><style>{STYLE}</style></head><body>"
        f'<h1>Predicted against measured: {_text(of)}</h1><div class="facts">{facts}</div>'
        f"<p>Residual = predicted / measured − 1. Dots: {legend}</p>"
        f'<figure><div class="side">{_scatter(found.cases)}{_histogram(found.cases)}</div><figcaption>Left: seconds of '
        f"a {what}, both axes logarithmic; dashed lines at ±25 %. Right: rows by residual. Point at a dot for its row."
        f"</figcaption></figure>{strips}{_worst(found)}{_skipped(found)}"
        f"{_all(found.cases)}</body></html>\n"
    )


def _text(value: object) -> str:
    """Text of a stranger inside HTML: escaped, without control characters, not endless."""
    return escape("".join(char for char in str(value)[:200] if char.isprintable()))


def _dot(case: Case, x: float, y: float, radius: float) -> str:
    told = f"{case.row.id}: {case.measured_s:.4g} s measured, {case.predicted_s:.4g} s predicted ({_signed(case)})"
    kind = "in" if case.covered else "out"
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"><title>{_text(told)}</title></circle>'


def _signed(case: Case) -> str:
    return _plus(case.residual, 1)


def _plus(residual: float, digits: int) -> str:
    """A residual with its sign; none for nothing.

    >>> _plus(-0.25, 0), _plus(0.0, 0), _plus(1.424, 1)
    ('−25 %', '0 %', '+142.4 %')
    """
    return f"{residual * 100:+.{digits}f} %".replace("-", "−") if residual else "0 %"


def _scatter(cases: Sequence[Case]) -> str:
    if not cases:
        return "<p>No row could be predicted.</p>"
    values = [math.log10(value) for case in cases for value in (case.measured_s, case.predicted_s)]
    low, high = math.floor(min(values)), math.ceil(max(values))
    scale = (SIDE - 2 * EDGE) / max(1, high - low)

    def place(log: float) -> float:
        return EDGE + (log - low) * scale

    marks = []
    for power in range(low, high + 1):
        at, label = place(power), _seconds(power)
        marks.append(f'<path class="rule" d="M{at:.1f} {EDGE}V{SIDE - EDGE}M{EDGE} {SIDE - at:.1f}H{SIDE - EDGE}"/>')
        marks.append(f'<text class="faint" x="{at:.1f}" y="{SIDE - EDGE + 16}" text-anchor="middle">{label}</text>')
        marks.append(f'<text class="faint" x="{EDGE - 6}" y="{SIDE - at + 4:.1f}" text-anchor="end">{label}</text>')
    for shift in (-math.log10(1.25), 0.0, math.log10(1.25)):
        start, end = place(low + max(0.0, -shift)), place(high - max(0.0, shift))
        rise = shift * scale
        marks.append(
            f'<path class="line" d="M{start:.1f} {SIDE - start - rise:.1f}L{end:.1f} {SIDE - end - rise:.1f}"/>'
        )
    dots = (
        _dot(case, place(math.log10(case.measured_s)), SIDE - place(math.log10(case.predicted_s)), 3.2)
        for case in cases
    )
    names = (
        f'<text x="{SIDE / 2}" y="{SIDE - 12}" text-anchor="middle">measured</text>'
        f'<text transform="translate(14 {SIDE / 2}) rotate(-90)" text-anchor="middle">predicted</text>'
    )
    return _svg(SIDE, SIDE, [*marks, *dots, names])


def _histogram(cases: Sequence[Case]) -> str:
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
        marks.append(f"{shape}<title>{_text(f'{count} rows, {span}')}</title></rect>")
    for tick in (-BOUND, -BOUND / 2, 0.0, BOUND / 2, BOUND):
        x = left + (tick / BIN + half) * step
        marks.append(f'<path class="{"rule" if tick else "zero"}" d="M{x:.1f} 12V{tall - bottom + 4}"/>')
        marks.append(
            f'<text class="faint" x="{x:.1f}" y="{tall - bottom + 18}" text-anchor="middle">{_plus(tick, 0)}</text>'
        )
    marks.append(f'<text x="{left + half * step:.1f}" y="{tall - 10}" text-anchor="middle">residual</text>')
    marks.append(f'<text class="faint" x="{left - 6}" y="18" text-anchor="end">{max(counts)}</text>')
    return _svg(wide, tall, marks)


def _seconds(power: int) -> str:
    """A power of ten of a second as people say it.

    >>> _seconds(-3), _seconds(2)
    ('1 ms', '100 s')
    """
    return f"{10 ** (power % 3)} {('µs', 'ms')[power // 3 + 2]}" if -6 <= power < 0 else f"{10.0**power:g} s"


def _strips(found: Validation, grouping: str) -> str:
    """One strip of dots per group: where its residuals lie, and their mean size."""
    groups = found.by(grouping)
    members: dict[str, list[Case]] = {name: [] for name in groups}
    for case in found.cases:
        members[found.groupings[grouping](case)].append(case)
    width, bottom = WIDE - NAMES - 70, TALL * len(groups) + 6

    def place(residual: float) -> float:
        return NAMES + width * (min(BOUND, max(-BOUND, residual)) / BOUND + 1) / 2

    marks = []
    for tick in (-0.5, -0.25, 0.0, 0.25, 0.5):
        label = {-0.5: "≤ −50 %", 0.5: "≥ +50 %"}.get(tick, _plus(tick, 0))
        marks.append(f'<path class="{"rule" if tick else "zero"}" d="M{place(tick):.1f} 0V{bottom}"/>')
        marks.append(f'<text class="faint" x="{place(tick):.1f}" y="{bottom + 14}" text-anchor="middle">{label}</text>')
    for index, (name, errors) in enumerate(groups.items()):
        middle = TALL * index + TALL / 2 + 3
        marks.append(f'<text x="{NAMES - 12}" y="{middle + 4}" text-anchor="end">{_text(name[:26])}</text>')
        told = f"{percent(errors.mape)}, {errors.n} row{'s' * (errors.n > 1)}"
        marks.append(f'<text class="faint" x="{NAMES + width + 10}" y="{middle + 4}">{told}</text>')
        for number, case in enumerate(members[name]):
            marks.append(_dot(case, place(case.residual), middle + (number * 7 % 11 - 5) * 0.9, 2.4))
    return _svg(WIDE + 50, bottom + 22, marks)


def _svg(width: float, height: float, marks: Iterable[str]) -> str:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg {size} role="img">{"".join(marks)}</svg>'


def _rows(head: Sequence[str], rows: Iterable[Sequence[object]], text: Sequence[int] = ()) -> str:
    """An HTML table; the columns in `text` read from the left."""

    def line(cells: Sequence[object], tag: str) -> str:
        made = (
            f"<{tag}{' class=text' if index in text else ''}>{_text(cell)}</{tag}>" for index, cell in enumerate(cells)
        )
        return f"<tr>{''.join(made)}</tr>"

    return f'<div class="wide"><table>{line(head, "th")}{"".join(line(row, "td") for row in rows)}</table></div>'


def _cells(case: Case) -> tuple[str, ...]:
    return (case.row.id, f"{case.measured_s:.4g} s", f"{case.predicted_s:.4g} s", _signed(case))


def _worst(found: Validation) -> str:
    head = ("row", "measured", "predicted", "residual", "look first at")
    rows = [(*_cells(case), reason) for case, reason in worst(found)]
    return f"<h2>Furthest off</h2>{_rows(head, rows, (0, 4))}" if rows else ""


def _skipped(found: Validation) -> str:
    rows = [(item.id, item.reason) for item in found.skipped]
    table = _rows(("row", "reason"), rows, (0, 1))
    return f"<h2>Skipped</h2><details><summary>{len(rows)} rows</summary>{table}</details>" if rows else ""


def _all(cases: Sequence[Case]) -> str:
    head = ("row", "measured", "predicted", "residual", "low", "high", "chip")
    rows = [(*_cells(case), f"{case.low_s:.4g} s", f"{case.high_s:.4g} s", case.chip) for case in cases]
    return f"<h2>Every row</h2><details><summary>{len(rows)} rows</summary>{_rows(head, rows)}</details>"
