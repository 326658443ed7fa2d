"""Turn a frozen dataclass back into the table it is decoded from: the inverse of ``core.table``, defaults left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from ridgeline.core.dtype import DType
from ridgeline.core.evidence import Evidence
from ridgeline.core.table import flat, hints


def encode(value: Any) -> dict[str, Any]:
    """The table that decodes to this dataclass; a field that holds its default is not written.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, slots=True, kw_only=True)
    ... class Size:
    ...     tp: int = 1
    ...     pp: int = 1
    >>> encode(Size(tp=8))
    {'tp': 8}
    """
    table: dict[str, Any] = {}
    kind: type = type(value)
    annotations = hints(kind)
    for field in fields(value):
        part = getattr(value, field.name)
        if flat(annotations[field.name]):
            table |= encode(part)
        elif part != _default(field):
            table[field.name] = plain(part)
    return table


def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else MISSING


def plain(value: Any, record: Callable[[Any], Any] = encode) -> Any:
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
    return value if isinstance(value, (str, int, float)) or value is None else str(value)
