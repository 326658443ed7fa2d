"""Walk the functions of an MLIR module: arguments, calls written out, loops with their trip counts, what a value is.

A dialect's reader hands in one function that turns a statement into ops; calls, regions and returns are the same for
all. A call is written out where it stands, so that a graph has no functions; how deep and how often is budgeted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ridgeline.compilers.build_graph import GraphBuilder
from ridgeline.compilers.mlir_text import (
    MlirModule,
    ShapedType,
    Statement,
    result_types,
    shaped_types,
    split_types,
)  # fmt: skip
from ridgeline.ir.op_graph import TensorRole

DEEPEST_CALLS = 48
MOST_VISITS = 400_000  # statements met while calls are written out
RETURNS = frozenset(
    {
        "return", "func.return", "stablehlo.return", "mhlo.return", "sdy.return", "scf.yield", "tensor.yield",
        "linalg.yield", "torch.operator_return", "util.return", "tt.return", "scf.condition",
    }
)  # fmt: skip
CALLS = frozenset({"call", "func.call", "util.call", "tt.call", "torch.call"})
_FUNCTION = re.compile(r"@([\w.$-]+|\"[^\"]+\")")
_SHARDING = re.compile(
    r'(?:mhlo|stablehlo)\.sharding\s*=\s*"([^"]*)"|sdy\.sharding\s*=\s*#sdy\.sharding(<[^>]*(?:\[[^\]]*\][^>]*)*>)'
)
_ARGUMENT = re.compile(r"(%[\w.$-]+)\s*:")

Values = dict[str, int]


@dataclass(slots=True)
class Walk:
    """One walk over a module.

    values      tensors by the name they have where the walk stands; -1: no tensor
    numbers     scalar constants by name, for trip counts
    stored_results   what the function at work wrote to its arguments, by their names
    """

    module: MlirModule
    builder: GraphBuilder
    emit: Callable[[Walk, Statement], None]
    values: Values = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    functions: dict[str, Statement] = field(default_factory=dict)
    stored_results: dict[str, int] = field(default_factory=dict)
    depth: int = 0
    visits: int = 0

    def operands(self, statement: Statement) -> list[int]:
        """Tensors that a statement names before its types; values that are no tensors are left out."""
        return [number for name in statement.operands if (number := self.values.get(name, -1)) >= 0]

    def results(self, statement: Statement, role: TensorRole = "activation", alias_of: int = -1) -> list[int]:
        """A tensor for each result, by the types that the statement states."""
        types = result_types(statement)
        numbers: list[int] = []
        for place, name in enumerate(statement.results):
            if place >= len(types):
                self.bind(name, -1)
                continue
            number = self.tensor(types[place], role=role, alias_of=alias_of)
            self.bind(name, number)
            numbers.append(number)
        return numbers

    def tensor(
        self, type_: ShapedType, *, role: TensorRole = "activation", name: str = "", alias_of: int = -1,
        sharding: str = "",
    ) -> int:  # fmt: skip
        """A tensor of a type; an open dim is refused, because nothing can be counted with it."""
        if any(dim < 0 for dim in type_.shape):
            given_values = f"a tensor of {'x'.join('?' if dim < 0 else str(dim) for dim in type_.shape)}"
            raise self.builder.refuse(
                given_values, "dims that are numbers", "compile it for the shapes that you ask about"
            )
        return self.builder.tensor(
            type_.shape, type_.element, role=role, name=name, alias_of=alias_of, sharding=sharding
        )

    def bind(self, name: str, number: int) -> None:
        """Give a value its tensor; the first of several results is also called without its place."""
        self.values[name] = number
        if name.endswith("#0"):
            self.values[name[:-2]] = number

    def visit(self, statements: list[Statement]) -> list[int]:
        """Emit statements in order; the tensors that they return."""
        return_values: list[int] = []
        for statement in statements:
            self.visits += 1
            if self.visits > MOST_VISITS:
                raise self.builder.refuse("calls that write each other out for ever", "a program of a model")
            if statement.name in RETURNS:
                return_values = [self.values.get(name, -1) for name in statement.operands]
            elif statement.name in CALLS:
                self._call(statement)
            else:
                self.emit(self, statement)
        return return_values

    def inside(self, statements: list[Statement], line: int) -> list[int]:
        """As `visit`, a level deeper."""
        if self.depth >= DEEPEST_CALLS:
            raise self.builder.refuse("calls and loops in each other", f"at most {DEEPEST_CALLS} levels", "", line)
        self.depth += 1
        try:
            return self.visit(statements)
        finally:
            self.depth -= 1

    def _call(self, statement: Statement) -> None:
        name = function_name(statement)
        callee = self.functions.get(name)
        if callee is None or not callee.regions:
            self.builder.op(f"call @{name}", "unknown", self.operands(statement), self.results(statement))
            return
        bind_results(self, statement, self.enter(callee, self._call_operands(statement)))

    def _call_operands(self, statement: Statement) -> list[int]:
        before, _ = split_types(statement.text)
        return [self.values.get(value, -1) for value in re.findall(r"%[\w.$-]+(?:#\d+)?", before)]

    def enter(self, callee: Statement, given_values: list[int]) -> list[int]:
        """Emit a function's body with these arguments; its own values are forgotten afterwards."""
        outer, outer_numbers = self.values, self.numbers
        names = [name for name, _ in arguments_of(callee)]
        self.values = dict(zip(names, given_values, strict=False))
        self.numbers = {}
        try:
            return self.inside(callee.regions[0], callee.line)
        finally:
            self.values, self.numbers = outer, outer_numbers


