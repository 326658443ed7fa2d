"""Draw what contention adds to a step."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ridgeline.core.units import format_quantity
from ridgeline.report.cells import blocks, clean, headed
from ridgeline.sim.prediction import NetworkContention


def draw_network(network: NetworkContention, console: Console) -> None:
    """Print the collectives of a step beside what they cost each other."""
    added, step = (format_quantity(seconds, "s", 4) for seconds in (network.added_s, network.step_time_s))
    title = f"contention on {network.topology} adds {added}: step {step}"
    right = ("group", "groups", "together / alone", "worst seed", "beside gradients", "exposed", "adds")
    table = headed(("collective", "axis", *right), right=right)
    for one in network.collectives:
        name = f"{one.label} ({one.kind})"
        worst, beside = (f"{seconds / one.alone_s:.2f}" for seconds in (one.worst_s, one.beside_s))
        group = f"{one.ranks} by {one.stride}"
        seconds = (format_quantity(part, "s", 3) for part in (one.exposed_s, one.added_s))
        table.add_row(clean(name), one.axis, group, str(one.groups), f"{one.factor:.2f}", worst, beside, *seconds)
    console.print(blocks([Text(title, style="bold")], [table]))
