"""Draw what became of a run, and of its comparison with one process."""

from __future__ import annotations

from rich.console import Console

from ridgeline.core.units import format_quantity
from ridgeline.report.cells import clean, percent
from ridgeline.runtime.train.request import RunMemory, RunOutcome, StepRow
from ridgeline.runtime.train.verification import Verification

GIB = 1 << 30
SHOWN = 5  # diverged parameters named


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


def draw_run(outcome: RunOutcome, screen: Console) -> None:
    """The end of a run in a few lines."""
    steps = outcome.rows
    for note in outcome.notes:
        screen.print(clean(note), markup=False)
    where = f"{outcome.ranks} rank(s) on {outcome.device.partition(':')[0]}"
    if not steps:
        screen.print(f"nothing to do: step {outcome.resumed} was reached before ({where})")
        return
    again = f", {outcome.restarts} restart(s)" if outcome.restarts else ""
    begun = f"resumed behind step {outcome.resumed}, " if outcome.resumed else ""
    ended = "stopped" if outcome.stopped else "done"
    screen.print(f"{ended} at step {steps[-1].step}: {begun}{where}{again}")
    screen.print(f"loss {steps[0].loss:.4f} -> {steps[-1].loss:.4f}")
    line = f"step {format_quantity(outcome.step_s, 's')}, {outcome.tokens_per_s:,.0f} tokens/s"
    if outcome.predicted_step_s is not None and outcome.mfu is not None:
        line += f"; predicted {format_quantity(outcome.predicted_step_s, 's')}, "
        line += f"MFU {percent(outcome.mfu)} (predicted {percent(outcome.predicted_mfu)})"
    screen.print(line)
    screen.print(f"first step after {outcome.startup:.1f} s, at most {steps[-1].memory / GIB:.2f} GiB a rank")
    if outcome.memory:
        screen.print("tensors of the fullest rank in the first step: " + ", ".join(map(_kind, outcome.memory)))
    if outcome.checkpoint:
        screen.print(f"checkpoint {clean(outcome.checkpoint)}", markup=False)


def _kind(row: RunMemory) -> str:
    line = f"{row.kind} {format_quantity(row.bytes, 'B')}"
    return f"{line} (predicted {format_quantity(row.predicted_bytes, 'B')})" if row.predicted_bytes else line


def draw_equivalence(verification: Verification, screen: Console) -> None:
    """What differs, and last the largest difference."""
    loss = f"loss {verification.loss:.6f}, of one process {verification.reference_loss:.6f}"
    screen.print(f"{loss}: {verification.loss_difference:.1e} apart")
    diverged = verification.diverged
    if diverged:
        first = diverged[0].name
        layer = f"layer {first.split('.')[1]}" if first.startswith("layers.") else first.split(".")[0]
        screen.print(
            f"{len(diverged)} of {verification.compared} gradients differ; first on the way back: {first} ({layer})"
        )
        for one in diverged[:SHOWN]:
            screen.print(f"  {one.name}  {one.difference:.1e} (at most {one.tolerance:.1e})")
    elif verification.equal:
        screen.print(f"all {verification.compared} gradients are equal to those of one process")
    worst = verification.worst
    screen.print(f"largest difference {worst.difference:.1e} of {worst.tolerance:.1e} allowed, in {worst.name}")
