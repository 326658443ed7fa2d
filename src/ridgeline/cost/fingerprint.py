"""Turn the `fingerprint` table of a profile into one that can be trusted: how the chip's arithmetic unit computes.

Input is hostile: keys, words and ranges are known beforehand, and anything else is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

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
Check = Callable[[object], Wrong | None]


def check_fingerprint(table: object, where: str, problems: list[Problem]) -> JsonMapping:
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


def _value_text(value: object) -> str:
    return repr(value)[:40]


def _word(*known: str) -> Check:
    expected_text = "one of " + ", ".join(repr(word) for word in known)
    return lambda value: None if isinstance(value, str) and value in known else ("", _value_text(value), expected_text)


def _text(value: object) -> Wrong | None:
    right = isinstance(value, str) and len(value) <= LONGEST
    return None if right else ("", _value_text(value), f"{LONGEST} characters")


def _number(low: float, high: float, *, whole: bool = False) -> Check:
    expected_text = f"a {'whole ' if whole else ''}number from {low:g} to {high:g}"

    def look(value: object) -> Wrong | None:
        number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        right = number and isinstance(value, (int, float)) and low <= value <= high and math.isfinite(value)
        return None if right else ("", _value_text(value), expected_text)

    return look


def _record(**fields: Check) -> Check:
    """A table that has these keys, and no others."""
    expected_text = f"a table of {', '.join(fields)}"
    return lambda value: (
        _first_wrong(value, fields)
        if isinstance(value, dict) and set(value) == set(fields)
        else ("", _value_text(value), expected_text)
    )


def _by_name(check: Check) -> Check:
    """A table of formats or functions."""

    def look(value: object) -> Wrong | None:
        if not isinstance(value, dict) or len(value) > MOST_NAMES or any(len(key) > LONGEST for key in value):
            return "", _value_text(value), f"a table of at most {MOST_NAMES} names"
        return _first_wrong(value, dict.fromkeys(value, check))

    return look


def _first_wrong(table: JsonMapping, checks: Mapping[str, Check]) -> Wrong | None:
    problems = ((key, check(table[key])) for key, check in checks.items())
    return next(((f".{key}{wrong[0]}", *wrong[1:]) for key, wrong in problems if wrong), None)


def _switch(value: object) -> Wrong | None:
    return None if value is None or isinstance(value, bool) else ("", _value_text(value), "true, false or null")


BITS, FIGURE = _number(0, MOST_BITS), _number(-1e30, 1e30)
PRODUCTS = _record(factor_bits=_number(0, MOST_BITS, whole=True), bits=BITS, sums=_word(*SUMS), lean=FIGURE)
PARTS: Mapping[str, Check] = MappingProxyType(
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


def _near(old: object, new: object) -> bool:
    if not (isinstance(old, float) and isinstance(new, float)):
        return False
    return abs(old - new) <= max(LEAST, SHARE * max(abs(old), abs(new)))


def with_fingerprint(data: JsonMapping, table: JsonMapping) -> str:
    """The text of a profile, given as its plain table, with a fingerprint: one measurement a line, in their order."""
    head = {key: value for key, value in data.items() if key not in ("rows", "fingerprint")}
    lines = [json.dumps(row, separators=(",", ":")) for row in data["rows"]]
    top = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in {**head, "fingerprint": dict(table)}.items()]
    return "{\n" + ",\n".join(top) + ',\n  "rows": [\n    ' + ",\n    ".join(lines) + "\n  ]\n}\n"
