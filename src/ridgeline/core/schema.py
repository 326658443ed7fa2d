"""Turn a dataclass into JSON schema: `table_schema` of the table it is decoded from, so that editors complete and check
it, and `result_schema` of what `--json` prints of it."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from types import MappingProxyType, NoneType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ridgeline.core.documents import JsonObject
from ridgeline.core.dtype import ALIASES, DTYPES, DType
from ridgeline.core.encode import SCHEMA_VERSION, VERSION_KEY, json_keys
from ridgeline.core.evidence import Evidence, Quoted
from ridgeline.core.table import AtLeast, Doc, QuantityUnit, TypeHint, Via, flat, hints, keyed_union

Schema = JsonObject


def table_schema(kind: type) -> Schema:
    """The schema of a table of this dataclass; flattened parts stand beside its own keys."""
    properties: Schema = {}
    required_keys: list[str] = []
    for field in fields(kind):
        hint = hints(kind)[field.name]
        inner = flat(hint)
        if inner:
            inner_schema = table_schema(inner)
            properties |= inner_schema["properties"]
            required_keys += inner_schema.get("required", [])
            continue
        union = keyed_union(hint)
        if union is not None:
            properties |= {key: schema(option) for key, option in union.kinds.items()}
            continue
        properties[field.name] = schema(hint)
        if field.default is MISSING and field.default_factory is MISSING:
            required_keys.append(field.name)
    object_schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if kind.__doc__:
        object_schema["description"] = kind.__doc__.split("\n")[0]
    return object_schema | ({"required": required_keys} if required_keys else {})


def schema(hint: TypeHint, marks: tuple[object, ...] = ()) -> Schema:
    """The schema of one annotation."""
    origin = get_origin(hint)
    if origin is Annotated:
        return _annotated_schema(hint)
    if origin is Union or origin is types.UnionType:
        options = [schema(option, marks) for option in get_args(hint) if option is not type(None)]
        return options[0] if len(options) == 1 else {"anyOf": options}
    if origin is Literal:
        return {"enum": list(get_args(hint))}
    if origin is tuple:
        return {"type": "array", "items": schema(get_args(hint)[0], marks)}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema(get_args(hint)[1], marks)}
    return _plain(hint, marks)


def _annotated_schema(hint: TypeHint) -> Schema:
    hint_schema = schema(get_args(hint)[0], get_args(hint)[1:])
    for mark in get_args(hint)[1:]:
        if isinstance(mark, AtLeast) and hint_schema.get("type") in ("integer", "number"):
            hint_schema["minimum"] = mark.value
        if isinstance(mark, Via):
            hint_schema = {"anyOf": [{"type": mark.shorthand}, hint_schema]}
    text = next((mark.text for mark in get_args(hint)[1:] if isinstance(mark, Doc)), "")
    return hint_schema | ({"description": text} if text else {})


def _plain(hint: TypeHint, marks: tuple[object, ...]) -> Schema:
    unit = next((mark.name for mark in marks if isinstance(mark, QuantityUnit)), "")
    if hint is Quoted:
        amount = {"type": "string", "description": f"a quantity in {unit}"} if unit else {"type": "number"}
        return {"anyOf": [amount, {"type": "object", "required": ["value"], "properties": {"value": amount}}]}
    if hint is DType:
        return {"enum": [*DTYPES, *ALIASES, "none"]}
    if is_dataclass(hint):
        return table_schema(cast(type, hint))
    if hint is Evidence:
        return {"enum": [grade.label for grade in Evidence]}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    if unit:
        return {"type": "string", "description": f"a quantity in {unit}"}
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return {"type": names[hint]} if hint in names else {}


# -- results ----------------------------------------------------------------------------------------------------------

MEANING = re.compile(r"(\w+(?:, \w+)*) {2,}(\S.*)")  # a line of a docstring: keys, then what they mean
VERSION: Schema = {"const": SCHEMA_VERSION, "description": "of the keys: it rises when one changes or goes"}
PLAIN = MappingProxyType({str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"})


def result_schema(title: str, kinds: Sequence[type]) -> Schema:
    """The schema of answers as `core.encode.answer_json` prints them; the records inside are definitions of their own.

    An answer must have the version of its keys. A result that stands inside another one has none.
    """
    records = {record.__name__: record_schema(record) for record in reachable_kinds(kinds)}
    for kind in kinds:
        records[kind.__name__]["properties"] = {VERSION_KEY: VERSION} | records[kind.__name__]["properties"]
    refs = [{"$ref": f"#/$defs/{kind.__name__}"} for kind in kinds]
    head = {**(refs[0] if len(refs) == 1 else {"oneOf": refs}), "required": [VERSION_KEY]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **head, "$defs": records}


def record_schema(kind: type) -> Schema:
    """The schema of one record: its keys, which of them must be there, and no others."""
    meanings = key_meanings(kind)
    keys = result_keys(kind)
    properties = {
        key: json_schema(hint) | ({"description": meanings[key]} if key in meanings else {})
        for key, (hint, _) in keys.items()
    }
    record: Schema = {"type": "object", "description": first_line(kind), "properties": properties}
    required_keys = [key for key, (_, is_sparse) in keys.items() if not is_sparse]
    return record | {"required": required_keys, "additionalProperties": False}


def result_keys(kind: type) -> dict[str, tuple[TypeHint, bool]]:
    """The keys of a record with their types, and whether each may be left out."""
    keys: dict[str, tuple[TypeHint, bool]] = {}
    for key in json_keys(kind):
        if key.path is None:
            keys[key.name] = (Literal[key.constant], False)
            continue
        hint = _path_hint(kind, key.path)
        if key.is_spread:
            for inner in _records(hint):
                keys |= {
                    name: (part, is_sparse or _optional(hint)) for name, (part, is_sparse) in result_keys(inner).items()
                }
        else:
            hint = _floats(hint) if key.divisor != 1 else hint
            keys[key.name] = (_without_none(hint) if key.is_sparse else hint, key.is_sparse)
    return keys


def _path_hint(kind: TypeHint, path: Sequence[str]) -> TypeHint:
    """The type at the end of a path of attributes; optional where something on the way is."""
    hint, optional = kind, False
    for attribute in path:
        optional |= _optional(hint)
        options = _options(hint)
        owners = [option for option in options if has_attribute(option, attribute)] or options
        hint = Union[tuple(_attribute_hint(owner, attribute) for owner in owners)]  # noqa: UP007
    return Union[hint, None] if optional else hint  # noqa: UP007


def owner_of(kind: type, path: Sequence[str]) -> list[type]:
    """The classes whose attribute stands at the end of a path."""
    hint = _path_hint(kind, path[:-1]) if len(path) > 1 else kind
    return [owner for owner in (get_origin(option) or option for option in _options(hint)) if isinstance(owner, type)]


def records_at(kind: type, path: Sequence[str]) -> list[type]:
    """The records at the end of a path."""
    return list(_records(_path_hint(kind, path)))


def _attribute_hint(kind: TypeHint, attribute: str) -> TypeHint:
    """The type of a field, a property or a constant of a class; type variables take what the annotation gives them."""
    owner = get_origin(kind) or kind
    if owner is Any or isinstance(owner, TypeVar):
        return Any
    member = inspect.getattr_static(owner, attribute, None)
    getter = getattr(member, "fget", None) or getattr(member, "func", None)
    hint = return_hint(getter) if getter else hints(owner).get(attribute)
    if hint is None:
        raise AttributeError(f"{getattr(owner, '__name__', owner)} has no {attribute!r} that its JSON could print")
    if get_origin(hint) in (ClassVar, Annotated):
        hint = get_args(hint)[0]
    arguments = dict(zip(getattr(owner, "__parameters__", ()), get_args(kind), strict=False))
    hint = arguments.get(hint, hint)
    return (hint.__bound__ or Any) if isinstance(hint, TypeVar) else hint


def has_attribute(kind: TypeHint, attribute: str) -> bool:
    """Whether values of a class have an attribute, as a field or otherwise."""
    owner = get_origin(kind) or kind
    return hasattr(owner, attribute) or (isinstance(owner, type) and attribute in hints(owner))


def return_hint(getter: object) -> TypeHint:
    """What a property returns."""
    return get_type_hints(getter).get("return", Any)


def _options(hint: TypeHint) -> list[TypeHint]:
    if get_origin(hint) in (Union, types.UnionType):
        return [option for option in get_args(hint) if option is not NoneType]
    return [hint]


def _optional(hint: TypeHint) -> bool:
    return get_origin(hint) in (Union, types.UnionType) and NoneType in get_args(hint)


def _without_none(hint: TypeHint) -> TypeHint:
    return Union[tuple(_options(hint))] if _optional(hint) else hint  # noqa: UP007


def _floats(hint: TypeHint) -> TypeHint:
    """The same type after a division."""
    if hint is int:
        return float
    parts = tuple(_floats(part) for part in get_args(hint))
    if not parts:
        return hint
    if get_origin(hint) in (Union, types.UnionType):
        return Union[parts]  # noqa: UP007
    origin: Any = get_origin(hint)
    return origin[parts]


def reachable_kinds(kinds: Sequence[type]) -> Iterator[type]:
    """Results and every record inside them, each once."""
    waiting, visited_kinds = list(kinds), set[type]()
    while waiting:
        kind = waiting.pop(0)
        if kind not in visited_kinds:
            visited_kinds.add(kind)
            yield kind
            waiting += [record for hint, _ in result_keys(kind).values() for record in _records(hint)]


def _records(hint: TypeHint) -> Iterator[type]:
    owner = get_origin(hint) or hint
    if isinstance(owner, type) and is_dataclass(owner) and owner is not DType:
        yield owner
        return
    for part in get_args(hint):
        yield from _records(part)


def key_meanings(kind: type) -> dict[str, str]:
    """What the docstring of a class says of its keys, in lines of a key, two spaces and its meaning."""
    meanings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        for match in map(MEANING.fullmatch, map(str.strip, (base.__doc__ or "").splitlines())):
            if match:
                meanings |= dict.fromkeys(match[1].split(", "), match[2])
    return meanings


def first_line(kind: type) -> str:
    """What a record is."""
    return (kind.__doc__ or "").strip().split("\n", 1)[0]


def json_schema(hint: TypeHint) -> Schema:
    """The schema of a value of this type as a result prints it."""
    origin, parts = get_origin(hint), get_args(hint)
    owner = origin or hint
    if origin is Annotated:
        return json_schema(parts[0])
    if origin is Literal:
        return {"const": parts[0]} if len(parts) == 1 else {"enum": list(parts)}
    if origin in (Union, types.UnionType):
        options = list({str(option): option for option in map(json_schema, parts)}.values())
        return options[0] if len(options) == 1 else {"anyOf": options}
    if hint is DType or hint is Evidence:
        return {"type": "string"}
    if not isinstance(owner, type):
        return {}
    if is_dataclass(owner):
        return {"$ref": f"#/$defs/{owner.__name__}"}
    if issubclass(owner, Mapping):
        return {"type": "object", "additionalProperties": json_schema(parts[1]) if parts else {}}
    if issubclass(owner, (list, tuple, Sequence)) and not issubclass(owner, str):
        items = [part for part in parts if part is not ...]
        return {"type": "array", "items": json_schema(Union[tuple(items)]) if items else {}}  # noqa: UP007
    if issubclass(owner, (str, PurePath, Enum)):
        return {"type": "string"}
    return {"type": PLAIN[owner]} if owner in PLAIN else {}
