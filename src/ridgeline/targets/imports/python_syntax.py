"""Turn the text of a Python module into its syntax, and a node of it into what is asked of it again and again.

What a node is written as, which names it would set and whether it yields is learnt once, and paid for by its size.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import lru_cache

from ridgeline.targets.imports.reading_budget import ReadingBudget

NODE_WORK = 30  # of walking a node of the syntax and writing it as text
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


Target = ast.Name | ast.Attribute


@dataclass(slots=True)
class SyntaxNotes:
    """What was learnt of the nodes of a reading so far."""

    budget: ReadingBudget
    texts: dict[ast.AST, str] = field(default_factory=dict)
    targets: dict[ast.stmt, list[Target] | None] = field(default_factory=dict)
    generators: dict[ast.AST, bool] = field(default_factory=dict)

    def text(self, node: ast.AST) -> str:
        """The beginning of a node as it is written."""
        if node not in self.texts:
            self.budget.spend(NODE_WORK * sum(1 for _ in ast.walk(node)))
            self.texts[node] = ast.unparse(node)[:200]
        return self.texts[node]

    def targets_below(self, node: ast.stmt, body: list[ast.stmt]) -> list[Target] | None:
        """The names and attributes that the body of a statement sets; None for one that only refuses or prints."""
        if node not in self.targets:
            self.text(node)  # pays for the walk
            sets = not all(isinstance(line, (ast.Raise, ast.Pass, ast.Assert)) or self._says(line) for line in body)
            parts = (part for line in body for part in ast.walk(line) if isinstance(part, (ast.Name, ast.Attribute)))
            self.targets[node] = [part for part in parts if isinstance(part.ctx, ast.Store)] if sets else None
        return self.targets[node]

    def _says(self, node: ast.stmt) -> bool:
        """Whether a statement only prints or logs."""
        if not (isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Constant))):
            return False
        return isinstance(node.value, ast.Constant) or self.text(node).startswith(("log", "print", "warn", "assert"))

    def is_generator(self, node: ast.FunctionDef) -> bool:
        """Whether a function yields."""
        if node not in self.generators:
            self.text(node)
            self.generators[node] = any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in ast.walk(node))
        return self.generators[node]
