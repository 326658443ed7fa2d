"""Draw a Validation: errors together, by group, and the rows that are furthest off."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ridgeline.calibrate.cross_validate import OwnFit
from ridgeline.calibrate.folds import shipped_parameters
from ridgeline.calibrate.next_measurement import NextMeasurements
from ridgeline.calibrate.validation import Validation, ValidationCase, errors_by_set, likely, runs_known
from ridgeline.core.units import HOUR, format_quantity, signed_share
from ridgeline.report.cells import DASH, clean, header_table, percent
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
        elif found.kind == "fusion":
            sizes = f"{case.row['tokens'][:8]} x {case.row['width'][:8]}"
            what = f"{case.row['region'][:32]} {sizes}, {case.engine} {case.row['direction'][:8]}, {case.chip}"
        elif not training:
            size = format_quantity(case.size or 0.0, "B")
            what = f"{case.row['collective'][:20]}, {size}, {case.row['ranks'][:8]} x {case.chip}"
        unit = "" if case.metric else " s"
        cells = (f"{case.measured_s:.4g}{unit}", f"{case.predicted_s:.4g}{unit}", _signed_percent(case.residual))
        table.add_row(clean(case.row.id[:40]), *cells, clean(what), clean(reason))
    return table


def _pair_table(found: Validation) -> Table:
    """Time of one row of each pair over that of the other: what overlaps, or what a compiler joined.

    Of fused regions only what was said wrong is listed, under how many were right.
    """
    right, regions = ("measured", "predicted"), found.kind == "fusion"
    wrong = [pair for pair in found.pairs if not pair.agrees]
    name = f"compiled: {len(found.pairs) - len(wrong)} of {len(found.pairs)} right" if regions else "asynchronous"
    table = header_table((name, "over", *right, "who is faster"), right=right)
    for pair in wrong if regions else found.pairs:
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
