"""Write generated text between the markers of a page, or report that the page is out of date."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def replace_block(text: str, name: str, block: str, end: str = "end") -> str:
    """The text with the lines between `<!-- name -->` and `<!-- end -->` replaced by a block.

    >>> replace_block("<!-- a -->\\nold\\n<!-- end -->", "a", "new")
    '<!-- a -->\\nnew\\n<!-- end -->'
    """
    pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- {re.escape(end)} -->)", re.DOTALL)
    return pattern.sub(lambda match: f"{match[1]}{block.strip(chr(10))}\n{match[2]}", text)


def write_or_check(path: Path, new: str, *, check: bool, command: str) -> int:
    """Write a file, or return 1 and name the command where `check` finds another text."""
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    name = path.relative_to(ROOT)
    if not check:
        path.write_text(new, encoding="utf-8")
        return 0
    if old != new:
        print(f"{name} is out of date: run `python -m tools {command}`")
        return 1
    print(f"{name} is up to date")
    return 0
