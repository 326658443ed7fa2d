"""Turn a table read from a file into frozen dataclasses, collecting every problem instead of stopping at the first.

The dataclass is the schema: its annotations say what a key holds, so nothing is described twice. Understood are bool,
int, float, str, `Literal`, enums, `DType`, `Quoted`, nested dataclasses, `tuple[T, ...]`, `Mapping[str, T]`,
`T | None`, and unions of dataclasses told apart by a `kind: Literal[...]` field. Markers in `Annotated` refine them:

    Unit("B/s")    the number is written as a unit string and held in base units
    AtLeast(1)     smallest number accepted
    Flat()         the nested dataclass's keys stand in the parent's table
    Keyed({...})   a union whose value stands in the parent's table under the key of its type, at most one of them
    Doc("...")     one line for the JSON schema and for error messages
    Via(f)         f(value) -> value to decode instead; a shorthand such as "1f1b" for { name = "1f1b" }

A dataclass may define `problems() -> Iterable[Problem]` for what its fields say together.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from inspect import get_annotations
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.dtype import ALIASES, DTYPES, DType, dtype
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.evidence import Dissent, Evidence, Quoted
from ridgeline.core.records import dataclass
from ridgeline.core.units import parse_quantity, quantity_in

T = TypeVar("T")
TypeHint = object  # an annotation, for which `typing` has no type
Decoded = Any  # a value of the type that an annotation says, or `BAD`
HUGE = 10**24  # of anything, in base units
BIGGEST = 2**53  # beyond it a float no longer counts, and nobody owns that many of anything


@dataclass(frozen=True, slots=True)
class QuantityUnit:
    """The base unit a number is held in; the empty string for a plain count."""

    name: str


@dataclass(frozen=True, slots=True)
class AtLeast:
    """The smallest number accepted."""

    value: float


@dataclass(frozen=True, slots=True)
class Flat:
    """The nested dataclass is written without a table of its own."""


@dataclass(frozen=True, slots=True)
class Keyed:
    """The types of a union by the key that each is written under."""

    kinds: Mapping[str, type]

    def key_of(self, value: object) -> str:
        """The key that a value is written under."""
        return next(key for key, kind in self.kinds.items() if isinstance(value, kind))


@dataclass(frozen=True, slots=True)
class Doc:
    """One line that explains the key."""

    text: str


@dataclass(frozen=True, slots=True)
class Via:
    """A shorthand: `expand` turns what the file says into what the annotation decodes."""

    expand: Callable[[Any], object]
    shorthand: Literal["string", "integer", "boolean", "array"] = "string"


class _Bad:
    """What a failed decode yields; the problem is already noted."""


class _Nothing:
    """What stands where a key is missing, so that a message reads "got nothing"."""

    def __repr__(self) -> str:
        return "nothing"


BAD = _Bad()
NOTHING = _Nothing()
Count = Annotated[int, AtLeast(1)]
Size = Annotated[int, AtLeast(0)]
QuotedCount = Annotated[Quoted, QuantityUnit("")]
QuotedBytes = Annotated[Quoted, QuantityUnit("B")]
QuotedBytesPerS = Annotated[Quoted, QuantityUnit("B/s")]
QuotedFlopsPerS = Annotated[Quoted, QuantityUnit("FLOP/s")]
QuotedSeconds = Annotated[Quoted, QuantityUnit("s")]


def decode(kind: type[T], value: object, path: str = "") -> T:
    """The value as an instance of `kind`, or an `InputError` with every problem in it."""
    problems: list[Problem] = []
    result = decode_into(kind, value, path, problems)
    if problems or result is None:
        raise InputError(problems)
    return result


def decode_into(kind: type[T], value: object, path: str, problems: list[Problem]) -> T | None:
    """Like `decode`, for a caller that gathers problems from several places; None when nothing usable came out."""
    result = _Decoder(problems).any(kind, value, path, ())
    return None if result is BAD else cast(T, result)


def given_text(value: object) -> str:
    """What was found, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@cache
def hints(kind: type) -> JsonMapping:
    """The dataclass's annotations, resolved once: those of a class by one evaluation, not one each."""
    resolved: JsonObject = {}
    for base in reversed(kind.__mro__):
        annotations = get_annotations(base)
        texts = {name: hint for name, hint in annotations.items() if isinstance(hint, str)}
        scope = vars(sys.modules[base.__module__])
        resolved |= {**annotations, **dict(zip(texts, eval(f"[{','.join(texts.values())}]", scope), strict=True))}
    return {name: type(None) if hint is None else hint for name, hint in resolved.items()}


