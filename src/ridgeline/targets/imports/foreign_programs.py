"""Refuse by name the files of programs that no target reads: their options look like a neighbour's and mean others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from ridgeline.core.errors import InputError
from ridgeline.targets.imports.shell_eval import scripts_among
from ridgeline.targets.tables import word_lists, words
from ridgeline.targets.target import Files, refusal

LONGEST_COMMAND = 4000  # characters
LONGEST_TEXT = 20_000
YAML = (".yaml", ".yml")


def refuse_foreign(files: Files) -> None:
    """An `InputError` where a command, or a table, is that of a program with a parser of its own."""
    for title in _foreign_titles(files):
        expected = "files of a target"
        todo = "import the plan it starts in the words of Megatron-LM, DeepSpeed or the Trainer, or write a scenario"
        given = f"a run of {title}, which has a parser of its own that is not read"
        raise refusal(given, expected, todo=todo, where=", ".join(sorted(files))[:200])


def _foreign_titles(files: Files) -> Iterator[str]:
    for name, text in files.items():
        if name.endswith(YAML):
            yield from (title for title, signs in _lines() if all(sign.search(text[:LONGEST_TEXT]) for sign in signs))
    try:
        scripts = list(scripts_among(files))
    except InputError:  # the target that reads the script says why it cannot be followed
        return
    for _, script in scripts:
        for command in script.commands:
            line = " ".join(command)[:LONGEST_COMMAND]
            yield from (title for sign, title in _commands() if sign.search(line))


@cache
def _commands() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(sign), title) for sign, title in words("foreign", "commands").items())


@cache
def _lines() -> tuple[tuple[str, tuple[re.Pattern[str], ...]], ...]:
    listed = word_lists("foreign", "texts")
    return tuple((title, tuple(re.compile(sign, re.MULTILINE) for sign in signs)) for title, signs in listed.items())
