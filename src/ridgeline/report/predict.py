"""Turn a Prediction into a sheet of facts, and the sheet into a page: how long, why, does it fit, how sure."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.core.errors import Problem
from ridgeline.core.units import DECIMAL, format_gib, format_quantity
from ridgeline.plan.scenario import Scenario
from ridgeline.report.cells import WEAK, Side, bar, clean, grid, listed
from ridgeline.report.network import draw_network, network_sheet
from ridgeline.report.sheets.plain import plain
from ridgeline.report.sheets.predict import (
    AnchorSheet,
    ImpossibleSheet,
    PredictionSheet,
    RefusalSheet,
    StageSheet,
    TitleSheet,
)
from ridgeline.sim.memory.peak import Memory
from ridgeline.sim.prediction import AnchorEffect, Impossible, Prediction

COLOURS = {"compute": "blue", "memory": "green", "network": "magenta", "host": "yellow"}
WIDE = 36  # cells of a bar
COLUMNS: tuple[Side, ...] = ("left", "right", "right", "left", "left")  # name, size, share, bar, meaning
MOST = 6  # assumptions shown before the rest is counted


def prediction_sheet(prediction: Prediction) -> PredictionSheet:
    """Everything a prediction says, in base units; names carry the unit where it is not plain."""
    used, memory = prediction.utilization, prediction.memory
    sheet: PredictionSheet = {
        "kind": "prediction",
        "possible": True,
        "scenario": _title(prediction.scenario),
        "step_time_s": prediction.step_time_s,
        "tokens_per_s_per_chip": prediction.tokens_per_s_per_chip,
        "mfu": used.mfu,
        "hfu": used.hfu,
        "model_tflops_per_chip": prediction.model_flops_per_s_per_chip / DECIMAL["T"],
        "peak_memory_bytes": memory.peak_bytes,
        "memory": dict(memory.fullest.bytes_by_kind),
        "breakdown": {part.name: part.seconds for part in prediction.breakdown},
        "interval": plain(prediction.interval),
        "assumptions": list(prediction.assumptions),
        "evidence": prediction.evidence.label,
        "fits": prediction.fits,
        "headroom_bytes": memory.headroom_bytes,
        "capacity_bytes": memory.capacity_bytes,
        "activations": dict(memory.fullest.activations),
        "host_bytes": memory.host_bytes,
        "host_capacity_bytes": memory.host_capacity_bytes if isfinite(memory.host_capacity_bytes) else None,
        "stages": [_stage(memory, index) for index in range(len(memory.stages))],
        "bounds": {str(bound): seconds for bound, seconds in prediction.bounds.items()},
        "parts": {part.name: {"bound": part.bound, "meaning": part.meaning} for part in prediction.breakdown},
        "conventions": list(used.conventions),
        "energy_j": prediction.bill.energy_j,
        "cost_usd": prediction.bill.cost_usd,
        "tokens": prediction.scenario.workload.tokens,
    }
    if prediction.anchor is not None:
        sheet["anchor"] = anchor_sheet(prediction.anchor)
    if prediction.kernels is not None:
        sheet["kernels"] = plain(prediction.kernels)
    if prediction.network is not None:
        sheet["network"] = network_sheet(prediction.network)
    return sheet


def anchor_sheet(anchor: AnchorEffect) -> AnchorSheet:
    """What runs of the user's did to a prediction."""
    return {
        "runs": list(anchor.runs),
        "factor": anchor.factor,
        "pace": anchor.pace,
        "narrowed": anchor.narrowed,
        "parameters": {name: list(values) for name, values in anchor.parameters.items()},
    }


def impossible_sheet(impossible: Impossible) -> ImpossibleSheet:
    """The reasons why there is no prediction."""
    return {"kind": "prediction", **refusal(impossible.reasons)}


def refusal(reasons: Iterable[Problem]) -> RefusalSheet:
    """Problems as `--json` prints them."""
    return {"possible": False, "problems": plain(list(reasons))}


def _title(scenario: Scenario) -> TitleSheet:
    return {
        "name": scenario.name,
        "model": scenario.model.id,
        "system": scenario.system.name,
        "chips": scenario.system.chips,
        "seq": scenario.workload.seq,
        "sequences": scenario.workload.sequences,
        "microbatches": scenario.microbatches,
        "mesh": scenario.plan.mesh.split,
        "shard": scenario.plan.sharding.shard,
        "recompute": str(scenario.plan.recompute),
        "precision": scenario.plan.precision.compute.id,
        "engine": scenario.plan.engine,
    }


def _stage(memory: Memory, index: int) -> StageSheet:
    stage = memory.stages[index]
    return {"stage": stage.rank, "peak_bytes": stage.peak_bytes, "in_flight": stage.in_flight, "moment": stage.moment}


def draw_prediction(sheet: PredictionSheet, console: Console) -> None:
    """Print the page of a prediction."""
    console.print(page(sheet))
    if "network" in sheet:
        draw_network(sheet["network"], console)


def page(sheet: PredictionSheet) -> RenderableType:
    """What, how long, where the time goes, what limits it, does it fit, how sure."""
    return Group(
        *_headline(sheet), Text(""), _time(sheet), _bounds(sheet), Text(""), *_memory(sheet), Text(""), *_trust(sheet)
    )