def bind_results(walk: Walk, statement: Statement, return_values: list[int]) -> None:
    """Give a statement's results the tensors that its region returned."""
    for place, name in enumerate(statement.results):
        walk.bind(name, return_values[place] if place < len(return_values) else -1)


def function_name(statement: Statement) -> str:
    """The name behind the first `@`."""
    match = _FUNCTION.search(statement.text)
    return match.group(1).strip('"') if match else ""


def functions_of(module: MlirModule) -> dict[str, Statement]:
    """Functions of a module by name, in order, nested modules included."""
    functions: dict[str, Statement] = {}
    for statement in module.walk():
        if statement.name in ("func.func", "util.func", "tt.func", "func"):
            functions.setdefault(function_name(statement), statement)
    return functions


def entry_of(functions: Mapping[str, Statement]) -> Statement | None:
    """The function that is the program: `main`, else the first public one that has a body."""
    bodies = [function for function in functions.values() if function.regions]
    main = functions.get("main")
    if main is not None and main.regions:
        return main
    public = [function for function in bodies if "private" not in function.text.split("@", 1)[0]]
    return next(iter(public or bodies), None)


def arguments_of(function: Statement) -> list[tuple[str, str]]:
    """Arguments in a function's head: name, and the text of its type and attributes."""
    start = function.text.find("(", max(function.text.find("@"), 0))
    if start < 0:
        return []
    pieces = split_brackets(function.text[start + 1 : closing_bracket(function.text, start)])
    matches: list[tuple[str, str]] = []
    for piece in pieces:
        match = _ARGUMENT.match(piece.strip())
        if match:
            matches.append((match.group(1), piece.strip()[match.end() :]))
    return matches


def closing_bracket(text: str, start: int) -> int:
    """The place of the bracket that closes the one at `start`; the text's end where none does."""
    depth, in_quotes = 0, False
    for at in range(start, len(text)):
        character = text[at]
        if character == '"' and text[at - 1] != "\\":
            in_quotes = not in_quotes
        elif in_quotes:
            continue
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth == 0:
                return at
    return len(text)


def split_brackets(text: str, mark: str = ",") -> list[str]:
    """The parts of a text between marks that stand outside all brackets and quotes.

    >>> split_brackets("%a: tensor<2x3xf32> {x = [1, 2]}, %b: i32")
    ['%a: tensor<2x3xf32> {x = [1, 2]}', ' %b: i32']
    """
    parts: list[str] = []
    depth, start, in_quotes = 0, 0, False
    for at, character in enumerate(text):
        if character == '"' and text[at - 1 : at] != "\\":
            in_quotes = not in_quotes
        elif in_quotes:
            continue
        elif character in "([{<":
            depth += 1
        elif character in ")]}" or (character == ">" and text[at - 1 : at] not in ("-", "=")):
            depth -= 1
        elif character == mark and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    return [part for part in parts if part.strip()]


def begin_function(walk: Walk, function: Statement) -> None:
    """Tensors for the arguments of the program; those of a module's parameters are weights where the name says so."""
    for name, text in arguments_of(function):
        types = shaped_types(text)
        if not types:
            walk.values[name] = -1
            continue
        walk.values[name] = walk.tensor(types[0], role="input", name=name.lstrip("%"), sharding=sharding_of(text))


def sharding_of(text: str) -> str:
    """How ranks share a tensor, in the words of its attribute; empty where it says nothing.

    >>> sharding_of('tensor<8xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}')
    '{devices=[2]<=[2]}'
    """
    match = _SHARDING.search(text)
    return (match.group(1) or match.group(2) or "") if match else ""
