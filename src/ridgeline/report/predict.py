"""Draw a Prediction: how long, why, does it fit, how sure."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import DECIMAL, format_gib, format_quantity
from ridgeline.report.cells import WEAK, Side, bar, blocks, clean, grid, header_table, list_lines
from ridgeline.sim.prediction import NetworkContention, Prediction

COLOURS = {"compute": "blue", "memory": "green", "network": "magenta", "host": "yellow"}
WIDE = 36  # cells of a bar
COLUMNS: tuple[Side, ...] = ("left", "right", "right", "left", "left")  # name, size, share, bar, meaning
MOST = 6  # assumptions shown before the rest is counted


def draw_prediction(prediction: Prediction, console: Console) -> None:
    """Print the page of a prediction."""
    console.print(page(prediction))
    if prediction.network is not None:
        draw_network(prediction.network, console)


def page(prediction: Prediction) -> RenderableType:
    """What, how long, where the time goes, what limits it, does it fit, how sure."""
    return Group(
        *_headline(prediction),
        Text(""),
        _time(prediction),
        _bounds(prediction),
        Text(""),
        *_memory(prediction),
        Text(""),
        *_trust(prediction),
    )


def _headline(prediction: Prediction) -> list[RenderableType]:
    about = prediction.scenario
    mesh = " ".join(f"{axis}={degree}" for axis, degree in about.plan.mesh.split.items()) or "one rank"
    what = f"{about.model.id} on {about.system.name}, {about.workload.sequences} x {about.workload.seq} tokens a step"
    how = ", ".join(
        (mesh, f"{about.microbatches} microbatch(es)", about.plan.sharding.shard, f"recompute {about.plan.recompute}",
         about.plan.precision.compute.id, about.plan.engine)
    )  # fmt: skip
    span = prediction.interval
    step = Text.assemble(
        ("step ", "dim"), (format_quantity(prediction.step_time_s, "s"), "bold"),
        (f"   {format_quantity(span.low, 's', 3)} to {format_quantity(span.high, 's', 3)}"
         f" with {span.coverage:.0%} probability", "dim"),
    )  # fmt: skip
    speed = Text.assemble(
        ("speed ", "dim"), (f"{prediction.tokens_per_s_per_chip:,.0f}", "bold"), " tokens/s/chip   ",
        (f"{prediction.model_flops_per_s_per_chip / DECIMAL['T']:.0f}", "bold"), " TFLOP/s/chip   ",
        ("MFU ", "dim"), (f"{prediction.utilization.mfu:.1%}", "bold"),
        ("   HFU ", "dim"), f"{prediction.utilization.hfu:.1%}",
    )  # fmt: skip
    return [
        Text.assemble(clean(what), style="bold"),
        Text.assemble(clean(how), style="dim"),
        step,
        speed,
        *_bill(prediction),
    ]


def _bill(prediction: Prediction) -> list[RenderableType]:
    million = DECIMAL["M"] / prediction.scenario.workload.tokens
    parts = []
    energy_j, cost_usd = prediction.bill.energy_j, prediction.bill.cost_usd
    if energy_j is not None:
        parts.append(f"{format_quantity(energy_j, 'J', 3)} a step at rated power")
    if cost_usd is not None:
        parts.append(f"{cost_usd:.3g} USD a step, {cost_usd * million:.3g} USD per million tokens")
    return [Text.assemble(("bill ", "dim"), ", ".join(parts))] if parts else []


def _time(prediction: Prediction) -> Table:
    table, total = grid(*COLUMNS), prediction.step_time_s
    for name, seconds in prediction.seconds_by_part.items():
        part = prediction.parts[name]
        colour = COLOURS[part.bound]
        table.add_row(
            name, format_quantity(seconds, "s", 3), f"{seconds / total:.1%}", bar(seconds / total, colour, WIDE),
            Text(part.meaning, style="dim"),
        )  # fmt: skip
    return table


def _bounds(prediction: Prediction) -> Text:
    total = prediction.step_time_s
    parts = [(f"{name} {seconds / total:.0%}  ", COLOURS[name]) for name, seconds in prediction.bounds.items()]
    return Text.assemble(("limited by ", "dim"), *parts)


def _memory(prediction: Prediction) -> list[RenderableType]:
    memory = prediction.memory
    peak, capacity, headroom = memory.peak_bytes, memory.capacity_bytes, memory.headroom_bytes
    verdict = (f"fits, {format_gib(headroom)} to spare", "bold green")
    if headroom < 0:
        verdict = (f"does not fit: {format_gib(-headroom)} too much", "bold red")
    elif not prediction.fits:
        over = memory.host_bytes - (memory.known_host_capacity_bytes or 0.0)
        verdict = (f"the host does not hold what is offloaded: {format_gib(over)} too much", "bold red")
    fullest = memory.fullest
    where = f" on stage {fullest.rank} of {len(memory.stages)}" if len(memory.stages) > 1 else ""
    head = Text.assemble(
        ("memory ", "dim"),
        (format_gib(peak), "bold"),
        f" of {format_gib(capacity)}{where}, at its {fullest.moment}: ",
        verdict,
    )
    table = grid(*COLUMNS)
    for kind, size in fullest.bytes_by_kind.items():
        if size > 0:
            table.add_row(kind, format_gib(size), f"{size / capacity:.1%}", bar(size / capacity, "cyan", WIDE), "")
    if memory.host_bytes > 0:
        whole = memory.known_host_capacity_bytes
        share = f"{memory.host_bytes / whole:.1%}" if whole else ""
        table.add_row(
            "host", format_gib(memory.host_bytes), share, "", Text("offloaded by the chips of one host", style="dim")
        )
    return [head, table]


def _trust(prediction: Prediction) -> list[RenderableType]:
    evidence = prediction.evidence.label
    head = Text.assemble(
        ("evidence ", "dim"),
        (evidence, WEAK.get(evidence, "")),
        ("   interval from ", "dim"),
        prediction.interval.basis,
    )
    counted = Text("counted: " + "; ".join(prediction.utilization.conventions), style="dim")
    return [head, counted, *list_lines("assumed", prediction.assumptions, most=MOST)]


# -- network ----------------------------------------------------------------------------------------------------------


def draw_network(network: NetworkContention, console: Console) -> None:
    """Print the collectives of a step beside what they cost each other."""
    added, step = (format_quantity(seconds, "s", 4) for seconds in (network.added_s, network.step_time_s))
    title = f"contention on {network.topology} adds {added}: step {step}"
    right = ("group", "groups", "together / alone", "worst seed", "beside gradients", "exposed", "adds")
    table = header_table(("collective", "axis", *right), right=right)
    for collective in network.collectives:
        name = f"{collective.label} ({collective.kind})"
        worst, beside = (f"{seconds / collective.alone_s:.2f}" for seconds in (collective.worst_s, collective.beside_s))
        group = f"{collective.ranks} by {collective.stride}"
        seconds = (format_quantity(part, "s", 3) for part in (collective.exposed_s, collective.added_s))
        table.add_row(
            clean(name),
            collective.axis,
            group,
            str(collective.groups),
            f"{collective.factor:.2f}",
            worst,
            beside,
            *seconds,
        )
    console.print(blocks([Text(title, style="bold")], [table]))
