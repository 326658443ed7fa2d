"""The toolbox of the HTML pages: one policy on each of them, by hashes, and no text of a stranger that is markup."""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.calibrate.validate import validate
from ridgeline.cli.main import main
from ridgeline.plan.scenario_file import read_scenario
from ridgeline.report import serve_html, trace_html
from ridgeline.report import validate_html as validate_report
from ridgeline.report.html import Scale, document, dot, escape_text, facts, label, policy, table
from ridgeline.serving.serving_prediction import ServingPrediction, predict_serving
from ridgeline.trace.analyze_traces import analyze
from ridgeline.trace.timeline import Span, Timeline

HOSTILE = "</title></style></script><script>alert(1)</script><img src=x onerror=alert(2)>\"'><b>"


def hashed(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def blocks(page: str, tag: str) -> list[str]:
    return re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)


def policy_of(page: str) -> dict[str, str]:
    found = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    assert len(found) == 1
    return dict(part.split(" ", 1) for part in found[0].split("; "))


def traced(folder: Path) -> str:
    spans = [Span(process="chip", stream="s", name=HOSTILE, kind="kernel", start_ns=0, duration_ns=1_000_000)]
    return trace_html.page(analyze(Timeline.of(spans)))[0]


def planned(folder: Path) -> str:
    asked = ("llama3-8b", "--on", "8xh100-sxm", "--global-batch", "64", "--set", "plan.pp=1", "--no-refine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ridgeline", "plan", *asked, "--html", str(folder / "plan.html"), "--json"])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    return (folder / "plan.html").read_text(encoding="utf-8")


def validated(folder: Path) -> str:
    return validate_report.validation_page(validate(where=["source=h200"]), HOSTILE)


def served(folder: Path) -> str:
    scenario = read_scenario("examples/serve-llama3.1-8b-1xh100.toml", ["workload.requests=40"])
    found = predict_serving(replace(scenario, name=HOSTILE), sample=True)
    assert isinstance(found, ServingPrediction)
    return serve_html.serving_page(found)


@pytest.mark.parametrize("made", [traced, planned, validated, served])
def test_a_page_allows_its_own_style_and_script_by_hash_and_nothing_else(
    made: Callable[[Path], str], tmp_path: Path
) -> None:
    page = made(tmp_path)
    told = policy_of(page)
    assert told["default-src"] == told["base-uri"] == told["form-action"] == "'none'"
    assert [hashed(text) for text in blocks(page, "style")] == [told["style-src"]]
    assert [hashed(text) for text in blocks(page, "script")] == ([told["script-src"]] if "script-src" in told else [])
    assert "unsafe" not in " ".join(told.values())
    assert "alert(2)>" not in page
    assert page.index("Content-Security-Policy") < page.index("<style>"), "a policy counts from where it stands"


def test_no_page_needs_what_its_policy_forbids() -> None:
    """A `style` attribute or a handler in markup would be blocked, silently for the reader."""
    folder = Path(trace_html.__file__).parent
    for source in (
        *folder.glob("*_html.py"),
        *(folder / f"{name}.py" for name in ("html", "skeleton", "chart")),
        *folder.glob("trace_page/*"),
    ):
        text = source.read_text(encoding="utf-8")
        assert not re.search(r"""<[a-z]+[^>]*\s(?:style|on[a-z]+)=["'{]""", text), source.name


@pytest.mark.parametrize(
    "markup",
    [
        document(title=HOSTILE, body="", style=""),
        facts([(HOSTILE, HOSTILE)]),
        table((HOSTILE,), [(HOSTILE,)], text=(0,)),
        label(HOSTILE, 0, 0),
        dot(0, 0, 1, kind="dot", told=HOSTILE, more=f' data-told="{escape_text(HOSTILE)}"'),
    ],
)
def test_text_of_a_stranger_is_never_markup(markup: str) -> None:
    assert "<script" not in markup
    assert "<img" not in markup
    assert "<b>" not in markup.replace("<div><b>", "")


def test_control_characters_and_endless_texts_do_not_reach_a_page() -> None:
    assert escape_text("a\x00b\x1b") == "a\ufffdb\ufffd"
    assert len(escape_text("a" * 10_000)) == 400


def test_another_script_is_another_policy() -> None:
    assert policy("p {}", "1") != policy("p {}", "2")
    assert "script-src" not in policy("p {}")


def test_a_scale_is_linear_until_the_values_span_much() -> None:
    assert not Scale.of([1, 4], 0, 1).log
    assert Scale.of([1, 4.01], 0, 1).log
    assert not Scale.of([0, 1000], 0, 1).log, "nothing has no logarithm"
    down = Scale.of([1, 100], 300, 20)
    assert (down(1), down(100)) == (300, 20)
    assert down.ticks() == [1, 2, 5, 10, 20, 50, 100]
    assert [round(down(tick)) for tick in down.ticks()][::3] == [300, 160, 20]
