"""Turn frozen dataclasses into tables: `encode` for files that decode to them, `to_json` for results and `answer_json`
for what `--json` prints; `toml_text` writes a table.

`encode` is the inverse of ``core.table``: defaults are left out. `to_json` prints a result. Its class is the contract:
every field is a key of the same name, unless the class lists its keys in a string called ``JSON``.

    step_time_s               the attribute of that name: a field or a property
    model=scenario.model.id   the attribute at the end of a path; null where something on the way is None
    anchor?                   left out where it is None or empty
    rates[:200]               the first 200 of a list
    gbytes_per_s=rate/G       divided by ten to the ninth; T and M likewise
    kind='why slow'           these very words; `possible=true` is the constant
    *memory                   the keys of the record that `memory` holds stand here
    *   -scenario             every field; without this one

Times that the code holds in nanoseconds (`busy_ns`) are printed in microseconds (`busy_us`), under either name in the
list. The underscore at the end of `class_` is not printed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache

from ridgeline.core.documents import JsonMapping, JsonObject, JsonValue
from ridgeline.core.dtype import DType
from ridgeline.core.evidence import Evidence
from ridgeline.core.table import flat, hints, keyed_union
from ridgeline.core.units import DECIMAL

SCHEMA_VERSION = 1  # of the keys that `--json` prints; docs/stability.md says when it rises
VERSION_KEY = "schema_version"
NANOSECONDS_PER_US = 1000
ENTRY = re.compile(
    r"(?P<mark>[*-]?)(?P<name>[\w.]*)(?P<sparse>\?)?(?:=(?P<path>'[^']*'|[\w.]+))?"
    r"(?:\[:(?P<most>\d+)\])?(?:/(?P<unit>\w))?(?=\s|$)"
)


def encode(value: object) -> JsonObject:
    """The table that decodes to this dataclass; a field that holds its default is not written.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, slots=True, kw_only=True)
    ... class Size:
    ...     tp: int = 1
    ...     pp: int = 1
    >>> encode(Size(tp=8))
    {'tp': 8}
    """
    table: JsonObject = {}
    kind: type = type(value)
    annotations = hints(kind)
    for field in fields(kind):
        part = getattr(value, field.name)
        union = keyed_union(annotations[field.name])
        if flat(annotations[field.name]):
            table |= encode(part)
        elif union is not None and part is not None:
            table[union.key_of(part)] = plain(part)
        elif part != _default(field):
            table[field.name] = plain(part)
    return table


def _default(field: Field[object]) -> object:
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else MISSING


def plain(value: object, record: Callable[[object], JsonValue] = encode) -> JsonValue:
    """The value as JSON, TOML and YAML hold it; `record` turns a dataclass into a table.

    >>> from types import MappingProxyType
    >>> plain(MappingProxyType({"parts": ("mlp", None), "scale": 0.5}))
    {'parts': ['mlp', None], 'scale': 0.5}
    """
    if isinstance(value, DType):
        return value.id
    if isinstance(value, Evidence):
        return value.label
    if is_dataclass(value) and not isinstance(value, type):
        return record(value)
    if isinstance(value, Mapping):
        return {str(key): plain(part, record) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(part, record) for part in value]
    if isinstance(value, (str, int, float)) or value is None:
        return value
    return value.tolist() if hasattr(value, "tolist") else str(value)  # numbers and arrays of numpy, paths and enums


# -- results ----------------------------------------------------------------------------------------------------------


def to_json(value: object) -> JsonValue:
    """A result as a table of JSON; what is one already passes unchanged.

    >>> @dataclass(frozen=True, slots=True, kw_only=True)
    ... class Part:
    ...     class_: str
    ...     busy_ns: int
    ...     warnings: tuple[str, ...] = ()
    ...     JSON = "kind='part' * warnings?"
    >>> to_json([Part(class_="matmul", busy_ns=1500)])
    [{'kind': 'part', 'class': 'matmul', 'busy_us': 1.5}]
    """
    return plain(value, _record)


def answer_json(value: object) -> JsonValue:
    """An answer as `--json` prints it: the version of its keys, then the keys; in a list every entry has it.

    >>> answer_json({"kind": "part"})
    {'schema_version': 1, 'kind': 'part'}
    """
    table = to_json(value)
    if isinstance(table, list):
        return [answer_json(entry) for entry in table]
    return {VERSION_KEY: SCHEMA_VERSION, **table} if isinstance(table, dict) else table


def _record(value: object) -> JsonObject:
    table: JsonObject = {}
    kind: type = type(value)
    for key in json_keys(kind):
        part = key.constant if key.path is None else key.read(value)
        if key.is_spread:
            table |= {} if part is None else to_json(part)
        elif not (key.is_sparse and (part is None or part == "" or part == () or part == {})):
            table[key.name] = to_json(part)
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonKey:
    """One key of a record, or the keys of a record inside it, and the path of attributes that leads to its value.

    of   the type that stands under this key, where the value is one of several
    """

    name: str
    path: tuple[str, ...] | None
    constant: object = None
    is_spread: bool = False
    is_sparse: bool = False
    most: int | None = None
    divisor: float = 1
    of: type | None = None

    def read(self, value: JsonValue) -> JsonValue:
        """The value of this key in a record, in the unit in which it is printed."""
        for attribute in self.path or ():
            if value is None:
                return None
            value = getattr(value, attribute)
        if self.of is not None and not isinstance(value, self.of):
            return None
        if self.most is not None:
            value = value[: self.most]
        return value if self.divisor == 1 else _divide(value, self.divisor)


def _divide(value: JsonValue, divisor: float) -> JsonValue:
    if isinstance(value, Mapping):
        return {key: _divide(part, divisor) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [_divide(part, divisor) for part in value]
    return None if value is None else value / divisor


@cache
def json_keys(kind: type) -> tuple[JsonKey, ...]:
    """The keys that a record of this class prints, in order."""
    keys: dict[str, JsonKey] = {}
    for key in _entries(kind, getattr(kind, "JSON", "*")):
        if key.name.startswith("-"):
            del keys[key.name[1:]]
        else:
            keys[key.name] = key
    return tuple(keys.values())


def field_keys(kind: type, key_of: Callable[[type, str, str], JsonKey] | None = None) -> Iterator[JsonKey]:
    """A key for each field; a union that is written under the key of its type has one for each of them."""
    for field in fields(kind):
        union = keyed_union(hints(kind)[field.name]) if "Annotated" in str(field.type) else None
        if union is not None:
            yield from (JsonKey(name=key, path=(field.name,), of=of) for key, of in union.kinds.items())
        elif key_of is not None:
            yield key_of(kind, field.name, field.name)
        else:
            yield JsonKey(name=field.name, path=(field.name,))


def _entries(kind: type, text: str) -> Iterator[JsonKey]:
    words = ENTRY.finditer(text.strip())
    if ENTRY.sub("", text).strip():
        raise ValueError(f"{kind.__name__}.JSON: cannot read {ENTRY.sub('', text).split()[0]!r}")
    for word in words:
        mark, name, path = word["mark"], word["name"], word["path"]
        if mark == "*" and not name:
            yield from field_keys(kind, _key)
        elif mark == "*":
            yield JsonKey(name=f"*{name}", path=tuple(name.split(".")), is_spread=True)
        elif mark == "-":
            yield JsonKey(name=f"-{_key(kind, name, name).name}", path=None)
        elif path and (path.startswith("'") or path in ("true", "false")):
            yield JsonKey(name=name, path=None, constant=path == "true" if path[0] != "'" else path[1:-1])
        elif name:
            longest = int(word["most"]) if word["most"] else None
            divisor = DECIMAL[word["unit"]] if word["unit"] else 1
            yield _key(kind, name, path or name, most=longest, divisor=divisor, is_sparse=bool(word["sparse"]))


def _key(
    kind: type, name: str, path: str, *, divisor: float = 1, most: int | None = None, is_sparse: bool = False
) -> JsonKey:
    if path == name and not hasattr(kind, name):
        spellings = (f"{name}_", f"{name.removesuffix('us')}ns")
        path = next((attribute for attribute in spellings if hasattr(kind, attribute)), name)
    if path.endswith("_ns") or path == "ns":
        divisor = NANOSECONDS_PER_US
        name = f"{name.removesuffix('_ns')}_us" if name == path else name
    return JsonKey(
        name=name.removesuffix("_"), path=tuple(path.split(".")), divisor=divisor, most=most, is_sparse=is_sparse
    )


WIDEST = 100  # an inline table longer than this gets a header of its own


def toml_text(table: JsonMapping) -> str:
    """Keys first, then tables; None is left out, because TOML has no word for it.

    >>> print(toml_text({"a": 1, "b": {"c": [1, 2], "d": "x"}}), end="")
    a = 1
    <BLANKLINE>
    [b]
    c = [1, 2]
    d = "x"
    """
    return "\n\n".join(_tables(table, ())) + "\n"


def _tables(table: JsonMapping, path: tuple[str, ...]) -> list[str]:
    """The table's own keys under its header, then the tables inside it."""
    inner = {key: part for key, part in table.items() if isinstance(part, Mapping) and not _short(part, path)}
    plain_entries = {key: part for key, part in table.items() if key not in inner and part is not None}
    lines = [f"{_toml_key(key)} = {_toml_value(part)}" for key, part in plain_entries.items()]
    head = [f"[{'.'.join(_toml_key(part) for part in path)}]"] if path and (lines or not inner) else []
    texts = ["\n".join([*head, *lines])] if head or lines else []
    for key, part in inner.items():
        texts += _tables(part, (*path, key))
    return texts


def _short(part: JsonMapping, path: tuple[str, ...]) -> bool:
    """Whether a table reads well on one line: below another table, and all of its values plain."""
    flat = not any(isinstance(value, (Mapping, list, tuple)) for value in part.values())
    return bool(path) and flat and len(_toml_value(part)) <= WIDEST


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml_value(part) for part in value) + "]"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_toml_key(key)} = {_toml_value(part)}" for key, part in value.items() if part is not None)
        return f"{{ {inner} }}" if inner else "{}"
    # JSON's escapes are TOML's, except that JSON leaves DEL as it is
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007F")
