"""Turn a measured row into the laboratory that measured it, and laboratories into folds that leave them out whole.

A stranger shares no cluster, build or habit with any row of the fit. To judge as a stranger will, a fold leaves out
everything of a laboratory; `laboratories.toml` says which sources share one.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache

from ridgeline.calibrate.truth.rows import TRUTH, Row

TABLE = TRUTH / "laboratories.toml"


@cache
def _patterns() -> tuple[tuple[str, Mapping[str, re.Pattern[str]]], ...]:
    """Names with their patterns by column, in the order of the file."""
    entries = tomllib.loads(TABLE.read_text(encoding="utf-8"))["laboratory"]
    return tuple(
        (entry["name"], {column: re.compile(text) for column, text in entry.items() if column != "name"})
        for entry in entries
    )


def laboratory_of(row: Row) -> str:
    """Who measured a row: a laboratory of the table, else the source as the row states it, else its id's first word.

    >>> from ridgeline.calibrate.truth.rows import read_rows
    >>> rows = {row.id: row for row in read_rows()}
    >>> [laboratory_of(rows[id]) for id in ("misc-0001", "mbridge-0001", "dgxc-0001", "vtrain_multi-0001")]
    ['megatron papers', 'nvidia', 'nvidia', 'kaist']
    """
    for name, patterns in _patterns():
        cells = ((row.id if column == "id" else row[column], pattern) for column, pattern in patterns.items())
        if all(pattern.search(text) for text, pattern in cells):
            return name
    return row["source"].partition(",")[0] or row.source
