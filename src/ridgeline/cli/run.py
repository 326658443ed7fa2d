"""Turn `ridgeline run` into a call of the library.

0  done; with --verify, --dry: equal        1  --verify: loss or a gradient differs; --dry: an op does
2  refused, or a worker was lost
130  stopped by Ctrl-C, in order
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.refuse import STOPPED
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import Json, ScenarioFile, Settings, console, print_json, stderr_console

if TYPE_CHECKING:
    from ridgeline.plan.scenario import Scenario
    from ridgeline.runtime.train.request import Options, StepRow
    from ridgeline.runtime.train.verification import Verification

LINES = 20  # of steps that are printed where no terminal shows them as they go


def register(app: typer.Typer) -> None:
    """Give the command line the verb of this module."""
    app.command()(run)


Steps = Annotated[int, typer.Option(metavar="N", help="Optimizer steps; those before a checkpoint count.")]
Verify = Annotated[
    bool, typer.Option("--verify", help="Compare loss and every gradient of one step with a single process.")
]
Dry = Annotated[
    bool, typer.Option("--dry", help="Trace the plan for any number of ranks, here, against what is predicted.")
]
Data = Annotated[
    str,
    typer.Option(metavar="WHAT", help="synthetic, text (Ridgeline's source), or tokens in a .u16 or .u32 file."),
]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="For metrics.jsonl and checkpoints.")
]
Every = Annotated[int, typer.Option(metavar="N", help="Steps between checkpoints; 0: one at the end.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the newest sound checkpoint, on any mesh.")]
Restarts = Annotated[int, typer.Option(metavar="N", help="Start lost workers again, this often.")]
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
    output: Output = None, every: Every = 0, resume: Resume = False, restarts: Restarts = 0, rate: Rate = 3e-4,
    seed: Seed = 0, device: Device = "", backend: Backend = "", trace: Trace = None, weights: Weights = None,
    save_weights: SaveWeights = None, timeout: Timeout = 600.0, settings: Settings = None, json: Json = False,
) -> None:  # fmt: skip
    """Train a scenario's model by its plan, here; it starts a process for each rank, or joins those of torchrun."""
    from ridgeline.plan.scenario_file import read_scenario
    from ridgeline.report.run import draw_run, run_sheet
    from ridgeline.runtime.train.request import Options, RunOutcome
    from ridgeline.runtime.train.run_scenario import run as library

    built = read_scenario(scenario, settings or ())
    if dry:
        _dry(built, json)
        return
    options = Options(
        steps=steps, device=device or device_of(built), backend=backend, data=data, rate=rate, seed=seed, every=every,
        folder=str(output or ""), resume=resume, timeout=timeout, restarts=restarts, verify=verify,
        trace=str(trace or ""), weights=str(weights or ""), save=str(save_weights or ""),
    )  # fmt: skip
    predicted = None if verify else _predicted(built)
    with _live(options, predicted, json) as tell:
        found = library(built, options, tell=tell)
    if found is None:  # rank 0 speaks for all
        return
    if isinstance(found, RunOutcome):
        sheet = run_sheet(found, predicted, _predicted_memory(built))
        print_json(sheet) if json else draw_run(sheet, console())
        if trace is not None and not json:
            say(f"{trace}: a trace of each rank; `ridgeline explain {scenario} {trace}` accounts for the gap")
        if found.stopped:
            raise typer.Exit(STOPPED)
        return
    _compared(found, json)


def _compared(found: Verification, json: bool) -> None:
    """Loss and gradients of the plan against one process."""
    from ridgeline.report.run import draw_equivalence, equivalence_sheet

    sheet = equivalence_sheet(found)
    print_json(sheet) if json else draw_equivalence(sheet, console())
    if not found.equal:
        raise typer.Exit(1)


def _dry(built: Scenario, json: bool) -> None:
    """Every op of a traced step beside what lowering expects."""
    from ridgeline.api import dry_run
    from ridgeline.report.dry_run import draw_dry, dry_sheet

    sheet = dry_sheet(dry_run(built))
    print_json(sheet) if json else draw_dry(sheet, console())
    if not sheet["equal"]:
        raise typer.Exit(1)


def device_of(built: Scenario) -> str:
    """The torch device of a scenario's chip."""
    vendors = {"host": "cpu", "Huawei": "npu", "Intel": "hpu"}
    return vendors.get(built.system.chip.vendor, "cuda")


def _predicted(built: Scenario) -> tuple[float, float] | None:
    """Step time and MFU that `predict` gives, as values for whoever runs it."""
    from ridgeline.api import predict
    from ridgeline.core.errors import RidgelineError
    from ridgeline.sim.prediction import Prediction

    try:
        found = predict(built)
    except RidgelineError:  # a number of the chip is missing: the run goes on without
        return None
    return (found.step_time_s, found.utilization.mfu) if isinstance(found, Prediction) else None


def _predicted_memory(built: Scenario) -> Mapping[str, float] | None:
    """Bytes by kind of the fullest rank that `predict` gives."""
    from ridgeline.api import predict
    from ridgeline.core.errors import RidgelineError
    from ridgeline.sim.prediction import Prediction

    try:
        found = predict(built)
    except RidgelineError:
        return None
    return found.memory.fullest.bytes_by_kind if isinstance(found, Prediction) else None


@contextmanager
def _live(options: Options, predicted: tuple[float, float] | None, quiet: bool) -> Iterator[Callable[[StepRow], None]]:
    """A line that follows the run on a terminal, or some lines where there is none."""
    from ridgeline.report.run import step_line

    if not sys.stderr.isatty():
        between = max(1, options.steps // LINES)

        def print_some(row: StepRow) -> None:
            if not quiet and (row.step % between == 0 or row.step == 1):
                say(step_line(row, options.steps, predicted))
                sys.stdout.flush()

        yield print_some
        return
    from rich.live import Live
    from rich.text import Text

    with Live(console=stderr_console(), transient=True, refresh_per_second=8) as live:

        def show(row: StepRow) -> Any:
            live.update(Text(step_line(row, options.steps, predicted)))

        yield show
