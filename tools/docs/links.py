"""Check that every relative link of a Markdown page names a file or a folder of the repository."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from tools.pages import ROOT

LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)")
PAGES = ("*.md", "docs/**/*.md")


def broken_links() -> Iterator[str]:
    """A line for each link whose file is not there."""
    for page in sorted({path for pattern in PAGES for path in ROOT.glob(pattern)}):
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            for match in LINK.finditer(line):
                if not Path(page.parent, match[1]).exists():
                    yield f"{page.relative_to(ROOT)}:{number}: no file {match[1]}"


def run(_: argparse.Namespace) -> int:
    """Print broken links; exit code 1 where there is one."""
    problems = list(broken_links())
    print("\n".join(problems) or "every link names a file")
    return int(bool(problems))
