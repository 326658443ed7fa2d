"""Draw what became of a run, and of its comparison with one process."""

from __future__ import annotations

from rich.console import Console
from rich.table import Column, Table

from ridgeline.core.units import format_quantity, signed_share
from ridgeline.ir.rank_ops import DryRun
from ridgeline.report.cells import clean, percent
from ridgeline.report.run_rl import rl_step_line
from ridgeline.runtime import Characterization, Doctor, InstalledPackage, Preflight, PreflightFinding, TorchDevice
from ridgeline.runtime.rl import RlStepRow
from ridgeline.runtime.train import RunMemory, RunOutcome, StepRow, Verification
from ridgeline.sim.prediction import Prediction

GIB = 1 << 30
SHOWN = 5  # diverged parameters named


def step_line(row: StepRow | RlStepRow, steps: int, expected: Prediction | None = None) -> str:
    """One step while it runs: loss, speed, MFU beside the predicted one, memory; of post-training `rl_step_line`."""
    if isinstance(row, RlStepRow):
        return rl_step_line(row, steps)
    line = (
        f"step {row.step}/{steps}  loss {row.loss:.4f}  norm {row.gradient_norm:.3f}  {row.tokens_per_s:,.0f} tokens/s"
    )
    if expected is not None and row.seconds:
        mfu = expected.utilization.mfu
        line += f"  MFU {percent(mfu * expected.step_time_s / row.seconds)} (predicted {percent(mfu)})"
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


# -- dry run ----------------------------------------------------------------------------------------------------------


OWN = "ridgeline"


def draw_dry(run: DryRun, screen: Console) -> None:
    """A table for each distinct stage: all ops, or those that differ where some do; the verdict last."""
    for stage in run.stages:
        wrong = [op for op in stage.ops if not op.equal]
        if not run.equal and not wrong:
            continue
        held = ", ".join(map(str, stage.pipeline_ranks))
        table = Table("op", "size", title=f"pipeline rank {held}", title_justify="left", box=None, pad_edge=False)
        for name in ("expected", "traced", "as"):
            table.add_column(name, justify="left" if name == "as" else "right", overflow="fold")
        for op in wrong or stage.ops:
            unit = " B" if op.way == "buckets" else ""
            name = op.label or "(nothing expected)"
            table.add_row(name, op.size, f"{op.expected:,}{unit}", f"{op.traced:,}{unit}", op.way)
        screen.print(table)
    if run.engine_given != OWN:
        screen.print(f"engine {OWN}: what runs here, in place of {run.engine_given}")
    many = sum(len(stage.ops) for stage in run.stages)
    verdict = "all as expected" if run.equal else f"{len(run.differences)} differ"
    screen.print(f"{run.ranks} rank(s), {len(run.stages)} distinct stage(s), {many} sizes of ops: {verdict}")


# -- preflight --------------------------------------------------------------------------------------------------------


def draw_preflight(preflight: Preflight, console: Console) -> None:
    """The figures of all ranks, then what is wrong with whom."""
    table = Table(box=None, pad_edge=False)
    for name in ("figure", "median", "spread", "slowest", "of", "reference"):
        table.add_column(name, justify="left" if name in ("figure", "of") else "right")
    for figure in preflight.figures:
        reference = format_quantity(figure.reference, "s", 4) if figure.reference is not None else ""
        median, slowest = (format_quantity(value, "s", 4) for value in (figure.median, figure.value))
        table.add_row(figure.name, median, percent(figure.spread), slowest, clean(figure.worst), reference)
    console.print(clean(f"{preflight.ranks} ranks on {preflight.nodes} nodes: {preflight.device}"))
    console.print(table)
    for wrong in preflight.outliers:
        console.print(clean(_sentence(wrong)))
    for text in preflight.warnings:
        console.print(clean(f"worth a look: {text}"))
    if preflight.ok:
        console.print(f"nothing wrong ({preflight.seconds:.0f} s)")


