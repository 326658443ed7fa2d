"""Write docs/json.md, the reference of what `--json` prints, from the classes of the results."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from itertools import groupby
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from ridgeline.cli.verbs import VERBS
from ridgeline.core.dtype import DType
from ridgeline.core.encode import SCHEMA_VERSION, json_keys
from ridgeline.core.schema import (
    first_line,
    json_schema,
    key_meanings,
    owner_of,
    reachable_kinds,
    records_at,
    result_keys,
)
from ridgeline.report.results import RESULTS, results_of
from tools.pages import DOCS, write_or_check

PAGE = DOCS / "json.md"
HEAD = """# What `--json` prints

Written by `python -m tools docs json` from the classes of the results; do not edit. A result is a frozen dataclass, and
these are its keys. As JSON schema: `ridgeline schema predict`.

Numbers are in base units unless a key's name carries another: `_s` seconds, `_us` microseconds, `_bytes`; shares are of
1. `[]` is a list, and `?` may be null. A key in brackets is not always there. Every answer begins with
`schema_version`, which is VERSION ([what that promises](stability.md)); a list, which only `show` prints, has it in
each entry. Every result of a verb also has `kind`, which names it, and `possible`, which is true. What `show` and
`check` print follows the fields of the catalog entry or scenario, and is not listed. A refusal of any verb is a
[Refusal](#refusal): `possible` false, and the problems. A record that several results have is listed once.
""".replace("VERSION", str(SCHEMA_VERSION))
NAMES = {str: "text", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


def words(hint: Any) -> str:
    """A type as JSON speaks of it; a record as a link to its own table."""
    origin, parts = get_origin(hint), get_args(hint)
    owner = origin or hint
    if origin is Literal:
        return " or ".join(f"`{str(part).lower() if isinstance(part, bool) else part}`" for part in parts)
    if origin in (Union, UnionType):
        named = list(dict.fromkeys(words(part) for part in parts if part is not NoneType))
        return " or ".join(named) + ("?" if NoneType in parts else "")
    if is_dataclass(owner) and owner is not DType and is_small(owner):
        keys = result_keys(owner).items()
        groups = groupby(keys, key=lambda item: words(item[1][0]))
        return "{" + "; ".join(f"{', '.join(f'`{key}`' for key, _ in group)}: {holds}" for holds, group in groups) + "}"
    if is_dataclass(owner) and owner is not DType:
        return f"[{owner.__name__}](#{owner.__name__.lower()})"
    schema = json_schema(hint)
    if schema.get("type") == "array":
        return f"{words(parts[0])}[]" if parts else "list"
    if schema.get("type") == "object":
        return f"{words(parts[1])} by name" if parts else "table"
    return NAMES.get(hint, "text" if schema.get("type") == "string" else "any value")


@cache
def is_small(kind: type) -> bool:
    """Whether a record is told where it stands: few keys, none of which needs a word, and no record among them."""
    keys = result_keys(kind)
    if len(keys) > MOST_KEYS:
        return False
    paths = {key.name: key.path for key in json_keys(kind)}
    plain = all(not meaning(kind, key, paths.get(key)) for key in keys)
    return plain and not any(key.is_spread for key in json_keys(kind)) and len(list(reachable_kinds([kind]))) == 1


@cache
def documented(kind: type) -> dict[str, str]:
    """What a class says of its attributes: lines of its docstring, strings below fields, docstrings of properties."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for node, behind in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
            found[node.name] = str(ast.get_docstring(node)).split("\n")[0]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(behind, ast.Expr):
            found[node.target.id] = " ".join(str(ast.literal_eval(behind.value)).split())
    return found | key_meanings(kind)


def meaning(kind: type, key: str, path: tuple[str, ...] | None) -> str:
    """What a key means: in the words of the record, or of the class at the end of its path."""
    for base in kind.__mro__[:-1]:
        if key in key_meanings(base):
            return key_meanings(base)[key]
    if not path:
        return ""
    for owner in owner_of(kind, path):
        for base in owner.__mro__[:-1]:
            if is_dataclass(base) and path[-1] in documented(base):
                return documented(base)[path[-1]].rstrip(".")
    return ""


MOST_KEYS = 6  # of a record that is told where it stands
MOST_WORDS = 10  # of a meaning; what follows its first clause is left to the class


def brief(says: str) -> str:
    """A meaning, or its first clause where it is long."""
    return says if len(says.split()) <= MOST_WORDS else re.split(r"; |: |, (?=where|which|None)", says)[0]


def shared_records(kind: type) -> list[type]:
    """Records whose keys this one has beside its own: the class it extends, and those it spreads."""
    bases = [base for base in kind.__mro__[1:] if is_dataclass(base) and "JSON" in vars(base)]
    spread = [record for key in json_keys(kind) if key.is_spread for record in records_at(kind, key.path or ())]
    return [*bases[:1], *spread]


def table(kind: type) -> Iterator[str]:
    shared = shared_records(kind)
    yield f"\n### {kind.__name__}\n\n{first_line(kind)}\n"
    paths = {key.name: key.path for key in json_keys(kind)}
    known = {key for record in shared for key in result_keys(record)} | {"kind", "possible"}
    rows = []
    for key, (hint, is_sparse) in result_keys(kind).items():
        if key in known:
            continue
        name = f"[`{key}`]" if is_sparse else f"`{key}`"
        rows.append((name, words(hint), brief(meaning(kind, key, paths.get(key)) if key in paths else "")))
    plain = [f"keys of {words(record)}" for record in shared]  # and keys that say everything by their name and type
    for (holds, says), group in groupby(rows, key=lambda row: row[1:]):
        names = ", ".join(name for name, *_ in group)
        if not says:
            plain.append(f"{names}: {holds}")
            continue
        if plain:
            yield f"- {'; '.join(plain)}"
            plain = []
        yield f"- {names}: {holds}. {says[:1].upper()}{says[1:]}"
    if plain:
        yield f"- {'; '.join(plain)}"


def page() -> str:
    lines, known = [HEAD], set[type]()
    for verb in RESULTS:
        lines.append(f"\n## {verb}\n\n{VERBS[verb].summary}")
        waiting = list(reachable_kinds(results_of(verb)))
        while waiting:
            kind = waiting.pop(0)
            if kind not in known and (kind in results_of(verb) or not is_small(kind)):
                known.add(kind)
                lines += table(kind)
                waiting = [*shared_records(kind), *waiting]
    return "\n".join(lines) + "\n"


def run(arguments: argparse.Namespace) -> int:
    """Write or check the page."""
    return write_or_check(PAGE, page(), check=arguments.check, command="docs json")
