"""Every link of the documentation to a file of the repository leads somewhere, and so does every path it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
NAMED = re.compile(r"`((?:src/ridgeline|tests|benchmarks|docs|examples)/[\w./-]+)`")
RECORDS = {"LOG.md", "CHANGELOG.md"}  # what was true then


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = [target for target in LINK.findall(text) if "://" not in target and not target.startswith("mailto:")]
    broken = [target for target in targets if not (page.parent / target).exists()]
    told = "" if page.name in RECORDS or "decisions" in page.parts else text
    named = [one for one in NAMED.findall(told) if "ID" not in one]
    broken += [target for target in named if not list(ROOT.glob(target.rstrip("/")))]
    assert not broken
