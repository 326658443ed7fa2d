"""Turn what a file writes as a number of tokens or a time into base units: the annotations that workloads share."""

from __future__ import annotations

from typing import Annotated

from ridgeline.core.errors import UnitError
from ridgeline.core.table import AtLeast, Count, QuantityUnit, Via
from ridgeline.core.units import parse_count

Seconds = Annotated[float, QuantityUnit("s"), AtLeast(0)]


def read_count(value: object) -> object:
    """`"128k"`: 131072; what is no count is told by whoever decodes it."""
    try:
        return parse_count(value) if isinstance(value, str) else value
    except UnitError:
        return value


Tokens = Annotated[Count, Via(read_count)]
