"""Turn the explanation of a load generator's results into the sheet of `ridgeline explain`, and into tables."""

from __future__ import annotations

from dataclasses import asdict
from math import isfinite

from rich.console import Console
from rich.text import Text

from ridgeline.calibrate.explain_bench import METRICS, BenchExplanation, BenchLoad
from ridgeline.core.units import format_quantity, signed_quantity, signed_share
from ridgeline.report.cells import clean, headed, listed
from ridgeline.report.sheets.explain_bench import BenchExplanationSheet, BenchLoadSheet


def bench_explanation_sheet(found: BenchExplanation) -> BenchExplanationSheet:
    """Every load with its causes."""
    numbers = {} if found.cost is None else {name.removesuffix("_s"): each for name, each in asdict(found.cost).items()}
    return {
        "kind": "explain-bench",
        "scenario": found.scenario.name,
        "anchor": found.anchor,
        "anchor_e2e": None if found.anchored is None else found.anchored.e2e_mape,
        "step_s": numbers,
        "loads": [_load(one) for one in found.loads],
        "notes": list(found.notes),
    }


def _load(one: BenchLoad) -> BenchLoadSheet:
    return {
        "request_rate": one.request_rate if isfinite(one.request_rate) else None,
        "max_concurrency": one.max_concurrency,
        "repeats": one.repeats,
        "requests": one.requests,
        "measured_s": dict(one.measured),
        "cold_s": dict(one.cold),
        "predicted_s": dict(one.predicted),
        "residual": {name: one.residual(name) for name in METRICS},
        "causes_s": {cause: dict(figures) for cause, figures in one.causes.items()},
        "spread": dict(one.spread),
    }


def draw_bench_explanation(sheet: BenchExplanationSheet, console: Console) -> None:
    """A table for each load."""
    if sheet["anchor"]:
        parts = ", ".join(f"{name} {format_quantity(value, 's', 3)}" for name, value in sheet["step_s"].items())
        fit = f" (mean |residual| of E2E there {sheet['anchor_e2e'] or 0:.1%})"
        console.print(Text.assemble("anchored on ", clean(sheet["anchor"]), f"{fit}: {parts}"))
        console.print()
    for load in sheet["loads"]:
        console.print(Text(_title(load), style="bold"))
        causes = list(load["causes_s"])
        heads = ["measured", "predicted", "residual", "spread", *(["cold"] if sheet["anchor"] else []), *causes]
        table = headed(["", *heads], right=heads)
        for name in METRICS:
            row = [_seconds(load["measured_s"][name]), _seconds(load["predicted_s"][name])]
            row += [signed_share(load["residual"][name]), f"{load['spread'][name]:.0%}"]
            row += [_seconds(load["cold_s"][name])] if sheet["anchor"] else []
            row += [signed_quantity(load["causes_s"][cause][name], "s", 3) for cause in causes]
            table.add_row(name.upper(), *row)
        console.print(table)
        console.print()
    for line in listed("notes", sheet["notes"]):
        console.print(line)


def _title(load: BenchLoadSheet) -> str:
    rate = f"{load['request_rate']:g} requests/s" if load["request_rate"] else "all at once"
    limit = f", at most {load['max_concurrency']} at a time" if load["max_concurrency"] else ""
    times = f"median of {load['repeats']} repeats" if load["repeats"] > 1 else "one run"
    return f"{rate}{limit}: {times}, {load['requests']:,} requests; medians of requests"


def _seconds(value: float) -> str:
    return format_quantity(value, "s", 4)
