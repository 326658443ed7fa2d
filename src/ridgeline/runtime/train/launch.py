"""Start the workers of a run on this host, or join those that torchrun or Slurm started; tell what they tell.

The parent never imports torch: a run of two processes waits for one import, not two. Workers report through pipes:

    step      a StepRow, from rank 0                done      the outcome, from rank 0
    refused   the problems of bad input             failed    why, with the stack where it happened

A worker that is lost takes the others down; they are started again from the last checkpoint as often as was allowed.
An interrupt lets all ranks finish their step and write a checkpoint; a second one ends them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.runtime.probe.ranks import World, find_world
from ridgeline.runtime.train.request import Request, RunOutcome, StepRow, WorkerLost

Told = Callable[[StepRow], None]
LAST_WORDS = 5.0  # seconds in which ranks that saw another one fail may say so


def execute(request: Request, tell: Told) -> Any:
    """The outcome of a run, or the Verification of a plan; None at ranks other than 0 under torchrun."""
    world, began = find_world(), time.monotonic()
    ranks = request.scenario.plan.mesh.ranks
    if world.ranks > 1:
        if world.ranks != ranks:
            todo = f"start {ranks} processes, or use dp = {world.ranks * request.scenario.plan.mesh.dp // ranks}"
            given = f"{world.ranks} processes"
            raise InputError(Problem(path="torchrun", given=given, expected=f"the plan's {ranks} ranks", todo=todo))
        os.environ.update(dict(world.environment))
        return _work(request, world, tell, lambda: False, began)
    lost = 0
    while True:
        try:
            found = _Workers(request, ranks, began).run(tell)
        except WorkerLost:
            lost += 1
            if lost > request.options.restarts:
                raise
            request = replace(request, options=replace(request.options, resume=True))
            continue
        return replace(found, restarts=lost) if isinstance(found, RunOutcome) else found


def _work(request: Request, world: World, tell: Told, stop: Callable[[], bool], began: float) -> Any:
    """What a rank does, in whatever process."""
    import torch

    from ridgeline.runtime.train.loop import compare, train

    if request.options.device == "cpu":
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # a chip of the system `cpu` is one core
    if request.options.verify:
        return compare(request, world)
    return train(request, world, tell, stop, began)


def _worker(request: Request, rank: int, ranks: int, port: int, pipe: Connection, began: float) -> None:
    """The main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent asks for the end of a run
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # AMX that is advertised and traps ends the process
    own = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in own.items()}, MASTER_ADDR="127.0.0.1")

    def stop() -> bool:
        return pipe.poll()

    try:
        found = _work(request, find_world(), lambda row: pipe.send(("step", row)), stop, began)
    except InputError as wrong:
        pipe.send(("refused", wrong.problems or (Problem(path="", given=str(wrong), expected=""),)))
    except BaseException as wrong:
        with contextlib.suppress(OSError):
            pipe.send(("failed", (_reason(wrong), traceback.format_exc())))
        os._exit(1)  # not through destructors that wait for ranks which are gone
    else:
        pipe.send(("done", found))


def _reason(wrong: BaseException) -> str:
    """The error in a line, with the operation it happened in."""
    frames = traceback.extract_tb(wrong.__traceback__)
    ours = [frame for frame in frames if "ridgeline" in frame.filename]
    where = f" in {ours[-1].name} ({os.path.basename(ours[-1].filename)}:{ours[-1].lineno})" if ours else ""
    below = f", {frames[-1].name}" if frames and "ridgeline" not in frames[-1].filename else ""
    first = (str(wrong).strip().splitlines() or [""])[0][:300]
    return f"{type(wrong).__name__}: {first}{where}{below}"


class _Workers:
    """The processes of one attempt."""

    def __init__(self, request: Request, ranks: int, began: float) -> None:
        context = multiprocessing.get_context("spawn")
        port = _free_port()
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        for rank in range(ranks):
            here, there = context.Pipe()
            arguments = (request, rank, ranks, port, there, began)
            process = context.Process(target=_worker, args=arguments, daemon=True, name=f"ridgeline rank {rank}")
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)
        self.answer: Any = None
        self.failures: list[WorkerLost] = []
        self.interrupted = False

    def run(self, tell: Told) -> Any:
        """Listen until all have ended; the answer of rank 0, or the first failure."""
        try:
            while any(process.is_alive() for process in self.processes) and not self.failures:
                try:
                    self._listen(tell)
                except KeyboardInterrupt:
                    if self.interrupted:
                        raise
                    self.interrupted = True
                    for pipe in self.pipes:
                        with contextlib.suppress(OSError):
                            pipe.send("stop")
            self._drain(tell)
        finally:
            self._end()
        if self.failures:
            raise min(self.failures, key=_telling)
        return self.answer

    def _listen(self, tell: Told) -> None:
        """What the workers say next, or the end of one."""
        open_pipes = {pipe: rank for rank, pipe in enumerate(self.pipes) if not pipe.closed}
        sentinels = [process.sentinel for process in self.processes if process.is_alive()]
        for ready in wait([*open_pipes, *sentinels], timeout=1.0):
            if isinstance(ready, Connection):
                self._hear(open_pipes[ready], tell)
        known = {failure.rank for failure in self.failures}
        for rank, process in enumerate(self.processes):
            unheard = not self.pipes[rank].closed and self.pipes[rank].poll()
            if process.exitcode not in (None, 0) and not unheard and rank not in known:
                self.failures.append(WorkerLost(rank, _ended(process.exitcode)))

    def _hear(self, rank: int, tell: Told) -> None:
        pipe = self.pipes[rank]
        try:
            kind, value = pipe.recv()
        except (EOFError, OSError):
            pipe.close()  # its exit code says why
            return
        if kind == "step":
            tell(value)
        elif kind == "done":
            self.answer = value if rank == 0 else self.answer
        elif kind == "refused":
            raise InputError(value)
        else:
            self.failures.append(WorkerLost(rank, *value))

    def _drain(self, tell: Told) -> None:
        """What was said and not heard; after a failure the others have a moment for theirs."""
        explained = all(failure.stack for failure in self.failures)  # who was killed says all there is to say
        until = time.monotonic() + (LAST_WORDS if self.failures and explained else 0.0)
        while True:
            ready = [pipe for pipe in self.pipes if not pipe.closed and pipe.poll()]
            for pipe in ready:
                self._hear(self.pipes.index(pipe), tell)
            alive = any(process.is_alive() for process in self.processes)
            if not ready and (not alive or time.monotonic() > until):
                return
            if not ready:
                time.sleep(0.05)

    def _end(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.terminate()
        for process in self.processes:
            process.join(2.0)
            if process.is_alive():  # stopped, or deep in a kernel
                process.kill()
                process.join()
        for pipe in self.pipes:
            pipe.close()


def _telling(failure: WorkerLost) -> tuple[int, int]:
    """A worker that was killed explains the others; then whoever failed by itself rather than waiting for a peer."""
    waited = any(word in failure.why for word in ("onnection", "imed out", "DistBackendError", "DistNetworkError"))
    return (0 if not failure.stack else 2 if waited else 1, failure.rank)


def _ended(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"ended by signal {-code} ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
