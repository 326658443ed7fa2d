"""Turn `ridgeline run` and `ridgeline pack` into calls of the library.

0  done; with --verify, --dry: equal        1  --verify: loss or a gradient differs; --dry: an op does
2  refused, a worker was lost, or the last checkpoint could not be written
130  stopped by Ctrl-C, in order
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.refuse import STOPPED, UNUSABLE
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import Json, ScenarioFile, Settings, console, print_json, stderr_console

if TYPE_CHECKING:
    from ridgeline.plan.scenario import Scenario
    from ridgeline.runtime import Options, StepRow, Verification
    from ridgeline.sim.memory.peak import Memory

LINES = 20  # of steps that are printed where no terminal shows them as they go


def register(app: typer.Typer) -> None:
    """Give the command line the verb of this module."""
    app.command()(run)
    app.command()(pack)


Steps = Annotated[int, typer.Option(metavar="N", help="Optimizer steps; those before a checkpoint count.")]
Verify = Annotated[
    bool, typer.Option("--verify", help="Compare loss and every gradient of one step with a single process.")
]
Dry = Annotated[
    bool, typer.Option("--dry", help="Trace the plan for any number of ranks, here, against what is predicted.")
]
Data = Annotated[
    str,
    typer.Option(metavar="WHAT", help="synthetic, text (Ridgeline's source), or .u16 or .u32 files of tokens."),
]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="For metrics.jsonl and checkpoints.")
]
Every = Annotated[int, typer.Option(metavar="N", help="Steps between checkpoints; 0: one at the end.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the newest sound checkpoint, on any mesh.")]
Restarts = Annotated[int, typer.Option(metavar="N", help="Start lost workers again, this often.")]
Elastic = Annotated[
    bool,
    typer.Option("--elastic", help="Then go on with the best plan for the ranks that are left; resumes what is there."),
]
Launcher = Annotated[
    str, typer.Option(metavar="NAME", help="ray: on a Ray cluster. Else here, or in what torchrun or srun started.")
]
Sbatch = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Start nothing: write a Slurm batch script that runs this.")
]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Scalars of every step in FOLDER/tensorboard.")]
Rate = Annotated[float, typer.Option(metavar="X", help="Learning rate of AdamW.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Of weights and data.")]
Device = Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda, npu; else what the chip is.")]
Backend = Annotated[str, typer.Option(metavar="NAME", help="gloo, nccl, hccl; else the device's own.")]
Trace = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Trace two steps of every rank, for `explain` and `analyze`.")
]
Weights = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Begin from Hugging Face safetensors.")]
SaveWeights = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write Hugging Face safetensors at the end.")]
Timeout = Annotated[float, typer.Option(metavar="S", help="Seconds a collective may take.")]


def run(
    scenario: ScenarioFile, steps: Steps = 10, verify: Verify = False, dry: Dry = False, data: Data = "synthetic",
    output: Output = None, every: Every = 0, resume: Resume = False, restarts: Restarts = 0, elastic: Elastic = False,
    launcher: Launcher = "", sbatch: Sbatch = None, tensorboard: TensorBoard = False, rate: Rate = 3e-4, seed: Seed = 0,
    device: Device = "", backend: Backend = "", trace: Trace = None, weights: Weights = None,
    save_weights: SaveWeights = None, timeout: Timeout = 600.0, settings: Settings = None, json: Json = False,
) -> None:  # fmt: skip
    """Train a scenario's model by its plan, here; it starts a process for each rank, or joins those of torchrun."""
    from ridgeline.plan.scenario_file import read_scenario
    from ridgeline.report.run import draw_run
    from ridgeline.runtime import Options, RunOutcome
    from ridgeline.runtime import run as library

    built = read_scenario(scenario, settings or ())
    if dry:
        _dry(built, json)
        return
    options = Options(
        steps=steps, device=device or device_of(built), backend=backend, data=data, rate=rate, seed=seed, every=every,
        folder=str(output or ""), resume=resume, timeout=timeout, restarts=restarts, verify=verify,
        trace=str(trace or ""), elastic=elastic, launcher=launcher, tensorboard=tensorboard,
        weights=str(weights or ""), save_weights=str(save_weights or ""),
    )  # fmt: skip
    if sbatch is not None:
        _write_sbatch(sbatch, built, (str(scenario), *_words(options, device, settings or ())), json)
        return
    predicted = None if verify else _predicted_figures(built)
    refuse_unfit(built)
    with _live(options, predicted, json) as (tell, note):
        found = library(built, options, tell=tell, note=note, replan=partial(replan, built))
    if found is None:  # rank 0 speaks for all
        return
    if isinstance(found, RunOutcome):
        found = replace(found, predicted_memory=_predicted_memory(built))
        if predicted is not None and found.step_s:
            found = replace(found, predicted_step_s=predicted[0], predicted_mfu=predicted[1])
        print_json(found) if json else draw_run(found, console())
        if trace is not None and not json:
            say(f"{trace}: a trace of each rank; `ridgeline explain {scenario} {trace}` accounts for the gap")
        if found.stopped or found.unsaved:
            raise typer.Exit(STOPPED if found.stopped else UNUSABLE)
        return
    _print_verification(found, json)


def _print_verification(found: Verification, json: bool) -> None:
    """Loss and gradients of the plan against one process."""
    from ridgeline.report.run import draw_equivalence

    print_json(found) if json else draw_equivalence(found, console())
    if not found.equal:
        raise typer.Exit(1)


def _dry(built: Scenario, json: bool) -> None:
    """Every op of a traced step beside what lowering expects."""
    from ridgeline.api import dry_run
    from ridgeline.report.run import draw_dry

    run = dry_run(built)
    print_json(run) if json else draw_dry(run, console())
    if not run.equal:
        raise typer.Exit(1)


