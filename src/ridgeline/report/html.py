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
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from html import escape
from pathlib import Path

from ridgeline.core.records import dataclass

LONGEST = 400  # characters of a text
NAME = re.compile(r"(?<![\w&;])(?=[\w.:/=+-]*[A-Za-z])(?=[\w.]*[-=/:.])[A-Za-z0-9][\w.:/=+-]{1,30}[\w](?![\w&;])")
"""A name that a person may copy: no blank, and a sign in it; a longer one may break."""


@cache
def page_part(name: str) -> str:
    """A style or a script of `pages/`."""
    return "\n" + (Path(__file__).parent / "pages" / name).read_text(encoding="utf-8")


def page_style(*names: str) -> str:
    """The style of every page, and what pages of these names add to it."""
    return "".join(page_part(f"{name}.css") for name in ("colours", "drawing", "house", *names))


def picture_style() -> str:
    """The style of a drawing that is a file of its own, light and dark as its reader's screen."""
    colours = page_part("colours.css").replace(":root", "svg")
    font = "svg { background: var(--paper); font-family: system-ui, sans-serif; }"
    return f"{colours}{page_part('drawing.css')}{font}"


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


def escape_text(value: object, most: int = LONGEST) -> str:
    """Text of a stranger inside markup or inside a quoted attribute.

    >>> escape_text('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    return escape(printable(str(value), most))


def inline_code(text: str) -> str:
    """Text of a stranger whose names (`64xh100-sxm`, `plan.precision=fp8`) stay whole where lines break.

    >>> inline_code("on 64xh100-sxm, tp=4 and <b>")
    'on <span class="id">64xh100-sxm</span>, <span class="id">tp=4</span> and &lt;b&gt;'
    """
    return NAME.sub(r'<span class="id">\g<0></span>', escape_text(text, 2 * LONGEST))


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


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    text: Sequence[int] = (),
    chosen: Sequence[int] = (),
) -> str:
    """A table; the columns in `text` read from the left, the rows in `chosen` stand out."""

    def line(cells: Sequence[object], tag: str, kind: str = "") -> str:
        columns = (
            f"<{tag}{_cell_class(cell) if index in text else ''}>{_cell(cell)}</{tag}>"
            for index, cell in enumerate(cells)
        )
        return f"<tr{kind}>{''.join(columns)}</tr>"

    marked = ' class="chosen"'
    body = "".join(line(row, "td", marked if place in chosen else "") for place, row in enumerate(rows))
    many = ' class="many"' if len(head) >= MANY else ""
    inside = f"<thead>{line(head, 'th')}</thead><tbody>{body}</tbody>"
    return f'<div class="wide" tabindex="0"><table{many}>{inside}</table></div>'


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictCell:
    """A cell that says good or bad by a sign, a colour and a word."""

    good: bool
    word: str


def objective_verdict(*, met: bool) -> VerdictCell:
    """Whether a limit of an objective is kept."""
    return VerdictCell(good=met, word="kept" if met else "missed")


def verdict_mark(verdict: VerdictCell) -> str:
    """A verdict with its sign.

    >>> verdict_mark(VerdictCell(good=False, word="fail"))
    '<span class="bad">✗ fail</span>'
    """
    kind, sign = ("good", "✓") if verdict.good else ("bad", "✗")
    return f'<span class="{kind}">{sign} {escape_text(verdict.word)}</span>'


MANY = 8  # columns that are printed in smaller letters
SENTENCE = 40  # signs from which a cell wants a wide column


def _cell_class(cell: object) -> str:
    return ' class="text long"' if isinstance(cell, str) and len(cell) > SENTENCE else ' class="text"'


def _cell(cell: object) -> str:
    if isinstance(cell, VerdictCell):
        return verdict_mark(cell)
    return inline_code(cell) if isinstance(cell, str) else escape_text(cell)


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


def svg(width: float, height: float, marks: Iterable[str], title: str = "") -> str:
    """A drawing of so many pixels; `title` says to a screen reader what it shows."""
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    name = f' aria-label="{escape_text(title)}"' if title else ""
    return f'<svg {size} role="img"{name}>{"".join(marks)}</svg>'


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
    title = f"<title>{escape_text(told)}</title>" if told else ""
    return f'<circle class="{kind}" {place}{more}>{title}</circle>'


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

    def ticks(self, most: int = 7, unit: float = 1.0) -> list[float]:
        """Round values inside: 1, 2 and 5 times a power of ten, of a unit that is so many base units.

        >>> Scale.of([0, 9], 0, 1).ticks(), Scale.of([1, 30], 0, 1).ticks(), Scale.of([3], 0, 1).ticks()
        ([0.0, 2.0, 4.0, 6.0, 8.0], [1.0, 2.0, 5.0, 10.0, 20.0], [3])
        """
        if self.high <= self.low:
            return [self.low]
        low, high = self.low / unit, self.high / unit
        if not self.log:
            step = round_step((high - low) / most)
            first, last = math.ceil(low / step - NEAR), math.floor(high / step + NEAR)
            return [unit * step * place for place in range(first, last + 1)]
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for factors, every in (((1, 2, 5), 1), ((1, 3), 1), ((1,), 1), ((1,), 2), ((1,), 3), ((1,), 6)):
            marks = [factor * 10.0**power for power in powers if power % every == 0 for factor in factors]
            inside = [unit * mark for mark in marks if low * (1 - NEAR) <= mark <= high * (1 + NEAR)]
            if len(inside) <= most:
                return inside
        return [self.low, self.high]

    def with_round_ends(self, most: int = 7, unit: float = 1.0) -> Scale:
        """The axis widened until its ends are round.

        >>> wide = Scale.of([1.3, 87], 0, 100).with_round_ends()
        >>> wide.low, wide.high
        (1.0, 100.0)
        """
        low, high = self.low / unit, self.high / unit
        if high <= low:
            return self
        if self.log:
            return replace(self, low=unit * round_step(low, down=True), high=unit * round_step(high))
        step = round_step((high - low) / most)
        ends = math.floor(low / step + NEAR), math.ceil(high / step - NEAR)
        return replace(self, low=unit * step * ends[0], high=unit * step * ends[1])


NEAR = 1e-6  # of a step: what rounding of floats may put beyond a mark


def round_step(least: float, *, down: bool = False) -> float:
    """The smallest of 1, 2 or 5 times a power of ten that is not below a number; `down`: the largest not above.

    >>> round_step(0.3), round_step(2), round_step(34), round_step(34, down=True)
    (0.5, 2.0, 50.0, 20.0)
    """
    power = math.floor(math.log10(least))
    marks = [factor * 10.0**exponent for exponent in (power - 1, power, power + 1) for factor in (1, 2, 5)]
    if down:
        return max(mark for mark in marks if mark <= least * (1 + NEAR))
    return min(mark for mark in marks if mark >= least * (1 - NEAR))
