"""Turn a PhasePrediction into a sheet of facts, and the sheet into a page: how long, why, what fits, what it costs."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import format_gib, format_quantity
from ridgeline.report.cells import WEAK, bar, clean, grid, listed
from ridgeline.report.predict import COLOURS, COLUMNS, MOST, WIDE
from ridgeline.report.sheets.phase import PhaseSheet, PhaseTitleSheet
from ridgeline.report.sheets.plain import plain
from ridgeline.sim.phase_prediction import PhasePrediction

BYTES = ("weights", "activations", "graphs", "runtime", "cache")


def phase_sheet(found: PhasePrediction) -> PhaseSheet:
    """Everything the prediction of a phase says, in base units."""
    memory = found.memory
    return {
        "kind": "phase",
        "possible": True,
        "scenario": _title(found),
        "step_time_s": found.step_time_s,
        "steps": found.steps,
        "tokens": found.tokens,
        "tokens_per_s": found.tokens_per_s,
        "tokens_per_s_per_user": found.tokens_per_s_per_user,
        "tokens_per_s_per_chip": found.tokens_per_s_per_chip,
        "cost_per_million_tokens_usd": found.cost_per_million_tokens_usd,
        "energy_j": found.bill.energy_j,
        "breakdown": {part.name: part.seconds for part in found.breakdown},
        "parts": {part.name: {"bound": part.bound, "meaning": part.meaning} for part in found.breakdown},
        "bounds": {str(bound): seconds for bound, seconds in found.bounds.items()},
        "memory": {
            "capacity_bytes": memory.capacity,
            "weights_bytes": memory.weights,
            "activations_bytes": memory.activations,
            "graphs_bytes": memory.graphs,
            "runtime_bytes": memory.runtime,
            "cache_bytes": memory.kv_bytes,
            "kv_bytes_per_token": memory.kv_bytes_per_token,
            "state_bytes": memory.state_bytes,
            "tokens": memory.tokens,
            "blocks": memory.blocks,
            "block_size": memory.block_size,
        },
        "cached_tokens": found.cached_tokens,
        "fits": found.fits,
        "curve": plain(list(found.curve)),
        "interval": plain(found.interval),
        "evidence": found.evidence.label,
        "assumptions": list(found.assumptions),
    }


def _title(found: PhasePrediction) -> PhaseTitleSheet:
    scenario, precision = found.scenario, found.scenario.plan.precision
    return {
        "name": scenario.name,
        "phase": scenario.workload.kind,
        "model": scenario.model.id,
        "system": scenario.system.name,
        "chips": scenario.system.chips,
        "seq": scenario.workload.seq,
        "sequences": scenario.workload.sequences,
        "mesh": scenario.plan.mesh.split,
        "precision": precision.compute.id,
        "weights": precision.weights.id,
        "kv": precision.kv.id,
        "engine": scenario.plan.engine,
    }


def draw_phase(sheet: PhaseSheet, console: Console) -> None:
    """Print the page of a phase."""
    console.print(phase_page(sheet))


def phase_page(sheet: PhaseSheet) -> RenderableType:
    """What, how long, where the time goes, what limits it, what fits, other batches, how sure."""
    parts = [*_headline(sheet), Text(""), _time(sheet), _bounds(sheet), Text(""), *_memory(sheet), Text("")]
    parts += [_curve(sheet), Text("")] if sheet["curve"] else []
    return Group(*parts, *_trust(sheet))


def _headline(sheet: PhaseSheet) -> list[RenderableType]:
    about, span = sheet["scenario"], sheet["interval"]
    mesh = " ".join(f"{axis}={degree}" for axis, degree in about["mesh"].items()) or "one rank"
    decode = about["phase"] == "decode"
    load = f"{about['sequences']} x {about['seq']} tokens" + (" in the cache" if decode else " of prompt")
    formats = f"{about['precision']}, weights {about['weights']}, KV cache {about['kv']}"
    what = "step " if decode else f"prefill in {sheet['steps']} step(s) "
    cost = sheet["cost_per_million_tokens_usd"]
    speed = Text.assemble(
        ("speed ", "dim"), (f"{sheet['tokens_per_s']:,.0f}", "bold"), " tokens/s   ",
        (f"{sheet['tokens_per_s_per_chip']:,.0f}", "bold"), " tokens/s/chip   ",
        (f"{sheet['tokens_per_s_per_user']:,.1f}", "bold"), " tokens/s/user",
    )  # fmt: skip
    bill = [] if cost is None else [Text.assemble(("bill ", "dim"), f"{cost:.3g} USD per million tokens")]
    return [
        Text.assemble(clean(f"{about['phase']} of {about['model']} on {about['system']}, {load}"), style="bold"),
        Text.assemble(clean(f"{mesh}, {formats}, {about['engine']}"), style="dim"),
        Text.assemble(
            (what, "dim"), (format_quantity(sheet["step_time_s"], "s"), "bold"),
            (f"   {format_quantity(span['low'], 's', 3)} to {format_quantity(span['high'], 's', 3)}"
             f" with {span['coverage']:.0%} probability", "dim"),
        ),
        speed,
        *bill,
    ]  # fmt: skip


def _time(sheet: PhaseSheet) -> Table:
    table, total = grid(*COLUMNS), sheet["step_time_s"]
    for name, seconds in sheet["breakdown"].items():
        part = sheet["parts"][name]
        table.add_row(
            name, format_quantity(seconds, "s", 3), f"{seconds / total:.1%}",
            bar(seconds / total, COLOURS[part["bound"]], WIDE), Text(part["meaning"], style="dim"),
        )  # fmt: skip
    return table


def _bounds(sheet: PhaseSheet) -> Text:
    total = sheet["step_time_s"]
    parts = [(f"{name} {seconds / total:.0%}  ", COLOURS[name]) for name, seconds in sheet["bounds"].items()]
    return Text.assemble(("limited by ", "dim"), *parts)


def _memory(sheet: PhaseSheet) -> list[RenderableType]:
    memory = sheet["memory"]
    capacity, room, asked = memory["capacity_bytes"], memory["tokens"], sheet["cached_tokens"]
    verdict = (f"fits {room:,} tokens, {asked:,} asked", "bold green")
    if memory["cache_bytes"] <= 0:
        verdict = (f"does not fit: {format_gib(-memory['cache_bytes'])} too much before any cache", "bold red")
    elif not sheet["fits"]:
        verdict = (f"the cache holds {room:,} tokens, {asked:,} asked", "bold red")
    head = Text.assemble(("memory of a chip ", "dim"), (format_gib(capacity), "bold"), ": ", verdict)
    table = grid(*COLUMNS)
    sizes = (
        memory["weights_bytes"], memory["activations_bytes"], memory["graphs_bytes"], memory["runtime_bytes"],
        max(memory["cache_bytes"], 0.0),
    )  # fmt: skip
    each = f"{memory['kv_bytes_per_token'] / 1024:,.1f} KiB a token"
    state = f", {memory['state_bytes'] / 2**20:,.1f} MiB a request" if memory["state_bytes"] else ""
    for kind, size in zip(BYTES, sizes, strict=True):
        note = each + state if kind == "cache" else ""
        share = size / capacity
        table.add_row(kind, format_gib(size), f"{share:.1%}", bar(share, "cyan", WIDE), Text(note, style="dim"))
    return [head, table]


def _curve(sheet: PhaseSheet) -> RenderableType:
    """Tokens/s/user against tokens/s/chip, a row for each batch."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    for name in ("batch", "step", "tokens/s/user", "tokens/s/chip", "USD/M tokens", ""):
        table.add_column(name, justify="left" if not name else "right")
    most = max(point["tokens_per_s_per_chip"] for point in sheet["curve"])
    for point in sheet["curve"]:
        cost, share = point["cost_per_million_tokens_usd"], point["tokens_per_s_per_chip"] / most
        table.add_row(
            f"{point['batch']:,}", format_quantity(point["step_time_s"], "s", 3),
            f"{point['tokens_per_s_per_user']:,.1f}", f"{point['tokens_per_s_per_chip']:,.0f}",
            "" if cost is None else f"{cost:.3g}", bar(share, "blue", WIDE),
        )  # fmt: skip
    return table


def _trust(sheet: PhaseSheet) -> list[RenderableType]:
    evidence = sheet["evidence"]
    head = Text.assemble(
        ("evidence ", "dim"), (evidence, WEAK.get(evidence, "")), ("   interval from ", "dim"),
        sheet["interval"]["basis"],
    )  # fmt: skip
    return [head, *listed("assumed", sheet["assumptions"], most=MOST)]
