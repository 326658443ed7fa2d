"""Turn Python's operators and a short list of its builtins into values: plain ones, objects, definitions, unknown ones.

Everything is bounded; what cannot be told is an `Unknown`.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.targets.imports.reading_budget import ReadingBudget, replaced_length
from ridgeline.targets.imports.run_files import Checkout

if TYPE_CHECKING:
    from ridgeline.targets.imports.python_eval import Interpreter

Positional = tuple[Any, ...]  # what something is called with, in order
MISSING: Any = object()  # no value at all, where None is one


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that only running the code would tell, by the text that stands for it."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class Made:
    """An object: the class or function it was made by, its arguments, its attributes, and which were set later."""

    name: str = ""
    given: tuple[object, ...] = ()
    parts: JsonObject = field(default_factory=dict)
    assigned_names: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Outside:
    """Something that a file outside the checkout defines, by its dotted name."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(slots=True, eq=False)
class Module:
    """A file of the checkout: its dotted name and what it defines."""

    name: str
    package: str
    scope: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """The names that code sees: its own, then those of its file."""

    scope: JsonObject
    module: Module


@dataclass(frozen=True, slots=True, eq=False)
class ImportedName:
    """A name that another file defines, looked up when it is used."""

    module: str
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class PythonFunction:
    """A function of the checkout, with the scope it was defined in."""

    node: ast.FunctionDef | ast.Lambda
    module: Module
    scope: JsonObject


@dataclass(frozen=True, slots=True, eq=False)
class Class:
    """A class of the checkout."""

    node: ast.ClassDef
    module: Module
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """A method: of a plain value (`"a".lower`), or of an object."""

    owner: object
    name: str


def is_known(value: object) -> bool:
    """Whether a value and everything in it is known."""
    return not any(isinstance(leaf, (Unknown, Outside)) for leaf in _leaves(value))


def _leaves(value: object) -> Iterator[object]:
    """What stands in lists and tables inside each other; of a list that stands there many times, once."""
    waiting, seen = [value], set()
    while waiting:
        part = waiting.pop()
        if not isinstance(part, (list, tuple, set, dict)):
            yield part
        elif id(part) not in seen:
            seen.add(id(part))
            waiting += part.values() if isinstance(part, dict) else part


def weigh(budget: ReadingBudget, value: object) -> int:
    """Pay for walking lists and tables inside each other, each as often as it stands there; their items."""
    waiting, count = [value], 0
    while waiting:
        part = waiting.pop()
        count += 1
        if isinstance(part, (list, tuple, set, dict)):
            budget.spend(ITEM_WORK * (1 + len(part)))
            waiting += part.values() if isinstance(part, dict) else part
        elif isinstance(part, str):
            budget.spend(len(part) // 8)
            count += len(part)
    return count


def key_of(value: object) -> Any:
    """A value as the key of a table; `MISSING` where it is none.

    >>> key_of([8, None]), key_of("a"), key_of([Unknown("x")]) is MISSING
    ((8, None), 'a', True)
    """
    if isinstance(value, Outside):
        return str(value)
    if isinstance(value, (list, tuple)):
        parts = tuple(key_of(part) for part in value)
        return MISSING if any(part is MISSING for part in parts) else parts
    return value if isinstance(value, (str, int, float, bool, type(None))) else MISSING


def describe_value(value: object, depth: int = 0) -> str:
    """A value as a message shows it: never the inside of this reader.

    >>> describe_value(Made(name="Thing")), describe_value([1, Unknown("x.y")]), describe_value("a")
    ('Thing(...)', '[1, x.y]', "'a'")
    """
    match value:
        case Unknown() | Outside():
            return str(value)
        case Made(name=name):
            return f"{name}(...)" if name else "an object"
        case list() | tuple():
            inner = ", ".join(describe_value(part, depth + 1) for part in value[:20]) if depth < 3 else "..."
            return f"[{inner}]"
        case dict():
            return "a table"
        case PythonFunction() | Class() | Bound() | Module() | ImportedName():
            return "a definition"
        case _:
            return repr(value)[:80]


# a text, a comment, a name or number, the end of a statement: what a syntax tree grows with
_LEXEME = re.compile(
    r"""(\"{3}|'{3})(?:\\.|[^\\])*?\1|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\#[^\n]*|\w+|[\n;]""", re.DOTALL
)
LEXEME_ITEMS = 10


def parse_module(budget: ReadingBudget, text: str) -> ast.Module:
    """The syntax of a module, paid for by its names, texts and lines."""
    matches = (match.group() for match in _LEXEME.finditer(text))
    budget.spend_items(LEXEME_ITEMS * sum(1 + lexeme.count("{") for lexeme in matches if lexeme[0] != "#"), 2)
    return _parse_cached(text)


@lru_cache(maxsize=128)
def _parse_cached(text: str) -> ast.Module:
    return ast.parse(text)


def says(node: ast.stmt, text: str) -> bool:
    """Whether a statement, written so, only prints or logs."""
    if not (isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Constant))):
        return False
    return isinstance(node.value, ast.Constant) or text.startswith(("log", "print", "warn", "assert"))


