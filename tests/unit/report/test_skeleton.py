"""Every page has the same head and foot, and names, commands and strangers' texts in them are safe."""

from __future__ import annotations

import re

import pytest

import ridgeline
from ridgeline.report import page
from ridgeline.report.roofline_html import roofline_page
from ridgeline.report.skeleton import PageHead, page_document
from ridgeline.version import __version__

HEAD = PageHead(
    verb="plan",
    question="How should llama3-8b be trained on 64xh100-sxm?",
    answer="tp=4 takes 17.7 s a step.",
    certainty="12.9 s to 22.7 s with 90% probability.",
    subject=(("Model", "llama3-8b"), ("Run", "")),
    evidence="Measured runs up to 2026.",
    command="ridgeline plan --set 'plan.precision=fp8' --html /a/long/path/that/does/not/fit/in/a/line.html",
)


def test_the_head_asks_answers_and_says_how_sure() -> None:
    text = page_document(HEAD, "<p>body</p>")
    assert text.index("<h1") < text.index('class="answer"') < text.index('class="certainty"') < text.index("<main>")
    assert "Run" not in text, "what is empty is left out"
    assert f"Ridgeline {__version__}" in text[text.index("<footer") :]
    assert text.count("plan.precision=fp8") == 2, "in the head and in the foot"
    assert "Measured runs up to 2026." in text


def test_names_stay_whole_and_long_words_may_break() -> None:
    text = page_document(HEAD, "")
    assert '<span class="id">64xh100-sxm</span>' in text
    assert "<span>/a/long/path" in text
    assert re.search(r'<span class="id">(&#x27;)?plan\.precision=fp8', text)


def test_strangers_are_escaped_everywhere() -> None:
    bad = "<script>alert(1)</script>"
    head = PageHead(verb=bad, question=bad, answer=bad, certainty=bad, subject=((bad, bad),), evidence=bad, command=bad)
    assert bad not in page_document(head, "")


def test_without_a_command_nothing_says_how_to_write_it_again() -> None:
    made = ridgeline.roofline("llama3-8b", "h200-sxm", phase="decode")
    assert "To write it again" not in roofline_page(made)
    assert "To write it again: <code><span" in roofline_page(made, "ridgeline roofline llama3-8b --on h200-sxm")


def test_a_page_of_a_diff_is_titled_by_its_question() -> None:
    found = ridgeline.diff("examples/llama3.2-1b-1xh200.toml", [], settings=["workload.seq=4096"])
    text = page(found, "ridgeline diff")
    title = re.sub("<[^>]*>", "", text[text.index("<h1") : text.index("</h1>")])
    assert title == "Why is workload.seq=4096 predicted slower than llama3.2-1b-1xh200.toml?"


@pytest.mark.parametrize("kind", ["answer", "certainty"])
def test_no_page_is_without(kind: str) -> None:
    assert f'class="{kind}"' in page_document(HEAD, "")
