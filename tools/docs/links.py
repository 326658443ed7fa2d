"""Check that every relative link of a Markdown page names a file of the repository and, behind #, a heading of it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tools.pages import ROOT

LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]*)(?:#([^)\s]*))?\)")
PAGES = ("*.md", "docs/**/*.md")


@cache
def headings(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles)


def broken_links() -> Iterator[str]:
    """A line for each link whose file or heading is not there."""
    for page in sorted({path for pattern in PAGES for path in ROOT.glob(pattern)}):
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            for match in LINK.finditer(line):
                target = Path(page.parent, match[1]) if match[1] else page
                if not target.exists():
                    yield f"{page.relative_to(ROOT)}:{number}: no file {match[1]}"
                elif match[2] and target.suffix == ".md" and match[2] not in headings(target.resolve()):
                    yield f"{page.relative_to(ROOT)}:{number}: no heading {match[0][2:-1]}"


def run(_: argparse.Namespace) -> int:
    """Print broken links; exit code 1 where there is one."""
    problems = list(broken_links())
    print("\n".join(problems) or "every link names a file")
    return int(bool(problems))
