"""Look around a device with a model: what its training step dispatches there, and how long each op takes.

surveyed(model, device, watches, ...)     Inventory: the captured steps, held against the same step on the host
timed_step(model, device, rates)          Speed: a larger step, every op timed
warned()                                  a context that collects what backends warn of
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch

from ridgeline.models.spec import ModelSpec
from ridgeline.runtime.bringup import ridge
from ridgeline.runtime.bringup.capture import Modules, Place, Watch
from ridgeline.runtime.bringup.inventory import Inventory, Recorder, graph_breaks, inventory_of, repeats_of
from ridgeline.runtime.bringup.roofline import Rates
from ridgeline.runtime.bringup.speed import Speed, Timer, speed_of
from ridgeline.runtime.bringup.subject import Subject, subject_of

TIMED_TOKENS = {"cpu": (1, 128), ridge.NAME: (1, 32)}  # the host is slow, and the fake device is the host
TIMED = (4, 2048)
TIMED_FORMAT = "bf16"


@contextmanager
def warned() -> Iterator[list[str]]:
    """The texts of warnings that are given inside; the usual filters see them afterwards."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    found += [str(one.message) for one in caught]


def step_under(mode: Any, modules: Modules, subject: Subject) -> None:
    """A training step, forward to optimizer, under a mode that sees its ops."""
    optimizer = torch.optim.AdamW(subject.module.parameters(), lr=1e-3, foreach=False)
    with ExitStack() as stack:
        stack.callback(modules.follow(subject.module))
        stack.enter_context(mode)
        modules.phase = "forward"
        subject.loss(*subject.inputs).backward()
        modules.phase = "optimizer"
        optimizer.step()


def surveyed(
    model: ModelSpec, device: str, watches: Sequence[Watch], *, seed: int = 0, warned: Iterable[str] = (),
    absent: Iterable[tuple[str, Place]] = (), compiled: bool = False,
) -> Inventory:  # fmt: skip
    """What the captured steps asked of the device.

    compiled   look for graph breaks too, which takes dynamo's seconds
    """
    host = on_host(model, seed) if device.partition(":")[0] != "cpu" else {}
    found = inventory_of(watches, device, repeats=repeats_of(model), host=host, warned=warned, absent=absent)
    if not compiled:
        return found
    subject = subject_of(model, "fp32", "cpu", seed)
    return replace(found, graph_breaks=graph_breaks(subject.module, subject.inputs[:1]))


def on_host(model: ModelSpec, seed: int) -> Mapping[Place, list[str]]:
    """The ops of the same step on the host, by place."""
    modules = Modules()
    recorder = Recorder(modules)
    step_under(recorder, modules, subject_of(model, "fp32", "cpu", seed))
    return recorder.ops


def timed_step(model: ModelSpec, device: str, rates: Rates | None = None, seed: int = 0) -> Speed:
    """A step of one layer of each kind, every op timed."""
    tokens = TIMED_TOKENS.get(device.partition(":")[0], TIMED)
    modules = Modules()
    timer = Timer(modules, device)
    step_under(timer, modules, subject_of(model, TIMED_FORMAT, device, seed, tokens=tokens))
    return speed_of(timer, device, rates, tokens, TIMED_FORMAT)
