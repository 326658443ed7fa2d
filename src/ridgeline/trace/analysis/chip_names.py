"""Turn the device name of a trace into a chip of the catalog, by an open table (`chip_names.toml`)."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from ridgeline.hardware.chip import Chip
from ridgeline.hardware.load import chip as from_catalog
from ridgeline.trace.side_tables import About

TABLE = Path(__file__).parent / "chip_names.toml"
HUGE = 2**62


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], tuple[int, int], str], ...]:
    entries = tomllib.loads(TABLE.read_text(encoding="utf-8"))["chip"]
    return tuple(
        (re.compile(entry["name"], re.IGNORECASE), tuple(entry.get("memory", (0, HUGE))), entry["id"])
        for entry in entries
    )


def chip_id(name: str, memory_bytes: int = 0) -> str | None:
    """The catalog's id of a device name; None when the table has none.

    >>> chip_id("NVIDIA A100-SXM4-80GB", 84990623744), chip_id("NVIDIA A100-PG509-200", 42297524224)
    ('a100-80-sxm', 'a100-40-sxm')
    >>> chip_id("Tesla V100-SXM2-32GB") is None
    True
    """
    for pattern, (least, below), id in _patterns():
        if pattern.search(name) and (not memory_bytes or least <= memory_bytes < below):
            return id
    return None


def chip_of(about: About, named: str | None = None) -> Chip | None:
    """The chip a trace ran on: the one named, else the one its device name means, else None."""
    if named is not None:
        return from_catalog(named)
    if not about.chips:
        return None
    id = chip_id(about.chips[0], _memory(about.properties.get("deviceProperties")))
    return from_catalog(id) if id else None


def _memory(properties: Any) -> int:
    first = properties[0] if isinstance(properties, list) and properties else None
    size = first.get("totalGlobalMem") if isinstance(first, dict) else None
    return size if isinstance(size, int) and 0 < size < HUGE else 0
