"""Rows on disk: a journal that grows while a run goes on, and the profile that is written when it ends.

A profile is JSON text with one measurement a line, so that two of them can be compared by `diff`; docs/profile.md says
what every key means.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ridgeline.ir.kernel import OPS

VERSION = 1


def journal_path(profile: Path) -> Path:
    """Where the rows of a run that has not ended are."""
    return profile.with_name(profile.name + ".journal")


class Journal:
    """Rows appended one a line, each on disk before the next is measured."""

    def __init__(self, path: Path, resume: bool) -> None:
        self.path = path
        done_rows = dict(_read_rows(path)) if resume else {}
        self.keys, self.rows = set(done_rows), list(done_rows.values())
        if not resume:
            path.unlink(missing_ok=True)

    def append(self, key: str, row: dict[str, Any]) -> None:
        """Keep the row of a case."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"case": key, "row": row}) + "\n")


def _read_rows(path: Path) -> Iterable[tuple[str, dict[str, Any]]]:
    """Cases and rows of a journal; a last line that a crash cut short is left out."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            with contextlib.suppress(json.JSONDecodeError):
                row = json.loads(line)
                if isinstance(row, dict) and isinstance(row.get("row"), dict) and "op" in row["row"]:
                    yield str(row.get("case")), row["row"]


def profile_text(head: dict[str, Any], rows: Iterable[dict[str, Any]]) -> str:
    """A profile as text: the head, then one row a line, in an order that does not depend on when each was taken."""
    order = {op: place for place, op in enumerate(OPS)}

    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        numbers = [value for value in row.values() if isinstance(value, int) and not isinstance(value, bool)]
        return (
            order.get(row["op"], len(OPS)),
            row["op"],
            row.get("impl", ""),
            row.get("dtype", ""),
            numbers[:8],
            json.dumps(row),
        )

    lines = [json.dumps(row, separators=(",", ":")) for row in sorted(rows, key=place)]
    top = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in {"ridgeline_profile": VERSION, **head}.items()]
    return "{\n" + ",\n".join(top) + ',\n  "rows": [\n    ' + ",\n    ".join(lines) + "\n  ]\n}\n"


def write_profile(path: Path, head: dict[str, Any], rows: Iterable[dict[str, Any]]) -> None:
    """Write a profile whole or not at all."""
    replace_file(path, profile_text(head, rows).encode())


def replace_file(path: Path, content: bytes) -> None:
    """Put a file in the place of another in one step."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
