"""Draw a Prediction of a training step, or a PhasePrediction of prefill or decode: how long, why, what fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import DECIMAL, format_gib, format_quantity
from ridgeline.hardware.what_if import system_title
from ridgeline.report.cells import WEAK, BarRow, bar, bar_table, blocks, clean, header_table, list_lines
from ridgeline.sim.prediction import NetworkContention, Prediction

if TYPE_CHECKING:
    from ridgeline.sim.phase_prediction import CurvePoint, PhasePrediction

COLOURS = {"compute": "blue", "memory": "green", "network": "magenta", "host": "yellow"}
WIDE = 36  # cells of a bar
MOST = 6  # assumptions shown before the rest is counted


def draw_prediction(prediction: Prediction, console: Console) -> None:
    """Print what, how long, where the time goes, what limits it, does it fit, how sure."""
    console.print(blocks(_headline(prediction), _time(prediction), _memory(prediction), _trust(prediction)))
    if prediction.network is not None:
        draw_network(prediction.network, console)


def draw_phase(phase: PhasePrediction, console: Console) -> None:
    """Print what, how long, where the time goes, what limits it, what fits, other batches, how sure."""
    curve = [_curve(phase)] if _fitting_points(phase) else []
    console.print(blocks(_phase_headline(phase), _time(phase), _phase_memory(phase), curve, _trust(phase)))


def _titles(step: Prediction | PhasePrediction, what: str, *how: str) -> Iterator[Text]:
    """What is predicted and how; before that, where it does not fit, that it does not."""
    scenario = step.scenario
    if not step.fits:
        words, style = _verdict(step) if isinstance(step, Prediction) else _phase_verdict(step)
        yield Text.assemble((f"{words}; what follows is what it would take if it did", style))
    mesh = " ".join(f"{axis}={degree}" for axis, degree in scenario.plan.mesh.split.items()) or "one rank"
    yield Text.assemble(clean(what), style="bold")
    yield Text.assemble(clean(", ".join((mesh, *how, scenario.plan.engine))), style="dim")


def _step_text(name: str, step: Prediction | PhasePrediction) -> Text:
    low, high = (format_quantity(end, "s", 3) for end in (step.interval.low, step.interval.high))
    sure = f"   {low} to {high} with {step.interval.coverage:.0%} probability"
    return Text.assemble((name, "dim"), (format_quantity(step.step_time_s, "s"), "bold"), (sure, "dim"))


def _headline(prediction: Prediction) -> Iterator[RenderableType]:
    about, plan, work = prediction.scenario, prediction.scenario.plan, prediction.scenario.workload
    what = f"{about.model.id} on {system_title(about.system)}, {work.sequences} x {work.seq} tokens a step"
    yield from _titles(prediction, what, f"{about.microbatches} microbatch(es)", plan.sharding.shard,
                       f"recompute {plan.recompute}", plan.precision.compute.id)  # fmt: skip
    yield _step_text("step ", prediction)
    unit = "T" if prediction.model_flops_per_s_per_chip >= DECIMAL["T"] else "G"  # a CPU has less than one
    yield Text.assemble(
        ("speed ", "dim"), (f"{prediction.tokens_per_s_per_chip:,.0f}", "bold"), " tokens/s/chip   ",
        (f"{prediction.model_flops_per_s_per_chip / DECIMAL[unit]:.0f}", "bold"), f" {unit}FLOP/s/chip   ",
        ("MFU ", "dim"), (f"{prediction.utilization.mfu:.1%}", "bold"),
        ("   HFU ", "dim"), f"{prediction.utilization.hfu:.1%}",
    )  # fmt: skip
    if prediction.caution:
        yield Text(prediction.caution, style="yellow")
    energy_j, cost_usd = prediction.bill.energy_j, prediction.bill.cost_usd
    bill = [] if energy_j is None else [f"{format_quantity(energy_j, 'J', 3)} a step at rated power"]
    if cost_usd is not None:
        per_million = cost_usd * DECIMAL["M"] / work.tokens
        bill.append(f"{cost_usd:.3g} USD a step, {per_million:.3g} USD per million tokens")
    if bill and prediction.fits:
        yield Text.assemble(("bill ", "dim"), ", ".join(bill))


def _phase_headline(phase: PhasePrediction) -> Iterator[RenderableType]:
    about, work, precision = phase.scenario, phase.scenario.workload, phase.scenario.plan.precision
    is_decode = work.kind == "decode"
    load = f"{work.sequences} x {work.seq} tokens" + (" in the cache" if is_decode else " of prompt")
    formats = f"{precision.compute.id}, weights {precision.weights.id}, KV cache {precision.kv.id}"
    yield from _titles(phase, f"{work.kind} of {about.model.id} on {system_title(about.system)}, {load}", formats)
    yield _step_text("step " if is_decode else f"prefill in {phase.steps} step(s) ", phase)
    yield Text.assemble(
        ("speed ", "dim"), (f"{phase.tokens_per_s:,.0f}", "bold"), " tokens/s   ",
        (f"{phase.tokens_per_s_per_chip:,.0f}", "bold"), " tokens/s/chip   ",
        (f"{phase.tokens_per_s_per_user:,.1f}", "bold"), " tokens/s/user",
    )  # fmt: skip
    if precision.weights.bits > precision.compute.bits:
        sentence = f"weights stay {precision.weights.id} though products are {precision.compute.id}"
        yield Text(f"{sentence}: plan.precision.weights changes that", style="yellow")
    if phase.cost_per_million_tokens_usd is not None and phase.fits:
        yield Text.assemble(("bill ", "dim"), f"{phase.cost_per_million_tokens_usd:.3g} USD per million tokens")


def _time(step: Prediction | PhasePrediction) -> Iterator[RenderableType]:
    """Where the time goes, and what limits it."""
    total, parts = step.step_time_s, step.parts
    yield bar_table(
        (
            (name, format_quantity(seconds, "s", 3), seconds / total, COLOURS[parts[name].bound], parts[name].meaning)
            for name, seconds in step.seconds_by_part.items()
        ),
        WIDE,
    )
    yield limits_text(step)


def limits_text(step: Prediction | PhasePrediction) -> Text:
    """Which share of a step each bound limits."""
    shares = [(f"{name} {seconds / step.step_time_s:.0%}  ", COLOURS[name]) for name, seconds in step.bounds.items()]
    return Text.assemble(("limited by ", "dim"), *shares)


def _verdict(prediction: Prediction) -> tuple[str, str]:
    """Whether a step fits, in words and their style."""
    memory, headroom = prediction.memory, prediction.memory.headroom_bytes
    if headroom < 0:
        return f"does not fit: {format_gib(-headroom)} too much", "bold red"
    if not prediction.fits:
        over = memory.host_bytes - (memory.known_host_capacity_bytes or 0.0)
        return f"the host does not hold what is offloaded: {format_gib(over)} too much", "bold red"
    return f"fits, {format_gib(headroom)} to spare", "bold green"


def _memory(prediction: Prediction) -> Iterator[RenderableType]:
    memory, fullest = prediction.memory, prediction.memory.fullest
    capacity, host_capacity = memory.capacity_bytes, memory.known_host_capacity_bytes
    where = f" on stage {fullest.rank} of {len(memory.stages)}" if len(memory.stages) > 1 else ""
    yield Text.assemble(
        ("memory ", "dim"), (format_gib(memory.peak_bytes), "bold"),
        f" of {format_gib(capacity)}{where}, at its {fullest.moment}: ", _verdict(prediction),
    )  # fmt: skip
    rows: list[BarRow] = [
        (kind, format_gib(size), size / capacity, "cyan", "")
        for kind, size in fullest.bytes_by_kind.items()
        if size > 0
    ]
    if memory.host_bytes > 0:
        share = memory.host_bytes / host_capacity if host_capacity else None
        rows.append(("host", format_gib(memory.host_bytes), share, "", "offloaded by the chips of one host"))
    yield bar_table(rows, WIDE)


def _phase_verdict(phase: PhasePrediction) -> tuple[str, str]:
    """Whether weights and cache fit, in words and their style."""
    room, needed = phase.memory.tokens, phase.cached_tokens
    if phase.memory.kv_bytes <= 0:
        return f"does not fit: {format_gib(-phase.memory.kv_bytes)} too much before any cache", "bold red"
    if not phase.fits:
        return f"does not fit: the cache holds {room:,} tokens, {needed:,} asked", "bold red"
    return f"fits {room:,} tokens, {needed:,} asked", "bold green"


def _phase_memory(phase: PhasePrediction) -> Iterator[RenderableType]:
    memory = phase.memory
    yield Text.assemble(
        ("memory of a chip ", "dim"), (format_gib(memory.capacity), "bold"), ": ", _phase_verdict(phase)
    )
    per_token = f"{memory.kv_bytes_per_token / 1024:,.1f} KiB a token"
    state = f", {memory.state_bytes / 2**20:,.1f} MiB a request" if memory.state_bytes else ""
    sizes = (
        ("weights", memory.weights, ""), ("activations", memory.activations, ""), ("graphs", memory.graphs, ""),
        ("runtime", memory.runtime, ""), ("cache", max(memory.kv_bytes, 0.0), per_token + state),
    )  # fmt: skip
    yield bar_table(
        ((kind, format_gib(size), size / memory.capacity, "cyan", note) for kind, size, note in sizes), WIDE
    )


def _fitting_points(phase: PhasePrediction) -> list[CurvePoint]:
    """Batches of the curve whose cache fits beside the weights."""
    mesh, work = phase.scenario.plan.mesh, phase.scenario.workload
    most = phase.memory.requests(work.seq) * mesh.dp * mesh.pp if phase.memory.fits else 0.0
    return [point for point in phase.curve if point.batch <= most]


def _curve(phase: PhasePrediction) -> Table:
    """Tokens/s/user against tokens/s/chip, a row for each batch."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    for name in ("batch", "step", "tokens/s/user", "tokens/s/chip", "USD/M tokens", ""):
        table.add_column(name, justify="left" if not name else "right")
    points = _fitting_points(phase)
    most = max(point.tokens_per_s_per_chip for point in points)
    for point in points:
        cost, share = point.cost_per_million_tokens_usd, point.tokens_per_s_per_chip / most
        table.add_row(
            f"{point.batch:,}", format_quantity(point.step_time_s, "s", 3),
            f"{point.tokens_per_s_per_user:,.1f}", f"{point.tokens_per_s_per_chip:,.0f}",
            "" if cost is None else f"{cost:.3g}", bar(share, "blue", WIDE),
        )  # fmt: skip
    return table