def flat(hint: TypeHint) -> type | None:
    """The dataclass behind a `Flat` annotation."""
    if get_origin(hint) is Annotated and any(isinstance(mark, Flat) for mark in get_args(hint)[1:]):
        return cast(type, get_args(hint)[0])
    return None


def keyed_union(hint: TypeHint) -> Keyed | None:
    """The types by key behind a `Keyed` annotation."""
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((mark for mark in marks if isinstance(mark, Keyed)), None)


@cache
def keys(kind: type) -> tuple[str, ...]:
    """Every key a table of this dataclass may hold, flattened and keyed ones included."""
    names: list[str] = []
    for name, hint in hints(kind).items():
        inner, union = flat(hint), keyed_union(hint)
        names.extend(keys(inner) if inner else union.kinds if union else [name])
    return tuple(names)


@dataclass(frozen=True, slots=True)
class _Slot:
    """A field as the decoder wants it: its annotation taken apart once instead of for every table."""

    name: str
    hint: TypeHint
    core: TypeHint
    marks: tuple[object, ...]
    expands: tuple[Callable[[Any], object], ...]
    optional: bool
    inner: type | None
    union: Keyed | None
    is_required: bool


@cache
def _layout(kind: type) -> tuple[_Slot, ...]:
    """The fields of a dataclass."""
    return tuple(_slot(field, hints(kind)[field.name]) for field in fields(kind))


def _slot(field: Field[object], hint: TypeHint) -> _Slot:
    marks: tuple[object, ...] = ()
    core, optional = hint, False
    while True:
        if get_origin(core) is Annotated:
            core, marks = get_args(core)[0], (*marks, *get_args(core)[1:])
            continue
        options = [option for option in get_args(core) if option is not type(None)]
        if get_origin(core) in (Union, types.UnionType) and len(options) == 1:
            core, optional = options[0], True
            continue
        expands = tuple(mark.expand for mark in marks if isinstance(mark, Via))
        is_required = field.default is MISSING and field.default_factory is MISSING
        return _Slot(field.name, hint, core, marks, expands, optional, flat(hint), keyed_union(hint), is_required)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


