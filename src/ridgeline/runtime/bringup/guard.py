"""Run an op of a device under guard: written down before it starts, and computed by the host where the device fails.

    guard.run(op, args, kwargs, entry)     its result, and the error it raised
    guard.healed                           ops, or single signatures of them, that the host computes: those that ended
                                           the process before, or whatever a bisection puts right
    journal.begin(entry), journal.end()    before an op runs, and when it came back
    journal.read()                         the last entry, whether it is still running, and since when; another process
                                           can read it after this one died

An error that a device does not recover from (CUDA's are sticky) ends the process: whoever started it goes on with
another one.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from ridgeline.runtime.bringup import fake_device
from ridgeline.runtime.bringup.arithmetic import PLAIN, Args, HostCall, Kwargs, Unit, error_text, tensors_in
from ridgeline.runtime.bringup.fake_device import on_device, on_host
from ridgeline.runtime.bringup.op_calls import Samples

SIZE = 16384
TURN, SINCE, LENGTH, HEAD = 0, 1, 2, 3  # words: odd while an op runs; ns of the monotonic clock; bytes of the entry


@dataclass(frozen=True, slots=True, kw_only=True)
class OpEntry:
    """An op on its way to the device.

    signature   formats, shapes and strides of its arguments, as one line
    """

    op: str = ""
    module: str = ""
    phase: str = ""
    dtype: str = ""
    signature: str = ""
    message: str = ""

    @property
    def key(self) -> str:
        """A signature as one line."""
        return f"{self.op}|{self.signature}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Glimpse:
    """The last entry; running_s: how long it has been running, 0 where it came back."""

    entry: OpEntry
    running: bool
    running_s: float


class OpJournal:
    """A page of shared memory behind a file; its turn is one more before anything else is written, and after."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if create:
            path.write_bytes(bytes(SIZE))
        with path.open("r+b") as file:
            page = memoryview(mmap.mmap(file.fileno(), SIZE))
        self._words, self._text = page.cast("Q"), page[HEAD * 8 :]

    def begin(self, entry: OpEntry) -> None:
        """Say what runs from now on."""
        text = json.dumps(asdict(entry)).encode()
        if len(text) > len(self._text):
            text = json.dumps(asdict(OpEntry(op=entry.op[:200], module=entry.module[:200], phase=entry.phase))).encode()
        self.end()
        self._text[: len(text)] = text
        self._words[SINCE], self._words[LENGTH] = time.monotonic_ns(), len(text)
        self._words[TURN] += 1

    def end(self) -> None:
        """It came back."""
        if self._words[TURN] % 2:
            self._words[TURN] += 1

    def read(self) -> Glimpse:
        """What was last begun; nothing runs where the page changes while it is read."""
        turn, since, length = self._words[TURN], self._words[SINCE], self._words[LENGTH]
        text = bytes(self._text[:length])
        running = bool(turn % 2) and self._words[TURN] == turn
        try:
            entry = OpEntry(**json.loads(text)) if text else OpEntry()
        except ValueError:  # between two ops
            entry = OpEntry()
        return Glimpse(entry=entry, running=running, running_s=(time.monotonic_ns() - since) / 1e9 if running else 0.0)


POISONED = 3  # exit code after an error that the device does not recover from
HOSTS = ("cpu", fake_device.NAME)  # whose errors leave the process as it was


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What came of an op: error where the device raised one and the host's result stands in; healed by request."""

    result: object
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

    journal: OpJournal | None = None
    healed: set[str] = field(default_factory=set)
    unit: Unit = PLAIN
    samples: Samples | None = None
    sound: set[tuple[object, ...]] = field(default_factory=set)
    saw: Callable[[OpOverload, HostCall, OpEntry], None] | None = None

    def heals(self, entry: OpEntry) -> bool:
        """Whether the host computes this one."""
        return bool(self.healed) and (entry.op in self.healed or entry.key in self.healed)

    def run(self, func: OpOverload, args: Args, kwargs: Kwargs, entry: OpEntry) -> Ran:
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

    def enter(self, entry: OpEntry) -> None:
        """Write down what runs from now on."""
        if self.journal is not None:
            self.journal.begin(entry)

    def leave(self) -> None:
        """It came back."""
        if self.journal is not None:
            self.journal.end()

    def check_alive(self, args: Args, kwargs: Kwargs, entry: OpEntry, error: BaseException) -> None:
        """End the process where the device is of no more use."""
        device = device_of(args, kwargs)
        if device.type in HOSTS or self.journal is None:
            return
        try:
            getattr(torch, device.type).synchronize()
        except Exception:
            self.journal.begin(replace(entry, message=error_text(error)))
            os._exit(POISONED)


def device_of(args: Args, kwargs: Kwargs) -> torch.device:
    """Where an op computes."""
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"])
    return next((x.device for x in tensors_in((args, kwargs)) if x.device.type != "cpu"), torch.device("cpu"))


def host_result(func: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """What the host's kernel gives in the same formats, as tensors of the device; what the op writes is written."""
    host_args, host_kwargs = tree_map(on_host, (args, kwargs))
    result = func(*host_args, **host_kwargs)
    device = device_of(args, kwargs)
    pairs = list(zip(tensors_in((args, kwargs)), tensors_in((host_args, host_kwargs)), strict=True))
    original_of = {id(copy): tensor for tensor, copy in pairs}
    if func._schema.is_mutable:
        for tensor, copy in pairs:
            if tensor.shape == copy.shape:
                (tensor.raw if isinstance(tensor, fake_device.RidgeTensor) else tensor).copy_(copy)
    return tree_map(lambda x: original_of.get(id(x), on_device(x, device)) if isinstance(x, Tensor) else x, result)
