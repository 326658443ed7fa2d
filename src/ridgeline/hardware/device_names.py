"""Turn the name a driver gives a device into a chip of the catalog, and a chip into its name elsewhere.

Every chip's TOML has a table of the names that others give it:

    [names]
    device   = ['A100.*80GB', 'A100']        patterns of what torch, profilers and drivers call it, in any case
    unnamed  = { version = [9, 4], cores = 304 }      where a driver tells these alone
    skypilot = "A100-80GB"

Of all patterns that match, the one that matches most of the name wins. Chips that share it differ in memory: the
nearest one is meant, or the smallest where the memory is unknown. A standalone probe has these tables as one JSON
file, because it runs on Python 3.10, which cannot read TOML.
"""

from __future__ import annotations

import json
import pkgutil
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ridgeline.core.documents import JsonMapping, JsonObject

PACKED = "device_names.json"
CHIPS = Path(__file__).parent / "catalog" / "chips"
CAPACITY = re.compile(r'^\[hbm\]$[^\[]*^capacity *= *\{ *value *= *"([^"]+)"', re.MULTILINE)
DRIVER_SHARE = 1.5  # times a chip's capacity up to which a driver's figure may be of it


def names_table() -> dict[str, JsonObject]:
    """The names of every chip that has any, with the bytes of its memory.

    A file's last table is parsed alone: its quoted numbers take ten times as long.
    """
    import tomllib

    from ridgeline.core.units import parse_quantity

    table: dict[str, JsonObject] = {}
    for path in sorted(CHIPS.glob("*.toml")):
        numbers, _, names = path.read_text(encoding="utf-8").partition("\n[names]\n")
        memory = CAPACITY.search(numbers)
        if names and memory:
            table[path.stem] = {**tomllib.loads(names), "memory_bytes": parse_quantity(memory[1], "B")}
    return table


@cache
def _names() -> Mapping[str, JsonMapping]:
    """The table of a standalone file, else of the catalog."""
    try:
        text = pkgutil.get_data(__package__, PACKED)
    except OSError:
        text = None
    return json.loads(text) if text else names_table()


def chip_id(name: str, memory_bytes: float = 0) -> str | None:
    """The catalog's id of a device by its name and memory; None where no chip has that name.

    >>> chip_id("NVIDIA A100-SXM4-80GB", 84990623744), chip_id("NVIDIA A100-PG509-200", 42297524224)
    ('a100-80-sxm', 'a100-40-sxm')
    >>> chip_id("Tesla V100-SXM2-32GB"), chip_id("Tesla V100-PCIE-16GB"), chip_id("GeForce GTX 1080") is None
    ('v100-32-sxm', 'v100-16-pcie', True)
    """
    matches = [
        (len(match[0]), len(pattern), id)
        for id, names in _names().items()
        for pattern in names.get("device", ())
        if (match := re.search(pattern, name, re.IGNORECASE))
    ]
    best = max((match[:2] for match in matches), default=None)
    return _nearest([id for *match, id in matches if tuple(match) == best], memory_bytes)


def unnamed_chip_id(version: Sequence[Any], cores: Any, memory_bytes: float) -> str | None:
    """The catalog's id of a device without a name, by the version of its instruction set, its cores and its memory."""
    ids = [
        id
        for id, names in _names().items()
        if names.get("unnamed") == {"version": list(version), "cores": cores}
        and 0 < memory_bytes < DRIVER_SHARE * names["memory_bytes"]
    ]
    return _nearest(ids, memory_bytes)


def _nearest(ids: Sequence[str], memory_bytes: float) -> str | None:
    """Of chips of one name the one whose memory is nearest; the smallest where the memory is not known."""
    names = _names()
    return min(ids, key=lambda id: abs(names[id]["memory_bytes"] - memory_bytes), default=None)


def skypilot_names() -> dict[str, str]:
    """What SkyPilot's catalogs call each chip that they have, by id."""
    return {id: names["skypilot"] for id, names in _names().items() if "skypilot" in names}


def packed_names(folder: Path) -> tuple[str, str]:
    """The file of names that a standalone probe carries: its path below `folder`, and its text."""
    return (folder / PACKED).as_posix(), json.dumps(names_table(), sort_keys=True)
