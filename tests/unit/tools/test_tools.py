"""Every program of `tools` imports and lists its options; texts between markers are replaced and nothing else is."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import pytest

from tools import pages
from tools.__main__ import GROUPS, main
from tools.docs import links

PROGRAMS = [(group, name) for group, programs in GROUPS.items() for name in programs]


@pytest.mark.parametrize(("group", "name"), [case for case in PROGRAMS if case != ("figures", "picture")])
def test_programs_import_and_parse_their_options(group: str, name: str) -> None:
    if (group, name) == ("docs", "architectures"):
        pytest.importorskip("transformers")
    module = importlib.import_module(GROUPS[group][name])
    getattr(module, "add_arguments", lambda _: None)(argparse.ArgumentParser())
    assert callable(module.run)
    assert (module.__doc__ or "").splitlines()[0].endswith((".", ":"))


def test_blocks_are_replaced_between_their_markers() -> None:
    text = "before\n<!-- a b -->\nold\n<!-- end -->\nbetween\n<!-- c -->\nold\n<!-- end of c -->\n"
    new = pages.replace_block(text, "a b", "| new |")
    assert new == text.replace("<!-- a b -->\nold", "<!-- a b -->\n| new |")
    assert pages.replace_block(new, "c", "x", "end of c").endswith("<!-- c -->\nx\n<!-- end of c -->\n")


def test_a_check_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("old", encoding="utf-8")
    assert pages.write_or_check(page, "new", check=True, command="docs x") == 1
    assert page.read_text(encoding="utf-8") == "old"
    assert pages.write_or_check(page, "new", check=False, command="docs x") == 0
    assert pages.write_or_check(page, "new", check=True, command="docs x") == 0


def test_every_link_of_the_documentation_names_a_file_and_a_heading() -> None:
    assert list(links.broken_links()) == []


def test_an_unknown_program_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "nothing"]) == 2
    assert "screens" in capsys.readouterr().out
