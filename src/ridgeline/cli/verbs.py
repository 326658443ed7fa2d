"""Each verb in one line and by example, as `ridgeline --help` and `ridgeline VERB --help` print them: `verbs.toml`.

The options of a verb are the parameters of its function; `options/` has the flags, values and help of each.
`questions.toml` has what people want to do, in their words, and the command that does it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, get_origin, get_type_hints

import typer

from ridgeline.cli.terminal import count
from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, Problem, near
from ridgeline.core.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """What a verb answers in one line of 80 columns, command lines that show it, and the function that answers it.

    module, function   where that is in this package; a function has the name of its verb unless it says another
    """

    module: str
    summary: str
    examples: tuple[str, ...]
    function: str = ""

    @property
    def epilog(self) -> str:
        """The end of its help."""
        return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in self.examples)

    def command(self, name: str) -> Callable[..., None]:
        """The function that answers it, each parameter annotated with its flags and help as typer reads them."""
        answer: Callable[..., None] = getattr(import_module(f"ridgeline.cli.{self.module}"), self.function or name)
        own = _read_table(f"options/{self.module}.toml")
        options = {**_read_table("options/shared.toml"), **own.get("all", {}), **own.get(name, {})}
        for parameter, kind in get_type_hints(answer, include_extras=True).items():
            if parameter != "return" and get_origin(kind) is not Annotated:
                answer.__annotations__[parameter] = Annotated[kind, _typer_parameter(parameter, options[parameter])]
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What somebody wants to do, the command that does it, and other words for it that are no verbs."""

    want: str
    command: str
    words: tuple[str, ...]


def questions() -> tuple[Intent, ...]:
    """Every question that the command line answers, the most frequent first."""
    tables = _read_table("questions.toml")["question"]
    return tuple(Intent(**table | {"words": tuple(table["words"])}) for table in tables)


def questions_help() -> str:
    """The end of `ridgeline --help`: what people want, and the command that does it."""
    return "\b\nI want to ...\n" + "\n".join(f"  {item.want}\n      {item.command}" for item in questions())


def refuse_unknown_verb(word: str) -> None:
    """Refuse a first argument that is no verb, with the commands that do what the word asks for."""
    if not word or word.startswith("-") or word in VERBS:
        return
    commands = [item.command for item in questions() if word.lower() in item.words]
    commands += [f"ridgeline {verb} --help" for verb in near(word.lower(), VERBS, limit=3)] if not commands else []
    todo = "try " + ", or ".join(f"`{command}`" for command in commands) if commands else "see `ridgeline --help`"
    raise InputError(Problem(path="verb", given=repr(word[:80]), expected=f"one of {', '.join(VERBS)}", todo=todo))


def _typer_parameter(name: str, table: JsonObject) -> object:
    texts = {key: value for key, value in table.items() if key not in ("argument", "flags", "parser")}
    if "argument" in table:
        return typer.Argument(**texts)
    flags = table.get("flags", [f"--{name.replace('_', '-')}"])
    return typer.Option(*flags, parser=count if "parser" in table else None, **texts)


@cache
def _read_table(name: str) -> JsonObject:
    return tomllib.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))


def _read_verbs() -> Mapping[str, Verb]:
    tables = _read_table("verbs.toml")
    verbs = {name: Verb(**table | {"examples": tuple(table["examples"])}) for name, table in tables.items()}
    return MappingProxyType(verbs)


VERBS = _read_verbs()
