"""Take the screens of pages again: run the commands of `console` blocks and show what they print.

    python -m tools docs screens            rewrite the pages
    python -m tools docs screens --bench    rewrite the measured figures too; they vary, so --check skips them
    python -m tools docs screens PAGE...    only these pages

A comment before a block bounds it: `<!-- screen: lines=12 -->` keeps the first lines and ends with an ellipsis,
`<!-- screen: measured -->` marks figures of one machine, `<!-- screen: help -->` marks help texts, whose layout belongs
to the command-line library: tests/unit/cli/test_main.py checks that no option is missing.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys

from tools.pages import ROOT, write_or_check

PAGES = (
    "README.md",
    "docs/how-to/take-a-tour.md",
    "docs/concepts/speed.md",
    "docs/reference.md",
    "docs/concepts/accuracy.md",
    "docs/concepts/traces.md",
    "docs/concepts/collective-algorithms.md",
    "docs/how-to/design-a-collective.md",
    "docs/how-to/from-model-card-to-launch-script.md",
    "docs/how-to/what-limits-my-step.md",
    "docs/how-to/explain-a-gap.md",
    *(str(page.relative_to(ROOT)) for page in sorted(ROOT.glob("docs/for/*.md"))),
)
BLOCK = re.compile(r"(?:<!-- screen: (?P<how>[^>]*?) -->\n)?```console\n(?P<body>.*?)```", re.DOTALL)


def screen(command: str, lines: int) -> str:
    """What a command prints, both streams, without trailing spaces."""
    words = shlex.split(command)
    program = [sys.executable, *words[1:]] if words[0] == "python" else [sys.executable, "-m", "ridgeline", *words[1:]]
    wide = {key: value for key, value in os.environ.items() if key != "COLUMNS"}  # as into a pipe
    environment = {**wide, "COLUMNS": "80"} if words[-1] == "--help" else wide
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, check=False, env=environment)
    if "Traceback (most recent call last)" in done.stderr:  # a refusal may be shown, a bug may not
        sys.exit(f"$ {command}\n{done.stderr}")
    lines_printed = [line.rstrip() for line in (done.stdout + done.stderr).rstrip().splitlines()]
    if words[-1] == "--help":  # examples are on the pages
        end = next(
            (place for place, line in enumerate(lines_printed) if line.strip() == "Examples:"), len(lines_printed)
        )
        lines_printed = [line for line in lines_printed[:end] if not line.startswith("  -h, --help")]
        return "\n".join(lines_printed).rstrip()
    return "\n".join(lines_printed if lines == 0 or len(lines_printed) <= lines else [*lines_printed[:lines], "…"])


def take_again(match: re.Match[str], bench: bool, check: bool) -> str:
    """The block with the output of its commands."""
    how = match["how"] or ""
    if (how == "measured" and not bench) or (how == "help" and check):
        return match[0]
    bound = re.search(r"lines=(\d+)", how)
    commands = [line[2:] for line in match["body"].splitlines() if line.startswith("$ ")]
    body = "\n".join(f"$ {command}\n{screen(command, int(bound[1]) if bound else 0)}" for command in commands)
    head = f"<!-- screen: {how} -->\n" if how else ""
    return f"{head}```console\n{body}\n```"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pages", nargs="*", default=PAGES)
    parser.add_argument("--bench", action="store_true")


def run(arguments: argparse.Namespace) -> int:
    """Rewrite or check the pages one by one."""
    code = 0
    for name in arguments.pages:
        page = ROOT / name
        new = BLOCK.sub(
            lambda match: take_again(match, arguments.bench, arguments.check), page.read_text(encoding="utf-8")
        )
        code |= write_or_check(page, new, check=arguments.check, command="docs screens")
    return code