def bind(node: ast.Import | ast.ImportFrom, frame: Frame) -> None:
    """Names that an import binds, to be looked up when they are used."""
    if isinstance(node, ast.Import):
        for name in node.names:
            first = name.name.partition(".")[0]
            frame.scope[name.asname or first] = ImportedName(name.name if name.asname else first, "")
        return
    base = node.module or ""
    if node.level:
        package = frame.module.package.split(".")
        base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
    for name in node.names:
        if name.name == "*":
            frame.scope.setdefault("*", []).append(base)
        else:
            frame.scope[name.asname or name.name] = ImportedName(base, name.name)


def locate_module(checkout: Checkout, source: str) -> tuple[str, str]:
    """The dotted name of the file that is read, and of its package."""
    if checkout.folder is None:
        return source.removesuffix(".py"), ""
    names: list[str] = []
    folder = checkout.folder
    while folder != checkout.top and len(names) < 12:
        names.insert(0, folder.name)
        folder = folder.parent
    if names and names[0] in ("src", "lib", "site-packages"):
        names = names[1:]
    package = ".".join(names)
    stem = Path(source).stem
    return f"{package}.{stem}" if package else stem, package


def module_file(checkout: Checkout, name: str) -> tuple[Path, str] | None:
    """The file of a module, looked for in the checkout and in the folders above the file that is read."""
    if checkout.top is None or checkout.folder is None or not all(part.isidentifier() for part in name.split(".")):
        return None
    inner = Path(*name.split("."))
    for base in (checkout.top, checkout.top / "src", checkout.folder, *checkout.folder.parents):
        if not base.is_relative_to(checkout.top):
            break
        for path in (base / inner.with_suffix(".py"), base / inner / "__init__.py"):
            text = checkout.text(path)
            if text is not None:
                return path, text
    return None


LONGEST = 20_000  # items of a list, characters of a text
ITEM_WORK = 10  # of looking at an item of a list
HUGE = 2**60
NAMES = frozenset(
    {
        "int", "float", "str", "bool", "len", "min", "max", "sum", "abs", "round", "range", "list", "tuple", "dict",
        "set", "sorted", "reversed", "enumerate", "zip", "isinstance", "getattr", "setattr", "hasattr", "print", "any",
        "all", "divmod", "ValueError", "RuntimeError", "TypeError", "NotImplementedError", "super", "type", "map",
        "filter",
    }
)  # fmt: skip
ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
ORDER: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
FOLDS: Mapping[str, Callable[[list[Any]], object]] = {"min": min, "max": max, "sum": sum, "any": any, "all": all}
_TEXT = frozenset(
    {"lower", "upper", "strip", "startswith", "endswith", "replace", "split", "join", "removesuffix", "removeprefix"}
)
_APPENDING = frozenset({"append", "extend", "insert", "get", "pop", "setdefault", "index"})
_SHALLOW = frozenset({"list", "tuple", "len", "enumerate", "zip", "dict"})  # look at no item of an item
_TYPES: Mapping[str, type] = {
    "str": str, "int": int, "float": float, "bool": bool, "list": list, "tuple": list, "dict": dict
}  # fmt: skip


