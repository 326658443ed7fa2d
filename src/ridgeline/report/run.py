"""Turn what a run brought into sheets of facts, and the sheets into lines of the terminal."""

from __future__ import annotations

import statistics

from rich.console import Console

from ridgeline.core.units import format_quantity
from ridgeline.report.cells import clean, percent
from ridgeline.report.sheets.run import EquivalenceSheet, GradientSheet, TrainedSheet
from ridgeline.runtime.train.request import RunOutcome, StepRow
from ridgeline.runtime.train.verification import Compared, Verification

GIB = 1 << 30
SHOWN = 5  # diverged parameters named


def run_sheet(found: RunOutcome, predicted: tuple[float, float] | None) -> TrainedSheet:
    """Every step, the median, and the same as predicted: seconds and MFU, where they were handed in."""
    steady = [row.seconds for row in found.rows[1:] or found.rows]
    median = statistics.median(steady) if steady else 0.0
    sheet: TrainedSheet = {
        "kind": "run",
        "ranks": found.ranks,
        "device": found.device,
        "steps": [
            {
                "step": row.step,
                "loss": row.loss,
                "gradient_norm": row.gradient_norm,
                "loss_scale": row.loss_scale,
                "seconds": row.seconds,
                "tokens_per_s": row.tokens_per_s,
                "memory_bytes": row.memory,
            }
            for row in found.rows
        ],
        "step_s": median,
        "tokens_per_s": found.rows[0].tokens / median if median else 0.0,
        "startup_s": found.startup,
        "resumed": found.resumed,
        "restarts": found.restarts,
        "stopped": found.stopped,
        "checkpoint": found.checkpoint,
        "unsaved": found.unsaved,
        "notes": list(found.notes),
    }
    if predicted is not None and median:
        sheet["predicted_step_s"], sheet["predicted_mfu"] = predicted
        sheet["mfu"] = measured_mfu(median, predicted)
    return sheet


def measured_mfu(seconds: float, predicted: tuple[float, float]) -> float:
    """The MFU of a step that took so long, from what was predicted of it: the same flops over the same peak."""
    return predicted[1] * predicted[0] / seconds


def step_line(row: StepRow, steps: int, predicted: tuple[float, float] | None) -> str:
    """One step while it runs: loss, speed, MFU beside the predicted one, memory."""
    line = (
        f"step {row.step}/{steps}  loss {row.loss:.4f}  norm {row.gradient_norm:.3f}  {row.tokens_per_s:,.0f} tokens/s"
    )
    if predicted is not None and row.seconds:
        line += f"  MFU {percent(measured_mfu(row.seconds, predicted))} (predicted {percent(predicted[1])})"
    return f"{line}  {row.memory / GIB:.1f} GiB"


def draw_run(sheet: TrainedSheet, screen: Console) -> None:
    """The end of a run in a few lines."""
    steps = sheet["steps"]
    for note in sheet["notes"]:
        screen.print(clean(note), markup=False)
    where = f"{sheet['ranks']} rank(s) on {sheet['device'].partition(':')[0]}"
    if not steps:
        screen.print(f"nothing to do: step {sheet['resumed']} was reached before ({where})")
        return
    again = f", {sheet['restarts']} restart(s)" if sheet["restarts"] else ""
    begun = f"resumed behind step {sheet['resumed']}, " if sheet["resumed"] else ""
    ended = "stopped" if sheet["stopped"] else "done"
    screen.print(f"{ended} at step {steps[-1]['step']}: {begun}{where}{again}")
    screen.print(f"loss {steps[0]['loss']:.4f} -> {steps[-1]['loss']:.4f}")
    line = f"step {format_quantity(sheet['step_s'], 's')}, {sheet['tokens_per_s']:,.0f} tokens/s"
    if "predicted_step_s" in sheet and "mfu" in sheet and "predicted_mfu" in sheet:
        line += f"; predicted {format_quantity(sheet['predicted_step_s'], 's')}, "
        line += f"MFU {percent(sheet['mfu'])} (predicted {percent(sheet['predicted_mfu'])})"
    screen.print(line)
    screen.print(
        f"first step after {sheet['startup_s']:.1f} s, at most {steps[-1]['memory_bytes'] / GIB:.2f} GiB a rank"
    )
    if sheet["checkpoint"]:
        screen.print(f"checkpoint {clean(sheet['checkpoint'])}", markup=False)


def equivalence_sheet(found: Verification) -> EquivalenceSheet:
    """What was compared, and what differs."""
    return {
        "kind": "equivalence",
        "equal": found.equal,
        "loss": found.loss,
        "reference_loss": found.reference_loss,
        "loss_difference": found.loss_difference,
        "parameters": len(found.parameters),
        "diverged": [_compared(one) for one in found.diverged],
        "worst": _compared(found.worst),
    }


def _compared(one: Compared) -> GradientSheet:
    return {"name": one.name, "difference": one.difference, "tolerance": one.tolerance}


def draw_equivalence(sheet: EquivalenceSheet, screen: Console) -> None:
    """What differs, and last the largest difference."""
    loss = f"loss {sheet['loss']:.6f}, of one process {sheet['reference_loss']:.6f}"
    screen.print(f"{loss}: {sheet['loss_difference']:.1e} apart")
    diverged = sheet["diverged"]
    if diverged:
        first = diverged[0]["name"]
        layer = f"layer {first.split('.')[1]}" if first.startswith("layers.") else first.split(".")[0]
        screen.print(
            f"{len(diverged)} of {sheet['parameters']} gradients differ; first on the way back: {first} ({layer})"
        )
        for one in diverged[:SHOWN]:
            screen.print(f"  {one['name']}  {one['difference']:.1e} (at most {one['tolerance']:.1e})")
    elif sheet["equal"]:
        screen.print(f"all {sheet['parameters']} gradients are equal to those of one process")
    worst = sheet["worst"]
    screen.print(
        f"largest difference {worst['difference']:.1e} of {worst['tolerance']:.1e} allowed, in {worst['name']}"
    )