class _Decoder:
    """One walk over one value; `problems` is the caller's list."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems

    def bad(self, path: str, value: object, expected: str, todo: str = "") -> _Bad:
        self.problems.append(Problem(path=path, given=given_text(value), expected=expected, todo=todo))
        return BAD

    def any(self, hint: TypeHint, value: object, path: str, marks: tuple[object, ...]) -> Decoded:
        origin = get_origin(hint)
        if origin is None:
            return self.plain(hint, value, path, marks)
        if origin is Annotated:
            for mark in get_args(hint)[1:]:
                if isinstance(mark, Via):
                    value = mark.expand(value)
            return self.any(get_args(hint)[0], value, path, (*marks, *get_args(hint)[1:]))
        if origin is Union or origin is types.UnionType:
            return self.union(hint, value, path, marks)
        if origin is Literal:
            return self.choice(value, get_args(hint), path)
        if origin is tuple:
            return self.sequence(get_args(hint)[0], value, path, marks)
        if issubclass(origin, Mapping):
            return self.mapping(get_args(hint)[1], value, path, marks)
        raise TypeError(f"{path}: no decoder for {hint!r}")

    def slot(self, slot: _Slot, value: object, path: str) -> Decoded:
        """A field's value."""
        for expand in slot.expands:
            value = expand(value)
        if value is None and slot.optional:
            return None
        return self.any(slot.core, value, path, slot.marks)

    def plain(self, hint: TypeHint, value: object, path: str, marks: tuple[object, ...]) -> Decoded:
        if hint is str:
            return value if isinstance(value, str) else self.bad(path, value, "a string")
        if hint is int or hint is float:
            return self.number(hint, value, path, marks)
        if hint is bool:
            return value if isinstance(value, bool) else self.bad(path, value, "true or false")
        if hint is Quoted:
            return self.quoted_number(value, path, marks)
        if hint is DType:
            format_ = dtype(value) if isinstance(value, str) and (value in DTYPES or value in ALIASES) else None
            return format_ or self.choice(value, tuple(DTYPES), path)
        if is_dataclass(hint):
            return self.record(cast(type, hint), value, path)
        if hint is Evidence:
            grade = self.choice(value, tuple(grade.label for grade in Evidence), path)
            return grade if grade is BAD else Evidence.of(grade)
        if isinstance(hint, type) and issubclass(hint, Enum):
            format_ = self.choice(value, tuple(member.value for member in hint), path)
            return format_ if format_ is BAD else hint(format_)
        if hint is object or hint is Any:
            return value
        raise TypeError(f"{path}: no decoder for {hint!r}")

    def number(self, hint: type, value: object, path: str, marks: tuple[object, ...]) -> Decoded:
        unit = next((mark.name for mark in marks if isinstance(mark, QuantityUnit)), "")
        least = next((mark.value for mark in marks if isinstance(mark, AtLeast)), None)
        if unit and isinstance(value, str):
            try:
                value = parse_quantity(value, unit)
            except InputError as wrong:
                self.problems.append(replace(wrong.problems[0], path=path))
                return BAD
        elif unit:
            return self.bad(path, value, quantity_in(unit))
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return self.bad(path, value, "a whole number" if hint is int else "a number")
        if abs(value) > HUGE or not math.isfinite(value) or (hint is int and value != int(value)):
            return self.bad(path, value, "a finite whole number" if hint is int else "a finite number")
        if hint is int and abs(value) > BIGGEST:
            return self.bad(path, value, f"a whole number below {BIGGEST}")
        if least is not None and value < least:
            return self.bad(path, value, f"a number of at least {least:g}")
        return hint(value)

    def choice(self, value: object, options: tuple[object, ...], path: str) -> Decoded:
        if any(value is option or (type(value) is type(option) and value == option) for option in options):
            return value
        words = [str(option) for option in options]
        if isinstance(value, str):
            self.problems.append(not_among(path, given_text(value)[1:-1], words))
            return BAD
        return self.bad(path, value, "one of " + ", ".join(words))

    def sequence(self, item: TypeHint, value: object, path: str, marks: tuple[object, ...]) -> Decoded:
        if not isinstance(value, (list, tuple)):
            return self.bad(path, value, "an array")
        items = tuple(self.any(item, part, f"{path}[{index}]", marks) for index, part in enumerate(value))
        return BAD if any(part is BAD for part in items) else items

    def mapping(self, item: TypeHint, value: object, path: str, marks: tuple[object, ...]) -> Decoded:
        if not isinstance(value, Mapping):
            return self.bad(path, value, "a table")
        entries = {str(key): self.any(item, part, _join(path, str(key)), marks) for key, part in value.items()}
        return BAD if any(part is BAD for part in entries.values()) else types.MappingProxyType(entries)

    def union(self, hint: TypeHint, value: object, path: str, marks: tuple[object, ...]) -> Decoded:
        options = [option for option in get_args(hint) if option is not type(None)]
        if value is None and len(options) < len(get_args(hint)):
            return None
        if len(options) == 1:
            return self.any(options[0], value, path, marks)
        by_tag = {tag: option for option in options if is_dataclass(option) for tag in _tags(cast(type, option))}
        if isinstance(value, Mapping) and by_tag:
            tag = value.get("kind")
            if tag is None and len(set(by_tag.values())) > 1:
                return self.bad(_join(path, "kind"), NOTHING, "one of " + ", ".join(by_tag))
            option_of_tag = (
                next(iter(by_tag.values())) if tag is None else by_tag.get(tag) if isinstance(tag, str) else None
            )
            if option_of_tag is None:
                return self.choice(tag, tuple(by_tag), _join(path, "kind"))
            return self.record(cast(type, option_of_tag), value, path)
        scalars = [option for option in options if not is_dataclass(option)]
        candidates = [option for option in scalars if _suits(option, value)]
        if len(candidates) == 1:
            return self.any(candidates[0], value, path, marks)
        for option in scalars:
            attempt = _Decoder([])
            result = attempt.any(option, value, path, marks)
            if not attempt.problems:
                return result
        return self.bad(path, value, " or ".join(dict.fromkeys(_words(option) for option in options)))

    def quoted_number(self, value: object, path: str, marks: tuple[object, ...]) -> Decoded:
        unit = next((mark.name for mark in marks if isinstance(mark, QuantityUnit)), "")
        amount = (QuantityUnit(unit), AtLeast(0))
        if not isinstance(value, Mapping):
            number = self.number(float, value, path, amount)
            return BAD if number is BAD else Quoted(value=number, evidence=Evidence.ASSUMED, source="given")
        self.unknown(value, ("value", "evidence", "source", "note", "conflicts"), path)
        number = self.number(float, value.get("value", NOTHING), _join(path, "value"), amount)
        grade = self.plain(Evidence, value.get("evidence", "assumed"), _join(path, "evidence"), ())
        conflict_items = self.sequence(Any, value.get("conflicts", ()), _join(path, "conflicts"), ())
        conflicts = [] if conflict_items is BAD else list(conflict_items)
        conflicts = [self.dissent(amount, part, f"{path}.conflicts[{index}]") for index, part in enumerate(conflicts)]
        if number is BAD or grade is BAD or any(part is BAD for part in conflicts):
            return BAD
        source, note = value.get("source", "given"), value.get("note", "")
        return Quoted(value=number, evidence=grade, source=source, note=note, conflicts=tuple(conflicts))

    def dissent(self, amount: tuple[object, ...], value: object, path: str) -> Decoded:
        if not isinstance(value, Mapping):
            return self.bad(path, value, "a table with value and source")
        self.unknown(value, ("value", "source", "note"), path)
        number = self.number(float, value.get("value"), _join(path, "value"), amount)
        if number is BAD:
            return BAD
        return Dissent(value=number, source=str(value.get("source", "")), note=str(value.get("note", "")))

    def unknown(self, value: Mapping[str, object], known: tuple[str, ...], path: str) -> None:
        for key in value:
            if key not in known:
                self.problems.append(not_among(_join(path, str(key)), str(key), known, "remove it"))

    def record(self, kind: type, value: object, path: str) -> Decoded:
        if isinstance(value, kind):
            return value
        if not isinstance(value, Mapping):
            return self.bad(path, value, "a table with " + ", ".join(keys(kind)))
        self.unknown(value, keys(kind), path)
        return self.fill(kind, value, path)

    def keyed(self, union: Keyed, value: Mapping[str, object], path: str) -> Decoded:
        """The one value that stands under a key of its type; None where there is none."""
        names = [name for name in union.kinds if value.get(name) is not None]
        if len(names) > 1:
            problem = Problem(path=_join(path, names[1]), given=" and ".join(names), expected="one of them")
            self.problems.append(problem)
            return BAD
        return self.any(union.kinds[names[0]], value[names[0]], _join(path, names[0]), ()) if names else None

    def fill(self, kind: type, value: Mapping[str, object], path: str) -> Decoded:
        """The dataclass from those keys of the table that are its own."""
        values: JsonObject = {}
        broken = False
        for slot in _layout(kind):
            name = slot.name
            if slot.inner:
                part = self.fill(slot.inner, value, path)
            elif slot.union:
                part = self.keyed(slot.union, value, path)
            elif name in value:
                part = self.slot(slot, value[name], f"{path}.{name}" if path else name)
            elif slot.is_required:
                part = self.bad(_join(path, name), NOTHING, describe(slot.hint), f"add {name}")
            else:
                continue
            broken = broken or part is BAD
            values[name] = part
        if broken:
            return BAD
        built = kind(**values)
        ask = getattr(built, "problems", None)
        together = [replace(problem, path=_join(path, problem.path)) for problem in ask()] if ask else []
        self.problems.extend(together)
        return BAD if together else built


