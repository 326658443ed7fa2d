"""Train a scenario, or compare its plan with one process, writing each step to files: what `ridgeline run` calls."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.files import refuse_unwritable
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.check import check
from ridgeline.plan.scenario import Scenario
from ridgeline.runtime.measure import need_torch
from ridgeline.runtime.probe.ranks import find_world
from ridgeline.runtime.train import request
from ridgeline.runtime.train.launch import Replan, execute, started_again
from ridgeline.runtime.train.refuse import numerics_refusals, refusals
from ridgeline.runtime.train.request import (
    SHARED_MEMORY,
    ForwardConstants,
    Listener,
    RunOptions,
    RunResult,
    StepRow,
    nobody,
)
from ridgeline.runtime.train.run_folder import METRICS, own_folder

if TYPE_CHECKING:
    from ridgeline.runtime.train.dry import TracedStage


class Metrics:
    """The file of a run's steps, open while it lasts; as a context it gives the listener that writes it.

    A step that is trained again behind a checkpoint is written again: its last line counts.
    """

    def __init__(self, folder: Path, listener: Listener, *, append: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.listener = folder / METRICS, listener
        refuse_unwritable(self.path)
        self.stream = self.path.open("a" if append else "w", encoding="utf-8")
        self.failed = False

    def __enter__(self) -> Listener:
        return Listener(step=self._step, note=self.listener.note)

    def __exit__(self, *how: object) -> None:
        try:
            self.stream.close()
        except OSError as wrong:
            self._complain(wrong)

    def _step(self, row: StepRow) -> None:
        try:
            self.stream.write(json.dumps(asdict(row)) + "\n")
            self.stream.flush()
            self.failed = False
        except OSError as wrong:
            self._complain(wrong)
        self.listener.step(row)

    def _complain(self, wrong: OSError) -> None:
        if not self.failed:
            self.listener.note(f"{self.path}: {wrong.strerror}; steps are not written")
        self.failed = True


FOLDER = "tensorboard"
SCALARS = ("loss", "gradient_norm", "loss_scale", "seconds", "tokens_per_s", "memory")


class EventFile:
    """The scalars `train/...` of a run in FOLDER/tensorboard; as a context it gives the listener that writes them."""

    def __init__(self, folder: Path, listener: Listener) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.listener, self.writer = listener, EventFileWriter(str(folder / FOLDER))

    def __enter__(self) -> Listener:
        return Listener(step=self._step, note=self.listener.note)

    def __exit__(self, *how: object) -> None:
        self.writer.close()

    def _step(self, row: StepRow) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=f"train/{name}", simple_value=getattr(row, name)) for name in SCALARS]
        self.writer.add_event(Event(wall_time=time.time(), step=row.step, summary=Summary(value=values)))
        self.listener.step(row)


LAUNCHERS = ("ray",)
BACKEND_NAMES = ("gloo", "nccl", "hccl", SHARED_MEMORY)  # of torch.distributed, and this project's own


def run(
    scenario: Scenario,
    options: RunOptions | None = None,
    *,
    constants: ForwardConstants | None = None,
    tell: Callable[[StepRow], None] = nobody,
    note: Callable[[str], None] = nobody,
    replan: Replan | None = None,
) -> RunResult:
    """Train the scenario's model by its plan here; with `options.verify` compare one step with a single process.

    Starts one process for each rank of the plan, or takes part in those of torchrun and Slurm, where every rank but 0
    gets None. Bad input is refused before anything starts; a `WorkerLost` says which rank ended, how and where.

    tell, note   told every step as it was measured, and a line where something is worth one
    replan       the best scenario for at most so many ranks: what an elastic run goes on with
    """
    options = options or RunOptions()
    need_torch("run")
    problems = (*check(scenario), *refusals(scenario), *run_option_problems(options), *_no_rollout(options))
    if problems:
        raise InputError(problems)
    if options.weights and request.lacks_prediction(Path(options.weights), scenario.model):
        note("multi-token prediction is not in the files: it is left out")
        scenario = replace(scenario, model=replace(scenario.model, mtp=None))
    if options.folder and (options.elastic or started_again()):
        options = replace(options, resume=True)
    if constants is None:
        constants = _constants_of(scenario.model, options, note)
    run_request, listener = request.make_request(scenario, options, constants), Listener(step=tell, note=note)
    with ExitStack() as open_files:
        if options.folder and find_world().rank == 0:
            open_files.enter_context(own_folder(Path(options.folder), resume=options.resume))
            if options.tensorboard:
                listener = open_files.enter_context(EventFile(Path(options.folder), listener))
            listener = open_files.enter_context(Metrics(Path(options.folder), listener, append=options.resume))
        return execute(run_request, listener, replan)


def _constants_of(model: ModelSpec, options: RunOptions, note: Callable[[str], None]) -> ForwardConstants:
    """What the model multiplies by: as the config.json beside its weights says, else as the model does."""
    numerics = request.folder_numerics(Path(options.weights)) if options.weights else None
    if numerics is not None and (problems := list(numerics_refusals(numerics))):
        raise InputError(problems)
    if assumptions := request.assumed_constants(model, numerics):
        note(assumptions)
    return request.forward_constants(model, numerics)


def trace_plan(scenario: Scenario) -> tuple[TracedStage, ...]:
    """Trace one step of the scenario's plan on this CPU, for any number of ranks: ops by size, nothing computed."""
    need_torch("run --dry")
    problems = (*check(scenario), *refusals(scenario))
    if problems:
        raise InputError(problems)
    from ridgeline.runtime.train.dry import trace_step
    from ridgeline.runtime.train.loop import blueprint_of

    run_request = request.make_request(scenario, RunOptions())
    return trace_step(run_request, blueprint_of(run_request))


def _no_rollout(options: RunOptions) -> list[Problem]:
    if not options.rollout:
        return []
    expected_text = "nothing: only a run of post-training generates"
    return [Problem(path="--rollout", given=options.rollout, expected=expected_text, todo="leave it out")]


def run_option_problems(options: RunOptions) -> list[Problem]:
    problems = [
        Problem(path=f"--{name}", given=str(value), expected=f"{least} or more")
        for name, least in (("steps", 1), ("every", 0), ("restarts", 0))
        if (value := getattr(options, name)) < least
    ]
    if not options.rate > 0 or not options.timeout > 0:
        problems.append(
            Problem(path="--rate, --timeout", given=f"{options.rate}, {options.timeout}", expected="above 0")
        )
    least = sum(request.TRACE_WINDOW)
    if options.trace and options.steps < least:
        problems.append(Problem(path="--steps", given=str(options.steps), expected=f"{least} or more with --trace"))
    if options.tensorboard and importlib.util.find_spec("tensorboard") is None:
        todo = "`pip install ridgeline[tensorboard]`"
        no_module = "no module tensorboard"
        problems.append(Problem(path="--tensorboard", given=no_module, expected="TensorBoard", todo=todo))
    if options.backend and options.backend not in BACKEND_NAMES:
        problems.append(not_among("--backend", options.backend, BACKEND_NAMES))
    if options.launcher and options.launcher not in LAUNCHERS:
        problems.append(not_among("--launcher", options.launcher, LAUNCHERS))
    checkpoint_options = (options.every, options.resume, options.restarts, options.elastic, options.tensorboard)
    if any(checkpoint_options) and not options.folder:
        todo = "name a folder with -o"
        problems.append(Problem(path="-o", given="no folder", expected="where metrics and checkpoints go", todo=todo))
    if options.weights:
        problems += request.folder_problems(Path(options.weights))
    return problems
