"""Record the tour: run a few commands on a terminal, and write what it shows as typed by a human, within a minute.

    python -m tools docs tour             write docs/images/tour.cast and docs/images/tour.svg
    python -m tools docs tour --check     report whether the commands print something else by now

The outputs are those of the commands on a terminal of this width, colours included. Times are made: a key, a line and a
pause take as long as somebody types and reads, so that the same outputs give the same files. `tour.cast` is a recording
of asciinema's version 2, which its player plays; `tour.svg` shows the same in any browser, without a script.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from tools.pages import DOCS, ROOT, write_or_check

CAST, PICTURE = DOCS / "images" / "tour.cast", DOCS / "images" / "tour.svg"
COLUMNS, ROWS = 104, 24
MOST_S, MOST_BYTES = 60.0, 300_000
KEY_S, ENTER_S, LINE_S = 0.05, 0.35, 0.02  # a key typed, the wait for the first line, a line printed
READ_S = 0.25  # reading a line, and at least LEAST_S
LEAST_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A question, the command that answers it, and how many lines of its answer are shown."""

    question: str
    command: str
    lines: int


SCENES = (
    Scene(question="How long does a training step take?", lines=19,
          command="ridgeline predict examples/llama3-70b-64xh100.toml"),
    Scene(question="How should it be split instead?", lines=6,
          command="ridgeline plan llama3-70b --on 64xh100-sxm -o found.toml"),
    Scene(question="Which files start it?", lines=8,
          command="ridgeline export found.toml --to megatron -o launch"),
    Scene(question="And on newer chips?", lines=5,
          command="ridgeline predict found.toml --set system=64xb200-sxm"),
    Scene(question="How long do requests to a server take?", lines=12,
          command="ridgeline predict examples/serve-llama3.1-8b-1xh100.toml"),
    Scene(question="Which roof is each op of a decode step under?", lines=12,
          command="ridgeline roofline llama3-70b --on h100-sxm --phase decode"),
    Scene(question="How long does a collective take?", lines=8,
          command="ridgeline collective allreduce --on 64xh100-sxm --size 1GB"),
)  # fmt: skip


def answer(command: str, folder: Path) -> list[str]:
    """The lines that a command prints on a terminal, with colours; standard error is none, so nothing is in motion."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    unset = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
    environment = {key: value for key, value in os.environ.items() if key not in unset}
    environment |= {"PYTHONPATH": str(ROOT / "src"), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    words = [sys.executable, "-m", "ridgeline", *shlex.split(command)[1:]]
    with tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(
            words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=writer, stderr=complaints
        )
        os.close(writer)
        printed = b"".join(_chunks(reader))
        os.close(reader)
        complaints.seek(0)
        if process.wait() != 0:
            sys.exit(f"$ {command}\n{complaints.read()}")
    return [BLANKS.sub(r"\1", line) for line in printed.decode().replace("\r\n", "\n").rstrip().split("\n")]


def _chunks(reader: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(reader, 65536)
        except OSError:  # the terminal's other end is closed
            return
        if not chunk:
            return
        yield chunk


# -- time -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the screen: when it appears, when the screen is cleared, and its text with colours.

    typed   the first column that is typed, key by key, and not printed at once
    """

    begin_s: float
    end_s: float
    place: int
    text: str
    typed: int | None = None


def rows_of(outputs: Sequence[Sequence[str]]) -> list[list[Row]]:
    """The rows of every scene, each scene on a screen of its own: a question, a command, lines and perhaps a `…`."""
    assert all(scene.lines + 3 <= ROWS for scene in SCENES)
    screens, now = [], 0.0
    for scene, lines in zip(SCENES, outputs, strict=True):
        shown_lines = [*lines[: scene.lines], *(["…"] if len(lines) > scene.lines else [])]
        prompt, began = f"\x1b[32m$\x1b[0m {scene.command}", now
        first_s = began + 0.5 + KEY_S * len(scene.command) + ENTER_S
        last_s = first_s + LINE_S * len(shown_lines)
        now = last_s + max(LEAST_S, READ_S * len(shown_lines))
        rows = [
            Row(begin_s=began, end_s=now, place=0, text=f"\x1b[2m# {scene.question}\x1b[0m"),
            Row(begin_s=began + 0.5, end_s=now, place=1, text=prompt, typed=2),
        ]
        rows += [
            Row(begin_s=first_s + LINE_S * place, end_s=now, place=place + 2, text=line)
            for place, line in enumerate(shown_lines)
        ]
        screens.append(rows)
    return screens


