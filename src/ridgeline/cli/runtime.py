"""Turn `ridgeline run`, `pack`, `doctor`, `characterize`, `preflight` and `bringup` into calls of the library.

0    done, nothing wrong; run --verify, --dry: equal
1    run --verify: loss or a gradient differs; --dry: an op does; preflight: a chip, link or setting is wrong;
     doctor: a package that every verb needs is missing; bringup: an op is wrong, or with --faults one was not caught
2    refused, a worker was lost, or the last checkpoint could not be written
130  stopped by Ctrl-C or SIGTERM, in order; `characterize` writes the rows so far
"""

from __future__ import annotations

import json as codec
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import typer

import ridgeline
from ridgeline import run_api
from ridgeline.api import refuse_options
from ridgeline.cli.refuse import STOPPED, UNUSABLE
from ridgeline.cli.streams import note, say
from ridgeline.cli.terminal import answer, check_outputs, command_line, print_json, progress_bar, stderr_console
from ridgeline.core.encode import answer_json
from ridgeline.core.files import write_text

if TYPE_CHECKING:
    from ridgeline.runtime.train import RunOptions


class NumberedStep(Protocol):
    """A step of a run of any kind."""

    @property
    def step(self) -> int:
        """Its number, counted from one."""


Row = TypeVar("Row", bound=NumberedStep)
LINES = 20  # of steps that are printed where no terminal shows them as they go


def run(
    scenario: Path, steps: int = 10, verify: bool = False, dry: bool = False, data: str = "synthetic",
    output: Path | None = None, every: int = 0, resume: bool = False, restarts: int = 0, elastic: bool = False,
    launcher: str = "", sbatch: Path | None = None, tensorboard: bool = False, rate: float = 3e-4, seed: int = 0,
    device: str = "", backend: str = "", trace: Path | None = None, weights: Path | None = None,
    save_weights: Path | None = None, rollout: str = "", timeout: float = 600.0, settings: list[str] | None = None,
    json: bool = False,
) -> None:  # fmt: skip
    """Train a scenario's model by its plan, here; it starts a process for each rank, or joins those of torchrun."""
    from ridgeline.runtime.train import RunOptions, RunOutcome, Verification

    changes = settings or ()
    if dry:
        refuse_options("a run: --dry starts none", "drop it, or --dry", output=output, trace=trace, sbatch=sbatch)
        comparison = ridgeline.dry_run(ridgeline.read_scenario(scenario, changes))
        answer(comparison, json)
        if not comparison.equal:
            raise typer.Exit(1)
        return
    options = RunOptions(
        steps=steps, device=device, backend=backend, data=data, rate=rate, seed=seed, every=every,
        folder=str(output or ""), resume=resume, timeout=timeout, restarts=restarts, verify=verify,
        trace=str(trace or ""), elastic=elastic, launcher=launcher, tensorboard=tensorboard,
        weights=str(weights or ""), save_weights=str(save_weights or ""),
        rollout=rollout,
    )  # fmt: skip
    if sbatch is not None:
        script = run_api.write_sbatch(sbatch, scenario, options, changes)
        if json:
            print_json(script)
        else:
            say(f"{sbatch}: sbatch {sbatch}")
        return
    built = ridgeline.read_scenario(scenario, changes)
    if built.workload.kind == "rl":
        _run_rl(built, options, json)
        return
    expected_step = None if verify else run_api.expected_step(built)
    from ridgeline.report import step_line

    with _live(options, partial(step_line, steps=options.steps, expected=expected_step), json) as (tell, hear):
        outcome = ridgeline.run(built, options, tell=tell, note=hear)
    if outcome is None:  # rank 0 speaks for all
        return
    answer(outcome, json)
    if isinstance(outcome, Verification):
        if not outcome.equal:
            raise typer.Exit(1)
        return
    assert isinstance(outcome, RunOutcome)
    if trace is not None and not json:
        say(f"{trace}: a trace of each rank; `ridgeline explain {scenario} {trace}` accounts for the gap")
    if outcome.stopped or outcome.unsaved:
        raise typer.Exit(STOPPED if outcome.stopped else UNUSABLE)


def _run_rl(built: ridgeline.Scenario, options: RunOptions, json: bool) -> None:
    """Post-train, with a line for every step (some of them where there are many)."""
    from ridgeline.report import step_line
    from ridgeline.runtime.rl import RlOutcome

    with _live(options, partial(step_line, steps=options.steps), json) as (tell, hear):
        outcome = ridgeline.run(built, options, tell=tell, note=hear)
    assert isinstance(outcome, RlOutcome)
    answer(outcome, json)
    if outcome.stopped or outcome.unsaved:
        raise typer.Exit(STOPPED if outcome.stopped else UNUSABLE)


