"""Write the tables of docs/concepts/measured-ceilings.md from the shipped profiles and the catalog."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from ridgeline.core.units import format_quantity
from ridgeline.hardware.load import CHIPS
from ridgeline.runtime import best_measured
from tools.pages import DOCS, ROOT, replace_block, write_or_check

PAGE = DOCS / "concepts" / "measured-ceilings.md"
PROFILES = ROOT / "src" / "ridgeline" / "cost" / "profiles"
LINKS = {"copy": "hbm", "read": "hbm", "write": "hbm", "host to device": "host", "device to host": "host"}


def sheet_number(chip: str | None, what: str, dtype: str) -> float | None:
    """What the data sheet says of a ceiling, where it says something."""
    if chip is None:
        return None
    catalog_chip = CHIPS[chip]
    if what == "product":
        quoted_rate = catalog_chip.peak.get(dtype)
    else:
        quoted_rate = getattr(catalog_chip, LINKS[what]).bandwidth if what in LINKS else None
    return quoted_rate.value if quoted_rate is not None else None


def number(value: float, unit: str) -> str:
    return f"{value * 1e12:.3g} pJ" if unit == "J" else format_quantity(value, unit, 4)


def best(profile: dict[str, Any]) -> Iterator[str]:
    """A row of the table for every ceiling."""
    yield "| | format | measured | data sheet | share | at |\n|---|---|---|---|---|---|"
    good = [row for row in profile["rows"] if row.get("ok")]
    for ceiling in best_measured(good):
        datasheet = sheet_number(profile["chip"], ceiling.what, ceiling.dtype)
        comparison = (
            f"{format_quantity(datasheet, ceiling.unit, 4)} | {ceiling.value / datasheet:.0%}" if datasheet else " | "
        )
        measured = number(ceiling.value, ceiling.unit)
        yield f"| {ceiling.what} | {ceiling.dtype} | {measured} | {comparison} | {ceiling.at} |"


def sustained_rows(profile: dict[str, Any]) -> Iterator[str]:
    """From rest and after seconds of the same work."""
    yield "| | format | from rest | after seconds | power | clock |\n|---|---|---|---|---|---|"
    rows_by_shape: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in profile["rows"]:
        if row["op"] == "sustained" and row.get("ok"):
            what = f"product {row['m']}x{row['n']}x{row['k']}" if "m" in row else f"copy of {row['bytes'] >> 30} GiB"
            rows_by_shape.setdefault((what, row["dtype"]), {})[row["impl"]] = row
    for (what, dtype), rows in rows_by_shape.items():
        burst, steady = rows.get("burst"), rows.get("steady", {})
        cells = [rate(burst) if burst else "", rate(steady) if steady else ""]
        power = f"{steady['power_w']:.0f} W" if "power_w" in steady else ""
        yield f"| {what} | {dtype} | {' | '.join(cells)} | {power} | {steady.get('clock_mhz', '')} |"


def rate(row: dict[str, Any]) -> str:
    if "m" in row:
        return format_quantity(2.0 * row["m"] * row["n"] * row["k"] / row["s"], "FLOP/s", 3)
    return format_quantity(2.0 * row["bytes"] / row["s"], "B/s", 3)


def page(text: str) -> str:
    """The page with the tables of every profile."""
    for path in sorted(PROFILES.glob("*.json")):
        profile = json.loads(path.read_text("utf-8"))
        for name, lines in (("best", best(profile)), ("sustained", sustained_rows(profile))):
            text = replace_block(text, f"{name} {path.stem}", "\n".join(lines))
    return text


def run(arguments: argparse.Namespace) -> int:
    """Write or check the page."""
    return write_or_check(PAGE, page(PAGE.read_text("utf-8")), check=arguments.check, command="docs ceilings")
