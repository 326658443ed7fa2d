"""Turn a call into its value: a short list of Python's builtins, methods of plain values, copies, the environment.

Arguments that Python would refuse make the value unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ridgeline.core.documents import JsonMapping
from ridgeline.targets.imports.python_values import (
    ITEM_WORK,
    LONGEST,
    MISSING,
    Bound,
    Class,
    Made,
    Outside,
    Unknown,
    is_known,
    is_number,
    items,
    key_of,
    leaves_of,
    truth,
    weigh,
)
from ridgeline.targets.imports.reading_budget import ReadingBudget, replaced_length

if TYPE_CHECKING:
    from ridgeline.targets.imports.python_eval import Interpreter

Positional = tuple[Any, ...]  # what something is called with, in order
NAMES = frozenset(
    {
        "int", "float", "str", "bool", "len", "min", "max", "sum", "abs", "round", "range", "list", "tuple", "dict",
        "set", "sorted", "reversed", "enumerate", "zip", "isinstance", "getattr", "setattr", "hasattr", "print", "any",
        "all", "divmod", "ValueError", "RuntimeError", "TypeError", "NotImplementedError", "super", "type", "map",
        "filter",
    }
)  # fmt: skip
FOLDS: Mapping[str, Callable[..., object]] = {"min": min, "max": max, "sum": sum, "any": any, "all": all}
_TEXT = frozenset(
    {"lower", "upper", "strip", "startswith", "endswith", "replace", "split", "join", "removesuffix", "removeprefix"}
)
_APPENDING = frozenset({"append", "extend", "insert", "get", "pop", "setdefault", "index"})
_SHALLOW = frozenset({"list", "tuple", "len", "enumerate", "zip", "dict"})  # look at no item of an item
_TYPES: Mapping[str, type] = {
    "str": str, "int": int, "float": float, "bool": bool, "list": list, "tuple": list, "dict": dict
}  # fmt: skip


def call(reading: Interpreter, what: object, given: Positional, words: JsonMapping) -> object:
    """A builtin, a method of a plain value, `replace`, `deepcopy` or the environment; else `MISSING`."""
    if isinstance(what, Bound):
        return _method(reading.budget, what, given, words)
    name = str(what) if isinstance(what, Outside) else ""
    last = name.rpartition(".")[2]
    if name in ("os.environ.get", "os.getenv", "environ.get", "getenv") and given:
        variable = reading.checkout.environment.get(str(given[0]))
        return variable if variable is not None else given[1] if len(given) > 1 else words.get("default")
    if name in ("copy.deepcopy", "copy.copy", "deepcopy", "copy"):
        return deep_copy(given[0], reading.budget) if given else Unknown(name)
    if name in ("dataclasses.replace", "replace") and given and isinstance(given[0], Made):
        object_copy = deep_copy(given[0], reading.budget)
        object_copy.parts |= words
        return object_copy
    if name in ("typing.cast", "cast") and len(given) == 2:
        return given[1]
    if name.startswith("math.") and given and is_number(given[0]) and last in ("ceil", "floor", "sqrt", "log2"):
        return getattr(math, last)(given[0]) if given[0] > 0 or last in ("ceil", "floor") else Unknown(name)
    return _builtin(reading, name, given, words) if name in NAMES else MISSING


def deep_copy(value: Any, budget: ReadingBudget, copies: dict[int, object] | None = None) -> Any:
    """A copy whose objects are its own; what stands in it twice is copied once, as Python does."""
    copies = {} if copies is None else copies
    if id(value) in copies or not isinstance(value, (Made, list, dict)):
        return copies.get(id(value), value)
    parts = value.parts if isinstance(value, Made) else value
    budget.spend_items(3 + len(parts), ITEM_WORK)
    if isinstance(value, list):
        elements: list[object] = []
        copies[id(value)] = elements
        elements += [deep_copy(part, budget, copies) for part in value]
    elif isinstance(value, dict):
        pairs: dict[object, object] = {}
        copies[id(value)] = pairs
        pairs |= {key: deep_copy(part, budget, copies) for key, part in value.items()}
    else:
        copies[id(value)] = object_copy = Made(value.name, value.given, {}, set(value.assigned_names))
        object_copy.parts |= deep_copy(value.parts, budget, copies)
    return copies[id(value)]


def _builtin(reading: Interpreter, name: str, given: Positional, words: JsonMapping) -> object:
    first = given[0] if given else None
    if name == "print":
        return None
    if name in ("getattr", "hasattr") and len(given) >= 2 and isinstance(given[1], str):
        attribute = reading.attribute(first, given[1])
        if name == "hasattr":
            return Unknown(f"hasattr {given[1]}") if isinstance(attribute, (Unknown, Bound, Outside)) else True
        return given[2] if isinstance(attribute, Bound) and len(given) > 2 else attribute
    if name == "setattr" and len(given) == 3 and isinstance(first, Made) and isinstance(given[1], str):
        first.parts[given[1]] = given[2]
        return None
    if name == "isinstance" and len(given) == 2:
        verdict = _is_a(first, given[1])
        return Unknown("isinstance") if verdict is None else verdict
    if name in _SHALLOW:
        reading.budget.spend_items(4 * sum(len(part) for part in given if isinstance(part, (list, dict))))
    else:
        reading.budget.spend_items(4 * weigh(reading.budget, list(given)))
        if not is_known(list(given)):
            return Unknown(f"{name}(...)")
    if name == "range" and all(type(part) is int for part in given) and 0 < len(given) < 4 and 0 not in given[2:]:
        reading.budget.spend_items(min(LONGEST, len(range(*given))))
    try:
        return _plain(name, given, words)
    except (TypeError, ValueError, OverflowError, KeyError, IndexError):
        return Unknown(f"{name}(...)")


def _plain(name: str, given: Positional, words: JsonMapping) -> object:
    first = given[0] if given else None
    elements = items(first)
    match name:
        case "int" | "float" if isinstance(first, (int, float, str)) and len(str(first)) < 40:
            return int(first) if name == "int" else float(first)
        case "str" if all(isinstance(leaf, (str, int, float, type(None))) for leaf in leaves_of(first)):
            text = str(first)
            return text if len(text) <= LONGEST else Unknown("str(...)")
        case "bool" if (truth_value := truth(first)) is not None:
            return truth_value
        case "len" if isinstance(first, (list, str, dict)):
            return len(first)
        case "divmod" if len(given) == 2 and is_number(first) and is_number(given[1]) and given[1] != 0:
            return [first // given[1], first % given[1]]
        case "range" if all(type(part) is int for part in given) and len(range(*given)) <= LONGEST:
            return list(range(*given))
        case "list" | "tuple" | "set" | "sorted" | "reversed" if elements is not None or not given:
            elements = elements or []
            return sorted(elements) if name == "sorted" else elements[::-1] if name == "reversed" else elements
        case "dict":
            return {**(first if isinstance(first, dict) else {}), **words}
        case "enumerate" if elements is not None:
            return [[index, part] for index, part in enumerate(elements)]
        case "zip":
            rows = [row for part in given if (row := items(part)) is not None]
            if len(rows) == len(given):
                return [list(row) for row in zip(*rows, strict=False)]
        case "min" | "max" | "sum" | "any" | "all":
            values = elements if len(given) == 1 else list(given)
            if values is not None and (name in ("any", "all") or all(is_number(part) for part in values)):
                return FOLDS[name](values)
        case "abs" | "round" if is_number(first):
            return abs(first) if name == "abs" else round(first)
        case "ValueError" | "RuntimeError" | "TypeError":
            return MISSING
    return Unknown(f"{name}(...)")


def _is_a(value: object, kind: object) -> bool | None:
    if isinstance(kind, list):
        verdicts = [_is_a(value, part) for part in kind]
        return True if True in verdicts else None if None in verdicts else False
    name = kind.name if isinstance(kind, (Outside, Class)) else ""
    if isinstance(value, (Unknown, Outside, Bound)) or not name:
        return None
    if isinstance(value, Made):
        return True if value.name == name else False if name in _TYPES else None
    return name in _TYPES and isinstance(value, _TYPES[name])


def format_value(value: object, conversion: int, form: object) -> str | None:
    """A value as an f-string shows it, by `!r` and the form behind a colon; None where that cannot be told.

    >>> format_value(3, -1, ">4"), format_value("a", ord("r"), ""), format_value(3, -1, "9999999d")
    ('   3', "'a'", None)
    """
    if not isinstance(value, (str, int, float)) or not isinstance(form, str) or re.search(r"\d{4}", form):
        return None
    converted_value = {-1: value, 115: str(value), 114: repr(value), 97: ascii(value)}.get(conversion, value)
    try:
        return format(converted_value, form)
    except (TypeError, ValueError):
        return None


def _method(budget: ReadingBudget, what: Bound, given: Positional, words: JsonMapping) -> object:
    """A method of a text, a list or a table; unknown where Python would refuse its arguments."""
    owner, name = what.owner, what.name
    budget.spend_items(len(owner) if isinstance(owner, (str, list, dict)) and name not in _APPENDING else 0)
    try:
        if isinstance(owner, str):
            are_plain = all(isinstance(part, (str, list, int)) for part in (*given, *words.values()))
            return _text_method(budget, owner, name, (given, words)) if name in _TEXT and are_plain else MISSING
        if isinstance(owner, list):
            return _list_method(budget, owner, name, given)
        return _table_method(owner, name, given, words) if isinstance(owner, dict) else MISSING
    except (TypeError, ValueError, IndexError, OverflowError):
        return Unknown(name)


def _text_method(budget: ReadingBudget, owner: str, name: str, arguments: tuple[Positional, JsonMapping]) -> object:
    given, words = arguments
    length = 3 * len(owner) + 1
    if name == "join" and given:
        length = len(owner) * len(given[0]) + sum(len(part) for part in given[0])
    if name == "replace" and len(given) > 1:
        length = replaced_length(owner, given[0], given[1])
    budget.spend_items(length if name == "split" else length // 8)
    if length > LONGEST * 3:
        return Unknown(name)
    if name in ("startswith", "endswith"):
        given = tuple(tuple(part) if isinstance(part, list) else part for part in given)
    result = getattr(owner, name)(*given, **words)
    return list(result) if isinstance(result, (list, tuple)) else result


def _list_method(budget: ReadingBudget, owner: list[object], name: str, given: Positional) -> object:
    if name == "insert" and len(owner) < LONGEST and len(given) == 2:
        owner.insert(*given)
        return None
    if name in ("append", "extend") and len(owner) < LONGEST and len(given) == 1:
        added_values = items(given[0]) if name == "extend" else [given[0]]
        budget.spend_items(len(added_values or ()))
        owner.extend([Unknown("items")] if added_values is None else added_values[:LONGEST])
        return None
    if name == "index" and given:
        weigh(budget, owner)
        is_comparable = not any(isinstance(leaf, (Unknown, Outside, Made)) for leaf in leaves_of([owner, given[0]]))
        return owner.index(given[0]) if is_comparable else Unknown(name)
    return list(owner) if name == "copy" else Unknown(name)


def _table_method(owner: dict[Any, Any], name: str, given: Positional, words: JsonMapping) -> object:
    first = given[0] if given else None
    match name:
        case "get" | "pop" | "setdefault" if (key := key_of(first)) is not MISSING:
            default = given[1] if len(given) > 1 else None
            entry = owner.get(key, default)
            if name == "pop":
                owner.pop(key, None)
            if name == "setdefault":
                owner.setdefault(key, default)
            return entry
        case "items":
            return [[key, value] for key, value in owner.items()]
        case "keys" | "values":
            return list(owner if name == "keys" else owner.values())
        case "update":
            owner |= first if isinstance(first, dict) else {}
            owner |= words
            return None
        case "copy":
            return dict(owner)
        case _:
            return Unknown(name)
