"""Turn a dataclass into the JSON schema of the table it is decoded from, so that editors complete and check it."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from ridgeline.core.dtype import ALIASES, DTYPES, DType
from ridgeline.core.evidence import Evidence, Quoted
from ridgeline.core.table import AtLeast, Doc, Unit, Via, flat, hints

Schema = dict[str, Any]


def table_schema(kind: type) -> Schema:
    """The schema of a table of this dataclass; flattened parts stand beside its own keys."""
    properties: Schema = {}
    required: list[str] = []
    for field in fields(kind):
        hint = hints(kind)[field.name]
        inner = flat(hint)
        if inner:
            nested = table_schema(inner)
            properties |= nested["properties"]
            required += nested.get("required", [])
            continue
        properties[field.name] = schema(hint)
        if field.default is MISSING and field.default_factory is MISSING:
            required.append(field.name)
    made: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if kind.__doc__:
        made["description"] = kind.__doc__.split("\n")[0]
    return made | ({"required": required} if required else {})


def schema(hint: Any, marks: tuple[object, ...] = ()) -> Schema:
    """The schema of one annotation."""
    origin = get_origin(hint)
    if origin is Annotated:
        return _annotated(hint)
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


def _annotated(hint: Any) -> Schema:
    made = schema(hint.__origin__, hint.__metadata__)
    for mark in hint.__metadata__:
        if isinstance(mark, AtLeast) and made.get("type") in ("integer", "number"):
            made["minimum"] = mark.value
        if isinstance(mark, Via):
            made = {"anyOf": [{"type": mark.shorthand}, made]}
    text = next((mark.text for mark in hint.__metadata__ if isinstance(mark, Doc)), "")
    return made | ({"description": text} if text else {})


def _plain(hint: Any, marks: tuple[object, ...]) -> Schema:
    unit = next((mark.name for mark in marks if isinstance(mark, Unit)), "")
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
