"""Turn the part of a model's sheet about images, video and sound into rows of its table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ridgeline.core.units import format_quantity
from ridgeline.report.catalog_sheets import Sheet
from ridgeline.report.cells import DASH


def media_rows(sheets: Sequence[Sheet]) -> Iterator[tuple[str, Callable[[Sheet], str], str]]:
    """A row for each size of image, video and clip that any of the models reads, or makes."""
    for kind, told in (("image", _pixels), ("audio", _seconds), ("latents", _pixels)):
        for name in dict.fromkeys(told(one) for sheet in sheets for one in _sizes(sheet, kind)):
            yield name, _cell(kind, told, name), ""
    yield "encoder of a source", _source, ""
    yield "beside it", lambda sheet: ", ".join(one["name"] for one in sheet["media"]["companions"]) or DASH, ""


def _sizes(sheet: Sheet, kind: str) -> list[Sheet]:
    part = sheet["media"][kind]
    return part["sizes"] if part else []


def _pixels(one: Sheet) -> str:
    what = f"video of {one['frames']} frames, " if one["frames"] > 1 else "image of "
    return f"{what}{one['height']} x {one['width']}"


def _seconds(one: Sheet) -> str:
    return f"sound of {one['seconds']} s"


def _cell(kind: str, told: Callable[[Sheet], str], name: str) -> Callable[[Sheet], str]:
    def cell(sheet: Sheet) -> str:
        found = next((one for one in _sizes(sheet, kind) if told(one) == name), None)
        if found is None:
            return DASH
        return f"{format_quantity(found['flops'], 'FLOP')}, {found['tokens']:,.0f} tokens"

    return cell


def _source(sheet: Sheet) -> str:
    part = sheet["media"]["source"]
    return f"{format_quantity(part['flops'], 'FLOP')} of {part['positions']:,}" if part else DASH
