"""Write docs/json.md, the tables of what `--json` prints, from the types of the sheets.

python docs/sheets.py            rewrite the page
python docs/sheets.py --check    fail when it is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, is_typeddict

from ridgeline.cli.verbs import VERBS
from ridgeline.report.sheets.schema import SHEETS, first_line, keys, meanings, reached

PAGE = Path(__file__).parent / "json.md"
HEAD = """# What `--json` prints

Written by `python docs/sheets.py` from the types in
[report/sheets](../src/ridgeline/report/sheets/__init__.py); do not edit. As JSON schema:
`ridgeline.report.sheets.schema.sheet_schema("predict")`.

Numbers are in base units unless a key's name carries another: `_s` seconds, `_us` microseconds, `_bytes`; shares are of
1. A key in brackets is not always there. Keys may be added; one that is there keeps its name and its meaning. What
`show` and `check` print follows the fields of the catalog entry or scenario, and is not listed. A refusal of any verb
is a [RefusalSheet](#refusalsheet): `possible` false, and the problems.
"""


def words(hint: Any) -> str:
    """A type as JSON speaks of it; a table as a link to its own."""
    origin, parts = get_origin(hint), get_args(hint)
    if is_typeddict(hint):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    if origin is list:
        return f"list of {words(parts[0])}"
    if origin is dict:
        return f"{words(parts[1])} by name"
    if origin is Literal:
        return " or ".join(f"`{str(part).lower() if isinstance(part, bool) else part}`" for part in parts)
    if origin in (Union, UnionType):
        return " or ".join(words(part) for part in parts)
    names = {str: "text", int: "integer", float: "number", bool: "true or false", NoneType: "null"}
    return "any value" if hint is Any else names[hint]


def table(kind: type) -> Iterator[str]:
    told = meanings(kind)
    yield f"\n### {kind.__name__}\n\n{first_line(kind)}\n\n| key | holds | |\n|---|---|---|"
    for key, (hint, needed) in keys(kind).items():
        yield f"| {f'`{key}`' if needed else f'[`{key}`]'} | {words(hint)} | {told.get(key, '')} |"


def page() -> str:
    lines, seen = [HEAD], set()
    for verb, kinds in SHEETS.items():
        lines.append(f"\n## {verb}\n\n{VERBS[verb].summary}")
        for one in dict.fromkeys(one for kind in kinds for one in (kind, *reached(kind))):
            if one not in seen:
                seen.add(one)
                lines += table(one)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text(encoding="utf-8") == page() else "docs/json.md: run `python docs/sheets.py`")
    PAGE.write_text(page(), encoding="utf-8")
