"""Turn values into what JSON can hold: dataclasses into tables, formats and evidence into their names."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ridgeline.core import encode
from ridgeline.core.evidence import Quoted
from ridgeline.report.sheets import Sheet


def plain(value: Any) -> Any:
    """The value as JSON can hold it, every field of a dataclass among it, defaults too."""
    return encode.plain(value, _record)


def _record(value: Any) -> Sheet:
    if isinstance(value, Quoted):
        return quoted(value)
    sheet: Sheet = {}
    for key in encode.field_keys(type(value)):
        sheet[key.name] = plain(key.read(value))
    return sheet


def quoted(number: Quoted) -> Sheet:
    """A quoted number with everything said about it; what is empty is left out."""
    sheet: Sheet = {"value": number.value, "evidence": number.evidence.label, "source": number.source}
    if number.note:
        sheet["note"] = number.note
    if number.conflicts:
        sheet["conflicts"] = [{key: part for key, part in asdict(other).items() if part} for other in number.conflicts]
    return sheet
