"""Turn texts, tables and charts into HTML files that stand alone: nothing is fetched, only their own script runs.

Every page has one Content-Security-Policy: no connection, image, frame or form; exactly its own style and its own
script, each allowed by its SHA-256. Text of a stranger is escaped, and were it not, it would still not run. What the
policy forbids the pages do without: no `style` attribute (a class, or an attribute of SVG), no handler in markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path

from ridgeline.core.records import dataclass

LONGEST = 400  # characters of a text


@cache
def page_part(name: str) -> str:
    """A style or a script of `pages/`."""
    return "\n" + (Path(__file__).parent / "pages" / name).read_text(encoding="utf-8")


def page_style(*names: str) -> str:
    """The style of every page, and what pages of these names add to it."""
    return "".join(page_part(f"{name}.css") for name in ("house", *names))


def document(*, title: str, body: str, style: str, script: str = "") -> str:
    """The whole file: a head with the policy, the body's markup as it is given, and the script behind it."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(style, script)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape_text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}\n"
        f"{f'<script>{script}</script>' if script else ''}\n</body>\n</html>\n"
    )


def policy(style: str, script: str = "") -> str:
    """The Content-Security-Policy of a page with this style and this script alone.

    >>> policy("p {}")[:53]
    "default-src 'none'; style-src 'sha256-SNJDlN1Iy2mnt7D"
    """
    own = {"style": style, **({"script": script} if script else {})}
    allowed = (
        f"{kind}-src 'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for kind, text in own.items()
    )
    return "; ".join(("default-src 'none'", *allowed, "base-uri 'none'", "form-action 'none'"))


def printable(text: str, most: int = LONGEST) -> str:
    """Text of a stranger: no control characters, not endless.

    >>> printable("gemm\\x1b[31m" + "a" * 400)[:9], len(printable("a" * 401))
    ('gemm�[31m', 400)
    """
    short = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(char if char.isprintable() else "\ufffd" for char in short)


def escape_text(value: object) -> str:
    """Text of a stranger inside markup or inside a quoted attribute.

    >>> escape_text('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    return escape(printable(str(value)))


def as_data(value: object) -> str:
    """JSON that may stand inside a script element, whatever texts it holds.

    >>> as_data({"name": "</script><b>"})
    '{"name":"\\\\u003c/script\\\\u003e\\\\u003cb\\\\u003e"}'
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# -- pieces of a page -------------------------------------------------------------------------------------------------


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Large figures with what each means below."""
    cells = "".join(f"<div><b>{escape_text(value)}</b><span>{escape_text(name)}</span></div>" for value, name in pairs)
    return f'<div class="facts">{cells}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, text: Sequence[int] = ()) -> str:
    """A table; the columns in `text` read from the left."""

    def line(cells: Sequence[object], tag: str) -> str:
        made = (
            f"<{tag}{' class=text' if index in text else ''}>{escape_text(cell)}</{tag}>"
            for index, cell in enumerate(cells)
        )
        return f"<tr>{''.join(made)}</tr>"

    return f'<div class="wide"><table>{line(head, "th")}{"".join(line(row, "td") for row in rows)}</table></div>'


def section(title: str, head: Sequence[str], rows: Sequence[Sequence[object]], *, text: Sequence[int] = ()) -> str:
    """A table under its title; nothing where there is no row."""
    return f"<h2>{escape_text(title)}</h2>{table(head, rows, text=text)}" if rows else ""


def details(title: str, summary: str, inside: str) -> str:
    """What opens on demand, under its title."""
    return f"<h2>{escape_text(title)}</h2><details><summary>{escape_text(summary)}</summary>{inside}</details>"


def list_items(title: str, items: Iterable[str]) -> str:
    """A list under its title."""
    lines = "".join(f"<li>{escape_text(item)}</li>" for item in items)
    return f"<h2>{escape_text(title)}</h2><ul>{lines}</ul>"


def svg(width: float, height: float, marks: Iterable[str]) -> str:
    """A drawing of so many pixels."""
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg {size} role="img">{"".join(marks)}</svg>'


def label(text: str, x: float, y: float, *, anchor: str = "start", faint: bool = True) -> str:
    """A text of a drawing; `anchor` says which end of it stands at x."""
    kind = ' class="faint"' if faint else ""
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape_text(text)}</text>'


def rule(d: str, kind: str = "rule") -> str:
    """A line of a drawing."""
    return f'<path class="{kind}" d="{d}"/>'


def dot(x: float, y: float, radius: float, *, kind: str, told: str, more: str = "") -> str:
    """A point of a chart, which tells what it is; `more` are further attributes."""
    place = f'cx="{x:.1f}" cy="{y:.1f}" r="{radius}"'
    return f'<circle class="{kind}" {place}{more}><title>{escape_text(told)}</title></circle>'


# -- scale ------------------------------------------------------------------------------------------------------------


SPAN = 4.0  # largest over smallest value from which an axis is logarithmic


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """An axis: the values `low` and `high` stand at the positions `start` and `end`, the others between or beyond."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def of(cls, values: Sequence[float], start: float, end: float) -> Scale:
        """The axis that just holds these values; logarithmic from a span of four times on."""
        low, high = min(values), max(values)
        return cls(low=low, high=high, start=start, end=end, log=low > 0 and high / low > SPAN)

    def __call__(self, value: float) -> float:
        """Where a value stands; in the middle where all are the same.

        >>> Scale.of([0, 10], 0, 100)(5), Scale.of([1, 100], 0, 100)(10), Scale.of([7], 0, 100)(7)
        (50.0, 50.0, 50.0)
        """
        low, high, at = (math.log(one) if self.log else one for one in (self.low, self.high, value))
        return self.start + (at - low) / (high - low) * (self.end - self.start) if high > low else self.middle

    @property
    def middle(self) -> float:
        """Half way."""
        return (self.start + self.end) / 2

    def ticks(self, parts: int = 4) -> list[float]:
        """Values at equal distances, the ends among them.

        >>> Scale.of([0, 8], 0, 1).ticks(), Scale.of([1, 16], 0, 1).ticks(2), Scale.of([3], 0, 1).ticks()
        ([0.0, 2.0, 4.0, 6.0, 8.0], [1.0, 4.0, 16.0], [3])
        """
        if self.high <= self.low:
            return [self.low]
        shares = [part / parts for part in range(parts + 1)]
        if self.log:
            return [self.low * (self.high / self.low) ** share for share in shares]
        return [self.low + (self.high - self.low) * share for share in shares]