def _sentence(wrong: PreflightFinding) -> str:
    """One finding in one line."""
    if wrong.gap is None:
        what = f"{wrong.what} is {wrong.value}, expected {wrong.expected}"
        return f"wrong {wrong.kind}: {wrong.who}: {what}; {wrong.advice}"
    value, expected = (format_quantity(float(one), "s", 4) for one in (wrong.value, wrong.expected))
    against = "the reference" if wrong.kind == "reference" else "its peers"
    score = f", {wrong.score:.0f} deviations" if wrong.score else ""
    name = "chip" if wrong.kind == "reference" else wrong.kind
    return (
        f"slow {name}: {wrong.who}: {wrong.what} {value}, {signed_share(wrong.gap)} on {against} "
        f"({expected}{score}); {wrong.advice}"
    )


# -- characterize -----------------------------------------------------------------------------------------------------


def draw_characterization(found: Characterization, console: Console) -> None:
    """The ceilings, then what failed and why, then the counts."""
    device = found.device.get("name", "")
    table = Table("best measured", "format", Column("value", justify="right"), "at", box=None, pad_edge=False)
    for ceiling in found.ceilings:
        value = f"{ceiling.value:.3g} J" if ceiling.unit == "J" else format_quantity(ceiling.value, ceiling.unit, 4)
        table.add_row(ceiling.what, ceiling.dtype, value, clean(ceiling.at))
    console.print(clean(f"{device} ({found.chip or 'no chip of the catalog'})"))
    console.print(table)
    for lack in found.failure_counts:
        who = " ".join(part for part in (lack.op, lack.impl, lack.dtype) if part)
        console.print(clean(f"failing: {who}, {lack.rows} rows: {lack.why}"))
    if found.waited:
        todo = "measure again with fewer threads, or when nobody else computes"
        sentence = f"{found.waited} rows, threads waited for a core in every run; {todo}"
        console.print(clean(f"beside other work: {sentence}"))
    counts = ", ".join(f"{count} {op}" for op, count in found.counts.items())
    console.print(clean(f"{found.path}: {sum(found.counts.values())} rows ({counts}); {found.left} cases left out"))
    if found.is_stopped:
        console.print("stopped: `--resume` goes on with what is left")


# -- doctor -----------------------------------------------------------------------------------------------------------


def draw_doctor(doctor: Doctor, console: Console) -> None:
    """The verdict first, then what each verb would need, and what this machine has."""
    wrong = [package for package in doctor.packages if not package.suitable]
    needs = ", ".join(f"{package.name} {package.required} (here: {package.version or 'none'})" for package in wrong)
    verdict = f"does not work: it needs {needs}" if wrong else "works: every verb without an extra can be used"
    console.print(f"ridgeline {doctor.version} on Python {doctor.python} {verdict}", style="red" if wrong else None)
    table = Table("extra", "verbs that need it", "here", box=None, pad_edge=False)
    for extra in doctor.extras:
        here = ", ".join(_package_text(package) for package in extra.packages if package.version)
        advice = f"missing {', '.join(extra.missing)}: pip install 'ridgeline[{extra.name}]'" if extra.missing else ""
        table.add_row(extra.name, extra.verbs, clean("; ".join(filter(None, [here, advice]))))
    console.print(table)
    rows = {
        "compiler": doctor.compiler or "none: ridge_shm cannot be built",
        "launchers": ", ".join(doctor.launchers) or "none",
        "engines": ", ".join(f"{engine.name} {engine.version}" for engine in doctor.engines) or "none",
        "devices": doctor.devices_problem or ", ".join(map(_device_text, doctor.devices)) or "unknown without torch",
        "profiles": ", ".join(doctor.profiles) or "none in this folder: `ridgeline characterize` measures one",
        "system": f"{doctor.system}, {doctor.cores} cores",
    }
    for name, text in rows.items():
        console.print(f"{name:<10} ", end="")
        console.print(clean(text))


def _package_text(package: InstalledPackage) -> str:
    tested = f" (tested with {package.tested})" if package.tested and package.tested not in str(package.version) else ""
    return f"{package.name} {package.version}{tested}"


def _device_text(device: TorchDevice) -> str:
    memory = f" of {format_quantity(device.memory_bytes, 'B', 3)}" if device.memory_bytes else ""
    return f"{device.count} x {device.name or device.kind}{memory}"