def cast_of(screens: Sequence[Sequence[Row]]) -> str:
    """The recording: a head, then an event a line."""
    head = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "Ridgeline in a minute",
            "env": {"TERM": "xterm-256color", "SHELL": "/bin/sh"}}  # fmt: skip
    events: list[tuple[float, str]] = []
    for rows in screens:
        events.append((rows[0].begin_s, "\x1b[2J\x1b[H"))
        for row in rows:
            if row.typed is None:
                events.append((row.begin_s, f"{row.text}\r\n"))
                continue
            plain = "".join(text for text, _ in spans_of(row.text))
            events.append((row.begin_s, row.text[: row.text.index(plain[row.typed :])]))
            keys = enumerate(plain[row.typed :], 1)
            events += [(row.begin_s + KEY_S * count, key) for count, key in keys]
            events.append((row.begin_s + KEY_S * len(plain), "\r\n"))
    events.append((screens[-1][0].end_s, ""))
    lines = [
        json.dumps(head),
        *(json.dumps([round(begin, 3), "o", text], ensure_ascii=False) for begin, text in events),
    ]
    return "\n".join(lines) + "\n"


# -- colours ----------------------------------------------------------------------------------------------------------

BLANKS = re.compile(r" +((?:\x1b\[0?m)*)$")  # at the end of a line
STYLE = re.compile(r"\x1b\[([\d;]*)m")
OTHER = re.compile(r"\x1b(?:\[[\d;?]*[A-Za-ln-z]|\][^\x07]*\x07)")
PALETTE = ("#484f58", "#ff7b72", "#3fb950", "#d29922", "#58a6ff", "#bc8cff", "#39c5cf", "#b1bac4")
CLASSES = {1: "b", 2: "d", 3: "i", 4: "u"}
FOREGROUND = 38


def spans_of(line: str) -> list[tuple[str, tuple[str, ...]]]:
    """The parts of a line with their classes: `b`, `d`, `i`, `u` and `c0` to `c7`, or a colour as `#rrggbb`.

    >>> spans_of("a \\x1b[1;32mb\\x1b[0m c")
    [('a ', ()), ('b', ('b', 'c2')), (' c', ())]
    """
    parts: list[tuple[str, tuple[str, ...]]] = []
    style: dict[str, str] = {}
    end = 0
    line = OTHER.sub("", line)
    for mark in STYLE.finditer(line):
        parts.append((line[end : mark.start()], tuple(style.values())))
        end = mark.end()
        style = _styled(style, [int(code or 0) for code in mark[1].split(";")])
    parts.append((line[end:], tuple(style.values())))
    return [(text, classes) for text, classes in parts if text]


def _styled(style: dict[str, str], codes: Sequence[int]) -> dict[str, str]:
    """A style after some codes of a terminal."""
    style, place = dict(style), 0
    while place < len(codes):
        code = codes[place]
        if code == 0:
            style = {}
        elif code in CLASSES:
            style[CLASSES[code]] = CLASSES[code]
        elif code == FOREGROUND and codes[place + 1 : place + 2] == [2]:
            style["colour"] = "#" + "".join(f"{part:02x}" for part in codes[place + 2 : place + 5])
            place += 4
        elif code == FOREGROUND:
            place += 2
        elif 30 <= code <= 37 or 90 <= code <= 97:
            style["colour"] = f"c{code % 10}"
        elif code == 39:
            style.pop("colour", None)
        elif code == 22:
            style = {name: value for name, value in style.items() if name not in ("b", "d")}
        place += 1
    return style


# -- picture ----------------------------------------------------------------------------------------------------------

