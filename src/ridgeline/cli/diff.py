"""Turn `ridgeline diff` into calls of the library: traces, predictions, profiles, reports of bringup.

0  done        1  a step slower than `--fail-above` allows, or a report of bringup that is worse
2  the input cannot be used
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.spool import plain_files
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import Json, Settings, console, print_json
from ridgeline.cli.trace import Classes, Policy

if TYPE_CHECKING:
    from ridgeline.trace import Diff


def register(app: typer.Typer) -> None:
    """Give the command line the verb of this module."""
    app.command()(diff)


def diff(
    before: Annotated[
        Path,
        typer.Argument(
            metavar="A", help="A trace, a folder of ranks, a scenario file, a profile, or a report of bringup."
        ),
    ],
    after: Annotated[
        list[Path] | None,
        typer.Argument(metavar="B...", help="The same; each step is compared with A's. Or none, and --set."),
    ] = None,
    policy: Policy = "all",
    classes: Classes = None,
    settings: Settings = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the comparison as a page: one file, works offline.")
    ] = None,
    fail_above: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Exit with 1 when a step of B takes more than this above A's, such as 3%."),
    ] = None,
    json: Json = False,
) -> None:
    """Compare traces, predictions, or one of each: why B's step differs from A's, in causes that sum to it.

    Several B are each compared with A. Two profiles: which kernels differ beyond their spread. Two reports of bringup:
    what is newly wrong, missing or slower; exit code 1 where B is wrong or lacks an op and A was not.

    0  done        1  slower than --fail-above allows, or a worse report        2  the input cannot be used
    """
    from ridgeline.core.files import refuse_unwritable, write_text
    from ridgeline.report.diff import draw_diff, draw_runs
    from ridgeline.trace import DiffRuns

    limit = None if fail_above is None else _share(fail_above)
    others = after or []
    if len(others) == 1 and _are_reports(before, others[0]):
        _diff_reports(before, others[0], json)
        return
    if len(others) == 1 and _are_profiles(before, others[0]):
        _diff_profiles(before, others[0], json)
        return
    if html is not None:
        refuse_unwritable(html)  # before the work
    diffs = _diffs(before, others, policy=policy, classes=classes, settings=settings)
    if html is not None:
        from ridgeline.report.diff import diff_page

        write_text(html, diff_page(diffs))
        say(f"{html}: {len(diffs)} comparison(s)", err=True)
    if json:
        print_json(diffs[0] if len(diffs) == 1 else DiffRuns(runs=tuple(diffs)))
    else:
        for diff in diffs:
            draw_diff(diff, console())
        if len(diffs) > 1:
            draw_runs(diffs, console())
    slower = [diff for diff in diffs if limit is not None and diff.slower > limit]
    for diff in slower:
        text = f"{diff.after.label} is {diff.slower:.1%} slower than {diff.before.label}"
        say(f"regression: {text}, more than the {fail_above} that --fail-above allows", err=True)
    if slower:
        raise typer.Exit(1)


def _diffs(before: Path, others: Sequence[Path], **choices: Any) -> list[Diff]:
    """A against every B, or a scenario against itself as settings change it."""
    from ridgeline.calibrate.explain import diff as library

    choices["settings"] = choices["settings"] or ()
    with plain_files([before, *others]) as paths:
        if len(paths) == 1:
            return [library(paths[0], **choices)]
        return [library(paths[0], path, **choices) for path in paths[1:]]


def _share(text: str) -> float:
    """A share as people write it, 3% or 0.03.

    >>> _share("3%"), _share("0.5")
    (0.03, 0.5)
    """
    from ridgeline.core.errors import InputError, Problem

    try:
        value = float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 100:
        raise InputError(
            Problem(path="--fail-above", given=repr(text), expected="a share from 0 up, such as 3% or 0.03")
        )
    return value


def _are_reports(*paths: Path) -> bool:
    from ridgeline.runtime import is_report

    return all(path.is_file() and is_report(path) for path in paths)


def _diff_reports(before: Path, after: Path, json: bool) -> None:
    from ridgeline.report.bringup import draw_bringup_diff
    from ridgeline.runtime import diff_reports, read_report

    diff = diff_reports(read_report(before), read_report(after))
    print_json(diff) if json else draw_bringup_diff(diff, console())
    raise typer.Exit(1 if diff.worse else 0)


def _are_profiles(*paths: Path) -> bool:
    from ridgeline.cost import is_profile

    return all(is_profile(path) for path in paths)


def _diff_profiles(before: Path, after: Path, json: bool) -> None:
    from ridgeline.cost import diff_profiles, read_profile
    from ridgeline.report.roofline import draw_profile_diff

    diff = diff_profiles(read_profile(before), read_profile(after))
    print_json(diff) if json else draw_profile_diff(diff, console())
