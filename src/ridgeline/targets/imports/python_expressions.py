"""What comparisons, items, formatted texts and comprehensions are worth, for `targets.python_eval`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from ridgeline.core.documents import JsonObject
from ridgeline.targets.imports import python_builtins as builtin
from ridgeline.targets.imports.python_values import MISSING, Module, Outside, Unknown, is_known, key_of

if TYPE_CHECKING:
    from ridgeline.targets.imports.python_eval import Interpreter


def compare_values(reading: Interpreter, node: ast.Compare, scope: JsonObject, module: Module) -> Any:
    left_value = reading.value(node.left, scope, module)
    for op, part in zip(node.ops, node.comparators, strict=True):
        right = reading.value(part, scope, module)
        truth_value = builtin.compare(op, left_value, right)
        if truth_value is not True:
            return Unknown(ast.unparse(node)[:80]) if truth_value is None else False
        left_value = right
    return True


def item(reading: Interpreter, node: ast.expr, owner: Any, key: ast.expr, scope: JsonObject, module: Module) -> Any:
    if isinstance(key, ast.Slice):
        ends = [None if end is None else reading.value(end, scope, module) for end in (key.lower, key.upper, key.step)]
        if isinstance(owner, (list, str)) and all(end is None or type(end) is int for end in ends):
            return owner[slice(*ends)] if ends[2] != 0 else Unknown("a slice")
        return Unknown(ast.unparse(node)[:80])
    at = reading.value(key, scope, module)
    if isinstance(owner, Outside) and owner.name == "os.environ":
        return reading.checkout.environment.get(str(at), Unknown(f"environment {at}"))
    if isinstance(owner, dict) and key_of(at) is not MISSING:
        return owner.get(key_of(at), Unknown(ast.unparse(node)[:80]))
    if isinstance(owner, (list, str)) and type(at) is int and -len(owner) <= at < len(owner):
        return owner[at]
    return Unknown(ast.unparse(node)[:80])


def text(reading: Interpreter, node: ast.expr, parts: list[ast.expr], scope: JsonObject, module: Module) -> Any:
    text_parts = []
    for part in parts:
        inner = part.value if isinstance(part, ast.FormattedValue) else part
        value = reading.value(inner, scope, module)
        if not is_known(value) or not isinstance(value, (str, int, float)):
            return Unknown(ast.unparse(node)[:80])
        text_parts.append(str(value))
    return "".join(text_parts)[: builtin.LONGEST]


def comprehension(reading: Interpreter, node: Any, scope: JsonObject, module: Module) -> Any:
    inner, first = dict(scope), node.generators[0]
    items = builtin.items(reading.value(first.iter, scope, module))
    if items is None or len(node.generators) > 1:
        return Unknown(ast.unparse(node)[:80])
    elements: list[Any] = []
    for item in items:
        reading.store(first.target, item, inner, module)
        truth_values = [builtin.truth(reading.value(test, inner, module)) for test in first.ifs]
        if None in truth_values:
            return Unknown(ast.unparse(node)[:80])
        if not all(truth_values):
            continue
        if isinstance(node, ast.DictComp):
            elements.append((reading.value(node.key, inner, module), reading.value(node.value, inner, module)))
        else:
            elements.append(reading.value(node.elt, inner, module))
    if isinstance(node, ast.DictComp):
        return {key_of(key): value for key, value in elements if key_of(key) is not MISSING}
    return elements
