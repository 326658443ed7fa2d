"""Draw a Validation: errors together, by group, and the rows that are furthest off."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ridgeline.calibrate.cross_validate import OwnFit
from ridgeline.calibrate.folds import shipped_parameters
from ridgeline.calibrate.next_measurement import NextMeasurements
from ridgeline.calibrate.validation import Validation, ValidationCase, errors_by_set, likely, runs_known
from ridgeline.core.units import HOUR, format_quantity, signed_share
from ridgeline.report.cells import DASH, clean, header_table, percent
from ridgeline.report.html import (
    Scale,
    details,
    document,
    dot,
    escape_text,
    facts,
    label,
    page_style,
    rule,
    section,
    svg,
    table,
)
from ridgeline.serving.measured import Replay

WORST = 10  # rows that are listed with a guess at the reason
SKIPS = 5  # reasons for skipping that are listed


def worst(found: Validation, most: int = WORST) -> list[tuple[ValidationCase, str]]:
    """The cases that are furthest off, each with a guess why."""
    known = runs_known(shipped_parameters()) if found.kind == "training" else Counter()
    cases = sorted(found.cases, key=lambda case: (-abs(case.residual), case.row.id))[:most]
    return [(case, likely(case, known) if found.kind == "training" else case.row["notes"][:80]) for case in cases]


def draw_validation(found: Validation, console: Console) -> None:
    """Print the summary, errors by accelerator and source, and the worst rows."""
    errors = found.errors
    held = sum(case.cross_validated for case in found.cases)
    what = "metrics of rows" if found.kind == "serving" else "rows"
    console.print(Text(f"{errors.n} {what} predicted, {len(found.skipped)} skipped", style="bold"))
    if errors.n:
        usual = "with the shipped parameters" if found.kind == "training" else "with the chips to themselves"
        usual = "with what profiles, libraries and the fit say" if found.kind in ("kernels", "inference") else usual
        usual = "with the shipped parameters, request by request" if found.kind == "serving" else usual
        usual = "with the shipped parameters, which most of these rows were fitted by" if found.kind == "rl" else usual
        how = "without their own group in the fit" if held == errors.n else usual
        mixed = f"{held} without their own group in the fit, {errors.n - held} with the shipped parameters"
        console.print(Text(f"predicted {how if held in (0, errors.n) else mixed}", style="dim"))
        console.print(_summary(found))
        if memory := found.memory:
            said = (
                f"{percent(memory.mape)} off on average, bias {_signed_percent(memory.bias)}, at most "
                f"{percent(memory.short)} short"
            )
            console.print(Text(f"peak memory of {memory.n} rows: {said}"))
        for grouping in ("accelerator", "source") if found.kind == "training" else found.groupings:
            console.print()
            figures = ("rows", "mean", "median", "bias", "covered")
            table = header_table((grouping, *figures), right=figures)
            for name, item in found.by(grouping).items():
                cells = [
                    percent(item.mape),
                    percent(item.median_ape),
                    _signed_percent(item.bias),
                    percent(item.coverage90),
                ]
                table.add_row(clean(name), str(item.n), *cells)
            console.print(table)
        for drawing in (*([_pair_table(found)] if found.pairs else ()), _worst(found)):
            console.print(Text(""))
            console.print(drawing)
    for engine in found.unknown_engines:
        sentence = f"is not an engine Ridgeline knows: {engine.taken} was taken in its place, in {engine.rows} row(s)"
        console.print(Text.assemble("x_engine ", clean(repr(engine.given[:40])), f" {sentence}", style="yellow"))
    if found.skipped:
        console.print()
        console.print(_skipped_table(found))


def _summary(found: Validation) -> Table:
    """All rows, and beside them each set that is some of them."""
    drawing = errors_by_set(found)
    table = header_table(("", *drawing), right=drawing)
    for figure, figures in (
        ("rows", [str(item.n) for item in drawing.values()]),
        ("mean |residual|", [percent(item.mape) for item in drawing.values()]),
        ("median", [percent(item.median_ape) for item in drawing.values()]),
        ("nine of ten within", [percent(item.p90_ape) for item in drawing.values()]),
        ("bias", [_signed_percent(item.bias) for item in drawing.values()]),
        ("measured inside the 90 % interval", [percent(item.coverage90) for item in drawing.values()]),
    ):
        table.add_row(Text(figure, style="dim"), *figures)
    return table


def _signed_percent(value: float | None) -> str:
    return DASH if value is None else signed_share(value, unit=" %")


def _worst(found: Validation) -> Table:
    training, figures = found.kind == "training", ("measured", "predicted", "residual")
    words = ("model on chips", "look first at") if training else (f"{found.kind.removesuffix('s')} on chips", "notes")
    table = header_table(("furthest off", *figures, *words), right=figures)
    for case, reason in worst(found):
        what = f"{case.row['model_name'][:28]} on {case.row['gpus'][:8]} x {case.chip}"
        if found.kind == "serving":
            what = f"{case.row['x_model'][:20]}, {case.row['x_rate']}/s, {case.metric}, {case.row['n']} x {case.chip}"
        elif found.kind == "rl":
            where = case.row["x_placement"] or "weight sync"
            what = f"{case.metric} of {case.row['x_model'][:24]} on {case.row['n'] or '?'} x {case.chip}, {where}"
        elif found.kind == "kernels":
            what = f"{case.row['kernel'][:24]} {case.row['shape'][:36]}, {case.chip}, by {case.assumptions[0]}"
        elif found.kind == "inference":
            what = f"{case.metric[:24]} of {case.row['model'][:24]} on {case.row['n'][:6] or '?'} x {case.chip}"
        elif not training:
            size = format_quantity(case.size or 0.0, "B")
            what = f"{case.row['collective'][:20]}, {size}, {case.row['ranks'][:8]} x {case.chip}"
        unit = "" if case.metric else " s"
        cells = (f"{case.measured_s:.4g}{unit}", f"{case.predicted_s:.4g}{unit}", _signed_percent(case.residual))
        table.add_row(clean(case.row.id[:40]), *cells, clean(what), clean(reason))
    return table


def _pair_table(found: Validation) -> Table:
    """Step time of rows that overlap over that of the synchronous row they are compared with."""
    right = ("measured", "predicted")
    table = header_table(("asynchronous", "over", *right, "who is faster"), right=right)
    for pair in found.pairs:
        verdict = Text("agreed") if pair.agrees else Text("wrong", style="red")
        ratios = (f"{pair.measured_ratio:.2f}", f"{pair.predicted_ratio:.2f}")
        table.add_row(clean(pair.other[:40]), clean(pair.sync[:40]), *ratios, verdict)
    return table


def _skipped_table(found: Validation) -> Table:
    """Why rows were skipped, most frequent first."""
    reasons: dict[str, list[str]] = {}
    for item in found.skipped:
        reasons.setdefault(item.reason, []).append(item.id)
    table = header_table(("skipped", "because", "such as"), right=("skipped",))
    ordered = sorted(reasons, key=lambda reason: -len(reasons[reason]))
    for reason in ordered[:SKIPS]:
        table.add_row(str(len(reasons[reason])), clean(reason[:120]), clean(", ".join(reasons[reason][:2])[:60]))
    if ordered[SKIPS:]:
        rest = sum(len(reasons[reason]) for reason in ordered[SKIPS:])
        table.add_row(str(rest), f"{len(ordered) - SKIPS} other reasons; --json lists them all")
    return table


# -- next measurement -------------------------------------------------------------------------------------------------


def draw_next(found: NextMeasurements, console: Console) -> None:
    """Print the present interval, and what each measurement would leave of it."""
    now = found.prediction
    console.print(clean(now.scenario.name or now.scenario.model.id), style="bold")
    console.print(Text(f"step {_seconds(now.step_time_s)}, now {_range(now.interval.low, now.interval.high)}"))
    table = header_table(("measure", "", "interval then", "width", "chip time", "pins"))
    for candidate in found.candidates:
        seconds = candidate.chip_seconds
        spent = f"{seconds / HOUR:.3g} h" if seconds >= HOUR else _seconds(seconds)
        then = _range(candidate.low_s, candidate.high_s)
        table.add_row(
            candidate.kind, clean(candidate.name), then, f"{candidate.width:.1%}", spent, ", ".join(candidate.pins)
        )
    console.print(table)
    console.print(
        Text("width: of the interval then over now; chip time: rough; --json tells how to measure each", "dim")
    )


def _range(low: float, high: float) -> str:
    return f"{_seconds(low)} to {_seconds(high)}"


def _seconds(value: float) -> str:
    return format_quantity(value, "s", 3)


# -- fit with ---------------------------------------------------------------------------------------------------------


SHOWN = 20
COLUMNS = ("before_s", "held_out_s", "after_s")


def fit_with_text(found: OwnFit) -> str:
    """The runs with the residuals of the three predictions; without colours."""
    wide = max([len(case.id) for case in found.cases[:SHOWN]] + [4])
    lines = [f"{'run':{wide}}  {'measured':>9}  {'before':>8}  {'held out':>8}  {'after':>8}"]
    for case in found.cases[:SHOWN]:
        off = "  ".join(f"{signed_share(getattr(case, which) / case.measured_s - 1):>8}" for which in COLUMNS)
        lines.append(f"{case.id:{wide}}  {format_quantity(case.measured_s, 's'):>9}  {off}")
    if len(found.cases) > SHOWN:
        lines.append(f"and {len(found.cases) - SHOWN} more")
    mean = "  ".join(f"{found.mape(which):>8.1%}" for which in COLUMNS)
    lines.append(f"{'mean':{wide}}  {'':>9}  {mean}")
    lines.append(
        "before: the prior; held out: anchored on runs of other configurations; after: anchored on all of them"
    )
    lines += [f"not used: {one.id}: {one.reason}" for one in found.skipped[:SHOWN]]
    return "\n".join(lines)


# -- replay -----------------------------------------------------------------------------------------------------------


def draw_replay(found: Replay, console: Console) -> None:
    """Print the verdict, and the first difference where there is one."""
    version = f" {clean(found.version)}" if found.version else ""
    console.print(Text(f"{found.engine}{version}: {found.requests:,} requests, {found.steps:,} recorded steps"))
    if found.first_difference is None:
        console.print(Text("every decision is the recorded one", "green"))
        return
    first = found.first_difference
    console.print(Text(f"{found.differing_steps:,} steps differ; first step {first.step}, {clean(first.field)}"))
    console.print(Text(f"  recorded   {clean(repr(first.recorded)[:200])}"))
    console.print(Text(f"  simulated  {clean(repr(first.simulated)[:200])}"))


# -- validate html ----------------------------------------------------------------------------------------------------


SIDE, EDGE = 540, 56  # of the scatter, in pixels
WIDE, TALL, NAMES = 760, 22, 190  # of a strip of residuals
BOUND = 0.5  # residuals beyond are drawn at the rim
BIN = 0.05  # of the histogram


def validation_page(found: Validation, of: str) -> str:
    """The whole page; every piece of text from a table is escaped."""
    errors = found.errors
    figures = (
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
        f"<h2>Residuals by {escape_text(by)}</h2><figure>{_strips(found, by)}</figure>" for by in found.groupings
    )
    rows = [(*_cells(case), reason) for case, reason in worst(found)]
    furthest = section("Furthest off", ("row", "measured", "predicted", "residual", "look first at"), rows, text=(0, 4))
    body = (
        f"<h1>Predicted against measured: {escape_text(of)}</h1>{facts(figures)}"
        f"<p>Residual = predicted / measured − 1. Dots: {legend}</p>"
        f'<figure><div class="side">{_scatter(found.cases)}{_histogram(found.cases)}</div><figcaption>Left: seconds of '
        f"a {what}, both axes logarithmic; dashed lines at ±25 %. Right: rows by residual. Point at a dot for its row."
        f"</figcaption></figure>{strips}{furthest}{_skipped_section(found)}{_all(found.cases)}"
    )
    return document(title=f"Ridgeline: {of}", body=body, style=page_style("validate"))


def _dot(case: ValidationCase, x: float, y: float, radius: float) -> str:
    seen, made = (f"{value:.4g}{_unit(case)}" for value in (case.measured_s, case.predicted_s))
    sentence = f"{case.row.id}: {seen} measured, {made} predicted ({_signed_residual(case)})"
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
    place = Scale(low=low, high=max(high, low + 1), start=EDGE, end=SIDE - EDGE)
    marks = []
    for power in range(low, high + 1):
        at, told = place(power), _power_of_ten_label(power)
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
    return f"{10 ** (power % 3)} {('µs', 'ms')[power // 3 + 2]}" if -6 <= power < 0 else f"{10.0**power:g} s"


def _strips(found: Validation, grouping: str) -> str:
    """One strip of dots per group: where its residuals lie, and their mean size."""
    groups, members = found.by(grouping), found.cases_by(grouping)
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
