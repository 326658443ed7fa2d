"""Turn whatever standard output and standard error are into streams that take any text, and close them without a word.

An ASCII terminal gets the nearest ASCII character of the same width, a closed stream swallows, and a pipe whose reader
went away is left alone. The table of exit codes is in docs/reference.md.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
import unicodedata
from collections.abc import Mapping
from types import MappingProxyType
from typing import TextIO

HANDLER = "ridgeline-nearest"  # the codec error handler's name
# one character for one, so that columns stay where they are
NEAREST: Mapping[str, str] = MappingProxyType(
    dict(zip("–—−…→←×µμ≤≥·•≈±█▉▊▋▌▍▎▏░▒▓", "---.><xuu<>.*~~#####...::#", strict=True))
)
_TRAILING = re.compile(r"[ \t]+(?=\n)")


def nearest(text: str) -> str:
    """The text with every character outside ASCII replaced by one inside it; what no UTF-8 can hold is escaped.

    >>> nearest("−3 µs … ██▍  é")
    '-3 us . ##.  e'
    """
    return "".join(map(_nearest, text))


def _nearest(char: str) -> str:
    if char.isascii():
        return char
    if "\ud800" <= char <= "\udfff":  # half of a character: a file name that is not UTF-8
        return f"\\u{ord(char):04x}"
    plain = unicodedata.normalize("NFKD", char)[0]
    return NEAREST.get(char) or (plain if plain.isascii() else "?")


def _unencodable(wrong: UnicodeError) -> tuple[str, int]:
    if not isinstance(wrong, UnicodeEncodeError):
        raise wrong
    return nearest(wrong.object[wrong.start : wrong.end]), wrong.end


def prepare() -> None:
    """Make the standard streams ones that can be written to, whatever the terminal takes."""
    codecs.register_error(HANDLER, _unencodable)
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115  (open until the process ends)
    if sys.stdout is None:  # closed by the shell: `>&-`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=HANDLER)


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """A line on standard output or standard error, in the encoding that the stream has."""
    print(text, file=sys.stderr if err else sys.stdout, end="\n" if nl else "")


def note(line: str) -> None:
    """Say how far something is, where answers do not go."""
    say(line, err=True)


def is_unicode(stream: TextIO) -> bool:
    """Whether it takes every character."""
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-").startswith("utf")


def finish() -> None:
    """Write out what is buffered; an `OSError` where that fails, after which the streams are silent."""
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (OSError, ValueError):
        silence()
        raise


def silence() -> None:
    """Let the interpreter end without another attempt to write."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper) and stream.fileno() in (1, 2):
                os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # a stream that is no file
        return


class Trimmed:
    """A stream that drops the blanks before each line's end, which padded columns leave."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write the text without blanks at the ends of its lines."""
        self._stream.write(_TRAILING.sub("", text))
        return len(text)

    def flush(self) -> None:
        """As the stream below does."""
        self._stream.flush()

    def isatty(self) -> bool:
        """No: a terminal is written to without this."""
        return False
