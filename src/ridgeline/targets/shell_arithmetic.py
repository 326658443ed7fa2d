"""Turn a shell's whole-number arithmetic, variables filled in, into its value: no names, no calls, bounded powers."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

LARGEST = 2**53
_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
_ORDER: Mapping[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Gt: operator.gt,
    ast.Lt: operator.lt,
    ast.GtE: operator.ge,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def evaluated(text: str) -> int | None:
    """What an expression of numbers is worth; None for what is none.

    >>> evaluated("2 ** 22 / 1024"), evaluated("(4 > 3 && !0) ? 5 : 6"), evaluated("import os")
    (4096, 5, None)
    """
    chosen = re.fullmatch(r"([^?:]+)\?([^?:]+):([^?:]+)", text)  # C's choice, which Python spells otherwise
    spelled = f"({chosen.group(2)}) if ({chosen.group(1)}) else ({chosen.group(3)})" if chosen else text
    spelled = re.sub(r"!(?!=)", " not ", spelled.replace("&&", " and ").replace("||", " or "))
    spelled = re.sub(r"(?<![\w.])0+(?=\d)", "", spelled)
    try:
        return _evaluate(ast.parse(spelled.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _evaluate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < LARGEST:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd, ast.Not)):
        held = _evaluate(node.operand)
        return int(held == 0) if isinstance(node.op, ast.Not) else -held if isinstance(node.op, ast.USub) else held
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base, power = _evaluate(node.left), _evaluate(node.right)
        if abs(base) <= 2**20 and 0 <= power <= 64 and abs(base) ** power < LARGEST:
            return int(base**power)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return _ARITHMETIC[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _ORDER:
        return int(_ORDER[type(node.ops[0])](_evaluate(node.left), _evaluate(node.comparators[0])))
    if isinstance(node, ast.IfExp):
        return _evaluate(node.body if _evaluate(node.test) else node.orelse)
    if isinstance(node, ast.BoolOp):
        held_all = [_evaluate(value) != 0 for value in node.values]
        return int(all(held_all) if isinstance(node.op, ast.And) else any(held_all))
    raise ValueError("not whole-number arithmetic")
