"""The processes that touch the device: one that only forks, and for each attempt one that runs ops and may die.

    stdin    jobs
    stdout   ("pid", n), ("tell", line), ("kept", at, position, BringUp, room), ("faults", names), ("refused", why),
             ("done",) where nothing is left, and last ("ended", exit code, or minus the signal)

The process that forks has imported torch and called nothing of it: a fork of it has neither threads nor a device yet.
"""

from __future__ import annotations

import os
import resource
import sys
import traceback
from pathlib import Path
from typing import BinaryIO

from ridgeline.core.errors import InputError
from ridgeline.runtime.bringup.faults import Fault, chosen, read_faults, read_lacks
from ridgeline.runtime.bringup.guard import Guard
from ridgeline.runtime.bringup.journal import Journal
from ridgeline.runtime.bringup.ridge import Lacks
from ridgeline.runtime.bringup.session import Session
from ridgeline.runtime.bringup.verdict import go_on
from ridgeline.runtime.bringup.wire import Job, put, take

BROKEN = 70  # exit code of an error that is nobody's op


def main() -> int:
    """Fork for every job until the pipe closes."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries and faults print must not be taken for an answer
    jobs = os.fdopen(os.dup(0), "rb")
    while (job := take(jobs)) is not None:
        child = os.fork()
        if child == 0:
            code = BROKEN
            try:
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                code = attempt(job, answers)
                put(answers, ("done",))
            except BaseException:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        put(answers, ("ended", os.waitstatus_to_exitcode(status)))
    return 0


def attempt(job: Job, answers: BinaryIO) -> int:
    """One job, in a process that may die of it."""
    put(answers, ("pid", os.getpid()))
    sys.path[:] = job.paths
    os.chdir(job.cwd)
    try:
        faults = read_faults(Path(job.faults)) if job.faults else {}
        if job.target is None:
            put(answers, ("faults", list(chosen(faults, job.fault))))
            return 0
        fault = None
        if faults:
            ((name, alter),) = chosen(faults, job.fault).items()
            fault = Fault(name, alter)
        run(job, fault, answers)
    except InputError as error:
        put(answers, ("refused", error.problems or str(error)))
    return 0


def run(job: Job, fault: Fault | None, answers: BinaryIO) -> None:
    """Every part that is left; what is known is sent as it comes."""
    assert job.target is not None
    assert job.found is not None
    session = Session(
        target=job.target, device=job.device, found=job.found, seed=job.seed, fault=fault, faults=job.faults,
        guard=Guard(journal=Journal(Path(job.journal)), healed=set(job.healed)), position=job.position,
        folder=Path(job.folder) if job.folder else None, room=job.room, personality=job.personality,
        tell=lambda line: put(answers, ("tell", line)), rates=job.rates, graph_breaks=job.graph_breaks,
        lacks=read_lacks(Path(job.faults)) if job.faults else Lacks(),
    )  # fmt: skip

    def checkpoint(at: int) -> None:
        put(answers, ("kept", at, session.position, session.found, session.room))

    go_on(session, job.at, checkpoint, job.only)
