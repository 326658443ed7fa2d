"""Turn a frozen dataclass back into the table it is decoded from: the inverse of ``core.table``, defaults left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from ridgeline.core.dtype import DType
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
            table[field.name] = _plain(part)
    return table


def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else MISSING


def _plain(value: Any) -> Any:
    if isinstance(value, DType):
        return value.id
    if is_dataclass(value) and not isinstance(value, type):
        return encode(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    return value
