"""Find or start the ranks of a run: workers of this host, those of torchrun or Slurm, or a Ray cluster's.

    torchrun, Slurm   this process is a rank already: the environment says which, and where the others are
    ray               Ray Train starts the ranks on the nodes of a cluster (`ray_cluster`)
    otherwise         a process for each rank of the plan, here (`local_workers`)

Workers that are lost are started again from the last checkpoint as often as was allowed. In an elastic run, ranks that
are lost for good leave it: whoever knows how to plan hands in the best scenario for the ranks that are left, and the
run goes on from the last checkpoint, resharded. Under torchrun or Slurm the same happens when fewer (or more) processes
come than the plan has ranks.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.runtime.probe.ranks import World, find_world
from ridgeline.runtime.train.local_workers import Workers
from ridgeline.runtime.train.rank_work import reason, work
from ridgeline.runtime.train.request import Listener, Request, RunOutcome, WorkerLost
from ridgeline.runtime.train.starter import Replan, Starter, describe_plan, fit_request, run_with_restarts

AGENT = "TORCHELASTIC_RUN_ID"  # in the environment of every process that torchrun started
AGAIN = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")  # how often torchrun or Slurm started the run before


def execute(request: Request, listener: Listener, replan: Replan | None = None) -> Any:
    """The outcome of a run, or the Verification of a plan; None at ranks other than 0 under torchrun and Slurm."""
    began = time.monotonic()
    if request.options.launcher == "ray":
        from ridgeline.runtime.train.ray_cluster import Cluster

        return run_with_restarts(request, listener, replan, Cluster(began))
    world = find_world()
    if world.ranks > 1 or AGENT in os.environ:
        return _as_rank(request, world, listener, replan, began)
    return run_with_restarts(request, listener, replan, _Host(request.ranks, began))


def started_again() -> bool:
    """Whether torchrun or Slurm started this run before, and starts it again."""
    return any(int(os.environ.get(name) or 0) > 0 for name in AGAIN)


class _Host(Starter):
    """Processes of this host, each with a chip of its own."""

    def __init__(self, chips: int, began: float) -> None:
        self.chips, self.began = tuple(range(chips)), began

    def attempt(self, request: Request, listener: Listener) -> Any:
        return Workers(request, self.chips[: request.ranks], self.began).run(listener)

    def left_without(self, gone: tuple[int, ...]) -> int:
        self.chips = tuple(chip for rank, chip in enumerate(self.chips) if rank not in gone)
        return len(self.chips)


def _as_rank(request: Request, world: World, listener: Listener, replan: Replan | None, began: float) -> Any:
    """Take part as the rank that torchrun or Slurm made this process."""
    ranks, notes = request.ranks, []
    if world.ranks != ranks and not request.options.elastic:
        dp, remainder = divmod(world.ranks * request.scenario.plan.mesh.dp, ranks)
        able = not remainder and request.train.sequences % (dp * request.scenario.plan.microbatch) == 0
        todo = f"start {ranks} processes" + (f", or use dp = {dp}" if able else "")
        given_text = f"{world.ranks} processes"
        raise InputError(Problem(path="torchrun", given=given_text, expected=f"the plan's {ranks} ranks", todo=todo))
    if world.ranks != ranks:
        request = fit_request(request, world.ranks, replan)
        notes = [f"{world.ranks} of {ranks} ranks are here; went on with {describe_plan(request.scenario)}"]
        if world.rank >= request.ranks:
            return None  # the plan leaves it out
        world = replace(world, ranks=request.ranks)
    os.environ.update(dict(world.environment), WORLD_SIZE=str(world.ranks))
    for note in notes if world.rank == 0 else ():
        listener.note(note)
    try:
        with _interruptible() as stop:
            outcome = work(request, world, listener, stop, began)
    except (InputError, KeyboardInterrupt):
        raise
    except Exception as wrong:
        raise WorkerLost(world.rank, reason(wrong), traceback.format_exc()) from wrong
    if world.rank != 0:
        return None
    return replace(outcome, notes=(*notes, *outcome.notes)) if isinstance(outcome, RunOutcome) else outcome


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C, and the signal with which torchrun and Slurm end a process, stop the run behind its step."""
    stop_event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop_event.is_set
        return
    before = {which: signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)}

    def ask(*_: object) -> None:
        if stop_event.is_set():
            raise KeyboardInterrupt
        stop_event.set()

    for which in before:
        signal.signal(which, ask)
    try:
        yield stop_event.is_set
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