def _number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and math.isfinite(value) and abs(value) < HUGE


def binary(budget: ReadingBudget, op: ast.operator, left: Any, right: Any) -> object:
    """Arithmetic on numbers; lists and texts joined or repeated; tables merged."""
    how = ARITHMETIC.get(type(op))
    if _number(left) and _number(right):
        if isinstance(op, ast.Pow) and 0 <= right <= 64 and abs(left) <= 1024:
            return left**right
        if isinstance(op, ast.LShift) and type(left) is int and type(right) is int and 0 <= right <= 40:
            return left << right
        if how is None or (right == 0 and isinstance(op, (ast.Div, ast.FloorDiv, ast.Mod))):
            return Unknown("an expression")
        return how(left, right)
    if isinstance(op, ast.BitOr) and isinstance(left, dict) and isinstance(right, dict):
        budget.spend_items(len(left) + len(right))
        return left | right
    are_sequences = isinstance(left, (list, str)) and isinstance(right, type(left))
    if isinstance(op, ast.Add) and are_sequences and len(left) + len(right) <= LONGEST:
        budget.spend_items(len(left) + len(right))
        return operator.add(left, right)
    if isinstance(op, ast.Mult):
        sequence, times = (left, right) if isinstance(left, (list, str)) else (right, left)
        if isinstance(sequence, (list, str)) and type(times) is int and 0 <= times * len(sequence) <= LONGEST:
            budget.spend_items(times * len(sequence))
            return sequence * times
    return Unknown("an expression")


def unary(op: ast.unaryop, value: object) -> object:
    """A sign, or `not`."""
    if isinstance(op, ast.Not) and (truth_value := truth(value)) is not None:
        return not truth_value
    if isinstance(op, (ast.USub, ast.UAdd)) and _number(value):
        return -value if isinstance(op, ast.USub) else value
    return Unknown("an expression")


def truth(value: object) -> bool | None:
    """Whether a value counts as true; None where that cannot be told."""
    if isinstance(value, (Unknown, Outside, Bound)) or is_answer(value):
        return None
    return isinstance(value, (Made, PythonFunction, Class)) or bool(value)


def is_answer(value: object) -> bool:
    """Whether a value is what a function from outside gave back, and not an object that a class made."""
    name = value.name if isinstance(value, Made) else ""
    last = name.removesuffix(".Config").rpartition(".")[2]
    return bool(last) and " " not in name and not last.lstrip("_")[:1].isupper()


def boolean_value(op: ast.boolop, values: Iterable[object]) -> object:
    """`and`, `or`: the value that decides it."""
    stops = isinstance(op, ast.Or)
    result: object = None
    unsure = False
    for result in values:
        truth_value = truth(result)
        if truth_value is stops:
            return result
        unsure = unsure or truth_value is None
    return Unknown("an expression") if unsure else result


