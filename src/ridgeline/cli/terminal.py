"""What all verbs share: the options that mean the same everywhere, and the way answers reach the terminal."""

from __future__ import annotations

import json as codec
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

import typer

from ridgeline.cli.streams import Trimmed, is_unicode, say
from ridgeline.core.errors import UnitError
from ridgeline.core.files import refuse_unwritable

if TYPE_CHECKING:
    from rich.console import Console

PIPED = 160  # columns where neither a terminal nor COLUMNS says how wide it is
NARROWEST, WIDEST = 20, 10_000  # columns that COLUMNS may say


def count(text: str | int) -> int:
    """A number of tokens or sequences as an option: 8192, 128k, 1M; a default is a number already."""
    from ridgeline.core.units import parse_count

    try:
        return parse_count(str(text))
    except UnitError as wrong:
        raise typer.BadParameter(str(wrong)) from None


def command_line() -> str:
    """The command line of this process as one types it, for the foot of a page."""
    return shlex.join(["ridgeline", *sys.argv[1:]])


def console() -> Console:
    """The terminal at its own width; a pipe or a file gets no colours, no trailing blanks and a fixed width."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False)
    text = os.environ.get("COLUMNS", "")
    return Console(
        highlight=False,
        width=(max(NARROWEST, min(int(text), WIDEST)) if text.isascii() and text.isdigit() and int(text) else PIPED),
        file=cast(TextIO, Trimmed(sys.stdout)),
    )


def stderr_console() -> Console:
    """The terminal behind standard error, for what is shown while something takes its time."""
    from rich.console import Console

    return Console(stderr=True)


@contextmanager
def progress_bar(verb: str, least: int = 0) -> Iterator[Callable[..., None]]:
    """A bar on standard error where that is a terminal, for at least so many; it is told how many are done, of how many
    in all, and what is done next."""
    from rich.progress import Progress

    with Progress(console=stderr_console(), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(verb, total=None, visible=not least)

        def tell(done: int, total: int, what: str = "") -> None:
            words = f"{verb} {what}" if what else verb
            bar.update(task, description=words, completed=done, total=total, visible=total >= least)

        yield tell


def print_json(value: object) -> None:
    """Print a result, or a table of JSON, for programs; NaN would be our mistake. An ASCII terminal gets escapes."""
    from ridgeline.core.encode import to_json

    escaped = not is_unicode(sys.stdout)
    say(codec.dumps(to_json(value), indent=2, ensure_ascii=escaped, allow_nan=False))


def answer(result: object, json: bool) -> None:
    """Print a result: as JSON for programs, or the page that is drawn of it."""
    if json:
        print_json(result)
        return
    from ridgeline.report import draw

    draw(result, console())


def check_outputs(*paths: Path | None) -> None:
    """Refuse what cannot be written, before the work."""
    for path in filter(None, paths):
        refuse_unwritable(path)
