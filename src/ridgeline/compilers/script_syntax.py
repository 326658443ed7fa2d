"""Turn the text of a TVM script into its syntax within a budget, and parts of it into names, sizes and types.

A script is Python by its grammar and is never run: it is parsed, and calls and subscripts are looked at.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator

from ridgeline.compilers.mlir_text import ShapedType
from ridgeline.compilers.program_text import ProgramSource, refuse_program
from ridgeline.core.units import BINARY

MOST_SCRIPT = int(3 * BINARY["Mi"])  # characters: a syntax tree takes a hundred bytes for each
MOST_LEXEMES = 600_000
DEEPEST_BLOCK = 60  # statements in each other
_LEXEME = re.compile(r"\w+|[^\w\s]")


def parse_script(source: ProgramSource) -> ast.Module:
    """The syntax of a script; one that is no Python, or too long, is refused."""
    if len(source.text) > MOST_SCRIPT:
        given_values = f"{len(source.text):,} characters"
        raise refuse_program(
            source.path, given_values, f"at most {MOST_SCRIPT:,} of a script", "print one function of it"
        )
    if sum(1 for _ in _LEXEME.finditer(source.text)) > MOST_LEXEMES:
        raise refuse_program(source.path, f"more than {MOST_LEXEMES:,} words", "one module", "print one function of it")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as wrong:
        line = wrong.lineno if isinstance(wrong, SyntaxError) and wrong.lineno else 0
        given_values = "text that is no script" if isinstance(wrong, SyntaxError) else "a script that nests too deep"
        raise refuse_program(source.path, given_values, "what mod.script() printed", "print it again", line) from None


def dotted_name(node: ast.AST) -> str:
    """The dotted name of an expression: `R.nn.softmax`; empty where it is no name.

    >>> dotted_name(ast.parse("R.nn.softmax", mode="eval").body)
    'R.nn.softmax'
    """
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < 12:
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def decorator_words(function: ast.FunctionDef) -> set[str]:
    """Names of a function's decorators, called or not."""
    return {dotted_name(node.func if isinstance(node, ast.Call) else node) for node in function.decorator_list}


def keyword_of(call: ast.Call, *names: str) -> ast.expr | None:
    """The argument of a call by any of these names."""
    return next((word.value for word in call.keywords if word.arg in names), None)


def whole_number(node: ast.expr | None) -> int | None:
    """The number of `64` or `T.int64(64)`; None of a symbol or an expression."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        node = node.args[0]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        return -value if isinstance(value, int) else None
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool):
        return node.value
    return None


def sizes_of(node: ast.expr | None) -> tuple[int, ...] | None:
    """The sizes of a tuple or list of numbers; a symbol is -1; None where it is no such thing."""
    if isinstance(node, ast.Call) and dotted_name(node.func).endswith("shape") and node.args:
        node = node.args[0]
    if not isinstance(node, (ast.Tuple, ast.List)):
        return None
    numbers = (whole_number(part) for part in node.elts)
    return tuple(number if number is not None and number >= 0 else -1 for number in numbers)


def text_of(node: ast.expr | None) -> str:
    """The text of a string constant; empty of anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def tensor_types(node: ast.expr | None) -> list[ShapedType]:
    """Types of `R.Tensor((2, 64), dtype="float16")`, `T.Buffer(...)`, and of tuples and lists of them."""
    matches: list[ShapedType] = []
    stack: list[ast.expr] = [node] if node is not None else []
    while stack and len(matches) < 10_000:
        part = stack.pop()
        if isinstance(part, (ast.Tuple, ast.List)):
            stack.extend(reversed(part.elts))
        elif isinstance(part, ast.Call) and dotted_name(part.func).rsplit(".", 1)[-1] in (
            "Tensor",
            "Buffer",
            "DTensor",
            "match_buffer",
        ):
            shape = next((sizes for argument in part.args if (sizes := sizes_of(argument)) is not None), None)
            words = [text for argument in part.args if (text := text_of(argument))]
            dtype = text_of(keyword_of(part, "dtype")) or (words[0] if words else "float32")
            matches.append(ShapedType(shape=shape if shape is not None else (-1,), element=dtype))
        elif isinstance(part, ast.Call) and dotted_name(part.func).endswith("Tuple"):
            stack.extend(reversed(part.args))
    return matches


def statements_below(body: list[ast.stmt], depth: int = 0) -> Iterator[ast.stmt]:
    """Statements in order, those inside `with` and `for` among them, down to a depth."""
    if depth > DEEPEST_BLOCK:
        return
    for statement in body:
        yield statement
        if isinstance(statement, (ast.With, ast.For)):
            yield from statements_below(statement.body, depth + 1)
        elif isinstance(statement, ast.If):
            yield from statements_below([*statement.body, *statement.orelse], depth + 1)