WIDE, HIGH, MARGIN, TOP = 7.85, 17.0, 16, 44  # of a character and a row, and around the screen, in pixels
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">
<title>Ridgeline in a minute</title>
<style>
text {{ font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #e6edf3;
  white-space: pre; visibility: hidden }}
.b {{ font-weight: bold }} .d {{ fill: #8b949e }} .i {{ font-style: italic }} .u {{ text-decoration: underline }}
{palette}
</style>
<rect width="100%" height="100%" rx="10" fill="#0d1117"><animate id="t" attributeName="rx" values="10;10" dur="{end}s"
  begin="0s;t.end"/></rect>
<circle cx="22" cy="20" r="6" fill="#ff5f57"/><circle cx="42" cy="20" r="6" fill="#febc2e"/>
<circle cx="62" cy="20" r="6" fill="#28c840"/>
"""


def picture_of(screens: Sequence[Sequence[Row]]) -> str:
    """The tour as an animated picture that begins again when it ends; every row is a text that is visible for a while.

    The rows take their times from the picture's own clock `t`, whose end begins it again.
    """
    width, height = round(2 * MARGIN + COLUMNS * WIDE), round(TOP + ROWS * HIGH + MARGIN)
    palette = "\n".join(f".c{place} {{ fill: {colour} }}" for place, colour in enumerate(PALETTE))
    end_s = f"{screens[-1][0].end_s:.2f}"
    parts = [HEAD.format(width=width, height=height, palette=palette, end=end_s)]
    parts += [_text(row) for rows in screens for row in rows if row.text]
    return "".join([*parts, "</svg>\n"])


def _text(row: Row) -> str:
    y = f"{TOP + row.place * HIGH + 12:g}"
    if row.typed is None:
        return f'<text x="{MARGIN}" y="{y}">{_spans(row.text)}{_shown(row.begin_s, row.end_s)}</text>\n'
    plain = "".join(text for text, _ in spans_of(row.text))
    prompt = f'<text x="{MARGIN}" y="{y}" class="c2">{plain[: row.typed]}{_shown(row.begin_s, row.end_s)}</text>\n'
    keys = (
        f'<text x="{MARGIN + place * WIDE:.1f}" y="{y}">{escape(key)}'
        f"{_shown(row.begin_s + KEY_S * (place - row.typed + 1), row.end_s)}</text>"
        for place, key in enumerate(plain)
        if place >= row.typed and key != " "
    )
    return prompt + "\n".join(keys) + "\n"


def _shown(begin_s: float, end_s: float) -> str:
    length_s = f"{end_s - begin_s:.2f}"
    return f'<set attributeName="visibility" to="visible" begin="t.begin+{begin_s:.2f}s" dur="{length_s}s"/>'


def _spans(line: str) -> str:
    """Parts of a line at their columns, so that no font moves what follows."""
    column, parts = 0, []
    for text, classes in spans_of(line):
        colour = "".join(f' fill="{name}"' for name in classes if name.startswith("#"))
        names = " ".join(name for name in classes if not name.startswith("#"))
        for word in re.finditer(r"\S+(?: \S+)*", text):
            x = f"{MARGIN + (column + word.start()) * WIDE:.1f}"
            style = f' class="{names}"' if names else ""
            parts.append(f'<tspan x="{x}"{style}{colour}>{escape(word[0])}</tspan>')
        column += len(text)
    return "".join(parts)


def run(arguments: argparse.Namespace) -> int:
    """Write or check the recording and the picture; 1 where one is out of date, too long or too large."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "examples").symlink_to(ROOT / "examples")
        screens = rows_of([answer(scene.command, folder) for scene in SCENES])
    files = {CAST: cast_of(screens), PICTURE: picture_of(screens)}
    end_s, size = screens[-1][0].end_s, sum(len(text.encode()) for text in files.values())
    if end_s > MOST_S or size > MOST_BYTES:
        print(f"the tour takes {end_s:.0f} s and {size:,} bytes, at most {MOST_S:.0f} s and {MOST_BYTES:,}")
        return 1
    return max(write_or_check(path, text, check=arguments.check, command="docs tour") for path, text in files.items())
