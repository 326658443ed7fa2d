"""Turn the rows of a dialect's option table into what is written and what is read: every option stands there once.

    [options.mesh]
    "plan.tp" = "parallelism.tensor_parallel_degree"
    "plan.cp_kind" = { option = "--cp-comm-type", words = { ring = "p2p" }, default = "ring" }

A row is a decision and the option that carries it alone. What is not one to one is a function of the dialect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.targets.imports.option_reader import OptionReader, pick
from ridgeline.targets.ledger import Lose, Say
from ridgeline.targets.tables import tables, words
from ridgeline.targets.target import Imported

Kind = Literal["degree", "count", "size", "number", "text", "switch", "flag", "word"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionRow:
    """One option and the decision it carries.

    option   its name in the target's files
    path     the decision
    kind     degree: a whole number, 1 where a file is silent; count: at least 1, size: or 0, else `default`;
             number, text: as it stands, else `default`; switch: true or false; flag: a switch that is written only
             where it is on; word: one of `words`
    words    the decision's value -> the option's word
    also     further words that are read -> the decision's value
    older    further names that are read
    lost     why a decision without a word is lost; one that says nothing of it is left to other pieces
    """

    option: str
    path: str
    kind: Kind = "degree"
    words: Mapping[str, str] = field(default_factory=dict)
    also: Mapping[str, str] = field(default_factory=dict)
    older: tuple[str, ...] = ()
    lost: str = ""
    default: Any = None

    def read(self, reader: OptionReader) -> Any:
        """The decision's value; None where a file is silent and silence means nothing."""
        names = (self.option.removeprefix("--"), *self.older)
        match self.kind:
            case "degree":
                return reader.degree(*names)
            case "count":
                return reader.count(*names, default=self.default)
            case "size":
                count_read = reader.size(*names)
                return self.default if count_read is None else count_read
            case "number":
                return reader.number(*names, default=self.default)
            case "text":
                text_read = reader.take(*names)
                return text_read if isinstance(text_read, str) and text_read else self.default
            case "switch" | "flag":
                return reader.switch(*names, default=bool(self.default))
            case "word":
                own_words: JsonObject = {}
                for value, word in self.words.items():  # of two values with one word the first is meant
                    own_words.setdefault(str(word), value)
                means = own_words | dict(self.also)
                return reader.word(*names, among=means, default=self.default)


@cache
def option_rows(dialect: str, section: str) -> tuple[OptionRow, ...]:
    """The rows of one section, in the order they are written."""
    rows = tables(dialect)["options"][section].items()
    return tuple(_row(path, row if isinstance(row, Mapping) else {"option": row}) for path, row in rows)


def _row(path: str, row: JsonMapping) -> OptionRow:
    kind = row.get("kind", "word" if "words" in row else "count" if "default" in row else "degree")
    return OptionRow(path=path, **{**row, "kind": kind, "older": tuple(row.get("older", ()))})


def option_names(dialect: str, section: str) -> dict[str, str]:
    """Decision -> option, of one section."""
    return {row.path: row.option for row in option_rows(dialect, section)}


def say_options(dialect: str, section: str, decisions: JsonMapping, *paths: str) -> Iterator[Say | Lose]:
    """The options of a section that the decisions ask for: all of them, or those of these paths."""
    for row in option_rows(dialect, section):
        if row.path not in (paths or decisions) or row.path not in decisions:
            continue
        value = decisions[row.path]
        if row.kind == "flag":
            value = True if value is True else None
        elif row.kind == "word":
            value = row.words.get(value)
        if value is not None:
            yield Say(row.option, value, row.path)
        elif row.lost:
            yield Lose(row.path, row.lost)


def read_options(dialect: str, section: str, reader: OptionReader) -> JsonObject:
    """The decisions of a section by the last part of their path; those that a file leaves open are not there.

    >>> from ridgeline.core.files import Table
    >>> read_options("megatron", "axes", OptionReader(Table(data={"tensor-model-parallel-size": 8}, source="")))
    {'tp': 8, 'pp': 1, 'cp': 1}
    """
    values_read = {row.path.rpartition(".")[2]: row.read(reader) for row in option_rows(dialect, section)}
    return {name: value for name, value in values_read.items() if value is not None}


def imported_run(dialect: str, reader: OptionReader, settings: JsonMapping, **facts: int | None) -> Imported:
    """What a reader took, and what nobody took with the reasons of the dialect's table; `facts` are of `Imported`."""
    unread = reader.unread(words(dialect, "apart"))
    tables = {"workload": pick(settings["workload"]), "plan": settings["plan"]}
    return Imported(
        target=dialect,
        settings=pick({"model": settings.get("model")}) | tables,
        unread=unread,
        assumptions=tuple(reader.assumptions),
        **facts,
    )