def _tags(kind: type) -> tuple[str, ...]:
    """The `kind` values that select this dataclass in a union."""
    hint = hints(kind).get("kind")
    return get_args(hint) if get_origin(hint) is Literal else ()


def _suits(hint: TypeHint, value: object) -> bool:
    """Whether a value is of the right sort for an option of a union, right or wrong in detail."""
    if get_origin(hint) is Annotated:
        return _suits(get_args(hint)[0], value)
    if isinstance(value, (list, tuple)):
        return get_origin(hint) is tuple
    return hint in (int, float) and isinstance(value, (int, float)) and not isinstance(value, bool)


def _words(hint: TypeHint) -> str:
    if get_origin(hint) is Annotated:
        return _words(get_args(hint)[0])
    names: dict[object, str] = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(str(option) for option in get_args(hint))
    if get_origin(hint) is tuple:
        return "an array"
    return names.get(hint, "a table")


def describe(hint: TypeHint) -> str:
    """What a key holds, in words: its `Doc` where it has one."""
    if get_origin(hint) is Annotated:
        unit = next((mark.name for mark in get_args(hint)[1:] if isinstance(mark, QuantityUnit) and mark.name), "")
        text = next((mark.text for mark in get_args(hint)[1:] if isinstance(mark, Doc)), "")
        return text or (f"a quantity in {unit}" if unit else _words(get_args(hint)[0]))
    return _words(hint)
