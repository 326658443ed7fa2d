"""Turn what contention adds to a step into its sheet and a table."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from ridgeline.core.units import format_quantity
from ridgeline.report.cells import blocks, clean, headed
from ridgeline.report.sheets.predict import NetworkSheet
from ridgeline.sim.prediction import NetworkContention


def network_sheet(found: NetworkContention) -> NetworkSheet:
    """Everything that was simulated."""
    return {
        "topology": found.topology,
        "paths": found.paths,
        "closed_form_s": found.closed_form_s,
        "added_s": found.added_s,
        "step_time_s": found.step_time_s,
        "collectives": [{**asdict(one), "factor": one.factor} for one in found.collectives],  # type: ignore[typeddict-item]
    }


def draw_network(sheet: NetworkSheet, console: Console) -> None:
    """Print the collectives of a step beside what they cost each other."""
    added, step = (format_quantity(sheet[key], "s", 4) for key in ("added_s", "step_time_s"))
    title = f"contention on {sheet['topology']} adds {added}: step {step}"
    right = ("group", "groups", "together / alone", "worst seed", "beside gradients", "exposed", "adds")
    table = headed(("collective", "axis", *right), right=right)
    for one in sheet["collectives"]:
        name = f"{one['label']} ({one['kind']})"
        worst, beside = (f"{one[key] / one['alone_s']:.2f}" for key in ("worst_s", "beside_s"))
        group = f"{one['ranks']} by {one['stride']}"
        seconds = (format_quantity(one[key], "s", 3) for key in ("exposed_s", "added_s"))
        table.add_row(
            clean(name), one["axis"], group, str(one["groups"]), f"{one['factor']:.2f}", worst, beside, *seconds
        )
    console.print(blocks([Text(title, style="bold")], [table]))
