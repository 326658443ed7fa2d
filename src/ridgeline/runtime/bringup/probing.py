"""Probe a device with one call, made twice; an op that the device does not have is not wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

from ridgeline.runtime.bringup.calls import HERE, Call
from ridgeline.runtime.bringup.capture import RAISED, Modules, Watch
from ridgeline.runtime.bringup.guard import Guard
from ridgeline.runtime.bringup.tensors import on_device

PROBE = "standing set"


def probe(call: Call, device: str, guard: Guard | None = None, within: str = f"{PROBE}: ") -> Watch:
    """What was seen of a call: its second run must be right as well."""
    watch = Watch(Modules(phase=call.phase, stack=[f"{within}{call.why}"]), guard)
    try:
        for _ in range(2):
            args, kwargs = tree_map(lambda x: there(x, device), (call.args, call.kwargs))
            with watch:
                call.op(*args, **kwargs)
            if call.optional:
                watch.wrong = [call for call in watch.wrong if call.verdict is not RAISED]
            if watch.wrong or watch.missing:
                break
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
        return watch  # the host cannot either, or the device has no such format: not wrong
    return watch


def there(value: Any, device: str) -> Any:
    """An argument of a call, on the device, with the strides and the offset that it has."""
    return torch.device(device) if value is HERE else on_device(value, device)
