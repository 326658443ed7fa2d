"""The values that reading Python configuration yields: plain ones, objects, functions and classes, and the unknown."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.core.documents import JsonMapping, JsonObject
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
    given: tuple[Any, ...] = ()
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
class Imported:
    """A name that another file defines, looked up when it is used."""

    module: str
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Function:
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

    owner: Any
    name: str


def is_known(value: Any) -> bool:
    """Whether a value and everything in it is known."""
    if isinstance(value, (Unknown, Outside)):
        return False
    if isinstance(value, (list, tuple, set)):
        return all(is_known(part) for part in value)
    if isinstance(value, dict):
        return all(is_known(part) for part in value.values())
    return True


def key_of(value: Any) -> Any:
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


def describe_value(value: Any) -> str:
    """A value as a message shows it: never the inside of this reader.

    >>> describe_value(Made(name="Thing")), describe_value([1, Unknown("x.y")]), describe_value("a")
    ('Thing(...)', '[1, x.y]', "'a'")
    """
    match value:
        case Unknown() | Outside():
            return str(value)
        case Made(name=name):
            return f"{name or 'an object'}(...)" if name else "an object"
        case list() | tuple():
            return "[" + ", ".join(describe_value(part) for part in list(value)[:20]) + "]"
        case dict():
            return "a table"
        case Function() | Class() | Bound() | Module() | Imported():
            return "a definition"
        case _:
            return repr(value)[:80]


if TYPE_CHECKING:
    from ridgeline.targets.imports.python_eval import Interpreter


def arguments(
    reading: Interpreter, args: ast.arguments, call: tuple[tuple[Any, ...], JsonMapping], what: Function
) -> JsonObject:
    """The parameters of a function by name: defaults, then what it is called with; the rest is unknown."""
    given_text, words = call
    names = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    bound_arguments: JsonObject = {name: Unknown(name) for name in (*names, *(arg.arg for arg in args.kwonlyargs))}
    for name, part in zip(names[len(names) - len(args.defaults) :], args.defaults, strict=True):
        bound_arguments[name] = reading.value(part, {}, what.module)
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        if default is not None:
            bound_arguments[arg.arg] = reading.value(default, {}, what.module)
    bound_arguments |= dict(zip(names, given_text, strict=False))
    bound_arguments |= {name: value for name, value in words.items() if name in bound_arguments}
    if args.vararg:
        bound_arguments[args.vararg.arg] = list(given_text[len(names) :])
    if args.kwarg:
        bound_arguments[args.kwarg.arg] = {name: value for name, value in words.items() if name not in bound_arguments}
    return bound_arguments


def build(reading: Interpreter, what: Class, given: tuple[Any, ...], words: JsonMapping) -> Made:
    """An object with the defaults of its class and what it was called with."""
    instance = Made(name=what.name, given=given)
    names = list(_defaults(reading, what, instance, 0))
    instance.parts |= dict(zip(names, given, strict=False))
    instance.parts |= words
    return instance


def _defaults(reading: Interpreter, what: Class, made: Made, depth: int) -> Iterator[str]:
    """The fields of a class in order, defaults of bases first; sets those that have one."""
    reading.tick()
    for base in what.node.bases if depth < 8 else ():
        above = reading.value(base, {}, what.module)
        if isinstance(above, Class):
            yield from _defaults(reading, above, made, depth + 1)
    for node in what.node.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if node.value is not None:
                made.parts[node.target.id] = _default(reading, node.value, what.module)
            yield node.target.id


def _default(reading: Interpreter, node: ast.expr, module: Module) -> Any:
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "field":
        words = {word.arg: word.value for word in node.keywords}
        if "default" in words:
            return reading.value(words["default"], {}, module)
        if "default_factory" in words:
            default_value = reading.value(words["default_factory"], {}, module)
            empty = {"list": [], "dict": {}}.get(str(default_value), MISSING)
            return reading.call_value(default_value, (), {}, str(default_value)) if empty is MISSING else empty
        return Unknown("a field")
    return reading.value(node, {}, module)


@lru_cache(maxsize=128)
def parse_module(text: str) -> ast.Module:
    return ast.parse(text)


def load_expression(target: ast.expr) -> ast.expr:
    """The same place, read instead of written."""
    return ast.parse(ast.unparse(target), mode="eval").body


def says(node: ast.stmt) -> bool:
    """Whether a statement only prints or logs."""
    if not (isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Constant))):
        return False
    text = ast.unparse(node)
    return isinstance(node.value, ast.Constant) or text.startswith(("log", "print", "warn", "assert"))


def bind(node: ast.Import | ast.ImportFrom, scope: JsonObject, module: Module) -> None:
    """Names that an import binds, to be looked up when they are used."""
    if isinstance(node, ast.Import):
        for name in node.names:
            scope[name.asname or name.name.partition(".")[0]] = Imported(
                name.name if name.asname else name.name.partition(".")[0], ""
            )
        return
    base = node.module or ""
    if node.level:
        above = module.package.split(".")[: len(module.package.split(".")) - node.level + 1]
        base = ".".join([*above, *([base] if base else [])])
    for name in node.names:
        if name.name == "*":
            scope.setdefault("*", []).append(base)
        else:
            scope[name.asname or name.name] = Imported(base, name.name)


def place(checkout: Checkout, source: str) -> tuple[str, str]:
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
