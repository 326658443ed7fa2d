"""Turn lines, dots and short texts into SVG, or into a PNG without a drawing library: the marks of a chart.

Letters of a PNG are three by five squares; a chart's words need no more.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.report import html

Colour = tuple[int, int, int]
PAPER, INK, FAINT, RULE = (252, 252, 250), (29, 39, 51), (138, 148, 160), (223, 227, 232)
SIZE = 2  # pixels of a letter's square
ENDINGS = {"plan": (".png", ".svg"), "collective": (".png", ".svg", ".html")}  # of pictures, by verb


def refuse_picture(path: Path | None, verb: str) -> None:
    """Say before the work that a name has no ending that a verb draws."""
    if path is not None and path.suffix.lower() not in ENDINGS[verb]:
        *others, last = ENDINGS[verb]
        expected = f"a name ending in {', '.join(others)} or {last}"
        raise InputError(Problem(path="--picture", given=path.name[:60], expected=expected))


@cache
def glyphs() -> Mapping[str, NDArray[np.bool_]]:
    """Sign -> five rows of three squares, top first: true is ink."""
    lines = (Path(__file__).parent / "pages" / "glyphs.txt").read_text(encoding="utf-8").splitlines()
    return {line[0]: np.array([[square == "1" for square in row] for row in line[2:].split()]) for line in lines}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line between two places of a chart."""

    kind: str
    start: tuple[float, float]
    end: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPoint:
    """A point of a chart, which tells what it is."""

    kind: str
    x: float
    y: float
    radius: float
    told: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A text; `anchor` says which end of it stands at x."""

    text: str
    x: float
    y: float
    anchor: str = "start"
    faint: bool = True


Mark = Line | ChartPoint | Label
Look = Mapping[str, tuple[Colour, float]]  # kind of a mark -> its colour and, of a line, its width


def svg_marks(marks: Iterable[Mark], width: float, height: float, title: str = "") -> str:
    """Marks as an SVG element; a mark's kind is its class, and a point that says what it is can be reached by keys."""
    texts = []
    for mark in marks:
        match mark:
            case Line(start=(left, top), end=(right, bottom)):
                texts.append(html.rule(f"M{left:.1f} {top:.1f}L{right:.1f} {bottom:.1f}", mark.kind))
            case ChartPoint():
                more = f' tabindex="0" data-told="{html.escape_text(mark.told)}"' if mark.told else ""
                radius = round(mark.radius, 1)
                texts.append(html.dot(mark.x, mark.y, radius, kind=mark.kind, told=mark.told, more=more))
            case Label():
                texts.append(html.label(mark.text, mark.x, mark.y, anchor=mark.anchor, faint=mark.faint))
    return html.svg(width, height, texts, title)


def standalone_svg(element: str, style: str) -> str:
    """An SVG element as a file of its own, with its style inside."""
    head, rest = element.split(">", 1)
    named = head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return f"{named}><style>{style}</style>{rest}"


def png_marks(marks: Iterable[Mark], width: int, height: int, look: Look) -> bytes:
    """Marks as a PNG."""
    canvas = Canvas(width, height, PAPER)
    for mark in marks:
        match mark:
            case Line():
                colour, thick = look[mark.kind]
                canvas.line(mark.start, mark.end, colour, thick)
            case ChartPoint():
                canvas.dot(mark.x, mark.y, mark.radius, look.get(mark.kind, (FAINT, 0.0))[0])
            case Label():
                canvas.text(mark.text, mark.x, mark.y, INK, mark.anchor)
    return canvas.png()


class Canvas:
    """A picture that marks are put on; (0, 0) is the upper left corner."""

    def __init__(self, width: int, height: int, paper: Colour) -> None:
        self.pixels = np.empty((height, width, 3), dtype=np.uint8)
        self.pixels[:] = paper

    def line(self, start: tuple[float, float], end: tuple[float, float], colour: Colour, thick: float = 1.0) -> None:
        """A straight line."""
        steps = int(max(abs(end[0] - start[0]), abs(end[1] - start[1])) * 2) + 1
        for share in np.linspace(0.0, 1.0, steps):
            self.dot(
                start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share, thick / 2 + 0.3, colour
            )

    def dot(self, x: float, y: float, radius: float, colour: Colour) -> None:
        """A filled circle, as far as it lies on the picture."""
        height, width, _ = self.pixels.shape
        left, right = max(0, int(x - radius)), min(width, int(x + radius) + 2)
        top, bottom = max(0, int(y - radius)), min(height, int(y + radius) + 2)
        if left >= right or top >= bottom:
            return
        rows, columns = np.mgrid[top:bottom, left:right]
        inside = (columns - x) ** 2 + (rows - y) ** 2 <= radius**2
        self.pixels[top:bottom, left:right][inside] = colour

    def text(self, words: str, x: float, y: float, colour: Colour, anchor: str = "start") -> None:
        """A text whose lower edge is y; `anchor` says which end of it stands at x."""
        wide = len(words) * 4 * SIZE
        at = int(x - {"start": 0.0, "middle": wide / 2, "end": wide}[anchor])
        top = int(y) - 5 * SIZE
        height, width, _ = self.pixels.shape
        for sign in words.upper():
            glyph = glyphs().get(sign)
            if glyph is not None and at >= 0 and at + 3 * SIZE <= width and top >= 0 and top + 5 * SIZE <= height:
                inked = np.kron(glyph, np.ones((SIZE, SIZE), dtype=np.bool_)).astype(np.bool_)
                self.pixels[top : top + 5 * SIZE, at : at + 3 * SIZE][inked] = colour
            at += 4 * SIZE

    def png(self) -> bytes:
        """The picture as a file.

        >>> Canvas(2, 1, (0, 0, 0)).png()[:8]
        b'\\x89PNG\\r\\n\\x1a\\n'
        """
        height, width, _ = self.pixels.shape
        rows = np.zeros((height, width * 3 + 1), dtype=np.uint8)
        rows[:, 1:] = self.pixels.reshape(height, -1)
        head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            (struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)))
            for kind, data in parts
        )
