"""Bring a model up on a device: probe the standing set, run a training step with every op judged, say what is wrong.

bringup(model, device)                       an architecture on a torch device
bringup(model, "ridge", fault=f)             the same on the fake device with a fault in it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field

import torch
from torch.utils._pytree import tree_map

from ridgeline.core.errors import InputError, Problem
from ridgeline.models.spec import ModelSpec
from ridgeline.runtime.bringup import ridge
from ridgeline.runtime.bringup.capture import Modules, Place, Watch, Wrong
from ridgeline.runtime.bringup.devices import environment, open_device
from ridgeline.runtime.bringup.faults import Fault
from ridgeline.runtime.bringup.inventory import Inventory
from ridgeline.runtime.bringup.judge import Verdict
from ridgeline.runtime.bringup.roofline import Rates
from ridgeline.runtime.bringup.speed import Speed
from ridgeline.runtime.bringup.standing import Call, standing_calls
from ridgeline.runtime.bringup.subject import Subject, subject_of
from ridgeline.runtime.bringup.survey import surveyed, timed_step, warned

FORMATS = ("fp32", "bf16")
PROBE = "standing set"


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
    inventory, speed    what the step asked of the device, and how fast it was: no part of the verdict
    environment         device, driver and software
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
    inventory: Inventory = Inventory()
    speed: Speed | None = None
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def unheard(line: str) -> None:
    """Nobody is told how far it is."""


def bringup(
    model: ModelSpec, device: str, *, fault: Fault | None = None, lacks: ridge.Lacks | None = None, seed: int = 0,
    rates: Rates | None = None, measure: bool = True, compiled: bool = False, tell: Callable[[str], None] = unheard,
) -> BringUp:  # fmt: skip
    """Judge every op of a training step of a model, and the standing set, on a device.

    lacks      kernels that the fake device does without
    rates      what is possible on the chip, for the speed of its ops; measure: whether they are timed
    compiled   look where dynamo would leave its graph
    """
    _open(device, fault)
    found = BringUp(model=model.id, device=device, environment=environment(device))
    wrong: list[Wrong] = []
    watches: list[Watch] = []
    with ExitStack() as stack:
        stack.enter_context(ridge.altered(fault) if fault is not None else nullcontext())
        stack.enter_context(ridge.lacking(lacks) if lacks is not None else nullcontext())
        with warned() as warnings:
            for format in FORMATS:
                tell(f"a training step in {format}")
                subject = subject_of(model, format, device, seed)
                watches.append(watch := _trained(subject))
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
            wrong += _probed(call, device)
        found.inventory = surveyed(model, device, watches, seed=seed, warned=warnings, compiled=compiled)
        if measure and fault is None:
            tell("how fast each op is")
            found.speed = timed_step(model, device, rates, seed)
    found.findings = tuple(_findings(wrong))
    found.fired = None if fault is None else fault.fired
    return found


def _open(device: str, fault: Fault | None) -> None:
    if fault is not None and device.partition(":")[0] != ridge.NAME:
        todo = f"use --device {ridge.NAME}"
        raise InputError(
            Problem(path="--faults", given=device, expected="the fake device, whose ops can be faulted", todo=todo)
        )
    open_device(device)


def _trained(subject: Subject) -> Watch:
    """One step, forward to optimizer, with every op judged."""
    modules = Modules()
    watch = Watch(modules)
    optimizer = torch.optim.AdamW(subject.module.parameters(), lr=1e-3, foreach=False)
    with ExitStack() as stack:
        stack.callback(modules.follow(subject.module))
        stack.enter_context(watch)
        modules.phase = "forward"
        loss = subject.loss(*subject.inputs)
        loss.backward()
        modules.phase = "optimizer"
        optimizer.step()
    return watch


def _probed(call: Call, device: str) -> list[Wrong]:
    """One call of the standing set on the device; an op that raises where the host's does not is wrong too."""
    args = tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, call.args)
    modules = Modules(phase=call.phase)
    watch = Watch(modules)
    modules.stack.append(f"{PROBE}: {call.why}")
    try:
        with watch:
            call.op(*args, **call.kwargs)
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        return [_raised(call, error)] if not isinstance(error, NotImplementedError) else []
    return watch.wrong


def _raised(call: Call, error: Exception) -> Wrong:
    return Wrong(
        op=str(call.op), place=Place(module=f"{PROBE}: {call.why}", phase=call.phase), dtype="",
        verdict=Verdict(right=False, statistic="raised", measured=1.0, limit=0.5), args=call.args, kwargs=call.kwargs,
        message=str(error).partition("\n")[0],
    )  # fmt: skip


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