def _trust(step: Prediction | PhasePrediction) -> Iterator[RenderableType]:
    evidence = step.evidence.label
    yield Text.assemble(
        ("evidence ", "dim"), (evidence, WEAK.get(evidence, "")), ("   interval from ", "dim"), step.interval.basis
    )
    if isinstance(step, Prediction):
        yield Text("counted: " + "; ".join(step.utilization.conventions), style="dim")
    yield from list_lines("assumed", step.assumptions, most=MOST)


def draw_network(network: NetworkContention, console: Console) -> None:
    """Print the collectives of a step beside what they cost each other."""
    added, step = (format_quantity(seconds, "s", 4) for seconds in (network.added_s, network.step_time_s))
    title = f"contention on {network.topology} adds {added}: step {step}"
    right = ("group", "groups", "together / alone", "worst seed", "beside gradients", "exposed", "adds")
    rows = [
        (
            clean(f"{one.label} ({one.kind})"), one.axis, f"{one.ranks} by {one.stride}", str(one.groups),
            f"{one.factor:.2f}", f"{one.worst_s / one.alone_s:.2f}", f"{one.beside_s / one.alone_s:.2f}",
            format_quantity(one.exposed_s, "s", 3), format_quantity(one.added_s, "s", 3),
        )
        for one in network.collectives
    ]  # fmt: skip
    console.print(
        blocks([Text(title, style="bold")], [header_table(("collective", "axis", *right), rows, right=right)])
    )
