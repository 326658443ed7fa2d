"""Train a scenario, or compare its plan with one process: what `ridgeline run` calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.plan.check import check
from ridgeline.plan.scenario import Scenario
from ridgeline.runtime.measure import need_torch
from ridgeline.runtime.probe.ranks import find_world
from ridgeline.runtime.train.event_file import EventFile, absent
from ridgeline.runtime.train.launch import execute, started_again
from ridgeline.runtime.train.metrics_file import Metrics
from ridgeline.runtime.train.numerics import Numerics
from ridgeline.runtime.train.refuse import refusals
from ridgeline.runtime.train.request import Listener, Options, Request, RunOutcome, StepRow, make_request
from ridgeline.runtime.train.starter import Replan
from ridgeline.runtime.train.tracing import QUIET, RECORDED, WARM
from ridgeline.runtime.train.verification import Verification
from ridgeline.runtime.train.weights_folder import folder_numerics, folder_problems

if TYPE_CHECKING:
    from ridgeline.runtime.train.dry import TracedStage

LAUNCHERS = ("ray",)


def untold(told: StepRow | str) -> None:
    """Nobody is told how far a run is."""


def run(
    scenario: Scenario,
    options: Options | None = None,
    *,
    numerics: Numerics | None = None,
    tell: Callable[[StepRow], None] = untold,
    note: Callable[[str], None] = untold,
    replan: Replan | None = None,
) -> RunOutcome | Verification | None:
    """Train the scenario's model by its plan here; with `options.verify` compare one step with a single process.

    Starts one process for each rank of the plan, or takes part in those of torchrun and Slurm, where every rank but 0
    gets None. Bad input is refused before anything starts; a `WorkerLost` says which rank ended, how and where.

    tell, note   told every step as it was measured, and a line where something is worth one
    replan       the best scenario for at most so many ranks: what an elastic run goes on with
    """
    options = options or Options()
    need_torch("run")
    problems = (*check(scenario), *refusals(scenario), *_options(options))
    if problems:
        raise InputError(problems)
    if options.folder and (options.elastic or started_again()):
        options = replace(options, resume=True)
    request: Request = make_request(scenario, options, numerics or _numerics(options))
    listener = Listener(step=tell, note=note)
    if not options.folder or find_world().rank != 0:
        return execute(request, listener, replan)  # type: ignore[no-any-return]
    with ExitStack() as open_files:
        if options.tensorboard:
            listener = open_files.enter_context(EventFile(Path(options.folder), listener))
        listener = open_files.enter_context(Metrics(Path(options.folder), listener, append=options.resume))
        return execute(request, listener, replan)  # type: ignore[no-any-return]


def trace(scenario: Scenario) -> tuple[TracedStage, ...]:
    """Trace one step of the scenario's plan on this CPU, for any number of ranks: ops by size, nothing computed."""
    need_torch("run --dry")
    problems = (*check(scenario), *refusals(scenario))
    if problems:
        raise InputError(problems)
    from ridgeline.runtime.train.dry import trace_step
    from ridgeline.runtime.train.loop import blueprint_of

    request = make_request(scenario, Options())
    return trace_step(request, blueprint_of(request))


def _numerics(options: Options) -> Numerics | None:
    """Of the folder that weights come from, where it says."""
    return folder_numerics(Path(options.weights)) if options.weights else None


def _options(options: Options) -> list[Problem]:
    """What of the options cannot be."""
    problems: list[Problem] = []
    for name, value, least in (
        ("steps", options.steps, 1),
        ("every", options.every, 0),
        ("restarts", options.restarts, 0),
    ):
        if value < least:
            problems.append(Problem(path=f"--{name}", given=str(value), expected=f"{least} or more"))
    if not options.rate > 0 or not options.timeout > 0:
        problems.append(
            Problem(path="--rate, --timeout", given=f"{options.rate}, {options.timeout}", expected="above 0")
        )
    least = QUIET + WARM + RECORDED
    if options.trace and options.steps < least:
        problems.append(Problem(path="--steps", given=str(options.steps), expected=f"{least} or more with --trace"))
    if options.tensorboard and (missing := absent()) is not None:
        problems.append(missing)
    if options.launcher and options.launcher not in LAUNCHERS:
        problems.append(not_among("--launcher", options.launcher, LAUNCHERS))
    checkpoint_options = (options.every, options.resume, options.restarts, options.elastic, options.tensorboard)
    if any(checkpoint_options) and not options.folder:
        todo = "name a folder with -o"
        problems.append(Problem(path="-o", given="no folder", expected="where metrics and checkpoints go", todo=todo))
    if options.weights:
        problems += folder_problems(Path(options.weights))
    return problems
