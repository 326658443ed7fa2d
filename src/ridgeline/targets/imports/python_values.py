"""Turn Python's operators and names into values: plain ones, objects, definitions, unknown ones.

Everything is bounded; what cannot be told is an `Unknown`.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError
from ridgeline.targets.imports.reading_budget import ReadingBudget
from ridgeline.targets.imports.run_files import Checkout

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


class Stop(InputError):
    """Calls and expressions are too deep inside each other."""


class Returned(Exception):
    """A `return` was reached; its one argument is the value."""


class Jump(Exception):
    """`break` or `continue`."""


class Left(Exception):
    """`raise` was reached: the code refuses what it was given."""


Comprehension = ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp
Hook = Callable[[str, tuple[object, ...], JsonObject], object]


def no_value(*_: object) -> object:
    """`MISSING`, whatever it is asked for."""
    return MISSING


def is_known(value: object) -> bool:
    """Whether a value and everything in it is known."""
    return not any(isinstance(leaf, (Unknown, Outside)) for leaf in leaves_of(value))


def leaves_of(value: object) -> Iterator[object]:
    """What stands in lists and tables inside each other; of a list that stands there many times, once."""
    waiting, walked_ids = [value], set()
    while waiting:
        part = waiting.pop()
        if not isinstance(part, (list, tuple, set, dict)):
            yield part
        elif id(part) not in walked_ids:
            walked_ids.add(id(part))
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


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and math.isfinite(value) and abs(value) < HUGE


def binary(budget: ReadingBudget, op: ast.operator, left: Any, right: Any) -> object:
    """Arithmetic on numbers; lists and texts joined or repeated; tables merged."""
    how = ARITHMETIC.get(type(op))
    if is_number(left) and is_number(right):
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
    if isinstance(op, (ast.USub, ast.UAdd)) and is_number(value):
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
    if any(isinstance(leaf, (Unknown, Outside, Made)) for value in (left, right) for leaf in leaves_of(value)):
        return None
    if is_equality:
        return bool(left == right) is is_positive
    return bool(ORDER[type(op)](left, right)) if is_number(left) and is_number(right) else None


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