def compare(budget: ReadingBudget, op: ast.cmpop, left: object, right: object) -> bool | None:
    """A comparison; None where it cannot be told."""
    is_positive, is_equality = isinstance(op, (ast.Eq, ast.Is)), isinstance(op, (ast.Eq, ast.Is, ast.NotEq, ast.IsNot))
    if isinstance(op, (ast.Is, ast.IsNot)) and right is None:
        return None if isinstance(left, (Unknown, Bound)) or is_answer(left) else (left is None) is is_positive
    if isinstance(left, Outside) and isinstance(right, Outside):
        same = left.name.rpartition(".")[2] == right.name.rpartition(".")[2]
        return same is is_positive if is_equality else None
    weigh(budget, left)
    weigh(budget, right)
    if isinstance(op, (ast.In, ast.NotIn)):
        is_member = _contains(right, left)
        return None if is_member is None else is_member is isinstance(op, ast.In)
    if any(isinstance(leaf, (Unknown, Outside, Made)) for value in (left, right) for leaf in _leaves(value)):
        return None
    if is_equality:
        return bool(left == right) is is_positive
    return bool(ORDER[type(op)](left, right)) if _number(left) and _number(right) else None


def _contains(container: object, value: object) -> bool | None:
    """Whether a value is in a list, a table or a text; None where that cannot be told."""
    if isinstance(container, dict) and isinstance(value, (list, tuple)) and key_of(value) is not MISSING:
        return key_of(value) in container
    if not isinstance(value, (str, int, float, type(None))):
        return None
    if isinstance(container, str):
        return value in container if isinstance(value, str) else None
    if isinstance(container, list) and not is_known(container) and value not in container:
        return None
    return value in container if isinstance(container, (list, dict)) else None


def items(value: object) -> list[Any] | None:
    """What a loop goes over; None where it cannot be told."""
    return list(value) if isinstance(value, (list, tuple, dict)) else None


def put(container: object, at: object, value: object) -> None:
    """An item of a list or a table, where there is room for it."""
    if isinstance(container, dict) and at is not MISSING and len(container) < LONGEST:
        container[at] = value
    if isinstance(container, list) and type(at) is int and -len(container) <= at < len(container):
        container[at] = value


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
    if name.startswith("math.") and given and _number(given[0]) and last in ("ceil", "floor", "sqrt", "log2"):
        return getattr(math, last)(given[0]) if given[0] > 0 or last in ("ceil", "floor") else Unknown(name)
    return _builtin(reading, name, given, words) if name in NAMES else MISSING


def deep_copy(value: Any, budget: ReadingBudget, copies: dict[int, Any] | None = None) -> Any:
    """A copy whose objects are its own; what stands in it twice is copied once, as Python does."""
    copies = {} if copies is None else copies
    if id(value) in copies or not isinstance(value, (Made, list, dict)):
        return copies.get(id(value), value)
    parts = value.parts if isinstance(value, Made) else value
    budget.spend_items(3 + len(parts), ITEM_WORK)
    if isinstance(value, list):
        copies[id(value)] = []
        copies[id(value)] += [deep_copy(part, budget, copies) for part in value]
    elif isinstance(value, dict):
        copies[id(value)] = {}
        copies[id(value)] |= {key: deep_copy(part, budget, copies) for key, part in value.items()}
    else:
        copies[id(value)] = Made(value.name, value.given, {}, set(value.assigned_names))
        copies[id(value)].parts |= deep_copy(value.parts, budget, copies)
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
        case "str" if all(isinstance(leaf, (str, int, float, type(None))) for leaf in _leaves(first)):
            text = str(first)
            return text if len(text) <= LONGEST else Unknown("str(...)")
        case "bool" if (truth_value := truth(first)) is not None:
            return truth_value
        case "len" if isinstance(first, (list, str, dict)):
            return len(first)
        case "divmod" if len(given) == 2 and _number(first) and _number(given[1]) and given[1] != 0:
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
            if values is not None and (name in ("any", "all") or all(_number(part) for part in values)):
                return FOLDS[name](values)
        case "abs" | "round" if _number(first):
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
    shown = {-1: value, 115: str(value), 114: repr(value), 97: ascii(value)}.get(conversion, value)
    try:
        return format(shown, form)
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


def _list_method(budget: ReadingBudget, owner: list[Any], name: str, given: Positional) -> object:
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
        is_comparable = not any(isinstance(leaf, (Unknown, Outside, Made)) for leaf in _leaves([owner, given[0]]))
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
