"""Turn the device that a trace tells of into a chip of the catalog."""

from __future__ import annotations

from ridgeline.core.documents import JsonObject
from ridgeline.hardware.chip import Chip
from ridgeline.hardware.device_names import chip_id, unnamed_chip_id
from ridgeline.hardware.load import chip as catalog_chip
from ridgeline.trace.side_tables import About

LARGEST_MEMORY = 2**62  # bytes


def chip_of(about: About, named: str | None = None) -> Chip | None:
    """The chip a trace ran on: the one named, else the one its device name means, else None."""
    if named is not None:
        return catalog_chip(named)
    properties = about.properties.get("deviceProperties")
    first = properties[0] if isinstance(properties, list) and properties else None
    device: JsonObject = first if isinstance(first, dict) else {}
    size = device.get("totalGlobalMem")
    memory = size if isinstance(size, int) and 0 < size < LARGEST_MEMORY else 0
    if about.chips:
        id = chip_id(about.chips[0], memory)
    else:
        version = (device.get("computeMajor"), device.get("computeMinor"))
        id = unnamed_chip_id(version, device.get("numSms"), memory)
    return catalog_chip(id) if id else None
