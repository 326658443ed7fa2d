"""Turn the `fingerprint` table of a profile into one that can be trusted: how the chip's arithmetic unit computes.

    checked(table, where, problems)     the table as it was given; what is wrong with it goes to `problems`
    changes(before, after)              what differs by more than measuring twice does
    with_fingerprint(data, table)       the text of a profile with the table in its head, all else as it was

Input is hostile: keys, words and ranges are known beforehand, and anything else is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ridgeline.core.documents import JsonMapping
from ridgeline.core.errors import Problem

MOST_NAMES = 40  # formats or functions in a table
LONGEST = 60  # characters of a name or word
MOST_BITS = 128
SHARE, LEAST = 0.1, 0.02  # by which a figure differs that was measured twice: of itself, and at all
SUMS = ("nearest", "toward zero", "away from zero")
CASTS = (
    *("", "nearest, ties to even", "nearest, ties away", "nearest, ties toward zero", "toward zero"),
    *("up", "down", "other"),
)
DENORMALS = ("kept", "flushed", "read only", "made only")
Wrong = tuple[str, str, str]
"""Where it is wrong, what was given, what was expected."""


def check_fingerprint(table: Any, where: str, problems: list[Problem]) -> JsonMapping:
    """The fingerprint that a profile holds; empty where it has none."""
    if table is None:
        return MappingProxyType({})
    if not isinstance(table, dict) or not table:
        problems.append(_problem(("", _value_text(table), f"a table of {', '.join(PARTS)}"), where))
        return MappingProxyType({})
    for key, part in table.items():
        look = PARTS.get(key)
        wrong = ("", _value_text(key), f"one of {', '.join(PARTS)}") if look is None else look(part)
        if wrong:
            inner, given_text, expected_text = wrong
            place = f".{key}{inner}" if look else ""
            problems.append(_problem((place, given_text, expected_text), where))
    return MappingProxyType(table)


def _problem(wrong: Wrong, where: str) -> Problem:
    path, given_text, expected_text = wrong
    todo = "take `fingerprint` out, and store it again with `ridgeline bringup --save-fingerprint`"
    return Problem(path=f"fingerprint{path}", given=given_text, expected=expected_text, todo=todo, where=where)


def _value_text(value: Any) -> str:
    return repr(value)[:40]


def _word(*known: str) -> Callable[[Any], Wrong | None]:
    expected_text = "one of " + ", ".join(repr(word) for word in known)
    return lambda value: None if isinstance(value, str) and value in known else ("", _value_text(value), expected_text)


def _text(value: Any) -> Wrong | None:
    return (
        None if isinstance(value, str) and len(value) <= LONGEST else ("", _value_text(value), f"{LONGEST} characters")
    )


def _number(low: float, high: float, *, whole: bool = False) -> Callable[[Any], Wrong | None]:
    def look(value: Any) -> Wrong | None:
        kind = int if whole else int | float
        right = isinstance(value, kind) and not isinstance(value, bool) and low <= value <= high
        expected_text = f"a {'whole ' if whole else ''}number from {low:g} to {high:g}"
        return None if right and math.isfinite(value) else ("", _value_text(value), expected_text)

    return look


def _record(**fields: Callable[[Any], Wrong | None]) -> Callable[[Any], Wrong | None]:
    """A table that has these keys, and no others."""

    def look(value: Any) -> Wrong | None:
        if not isinstance(value, dict) or set(value) != set(fields):
            return "", _value_text(value), f"a table of {', '.join(fields)}"
        for key, check in fields.items():
            wrong = check(value[key])
            if wrong:
                return f".{key}{wrong[0]}", wrong[1], wrong[2]
        return None

    return look


def _by_name(one: Callable[[Any], Wrong | None]) -> Callable[[Any], Wrong | None]:
    """A table of formats or functions."""

    def look(value: Any) -> Wrong | None:
        if not isinstance(value, dict) or len(value) > MOST_NAMES or any(len(key) > LONGEST for key in value):
            return "", _value_text(value), f"a table of at most {MOST_NAMES} names"
        for key, part in value.items():
            wrong = one(part)
            if wrong:
                return f".{key}{wrong[0]}", wrong[1], wrong[2]
        return None

    return look


def _switch(value: Any) -> Wrong | None:
    return None if value is None or isinstance(value, bool) else ("", _value_text(value), "true, false or null")


BITS, FIGURE = _number(0, MOST_BITS), _number(-1e30, 1e30)
PRODUCTS = _record(factor_bits=_number(0, MOST_BITS, whole=True), bits=BITS, sums=_word(*SUMS), lean=FIGURE)
PARTS: Mapping[str, Callable[[Any], Wrong | None]] = MappingProxyType(
    {
        "products": _by_name(PRODUCTS),
        "cast": _word(*CASTS),
        "denormals": _by_name(_word(*DENORMALS)),
        "fma": _switch,
        "functions": _by_name(_record(ulp=_number(0, 1e30), bias=FIGURE)),
        "fp8": _by_name(_text),
    }
)


def changes(before: JsonMapping, after: JsonMapping, path: str = "") -> dict[str, tuple[str, str]]:
    """What differs between two tables by dotted key: words and whole numbers at all, figures by more than a tenth."""
    differences: dict[str, tuple[str, str]] = {}
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            differences |= changes(old, new, f"{path}{key}.")
        elif old != new and not _near(old, new):
            differences[f"{path}{key}"] = ("–" if old is None else str(old), "–" if new is None else str(new))
    return differences


def _near(one: Any, other: Any) -> bool:
    figures = all(isinstance(value, float) for value in (one, other))
    return figures and abs(one - other) <= max(LEAST, SHARE * max(abs(one), abs(other)))


def with_fingerprint(data: JsonMapping, table: JsonMapping) -> str:
    """The text of a profile, given as its plain table, with a fingerprint: one measurement a line, in their order."""
    head = {key: value for key, value in data.items() if key not in ("rows", "fingerprint")}
    lines = [json.dumps(row, separators=(",", ":")) for row in data["rows"]]
    top = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in {**head, "fingerprint": dict(table)}.items()]
    return "{\n" + ",\n".join(top) + ',\n  "rows": [\n    ' + ",\n    ".join(lines) + "\n  ]\n}\n"
