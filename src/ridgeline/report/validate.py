"""Draw a Validation: errors together, by group, and the rows that are furthest off."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ridgeline.calibrate.accuracy import errors_by_set, likely, runs_known
from ridgeline.calibrate.validate import shipped_parameters
from ridgeline.calibrate.validation import Validation, ValidationCase
from ridgeline.core.units import format_quantity, signed_share
from ridgeline.report.cells import DASH, clean, headed, percent

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
        how = "without their own group in the fit" if held == errors.n else usual
        mixed = f"{held} without their own group in the fit, {errors.n - held} with the shipped parameters"
        console.print(Text(f"predicted {how if held in (0, errors.n) else mixed}", style="dim"))
        console.print(_summary(found))
        _draw_memory(found, console)
        for grouping in ("accelerator", "source") if found.kind == "training" else found.groupings:
            console.print()
            console.print(_groups(found, grouping))
        console.print()
        console.print(_worst(found))
    for engine in found.unknown_engines:
        said = f"is not an engine Ridgeline knows: {engine.taken} was taken in its place, in {engine.rows} row(s)"
        console.print(Text.assemble("x_engine ", clean(repr(engine.given[:40])), f" {said}", style="yellow"))
    if found.skipped:
        console.print()
        console.print(_skipped(found))


def _summary(found: Validation) -> Table:
    """All rows, and beside them each set that is some of them."""
    shown = errors_by_set(found)
    table = headed(("", *shown), right=shown)
    for label, figures in (
        ("rows", [str(item.n) for item in shown.values()]),
        ("mean |residual|", [percent(item.mape) for item in shown.values()]),
        ("median", [percent(item.median_ape) for item in shown.values()]),
        ("nine of ten within", [percent(item.p90_ape) for item in shown.values()]),
        ("bias", [_signed(item.bias) for item in shown.values()]),
        ("measured inside the 90 % interval", [percent(item.coverage90) for item in shown.values()]),
    ):
        table.add_row(Text(label, style="dim"), *figures)
    return table


def _draw_memory(found: Validation, console: Console) -> None:
    if memory := found.memory:
        said = (
            f"{percent(memory.mape)} off on average, bias {_signed(memory.bias)}, at most {percent(memory.short)} short"
        )
        console.print(Text(f"peak memory of {memory.n} rows: {said}"))


def _signed(value: float | None) -> str:
    return DASH if value is None else signed_share(value, unit=" %")


def _groups(found: Validation, grouping: str) -> Table:
    figures = ("rows", "mean", "median", "bias", "covered")
    table = headed((grouping, *figures), right=figures)
    for name, item in found.by(grouping).items():
        cells = [percent(item.mape), percent(item.median_ape), _signed(item.bias), percent(item.coverage90)]
        table.add_row(clean(name), str(item.n), *cells)
    return table


def _worst(found: Validation) -> Table:
    training, figures = found.kind == "training", ("measured", "predicted", "residual")
    words = ("model on chips", "look first at") if training else (f"{found.kind.removesuffix('s')} on chips", "notes")
    table = headed(("furthest off", *figures, *words), right=figures)
    for case, reason in worst(found):
        what = f"{case.row['model_name'][:28]} on {case.row['gpus'][:8]} x {case.chip}"
        if found.kind == "serving":
            what = f"{case.row['x_model'][:20]}, {case.row['x_rate']}/s, {case.metric}, {case.row['n']} x {case.chip}"
        elif found.kind == "kernels":
            what = f"{case.row['kernel'][:24]} {case.row['shape'][:36]}, {case.chip}, by {case.assumptions[0]}"
        elif found.kind == "inference":
            what = f"{case.metric[:24]} of {case.row['model'][:24]} on {case.row['n'][:6] or '?'} x {case.chip}"
        elif not training:
            size = format_quantity(case.size or 0.0, "B")
            what = f"{case.row['collective'][:20]}, {size}, {case.row['ranks'][:8]} x {case.chip}"
        unit = "" if case.metric else " s"
        cells = (f"{case.measured_s:.4g}{unit}", f"{case.predicted_s:.4g}{unit}", _signed(case.residual))
        table.add_row(clean(case.row.id[:40]), *cells, clean(what), clean(reason))
    return table


def _skipped(found: Validation) -> Table:
    """Why rows were skipped, most frequent first."""
    reasons: dict[str, list[str]] = {}
    for item in found.skipped:
        reasons.setdefault(item.reason, []).append(item.id)
    table = headed(("skipped", "because", "such as"), right=("skipped",))
    ordered = sorted(reasons, key=lambda reason: -len(reasons[reason]))
    for reason in ordered[:SKIPS]:
        table.add_row(str(len(reasons[reason])), clean(reason[:120]), clean(", ".join(reasons[reason][:2])[:60]))
    if ordered[SKIPS:]:
        rest = sum(len(reasons[reason]) for reason in ordered[SKIPS:])
        table.add_row(str(rest), f"{len(ordered) - SKIPS} other reasons; --json lists them all")
    return table
