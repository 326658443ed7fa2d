"""Run an op of a device under guard: written down before it starts, and computed by the host where the device fails.

    guard.run(op, args, kwargs, entry)     its result, and the error it raised
    guard.healed                           ops, or single signatures of them, that the host computes: those that ended
                                           the process before, or whatever a bisection puts right

An error that a device does not recover from (CUDA's are sticky) ends the process: whoever started it goes on with
another one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ridgeline.runtime.bringup import ridge
from ridgeline.runtime.bringup.arithmetic import PLAIN, Unit
from ridgeline.runtime.bringup.journal import Entry, Journal
from ridgeline.runtime.bringup.tensors import on_device, on_host
from ridgeline.runtime.bringup.variants import Samples

POISONED = 3  # exit code after an error that the device does not recover from
HOSTS = ("cpu", ridge.NAME)  # whose errors leave the process as it was


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What came of an op: error where the device raised one and the host's result stands in; healed by request."""

    result: Any
    error: BaseException | None = None
    healed: bool = False


@dataclass(slots=True, kw_only=True)
class Guard:
    """How ops are run.

    journal   where they are written down; None: nobody will look
    healed    ops (`aten.mm.default`) and signatures (op, a bar, the line of the entry) that the host computes
    unit      what products of this device are known, or allowed, to do
    sound     signatures whose host kernel kept its contract: what equals it bit for bit is right
    samples   where calls are kept of which hard variants are made; None: nowhere
    saw       is given every call that was healed by request: the op, its arguments on the host, its entry
    """

    journal: Journal | None = None
    healed: set[str] = field(default_factory=set)
    unit: Unit = PLAIN
    samples: Samples | None = None
    sound: set[Any] = field(default_factory=set)
    saw: Callable[[Any, tuple[Any, Any], Entry], None] | None = None

    def heals(self, entry: Entry) -> bool:
        """Whether the host computes this one."""
        return bool(self.healed) and (entry.op in self.healed or key_of(entry) in self.healed)

    def run(self, func: Any, args: Any, kwargs: dict[str, Any], entry: Entry) -> Ran:
        """The device's result, or the host's on the device; what the host raises too is raised."""
        if self.heals(entry):
            host = tree_map(on_host, (args, kwargs))
            if self.saw is not None:
                self.saw(func, host, entry)
            return Ran(result=host_result(func, args, kwargs), healed=True)
        self.enter(entry)
        try:
            result = func(*args, **kwargs)
        except (Exception, SystemExit) as error:
            self.check_alive(args, kwargs, entry, error)
            try:
                return Ran(result=host_result(func, args, kwargs), error=error)
            except Exception:
                raise error from None
        finally:
            self.leave()
        return Ran(result=result)

    def enter(self, entry: Entry) -> None:
        """Write down what runs from now on."""
        if self.journal is not None:
            self.journal.begin(entry)

    def leave(self) -> None:
        """It came back."""
        if self.journal is not None:
            self.journal.end()

    def check_alive(self, args: Any, kwargs: Any, entry: Entry, error: BaseException) -> None:
        """End the process where the device is of no more use."""
        device = device_of(args, kwargs)
        if device.type in HOSTS or self.journal is None:
            return
        try:
            getattr(torch, device.type).synchronize()
        except Exception:
            message = f"{type(error).__name__}: {error}".partition("\n")[0]
            self.journal.begin(Entry(**{name: getattr(entry, name) for name in Entry.__slots__} | {"message": message}))
            os._exit(POISONED)


def key_of(entry: Entry) -> str:
    """A signature as one line."""
    return f"{entry.op}|{entry.signature}"


def device_of(args: Any, kwargs: dict[str, Any]) -> torch.device:
    """Where an op computes."""
    device = kwargs.get("device") if isinstance(kwargs, dict) else None
    if device is not None:
        return torch.device(device)
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    return next((x.device for x in tensors if x.device.type != "cpu"), torch.device("cpu"))


def host_result(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What the host's kernel gives in the same formats, as tensors of the device; what the op writes is written."""
    host_args, host_kwargs = tree_map(on_host, (args, kwargs))
    result = func(*host_args, **host_kwargs)
    device = device_of(args, kwargs)
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    copies = [x for x in tree_leaves((host_args, host_kwargs)) if isinstance(x, Tensor)]
    original_of = {id(copy): tensor for tensor, copy in zip(tensors, copies, strict=True)}
    if func._schema.is_mutable:
        for tensor, copy in zip(tensors, copies, strict=True):
            write(tensor, copy)
    return tree_map(lambda x: original_of.get(id(x), on_device(x, device)) if isinstance(x, Tensor) else x, result)


def write(target: Tensor, values: Tensor) -> None:
    """Host values into a tensor of a device."""
    if target.shape != values.shape:
        return
    (target.raw if isinstance(target, ridge.RidgeTensor) else target).copy_(values)
