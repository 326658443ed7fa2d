"""Turn `ridgeline analyze`, `query`, `diff` and `explain` into calls of the library.

Standard input and named pipes become plain files first, which readers of traces may go through more than once.

0  done        1  diff: a step slower than `--fail-above` allows, or a report of bringup that is worse
2  the input cannot be used
"""

from __future__ import annotations

import contextlib
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import typer

import ridgeline
from ridgeline.api import refuse_options
from ridgeline.cli.predict import LONG
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import answer, check_outputs, command_line, progress_bar
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import write_text

STDIN = Path("-")
CHUNK = 2**20  # bytes copied at a time
ROWS, FIRST_ROWS = 10_000, 50  # of an answer, where nothing says how many; of a trace that nothing is asked of


def analyze(
    traces: list[Path], policy: str = "all", chip: str | None = None, classes: Path | None = None,
    counters: Path | None = None, unit: str | None = None, html: Path | None = None, html_spans: int = 400_000,
    what_if: list[str] | None = None, model: str | None = None, capture: Path | None = None, json: bool = False,
) -> None:  # fmt: skip
    """Read traces: where the time went, why chips idled, how near ops are to the roofline, and what to change first."""
    from ridgeline.trace import Analysis

    check_outputs(html)
    with plain_files(traces) as paths, progress_bar("reading", json=json) as tell:
        result = ridgeline.analyze(
            *paths, policy=policy, chip=chip, classes=classes, counters=counters, unit=unit, what_if=what_if or [],
            model=model, capture=capture, progress=tell,
        )  # fmt: skip
    if html is not None:
        from ridgeline.report import page, write_trace_page

        if not isinstance(result, Analysis):
            page(result)  # refuses: only traces have one
            return
        packed = write_trace_page(result, html, html_spans, command=command_line())
        merged = "" if packed.kept == packed.of else f" of {packed.of:,}, the others merged"
        say(f"{html}: {packed.kept:,} spans{merged}, {html.stat().st_size / 1e6:.1f} MB", err=True)
    answer(result, json)


def query(
    trace: Path,
    sql: str = "",
    limit: int | None = None,
    seconds: float = 60.0,
    unit: str | None = None,
    json: bool = False,
) -> None:
    """Ask a trace in SQL: a table `spans` with a row a span, a table `counters`; read-only and bounded."""
    with plain_files([trace]) as paths:
        row_limit = limit if limit is not None else ROWS if sql or json else FIRST_ROWS
        result = ridgeline.query(*paths, sql=sql, limit=row_limit, seconds=seconds, unit=unit)
    answer(result, json)


# -- diff -------------------------------------------------------------------------------------------------------------


def diff(
    before: Path, after: list[Path] | None = None, policy: str = "all", classes: Path | None = None,
    settings: list[str] | None = None, html: Path | None = None, fail_above: str | None = None, json: bool = False,
) -> None:  # fmt: skip
    """Compare traces, predictions, or one of each: why B's step differs from A's, in causes that sum to it.

    Several B are each compared with A. Two profiles: which kernels differ beyond their spread. Two reports of bringup:
    what is newly wrong, missing or slower; exit code 1 where B is wrong or lacks an op and A was not.

    0  done        1  slower than --fail-above allows, or a worse report        2  the input cannot be used
    """
    from ridgeline.report import page
    from ridgeline.runtime.bringup import ReportDiff

    limit = None if fail_above is None else _share(fail_above)
    check_outputs(html)
    with plain_files([before, *(after or [])]) as paths:
        result = ridgeline.diff(paths[0], paths[1:], policy=policy, classes=classes, settings=settings or ())
    if html is not None:
        write_text(html, page(result, command_line()))
        say(f"{html}: the comparison", err=True)
    answer(result, json)
    slower = _slower_than(result, limit)
    for before_label, after_label, share in slower:
        text = f"{after_label} is {share:.1%} slower than {before_label}"
        say(f"regression: {text}, more than the {fail_above} that --fail-above allows", err=True)
    if slower or (isinstance(result, ReportDiff) and result.worse):
        raise typer.Exit(1)


def _slower_than(result: object, limit: float | None) -> list[tuple[str, str, float]]:
    """Both labels and the share of every comparison whose B takes longer than a limit allows."""
    from ridgeline.calibrate.prediction_diff import PredictionDiff, PredictionDiffs
    from ridgeline.trace import Diff, DiffRuns

    diffs = result.runs if isinstance(result, (DiffRuns, PredictionDiffs)) else (result,)
    return [
        (diff.before.label, diff.after.label, diff.slower)
        for diff in diffs
        if limit is not None and isinstance(diff, (Diff, PredictionDiff)) and diff.slower > limit
    ]


