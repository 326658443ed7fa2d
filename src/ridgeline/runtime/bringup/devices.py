"""Open a torch device, or say why it cannot be had."""

from __future__ import annotations

import torch

from ridgeline.core.errors import InputError, Problem
from ridgeline.runtime.bringup import ridge


def open_device(device: str, *, faulted: bool = False) -> None:
    """Make a device ready; only the fake one can be given faults."""
    kind = device.partition(":")[0]
    if kind == ridge.NAME:
        ridge.register()
        return
    if faulted:
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


def settle(device: str) -> None:
    """Wait until everything asked of a device is done."""
    wait = getattr(getattr(torch, device.partition(":")[0], None), "synchronize", None)
    if wait is not None and device.partition(":")[0] != "cpu":
        wait()
