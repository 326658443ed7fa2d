"""Run a scenario of post-training here: what `ridgeline run` calls when the workload's kind is rl."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from ridgeline.core.encode import encode
from ridgeline.core.errors import InputError
from ridgeline.plan.check import check
from ridgeline.plan.scenario import Scenario, post_training
from ridgeline.runtime.measure import need_torch
from ridgeline.runtime.rl.conductor import Conductor, seats_of
from ridgeline.runtime.rl.crew import Crew, InlineCrew, LocalCrew
from ridgeline.runtime.rl.phases import write_timeline
from ridgeline.runtime.rl.refuse_rl import rl_refusals
from ridgeline.runtime.rl.request import RlListener, RlOutcome, RlRunRequest, RlStepRow
from ridgeline.runtime.train.launch import interruptible, started_again
from ridgeline.runtime.train.request import ForwardConstants, RunOptions, forward_constants, nobody
from ridgeline.runtime.train.run_folder import METRICS, own_folder
from ridgeline.runtime.train.run_scenario import run_option_problems

TIMELINE = "timeline.json"


class StepFile:
    """The file of a run's steps; as a context it gives the listener that writes it. The last line of a step counts."""

    def __init__(self, folder: Path, listener: RlListener, *, append: bool) -> None:
        self.path, self.listener = folder / METRICS, listener
        self.stream = self.path.open("a" if append else "w", encoding="utf-8")

    def __enter__(self) -> RlListener:
        return RlListener(step=self._step, note=self.listener.note)

    def __exit__(self, *how: object) -> None:
        self.stream.close()

    def _step(self, row: RlStepRow) -> None:
        self.stream.write(json.dumps(encode(row)) + "\n")
        self.stream.flush()
        self.listener.step(row)


def run_post_training(
    scenario: Scenario,
    options: RunOptions | None = None,
    *,
    constants: ForwardConstants | None = None,
    tell: Callable[[RlStepRow], None] = nobody,
    note: Callable[[str], None] = nobody,
    crew: Crew | None = None,
) -> RlOutcome:
    """Post-train the scenario's model by its plan here, on a process for each chip, or on the nodes of a Ray cluster.

    crew   who starts the processes; absent: this host, or Ray where the options name it
    """
    began = time.monotonic()
    options = options or RunOptions()
    need_torch("run")
    problems = (*check(scenario), *rl_refusals(scenario, options), *run_option_problems(options))
    if problems:
        raise InputError(problems)
    built = post_training(scenario)
    if options.folder and started_again():
        options = replace(options, resume=True)
    request = RlRunRequest(scenario=built, options=options, constants=constants or forward_constants(built.model))
    listener = RlListener(step=tell, note=note)
    with ExitStack() as open_files:
        if options.folder:
            open_files.enter_context(own_folder(Path(options.folder), resume=options.resume))
            listener = open_files.enter_context(StepFile(Path(options.folder), listener, append=options.resume))
        stop = open_files.enter_context(interruptible())
        conductor = Conductor(request, crew or _crew(request), listener, began, stop)
        outcome = conductor.run()
    if options.folder:
        path = Path(options.folder) / TIMELINE
        write_timeline(path, conductor.spans)
        outcome = replace(outcome, timeline=str(path))
    return outcome


def _crew(request: RlRunRequest) -> Crew:
    if request.options.launcher == "ray":
        from ridgeline.runtime.rl.ray_crew import RayCrew

        return RayCrew(request)
    return InlineCrew() if len(seats_of(request)) == 1 else LocalCrew()
