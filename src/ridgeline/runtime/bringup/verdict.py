"""Bring a model up on a device: steps with every op judged, the standing set, the ladder, invariances, repeated runs.

bringup(model, device)                       an architecture, or a torch module, on a torch device, in this process
bringup(model, "ridge", fault=f)             the same on the fake device with a fault in it
go_on(session, at, kept)                     the same from a part on, as a process that may die runs it
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial

import torch
from torch.utils._pytree import tree_map

from ridgeline.core.errors import InputError
from ridgeline.runtime.bringup import ridge
from ridgeline.runtime.bringup.capture import Modules, Watch, Wrong
from ridgeline.runtime.bringup.devices import open_device
from ridgeline.runtime.bringup.faults import Fault
from ridgeline.runtime.bringup.findings import BringUp, Finding, unheard
from ridgeline.runtime.bringup.guard import Guard
from ridgeline.runtime.bringup.session import Session
from ridgeline.runtime.bringup.standing import Call, standing_calls
from ridgeline.runtime.bringup.subject import Subject, subject_of
from ridgeline.runtime.bringup.target import Target

FORMATS = ("fp32", "bf16")
PROBE = "standing set"
KEEP_EVERY = 40  # calls of the standing set after which what is known is kept

Part = Callable[[Session], None]


def bringup(
    model: Target, device: str, *, fault: Fault | None = None, seed: int = 0, tell: Callable[[str], None] = unheard
) -> BringUp:
    """Judge every op of a training step of a model, and the standing set, on a device, in this process."""
    session = Session(
        target=model, device=device, found=BringUp(model=model.id, device=device), seed=seed, fault=fault, tell=tell
    )
    return go_on(session)


def unkept(at: int) -> None:
    """Nobody keeps what is known before the end."""


def go_on(session: Session, at: int = 0, kept: Callable[[int], None] = unkept, only: tuple[str, ...] = ()) -> BringUp:
    """Run every part from one on; `kept` hears how many parts are behind it whenever something is known."""
    open_device(session.device, faulted=session.fault is not None)
    session.guard.saw = session.saw
    fired = session.found.fired or 0
    with ridge.altered(session.fault) if session.fault is not None else nullcontext():
        for index, (kind, name, part) in enumerate(PARTS):
            if index < at or (only and kind not in only):
                continue

            def keep(index: int = index) -> None:
                if session.fault is not None:
                    session.found.fired = fired + session.fault.fired
                kept(index)

            session.kept = keep
            try:
                part(session)
            except InputError:
                raise
            except Exception as error:
                session.found.not_run[name] = f"{type(error).__name__}: {error}".partition("\n")[0][:400]
            session.position = 0
            keep(index + 1)
    return session.found


def step(session: Session, format: str) -> None:
    """A training step in one format, forward to optimizer, with every op judged."""
    session.tell(f"a training step in {format}")
    subject = subject_of(session.target, format, session.device, session.seed)
    watch = Watch(Modules(), session.guard, subject.times)
    try:
        _trained(subject, watch)
    finally:
        session.found.cut = subject.cut
        _took(session, watch)


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
        _took(session, watch)


def standing(session: Session) -> None:
    """Every call of the standing set."""
    session.tell("the standing set")
    for index, call in enumerate(standing_calls(session.seed, session.device)):
        if index < session.position:
            continue
        session.note(_probed(call, session))
        session.found.probed += 1
        session.position = index + 1
        if session.position % KEEP_EVERY == 0:
            session.kept()


PARTS: tuple[tuple[str, str, Part], ...] = (
    *(("steps", f"a training step in {format}", partial(step, format=format)) for format in FORMATS),
    *(("generation", f"generation in {format}", partial(generation, format=format)) for format in FORMATS),
    ("standing", PROBE, standing),
)


def _took(session: Session, watch: Watch) -> None:
    """What a watch saw, into the run's account."""
    found = session.found
    found.signatures += len(watch.calls)
    for called in watch.calls.values():
        found.ops[called.op] = found.ops.get(called.op, 0) + called.count
    for told, seen in ((found.unjudged, watch.unjudged), (found.missing, watch.missing)):
        for op, times in seen.items():
            told[op] = told.get(op, 0) + times
    session.note(watch.wrong)


def _trained(subject: Subject, watch: Watch) -> None:
    modules = watch.modules
    optimizer = torch.optim.AdamW(subject.module.parameters(), lr=1e-3, foreach=False)
    with ExitStack() as stack:
        stack.callback(modules.follow(subject.module))
        stack.enter_context(watch)
        modules.phase = "forward"
        outputs = subject.forward()
        modules.phase = "loss"
        loss = subject.loss(outputs)
        loss.backward()
        modules.phase = "optimizer"
        optimizer.step()


def _probed(call: Call, session: Session) -> list[Wrong]:
    """One call of the standing set on the device; an op that raises where the host's does not is wrong too."""
    args = tree_map(lambda x: x.to(session.device) if isinstance(x, torch.Tensor) else x, call.args)
    watch = Watch(Modules(phase=call.phase), session.guard)
    watch.modules.stack.append(f"{PROBE}: {call.why}")
    try:
        with watch:
            call.op(*args, **call.kwargs)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return []  # the host cannot either: not the device's fault
    for op, times in watch.missing.items():
        session.found.missing[op] = session.found.missing.get(op, 0) + times
    return watch.wrong


__all__ = ["PARTS", "BringUp", "Finding", "Guard", "bringup", "go_on", "unheard"]
