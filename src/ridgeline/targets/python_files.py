"""Turn names of modules into files of the checkout, imports into names to look up, and texts into syntax trees."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path
from typing import Any

from ridgeline.targets.python_values import Imported, Module
from ridgeline.targets.run_files import Around


@lru_cache(maxsize=128)
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


def loaded(target: ast.expr) -> ast.expr:
    """The same place, read instead of written."""
    return ast.parse(ast.unparse(target), mode="eval").body


def says(node: ast.stmt) -> bool:
    """Whether a statement only prints or logs."""
    if not (isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Constant))):
        return False
    text = ast.unparse(node)
    return isinstance(node.value, ast.Constant) or text.startswith(("log", "print", "warn", "assert"))


def bind(node: ast.Import | ast.ImportFrom, scope: dict[str, Any], module: Module) -> None:
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


def place(around: Around, source: str) -> tuple[str, str]:
    """The dotted name of the file that is read, and of its package."""
    if around.folder is None:
        return source.removesuffix(".py"), ""
    names: list[str] = []
    folder = around.folder
    while folder != around.top and len(names) < 12:
        names.insert(0, folder.name)
        folder = folder.parent
    if names and names[0] in ("src", "lib", "site-packages"):
        names = names[1:]
    package = ".".join(names)
    stem = Path(source).stem
    return f"{package}.{stem}" if package else stem, package


def module_file(around: Around, name: str) -> tuple[Path, str] | None:
    """The file of a module, looked for in the checkout and in the folders above the file that is read."""
    if around.top is None or around.folder is None or not all(part.isidentifier() for part in name.split(".")):
        return None
    inner = Path(*name.split("."))
    for base in (around.top, around.top / "src", around.folder, *around.folder.parents):
        if not base.is_relative_to(around.top):
            break
        for path in (base / inner.with_suffix(".py"), base / inner / "__init__.py"):
            text = around.text(path)
            if text is not None:
                return path, text
    return None
