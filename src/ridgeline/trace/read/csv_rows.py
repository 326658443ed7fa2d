"""Turn a file of comma-separated values into rows, in bounded memory, whatever it holds.

Profilers put messages of their own around the table (`==PROF== …`) and repeat its header; rows are as they stand.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator, Mapping

from ridgeline.core.units import BINARY
from ridgeline.trace.read.source import Source

LONGEST_LINE = int(4 * BINARY["Mi"])


def rows_of(source: Source) -> Iterator[list[str]]:
    """Rows of a file; a line that is too long or no CSV ends them, and ``source.damage`` says so."""
    reader = csv.reader(_lines(source))
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error as wrong:
            source.damage = source.damage or f"line {reader.line_num:,} is no CSV ({wrong})"
            return


def _lines(source: Source) -> Iterator[str]:
    decode = codecs.getincrementaldecoder("utf-8-sig")("replace")
    remainder = ""
    for chunk in source.chunks():
        *complete_lines, remainder = (remainder + decode.decode(chunk)).split("\n")
        yield from complete_lines
        if len(remainder) > LONGEST_LINE:
            source.damage = f"a line of more than {LONGEST_LINE:,} characters"
            return
    if remainder:
        yield remainder


def number(text: str) -> float | None:
    """The number in a cell, with commas between thousands; None for N/A and everything else that is none.

    >>> number("1,215,000.50"), number("N/A"), number("nan")
    (1215000.5, None, None)
    """
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if abs(value) < 1e60 else None


def first(row: Mapping[str, str], names: tuple[str, ...]) -> str:
    """The first of these columns that has something in it.

    >>> first({"Name": "", "Op Name": "MatMul"}, ("Name", "Op Name"))
    'MatMul'
    """
    return next((row[name] for name in names if row.get(name, "").strip() not in ("", "N/A")), "")
