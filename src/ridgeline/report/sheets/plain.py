"""Turn values into what JSON can hold: dataclasses into tables, formats and evidence into their names."""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass
from typing import Any

from ridgeline.core.dtype import DType
from ridgeline.core.evidence import Evidence, Quoted
from ridgeline.report.sheets import Sheet


def plain(value: Any) -> Any:
    """The value as JSON can hold it."""
    if isinstance(value, Quoted):
        return quoted(value)
    if isinstance(value, (DType, Evidence)):
        return value.id if isinstance(value, DType) else value.label
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if hasattr(value, "items"):
        return {str(key): plain(part) for key, part in value.items()}
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


def quoted(number: Quoted) -> Sheet:
    """A quoted number with everything said about it; what is empty is left out."""
    sheet: Sheet = {"value": number.value, "evidence": number.evidence.label, "source": number.source}
    if number.note:
        sheet["note"] = number.note
    if number.conflicts:
        sheet["conflicts"] = [{key: part for key, part in asdict(other).items() if part} for other in number.conflicts]
    return sheet
