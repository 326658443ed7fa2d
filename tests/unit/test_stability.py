"""The page of stable names lists every public name once, and only names that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ridgeline
from ridgeline.cli.refuse import DONE, OUR_MISTAKE, STOPPED, UNUSABLE
from ridgeline.cli.verbs import VERBS
from ridgeline.core.encode import SCHEMA_VERSION
from ridgeline.core.schema import key_meanings, result_keys
from ridgeline.report.results import results_of

PAGE = (Path(__file__).parents[2] / "docs" / "stability.md").read_text(encoding="utf-8")


def names_of(row: str) -> list[str]:
    """The names in the cells of a row of the table, stable and provisional ones."""
    line = next(line for line in PAGE.splitlines() if line.startswith(f"| {row}"))
    return [name for cell in line.split("|")[2:4] for name in re.findall(r"`(\w+)`", cell)]


def test_every_public_name_is_listed_once() -> None:
    listed = [*names_of("functions of"), *names_of("values of")]
    assert sorted(listed) == sorted(ridgeline.__all__)
    assert not [name for name in names_of("functions of") if not callable(getattr(ridgeline, name))]


def test_every_verb_is_listed_once() -> None:
    assert sorted(names_of("verbs, ")) == sorted(VERBS)


def test_codes_and_version_are_those_of_the_program() -> None:
    line = next(line for line in PAGE.splitlines() if line.startswith("| exit codes"))
    assert [int(code) for code in re.findall(r"\d+", line)] == [DONE, 1, UNUSABLE, OUR_MISTAKE, STOPPED]
    assert f"every answer of `--json` and is {SCHEMA_VERSION}." in PAGE


@pytest.mark.parametrize("verb", [verb for verb in VERBS if results_of(verb)])
def test_no_result_has_a_key_of_that_name_for_another_thing(verb: str) -> None:
    for kind in results_of(verb):
        assert "schema_version" not in {*result_keys(kind), *key_meanings(kind)}, kind
