"""Turn a plain table into TOML text that reads back as the same table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from ridgeline.core.documents import JsonMapping

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
    lines = [f"{_key(key)} = {_value(part)}" for key, part in plain_entries.items()]
    head = [f"[{'.'.join(_key(part) for part in path)}]"] if path and (lines or not inner) else []
    texts = ["\n".join([*head, *lines])] if head or lines else []
    for key, part in inner.items():
        texts += _tables(part, (*path, key))
    return texts


def _short(part: JsonMapping, path: tuple[str, ...]) -> bool:
    """Whether a table reads well on one line: below another table, and all of its values plain."""
    flat = not any(isinstance(value, (Mapping, list, tuple)) for value in part.values())
    return bool(path) and flat and len(_value(part)) <= WIDEST


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(part) for part in value) + "]"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {_value(part)}" for key, part in value.items() if part is not None)
        return f"{{ {inner} }}" if inner else "{}"
    # JSON's escapes are TOML's, except that JSON leaves DEL as it is
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007F")
