"""The page of `ridgeline analyze --html` in a real Firefox: it draws, zooms, replays, shows stacks, stays smooth."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from firefox import firefox, needs_firefox
from page_traces import ranks
from planted import write_case
from planted_blind import BLIND

import ridgeline
from ridgeline.report.trace_html import write_trace_page

pytestmark = needs_firefox
READY = "return !!window.ridgeline && !ridgeline.stage.goal && !ridgeline.stage.asked"
COLOURS = """
const {canvas, pens} = ridgeline.stage, seen = new Set();
const data = pens.canvas.getImageData(0, 0, canvas.width, canvas.height).data;
for (const pixel of new Uint32Array(data.buffer)) seen.add(pixel);
return seen.size;"""


def test_it_draws_zooms_replays_and_shows_stacks(tmp_path: Path) -> None:
    found = ridgeline.analyze(write_case(BLIND["starved-rank"], tmp_path), what_if=("matmul x2",))
    write_trace_page(found, tmp_path / "report.html")
    with firefox(tmp_path) as page:
        page.go((tmp_path / "report.html").as_uri())
        page.wait(READY)
        assert page.run("return performance.getEntriesByType('resource').length") == 0
        assert page.run(COLOURS) > 20, "the canvas is not blank"
        text = page.run("return document.body.innerText")
        for word in ("Findings", "late rank", "Timeline", "Host stacks", "Ranks by steps", "Collectives", "What if"):
            assert word in text, word
        view = "return ridgeline.stage.to - ridgeline.stage.from"
        whole = page.run(view)
        page.run("""ridgeline.stage.canvas.dispatchEvent(new WheelEvent('wheel',
            {deltaY: -80, ctrlKey: true, clientX: 700, clientY: 600, bubbles: true, cancelable: true}))""")
        page.wait(READY)
        assert page.run(view) < 0.9 * whole
        code = page.run("return ridgeline.stage.data.replay_classes.indexOf('matmul')")
        said = page.run(f"return ridgeline.whatIf([[{code}, 2]], false)")
        assert said["after"] == pytest.approx(found.what_if[0].after_ns, rel=1e-6, abs=50)
        stacks = page.run("return [...document.querySelectorAll('#flame-boxes button')].map(one => one.title)")
        assert any("_get_data" in one for one in stacks)
        assert page.complaints() == []


@pytest.mark.slow
def test_two_hundred_thousand_spans_stay_smooth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_trace_page(ridgeline.analyze(ranks(tmp_path / "traces", 206_000)), tmp_path / "large.html")
    with firefox(tmp_path) as page:
        page.go((tmp_path / "large.html").as_uri())
        page.wait(READY)
        assert page.run("return ridgeline.stage.data.count") >= 200_000
        page.run("for (const process of [...ridgeline.stage.folded]) ridgeline.stage.fold(process, false)")
        page.run("ridgeline.measure(60)")
        drawing = page.wait("return window.__frames", 60)["drawing"]
        with capsys.disabled():
            print(f"\nFirefox {page.about['browserVersion']}: a frame in {drawing['median']:.1f} ms, "
                  f"95 % within {drawing['p95']:.1f} ms")  # fmt: skip
        assert page.complaints() == []
    assert drawing["median"] < 1000 / 60