def _headline(sheet: PredictionSheet) -> list[RenderableType]:
    about = sheet["scenario"]
    mesh = " ".join(f"{axis}={degree}" for axis, degree in about["mesh"].items()) or "one rank"
    what = f"{about['model']} on {about['system']}, {about['sequences']} x {about['seq']} tokens a step"
    how = ", ".join(
        (mesh, f"{about['microbatches']} microbatch(es)", about["shard"], f"recompute {about['recompute']}",
         about["precision"], about["engine"])
    )  # fmt: skip
    span = sheet["interval"]
    step = Text.assemble(
        ("step ", "dim"), (format_quantity(sheet["step_time_s"], "s"), "bold"),
        (f"   {format_quantity(span['low'], 's', 3)} to {format_quantity(span['high'], 's', 3)}"
         f" with {span['coverage']:.0%} probability", "dim"),
    )  # fmt: skip
    speed = Text.assemble(
        ("speed ", "dim"), (f"{sheet['tokens_per_s_per_chip']:,.0f}", "bold"), " tokens/s/chip   ",
        (f"{sheet['model_tflops_per_chip']:.0f}", "bold"), " TFLOP/s/chip   ",
        ("MFU ", "dim"), (f"{sheet['mfu']:.1%}", "bold"), ("   HFU ", "dim"), f"{sheet['hfu']:.1%}",
    )  # fmt: skip
    return [
        Text.assemble(clean(what), style="bold"),
        Text.assemble(clean(how), style="dim"),
        step,
        speed,
        *_bill(sheet),
    ]


def _bill(sheet: PredictionSheet) -> list[RenderableType]:
    million = DECIMAL["M"] / sheet["tokens"]
    parts = []
    if sheet["energy_j"] is not None:
        parts.append(f"{format_quantity(sheet['energy_j'], 'J', 3)} a step at rated power")
    if sheet["cost_usd"] is not None:
        parts.append(f"{sheet['cost_usd']:.3g} USD a step, {sheet['cost_usd'] * million:.3g} USD per million tokens")
    return [Text.assemble(("bill ", "dim"), ", ".join(parts))] if parts else []


def _time(sheet: PredictionSheet) -> Table:
    table, total = grid(*COLUMNS), sheet["step_time_s"]
    for name, seconds in sheet["breakdown"].items():
        part = sheet["parts"][name]
        colour = COLOURS[part["bound"]]
        table.add_row(
            name, format_quantity(seconds, "s", 3), f"{seconds / total:.1%}", bar(seconds / total, colour, WIDE),
            Text(part["meaning"], style="dim"),
        )  # fmt: skip
    return table


def _bounds(sheet: PredictionSheet) -> Text:
    total = sheet["step_time_s"]
    parts = [(f"{name} {seconds / total:.0%}  ", COLOURS[name]) for name, seconds in sheet["bounds"].items()]
    return Text.assemble(("limited by ", "dim"), *parts)


def _memory(sheet: PredictionSheet) -> list[RenderableType]:
    peak, capacity, headroom = sheet["peak_memory_bytes"], sheet["capacity_bytes"], sheet["headroom_bytes"]
    verdict = (f"fits, {format_gib(headroom)} to spare", "bold green")
    if headroom < 0:
        verdict = (f"does not fit: {format_gib(-headroom)} too much", "bold red")
    elif not sheet["fits"]:
        over = sheet["host_bytes"] - (sheet["host_capacity_bytes"] or 0.0)
        verdict = (f"the host does not hold what is offloaded: {format_gib(over)} too much", "bold red")
    fullest = max(sheet["stages"], key=lambda stage: stage["peak_bytes"])
    where = f" on stage {fullest['stage']} of {len(sheet['stages'])}" if len(sheet["stages"]) > 1 else ""
    head = Text.assemble(
        ("memory ", "dim"),
        (format_gib(peak), "bold"),
        f" of {format_gib(capacity)}{where}, at its {fullest['moment']}: ",
        verdict,
    )
    table = grid(*COLUMNS)
    for kind, size in sheet["memory"].items():
        if size > 0:
            table.add_row(kind, format_gib(size), f"{size / capacity:.1%}", bar(size / capacity, "cyan", WIDE), "")
    if sheet["host_bytes"] > 0:
        whole = sheet["host_capacity_bytes"]
        share = f"{sheet['host_bytes'] / whole:.1%}" if whole else ""
        table.add_row(
            "host", format_gib(sheet["host_bytes"]), share, "", Text("offloaded by the chips of one host", style="dim")
        )
    return [head, table]


def _trust(sheet: PredictionSheet) -> list[RenderableType]:
    evidence = sheet["evidence"]
    head = Text.assemble(
        ("evidence ", "dim"),
        (evidence, WEAK.get(evidence, "")),
        ("   interval from ", "dim"),
        sheet["interval"]["basis"],
    )
    counted = Text("counted: " + "; ".join(sheet["conventions"]), style="dim")
    return [head, counted, *listed("assumed", sheet["assumptions"], most=MOST)]
