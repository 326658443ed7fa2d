"""Look around a device with a model: what its steps dispatch there, and how long each op takes. Parts of a run.

took(session, watch, warned)      what a watch saw, into the run's inventory
look_around(session)              the same step on the host beside it, formats, graph breaks
time_ops(session)                 a larger step, every op timed
warned()                          a context that collects what backends warn of
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch

from ridgeline.hardware.load import chip
from ridgeline.runtime.bringup import ridge
from ridgeline.runtime.bringup.capture import Modules, Place, Watch
from ridgeline.runtime.bringup.cut import one_of_each
from ridgeline.runtime.bringup.devices import environment, likely_chip
from ridgeline.runtime.bringup.inventory import (
    Recorder,
    decomposed_ops,
    graph_breaks,
    inventory_of,
    unsupported_formats,
)
from ridgeline.runtime.bringup.observations import Remark, join_inventories, rates_of, remarks
from ridgeline.runtime.bringup.session import Session
from ridgeline.runtime.bringup.speed import Timer, speed_of
from ridgeline.runtime.bringup.subject import Subject, stage_subject, subject_of
from ridgeline.runtime.bringup.target import OwnModule

TIMED_TOKENS = {"cpu": (1, 128), ridge.NAME: (1, 32)}  # the host is slow, and the fake device is the host
TIMED = (4, 2048)
TIMED_FORMAT = "bf16"


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """The texts of warnings that are given inside."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield messages
        finally:
            messages += [str(warning.message) for warning in caught]


def step_under(mode: Any, modules: Modules, subject: Subject) -> None:
    """A training step, forward to optimizer, under a mode that sees its ops."""
    optimizer = torch.optim.AdamW(subject.module.parameters(), lr=1e-3, foreach=False)
    with ExitStack() as stack:
        stack.callback(modules.follow(subject.module))
        stack.enter_context(mode)
        modules.phase = "forward"
        outputs = subject.forward()
        modules.phase = "loss"
        loss = subject.loss(outputs)
        loss.backward()
        modules.phase = "optimizer"
        optimizer.step()


def took(session: Session, watch: Watch, messages: Iterable[str] = ()) -> None:
    """What a watch saw, into the run's inventory."""
    session.found.inventory = join_inventories(session.found.inventory, inventory_of(watch, session.device, messages))


def look_around(session: Session) -> None:
    """What the device does otherwise than the host, and what it cannot do at all."""
    session.tell("what the device lacks")
    inventory = session.found.inventory
    session.found.environment = environment(session.device)
    split = decomposed_ops(inventory.rows, on_host(session)) if session.device.partition(":")[0] != "cpu" else ()
    absent = [
        Remark(op=op, module="standing set", phase="", calls=times)
        for op, times in session.found.missing.items()
        if all(op != remark.op for remark in inventory.missing)
        and "_for_cpu" not in op  # what only a host is asked for
    ]
    inventory = replace(inventory, missing=(*inventory.missing, *absent))
    inventory = replace(
        inventory, decomposed=remarks((*inventory.decomposed, *split)), unsupported=unsupported_formats(session.device)
    )
    if session.graph_breaks:
        subject = subject_of(session.target, "fp32", "cpu", session.seed)
        inventory = replace(inventory, graph_breaks=graph_breaks(subject.module, subject.inputs, subject.named))
    session.found.inventory = inventory


def on_host(session: Session) -> Mapping[Place, list[str]]:
    """The ops of the same step on the host, by place."""
    modules = Modules()
    recorder = Recorder(modules)
    step_under(recorder, modules, subject_of(session.target, "fp32", "cpu", session.seed))
    return recorder.ops


def time_ops(session: Session) -> None:
    """A step of one layer of each kind, every op timed; a device with a fault is not."""
    if session.fault is not None:
        return
    session.tell("how fast each op is")
    rates = session.rates
    likely = likely_chip(session.device) if rates is None else None
    if likely is not None:
        rates = rates_of(chip(likely))
    tokens = TIMED_TOKENS.get(session.device.partition(":")[0], TIMED)
    if isinstance(session.target, OwnModule):
        subject, tokens = subject_of(session.target, TIMED_FORMAT, session.device, session.seed), (0, 0)
    else:
        small = one_of_each(session.target)
        subject = stage_subject(small, TIMED_FORMAT, session.device, session.seed, tokens=tokens)
    modules = Modules()
    timer = Timer(modules, session.device)
    step_under(timer, modules, subject)
    session.found.speed = speed_of(timer, session.device, rates, tokens, TIMED_FORMAT)
