"""Find or start the ranks of a run: workers of this host, those of torchrun or Slurm, or a Ray cluster's.

    torchrun, Slurm   this process is a rank already: the environment says which, and where the others are
    ray               Ray Train starts the ranks on the nodes of a cluster (`ray_cluster`)
    otherwise         a process for each rank of the plan, here; they report through pipes, and none but they have torch

A worker that is lost takes the others down, and all are started again from the last checkpoint as often as was allowed.
In an elastic run, ranks that are lost for good leave it: whoever knows how to plan hands in the best scenario for those
that are left, and the run goes on, resharded; so it does when torchrun or Slurm start fewer (or more) processes than
the plan has ranks. An interrupt lets all ranks finish their step and write a checkpoint; a second one ends them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Protocol

from ridgeline.core.errors import InputError, Problem
from ridgeline.plan.scenario import Scenario
from ridgeline.runtime.probe.ranks import World, find_world
from ridgeline.runtime.train.request import Listener, RunOutcome, RunRequest, RunResult, WorkerLost


def work(request: RunRequest, world: World, listener: Listener, stop: Callable[[], bool], began: float) -> RunResult:
    """Train or verify as this rank: its RunOutcome, or a Verification at rank 0.

    stop    asked behind every step: whether all ranks should end in order
    began   when the run was asked for, on the monotonic clock
    """
    import torch

    from ridgeline.runtime.train.loop import compare, train

    if request.options.device == "cpu":
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # a chip of the system `cpu` is one core
    if request.options.verify:
        return compare(request, world)
    return train(request, world, listener, stop, began)


def problems_of(wrong: InputError) -> tuple[Problem, ...]:
    """What is wrong with the input, as values that another process raises again."""
    return wrong.problems or (Problem(path="", given=str(wrong), expected=""),)


def reason(wrong: BaseException) -> str:
    """The error in a line, with the operation it happened in."""
    frames = traceback.extract_tb(wrong.__traceback__)
    ours = [frame for frame in frames if "ridgeline" in frame.filename]
    where = f" in {ours[-1].name} ({os.path.basename(ours[-1].filename)}:{ours[-1].lineno})" if ours else ""
    below = f", {frames[-1].name}" if frames and "ridgeline" not in frames[-1].filename else ""
    first = (str(wrong).strip().splitlines() or [""])[0][:300]
    return f"{type(wrong).__name__}: {first}{where}{below}"


Replan = Callable[[int], Scenario | None]
"""The best scenario for at most so many ranks, from whoever may plan; None where nothing fits."""


class Starter(Protocol):
    """Who can start the ranks of a request, and knows how many more it could."""

    def attempt(self, request: RunRequest, listener: Listener) -> RunResult:
        """Run until the end, or until a worker is lost."""

    def left_without(self, gone: tuple[int, ...]) -> int:
        """How many ranks can be started when these of the last attempt are lost for good."""


def run_with_restarts(request: RunRequest, listener: Listener, replan: Replan | None, starter: Starter) -> RunResult:
    """Attempts until one ends: on all ranks as often as `restarts` says, then, if elastic, on those that are left."""
    lost, notes = 0, []
    while True:
        try:
            outcome = starter.attempt(request, listener)
        except WorkerLost as failure:
            lost += 1
            if lost > request.options.restarts:
                is_elastic = request.options.elastic and failure.gone
                remaining = starter.left_without(failure.gone) if is_elastic else 0
                if not remaining:
                    raise
                request = fit_request(request, remaining, replan)
                notes.append(f"{failure.args[0].splitlines()[0]}; went on with {describe_plan(request.scenario)}")
                listener.note(notes[-1])
            request = replace(request, options=replace(request.options, resume=True))
            continue
        if isinstance(outcome, RunOutcome):
            return replace(outcome, restarts=lost, notes=(*notes, *outcome.notes))
        return outcome


def fit_request(request: RunRequest, ranks: int, replan: Replan | None) -> RunRequest:
    best = replan(ranks) if replan is not None else None
    if best is None:
        todo = "free memory with recompute or offload, or wait for the lost ranks"
        raise InputError(
            Problem(path="--elastic", given=f"{ranks} ranks left", expected="a plan that fits on them", todo=todo)
        )
    return replace(request, scenario=best)


def describe_plan(scenario: Scenario) -> str:
    """A plan in a few words: its axes that split anything.

    >>> import ridgeline
    >>> describe_plan(ridgeline.scenario({"model": "llama3-8b", "system": "2xcpu", "plan": {"tp": 2},
    ...     "workload": {"seq": 128, "global_batch": 4}}))
    'tp 2 on 2 rank(s)'
    """
    mesh = scenario.plan.mesh
    axes = [f"{name} {size}" for name in ("pp", "dp", "cp", "tp") if (size := getattr(mesh, name)) > 1]
    if scenario.plan.sharding.shard != "none":
        axes.append(scenario.plan.sharding.shard)
    return f"{', '.join(axes) or 'no parallelism'} on {mesh.ranks} rank(s)"


LAST_WORDS = 5.0  # seconds in which ranks that saw another one fail may say so
WAITED = ("onnection", "imed out", "DistBackendError", "DistNetworkError")  # in errors of ranks that waited for a peer


def enter_rank(rank: int, ranks: int, chip: int, port: int) -> None:
    """Make this process a rank of this host, as torchrun would by its environment; the parent asks for its end."""
    for which in (signal.SIGINT, signal.SIGTERM):  # both reach a whole group of processes
        signal.signal(which, signal.SIG_IGN)
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # AMX that is advertised and traps ends the process
    variables = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": chip, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in variables.items()}, MASTER_ADDR="127.0.0.1")


def _worker(request: RunRequest, place: tuple[int, int, int], port: int, pipe: Connection, began: float) -> None:
    """The main function of a worker process; `place` is its rank, the number of ranks, and the chip it takes."""
    rank, ranks, chip = place
    enter_rank(rank, ranks, chip, port)
    listener = Listener.sending(lambda kind, value: pipe.send((kind, value)))
    try:
        outcome = work(request, find_world(), listener, pipe.poll, began)
    except InputError as wrong:
        pipe.send(("refused", problems_of(wrong)))
    except BaseException as wrong:
        with contextlib.suppress(OSError):
            pipe.send(("failed", (reason(wrong), traceback.format_exc())))
        os._exit(1)  # not through destructors that wait for ranks which are gone
    else:
        pipe.send(("done", outcome if rank == 0 else None))


class Workers:
    """The processes of one attempt."""

    def __init__(self, request: RunRequest, chips: tuple[int, ...], began: float) -> None:
        """Start a process for each rank; rank r takes the chip of that index of the host."""
        context = multiprocessing.get_context("spawn")
        port = free_port()
        self.pipes: list[Connection] = []
        self.processes: list[SpawnProcess] = []
        for rank, chip in enumerate(chips):
            here, there = context.Pipe()
            arguments = (request, (rank, len(chips), chip), port, there, began)
            process = context.Process(target=_worker, args=arguments, daemon=True, name=f"ridgeline rank {rank}")
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)
        self.answer: RunResult = None
        self.failures: list[WorkerLost] = []
        self.interrupted = False

    def run(self, listener: Listener) -> RunResult:
        """Listen until all have ended; the answer of rank 0, or the first failure."""
        silent: tuple[int, ...] = ()
        try:
            while any(process.is_alive() for process in self.processes) and not self.failures:
                try:
                    self._listen(listener)
                except KeyboardInterrupt:
                    if self.interrupted:
                        raise
                    self.interrupted = True
                    for pipe in self.pipes:
                        with contextlib.suppress(OSError):
                            pipe.send("stop")
            self._drain(listener)
            self._notice_ends()
            silent = self._silent()
        finally:
            self._end()
        if self.failures:
            raise self._lost(silent)
        return self.answer

    def _silent(self) -> tuple[int, ...]:
        """Ranks that still run although another gave up waiting, and have said nothing: they hang."""
        if not any("imed out" in failure.why for failure in self.failures):
            return ()
        spoke = {failure.rank for failure in self.failures}
        return tuple(rank for rank, process in enumerate(self.processes) if process.is_alive() and rank not in spoke)

    def _lost(self, silent: tuple[int, ...]) -> WorkerLost:
        """The failure that explains the others, with the ranks that are gone: killed, or hanging."""
        first = min(self.failures, key=_telling)
        gone = tuple(sorted(failure.rank for failure in self.failures if not failure.stack)) or silent
        hint = f"; rank {', '.join(map(str, silent))} did not answer" if silent else ""
        return WorkerLost(first.rank, first.why + hint, first.stack, gone)

    def _listen(self, listener: Listener) -> None:
        """What the workers say next, or the end of one."""
        open_pipes = {pipe: rank for rank, pipe in enumerate(self.pipes) if not pipe.closed}
        sentinels = [process.sentinel for process in self.processes if process.is_alive()]
        for ready in wait([*open_pipes, *sentinels], timeout=1.0):
            if isinstance(ready, Connection):
                self._hear(open_pipes[ready], listener)
        self._notice_ends()

    def _notice_ends(self) -> None:
        """Workers that ended without a word."""
        failed_ranks = {failure.rank for failure in self.failures}
        for rank, process in enumerate(self.processes):
            unheard = not self.pipes[rank].closed and self.pipes[rank].poll()
            if process.exitcode not in (None, 0) and not unheard and rank not in failed_ranks:
                self.failures.append(WorkerLost(rank, exit_text(process.exitcode)))

    def _hear(self, rank: int, listener: Listener) -> None:
        pipe = self.pipes[rank]
        try:
            kind, value = pipe.recv()
        except (EOFError, OSError):
            pipe.close()  # its exit code says why
            return
        match kind:
            case "step" | "note":
                listener.hear(kind, value)
            case "done":
                self.answer = value if rank == 0 else self.answer
            case "refused":
                raise InputError(value)
            case _:
                self.failures.append(WorkerLost(rank, *value))

    def _drain(self, listener: Listener) -> None:
        """What was said and not heard; after a failure the others have a moment for theirs."""
        is_explained = all(failure.stack for failure in self.failures)  # who was killed says all there is to say
        until = time.monotonic() + (LAST_WORDS if self.failures and is_explained else 0.0)
        while True:
            ready = [pipe for pipe in self.pipes if not pipe.closed and pipe.poll()]
            for pipe in ready:
                self._hear(self.pipes.index(pipe), listener)
            alive = any(process.is_alive() for process in self.processes)
            if not ready and (not alive or time.monotonic() > until):
                return
            if not ready:
                time.sleep(0.05)

    def _end(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()
        for process in self.processes:
            process.join()
        for pipe in self.pipes:
            pipe.close()


def _telling(failure: WorkerLost) -> tuple[int, int]:
    """A worker that was killed explains the others; then whoever failed by itself rather than waiting for a peer."""
    was_waiting = any(word in failure.why for word in WAITED)
    return (0 if not failure.stack else 2 if was_waiting else 1, failure.rank)


def exit_text(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"ended by signal {-code} ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


AGENT = "TORCHELASTIC_RUN_ID"  # in the environment of every process that torchrun started
AGAIN = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")  # how often torchrun or Slurm started the run before


def execute(request: RunRequest, listener: Listener, replan: Replan | None = None) -> RunResult:
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

    def attempt(self, request: RunRequest, listener: Listener) -> RunResult:
        with _termination_interrupts():
            return Workers(request, self.chips[: request.ranks], self.began).run(listener)

    def left_without(self, gone: tuple[int, ...]) -> int:
        self.chips = tuple(chip for rank, chip in enumerate(self.chips) if rank not in gone)
        return len(self.chips)


def _as_rank(request: RunRequest, world: World, listener: Listener, replan: Replan | None, began: float) -> RunResult:
    """Take part as the rank that torchrun or Slurm made this process."""
    ranks, notes = request.ranks, list[str]()
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
        with interruptible() as stop:
            outcome = work(request, world, listener, stop, began)
    except (InputError, KeyboardInterrupt):
        raise
    except Exception as wrong:
        raise WorkerLost(world.rank, reason(wrong), traceback.format_exc()) from wrong
    if world.rank != 0:
        return None
    return replace(outcome, notes=(*notes, *outcome.notes)) if isinstance(outcome, RunOutcome) else outcome


@contextmanager
def _termination_interrupts() -> Iterator[None]:
    """SIGTERM, with which schedulers of containers end a process, is an interrupt: the run ends behind its step."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
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
