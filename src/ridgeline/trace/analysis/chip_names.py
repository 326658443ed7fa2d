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
    >>> chip_id("Tesla V100-SXM2-32GB"), chip_id("Tesla V100-PCIE-16GB"), chip_id("GeForce GTX 1080") is None
    ('v100-32-sxm', 'v100-16-pcie', True)
    """
    for pattern, (least, below), id in _patterns():
        if pattern.search(name) and (not memory_bytes or least <= memory_bytes < below):
            return id
    return None


def chip_of(about: About, named: str | None = None) -> Chip | None:
    """The chip a trace ran on: the one named, else the one its device name means, else None."""
    if named is not None:
        return from_catalog(named)
    told = about.properties.get("deviceProperties")
    id = chip_id(about.chips[0], _memory(told)) if about.chips else _by_properties(told)
    return from_catalog(id) if id else None


def _by_properties(properties: Any) -> str | None:
    """The catalog's id of a device without a name, by its version, cores and memory; None when the table has none."""
    first = properties[0] if isinstance(properties, list) and properties else None
    if not isinstance(first, dict):
        return None
    version, cores = [first.get("computeMajor"), first.get("computeMinor")], first.get("numSms")
    for entry in tomllib.loads(TABLE.read_text(encoding="utf-8"))["device"]:
        least, below = entry["memory"]
        if entry["version"] == version and entry["cores"] == cores and least < _memory(properties) < below:
            return str(entry["id"])
    return None


def _memory(properties: Any) -> int:
    first = properties[0] if isinstance(properties, list) and properties else None
    size = first.get("totalGlobalMem") if isinstance(first, dict) else None
    return size if isinstance(size, int) and 0 < size < HUGE else 0
