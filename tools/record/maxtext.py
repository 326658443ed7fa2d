"""Record the options of MaxText from its own package, as `targets/options` keeps them; nothing of it is run.

    python -m tools record maxtext FOLDER > src/ridgeline/targets/options/maxtext-vVERSION.toml

FOLDER holds the unpacked wheel: `maxtext/` and `maxtext-VERSION.dist-info/`. Options are the fields of the
configuration class and of the classes it is made of (`configs/types.py`) and the keys of `configs/base.yml`. A field
that is an enumeration or a list of words has choices; the words of `remat_policy` are those that the decoder compares
it with, and those of `context_parallel_strategy` those that the class accepts.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CLASS = "MaxTextConfig"
WIDTH = 118


def classes_of(path: Path) -> dict[str, ast.ClassDef]:
    """Every class of a module, by name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def fields_of(name: str, classes: dict[str, ast.ClassDef]) -> Iterator[tuple[str, ast.expr]]:
    """Fields of a class with their annotations, those of the classes it is made of first."""
    if name not in classes:
        return
    for base in classes[name].bases:
        if isinstance(base, ast.Name):
            yield from fields_of(base.id, classes)
    for node in classes[name].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.annotation


def words_of(annotation: ast.expr, classes: dict[str, ast.ClassDef], named: dict[str, ast.expr]) -> list[str]:
    """The words an annotation allows: a literal, an alias of one, or an enumeration; none where any value goes."""
    if isinstance(annotation, ast.BinOp):
        sides = [side for side in (annotation.left, annotation.right) if ast.unparse(side) != "None"]
        return words_of(sides[0], classes, named) if len(sides) == 1 else []
    if isinstance(annotation, ast.Name) and annotation.id in named:
        return words_of(named[annotation.id], classes, named)
    if isinstance(annotation, ast.Name) and annotation.id in classes:
        values = [node.value for node in classes[annotation.id].body if isinstance(node, ast.Assign)]
        return [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        literals = ast.literal_eval(annotation.slice)
        return [str(word) for word in (literals if isinstance(literals, tuple) else (literals,))]
    return []


def compared_words(path: Path, variable: str, function: str = "") -> list[str]:
    """Every word that code compares a variable with, by ==, !=, in and not in; of one function where it is named."""
    tree: ast.AST = ast.parse(path.read_text(encoding="utf-8"))
    if function:
        tree = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function)
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and ast.unparse(node.left).split(".")[-1] == variable:
            for comparator in node.comparators:
                parts = comparator.elts if isinstance(comparator, (ast.Tuple, ast.Set, ast.List)) else [comparator]
                words = (part.value for part in parts if isinstance(part, ast.Constant))
                found |= {word: None for word in words if isinstance(word, str)}
    return sorted(found)


def record(folder: Path) -> dict[str, Any]:
    """The recorded table: names and choices."""
    package = folder / "maxtext"
    (info,) = folder.glob("maxtext-*.dist-info")
    types = package / "configs" / "types.py"
    classes = classes_of(types) | classes_of(package / "common" / "common_types.py")
    tree = ast.parse(types.read_text(encoding="utf-8"))
    aliases = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    fields = dict(fields_of(CLASS, classes))
    base = yaml.safe_load((package / "configs" / "base.yml").read_text(encoding="utf-8"))
    choices = {name: words for name, annotation in fields.items() if (words := words_of(annotation, classes, aliases))}
    policies = compared_words(package / "layers" / "nnx_decoders.py", "remat_policy", "get_remat_policy")
    choices |= {
        "remat_policy": policies,
        "context_parallel_strategy": compared_words(types, "context_parallel_strategy"),
    }
    version = info.name.removeprefix("maxtext-").removesuffix(".dist-info")
    return {
        "target": "MaxText",
        "version": version,
        "source": f"configs/types.py and configs/base.yml of the package maxtext {version}",
        "values": sorted(set(fields) | set(base) | {"base_config"}),
        "choices": dict(sorted(choices.items())),
    }


def text_of(table: dict[str, Any]) -> str:
    """The table as the file is written."""
    lines = [f'{key} = "{table[key]}"' for key in ("target", "version", "source")]
    lines += ["values = [", *_wrap(table["values"]), "]", "", "[choices]"]
    for name, words in table["choices"].items():
        plain = f"{name} = [{', '.join(_quote(words))}]"
        lines += [plain] if len(plain) <= WIDTH else [f"{name} = [", *_wrap(words), "]"]
    return "\n".join(lines) + "\n"


def _quote(words: list[str]) -> list[str]:
    return [f'"{word}"' for word in words]


def _wrap(words: list[str]) -> Iterator[str]:
    line = "   "
    for word in _quote(words):
        if len(line) + len(word) + 2 > WIDTH:
            yield line
            line = "   "
        line += f" {word},"
    yield line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path)


def run(arguments: argparse.Namespace) -> int:
    """Print the list."""
    sys.stdout.write(text_of(record(arguments.folder)))
    return 0
