"""The values that reading Python configuration yields: plain ones, objects, functions and classes, and the unknown."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

MISSING: Any = object()  # no value at all, where None is one


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that only running the code would tell, by the text that stands for it."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class Made:
    """An object: the class or function it was made by, its arguments, its attributes, and which were set later."""

    name: str = ""
    given: tuple[Any, ...] = ()
    parts: dict[str, Any] = field(default_factory=dict)
    assigned: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Outside:
    """Something that a file outside the checkout defines, by its dotted name."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(slots=True, eq=False)
class Module:
    """A file of the checkout: its dotted name and what it defines."""

    name: str
    package: str
    scope: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Imported:
    """A name that another file defines, looked up when it is used."""

    module: str
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function of the checkout, with the scope it was defined in."""

    node: ast.FunctionDef | ast.Lambda
    module: Module
    scope: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Class:
    """A class of the checkout."""

    node: ast.ClassDef
    module: Module
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """A method: of a plain value (`"a".lower`), or of an object."""

    owner: Any
    name: str


def is_known(value: Any) -> bool:
    """Whether a value and everything in it is known."""
    if isinstance(value, (Unknown, Outside)):
        return False
    if isinstance(value, (list, tuple, set)):
        return all(is_known(part) for part in value)
    if isinstance(value, dict):
        return all(is_known(part) for part in value.values())
    return True


def key_of(value: Any) -> Any:
    """A value as the key of a table; `MISSING` where it is none.

    >>> key_of([8, None]), key_of("a"), key_of([Unknown("x")]) is MISSING
    ((8, None), 'a', True)
    """
    if isinstance(value, Outside):
        return str(value)
    if isinstance(value, (list, tuple)):
        parts = tuple(key_of(part) for part in value)
        return MISSING if any(part is MISSING for part in parts) else parts
    return value if isinstance(value, (str, int, float, bool, type(None))) else MISSING


def shown(value: Any) -> str:
    """A value as a message shows it: never the inside of this reader.

    >>> shown(Made(name="Thing")), shown([1, Unknown("x.y")]), shown("a")
    ('Thing(...)', '[1, x.y]', "'a'")
    """
    match value:
        case Unknown() | Outside():
            return str(value)
        case Made(name=name):
            return f"{name or 'an object'}(...)" if name else "an object"
        case list() | tuple():
            return "[" + ", ".join(shown(part) for part in list(value)[:20]) + "]"
        case dict():
            return "a table"
        case Function() | Class() | Bound() | Module() | Imported():
            return "a definition"
        case _:
            return repr(value)[:80]
