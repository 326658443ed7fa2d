"""Probe a device with one call: judge it, call it again, and read what was not to be written."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ridgeline.runtime.bringup.arithmetic import PLAIN, Unit
from ridgeline.runtime.bringup.calls import HERE, Call
from ridgeline.runtime.bringup.capture import EndedError, Modules, Signature, Watch, Wrong

PROBE = "standing set"


def probe(
    call: Call, device: str, *, sound: set[Signature] | None = None, unit: Unit = PLAIN, within: str = PROBE
) -> list[Wrong]:
    """What is wrong about a call on a device, made twice; an op that the device does not have is not."""
    watch = Watch(Modules(phase=call.phase, stack=[f"{within}: {call.why}"]), sound=sound, unit=unit)
    try:
        for _ in range(2):
            args, kwargs = tree_map(lambda x: _there(x, device), (call.args, call.kwargs))
            with watch:
                call.op(*args, **kwargs)
            if watch.wrong:
                break
    except EndedError:
        pass  # what the host raises as well; what it does not is among the wrong
    return [one for one in watch.wrong if one.verdict.statistic != "missing"]


def _there(value: Any, device: str) -> Any:
    if value is HERE:
        return torch.device(device)
    return value.to(device) if isinstance(value, Tensor) else value
