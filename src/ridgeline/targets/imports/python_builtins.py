"""What Python's operators and a short list of its builtins mean for values that are known; everything is bounded."""

from __future__ import annotations

import ast
import copy
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ridgeline.core.documents import JsonMapping
from ridgeline.targets.imports.python_values import (
    MISSING,
    Bound,
    Class,
    Function,
    Made,
    Outside,
    Unknown,
    is_known,
    key_of,
)

if TYPE_CHECKING:
    from ridgeline.targets.imports.python_eval import Interpreter

LONGEST = 20_000  # items of a list, characters of a text
HUGE = 2**60
NAMES = frozenset(
    {
        "int", "float", "str", "bool", "len", "min", "max", "sum", "abs", "round", "range", "list", "tuple", "dict",
        "set", "sorted", "reversed", "enumerate", "zip", "isinstance", "getattr", "setattr", "hasattr", "print", "any",
        "all", "divmod", "ValueError", "RuntimeError", "TypeError", "NotImplementedError", "super", "type", "map",
        "filter",
    }
)  # fmt: skip
_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
FOLDS: Mapping[str, Callable[[list[Any]], Any]] = {"min": min, "max": max, "sum": sum, "any": any, "all": all}
_TEXT = frozenset(
    {"lower", "upper", "strip", "startswith", "endswith", "replace", "split", "join", "removesuffix", "removeprefix"}
)
_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "float": (float,), "bool": (bool,), "list": (list,), "tuple": (list,), "dict": (dict,)
}  # fmt: skip


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and abs(value) < HUGE


def binary(op: ast.operator, left: Any, right: Any) -> Any:
    """Arithmetic on numbers; lists and texts joined or repeated; tables merged."""
    how = _BINARY.get(type(op))
    if _number(left) and _number(right):
        if isinstance(op, ast.Pow) and 0 <= right <= 64 and abs(left) <= 1024:
            return left**right
        if isinstance(op, (ast.LShift,)) and type(left) is int and type(right) is int and 0 <= right <= 40:
            return left << right
        if how is None or (right == 0 and isinstance(op, (ast.Div, ast.FloorDiv, ast.Mod))):
            return Unknown("an expression")
        return how(left, right)
    if isinstance(op, ast.BitOr) and isinstance(left, dict) and isinstance(right, dict):
        return left | right
    same = isinstance(left, (list, str)) and type(left) is type(right)
    if isinstance(op, ast.Add) and same and len(left) + len(right) <= LONGEST:
        return left + right
    if isinstance(op, ast.Mult):
        items, times = (left, right) if isinstance(left, (list, str)) else (right, left)
        if isinstance(items, (list, str)) and type(times) is int and 0 <= times * len(items) <= LONGEST:
            return items * times
    return Unknown("an expression")


def unary(op: ast.unaryop, value: Any, node: ast.expr) -> Any:
    """A sign, or `not`."""
    if isinstance(op, ast.Not):
        truth_value = truth(value)
        return Unknown(ast.unparse(node)[:80]) if truth_value is None else not truth_value
    if isinstance(op, ast.USub) and _number(value):
        return -value
    return value if isinstance(op, ast.UAdd) and _number(value) else Unknown(ast.unparse(node)[:80])


def truth(value: Any) -> bool | None:
    """Whether a value counts as true; None where that cannot be told."""
    if isinstance(value, (Unknown, Outside, Bound)) or is_answer(value):
        return None
    if isinstance(value, (Made, Function, Class)):
        return True
    return bool(value)


def is_answer(value: Any) -> bool:
    """Whether a value is what a function from outside gave back, and not an object that a class made."""
    last = value.name.removesuffix(".Config").rpartition(".")[2] if isinstance(value, Made) else ""
    return bool(last) and " " not in value.name and not last.lstrip("_")[:1].isupper()


def boolean_value(op: ast.boolop, values: Iterable[Any], node: ast.expr) -> Any:
    """`and`, `or`: the value that decides it."""
    stops = isinstance(op, ast.Or)
    result: Any = None
    unsure = False
    for result in values:
        truth_value = truth(result)
        if truth_value is stops:
            return result
        unsure = unsure or truth_value is None
    return Unknown(ast.unparse(node)[:80]) if unsure else result


