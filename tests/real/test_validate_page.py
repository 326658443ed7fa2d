"""The page of `ridgeline validate --html` in a real browser: whole, quiet, alone, and readable at any width."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from browser import Browser, browser, needs_browser

from ridgeline.cli.main import main

pytestmark = needs_browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("page") / "validation.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ridgeline", "validate", "--where", "source=h200,tpu", "--html", str(target)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    return target


def emulate(shown: Browser, command: str, **arguments: object) -> None:
    shown.ask("/goog/cdp/execute", {"cmd": command, "params": arguments})


def test_it_is_whole_and_quiet_and_asks_for_nothing(page: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as shown:
        shown.go(page.as_uri())
        assert shown.run("return document.title").endswith("| Ridgeline validate")
        assert shown.complaints() == []
        assert shown.run("return performance.getEntriesByType('resource').length") == 0
        assert shown.run("return document.scripts.length") == 0
        sizes = shown.run("return [...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().width)")
        assert len(sizes) == 6
        assert min(sizes) > 300
        dots = shown.run("return document.querySelector('svg').querySelectorAll('circle').length")
        assert dots == int(shown.run("return document.querySelector('.facts b').innerText").replace(",", ""))
        inside = """
        const drawn = document.querySelector('svg').getBoundingClientRect();
        return [...document.querySelector('svg').querySelectorAll('circle')].every(dot => {
          const at = dot.getBoundingClientRect();
          return at.left >= drawn.left && at.right <= drawn.right && at.top >= drawn.top && at.bottom <= drawn.bottom;
        })"""
        assert shown.run(inside)
        assert shown.run("return document.querySelector('circle title').textContent.includes('measured')")


def test_no_text_is_cut_off(page: Path, tmp_path: Path) -> None:
    cut = """
    return [...document.querySelectorAll('svg')].flatMap(svg => {
      const drawn = svg.getBoundingClientRect();
      return [...svg.querySelectorAll('text')].filter(text => {
        const at = text.getBoundingClientRect();
        return at.left < drawn.left - 1 || at.right > drawn.right + 1 || at.bottom > drawn.bottom + 1;
      }).map(text => text.textContent);
    })"""
    with browser(tmp_path) as shown:
        shown.go(page.as_uri())
        assert shown.run(cut) == []


def test_it_fits_a_telephone_and_the_dark(page: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as shown:
        emulate(shown, "Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=True)
        shown.go(page.as_uri())
        assert shown.run("return document.documentElement.scrollWidth") <= 400
        light = shown.run("return getComputedStyle(document.body).backgroundColor")
        emulate(shown, "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        assert shown.run("return getComputedStyle(document.body).backgroundColor") != light
