"""Turn arguments into calls of the library, and what it raises into messages and exit codes.

Exit codes are listed in `refuse`. Only the module of the verb that is called is loaded, and heavy modules are imported
inside the verbs: `ridgeline --help` answers at once.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from ridgeline.cli.refuse import DONE, STOPPED, refuse, refuse_unwritable
from ridgeline.cli.streams import finish, prepare, say, silence
from ridgeline.cli.verbs import VERBS, questions_help, refuse_unknown_verb
from ridgeline.core.waits import signals_to
from ridgeline.version import __version__


def command_line(verb: str = "") -> typer.Typer:
    """The command line with one verb, or with all of them where it does not know this one."""
    app = typer.Typer(
        name="ridgeline",
        help="Where model meets machine: describe, predict and plan the training and serving of foundation models.",
        epilog=None if verb in VERBS else questions_help(),
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in [verb] if verb in VERBS else VERBS:
        entry = VERBS[name]
        app.command(name=name, short_help=entry.summary, epilog=entry.epilog)(entry.command(name))
    return app


def _version(requested: bool) -> None:
    if requested:
        say(f"ridgeline {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Where model meets machine: describe, predict and plan the training and serving of foundation models."""


def main() -> None:
    """Run the command line and leave with its exit code; every error is a message, none a traceback."""
    arguments = sys.argv[1:]
    prepare()
    with _interrupts() as interrupted:
        code = _run(arguments, interrupted)
        try:
            finish()
        except BrokenPipeError:
            code = DONE
        except OSError as wrong:
            code = refuse(wrong, ())
    raise SystemExit(code)


def _run(arguments: list[str], interrupted: threading.Event) -> int:
    """The exit code of a command line."""
    try:
        refuse_unwritable(arguments)
        verb = next(iter(arguments), "")
        refuse_unknown_verb(verb)
        code = command_line(verb)(args=arguments, prog_name="ridgeline", standalone_mode=False)
    except BrokenPipeError:
        silence()
        return DONE  # the reader of a pipe went away: not an error of ours
    except SystemExit as left:
        if isinstance(left.__context__, BrokenPipeError):  # as rich and typer tell it
            silence()
            return DONE
        return left.code if isinstance(left.code, int) else DONE
    except BaseException as wrong:
        if interrupted.is_set() or isinstance(wrong, KeyboardInterrupt):  # whatever became of it on its way
            return STOPPED
        return refuse(wrong, arguments)
    return code if isinstance(code, int) else DONE


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """An event that tells whether Ctrl-C was pressed, or SIGTERM sent; what a job ignores it goes on ignoring."""
    pressed = threading.Event()

    def interrupt(*_: object) -> None:
        pressed.set()
        raise KeyboardInterrupt

    with signals_to(interrupt):
        yield pressed


if __name__ == "__main__":
    main()