def compare(op: ast.cmpop, left: Any, right: Any) -> bool | None:
    """A comparison; None where it cannot be told."""
    if isinstance(op, (ast.Is, ast.IsNot)) and right is None:
        if isinstance(left, (Unknown, Bound)) or is_answer(left):
            return None
        return (left is None) is isinstance(op, ast.Is)
    if isinstance(left, Outside) and isinstance(right, Outside):
        same = str(left).rpartition(".")[2] == str(right).rpartition(".")[2]
        return (
            same if isinstance(op, (ast.Eq, ast.Is)) else not same if isinstance(op, (ast.NotEq, ast.IsNot)) else None
        )
    if isinstance(op, (ast.In, ast.NotIn)):
        if isinstance(right, dict) and isinstance(left, (list, tuple)) and key_of(left) is not MISSING:
            return (key_of(left) in right) is isinstance(op, ast.In)
        if isinstance(right, (list, dict, str)) and is_known(left) and isinstance(left, (str, int, float, type(None))):
            if isinstance(right, str) and not isinstance(left, str):
                return None
            if isinstance(right, list) and not is_known(right) and left not in right:
                return None
            return (left in right) is isinstance(op, ast.In)
        return None
    if not (is_known(left) and is_known(right)) or isinstance(left, Made) or isinstance(right, Made):
        return None
    if isinstance(op, (ast.Eq, ast.Is)):
        return bool(left == right)
    if isinstance(op, (ast.NotEq, ast.IsNot)):
        return bool(left != right)
    orders = {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge}
    if type(op) in orders and _number(left) and _number(right):
        return bool(orders[type(op)](left, right))
    return None


def items(value: Any) -> list[Any] | None:
    """What a loop goes over; None where it cannot be told."""
    if isinstance(value, (list, tuple)):
        return list(value)
    return list(value) if isinstance(value, dict) else None


def put(held: Any, at: Any, value: Any) -> None:
    """An item of a list or a table, where there is room for it."""
    if (isinstance(held, dict) and len(held) < LONGEST) or (isinstance(held, list) and -len(held) <= at < len(held)):
        held[at] = value


def call(reading: Interpreter, what: Any, given: tuple[Any, ...], words: JsonMapping) -> Any:
    """A builtin, a method of a plain value, `replace`, `deepcopy` or the environment; else `MISSING`."""
    if isinstance(what, Bound):
        return _method(what, given, words)
    name = str(what) if isinstance(what, Outside) else ""
    last = name.rpartition(".")[2]
    if name in ("os.environ.get", "os.getenv", "environ.get", "getenv") and given:
        variable = reading.checkout.environment.get(str(given[0]))
        return variable if variable is not None else given[1] if len(given) > 1 else words.get("default")
    if name in ("copy.deepcopy", "copy.copy", "deepcopy", "copy"):
        return deep_copy(given[0]) if given else Unknown(name)
    if last == "replace" and name in ("dataclasses.replace", "replace") and given and isinstance(given[0], Made):
        copy_made = deep_copy(given[0])
        copy_made.parts |= words
        return copy_made
    if name in ("typing.cast", "cast") and len(given) == 2:
        return given[1]
    if name.startswith("math.") and given and _number(given[0]) and last in ("ceil", "floor", "sqrt", "log2"):
        return getattr(math, last)(given[0]) if given[0] > 0 or last in ("ceil", "floor") else Unknown(name)
    if name not in NAMES:
        return MISSING
    return _builtin(reading, name, given, words)


def deep_copy(value: Any) -> Any:
    """A copy whose objects are its own."""
    if isinstance(value, Made):
        parts = {key: deep_copy(part) for key, part in value.parts.items()}
        return Made(value.name, value.given, parts, set(value.assigned_names))
    if isinstance(value, list):
        return [deep_copy(part) for part in value]
    if isinstance(value, dict):
        return {key: deep_copy(part) for key, part in value.items()}
    return value if isinstance(value, (Function, Class, Bound)) else copy.copy(value)


def _builtin(reading: Interpreter, name: str, given: tuple[Any, ...], words: JsonMapping) -> Any:
    first = given[0] if given else None
    if name == "print":
        return None
    if name in ("getattr", "hasattr") and len(given) >= 2 and isinstance(given[1], str):
        attribute_value = reading.attribute(first, given[1])
        if name == "hasattr":
            return (
                True if not isinstance(attribute_value, (Unknown, Bound, Outside)) else Unknown(f"hasattr {given[1]}")
            )
        return given[2] if isinstance(attribute_value, Bound) and len(given) > 2 else attribute_value
    if name == "setattr" and len(given) == 3 and isinstance(first, Made) and isinstance(given[1], str):
        first.parts[given[1]] = given[2]
        return None
    if name == "isinstance" and len(given) == 2:
        return _is_a(first, given[1])
    if not all(is_known(part) for part in given) and name not in ("list", "tuple", "len", "enumerate", "zip", "dict"):
        return Unknown(f"{name}(...)")
    try:
        return _plain(name, given, words)
    except (TypeError, ValueError, OverflowError, KeyError, IndexError):
        return Unknown(f"{name}(...)")