def _words(options: Options, device: str, settings: Sequence[str]) -> Iterator[str]:
    """The options that are not as they are by default, as a command line gives them."""
    usual = type(options)()
    for item in fields(options):
        value = getattr(options, item.name)
        if value == getattr(usual, item.name) or item.name == "device":
            continue
        yield {"folder": "--output"}.get(item.name, f"--{item.name.replace('_', '-')}")
        if value is not True:
            yield str(value)
    yield from ("--device", device) if device else ()
    for setting in settings:
        yield from ("--set", setting)


def _write_sbatch(path: Path, built: Scenario, words: tuple[str, ...], json: bool) -> None:
    from ridgeline.core.errors import InputError
    from ridgeline.core.files import write_text
    from ridgeline.plan.check import check
    from ridgeline.runtime import SbatchScript, refusals
    from ridgeline.targets import slurm_run

    if problems := (*check(built), *refusals(built)):
        raise InputError(problems)
    write_text(path, slurm_run(built, words))
    if json:
        print_json(SbatchScript(output=path))
    else:
        say(f"{path}: sbatch {path}")


def replan(built: Scenario, ranks: int) -> Scenario | None:
    """The best scenario for the ranks that are left, of those that `run` can execute: what `plan` would say."""
    from ridgeline.runtime import refusals
    from ridgeline.search import fit_to

    return fit_to(built, ranks, lambda candidate: not refusals(candidate))


def pack(
    files: Annotated[list[Path], typer.Argument(metavar="FILES...", help="Texts, or .jsonl of text or tokens a line.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The .u16 or .u32 file to write.")],
    end: Annotated[int | None, typer.Option(metavar="ID", help="A token to put behind every document.")] = None,
    json: Json = False,
) -> None:
    """Pack documents into a file of tokens for `ridgeline run --data`; the tokens of a text are its bytes."""
    from ridgeline.runtime import pack as library

    made = library(files, output, end=end)
    if json:
        print_json(made)
    else:
        say(f"{made.path}: {made.documents:,} documents, {made.tokens:,} tokens up to {made.largest}")


def device_of(built: Scenario) -> str:
    """The torch device of a scenario's chip."""
    vendors = {"host": "cpu", "Huawei": "npu", "Intel": "hpu"}
    return vendors.get(built.system.chip.vendor, "cuda")


def _predicted_figures(built: Scenario) -> tuple[float, float] | None:
    """Step time and MFU that `predict` gives, as values for whoever runs it."""
    from ridgeline.api import predict
    from ridgeline.core.errors import RidgelineError
    from ridgeline.sim.prediction import Prediction

    try:
        found = predict(built)
    except RidgelineError:  # a number of the chip is missing: the run goes on without
        return None
    return (found.step_time_s, found.utilization.mfu) if isinstance(found, Prediction) else None


def _predicted_memory(built: Scenario) -> Mapping[str, float]:
    """Bytes by kind of the fullest rank that `predict` gives."""
    found = _peak(built)
    return found.fullest.bytes_by_kind if found is not None else {}


def _peak(built: Scenario) -> Memory | None:
    from ridgeline.api import predict
    from ridgeline.core.errors import RidgelineError
    from ridgeline.sim.prediction import Prediction

    try:
        found = predict(built)
    except RidgelineError:
        return None
    return found.memory if isinstance(found, Prediction) else None


def refuse_unfit(built: Scenario) -> None:
    """Refuse what cannot run here or would not fit in memory, before anything starts, with the nearest plan that would:
    the fastest one for as many ranks that the engine executes."""
    from ridgeline.core.errors import InputError, Problem
    from ridgeline.core.units import format_quantity
    from ridgeline.plan.check import check
    from ridgeline.plan.workload import Train
    from ridgeline.runtime import describe_plan, refusals

    problems = [*check(built), *refusals(built)]
    held = _peak(built) if not problems else None
    if held is not None and not held.fits:
        given = f"{format_quantity(held.peak_bytes, 'B')} at the peak of the fullest rank"
        problems = [
            Problem(path="memory", given=given, expected=f"at most {format_quantity(held.capacity_bytes, 'B')}")
        ]
    if not problems:
        return
    nearest = replan(built, built.system.chips) if isinstance(built.workload, Train) else None
    if nearest is not None:
        plan = nearest.plan
        todo = f"use {describe_plan(nearest)}, microbatch {plan.microbatch}, recompute {plan.recompute.kind}"
        problems.append(Problem(path="plan", given=describe_plan(built), expected="a plan that runs here", todo=todo))
    raise InputError(problems)


@contextmanager
def _live(
    options: Options, predicted: tuple[float, float] | None, quiet: bool
) -> Iterator[tuple[Callable[[StepRow], None], Callable[[str], None]]]:
    """A line that follows the run on a terminal, or some lines where there is none; and where notes go."""
    from ridgeline.report.run import step_line

    if not sys.stderr.isatty():
        between = max(1, options.steps // LINES)

        def print_some(row: StepRow) -> None:
            if not quiet and (row.step % between == 0 or row.step == 1):
                say(step_line(row, options.steps, predicted))
                sys.stdout.flush()

        yield print_some, lambda line: say(line, err=True)
        return
    from rich.live import Live
    from rich.text import Text

    with Live(console=stderr_console(), transient=True, refresh_per_second=8) as live:

        def show(row: StepRow) -> Any:
            live.update(Text(step_line(row, options.steps, predicted)))

        yield show, lambda line: live.console.print(line, markup=False, highlight=False)
