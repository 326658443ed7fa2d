"""Bring a model up on a device: steps with every op judged, the op suite, the ladder, invariances, repeated runs.

    bringup(model, device)           an architecture, or a torch module, on a torch device, in this process
    bringup(model, "ridge", fault=f) the same on the fake device with a fault in it
    run_parts(session, at, kept)     the same from a part on, as a process that may die runs it
    main()                           a process that only forks, and for each attempt one that runs ops and may die:
        stdin    jobs
        stdout   ("pid", n, parts), ("tell", line), ("kept", at, position, BringUp, room), ("faults", names),
                 ("refused", why), ("done",) where nothing is left, and last ("ended", exit code, or minus the signal)

The process that forks has imported torch and called nothing of it: a fork of it has neither threads nor a device yet.
"""

from __future__ import annotations

import os
import resource
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import BinaryIO

from ridgeline.core.errors import InputError
from ridgeline.runtime.bringup import fake_device
from ridgeline.runtime.bringup.arithmetic import error_text
from ridgeline.runtime.bringup.capture import PROBE, Modules, Watch, hard_variants, probe
from ridgeline.runtime.bringup.devices import fingerprint, open_device, unit_of
from ridgeline.runtime.bringup.fake_device import Lacks
from ridgeline.runtime.bringup.faults import PERSONALITIES, Fault, choose_faults, read_faults, read_lacks
from ridgeline.runtime.bringup.findings import BringUp, Fingerprint, OpFinding, unheard
from ridgeline.runtime.bringup.guard import Guard, OpJournal
from ridgeline.runtime.bringup.invariances import check_invariances
from ridgeline.runtime.bringup.inventory import add_inventory, collect_warnings, look_around, step_under, time_ops
from ridgeline.runtime.bringup.ladder import repeat_runs, run_rungs
from ridgeline.runtime.bringup.op_calls import OpCall
from ridgeline.runtime.bringup.op_suite import suite_calls
from ridgeline.runtime.bringup.repro import Session
from ridgeline.runtime.bringup.subject import subject_of
from ridgeline.runtime.bringup.supervise import AttemptJob, put, take
from ridgeline.runtime.bringup.target import Target

FORMATS = ("fp32", "bf16")
KEEP_EVERY = 40  # calls of the standing set after which what is known is kept

Part = Callable[[Session], None]


def bringup(
    model: Target, device: str, *, fault: Fault | None = None, seed: int = 0, tell: Callable[[str], None] = unheard,
    stored: Fingerprint | None = None,
) -> BringUp:  # fmt: skip
    """Judge every op of a training step of a model, and the standing set, on a device, in this process."""
    bring_up = BringUp(model=model.id, device=device, stored=stored)
    return run_parts(Session(target=model, device=device, found=bring_up, seed=seed, fault=fault, tell=tell))


def run_parts(
    session: Session, at: int = 0, kept: Callable[[int], None] = unheard, only: tuple[str, ...] = ()
) -> BringUp:
    """Run every part from one on; `kept` hears how many parts are behind it whenever something is known."""
    open_device(session.device, faulted=session.fault is not None)
    session.guard.saw = session.saw
    session.guard.samples = {}
    fired_before = session.found.fired or 0
    as_other = fake_device.alter_results(PERSONALITIES[session.personality]) if session.personality else nullcontext()
    alteration = fake_device.alter_results(session.fault) if session.fault is not None else nullcontext()
    with as_other, alteration, fake_device.lacking(session.lacks):
        for index, (kind, name, part) in enumerate(PARTS):
            if index < at or (only and kind not in only):
                continue

            def keep(index: int = index) -> None:
                if session.fault is not None:
                    session.found.fired = fired_before + session.fault.fired
                kept(index)

            session.kept = keep
            fingerprint_ = session.found.stored or session.found.fingerprint
            session.guard.unit = unit_of(fingerprint_, frozenset(session.found.allowed))
            try:
                part(session)
            except InputError:
                raise
            except Exception as error:
                session.found.not_run[name] = error_text(error)[:400]
            session.position = 0
            keep(index + 1)
    return session.found


def take_print(session: Session) -> None:
    """The fingerprint of the arithmetic unit."""
    session.tell("the fingerprint of its arithmetic")
    session.found.fingerprint = fingerprint(session.device)


def step(session: Session, format: str) -> None:
    """A training step in one format, forward to optimizer, with every op judged."""
    session.tell(f"a training step in {format}")
    subject = subject_of(session.target, format, session.device, session.seed)
    watch = Watch(Modules(), session.guard, subject.times)
    messages: list[str] = []
    try:
        with collect_warnings() as messages:
            step_under(watch, watch.modules, subject)
    finally:
        session.found.cut = subject.cut
        _add_calls(session, watch)
        add_inventory(session, watch, messages)


def generation(session: Session, format: str) -> None:
    """Prefill, decode steps and sampling in one format, with every op judged."""
    subject = subject_of(session.target, format, session.device, session.seed)
    if subject.generate is None:
        session.found.not_run[f"generation in {format}"] = "the module has no method generate"
        return
    session.tell(f"generation in {format}")
    watch = Watch(Modules(phase="generation"), session.guard, subject.times)
    try:
        with ExitStack() as stack:
            stack.callback(watch.modules.follow(subject.module))
            stack.enter_context(watch)
            subject.generate(watch.modules.inside)
    finally:
        _add_calls(session, watch)
        add_inventory(session, watch)


