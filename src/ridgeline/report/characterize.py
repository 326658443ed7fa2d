"""Turn a characterization into a sheet of facts, and the sheet into terminal tables: ceilings, failures, counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from ridgeline.core.units import format_quantity
from ridgeline.report.cells import clean
from ridgeline.report.sheets.runtime import BestMeasuredSheet, CharacterizationSheet, FailureSheet
from ridgeline.runtime.measure import Characterization

DIMS = ("m", "n", "k", "bytes", "kind", "cold", "pinned", "impl")
TRAFFIC = {"copy": 2, "read": 1, "write": 1, "h2d": 1, "d2h": 1}
NAMES = {"h2d": "host to device", "d2h": "device to host"}


def characterization_sheet(found: Characterization) -> CharacterizationSheet:
    """What was measured, the best of each kind, and what failed."""
    good = [row for row in found.rows if row.get("ok")]
    return {
        "kind": "characterization",
        "output": str(found.path),
        "chip": found.head.get("chip"),
        "device": dict(found.head.get("device", {})),
        "software": dict(found.head.get("software", {})),
        "minutes": float(found.head.get("minutes", 0.0)),
        "rows": dict(Counter(row["op"] for row in good)),
        "ceilings": list(ceilings(good)),
        "failures": failures(found.failures),
        "left": found.left,
        "waited": sum(bool(row.get("waited")) for row in good),
    }


def ceilings(rows: Iterable[Mapping[str, Any]]) -> Iterable[BestMeasuredSheet]:
    """The best product per format, the best bandwidths, the shortest launches, and energy where it was told."""
    best: dict[tuple[str, str], BestMeasuredSheet] = {}

    def offer(what: str, dtype: str, value: float, unit: str, row: Mapping[str, Any], lower: bool = False) -> None:
        held = best.get((what, dtype))
        if held is None or (value < held["value"] if lower else value > held["value"]):
            at = " ".join(f"{name}={row[name]}" for name in DIMS if name in row)
            best[what, dtype] = {"what": what, "dtype": dtype, "value": value, "unit": unit, "at": at}

    for row in rows:
        op, seconds = row["op"], row["s"]
        if op == "gemm":
            offer("product", row["dtype"], 2.0 * row["m"] * row["n"] * row["k"] / seconds, "FLOP/s", row)
        elif op in TRAFFIC and row.get("cold", True):
            offer(NAMES.get(op, op), "", TRAFFIC[op] * row["bytes"] / seconds, "B/s", row)
        elif (op, row.get("kind")) in (("launch", "kernel"), ("graph", "node")):
            offer(f"{op} {row['kind']}", "", seconds, "s", row, lower=True)
        elif op == "sustained" and row.get("energy_j"):
            if "m" in row:
                flops = 2.0 * row["m"] * row["n"] * row["k"]
                offer("energy a flop", row["dtype"], row["energy_j"] / flops, "J", row, lower=True)
            else:
                offer("energy a byte", "", row["energy_j"] / (2 * row["bytes"]), "J", row, lower=True)
    return best.values()


def failures(rows: Iterable[Mapping[str, Any]]) -> list[FailureSheet]:
    """Failing rows, those of one kind and reason together."""
    counted = Counter((row["op"], row.get("impl", ""), row.get("dtype", ""), str(row.get("why", ""))) for row in rows)
    return [
        {"op": op, "impl": impl, "dtype": dtype, "why": why, "rows": count}
        for (op, impl, dtype, why), count in counted.items()
    ]


def draw_characterization(sheet: CharacterizationSheet, console: Console) -> None:
    """The ceilings, then what failed and why, then the counts."""
    device = sheet["device"].get("name", "")
    table = Table(box=None, title=None, pad_edge=False)
    for name in ("best measured", "format", "value", "at"):
        table.add_column(name, justify="right" if name == "value" else "left")
    for one in sheet["ceilings"]:
        value = f"{one['value']:.3g} J" if one["unit"] == "J" else format_quantity(one["value"], one["unit"], 4)
        table.add_row(one["what"], one["dtype"], value, clean(one["at"]))
    console.print(clean(f"{device} ({sheet['chip'] or 'no chip of the catalog'})"))
    console.print(table)
    for lack in sheet["failures"]:
        who = " ".join(part for part in (lack["op"], lack["impl"], lack["dtype"]) if part)
        console.print(clean(f"failing: {who}, {lack['rows']} rows: {lack['why']}"))
    if sheet["waited"]:
        said = "threads waited for a core in every run; measure again with fewer threads, or when nobody else computes"
        console.print(clean(f"beside other work: {sheet['waited']} rows, {said}"))
    counts = ", ".join(f"{count} {op}" for op, count in sheet["rows"].items())
    console.print(
        clean(f"{sheet['output']}: {sum(sheet['rows'].values())} rows ({counts}); {sheet['left']} cases left out")
    )