@contextmanager
def _live(
    options: RunOptions, line_of: Callable[[Row], str], quiet: bool
) -> Iterator[tuple[Callable[[Row], None], Callable[[str], None]]]:
    """A line that follows the run on a terminal, or some lines where there is none; and where notes go."""
    if not sys.stderr.isatty():
        between = max(1, options.steps // LINES)

        def print_some(row: Row) -> None:
            if not quiet and (row.step % between == 0 or row.step == 1):
                say(line_of(row))
                sys.stdout.flush()

        yield print_some, note
        return
    from rich.live import Live
    from rich.text import Text

    with Live(console=stderr_console(), transient=True, refresh_per_second=8) as live:
        yield (
            lambda row: live.update(Text(line_of(row))),
            lambda line: live.console.print(line, markup=False, highlight=False),
        )


def pack(files: list[Path], output: Path, end: int | None = None, json: bool = False) -> None:
    """Pack documents into a file of tokens for `ridgeline run --data`; the tokens of a text are its bytes."""
    packed = ridgeline.pack(files, output, end=end)
    if json:
        print_json(packed)
    else:
        say(f"{packed.path}: {packed.documents:,} documents, {packed.tokens:,} tokens up to {packed.largest}")


def doctor(json: bool = False) -> None:
    """Say what is installed here: packages, the extras that verbs need, compiler, launchers, devices, profiles."""
    found = ridgeline.doctor()
    answer(found, json)
    if not found.healthy:
        raise typer.Exit(1)


# -- measuring --------------------------------------------------------------------------------------------------------


def characterize(
    device: str = "cuda", minutes: float = 5.0, output: Path = Path("profile.json"), resume: bool = False,
    only: str | None = None, chip: str | None = None, imports: list[str] | None = None, backend: str = "",
    seed: int = 0, merge: list[Path] | None = None, standalone: Path | None = None, json: bool = False,
) -> None:  # fmt: skip
    """Measure a device: kernels, memory, host, links, overlap and energy, into a profile that prices are read from."""
    from ridgeline.runtime import merge_profiles

    if standalone is not None:
        from ridgeline.runtime import write_standalone

        check_outputs(standalone)
        written = write_standalone(standalone)
        if json:
            print_json(written)
        else:
            say(f"{standalone}: python {standalone.name} --device cuda --minutes 8 -o profile.json")
        return
    if merge:
        answer(merge_profiles(merge, output), json)
        return
    groups = [part.strip() for part in (only or "").split(",") if part.strip()]
    journal = "the rows so far are in its journal, and --resume goes on with them"
    with progress_bar("measuring", json=json, stoppable=True, written=journal) as wait:
        device_profile = ridgeline.characterize(
            device, minutes=minutes, output=output, resume=resume, only=groups, chip=chip, imports=imports or (),
            backend=backend, seed=seed, progress=wait,
        )  # fmt: skip
    answer(device_profile, json)
    if device_profile.is_stopped:
        raise typer.Exit(STOPPED)


def preflight(
    device: str = "cuda",
    reference: Path | None = None,
    drill: int | None = None,
    imports: list[str] | None = None,
    backend: str = "",
    json: bool = False,
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


def bringup(
    model: str = "", device: str = "cpu", faults: Path | None = None, fault: str = "", allow: list[str] | None = None,
    seed: int = 0, chip: str | None = None, profile: Path | None = None, save_fingerprint: bool = False,
    graph_breaks: bool = False, msprobe: Path | None = None, html: Path | None = None, output: Path | None = None,
    json: bool = False,
) -> None:  # fmt: skip
    """Run a model on a device: every op, the ladder, invariances; judged against fp64 arithmetic on the host."""
    from ridgeline.runtime import need_torch
    from ridgeline.runtime.bringup import BringUp, FaultsReport

    need_torch("bringup")
    report, repros = _outputs(html, output)

    def show(found: BringUp) -> None:
        if not json and not fault and faults is not None:
            answer(found, json)

    with progress_bar("bringing up", json=json, stoppable=True) as wait:
        found = ridgeline.bringup(
            model, device, faults=faults or "", fault=fault, allow=allow or (), seed=seed, chip=chip, profile=profile,
            save_fingerprint=save_fingerprint, graph_breaks=graph_breaks, msprobe=msprobe, folder=repros,
            progress=wait, each=show,
        )  # fmt: skip
    if save_fingerprint and isinstance(found, BringUp):
        is_stored = found.fingerprint is not None and bool(found.fingerprint.products) and not wait.stopped
        what = "the fingerprint is stored" if is_stored else "no fingerprint was stored: none could be taken"
        say(f"{profile}: {what}", err=True)
    if html is not None:
        from ridgeline.report import page

        write_text(html, page(found, command_line()))
    if report is not None:
        write_text(report, codec.dumps(answer_json(found), indent=1, allow_nan=False) + "\n")
    answer(found, json)
    is_right = found.caught == len(found.faults) if isinstance(found, FaultsReport) else found.right
    raise typer.Exit(STOPPED if wait.stopped else 0 if is_right else 1)


def _outputs(html: Path | None, output: Path | None) -> tuple[Path | None, Path | None]:
    """Where the report goes, and where reproductions do; both are refused before the work if they cannot be written."""
    is_file = output is not None and output.suffix == ".json"
    report = output if output is None or is_file else output / "report.json"
    if output is not None and not is_file:
        output.mkdir(parents=True, exist_ok=True)
    check_outputs(html, report)
    return report, None if is_file else output
