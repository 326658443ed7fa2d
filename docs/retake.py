"""Take the screens of the README and of some pages again: run the commands of `console` blocks, show what they print.

    python docs/retake.py            rewrite the pages
    python docs/retake.py --check    fail when a screen no longer shows what the command prints
    python docs/retake.py --bench    rewrite the measured figures too; they vary, so --check skips them
    python docs/retake.py PAGE...    only these pages

A comment before a block bounds it: `<!-- screen: lines=12 -->` keeps the first lines and ends with an ellipsis,
`<!-- screen: measured -->` marks figures of this machine, `<!-- screen: help -->` text whose layout is the command-line
library's: a test sees to it that no option is missing.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = (
    "README.md",
    "docs/reference.md",
    "docs/concepts/accuracy.md",
    "docs/concepts/traces.md",
    "docs/concepts/collective-algorithms.md",
    "docs/how-to/design-a-collective.md",
    "docs/how-to/from-model-card-to-launch-script.md",
    "docs/how-to/what-limits-my-step.md",
    "docs/how-to/explain-a-gap.md",
)
BLOCK = re.compile(r"(?:<!-- screen: (?P<how>[^>]*?) -->\n)?```console\n(?P<body>.*?)```", re.DOTALL)


def screen(command: str, lines: int) -> str:
    """What a command prints, both streams, without trailing spaces."""
    words = shlex.split(command)
    program = [sys.executable, *words[1:]] if words[0] == "python" else [sys.executable, "-m", "ridgeline", *words[1:]]
    wide = {key: value for key, value in os.environ.items() if key != "COLUMNS"}  # as into a pipe
    own = {**wide, "COLUMNS": "80"} if words[-1] == "--help" else wide
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, check=False, env=own)
    if "Traceback (most recent call last)" in done.stderr:  # a refusal may be shown, a bug may not
        sys.exit(f"$ {command}\n{done.stderr}")
    shown = [line.rstrip() for line in (done.stdout + done.stderr).rstrip().splitlines()]
    return "\n".join(shown if lines == 0 or len(shown) <= lines else [*shown[:lines], "…"])


def retaken(match: re.Match[str], bench: bool) -> str:
    """The block with its outputs taken again."""
    how = match["how"] or ""
    if (how == "measured" and not bench) or (how == "help" and "--check" in sys.argv):
        return match[0]
    found = re.search(r"lines=(\d+)", how)
    commands = [line[2:] for line in match["body"].splitlines() if line.startswith("$ ")]
    body = "\n".join(f"$ {command}\n{screen(command, int(found[1]) if found else 0)}" for command in commands)
    head = f"<!-- screen: {how} -->\n" if how else ""
    return f"{head}```console\n{body}\n```"


def main() -> int:
    stale = 0
    wanted = [word for word in sys.argv[1:] if not word.startswith("-")]
    for name in wanted or PAGES:
        page = ROOT / name
        old = page.read_text(encoding="utf-8")
        new = BLOCK.sub(lambda match: retaken(match, "--bench" in sys.argv), old)
        if "--check" not in sys.argv:
            page.write_text(new, encoding="utf-8")
        elif old != new:
            print(f"{name} shows something else than its commands print; run `python docs/retake.py`")
            stale = 1
        else:
            print(f"{name}: {len(BLOCK.findall(old))} screens are as the commands print them")
    return stale


if __name__ == "__main__":
    sys.exit(main())
