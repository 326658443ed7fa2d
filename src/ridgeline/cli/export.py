"""Turn `ridgeline export` and `ridgeline import` into calls of the library.

0  done        1  the files would not run as planned: they no longer fit, are slower, or mean no run (--allow-misfit)
               2  the scenario cannot be exported, the files cannot be read, or a file would be overwritten
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import ridgeline
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import print_json, progress_bar, write_together
from ridgeline.core.encode import plain
from ridgeline.core.errors import InputError, Problem, UnitError
from ridgeline.core.files import write_text
from ridgeline.targets import IDS, LAUNCHERS

if TYPE_CHECKING:
    from ridgeline.targets import Export, Imported

MOST = 8  # decisions named for one reason
MISFIT = 1  # exit code: the files would not run as planned


To = Annotated[str, typer.Option("--to", metavar="TARGET", help=f"Software to write for: {', '.join(sorted(IDS))}.")]
Launcher = Annotated[
    str | None, typer.Option("--launcher", metavar="NAME", help=f"Who starts it: {', '.join(LAUNCHERS)}.")
]


def export(
    scenario: Path, to: To, output: Path | None = None, launcher: Launcher = None, job: list[str] | None = None,
    settings: list[str] | None = None, allow_misfit: bool = False, force: bool = False, json: bool = False,
) -> None:  # fmt: skip
    """Write a scenario as a target's own configuration and launch scripts; say what the target cannot express.

    The files are read again and predicted: where they would no longer fit, or take over 5 % longer than the plan,
    nothing is written and the exit code is 1.
    """
    built = ridgeline.read_scenario(scenario, settings or ())
    exported_files = ridgeline.export(built, to=to, launcher=launcher, job=_variables(job or [], "--job"))
    refused = exported_files.check is not None and exported_files.check.refuses and not allow_misfit
    if output is not None and not refused:
        _refuse_existing([output / name for name in exported_files.files], force)
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as wrong:
            problem = Problem(
                path="--output", given=wrong.strerror or "not writable", expected="a folder", where=str(output)
            )
            raise InputError(problem) from None
        with write_together():
            for name, text in exported_files.files.items():
                write_text(output / name, text)
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
    slower = f"are {check.change:.1%} slower" if check.change is not None else ""
    yield f"refused: the {found.target} files {outcome_words.get(check.verdict, slower)}; nothing was written"
    yield from (f"  {line}" for line in check_lines(check))
    for lost in check.causes[:MOST]:
        yield _one_line(f"  because {lost.path} = {plain(lost.value)}: {lost.why}")
    lost_paths = {lost.path for lost in check.causes}
    for item in [differ for differ in check.differs if differ.path not in lost_paths][:MOST]:
        yield _one_line(f"  differs {item.path}: planned {plain(item.planned)}, written {plain(item.written)}")
    yield "  choose a plan or a target that carries these, or add --allow-misfit"


def lost_lines(found: Export) -> Iterator[str]:
    """A line for each reason, with the decisions it costs."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for part in found.lost:
        fate = "yours" if part.yours else "lost"
        reasons.setdefault((fate, part.why), []).append(f"{part.path} = {plain(part.value)}")
    for (fate, why), parts in reasons.items():
        rest = f", and {len(parts) - MOST} more (LEDGER.md lists them)" if len(parts) > MOST else ""
        yield _one_line(f"{fate} {', '.join(parts[:MOST])}{rest}: {why}")


def import_run(
    source: Path, target: str | None = None, system: str | None = None, model: str | None = None,
    seq: str | None = None, arguments: list[str] | None = None, environment: list[str] | None = None,
    output: Path | None = None, force: bool = False, json: bool = False,
) -> None:  # fmt: skip
    """Read a run's configuration into a scenario that `ridgeline predict` takes; say what could not be read."""
    from ridgeline.core.encode import toml_text

    with progress_bar("reading", json=json) as wait:
        imported_run = ridgeline.import_run(
            source, target=target, system=system, model=model, seq=_tokens(seq), arguments=arguments or (),
            environment=_variables(environment or []), progress=wait,
        )  # fmt: skip
    missing = {
        "model": ("--model", "the model that the script builds", "add --model llama3-8b, for example"),
        "system": ("--on", "the machine that runs it", "add --on 64xh100-sxm, for example"),
    }
    lacks = [parts for key, parts in missing.items() if key not in imported_run.settings]
    if lacks:
        nothing = f"nothing in the {imported_run.target} files"
        strange = [
            f"{one.value}, which no model of the catalog is" for one in imported_run.unread if one.option == "model"
        ]
        texts = {"--model": strange[0] if strange else nothing, "--on": nothing}
        raise InputError([Problem(path=at, given=texts[at], expected=want, todo=todo) for at, want, todo in lacks])
    text = _notes(imported_run) + toml_text(imported_run.settings)
    if output is not None:
        _refuse_existing([output], force)
        write_text(output, text)
    if json:
        print_json(imported_run)
        return
    say(f"wrote {output}" if output is not None else text, nl=output is not None)
    for note in imported_run.assumptions:
        say(f"assumed {_one_line(note)}", err=True)
    for line in _unread(imported_run):
        say(line, err=True)


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


def _unread(found: Imported) -> Iterator[str]:
    """What was not read: what changes the step by name and reason, then the rest by how many."""
    matters = replace(found, unread=tuple(part for part in found.unread if part.matters))
    for why, names in _by_reason(matters).items():
        yield _one_line(f"unread, changes the step ({why}): {', '.join(names)}")
    rest = [part for part in found.unread if not part.matters]
    if rest:
        named = ", ".join(_one_line(f"{part.option} {part.value}".strip()) for part in rest[:MOST])
        more = f", and {len(rest) - MOST} more (--json lists them)" if len(rest) > MOST else ""
        yield f"unread, changes no step: {named}{more}"


def _by_reason(found: Imported) -> dict[str, list[str]]:
    """What was not read, gathered by why."""
    reasons: dict[str, list[str]] = {}
    for part in found.unread:
        reasons.setdefault(_one_line(part.why), []).append(_one_line(f"{part.option} {part.value}".strip()))
    return reasons


def _refuse_existing(paths: list[Path], force: bool) -> None:
    there = [path for path in paths if os.path.exists(path)]
    if there and not force:
        expectation = "files that do not exist yet"
        todo = "choose another place, or add --force"
        raise InputError(
            [Problem(path="--output", given=f"{path}, which exists", expected=expectation, todo=todo) for path in there]
        )


def _notes(found: Imported) -> str:
    """The scenario file's head: where it came from, what was assumed and what did not reach it."""
    lines = [f"Read by Ridgeline from files of {found.target}."]
    lines += [f"assumed: {note}" for note in found.assumptions]
    lines += list(_unread(found))
    return "".join(f"# {_one_line(line)}\n" for line in lines)


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)[:2000]
