"""Turn a call into what it hands over: arguments by name, or an object with the defaults of its class."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ridgeline.targets.python_values import MISSING, Class, Function, Made, Module, Unknown

if TYPE_CHECKING:
    from ridgeline.targets.python_eval import Interpreter


def arguments(
    reading: Interpreter, args: ast.arguments, call: tuple[tuple[Any, ...], Mapping[str, Any]], what: Function
) -> dict[str, Any]:
    """The parameters of a function by name: defaults, then what it is called with; the rest is unknown."""
    given, words = call
    names = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    found: dict[str, Any] = {name: Unknown(name) for name in (*names, *(arg.arg for arg in args.kwonlyargs))}
    for name, part in zip(names[len(names) - len(args.defaults) :], args.defaults, strict=True):
        found[name] = reading.value(part, {}, what.module)
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        if default is not None:
            found[arg.arg] = reading.value(default, {}, what.module)
    found |= dict(zip(names, given, strict=False))
    found |= {name: value for name, value in words.items() if name in found}
    if args.vararg:
        found[args.vararg.arg] = list(given[len(names) :])
    if args.kwarg:
        found[args.kwarg.arg] = {name: value for name, value in words.items() if name not in found}
    return found


def build(reading: Interpreter, what: Class, given: tuple[Any, ...], words: Mapping[str, Any]) -> Made:
    """An object with the defaults of its class and what it was called with."""
    found = Made(name=what.name, given=given)
    names = list(_defaults(reading, what, found, 0))
    found.parts |= dict(zip(names, given, strict=False))
    found.parts |= words
    return found


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
            made = reading.value(words["default_factory"], {}, module)
            empty = {"list": [], "dict": {}}.get(str(made), MISSING)
            return reading.called(made, (), {}, str(made)) if empty is MISSING else empty
        return Unknown("a field")
    return reading.value(node, {}, module)
