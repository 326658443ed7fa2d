"""Turn what went wrong into a message for people, or the same problems as JSON, and into the exit code.

    0    done; also when the reader of a pipe went away
    1    `fit --check` found a table that is out of date; `preflight` found something wrong; `run --verify` a difference
         `export` wrote nothing, for its files would no longer fit, or be slower or faster (--allow-misfit)
         `import` did not read options that change the step, or may (--accept-unread)
    2    the input cannot be used, nothing fits, or the answer cannot be written; the problems say why
    70   a mistake of Ridgeline's own
    130  stopped by Ctrl-C or SIGTERM

With `--json` every verb prints `{"schema_version": 1, "possible": false, "problems": [{path, given, expected, todo,
where}]}` on standard output for codes 2 and 70, and nothing on standard error.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import typer

from ridgeline.cli.streams import say
from ridgeline.core.errors import InputError, MissingNumber, Problem, Refusal, RidgelineError

DONE = 0
STOPPED = 130  # as shells report an interrupt
UNUSABLE = 2
OUR_MISTAKE = 70  # EX_SOFTWARE of sysexits.h
TRACEBACK = "RIDGELINE_TRACEBACK"  # set in the environment: show where a mistake of ours happened
USAGE = typer.BadParameter.__mro__[1]  # UsageError, wherever this version of typer keeps it


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether the answer is for programs.

    >>> wants_json(["show", "--json", "x"]), wants_json(["show", "--", "--json"])
    (True, False)
    """
    options = arguments[: list(arguments).index("--")] if "--" in arguments else arguments
    return "--json" in options


def refuse_unwritable(arguments: Sequence[str]) -> None:
    """Refuse arguments that the name of no file can hold, before anything looks for a file of that name."""
    for argument in arguments:
        try:
            is_name = b"\0" not in os.fsencode(argument)
        except UnicodeEncodeError:
            is_name = False
        if not is_name:
            expectation = "characters that a file's name can hold"
            raise InputError(Problem(path="argument", given=ascii(argument)[:200], expected=expectation))


def refuse(wrong: BaseException, arguments: Sequence[str]) -> int:
    """Tell what went wrong on the right stream, in the right form; the exit code."""
    code = UNUSABLE if isinstance(wrong, (RidgelineError, USAGE, OSError, MemoryError)) else OUR_MISTAKE
    with contextlib.suppress(OSError):  # nobody to tell it to
        if wants_json(arguments):
            from ridgeline.cli.terminal import print_json

            print_json(Refusal(problems=tuple(problems_of(wrong))))
        elif isinstance(wrong, USAGE):
            wrong.show()  # type: ignore[attr-defined]
        else:
            messages = (
                [str(wrong)] if isinstance(wrong, RidgelineError) else [str(problem) for problem in problems_of(wrong)]
            )
            _complain([part for line in messages for part in line.splitlines()] or [type(wrong).__name__])
    if code == OUR_MISTAKE and os.environ.get(TRACEBACK):
        raise wrong
    return code


def problems_of(wrong: BaseException) -> list[Problem]:
    """Every reason that an error carries, in the one shape of a reason."""
    if isinstance(wrong, InputError):
        return list(wrong.problems) or [Problem(path="", given=str(wrong), expected="")]
    if isinstance(wrong, MissingNumber):
        want = f"a quantity in {wrong.unit}" if wrong.unit else "a number"
        todo = str(wrong).partition("; ")[2]
        return [Problem(path=wrong.path, given=f"{wrong.owner} without it", expected=want, todo=todo)]
    if isinstance(wrong, USAGE):
        message = getattr(wrong, "format_message", lambda: str(wrong))()
        return [Problem(path="", given=message.rstrip("."), expected="options as `ridgeline VERB --help` lists them")]
    if isinstance(wrong, OSError):
        return [_unreachable(wrong)]
    if isinstance(wrong, MemoryError):
        todo = "ask for less at once, or use a larger machine"
        return [Problem(path="memory", given="none left", expected="enough for the answer", todo=todo)]
    given_text = f"{type(wrong).__name__}: {' '.join(str(wrong).split())[:300]}"
    todo = f"please report it, with what {TRACEBACK}=1 prints"
    return [Problem(path="", given=given_text, expected="an answer: this is a mistake in Ridgeline", todo=todo)]


def _unreachable(wrong: OSError) -> Problem:
    where = os.fsdecode(wrong.filename) if isinstance(wrong.filename, (str, bytes)) else "standard output"
    shown = where if len(where) <= 200 else where[:197] + "..."
    want = "a file that can be read and written" if where != "standard output" else "a place with room to write"
    return Problem(path=shown, given=wrong.strerror or type(wrong).__name__, expected=want, todo="choose another")


def _complain(lines: Sequence[str]) -> None:
    """One line on standard error, or a count and a line for each."""
    if len(lines) > 1:
        say(f"ridgeline: {len(lines)} problems", err=True)
    for line in lines:
        say(f"ridgeline: {line}" if len(lines) == 1 else f"  {line}", err=True)
