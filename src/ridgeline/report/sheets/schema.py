"""Turn the types of the sheets into the JSON schema of what each verb's `--json` prints."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from ridgeline.core.schema import result_schema
from ridgeline.report.sheets.export import ExportSheet, ImportSheet

Schema = dict[str, Any]
PLAIN = MappingProxyType({str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"})
MEANING = re.compile(r"(\w+(?:, \w+)*) {2,}(\S.*)")  # a line of a docstring: keys, then what they mean
UNITS = ("", "_s", "_us", "_bytes")

# what a verb prints; where there are several, they differ in `kind` or `possible`
SHEETS: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {
        "export": (ExportSheet,),
        "import": (ImportSheet,),
    }
)


def sheet_schema(verb: str) -> Schema:
    """The schema of what a verb prints with `--json`; the tables inside are definitions of their own.

    >>> sheet_schema("predict")["$defs"]["Part"]["required"]
    ['bound', 'meaning']
    """
    from ridgeline.report.results import results_of

    results = result_schema(verb, results_of(verb)) if results_of(verb) else {"$defs": {}}
    kinds = SHEETS.get(verb, ())
    whole = results["$defs"] | {one.__name__: table_schema(one) for kind in kinds for one in reached(kind)}
    refs = [{"$ref": f"#/$defs/{kind.__name__}"} for kind in (*results_of(verb), *kinds)]
    head = refs[0] if len(refs) == 1 else {"oneOf": refs}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": verb, **head, "$defs": whole}


def table_schema(kind: type) -> Schema:
    """The schema of one table: its keys, which of them must be there, and no others."""
    told = meanings(kind)
    properties, required = {}, []
    for key, (hint, needed) in keys(kind).items():
        properties[key] = _schema(hint) | ({"description": told[key]} if key in told else {})
        required += [key] if needed else []
    made: Schema = {"type": "object", "description": first_line(kind), "properties": properties}
    return made | {"required": required, "additionalProperties": False}


def keys(kind: type) -> dict[str, tuple[Any, bool]]:
    """The keys of a table with their types, and whether each is always there."""
    found = {}
    for key, hint in get_type_hints(kind, include_extras=True).items():
        optional = get_origin(hint) is NotRequired
        found[key] = (get_args(hint)[0] if optional else hint, not optional)
    return found


def meanings(kind: type) -> dict[str, str]:
    """What the docstrings of a table and of those it extends say of its keys; a key may stand without its unit."""
    found: dict[str, str] = {}
    for one in _extended(kind):
        for match in map(MEANING.fullmatch, map(str.strip, (one.__doc__ or "").splitlines())):
            if match:
                found |= {name + unit: match[2] for name in match[1].split(", ") for unit in UNITS}
    return {key: found[key] for key in keys(kind) if key in found}


def _extended(kind: type) -> list[type]:
    """The tables that a table extends, and itself: those of its module whose keys it all has; Python forgets which."""
    own, near = keys(kind).items(), vars(sys.modules[kind.__module__]).values()
    return [one for one in near if is_typeddict(one) and keys(one).items() <= own]


def first_line(kind: type) -> str:
    """What a table is."""
    return (kind.__doc__ or "").split("\n", 1)[0]


def reached(kind: type) -> Iterator[type]:
    """A table and every table inside it, each once."""
    seen: dict[type, None] = {}
    waiting = [kind]
    while waiting:
        one = waiting.pop(0)
        if one not in seen:
            seen[one] = None
            waiting += [inner for hint, _ in keys(one).values() for inner in _tables(hint)]
    yield from seen


def _tables(hint: Any) -> Iterator[type]:
    if is_typeddict(hint):
        yield hint
    for part in get_args(hint):
        yield from _tables(part)


def _schema(hint: Any) -> Schema:
    origin, parts = get_origin(hint), get_args(hint)
    if is_typeddict(hint):
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if origin is list:
        return {"type": "array", "items": _schema(parts[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(parts[1])}
    if origin is Literal:
        return {"const": parts[0]} if len(parts) == 1 else {"enum": list(parts)}
    if origin in (Union, UnionType):
        return {"anyOf": [_schema(part) for part in parts]}
    return {} if hint is Any else {"type": PLAIN[hint]}
