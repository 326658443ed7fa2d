"""Turn `ridgeline validate` and `ridgeline fit` into calls of the library.

0  done        1  `fit --check` found a table that is out of date        2  the input cannot be used
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

import ridgeline
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import answer, check_outputs, command_line, print_json, progress_bar
from ridgeline.core.files import write_text


def validate(
    table: Path | None = None, where: list[str] | None = None, json: bool = False, html: Path | None = None,
    frozen: bool = False, profile: str | None = None, next_: Path | None = None, calibration: Path | None = None,
    anchor: list[str] | None = None,
) -> None:  # fmt: skip
    """Hold predictions against measured runs: how far off, on what, and why."""
    from ridgeline.calibrate.validation import Validation, ValidationReport

    check_outputs(html)
    result = ridgeline.validate(
        table, where or (), frozen=frozen, profile=profile, next_=next_, calibration=calibration, anchor=anchor or ()
    )
    if not isinstance(result, Validation):
        answer(result, json)
        return
    if html is not None:
        from ridgeline.report import page

        write_text(html, page(result, table.name if table else "the bundled rows", command_line()))
    answer(ValidationReport(validation=result) if json else result, json)


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
    if collectives:
        _fit_collectives(json, write=not quick)
        return
    if serving:
        _refit_serving(json)
        return
    if tables and output is None:
        for path in report.write_current():
            say(f"wrote {path}", err=True)
        return
    if check and output is None:
        _check(report.stale_tables())
        return
    root = report.checkout() if nested or not quick else None
    with _progress() as tell:
        fits = ridgeline.fit(quick=quick, nested=nested, write=root is not None, output=output, progress=tell)
    sheet = fits if isinstance(fits, dict) else fits.accuracy
    if root is not None:
        for path in report.write_tables(sheet, root):
            say(f"wrote {path.relative_to(root)}", err=True)
    if json:
        print_json(sheet)
    else:
        say(report.figures_table(sheet))


def _refit_serving(json: bool) -> None:
    """Derive the parameters of serving again, write them, and tell errors by kind of row."""
    sheet = ridgeline.fit(serving=True)
    if json:
        print_json(sheet)
        return
    say(f"{sheet['predicted']} of {sheet['rows']} rows predicted")
    for kind, errors in sheet["errors"].items():
        say(f"{kind:28} {errors['n']:5} rows   mean {errors['mape']:.1%} off")


def _check(stale: Sequence[str]) -> None:
    """Say which tables are out of date, with exit code 1, or that none is."""
    for line in stale[:20]:
        say(f"ridgeline: {line}", err=True)
    if stale:
        say("ridgeline: run `ridgeline fit` and commit what it writes", err=True)
        raise typer.Exit(1)
    say("accuracy tables are as the shipped parameters give them")


def _fit_own(runs: Sequence[str], output: Path | None, json: bool) -> None:
    """Anchor on the user's runs; tell what that is worth, and write the calibration if asked."""
    from ridgeline.report import fit_with_text

    check_outputs(output)
    with _progress() as tell:
        fits = ridgeline.fit(*runs, output=output, progress=tell)
    if json:
        print_json(fits)
        return
    say(fit_with_text(fits))
    if output is not None:
        say(f"{output}: {len(fits.calibration.offsets)} offsets; use it with `--calibration {output}`")


def _fit_collectives(json: bool, *, write: bool) -> None:
    """Fit the numbers of library times, with and without each system; write them unless told otherwise."""
    from ridgeline.calibrate.collectives import in_sample
    from ridgeline.cost.library_times import SHIPPED_LIBRARY_TIMES

    with _progress() as tell:
        fits = ridgeline.fit(collectives=True, write=write, progress=tell)
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


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    with progress_bar("fitting") as tell:
        yield lambda what, done, total: tell(done, total, what)
