"""Say what is measured on: the device, the host and the software, as the head of a profile."""

from __future__ import annotations

import contextlib
import os
import platform
from typing import Any

import torch

from ridgeline.hardware.device_names import chip_id
from ridgeline.runtime.probe.backend import Backend
from ridgeline.runtime.probe.power import Meter


def describe(backend: Backend, meter: Meter) -> dict[str, Any]:
    """The keys `chip`, `device`, `host` and `software` of a profile."""
    name, memory = device_name(backend), backend.memory_bytes()
    count = getattr(backend.module, "device_count", lambda: 1)
    facts = {key: value for key, value in meter.facts.items() if value not in (0, "", None)}
    return {
        "chip": chip_id(name, memory),
        "device": {"type": backend.type, "name": name, "memory_bytes": memory, "count": int(count()), **facts},
        "host": {
            "cpu": cpu_name(),
            "cores": os.cpu_count() or 0,
            "node": platform.node(),
            "system": platform.platform(),
        },
        "software": software(backend),
    }


def device_name(backend: Backend) -> str:
    """What the backend calls the device; a CPU by its model."""
    if backend.type == "cpu":
        return cpu_name()
    with contextlib.suppress(Exception):
        return str(backend.module.get_device_name(backend.index))
    return backend.name


def cpu_name() -> str:
    """The processor's model as the kernel prints it."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def software(backend: Backend) -> dict[str, Any]:
    """Versions that decide which kernels run."""
    versions: dict[str, Any] = {"torch": torch.__version__, "python": platform.python_version()}
    built = {"cuda": torch.version.cuda, "hip": getattr(torch.version, "hip", None)}
    versions |= {key: value for key, value in built.items() if value}
    with contextlib.suppress(Exception):
        if backend.type == "cuda" and torch.backends.cudnn.is_available():
            versions["cudnn"] = torch.backends.cudnn.version()
    with contextlib.suppress(Exception):
        versions["triton"] = __import__("triton").__version__
    versions["threads"] = torch.get_num_threads()
    return versions
