"""Turn `ridgeline validate` and `ridgeline fit` into calls of the library.

0    done        1  `fit --check` found a table that is out of date        2  the input cannot be used
130  stopped; `validate` and `fit --with` print what there is so far
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import typer

import ridgeline
from ridgeline.cli.refuse import STOPPED
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import ProgressLine, answer, check_outputs, print_json, progress_bar, write_together
from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import write_text


def validate(
    table: Path | None = None, where: list[str] | None = None, json: bool = False, html: Path | None = None,
    frozen: bool = False, profile: str | None = None, next_: Path | None = None, calibration: Path | None = None,
    anchor: list[str] | None = None,
) -> None:  # fmt: skip
    """Hold predictions against measured runs: how far off, on what, and why."""
    from ridgeline.calibrate.validation import Validation, ValidationReport

    check_outputs(html)
    with progress_bar("validating", json=json, stoppable=True) as wait:
        result = ridgeline.validate(
            table, where or (), frozen=frozen, profile=profile, next_=next_, calibration=calibration,
            anchor=anchor or (), progress=wait,
        )  # fmt: skip
    if not isinstance(result, Validation):
        answer(result, json)
        return
    if html is not None and not wait.stopped:
        from ridgeline.report import page

        write_text(html, page(result, table.name if table else "the bundled rows"))
    answer(ValidationReport(validation=result) if json else result, json)
    _end_if_stopped(wait, json)


def _end_if_stopped(wait: ProgressLine, json: bool) -> None:
    """Say what an answer that was asked for before its end lacks, and leave."""
    if wait.stopped:
        if not json:
            say(f"ridgeline: stopped while {wait.reached}; nothing was written", err=True)
        raise typer.Exit(STOPPED)


def fit(
    json: bool = False, quick: bool = False, check: bool = False, tables: bool = False, nested: bool = False,
    collectives: bool = False, serving: bool = False, own: list[str] | None = None, output: Path | None = None,
) -> None:  # fmt: skip
    """Derive the parameters again from the bundled runs, or from yours beside them; cross-validated, written down."""
    # one thread a process: small factorisations are ten times slower when threads wait for each other
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    from ridgeline import report

    if own:
        _fit_own(own, output, json)
        return
    if output is not None:
        raise InputError(Problem(path="-o", given="no --with", expected="--with RUN, whose calibration it gets"))
    if collectives:
        _fit_collectives(json, write=not quick)
        return
    if serving:
        from ridgeline.calibrate.inference import refit_serving

        with progress_bar("fitting", json=json) as wait:
            sheet = refit_serving(progress=wait)
        _tell_serving(sheet, json)
        return
    if tables:
        _write_current(json)
        return
    if check:
        _check(report.stale_tables(), json)
        return
    root = report.checkout() if nested or not quick else None
    sheet = _fit_rows(json, nested=nested, quick=quick, write=root is not None)
    if root is not None:
        with write_together():
            paths = list(report.write_tables(sheet, root))
        for path in paths:
            say(f"wrote {path.relative_to(root)}", err=True)
    if json:
        print_json(sheet)
    else:
        say(report.figures_table(sheet))


def _fit_rows(json: bool, *, nested: bool, quick: bool, write: bool) -> dict[str, object]:
    """Fit the bundled rows with a progress bar, or choose the priors inside folds; what that is worth.

    Parameters are written where there is a checkout to write to.
    """
    _need_scipy()
    from ridgeline.calibrate.cross_validate import nested_sheet, refit, write_parameters

    with progress_bar("fitting", json=json) as wait:
        if nested:
            return nested_sheet(progress=wait)
        fits = refit(quick=quick, progress=wait)
    if write:
        with write_together():
            write_parameters(fits)
    return fits.accuracy


def _tell_serving(sheet: JsonObject, json: bool) -> None:
    """Errors of serving's parameters by kind of row."""
    if json:
        print_json(sheet)
        return
    say(f"{sheet['predicted']} of {sheet['rows']} rows predicted")
    for kind, errors in sheet["errors"].items():
        say(f"{kind:28} {errors['n']:5} rows   mean {errors['mape']:.1%} off")


def _write_current(json: bool) -> None:
    """Write the accuracy tables as the shipped parameters give them."""
    from ridgeline.report import write_current

    written_paths = list(write_current())
    for path in written_paths:
        say(f"wrote {path}", err=True)
    if json:
        print_json({"kind": "accuracy tables", "written": [str(path) for path in written_paths]})


def _check(stale: Sequence[str], json: bool) -> None:
    """Say which tables are out of date, with exit code 1, or that none is."""
    if json:
        print_json({"kind": "accuracy tables", "stale": list(stale)})
    elif stale:
        for line in stale[:20]:
            say(f"ridgeline: {line}", err=True)
        say("ridgeline: run `ridgeline fit` and commit what it writes", err=True)
    else:
        say("accuracy tables are as the shipped parameters give them")
    if stale:
        raise typer.Exit(1)


def _fit_own(runs: Sequence[str], output: Path | None, json: bool) -> None:
    """Anchor on the user's runs; tell what that is worth, and write the calibration if asked."""
    _need_scipy()
    from ridgeline.calibrate.cross_validate import fit_with, write_calibration
    from ridgeline.report import fit_with_text

    check_outputs(output)
    with progress_bar("fitting", json=json, stoppable=True) as wait:
        fits = fit_with(*runs, progress=wait)
    if output is not None and not wait.stopped:
        write_calibration(fits, output)
    if json:
        print_json(fits)
    else:
        say(fit_with_text(fits))
    _end_if_stopped(wait, json)
    if json:
        return
    if output is not None:
        say(f"{output}: {len(fits.calibration.offsets)} offsets; use it with `--calibration {output}`")


def _fit_collectives(json: bool, *, write: bool) -> None:
    """Fit the numbers of library times, with and without each system; write them unless told otherwise."""
    _need_scipy()
    from ridgeline.calibrate.collectives import fit_collectives, in_sample, write_collectives
    from ridgeline.cost import SHIPPED_LIBRARY_TIMES as SHIPPED

    with progress_bar("fitting", json=json) as wait:
        fits = fit_collectives(progress=wait)
    if write:
        write_collectives(fits)
        say(f"wrote {SHIPPED}", err=True)
    if json:
        print_json(
            {
                "kind": "library times",
                "mape": in_sample(fits),
                "all": dict(fits.values),
                "without": dict(fits.folds),
            }
        )
        return
    for name, value in fits.values.items():
        say(f"{name:24} {value:9.4g}")


def _need_scipy() -> None:
    """Refuse with advice where fits cannot run."""
    try:
        import_module("scipy.optimize")
    except ModuleNotFoundError as missing:
        lack = Problem(path="fit", given=f"no module {missing.name}", expected="scipy", todo="`pip install scipy`")
        raise InputError(lack) from None
