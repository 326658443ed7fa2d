"""The worker processes of one attempt on this host: started, listened to, ended.

The parent never imports torch: a run of two processes waits for one import, not two. Workers report through pipes:

    step      a StepRow, from rank 0                done      the outcome, from rank 0
    note      a line worth reading, from rank 0     refused   the problems of bad input
    failed    why, with the stack where it happened

A worker that is lost takes the others down. An interrupt lets all ranks finish their step and write a checkpoint; a
second one ends them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import time
import traceback
from multiprocessing.connection import Connection, wait
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.runtime.probe.ranks import find_world
from ridgeline.runtime.train.rank_work import reason, work
from ridgeline.runtime.train.request import Listener, Request, WorkerLost

LAST_WORDS = 5.0  # seconds in which ranks that saw another one fail may say so
WAITED = ("onnection", "imed out", "DistBackendError", "DistNetworkError")  # in errors of ranks that waited for a peer


def _worker(request: Request, place: tuple[int, int, int], port: int, pipe: Connection, began: float) -> None:
    """The main function of a worker process; `place` is its rank, the number of ranks, and the chip it takes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent asks for the end of a run
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # AMX that is advertised and traps ends the process
    rank, ranks, chip = place
    variables = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": chip, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in variables.items()}, MASTER_ADDR="127.0.0.1")
    listener = Listener(step=lambda row: pipe.send(("step", row)), note=lambda line: pipe.send(("note", line)))
    try:
        outcome = work(request, find_world(), listener, pipe.poll, began)
    except InputError as wrong:
        pipe.send(("refused", wrong.problems or (Problem(path="", given=str(wrong), expected=""),)))
    except BaseException as wrong:
        with contextlib.suppress(OSError):
            pipe.send(("failed", (reason(wrong), traceback.format_exc())))
        os._exit(1)  # not through destructors that wait for ranks which are gone
    else:
        pipe.send(("done", outcome if rank == 0 else None))


class Workers:
    """The processes of one attempt."""

    def __init__(self, request: Request, chips: tuple[int, ...], began: float) -> None:
        """Start a process for each rank; rank r takes the chip of that index of the host."""
        context = multiprocessing.get_context("spawn")
        port = free_port()
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        for rank, chip in enumerate(chips):
            here, there = context.Pipe()
            arguments = (request, (rank, len(chips), chip), port, there, began)
            process = context.Process(target=_worker, args=arguments, daemon=True, name=f"ridgeline rank {rank}")
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)
        self.answer: Any = None
        self.failures: list[WorkerLost] = []
        self.interrupted = False

    def run(self, listener: Listener) -> Any:
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
                self.failures.append(WorkerLost(rank, _exit_text(process.exitcode)))

    def _hear(self, rank: int, listener: Listener) -> None:
        pipe = self.pipes[rank]
        try:
            kind, value = pipe.recv()
        except (EOFError, OSError):
            pipe.close()  # its exit code says why
            return
        if kind == "step":
            listener.step(value)
        elif kind == "note":
            listener.note(value)
        elif kind == "done":
            self.answer = value if rank == 0 else self.answer
        elif kind == "refused":
            raise InputError(value)
        else:
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
    was_waiting = any(word in failure.why for word in WAITED)
    return (0 if not failure.stack else 2 if was_waiting else 1, failure.rank)


def _exit_text(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"ended by signal {-code} ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
