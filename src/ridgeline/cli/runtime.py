"""Turn `ridgeline run`, `pack`, `characterize` and `preflight` into calls of the library.

0    done, nothing wrong; run --verify, --dry: equal
1    run --verify: loss or a gradient differs; --dry: an op does; preflight: a chip, link or setting is wrong
2    refused, a worker was lost, or the last checkpoint could not be written
130  stopped by Ctrl-C, in order
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import ridgeline
from ridgeline import api
from ridgeline.cli.refuse import STOPPED, UNUSABLE
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import (
    Json,
    ScenarioFile,
    Settings,
    answer,
    check_outputs,
    print_json,
    progress_bar,
    stderr_console,
)
from ridgeline.core.errors import InputError
from ridgeline.core.files import write_text

if TYPE_CHECKING:
    from ridgeline.plan.scenario import Scenario
    from ridgeline.runtime import Options, StepRow
    from ridgeline.sim.prediction import Prediction

LINES = 20  # of steps that are printed where no terminal shows them as they go
TorchDevice = Annotated[
    str, typer.Option(metavar="NAME", help="Any torch device string: cuda, cuda:1, cpu, npu, xpu, mps.")
]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="PACKAGE", help="A package that adds a device or ops; may be repeated."),
]
GroupBackend = Annotated[
    str,
    typer.Option("--backend", metavar="NAME", help="Of torch.distributed: nccl, gloo, hccl; else the device's own."),
]
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
    from ridgeline.runtime import Options, RunOutcome

    built = ridgeline.read_scenario(scenario, settings or ())
    if dry:
        comparison = ridgeline.dry_run(built)
        answer(comparison, json)
        if not comparison.equal:
            raise typer.Exit(1)
        return
    options = Options(
        steps=steps, device=device or api.torch_device(built), backend=backend, data=data, rate=rate, seed=seed,
        every=every, folder=str(output or ""), resume=resume, timeout=timeout, restarts=restarts, verify=verify,
        trace=str(trace or ""), elastic=elastic, launcher=launcher, tensorboard=tensorboard,
        weights=str(weights or ""), save_weights=str(save_weights or ""),
    )  # fmt: skip
    if sbatch is not None:
        _write_sbatch(sbatch, built, (str(scenario), *_words(options, device, settings or ())), json)
        return
    expected_step = None if verify else api.expected_step(built)
    with _live(options, expected_step, json) as (tell, note):
        outcome = ridgeline.run(built, options, tell=tell, note=note)
    if outcome is None:  # rank 0 speaks for all
        return
    answer(outcome, json)
    if not isinstance(outcome, RunOutcome):
        if not outcome.equal:
            raise typer.Exit(1)
        return
    if trace is not None and not json:
        say(f"{trace}: a trace of each rank; `ridgeline explain {scenario} {trace}` accounts for the gap")
    if outcome.stopped or outcome.unsaved:
        raise typer.Exit(STOPPED if outcome.stopped else UNUSABLE)


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
    from ridgeline.runtime import SbatchScript, refusals
    from ridgeline.targets import slurm_run

    if problems := (*ridgeline.check(built), *refusals(built)):
        raise InputError(problems)
    write_text(path, slurm_run(built, words))
    if json:
        print_json(SbatchScript(output=path))
    else:
        say(f"{path}: sbatch {path}")


@contextmanager
def _live(
    options: Options, expected: Prediction | None, quiet: bool
) -> Iterator[tuple[Callable[[StepRow], None], Callable[[str], None]]]:
    """A line that follows the run on a terminal, or some lines where there is none; and where notes go."""
    from ridgeline.report.run import step_line

    if not sys.stderr.isatty():
        between = max(1, options.steps // LINES)

        def print_some(row: StepRow) -> None:
            if not quiet and (row.step % between == 0 or row.step == 1):
                say(step_line(row, options.steps, expected))
                sys.stdout.flush()

        yield print_some, lambda line: say(line, err=True)
        return
    from rich.live import Live
    from rich.text import Text

    with Live(console=stderr_console(), transient=True, refresh_per_second=8) as live:
        yield (
            lambda row: live.update(Text(step_line(row, options.steps, expected))),
            lambda line: live.console.print(line, markup=False, highlight=False),
        )


def pack(
    files: Annotated[list[Path], typer.Argument(metavar="FILES...", help="Texts, or .jsonl of text or tokens a line.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The .u16 or .u32 file to write.")],
    end: Annotated[int | None, typer.Option(metavar="ID", help="A token to put behind every document.")] = None,
    json: Json = False,
) -> None:
    """Pack documents into a file of tokens for `ridgeline run --data`; the tokens of a text are its bytes."""
    packed = ridgeline.pack(files, output, end=end)
    if json:
        print_json(packed)
    else:
        say(f"{packed.path}: {packed.documents:,} documents, {packed.tokens:,} tokens up to {packed.largest}")


# -- measuring --------------------------------------------------------------------------------------------------------


Minutes = Annotated[float, typer.Option(metavar="N", help="The time box; the most informative shapes first.")]
CharacterizeOutput = Annotated[Path, typer.Option("-o", "--output", metavar="PROFILE", help="The profile to write.")]
CharacterizeResume = Annotated[bool, typer.Option("--resume", help="Go on with the journal of a run that broke off.")]
Only = Annotated[
    str | None,
    typer.Option(
        metavar="GROUPS",
        help="Some of gemm,grouped,attention,rows,optimizer,memory,host,overlap,sustained,interconnect.",
    ),
]
Chip = Annotated[str | None, typer.Option(metavar="ID", help="Catalog id of the chip, where its name does not tell.")]
CharacterizeSeed = Annotated[int, typer.Option(metavar="N", help="Seed of the random inputs.")]
Merge = Annotated[
    list[Path] | None,
    typer.Option("--merge", metavar="FILE", help="Measure nothing: join profiles of ranks; may be repeated."),
]
Standalone = Annotated[
    Path | None,
    typer.Option(
        "--standalone", metavar="FILE.pyz", help="Measure nothing: write one file that runs with torch alone."
    ),
]


def characterize(
    device: TorchDevice = "cuda", minutes: Minutes = 5.0,
    output: CharacterizeOutput = Path(
        "profile.json"
    ), resume: CharacterizeResume = False,
    only: Only = None, chip: Chip = None, imports: Imports = None, backend: GroupBackend = "",
    seed: CharacterizeSeed = 0, merge: Merge = None, standalone: Standalone = None, json: Json = False,
) -> None:  # fmt: skip
    """Measure a device: kernels, memory, host, links, overlap and energy, into a profile that prices are read from."""
    from ridgeline.runtime import merge_profiles

    if standalone is not None:
        _write_standalone(standalone, json)
        return
    if merge:
        answer(merge_profiles(merge, output), json)
        return
    groups = [part.strip() for part in (only or "").split(",") if part.strip()]
    with progress_bar("measuring") as tell:
        device_profile = ridgeline.characterize(
            device, minutes=minutes, output=output, resume=resume, only=groups, chip=chip, imports=imports or (),
            backend=backend, seed=seed, progress=tell,
        )  # fmt: skip
    answer(device_profile, json)


def _write_standalone(path: Path, json: bool) -> None:
    from ridgeline.runtime import write_standalone

    check_outputs(path)
    written = write_standalone(path)
    if json:
        print_json(written)
    else:
        say(f"{path}: python {path.name} --device cuda --minutes 8 -o profile.json")


def preflight(
    device: TorchDevice = "cuda",
    reference: Annotated[
        Path | None, typer.Option(metavar="PROFILE", help="What a sound chip measures: a profile of `characterize`.")
    ] = None,
    drill: Annotated[
        int | None, typer.Option(metavar="RANK", help="Slow this rank on purpose, to see that it is found.")
    ] = None,
    imports: Imports = None,
    backend: GroupBackend = "",
    json: Json = False,
) -> None:
    """Find the slow chip, slow link and wrong setting before a run; start it with torchrun or srun.

    Exit code 1 when something is wrong.
    """
    figures = ridgeline.preflight(device, reference=reference, drill=drill, imports=imports or (), backend=backend)
    if figures is None:  # rank 0 speaks for all
        return
    answer(figures, json)
    if not figures.ok:
        raise typer.Exit(1)
