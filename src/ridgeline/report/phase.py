"""Draw a PhasePrediction: how long, why, what fits, what it costs."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import format_gib, format_quantity
from ridgeline.report.cells import WEAK, bar, clean, grid, list_lines
from ridgeline.report.predict import COLOURS, COLUMNS, MOST, WIDE
from ridgeline.sim.phase_prediction import PhasePrediction

BYTES = ("weights", "activations", "graphs", "runtime", "cache")


def draw_phase(phase: PhasePrediction, console: Console) -> None:
    """Print the page of a phase."""
    console.print(phase_page(phase))


def phase_page(phase: PhasePrediction) -> RenderableType:
    """What, how long, where the time goes, what limits it, what fits, other batches, how sure."""
    parts = [*_headline(phase), Text(""), _time(phase), _bounds(phase), Text(""), *_memory(phase), Text("")]
    parts += [_curve(phase), Text("")] if phase.curve else []
    return Group(*parts, *_trust(phase))


def _headline(phase: PhasePrediction) -> list[RenderableType]:
    about, span = phase.scenario, phase.interval
    mesh = " ".join(f"{axis}={degree}" for axis, degree in about.plan.mesh.split.items()) or "one rank"
    decode = about.workload.kind == "decode"
    load = f"{about.workload.sequences} x {about.workload.seq} tokens" + (" in the cache" if decode else " of prompt")
    precision = about.plan.precision
    formats = f"{precision.compute.id}, weights {precision.weights.id}, KV cache {precision.kv.id}"
    what = "step " if decode else f"prefill in {phase.steps} step(s) "
    cost = phase.cost_per_million_tokens_usd
    speed = Text.assemble(
        ("speed ", "dim"), (f"{phase.tokens_per_s:,.0f}", "bold"), " tokens/s   ",
        (f"{phase.tokens_per_s_per_chip:,.0f}", "bold"), " tokens/s/chip   ",
        (f"{phase.tokens_per_s_per_user:,.1f}", "bold"), " tokens/s/user",
    )  # fmt: skip
    bill = [] if cost is None else [Text.assemble(("bill ", "dim"), f"{cost:.3g} USD per million tokens")]
    return [
        Text.assemble(clean(f"{about.workload.kind} of {about.model.id} on {about.system.name}, {load}"), style="bold"),
        Text.assemble(clean(f"{mesh}, {formats}, {about.plan.engine}"), style="dim"),
        Text.assemble(
            (what, "dim"), (format_quantity(phase.step_time_s, "s"), "bold"),
            (f"   {format_quantity(span.low, 's', 3)} to {format_quantity(span.high, 's', 3)}"
             f" with {span.coverage:.0%} probability", "dim"),
        ),
        speed,
        *bill,
    ]  # fmt: skip


def _time(phase: PhasePrediction) -> Table:
    table, total = grid(*COLUMNS), phase.step_time_s
    for name, seconds in phase.seconds_by_part.items():
        part = phase.parts[name]
        table.add_row(
            name, format_quantity(seconds, "s", 3), f"{seconds / total:.1%}",
            bar(seconds / total, COLOURS[part.bound], WIDE), Text(part.meaning, style="dim"),
        )  # fmt: skip
    return table


def _bounds(phase: PhasePrediction) -> Text:
    total = phase.step_time_s
    parts = [(f"{name} {seconds / total:.0%}  ", COLOURS[name]) for name, seconds in phase.bounds.items()]
    return Text.assemble(("limited by ", "dim"), *parts)


def _memory(phase: PhasePrediction) -> list[RenderableType]:
    memory = phase.memory
    capacity, room, asked = memory.capacity, memory.tokens, phase.cached_tokens
    verdict = (f"fits {room:,} tokens, {asked:,} asked", "bold green")
    if memory.kv_bytes <= 0:
        verdict = (f"does not fit: {format_gib(-memory.kv_bytes)} too much before any cache", "bold red")
    elif not phase.fits:
        verdict = (f"the cache holds {room:,} tokens, {asked:,} asked", "bold red")
    head = Text.assemble(("memory of a chip ", "dim"), (format_gib(capacity), "bold"), ": ", verdict)
    table = grid(*COLUMNS)
    sizes = (
        memory.weights, memory.activations, memory.graphs, memory.runtime,
        max(memory.kv_bytes, 0.0),
    )  # fmt: skip
    each = f"{memory.kv_bytes_per_token / 1024:,.1f} KiB a token"
    state = f", {memory.state_bytes / 2**20:,.1f} MiB a request" if memory.state_bytes else ""
    for kind, size in zip(BYTES, sizes, strict=True):
        note = each + state if kind == "cache" else ""
        share = size / capacity
        table.add_row(kind, format_gib(size), f"{share:.1%}", bar(share, "cyan", WIDE), Text(note, style="dim"))
    return [head, table]


def _curve(phase: PhasePrediction) -> RenderableType:
    """Tokens/s/user against tokens/s/chip, a row for each batch."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    for name in ("batch", "step", "tokens/s/user", "tokens/s/chip", "USD/M tokens", ""):
        table.add_column(name, justify="left" if not name else "right")
    most = max(point.tokens_per_s_per_chip for point in phase.curve)
    for point in phase.curve:
        cost, share = point.cost_per_million_tokens_usd, point.tokens_per_s_per_chip / most
        table.add_row(
            f"{point.batch:,}", format_quantity(point.step_time_s, "s", 3),
            f"{point.tokens_per_s_per_user:,.1f}", f"{point.tokens_per_s_per_chip:,.0f}",
            "" if cost is None else f"{cost:.3g}", bar(share, "blue", WIDE),
        )  # fmt: skip
    return table


def _trust(phase: PhasePrediction) -> list[RenderableType]:
    evidence = phase.evidence.label
    head = Text.assemble(
        ("evidence ", "dim"), (evidence, WEAK.get(evidence, "")), ("   interval from ", "dim"),
        phase.interval.basis,
    )  # fmt: skip
    return [head, *list_lines("assumed", phase.assumptions, most=MOST)]
