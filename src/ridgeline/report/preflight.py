"""Turn the findings of a preflight into a sheet of facts, and the sheet into terminal tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from rich.console import Console
from rich.table import Table

from ridgeline.core.units import format_quantity, signed_share
from ridgeline.report.cells import clean, percent
from ridgeline.report.sheets.runtime import OutlierSheet, PreflightSheet
from ridgeline.runtime.peers import Outlier
from ridgeline.runtime.preflight import Preflight

ADVICE = {
    "chip": "leave it out, or have it looked at: clocks, power, memory errors, another process",
    "link": "look at the cable, the port, the switch and what NCCL says it uses",
    "reference": "compare driver, clocks and power limit with those of the profile",
}


def preflight_sheet(found: Preflight) -> PreflightSheet:
    """Every figure, and what is wrong."""
    settings: list[OutlierSheet] = [
        {
            "kind": "setting",
            "who": one.who,
            "what": one.what,
            "value": one.value,
            "expected": one.expected,
            "advice": one.advice,
        }
        for one in found.settings
    ]
    slow = [*_outliers("chip", found.chips), *_outliers("link", found.links), *_outliers("reference", found.behind)]
    return {
        "kind": "preflight",
        "ok": found.ok,
        "ranks": found.ranks,
        "nodes": found.nodes,
        "device": found.device,
        "seconds": found.seconds,
        "figures": [
            {
                "name": one.name,
                "unit": "s",
                "median": one.median,
                "spread": one.spread,
                "worst": one.worst,
                "value": one.value,
                **({} if one.reference is None else {"reference": one.reference}),  # type: ignore[typeddict-item]
            }
            for one in found.figures
        ],
        "outliers": [*slow, *settings],
        "warnings": list(found.warnings),
    }


def _outliers(kind: Literal["chip", "link", "reference"], found: Iterable[Outlier]) -> list[OutlierSheet]:
    made: list[OutlierSheet] = []
    for one in found:
        row: OutlierSheet = {
            "kind": kind,
            "who": one.member,
            "what": one.figure,
            "value": one.value,
            "expected": one.expected,
            "gap": one.gap,
            "advice": ADVICE[kind],
        }
        if one.score:
            row["score"] = one.score
        made.append(row)
    return made


def draw_preflight(sheet: PreflightSheet, console: Console) -> None:
    """The figures of all ranks, then what is wrong with whom."""
    table = Table(box=None, pad_edge=False)
    for name in ("figure", "median", "spread", "slowest", "of", "reference"):
        table.add_column(name, justify="left" if name in ("figure", "of") else "right")
    for one in sheet["figures"]:
        reference = format_quantity(one["reference"], "s", 4) if "reference" in one else ""
        median, slowest = (format_quantity(value, "s", 4) for value in (one["median"], one["value"]))
        table.add_row(one["name"], median, percent(one["spread"]), slowest, clean(one["worst"]), reference)
    console.print(clean(f"{sheet['ranks']} ranks on {sheet['nodes']} nodes: {sheet['device']}"))
    console.print(table)
    for wrong in sheet["outliers"]:
        console.print(clean(_sentence(wrong)))
    for text in sheet["warnings"]:
        console.print(clean(f"worth a look: {text}"))
    if sheet["ok"]:
        console.print(f"nothing wrong ({sheet['seconds']:.0f} s)")


def _sentence(wrong: OutlierSheet) -> str:
    """One finding in one line."""
    if "gap" not in wrong:
        return (
            f"wrong {wrong['kind']}: {wrong['who']}: {wrong['what']} is {wrong['value']}, "
            f"expected {wrong['expected']}; {wrong['advice']}"
        )
    value, expected = (format_quantity(float(one), "s", 4) for one in (wrong["value"], wrong["expected"]))
    against = "the reference" if wrong["kind"] == "reference" else "its peers"
    score = f", {wrong['score']:.0f} deviations" if "score" in wrong else ""
    name = "chip" if wrong["kind"] == "reference" else wrong["kind"]
    return (
        f"slow {name}: {wrong['who']}: {wrong['what']} {value}, {signed_share(wrong['gap'])} on {against} "
        f"({expected}{score}); {wrong['advice']}"
    )
