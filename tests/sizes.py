"""Print the largest source files and functions, and fail when one is far over the house's size."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"
FILE_WATCH, FILE_LIMIT = 600, 700  # lines: reported, refused
FUNCTION_WATCH, FUNCTION_LIMIT = 40, 60


def functions(path: Path) -> list[tuple[int, str]]:
    """Lines and name of every function of a file, its docstring not counted."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0]
            text = (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            )
            doc = (first.end_lineno or 0) - first.lineno + 1 if text else 0
            found.append(((node.end_lineno or 0) - node.lineno + 1 - doc, f"{path.name}:{node.lineno} {node.name}"))
    return found


def main() -> int:
    files = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCE.rglob("*.py")}
    long_files = sorted(
        ((lines, path.relative_to(SOURCE)) for path, lines in files.items()), reverse=True, key=lambda row: row[0]
    )
    long_functions = sorted((row for path in files for row in functions(path)), reverse=True)
    print(f"sizes: {len(files)} files, {sum(files.values())} lines, {len(long_functions)} functions")
    for lines, name in long_files[:3]:
        print(f"  {lines:4} lines  {name}{'  over the watch line' if lines > FILE_WATCH else ''}")
    for lines, label in long_functions[:3]:
        print(f"  {lines:4} lines  {label}{'  over the watch line' if lines > FUNCTION_WATCH else ''}")
    over = long_files[0][0] > FILE_LIMIT or long_functions[0][0] > FUNCTION_LIMIT
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