def _share(text: str) -> float:
    """A share as people write it, 3% or 0.03.

    >>> _share("3%"), _share("0.5")
    (0.03, 0.5)
    """
    try:
        value = float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 100:
        raise InputError(
            Problem(path="--fail-above", given=repr(text), expected="a share from 0 up, such as 3% or 0.03")
        )
    return value


# -- explain ----------------------------------------------------------------------------------------------------------


def explain(
    scenario: Path, traces: list[Path] | None = None, output: Path | None = None, policy: str = "all",
    classes: Path | None = None, settings: list[str] | None = None, calibration: Path | None = None,
    profile: str | None = None, anchor: Path | None = None, force: bool = False, json: bool = False,
) -> None:  # fmt: skip
    """Compare a scenario with a trace: what accounts for the gap. Requests under load: why the slow ones are slow."""
    from ridgeline.calibrate.anchor import write_residuals
    from ridgeline.calibrate.explain import Explanation

    check_outputs(output)
    if not traces:
        refuse_options("a trace with it: residuals are of a prediction and a trace", f"drop -o {output}", output=output)
    with plain_files(traces or []) as paths, progress_bar("explaining", LONG, json=json) as tell:
        result = ridgeline.explain(
            scenario, *paths, policy=policy, classes=classes, settings=settings or (), calibration=calibration,
            profile=profile, anchor=anchor, force=force, progress=tell,
        )  # fmt: skip
    if output is not None:
        if not isinstance(result, Explanation):
            problem = Problem(
                path="-o", given="results of a load generator", expected="a trace of a step, which has residuals",
                todo=f"drop -o {output}",
            )  # fmt: skip
            raise InputError(problem)
        write_residuals(result, output)
    answer(result, json)
    if output is not None and isinstance(result, Explanation) and not json:
        say(f"{output}: {len(result.parts)} residuals; fit them with `ridgeline fit --with {output}`")


# -- pipes ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def plain_files(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """The paths with `-` and every pipe copied to a temporary file, which is removed afterwards.

    A copy may take half of the free space of the temporary folder.
    """
    if not any(path == STDIN or _is_pipe(path) for path in paths):
        yield list(paths)
        return
    with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
        copies = {path: _copy_stream(path, Path(folder) / str(place)) for place, path in enumerate(paths)}
        try:
            yield [copies[path] for path in paths]
        except InputError as wrong:
            raise InputError([_rename_problem(problem, copies) for problem in wrong.problems] or str(wrong)) from None


def _rename_problem(problem: Problem, copies: Mapping[Path, Path]) -> Problem:
    """The problem with the name that was given in place of the copy's."""
    source = next((path for path, copy in copies.items() if problem.where == str(copy)), None)
    return problem if source is None else replace(problem, where=_name(source))


def _is_pipe(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # told by whoever reads it
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _copy_stream(path: Path, folder: Path) -> Path:
    """A plain file with what a pipe holds; a plain file itself."""
    if path != STDIN and not _is_pipe(path):
        return path
    folder.mkdir()
    copy = folder / ("stdin" if path == STDIN else path.name)
    if path == STDIN and sys.stdin.isatty():
        raise _refuse(path, "a terminal", "a trace", "pipe one in: zcat trace.json.gz | ridgeline analyze -")
    try:
        stream = contextlib.nullcontext(sys.stdin.buffer) if path == STDIN else path.open("rb")
        with copy.open("wb") as target, stream as source:
            room = shutil.disk_usage(folder).free // 2
            while chunk := source.read(CHUNK):
                room -= len(chunk)
                if room < 0:
                    given_text, todo = "more than half of the free space holds", "set TMPDIR, or name a file"
                    raise _refuse(path, given_text, "a smaller trace", todo)
                target.write(chunk)
    except OSError as wrong:
        raise _refuse(path, wrong.strerror or "unreadable", "a trace that can be read", "name a file") from None
    return copy


def _refuse(path: Path, given: str, expected: str, todo: str) -> InputError:
    return InputError(Problem(path="", given=given, expected=expected, todo=todo, where=_name(path)))


def _name(path: Path) -> str:
    return "standard input" if path == STDIN else str(path)