def standing(session: Session) -> None:
    """Every call of the standing set."""
    session.tell("the standing set")
    _probe_calls(session, suite_calls(session.seed, session.device), f"{PROBE}: ")


def capture_ops(session: Session) -> None:
    """Hard variants of every op and format that the steps and the generation called."""
    session.tell("hard variants of captured calls")
    samples, session.guard.samples = session.guard.samples or {}, None
    _probe_calls(session, hard_variants(samples), "")


def _probe_calls(session: Session, calls: Iterable[OpCall], within: str) -> None:
    for index, call in enumerate(calls):
        if index < session.position:
            continue
        watch = probe(call, session.device, session.guard, within)
        session.note(watch.wrong)
        for op, times in watch.missing.items():
            session.found.missing[op] = session.found.missing.get(op, 0) + times
        session.found.probed += 1
        session.position = index + 1
        if session.position % KEEP_EVERY == 0:
            session.kept()


def ladder(session: Session, format: str) -> None:
    """Module, two layers, whole model, logits, training, resume."""
    session.tell(f"the ladder in {format}")
    session.found.ladder = (*session.found.ladder, *run_rungs(session, format))


def invariances(session: Session, format: str) -> None:
    """Batch, padding, causal, rotary, microbatch, recompute, compiled, decode, parallel."""
    session.tell(f"invariances in {format}")
    session.found.invariances = (*session.found.invariances, *check_invariances(session, format))


def determinism(session: Session) -> None:
    """The same step some times."""
    session.tell("the same step again")
    session.found.determinism = repeat_runs(session)


PARTS: tuple[tuple[str, str, Part], ...] = (
    ("fingerprint", "the fingerprint", take_print),
    *(("steps", f"a training step in {format}", partial(step, format=format)) for format in FORMATS),
    *(("generation", f"generation in {format}", partial(generation, format=format)) for format in FORMATS),
    ("captured", "hard variants", capture_ops),
    ("standing", PROBE, standing),
    *(("ladder", f"the ladder in {format}", partial(ladder, format=format)) for format in FORMATS),
    *(("invariances", f"invariances in {format}", partial(invariances, format=format)) for format in FORMATS),
    ("determinism", "determinism", determinism),
    ("inventory", "the inventory", look_around),
    ("speed", "the speed of ops", time_ops),
)


def _add_calls(session: Session, watch: Watch) -> None:
    """What a watch saw, into the run's account."""
    bring_up = session.found
    bring_up.signatures += len(watch.calls)
    for call in watch.calls.values():
        bring_up.ops[call.op] = bring_up.ops.get(call.op, 0) + call.count
    for counts, observed_counts in ((bring_up.unjudged, watch.unjudged), (bring_up.missing, watch.missing)):
        for op, times in observed_counts.items():
            counts[op] = counts.get(op, 0) + times
    session.note(watch.wrong)
    for call in watch.calls.values():
        if call.op in watch.missing:  # the model does not run there without the host's help
            bring_up.add(OpFinding(
                op=call.op, module=call.place.module, phase=call.place.phase, dtype=call.dtype, measured=1.0,
                limit=0.5, statistic="missing", times=call.count, message="the device has no kernel for it",
            ))  # fmt: skip


__all__ = ["PARTS", "BringUp", "Guard", "OpFinding", "bringup", "run_parts", "unheard"]


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


def attempt(job: AttemptJob, answers: BinaryIO) -> int:
    """One job, in a process that may die of it."""
    put(answers, ("pid", os.getpid(), len(PARTS)))
    sys.path[:] = job.paths
    os.chdir(job.cwd)
    try:
        faults = read_faults(Path(job.faults)) if job.faults else {}
        if job.target is None:
            put(answers, ("faults", list(choose_faults(faults, job.fault))))
            return 0
        fault = None
        if faults:
            ((name, alter),) = choose_faults(faults, job.fault).items()
            fault = Fault(name, alter)
        run(job, fault, answers)
    except InputError as error:
        put(answers, ("refused", error.problems or str(error)))
    return 0


def run(job: AttemptJob, fault: Fault | None, answers: BinaryIO) -> None:
    """Every part that is left; what is known is sent as it comes."""
    assert job.target is not None
    assert job.found is not None
    session = Session(
        target=job.target, device=job.device, found=job.found, seed=job.seed, fault=fault, faults=job.faults,
        guard=Guard(journal=OpJournal(Path(job.journal)), healed=set(job.healed)), position=job.position,
        folder=Path(job.folder) if job.folder else None, room=job.room, personality=job.personality,
        tell=lambda line: put(answers, ("tell", line)), rates=job.rates, graph_breaks=job.graph_breaks,
        lacks=read_lacks(Path(job.faults)) if job.faults else Lacks(),
    )  # fmt: skip

    def checkpoint(at: int) -> None:
        put(answers, ("kept", at, session.position, session.found, session.room))

    run_parts(session, job.at, checkpoint, job.only)