def _plain(name: str, given: tuple[Any, ...], words: JsonMapping) -> Any:
    first = given[0] if given else None
    match name:
        case "int" | "float":
            if isinstance(first, (int, float, str)) and len(str(first)) < 40:
                return int(first) if name == "int" else float(first)
        case "str" if not isinstance(first, (Made, Function, Class)):
            return str(first)[:LONGEST]
        case "bool":
            truth_value = truth(first)
            return Unknown("bool(...)") if truth_value is None else truth_value
        case "len" if isinstance(first, (list, str, dict)):
            return len(first)
        case "divmod" if len(given) == 2 and _number(first) and _number(given[1]) and given[1] != 0:
            return [first // given[1], first % given[1]]
        case "range" if all(type(part) is int for part in given) and len(range(*given)) <= LONGEST:
            return list(range(*given))
        case "list" | "tuple" | "set" | "sorted" | "reversed":
            elements = [] if not given else items(first)
            if elements is None:
                return Unknown(f"{name}(...)")
            return sorted(elements) if name == "sorted" else elements[::-1] if name == "reversed" else elements
        case "dict":
            return {**(first if isinstance(first, dict) else {}), **words}
        case "enumerate" if (elements := items(first)) is not None:
            return [[index, part] for index, part in enumerate(elements)]
        case "zip":
            rows = [items(part) for part in given]
            if all(row is not None for row in rows):
                return [list(row) for row in zip(*[row or [] for row in rows], strict=False)]
        case "min" | "max" | "sum" | "any" | "all":
            values = items(first) if len(given) == 1 else list(given)
            if values is not None and (name in ("any", "all") or all(_number(part) for part in values)):
                folds_experts: Callable[[list[Any]], Any] = FOLDS[name]
                return folds_experts(values)
        case "abs" | "round" if isinstance(first, (int, float)) and _number(first):
            return abs(first) if name == "abs" else round(first)
        case _:
            pass
    return Unknown(f"{name}(...)") if name not in ("ValueError", "RuntimeError", "TypeError") else MISSING


def _is_a(value: Any, kind: Any) -> Any:
    if isinstance(kind, list):
        verdicts = [_is_a(value, verdict) for verdict in kind]
        return (
            True
            if True in verdicts
            else False
            if all(verdict is False for verdict in verdicts)
            else Unknown("isinstance")
        )
    name = str(kind) if isinstance(kind, Outside) else kind.name if isinstance(kind, Class) else ""
    if isinstance(value, (Unknown, Outside, Bound)) or not name:
        return Unknown("isinstance")
    if isinstance(value, Made):
        return True if value.name == name else False if name in _TYPES else Unknown("isinstance")
    return isinstance(value, _TYPES[name]) if name in _TYPES else False


def _method(what: Bound, given: tuple[Any, ...], words: JsonMapping) -> Any:
    """A method of a text, a list or a table."""
    owner, name = what.owner, what.name
    if isinstance(owner, str) and name in _TEXT and all(isinstance(part, (str, list)) for part in given):
        if name == "join" and not all(isinstance(part, str) for part in given[0]):
            return Unknown("join")
        result = getattr(owner, name)(*given) if sum(len(part) for part in given) + len(owner) < LONGEST else owner
        return list(result) if isinstance(result, (list, tuple)) else result
    if isinstance(owner, list):
        if name in ("append", "extend", "insert") and len(owner) < LONGEST:
            added_values = items(given[-1]) if name == "extend" and given else list(given[-1:])
            added_values = [Unknown("items")] if added_values is None else added_values
            if name == "insert" and type(given[0]) is int:
                owner.insert(given[0], given[-1])
            else:
                owner.extend(added_values[:LONGEST])
            return None
        if name == "copy":
            return list(owner)
        if name == "index" and given and given[0] in owner:
            return owner.index(given[0])
        return Unknown(name)
    if isinstance(owner, dict):
        return _of_table(owner, name, given, words)
    return MISSING


def _of_table(owner: dict[Any, Any], name: str, given: tuple[Any, ...], words: JsonMapping) -> Any:
    key = given[0] if given else None
    match name:
        case "get" | "pop" | "setdefault" if (key := key_of(key)) is not MISSING:
            default = given[1] if len(given) > 1 else None
            entry = owner.get(key, default)
            if name == "pop":
                owner.pop(key, None)
            if name == "setdefault":
                owner.setdefault(key, default)
            return entry
        case "items":
            return [[at, value] for at, value in owner.items()]
        case "keys":
            return list(owner)
        case "values":
            return list(owner.values())
        case "update":
            owner |= key if isinstance(key, dict) else {}
            owner |= words
            return None
        case "copy":
            return dict(owner)
        case _:
            return Unknown(name)
