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

from ridgeline.core.documents import JsonObject
from ridgeline.core.table import given_text
from ridgeline.targets.options import Options
from ridgeline.targets.target import Unread

NUMBER = re.compile(r"[+-]?(\d{1,18}|\d{0,18}\.\d{0,18})(e[+-]?\d{1,3})?", re.IGNORECASE)


@dataclass(slots=True)
class Arguments:
    """Options by name: one value as itself, several as a list, a switch as True or False; words that are none."""

    options: JsonObject = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    strange: list[Unread] = field(default_factory=list)


def read_arguments(words: Iterable[str], *known: Options) -> Arguments:
    """Every option of the words, by the lists of the programs that share them.

    >>> from ridgeline.targets.options import options
    >>> found = read_arguments(["m", "-tp", "2", "--no-enable-prefix-caching", "--block_size=32"], options("vllm"))
    >>> found.words, found.options
    (['m'], {'tensor-parallel-size': 2, 'enable-prefix-caching': False, 'block-size': 32})
    """
    arguments_read = Arguments()
    values: list[Any] | None = arguments_read.words
    for word in words:
        if not _is_option(word):
            if values is not None:
                values.append(value_of(word))
            continue
        text, equals, value = word.lstrip("-").partition("=")
        name = _option_name(text, known)
        if name is None:
            values = _strange(arguments_read, word, text, known)
        elif name.startswith("no-") and name[3:] in _flags(known):
            arguments_read.options[name[3:]] = False
            values = None
            continue
        elif name in _flags(known) and name not in _takes(known):
            arguments_read.options[name] = True
            values = None
            continue
        else:
            values = arguments_read.options[name] = []
        if equals and values is not None:
            values.append(value_of(value))
    for name, layers_held in arguments_read.options.items():
        if isinstance(layers_held, list):
            arguments_read.options[name] = layers_held[0] if len(layers_held) == 1 else layers_held or True
    arguments_read.words = [str(word) for word in arguments_read.words]
    return arguments_read


def _is_option(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and NUMBER.fullmatch(word) is None


def _flags(known: Iterable[Options]) -> set[str]:
    return {name for option_list in known for name in option_list.flags}


def _takes(known: Iterable[Options]) -> set[str]:
    return {name for option_list in known for name in option_list.values}


def _option_name(text: str, known: Iterable[Options]) -> str | None:
    """The documented name that a text means; what stands behind a dot is part of a value that is an object."""
    stem, dot, inner = text.replace("_", "-").partition(".")
    for option_list in known:
        full = option_list.aliases.get(stem, stem)
        if full in option_list.values or full in option_list.flags:
            return full + dot + inner
    starts = (
        {name for option_list in known for name in (*option_list.values, *option_list.flags) if name.startswith(stem)}
        if stem
        else set()
    )
    meant = {option_list.aliases.get(name, name) for name in starts for option_list in known}
    return next(iter(meant)) if len(meant) == 1 and len(stem) > 1 else None


def _strange(found: Arguments, word: str, text: str, known: Iterable[Options]) -> list[Any]:
    names = sorted({name for option_list in known for name in (*option_list.values, *option_list.flags)})
    near = get_close_matches(text.replace("_", "-"), names, n=3, cutoff=0.6)
    titles = " or ".join(option_list.title for option_list in known)
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
