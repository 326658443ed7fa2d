"""Bring a model up on a device: probe the standing set, run a training step with every op judged, say what is wrong.

bringup(model, device)                       an architecture on a torch device
bringup(model, "ridge", fault=f)             the same on the fake device with a fault in it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field

import torch

from ridgeline.core.errors import InputError, Problem
from ridgeline.models.spec import ModelSpec
from ridgeline.runtime.bringup import ridge
from ridgeline.runtime.bringup.capture import EndedError, Modules, Signature, Watch, Wrong
from ridgeline.runtime.bringup.faults import Fault
from ridgeline.runtime.bringup.probing import probe
from ridgeline.runtime.bringup.standing import standing_calls
from ridgeline.runtime.bringup.subject import Subject, subject_of

FORMATS = ("fp32", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An op that gave a wrong result or none at all.

    module, phase    where it was first wrong: in the model, or in the standing set (with what was hard about the input)
    statistic        what broke the contract, what it measured and its limit; `raised` where there was no result
    times            how many calls were wrong
    """

    op: str
    module: str
    phase: str
    dtype: str
    statistic: str
    measured: float
    limit: float
    times: int = 1
    message: str = ""


@dataclass(slots=True, kw_only=True)
class BringUp:
    """What became of it: `findings` are wrong results and ops that raise; empty where the device computes right.

    ops        distinct ops of the training steps, with how often they were called
    unjudged   ops that the host cannot compute and no contract describes, with how often they were called
    probed     calls of the standing set that were judged
    fired      how often the fault answered, where one was given
    """

    model: str
    device: str
    findings: tuple[Finding, ...] = ()
    ops: dict[str, int] = field(default_factory=dict)
    signatures: int = 0
    unjudged: dict[str, int] = field(default_factory=dict)
    probed: int = 0
    cut: tuple[str, ...] = ()
    fired: int | None = None

    @property
    def right(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def unheard(line: str) -> None:
    """Nobody is told how far it is."""


def bringup(
    model: ModelSpec, device: str, *, fault: Fault | None = None, seed: int = 0, sound: set[Signature] | None = None,
    tell: Callable[[str], None] = unheard,
) -> BringUp:  # fmt: skip
    """Judge every op of a training step of a model, and the standing set, on a device.

    sound    signatures whose host kernel was judged before: handed on from one fault to the next
    """
    _open(device, fault)
    found = BringUp(model=model.id, device=device)
    wrong: list[Wrong] = []
    with ridge.altered(fault) if fault is not None else nullcontext():
        for format in FORMATS:
            tell(f"a training step in {format}")
            subject = subject_of(model, format, device, seed)
            watch = _trained(subject, sound)
            found.cut = subject.cut
            found.signatures += len(watch.calls)
            for called in watch.calls.values():
                found.ops[called.op] = found.ops.get(called.op, 0) + called.count
            for op, times in watch.unjudged.items():
                found.unjudged[op] = found.unjudged.get(op, 0) + times
            wrong += watch.wrong
        tell("the standing set")
        for call in standing_calls(seed, device):
            found.probed += 1
            wrong += probe(call, device, sound=sound)
    found.findings = tuple(_findings(wrong))
    found.fired = None if fault is None else fault.fired
    return found


def _open(device: str, fault: Fault | None) -> None:
    kind = device.partition(":")[0]
    if kind == ridge.NAME:
        ridge.register()
        return
    if fault is not None:
        todo = f"use --device {ridge.NAME}"
        raise InputError(
            Problem(path="--faults", given=device, expected="the fake device, whose ops can be faulted", todo=todo)
        )
    module = getattr(torch, kind, None)
    if kind != "cpu" and (module is None or not hasattr(module, "is_available") or not module.is_available()):
        expected = f"a device that torch {torch.__version__} finds here: cpu or {ridge.NAME}"
        raise InputError(
            Problem(path="--device", given=device, expected=expected, todo="install its backend, or name another")
        )


def _trained(subject: Subject, sound: set[Signature] | None) -> Watch:
    """One step, forward to optimizer, with every op judged; it ends early where an op raises that the host's does too."""
    modules = Modules()
    watch = Watch(modules, sound=sound)
    optimizer = torch.optim.AdamW(subject.module.parameters(), lr=1e-3, foreach=False)
    with ExitStack() as stack:
        stack.callback(modules.follow(subject.module))
        stack.enter_context(suppress(EndedError))
        stack.enter_context(watch)
        modules.phase = "forward"
        loss = subject.loss(*subject.inputs)
        loss.backward()
        modules.phase = "optimizer"
        optimizer.step()
    return watch


def _findings(wrong: list[Wrong]) -> Iterator[Finding]:
    """One for each op and format: the first place in the model, before any of the standing set."""
    first: dict[tuple[str, str], Wrong] = {}
    times: dict[tuple[str, str], int] = {}
    for one in wrong:
        key = one.op, one.dtype
        first.setdefault(key, one)
        times[key] = times.get(key, 0) + 1
    for key, one in first.items():
        yield Finding(
            op=one.op, module=one.place.module, phase=one.place.phase, dtype=one.dtype, statistic=one.verdict.statistic,
            measured=one.verdict.measured, limit=one.verdict.limit, times=times[key], message=one.message,
        )  # fmt: skip
