"""Turn `ridgeline validate` and `ridgeline fit` into calls of the library.

0    done        1  `fit --check` found a table that is out of date        2  the input cannot be used
130  stopped; `validate` and `fit --with` print what there is so far
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import typer

import ridgeline
from ridgeline.cli.refuse import STOPPED
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import ProgressLine, answer, check_outputs, command_line, print_json, progress_bar
from ridgeline.core.files import write_text
from ridgeline.core.waits import write_together


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
        if html is not None:
            from ridgeline.report import page

            page(result)  # refuses: only a validation has one
        answer(result, json)
        return
    if html is not None and not wait.stopped:
        from ridgeline.report import page

        write_text(html, page(result, table.name if table else "the bundled rows", command_line()))
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
    from ridgeline.report import checkout, figures_table, stale_tables, write_tables

    if own:
        _fit_own(own, output, json)
        return
    if collectives:
        _fit_collectives(json, write=not quick)
        return
    if serving:
        _refit_serving(json)
        return
    if tables and output is None:
        _write_current(json)
        return
    if check and output is None:
        _check(stale_tables(), json)
        return
    root = checkout() if nested or not quick else None
    with progress_bar("fitting", json=json) as wait:
        fits = ridgeline.fit(quick=quick, nested=nested, write=root is not None, output=output, progress=wait)
    sheet = fits if isinstance(fits, dict) else fits.accuracy
    if root is not None:
        with write_together():
            paths = list(write_tables(sheet, root))
        for path in paths:
            say(f"wrote {path.relative_to(root)}", err=True)
    if json:
        print_json(sheet)
    else:
        say(figures_table(sheet))


def _refit_serving(json: bool) -> None:
    """Derive the parameters of serving again, write them, and tell errors by kind of row."""
    with progress_bar("fitting", json=json) as wait:
        sheet = ridgeline.fit(serving=True, progress=wait)
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
    from ridgeline.report import fit_with_text

    check_outputs(output)
    with progress_bar("fitting", json=json, stoppable=True) as wait:
        fits = ridgeline.fit(*runs, output=output, progress=wait)
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
    from ridgeline.calibrate.collectives import in_sample
    from ridgeline.cost.library_times import SHIPPED_LIBRARY_TIMES

    with progress_bar("fitting", json=json) as wait:
        fits = ridgeline.fit(collectives=True, write=write, progress=wait)
    if write:
        say(f"wrote {SHIPPED_LIBRARY_TIMES}", err=True)
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
