"""The page of `ridgeline analyze --html` in a real browser: it draws, zooms, finds, stays smooth, and is alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from browser import Browser, browser, needs_browser
from page_traces import ranks
from planted import write_case
from planted_blind import BLIND
from traces import Recipe, make, write

import ridgeline
from ridgeline.cli.main import main
from ridgeline.core.encode import to_json
from ridgeline.report import trace_html

pytestmark = needs_browser
READY = "return !!window.ridgeline && !ridgeline.stage.goal && !ridgeline.stage.asked"
SMOOTH_MS = 1000 / 60
HOSTILE = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'>"
COLOURS = """
const {canvas, pens} = ridgeline.stage, seen = new Set();
const data = new Uint32Array(pens.canvas.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
for (const pixel of data) seen.add(pixel);
return [seen.size, data.reduce((sum, pixel, at) => (sum * 31 + pixel) % 1000003, 7)];"""


def run(*words: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ridgeline", *words])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    ranks(folder / "traces", 9000)
    run("analyze", str(folder / "traces"), "--html", str(folder / "report.html"))
    return folder / "report.html"


@pytest.fixture
def shown(report: Path, tmp_path: Path) -> Iterator[Browser]:
    with browser(tmp_path) as page:
        opened(page, report)
        yield page
        assert page.complaints() == []


def opened(page: Browser, report: Path) -> None:
    page.go(report.as_uri())
    page.wait(READY)


def emulate(shown: Browser, command: str, **arguments: object) -> Any:
    return shown.ask("/goog/cdp/execute", {"cmd": command, "params": arguments})


def press(shown: Browser, keys: str) -> None:
    """Keys as a person presses them."""
    actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
    shown.ask("/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})
    shown.wait(READY)


def test_it_draws_is_quiet_and_asks_for_nothing(report: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as page:
        opened(page, report)
        assert page.complaints() == []
        assert page.run("return performance.getEntriesByType('resource').length") == 0
        assert page.run("return document.title").startswith("Where does the time of rank0.json.gz")
        colours, _ = page.run(COLOURS)
        assert colours > 20, "the canvas is not blank"
        text = page.run("return document.body.innerText")
        for word in ("Findings", "Timeline", "Where the time went", "Classes", "Ops", "Roofline", "Why chips were idle",
                     "counted all", "exposed communication", "uneven ranks", "upper bound"):  # fmt: skip
            assert word in text, word
        blocked = "return fetch('http://127.0.0.1:9/').then(() => 'reached', wrong => 'blocked')"
        assert page.ask("/execute/sync", {"script": blocked, "args": []}) == "blocked"


def test_wheel_keys_and_buttons_move_what_is_drawn(shown: Browser) -> None:
    view = "return [ridgeline.stage.from, ridgeline.stage.to]"
    whole, (_, before) = shown.run(view), shown.run(COLOURS)
    shown.run("""ridgeline.stage.canvas.dispatchEvent(new WheelEvent('wheel',
        {deltaY: -80, ctrlKey: true, clientX: 700, clientY: 600, bubbles: true, cancelable: true}))""")
    shown.wait(READY)
    wheeled, (_, after) = shown.run(view), shown.run(COLOURS)
    assert wheeled[1] - wheeled[0] < 0.9 * (whole[1] - whole[0])
    assert before != after
    shown.run("ridgeline.stage.canvas.focus()")
    press(shown, "w")
    closer = shown.run(view)
    assert closer[1] - closer[0] == pytest.approx(0.7 * (wheeled[1] - wheeled[0]), rel=1e-6)
    press(shown, "d")
    assert shown.run(view)[0] > closer[0]
    press(shown, "f")
    assert shown.run(view) == pytest.approx(whole)
    shown.run("document.querySelector('#steps').value = '1';"
              "document.querySelector('#steps').dispatchEvent(new Event('change'))")  # fmt: skip
    shown.wait(READY)
    step = shown.run("return ridgeline.stage.data.facts.step_windows[1]")
    begin, end = shown.run(view)
    assert begin < step["start_ns"] < step["end_ns"] < end


def test_search_finds_and_legend_hides(shown: Browser) -> None:
    shown.run("const box = document.querySelector('#search'); box.value = 'flash_bwd';"
              "box.dispatchEvent(new Event('input'))")  # fmt: skip
    told = shown.wait("return document.querySelector('#matches').textContent")
    assert told.startswith("128 spans"), "16 layers x 2 steps x 4 ranks"
    shown.run("document.querySelector('#next').click()")
    shown.wait(READY)
    assert "flash_bwd" in shown.run("return document.querySelector('#details h3').textContent")
    shown.run("const box = document.querySelector('#search'); box.value = ''; box.dispatchEvent(new Event('input'));"
              "ridgeline.stage.fit(false)")  # fmt: skip
    shown.wait("return !document.querySelector('#matches').textContent")
    _, before = shown.run(COLOURS)
    button = "[...document.querySelectorAll('#legend button')].find(one => one.textContent === 'nccl')"
    shown.run(f"{button}.click()")
    shown.wait(READY)
    assert shown.run(f"return {button}.getAttribute('aria-pressed')") == "false"
    assert shown.run(COLOURS)[1] != before


def test_a_finding_shows_its_spans_and_a_span_its_launch(shown: Browser) -> None:
    exposed = "[...document.querySelectorAll('#findings li')].find(one => one.innerText.includes('exposed'))"
    button = f"{exposed}.querySelector('button')"
    row = int(shown.run(f"return {button}.textContent").removeprefix("#"))
    shown.run(f"{button}.click()")
    shown.wait(READY)
    stage = shown.run("const s = ridgeline.stage, d = s.data, p = s.selected;"
                      "return [d.row[p] + p, s.from, d.start[p], d.start[p] + d.duration[p], s.to]")  # fmt: skip
    assert stage[0] == row
    assert stage[1:] == sorted(stage[1:]), "the span lies inside the view"
    assert (stage[3] - stage[2]) / (stage[4] - stage[1]) > 0.1
    details = shown.run("return document.querySelector('#details').innerText")
    assert "ncclDevKernel_ReduceScatter" in details
    assert "cudaLaunchKernel" in details
    shown.run("document.querySelector('#details .link').click()")
    shown.wait(READY)
    assert "cudaLaunchKernel" in shown.run("return document.querySelector('#details h3').textContent")


def test_pointing_tells_and_clicking_selects(shown: Browser) -> None:
    shown.run("document.querySelector('#timeline-section').scrollIntoView(); ridgeline.stage.go(6e7, 7e7, false)")
    shown.wait(READY)
    box = shown.run("const at = ridgeline.stage.canvas.getBoundingClientRect(); return [at.left, at.top]")
    point = {"type": "pointerMove", "duration": 0, "x": int(box[0]) + 400, "y": int(box[1]) + 30}
    mouse = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}}
    shown.ask("/actions", {"actions": [mouse | {"actions": [point]}]})
    told = shown.wait("const tip = document.querySelector('#tip'); return !tip.hidden && tip.innerText")
    assert "duration" in told
    assert "launch" in told
    click = [{"type": kind, "button": 0} for kind in ("pointerDown", "pointerUp")]
    shown.ask("/actions", {"actions": [mouse | {"actions": click}]})
    shown.wait(READY)
    assert shown.run("return ridgeline.stage.selected") >= 0
    assert shown.run("return document.activeElement.id") == "canvas"
    before = shown.run("return ridgeline.stage.from")
    drag = [click[0], {**point, "x": point["x"] - 200}, click[1]]
    shown.ask("/actions", {"actions": [mouse | {"actions": drag}]})
    shown.wait(READY)
    moved = shown.run(f"return (ridgeline.stage.from - {before}) * ridgeline.stage.scale")
    assert moved == pytest.approx(200, abs=2)


def test_tables_sort(shown: Browser) -> None:
    column = "[...document.querySelectorAll('#ops tbody tr')].map(row => row.children[4].textContent.replace(/,/g, ''))"
    shown.run("document.querySelectorAll('#ops th button')[4].click()")
    counts = [int(text) for text in shown.run(f"return {column}")]
    assert counts == sorted(counts, reverse=True)
    shown.run("document.querySelectorAll('#ops th button')[4].click()")
    assert [int(text) for text in shown.run(f"return {column}")] == sorted(counts)
    assert shown.run("return document.querySelectorAll('#ops th')[4].getAttribute('aria-sort')") == "ascending"


def test_it_fits_a_telephone_the_dark_and_those_who_want_no_motion(report: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as page:
        emulate(page, "Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=2, mobile=True)
        opened(page, report)
        assert page.run("return document.documentElement.scrollWidth") <= 400
        light = page.run("return getComputedStyle(document.body).backgroundColor")
        drawn = page.run(COLOURS)
        wanted = [
            {"name": "prefers-color-scheme", "value": "dark"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        emulate(page, "Emulation.setEmulatedMedia", features=wanted)
        page.wait(READY)
        assert page.run("return getComputedStyle(document.body).backgroundColor") != light
        redrawn = (
            f"return JSON.stringify((() => {{{COLOURS}}})()) !== {json.dumps(json.dumps(drawn, separators=(',', ':')))}"
        )
        page.wait(redrawn)  # with the next frame, whenever a busy machine has one
        page.run("ridgeline.stage.go(0, 1e6)")
        assert page.run("return ridgeline.stage.to") == 1e6, "no motion"
        assert page.complaints() == []


def test_without_a_stream_to_inflate_with_the_page_says_what_to_do(report: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as page:
        emulate(page, "Page.addScriptToEvaluateOnNewDocument", source="delete window.DecompressionStream")
        page.go(report.as_uri())
        told = page.wait("return document.querySelector('#about').textContent")
        assert told.startswith("This page cannot be shown: this browser has no DecompressionStream;")
        assert "update it" in told


def test_a_copy_tells_its_bytes(shown: Browser) -> None:
    copy = "data.names[data.name[place]].startsWith('Memcpy')"
    shown.run(f"""const {{stage}} = ridgeline, {{data}} = stage;
        for (let place = 0; place < data.count; place++) if ({copy}) {{ stage.select(place); break; }}""")
    shown.wait(READY)
    told = shown.wait("return document.querySelector('#details').innerText")
    assert "2.1 MB" in told


def test_what_else_an_analysis_carries_is_shown_and_nothing_it_says_is_run(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def more(found: Any) -> dict[str, Any]:
        return to_json(found) | {
            "what_if": [
                {"change": f"matmul 2x faster {HOSTILE}", "step_us": 1234.0, "gain_share": 0.25, "span_ids": [40]}
            ],
            "critical_path": None,
            "more_of_it": {"length_us": 99.0, "parts": [{"class": "nccl", "total_us": 12.0}]},
            "memory": {"peak_bytes": 8e9},
            "warnings": [HOSTILE],
        }

    monkeypatch.setattr(trace_html, "to_json", more)
    target = tmp_path / "more.html"
    run("analyze", str(report.parent / "traces"), "--html", str(target), "--html-spans", "2000")
    with browser(tmp_path) as page:
        opened(page, target)
        text = page.run("return document.querySelector('#sections').innerText")
        for word in ("What if", "1.234 ms", "25.0 %", "More of it", "99 µs", "Memory", "8 GB", "keeps 2,000 of 9,"):
            assert word in text, word
        assert HOSTILE in text
        assert page.run("return window.broken || 0") == 0
        assert page.run("return document.scripts.length") == 4
        assert page.complaints() == []


def test_a_predicted_step_has_the_same_page(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "llama3-70b-64xh100.toml"
    target = tmp_path / "step.html"
    run("timeline", str(example), "--set", "workload.global_batch=8", "--html", str(target))
    with browser(tmp_path) as page:
        opened(page, target)
        text = page.run("return document.body.innerText")
        for word in (
            "Where does a step of llama3-70b on 64xh100-sxm go?",
            "pp=2",
            "90% probability",
            "stage 0",
            "stage 1",
            "compute",
            "memory, peak",
        ):
            assert word in text, word
        assert page.run(COLOURS)[0] > 20
        assert page.complaints() == []


def test_two_hundred_thousand_spans_stay_smooth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "large.html"
    run("analyze", str(ranks(tmp_path / "traces", 206_000)), "--html", str(target))
    with browser(tmp_path) as page:
        opened(page, target)
        spans = page.run("return ridgeline.stage.data.count")
        assert spans >= 200_000
        page.run("for (const process of [...ridgeline.stage.folded]) ridgeline.stage.fold(process, false)")
        page.run("document.querySelector('#show-path').click()")
        assert page.run("return ridgeline.stage.shown") == {"gaps": True, "path": True, "arrows": False}
        page.run("ridgeline.measure(60)")
        found = page.wait("return window.__frames", 60)
        assert page.complaints() == []
    drawing = found["drawing"]
    with capsys.disabled():
        size = target.stat().st_size / 1e6
        print(f"\n{spans:,} spans, {size:.1f} MB: a frame in {drawing['median']:.1f} ms (median of 60, panning and "
              f"zooming), 95 % within {drawing['p95']:.1f} ms, longest {drawing['longest']:.1f} ms")  # fmt: skip
    assert drawing["median"] < SMOOTH_MS


def test_times_of_the_critical_path_have_units(shown: Browser) -> None:
    texts = shown.run("return [...document.querySelectorAll('#critical-path td')].map(cell => cell.textContent)")
    assert any(text.endswith((" ms", " µs")) for text in texts)
    heads = shown.run("return [...document.querySelectorAll('#critical-path th')].map(cell => cell.textContent)")
    assert "us" not in heads


def test_columns_of_memory_do_not_overlap(tmp_path: Path) -> None:
    trace = make(Recipe())
    ops = [event for event in trace["traceEvents"] if event.get("cat") == "cpu_op"]
    for number, op in enumerate(ops, 1):
        told = {
            "Device Type": 1,
            "Device Id": 0,
            "Total Allocated": number * 10**9,
            "Total Reserved": number * 2 * 10**9,
        }
        at = {"pid": op["pid"], "tid": op["tid"], "ts": op["ts"] + 0.2}
        trace["traceEvents"].append(
            {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "args": told} | at
        )
    run("analyze", str(write(trace, tmp_path / "rank0.json")), "--html", str(tmp_path / "report.html"))
    with browser(tmp_path) as page:
        opened(page, tmp_path / "report.html")
        overlaps = page.run("""
            const cells = [...document.querySelectorAll('#more-memory tr')].map(row => [...row.children]);
            const edge = part => part.getBoundingClientRect().right;
            const right = cell => Math.max(...[...cell.querySelectorAll('*')].map(edge), 0);
            return [cells.length, cells.flatMap(row => row.slice(1).map((cell, at) =>
                right(row[at]) > cell.getBoundingClientRect().left + 1 ? cell.textContent : '')).filter(Boolean)];""")
        assert overlaps[0] > 1
        assert overlaps[1] == []
        assert "GB" in page.run("return document.querySelector('#more-memory .named').textContent")


def test_what_if_in_the_page_is_the_replay_of_the_library(report: Path, shown: Browser) -> None:
    """The page replays the same graph: the same question has the same answer."""
    asked = ("matmul x2", "nccl x4", "no launch gaps")
    answers = ridgeline.analyze(report.parent / "traces", what_if=asked).what_if
    classes = shown.run("return ridgeline.stage.data.replay_classes")
    for one, factors, gaps in zip(
        answers, ([["matmul", 2]], [["nccl", 4]], []), (False, False, True), strict=False
    ):  # fmt: skip
        given = json.dumps([[classes.index(name), factor] for name, factor in factors])
        said = shown.run(f"return ridgeline.whatIf({given}, {str(gaps).lower()})")
        assert said["before"] == pytest.approx(one.before_ns, abs=2)
        assert said["after"] == pytest.approx(one.after_ns, rel=1e-6, abs=50), one.question
    shown.run(
        "const box = document.querySelector('#what-gaps'); box.checked = true; box.dispatchEvent(new Event('input'))"
    )
    assert "less" in shown.run("return document.querySelector('#what-answer').textContent")


def test_gaps_path_arrows_ranges_heat_map_and_histogram(shown: Browser) -> None:
    _, before = shown.run(COLOURS)
    seen = {before}
    for layer in ("path", "arrows", "gaps"):
        shown.run(f"document.querySelector('#show-{layer}').click()")
        shown.wait(READY)
        _, now = shown.run(COLOURS)
        assert now not in seen, layer
        seen.add(now)
    parts = shown.run("const p = ridgeline.rangeParts(0, ridgeline.stage.data.window_ns); return [p.busy, p.many]")
    busy = shown.run("return ridgeline.stage.data.facts.busy_us")
    assert parts[1] == 4
    assert parts[0] == pytest.approx(busy * 1e3, rel=1e-6)
    assert shown.run("return document.querySelectorAll('.heat button').length") == 4 * 2
    shown.run("document.querySelector('.heat button').click()")
    shown.wait(READY)
    shown.run("ridgeline.stage.show(ridgeline.stage.data.launch.findIndex(call => call >= 0))")
    shown.wait(READY)
    assert shown.run("return document.querySelectorAll('.histogram span').length") == 32
    text = shown.run("return document.body.innerText")
    for word in ("Collectives", "Critical path", "What if", "Ranks by steps", "of this name"):
        assert word in text, word


def test_a_gap_of_a_finding_is_shown_with_what_the_host_did(tmp_path: Path) -> None:
    target = tmp_path / "gap.html"
    trace = write(make(Recipe(gap_us=400.0, layers=4, cause="data")), tmp_path / "trace.json")
    run("analyze", str(trace), "--html", str(target))
    with browser(tmp_path) as page:
        opened(page, target)
        page.run("document.querySelector('.link.gap').click()")
        page.wait(READY)
        box = page.run("return document.querySelector('#range').innerText")
        for word in ("selected", "idle: data loading", "What the host did meanwhile", "enumerate(DataLoader)"):
            assert word in box, word
        gap = page.run("return ridgeline.stage.data.facts.findings.find(one => one.gap).gap")
        view = page.run("const s = ridgeline.stage; return [s.from + s.data.first_ns, s.to + s.data.first_ns]")
        assert view[0] <= gap["start_us"] * 1e3 < gap["end_us"] * 1e3 <= view[1], "the gap itself is shown"
        assert page.complaints() == []


def test_host_stacks_are_a_flame_graph_of_the_time_that_is_selected(tmp_path: Path) -> None:
    """Python's functions, outermost on top; a gap without a finding has its stack too."""
    run("analyze", str(write_case(BLIND["starved-rank"], tmp_path)), "--html", str(tmp_path / "flame.html"))
    boxes = "[...document.querySelectorAll('#flame-boxes button')]"
    with browser(tmp_path) as page:
        opened(page, tmp_path / "flame.html")
        whole = page.run(f"return {boxes}.length")
        assert whole > 10
        tree = page.run("""const root = ridgeline.flameOf(-Infinity, Infinity), {data} = ridgeline.stage;
            let own = 0, most = 0;
            const walk = box => {
                const kids = [...box.kids.values()].reduce((sum, one) => sum + one.ns, 0);
                most = Math.max(most, box.name < 0 ? 0 : kids - box.ns);
                for (const one of box.kids.values()) walk(one);
            };
            walk(root);
            return [root.ns, most, [...root.kids.keys()].map(code => data.names[code])];""")
        assert tree[0] > 0
        assert tree[1] < 1, "what is inside a box is not longer than the box"
        page.run("""const {data} = ridgeline.stage, chip = data.processes.findIndex(one => !one.host && one.rank === 5);
            let at = -1;
            data.gap_process.forEach((one, place) => {
                if (one === chip && (at < 0 || data.gap_length[place] > data.gap_length[at])) at = place; });
            const start = (data.gap_start[at] + data.first_ns) / 1e3, end = start + data.gap_length[at] / 1e3;
            ridgeline.showGap({process: data.processes[chip].name, start_us: start, end_us: end});""")
        page.wait(READY)
        box = page.run("return document.querySelector('#range').innerText")
        assert "What the host did meanwhile" in box
        assert "multiprocessing/queues.py(103): get" in box
        titles = page.run(f"return {boxes}.map(one => one.title)")
        assert any("selectors.py(402): select" in one for one in titles)
        assert len(titles) < whole
        page.run(f"{boxes}.find(one => one.title.includes('_next_data')).click()")
        assert "_next_data" in page.run("return document.querySelector('#flame-about').innerText")
        assert page.complaints() == []
