"""Every kind of page in Chromium and Firefox, wide and on a telephone, light, dark and on paper: nothing is cut off,
lies on something else, is too pale to read, or complains."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from browser import Browser, browser, needs_browser
from firefox import Firefox, firefox, needs_firefox
from page_kinds import KINDS, bringup_pages

AUDIT = (Path(__file__).parent / "page_audit.js").read_text(encoding="utf-8")
WIDE, NARROW, PAPER = 1400, 390, 720  # pixels of a screen, a telephone and a sheet
NAMES = (*KINDS, "bringup", "bringup-right", "bringup-faults", "bringup-dump")
DRAWN = "return document.readyState === 'complete' && (!document.getElementById('data-facts') || !!window.ridgeline)"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, write in {**KINDS, **bringup_pages()}.items():
        found[name] = folder / f"{name}.html"
        write(found[name])
    return found


def audit(shown: Browser | Firefox, theme: str = "light") -> list[str]:
    """What is wrong with the page on screen."""
    shown.run(f"document.documentElement.dataset.theme = '{theme}'")
    return list(shown.run(AUDIT))


def media(shown: Browser, width: int, kind: str = "") -> None:
    """A screen of a width, or paper."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    shown.ask("/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": size})
    shown.ask("/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {"media": kind}})


@needs_browser
@pytest.mark.slow
def test_every_page_in_chromium(pages: dict[str, Path], tmp_path: Path) -> None:
    found: dict[str, list[str]] = {}
    with browser(tmp_path) as shown:
        for name in NAMES:
            for width in (WIDE, NARROW, PAPER):
                media(shown, width, "print" if width == PAPER else "")
                shown.go(pages[name].as_uri())
                shown.wait(DRAWN)
                for theme in ("light", "dark") if width == WIDE else ("light",):
                    found[f"{name} at {width}, {theme}"] = audit(shown, theme)
            found[f"{name} says"] = shown.complaints()
    assert {place: wrong for place, wrong in found.items() if wrong} == {}


@needs_firefox
@pytest.mark.slow
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_every_page_in_firefox(pages: dict[str, Path], tmp_path: Path, width: int) -> None:
    """A window is at least 500 pixels wide, so a page has a frame of the width."""
    found: dict[str, list[str]] = {}
    frame = tmp_path / "frame.html"
    with firefox(tmp_path) as shown:
        for name in NAMES:
            source = f"<!doctype html><iframe src='{pages[name].as_uri()}' width={width} height=900></iframe>"
            frame.write_text(source, encoding="utf-8")
            shown.go(frame.as_uri())
            shown.enter_frame()
            shown.wait(DRAWN)
            assert shown.run("return innerWidth") == width
            found[f"{name}, light"] = audit(shown)
            found[f"{name}, dark"] = audit(shown, "dark")
        found["the console"] = shown.complaints()
    assert {place: wrong for place, wrong in found.items() if wrong} == {}


BAD = """<!doctype html><meta charset=utf-8><style>body {{ margin: 0; }} p {{ position: absolute; margin: 0; }}</style>
<title>bad</title>{}"""


@pytest.mark.parametrize(
    ("markup", "problem"),
    [
        ("<p style='left: 0; top: 0'>under</p><p style='left: 4px; top: 2px'>upper</p>", "on each other"),
        ("<p style='color: #aaa'>pale</p>", "too pale"),
        ("<p style='width: 30px; overflow: hidden; white-space: nowrap'>much too long for it</p>", "cut off"),
        ("<svg width=40 height=40 style='overflow: hidden'><text x=10 y=20>longer than it</text></svg>", "cut off"),
        ("<p style='width: 4000px'>wide</p>", "the body scrolls sideways"),
    ],
)
@needs_browser
def test_the_audit_finds_what_is_wrong(markup: str, problem: str, chromium: Browser, tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text(BAD.format(markup), encoding="utf-8")
    chromium.go(path.as_uri())
    wrong: list[Any] = chromium.run(AUDIT)
    assert [line for line in wrong if line.startswith(problem)], wrong


@needs_browser
def test_a_plan_reads_well_at_any_width(chromium: Browser, tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    KINDS["plan-systems"](path)
    for width in (WIDE, NARROW):
        media(chromium, width)
        chromium.go(path.as_uri())
        assert audit(chromium) == []
    assert chromium.complaints() == []


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    session: AbstractContextManager[Browser] = browser(tmp_path_factory.mktemp("chromium"))
    with session as shown:
        yield shown
