"""The HTML page of a plan in a real browser: it draws, answers to pointing and keys, and complains of nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from browser import Browser, browser, needs_browser

from ridgeline.cli.main import main

pytestmark = needs_browser
DOTS = "document.querySelectorAll('figure[data-chart] circle[data-told]')"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("page") / "plan.html"
    asked = ["ridgeline", "plan", "llama3-8b", "--on", "h100-sxm", "--chips", "8..32", "--global-batch", "64"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [*asked, "--set", "plan.pp=1", "--html", str(target), "--json"])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    return target


def told(shown: Browser, event: str) -> bool:
    """Whether an event at the first dot makes its chart tell what it is."""
    shown.run(f"const dot = {DOTS}[0]; dot.closest('figure').querySelector('.told').textContent = ''; {event}")
    return bool(shown.run(f"const dot = {DOTS}[0]; return dot.closest('figure').querySelector('.told').textContent "
                          "=== dot.dataset.told"))  # fmt: skip


def test_it_draws_tells_and_is_quiet_under_its_policy(page: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as shown:
        shown.go(page.as_uri())
        assert shown.run(f"return {DOTS}.length") >= 5, "the frontier and three sizes"
        assert told(shown, "dot.dispatchEvent(new MouseEvent('mouseenter'))")
        assert shown.run(f"return {DOTS}[0].tabIndex >= 0")
        assert told(shown, "dot.dispatchEvent(new FocusEvent('focus'))")  # a page in the background gets none by itself
        assert shown.run("return performance.getEntriesByType('resource').length") == 0
        assert shown.complaints() == []


def test_bars_of_limits_are_as_long_as_steps(page: Path, tmp_path: Path) -> None:
    """Each size has a bar of its own parts, all on one axis, and a legend for every part that is drawn."""
    with browser(tmp_path) as shown:
        shown.go(page.as_uri())
        bars = shown.run("""const figure = [...document.querySelectorAll('h2')].find(one =>
              one.textContent === 'What limits the step').parentElement.querySelector('figure svg');
            return [...figure.querySelectorAll('rect')].map(part => [part.getAttribute('y'), part.getAttribute('class'),
              part.getBoundingClientRect().width, getComputedStyle(part).fill])""")
        rows = sorted({float(top) for top, *_ in bars})
        assert len(rows) == 3
        lengths = [sum(wide for top, _, wide, _ in bars if float(top) == row) for row in rows]
        assert lengths == sorted(lengths, reverse=True), "more chips are faster"
        drawn = {kind: colour for _, kind, wide, colour in bars if wide > 0}
        assert len(set(drawn.values())) == len(drawn), "each kind has a colour of its own"
        key = shown.run("return [...document.querySelectorAll('.key rect')].map(one => one.getAttribute('class'))")
        assert set(drawn) <= set(key)


def test_no_text_of_a_chart_is_cut_off(page: Path, tmp_path: Path) -> None:
    cut = """
    return [...document.querySelectorAll('figure svg')].flatMap(svg => {
      const drawn = svg.getBoundingClientRect();
      return [...svg.querySelectorAll('text')].filter(text => {
        const at = text.getBoundingClientRect();
        return at.left < drawn.left || at.right > drawn.right + 1 || at.bottom > drawn.bottom + 1;
      }).map(text => text.textContent);
    })"""
    with browser(tmp_path) as shown:
        shown.go(page.as_uri())
        assert shown.run(cut) == []


def test_what_a_page_did_not_bring_does_not_run(page: Path, tmp_path: Path) -> None:
    foreign = "<script>window.broken = 1</script><img src=x onerror='window.broken = 2'></body>"
    broken = tmp_path / "broken.html"
    broken.write_text(page.read_text(encoding="utf-8").replace("</body>", foreign), encoding="utf-8")
    with browser(tmp_path) as shown:
        shown.go(broken.as_uri())
        assert shown.run("return window.broken || 0") == 0
        assert any("Content Security Policy" in line for line in shown.complaints())
        assert told(shown, "dot.dispatchEvent(new MouseEvent('mouseenter'))"), "its own script does"


def test_every_column_of_the_best_plans_is_on_the_page(page: Path, tmp_path: Path) -> None:
    """Plans in long words break into lines instead of pushing MFU behind a scrollbar."""
    long = page.with_name("long.html")
    text = page.read_text(encoding="utf-8")
    first = text.index("<td", text.index("<h2>The best plans"))
    start = text.index(">", first) + 1
    long.write_text(text[:start] + "pp=8 dp=2 cp=2 tp=2, microbatch 1, " * 8 + text[start:], encoding="utf-8")
    with browser(tmp_path) as shown:
        shown.go(long.as_uri())
        widths = shown.run(
            "return [...document.querySelectorAll('.wide')].map(box => [box.scrollWidth, box.clientWidth])"
        )
        assert widths
        assert all(whole <= seen for whole, seen in widths)
