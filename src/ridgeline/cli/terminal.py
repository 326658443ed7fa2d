"""What all verbs share: the options that mean the same everywhere, and the way answers reach the terminal."""

from __future__ import annotations

import json as codec
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

import typer

from ridgeline.cli.streams import Trimmed, is_unicode, say
from ridgeline.core.errors import UnitError
from ridgeline.core.files import refuse_unwritable
from ridgeline.core.waits import signals_to

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

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


class ProgressLine:
    """Whoever sits at the terminal: is shown how far a wait is and the best so far, and may ask to stop.

    stopped   whether they did, and it was heard
    """

    def __init__(self, verb: str, least: int, bar: Bar | None) -> None:
        self._verb, self._least, self._bar = verb, least, bar
        self._is_heard, self._is_asked = False, False
        self.reached, self.stopped = verb, False

    def __call__(self, done: int, total: int, what: str = "", best: str = "") -> bool:
        part = f" {done:,} of {total:,}" if total else ""
        self.reached = "".join([self._verb, part, f", {what}" if what else "", f"; so far {best}" if best else ""])
        if self._bar is not None:
            from rich.markup import escape

            words = " ".join(filter(None, [self._verb, what, f"({best} so far)" if best else ""]))
            task, is_visible = self._bar.task_ids[0], total >= self._least
            self._bar.update(task, description=escape(words), completed=done, total=total or None, visible=is_visible)
        self._is_heard, self.stopped = True, self._is_asked
        return not self.stopped

    def ask_to_stop(self, *_: object) -> None:
        """Take a signal: the first one asks to stop where a wait tells how far it is, any other interrupts."""
        if self._is_asked or not self._is_heard:
            raise KeyboardInterrupt
        self._is_asked = True


@contextmanager
def progress_bar(
    verb: str, least: int = 0, *, json: bool = False, stoppable: bool = False, written: str = "nothing was written"
) -> Iterator[ProgressLine]:
    """A line on standard error that follows a wait of at least so many pieces; without a terminal, or where the answer
    is for programs, nothing is shown. Ctrl-C and SIGTERM end the wait with a word of what was reached.

    stoppable   the first of them asks to stop, and the wait ends with an answer; only the second one interrupts
    written     what is true of files where a wait is interrupted
    """
    with ExitStack() as stack:
        bar = None
        if sys.stderr.isatty() and not json:
            from rich.progress import Progress

            bar = stack.enter_context(Progress(console=stderr_console(), transient=True))
            bar.add_task(verb, total=None, visible=not least)
        line = ProgressLine(verb, least, bar)
        try:
            with signals_to(line.ask_to_stop) if stoppable else nullcontext():
                yield line
        except KeyboardInterrupt:
            stack.close()
            if not json:
                say(f"ridgeline: stopped while {line.reached}; {written}", err=True)
            raise


def print_json(value: object) -> None:
    """Print a result, or a table of JSON, for programs; NaN would be our mistake. An ASCII terminal gets escapes."""
    from ridgeline.core.encode import answer_json

    escaped = not is_unicode(sys.stdout)
    say(codec.dumps(answer_json(value), indent=2, ensure_ascii=escaped, allow_nan=False))


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
