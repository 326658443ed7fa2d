"""Turn `ridgeline export` and `ridgeline import` into calls of the library.

0  done        1  the files would not run as planned: no longer fit, slower or faster, no run at all (--allow-misfit);
                  options that were not read change the step that was imported, or may (--accept-unread)
               2  the scenario cannot be exported, the files cannot be read, or a file would be overwritten
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import ridgeline
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import print_json, progress_bar
from ridgeline.core.encode import plain
from ridgeline.core.errors import InputError, Problem, UnitError
from ridgeline.core.files import write_text
from ridgeline.run_api import MOST, one_line, refuse_existing, scenario_text, unread_lines
from ridgeline.targets import IDS, LAUNCHERS

if TYPE_CHECKING:
    from ridgeline.targets import Export, Imported

MISFIT = 1  # exit code: the files would not run as planned
DOUBTFUL = 1  # exit code: what was read is not quite what the files mean, or may not be


To = Annotated[str, typer.Option("--to", metavar="TARGET", help=f"Software to write for: {', '.join(sorted(IDS))}.")]
Launcher = Annotated[
    str | None, typer.Option("--launcher", metavar="NAME", help=f"Who starts it: {', '.join(LAUNCHERS)}.")
]


def export(
    scenario: Path, to: To, output: Path | None = None, launcher: Launcher = None, job: list[str] | None = None,
    settings: list[str] | None = None, allow_misfit: bool = False, force: bool = False, json: bool = False,
) -> None:  # fmt: skip
    """Write a scenario as a target's own configuration and launch scripts; say what the target cannot express.

    The files are read again and predicted: where they would no longer fit, or take over 5 % more or less than the plan,
    nothing is written and the exit code is 1.
    """
    exported_files = ridgeline.export(
        scenario, to=to, launcher=launcher, job=_variables(job or [], "--job"), settings=settings or (), output=output,
        allow_misfit=allow_misfit, force=force,
    )  # fmt: skip
    refused = exported_files.check is not None and exported_files.check.refuses and not allow_misfit
    if json:
        print_json(exported_files)
    elif refused:
        for line in _refusal(exported_files):
            say(line, err=True)
    else:
        _tell(exported_files, output)
    if refused:
        raise typer.Exit(MISFIT)


def _tell(found: Export, output: Path | None) -> None:
    """What was written, the account in figures, both predictions, and what is lost."""
    from ridgeline.targets import check_lines

    for name, text in found.files.items():
        say(f"wrote {output / name}" if output is not None else f"==> {name} <==\n{text}")
    say(f"{found.target} {found.version}: {len(found.expressed)} decisions written, {len(found.implied)} implied")
    for line in check_lines(found.check) if found.check else ():
        say(line)
    for line in lost_lines(found):
        say(line, err=True)


def _refusal(found: Export) -> Iterator[str]:
    """Why the files would not run as planned: both figures, and the decisions that cause it."""
    from ridgeline.targets import check_lines

    check = found.check
    assert check is not None
    outcome_words = {"misfit": "no longer fit in memory", "unreadable": "describe no run that can be predicted"}
    way = (
        f"are {abs(check.change):.1%} {'slower' if check.change > 0 else 'faster'}" if check.change is not None else ""
    )
    yield f"refused: the {found.target} files {outcome_words.get(check.verdict, way)}; nothing was written"
    yield from (f"  {line}" for line in check_lines(check))
    for lost in check.causes[:MOST]:
        yield one_line(f"  because {lost.path} = {plain(lost.value)}: {lost.why}")
    lost_paths = {lost.path for lost in check.causes}
    for item in [differ for differ in check.differs if differ.path not in lost_paths][:MOST]:
        yield one_line(f"  differs {item.path}: planned {plain(item.planned)}, written {plain(item.written)}")
    yield "  choose a plan or a target that carries these, or add --allow-misfit"


def lost_lines(found: Export) -> Iterator[str]:
    """A line for each reason, with the decisions it costs."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for part in found.lost:
        fate = "yours" if part.yours else "lost"
        reasons.setdefault((fate, part.why), []).append(f"{part.path} = {plain(part.value)}")
    for (fate, why), parts in reasons.items():
        rest = f", and {len(parts) - MOST} more (LEDGER.md lists them)" if len(parts) > MOST else ""
        yield one_line(f"{fate} {', '.join(parts[:MOST])}{rest}: {why}")


def import_run(
    source: Path, target: str | None = None, system: str | None = None, model: str | None = None,
    seq: str | None = None, arguments: list[str] | None = None, environment: list[str] | None = None,
    output: Path | None = None, accept_unread: bool = False, force: bool = False, json: bool = False,
) -> None:  # fmt: skip
    """Read a run's configuration into a scenario that `ridgeline predict` takes; say what could not be read.

    Where options that were not read change the step, or may, each is named, the exit code is 1 and no file is written;
    with --accept-unread the scenario names them and its prediction is wider by what they may decide.
    """
    with progress_bar("reading", json=json) as wait:
        imported_run = ridgeline.import_run(
            source, target=target, system=system, model=model, seq=_tokens(seq), arguments=arguments or (),
            environment=_variables(environment or []), progress=wait,
        )  # fmt: skip
    text = scenario_text(imported_run)
    is_doubtful = bool(imported_run.doubtful) and not accept_unread
    if output is not None and not is_doubtful:
        refuse_existing([output], force)
        write_text(output, text)
    if json:
        print_json(imported_run)
    else:
        _tell_import(imported_run, text, output, is_doubtful)
    if is_doubtful:
        raise typer.Exit(DOUBTFUL)


def _tell_import(found: Imported, text: str, output: Path | None, is_doubtful: bool) -> None:
    """The scenario or where it is, what was assumed, and what was not read."""
    if output is None:
        say(text, nl=False)
    elif not is_doubtful:
        say(f"wrote {output}")
    for note in found.assumptions:
        say(f"assumed {one_line(note)}", err=True)
    for line in unread_lines(found):
        say(line, err=True)
    if is_doubtful:
        unwritten = "; nothing was written" if output is not None else ""
        say(f"{len(found.doubtful)} options change the step, or may, and were not read{unwritten}", err=True)
        say("  change them in the scenario where you know what they mean, or add --accept-unread", err=True)


def _tokens(given: str | None) -> int | None:
    """`4096` or `128k` as a number."""
    from ridgeline.core.units import parse_count

    try:
        return parse_count(given) if given is not None else None
    except UnitError:
        raise InputError(Problem(path="--seq", given=str(given)[:40], expected="tokens, 8192 or 8k")) from None


def _variables(given: list[str], option: str = "--env") -> dict[str, str]:
    """`NAME=VALUE` words as a table."""
    variables: dict[str, str] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(Problem(path=option, given=word[:60], expected="NAME=VALUE"))
        variables[name] = value
    return variables
