"""Turn the words of a command into options by the name that its program documents first.

`--x 4`, `--x=4`, `-x 4`, `--x_y`, switches with `--no-`, aliases and unambiguous beginnings mean what Python's argparse
takes them for. A word that no recorded option explains is kept apart with the names nearest to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from ridgeline.core.table import given_text
from ridgeline.targets.options import Options
from ridgeline.targets.target import Unread

NUMBER = re.compile(r"[+-]?(\d{1,18}|\d{0,18}\.\d{0,18})(e[+-]?\d{1,3})?", re.IGNORECASE)


@dataclass(slots=True)
class Arguments:
    """Options by name: one value as itself, several as a list, a switch as True or False; words that are none."""

    options: dict[str, Any] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    strange: list[Unread] = field(default_factory=list)


def read_arguments(words: Iterable[str], *known: Options) -> Arguments:
    """Every option of the words, by the lists of the programs that share them.

    >>> from ridgeline.targets.options import options
    >>> found = read_arguments(["m", "-tp", "2", "--no-enable-prefix-caching", "--block_size=32"], options("vllm"))
    >>> found.words, found.options
    (['m'], {'tensor-parallel-size': 2, 'enable-prefix-caching': False, 'block-size': 32})
    """
    found = Arguments()
    values: list[Any] | None = found.words
    for word in words:
        if not _is_option(word):
            if values is not None:
                values.append(value_of(word))
            continue
        text, equals, value = word.lstrip("-").partition("=")
        name = _named(text, known)
        if name is None:
            values = _strange(found, word, text, known)
        elif name.startswith("no-") and name[3:] in _flags(known):
            found.options[name[3:]] = False
            values = None
            continue
        elif name in _flags(known) and name not in _takes(known):
            found.options[name] = True
            values = None
            continue
        else:
            values = found.options[name] = []
        if equals and values is not None:
            values.append(value_of(value))
    for name, held in found.options.items():
        if isinstance(held, list):
            found.options[name] = held[0] if len(held) == 1 else held or True
    found.words = [str(word) for word in found.words]
    return found


def _is_option(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and NUMBER.fullmatch(word) is None


def _flags(known: Iterable[Options]) -> set[str]:
    return {name for one in known for name in one.flags}


def _takes(known: Iterable[Options]) -> set[str]:
    return {name for one in known for name in one.values}


def _named(text: str, known: Iterable[Options]) -> str | None:
    """The documented name that a text means; what stands behind a dot is part of a value that is an object."""
    stem, dot, inner = text.replace("_", "-").partition(".")
    for one in known:
        full = one.aliases.get(stem, stem)
        if full in one.values or full in one.flags:
            return full + dot + inner
    starts = {name for one in known for name in (*one.values, *one.flags) if name.startswith(stem)} if stem else set()
    meant = {one.aliases.get(name, name) for name in starts for one in known}
    return next(iter(meant)) if len(meant) == 1 and len(stem) > 1 else None


def _strange(found: Arguments, word: str, text: str, known: Iterable[Options]) -> list[Any]:
    names = sorted({name for one in known for name in (*one.values, *one.flags)})
    near = get_close_matches(text.replace("_", "-"), names, n=3, cutoff=0.6)
    titles = " or ".join(one.title for one in known)
    hint = f"; near: {', '.join(f'--{name}' for name in near)}" if near else ""
    values: list[Any] = []
    found.strange.append(Unread(option=given_text(word)[1:-1], value="", why=f"no option of {titles}{hint}"))
    return values


def value_of(word: str) -> Any:
    """A word as the plain value it spells.

    >>> value_of("8"), value_of("0.9"), value_of("fp8"), value_of("nan")
    (8, 0.9, 'fp8', 'nan')
    """
    if NUMBER.fullmatch(word) is None or not any(char.isdigit() for char in word):
        return word
    return int(word) if word.lstrip("+-").isdigit() else float(word)
