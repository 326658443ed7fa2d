"""Make frozen dataclasses that compile their methods when first used.

`dataclasses.dataclass` compiles six methods of every class while its module is imported, and most classes of a house
are never built in one command. This decorator declares the same class at a quarter of that price; type checkers and
editors see the standard one:

    from ridgeline.core.records import dataclass

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Mesh: ...

`fields`, `replace`, `asdict`, pickling, equality, hashes, messages and errors are those of the standard decorator. A
class that is not frozen and slotted, writes a method of its own, or extends another dataclass gets the standard one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

_WRITTEN = ("__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__getstate__", "__setstate__")
_Class = type[Any]
Scope = dict[str, Any]  # what a compiled method sees


def lazy_dataclass(
    cls: _Class | None = None,
    /,
    *,
    frozen: bool = False,
    slots: bool = False,
    kw_only: bool = False,
    eq: bool = True,
    **options: bool,
) -> Any:
    """`dataclasses.dataclass`, whose methods are compiled at the first instance, comparison, hash or text."""

    def declare(declared: _Class) -> _Class:
        extends = any(dataclasses.is_dataclass(base) for base in declared.__mro__[1:])
        if not (frozen and slots) or options or extends or any(name in declared.__dict__ for name in _WRITTEN):
            return dataclasses.dataclass(
                frozen=frozen, slots=slots, kw_only=kw_only, eq=eq, **options
            )(declared)  # fmt: skip
        record = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(declared)
        parameters: Any = record.__dataclass_params__
        parameters.init = parameters.repr = parameters.frozen = True
        parameters.eq = eq
        _give_methods(record, eq)
        return record

    return declare if cls is None else declare(cls)


def _give_methods(record: Any, eq: bool) -> None:
    """The methods of a frozen class: shared by all, or compiled when first called."""
    record.__setattr__ = _refuse_assignment
    record.__delattr__ = _refuse_deletion
    record.__getstate__ = _state
    record.__setstate__ = _restore
    _compile_later(record, "__init__", _init_source)
    _compile_later(record, "__repr__", _repr_source)
    if eq:
        _compile_later(record, "__eq__", _eq_source)
        _compile_later(record, "__hash__", _hash_source)


def _compile_later(record: _Class, name: str, source: Callable[[_Class, Scope], str]) -> None:
    """A method that replaces itself by its compiled form when it is first called."""

    def first_call(*arguments: object, **named: object) -> object:
        scope: Scope = {"_set": object.__setattr__, "_record": record}
        exec(source(record, scope), scope)
        method = scope[name]
        method.__qualname__, method.__module__ = f"{record.__qualname__}.{name}", record.__module__
        setattr(record, name, method)
        return method(*arguments, **named)

    first_call.__name__, first_call.__qualname__ = name, f"{record.__qualname__}.{name}"
    setattr(record, name, first_call)


def _init_source(record: _Class, scope: Scope) -> str:
    """Source of `__init__`: a parameter for each field in their order, those by keyword only last."""
    free: list[str] = []
    keyword_only: list[str] = []
    lines: list[str] = []
    for field in dataclasses.fields(record):
        name, value = field.name, field.name
        if field.default is not dataclasses.MISSING:
            scope[f"_default_{name}"] = field.default
            parameter = f"{name}=_default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            scope[f"_make_{name}"], scope["_absent"] = field.default_factory, dataclasses.MISSING
            parameter = f"{name}=_absent"
            value = f"_make_{name}() if {name} is _absent else {name}"
            if not field.init:
                value = f"_make_{name}()"
        else:
            parameter = name
        if field.init:
            (keyword_only if field.kw_only else free).append(parameter)
            lines.append(f" _set(self, {name!r}, {value})")
        elif field.default_factory is not dataclasses.MISSING:
            lines.append(f" _set(self, {name!r}, {value})")
    if hasattr(record, "__post_init__"):
        lines.append(" self.__post_init__()")
    parameters = ", ".join(["self", *free, *(["*", *keyword_only] if keyword_only else [])])
    return f"def __init__({parameters}):\n" + ("\n".join(lines) or " pass")


def _repr_source(record: _Class, _scope: Scope) -> str:
    """Source of `__repr__`: the class with its fields."""
    field_texts = ", ".join(
        f"{field.name}={{self.{field.name}!r}}" for field in dataclasses.fields(record) if field.repr
    )
    return f"def __repr__(self):\n return self.__class__.__qualname__ + f'({field_texts})'"


def _eq_source(record: _Class, _scope: Scope) -> str:
    """Source of `__eq__`: equal fields of the same class."""
    names = [field.name for field in dataclasses.fields(record) if field.compare]
    own_values, right = ("(" + "".join(f"{side}.{name}," for name in names) + ")" for side in ("self", "other"))
    return (
        "def __eq__(self, other):\n"
        " if other.__class__ is not self.__class__: return NotImplemented\n"
        f" return {own_values} == {right}"
    )


def _hash_source(record: _Class, _scope: Scope) -> str:
    """Source of `__hash__`: of the fields that are compared, unless a field says otherwise."""
    names = [
        field.name
        for field in dataclasses.fields(record)
        if (field.compare if field.hash is None else field.hash)
    ]  # fmt: skip
    return "def __hash__(self):\n return hash((" + "".join(f"self.{name}," for name in names) + "))"


def _refuse_assignment(_self: object, name: str, _value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(_self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[object]:
    """Values of all fields, for pickles and copies."""
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _restore(self: Any, values: list[object]) -> None:
    """Fields from the values of a pickle or a copy."""
    for field, value in zip(dataclasses.fields(self), values, strict=True):
        object.__setattr__(self, field.name, value)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = lazy_dataclass


class NotebookValue:
    """A value that a notebook shows as a page rather than as a line of text; `report.notebook` says how."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Markup of the value, without script, safe inside any page."""
        return str(import_module("ridgeline.report.notebook").notebook_markup(self))
