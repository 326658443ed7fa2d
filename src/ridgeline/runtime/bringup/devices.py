"""Open the device that a torch string names, or say what is missing: its backend, its driver, the index, the spelling.

open_device("cuda:1")        usable afterwards, or an `InputError` with what to install or to write instead
environment("cuda:1")        the device's name, torch's version, the driver's
"""

from __future__ import annotations

import contextlib
import importlib
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from ridgeline.core.errors import InputError, Problem, near
from ridgeline.hardware.device_names import chip_id
from ridgeline.runtime.bringup import dispatcher, ridge
from ridgeline.runtime.probe.backend import PLUG_INS, cpu_name

FORM = re.compile(r"(?P<kind>[A-Za-z][A-Za-z_]*)(?::(?P<index>\d{1,4}))?")
# what makes torch know a device, for whoever lacks it
INSTALL: Mapping[str, str] = MappingProxyType(
    {
        "cuda": "a CUDA or ROCm build of torch (pytorch.org) and the driver of the GPU",
        "xpu": "an XPU build of torch (pip install torch --index-url https://download.pytorch.org/whl/xpu) "
        "and Intel's GPU driver",
        "mps": "macOS on Apple silicon, whose torch has mps built in",
        "npu": "Ascend's CANN toolkit and pip install torch_npu, of torch's own version",
        "hpu": "Intel Gaudi's driver and pip install habana-torch-plugin",
        "xla": "pip install torch_xla[tpu], of torch's own version",
        "mlu": "Cambricon's driver and the package torch_mlu",
        "musa": "Moore Threads' MUSA toolkit and the package torch_musa",
        "gcu": "Enflame's driver and the package torch_gcu",
        "mtia": "a build of torch with MTIA",
        "maia": "a build of torch with MAIA",
    }
)
DRIVERS = {"nvidia": "/proc/driver/nvidia/version", "amdgpu": "/sys/module/amdgpu/version"}
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "gpu": "cuda", "nvidia": "cuda", "rocm": "cuda", "hip": "cuda", "amd": "cuda", "tpu": "xla", "trainium": "xla",
        "neuron": "xla", "ascend": "npu", "gaudi": "hpu", "habana": "hpu", "apple": "mps", "metal": "mps",
        "intel": "xpu", "host": "cpu", "fake": ridge.NAME,
    }
)  # fmt: skip


def open_device(name: str, *, faulted: bool = False) -> None:
    """Make a device usable; an `InputError` says why it is not. Only the fake one can be given faults."""
    match = FORM.fullmatch(name)
    if match is None:
        raise _refuse_device(
            name, "a torch device such as cpu, cuda, cuda:1 or ridge", "write its type, and a colon and index"
        )
    kind, index = match["kind"], int(match["index"] or 0)
    if faulted and kind != ridge.NAME:
        expected_text, todo = "the fake device, whose ops can be faulted", f"use --device {ridge.NAME}"
        raise InputError(Problem(path="--faults", given=name, expected=expected_text, todo=todo))
    if kind == ridge.NAME:
        ridge.register()
    elif kind != "cpu":
        _open(name, kind)
    count = 1 if kind == "cpu" else _count(torch.get_device_module(kind))
    if count is not None and index >= count:
        many = f"{count} device{'s' if count != 1 else ''} of type {kind} here"
        raise _refuse_device(name, many, f"name {kind}:0" + (f" to {kind}:{count - 1}" if count > 1 else ""))
    if kind not in ("cpu", ridge.NAME):
        _try(name)


def _refuse_device(name: str, expected: str, todo: str) -> InputError:
    return InputError(Problem(path="--device", given=repr(name), expected=expected, todo=todo))


def _open(name: str, kind: str) -> None:
    """Import what registers a device type, and see that there is one."""
    if kind not in INSTALL and kind != dispatcher.plugged_in():
        known_devices = ("cpu", ridge.NAME, *INSTALL)
        meant = ALIASES.get(kind.lower()) or next(iter(near(kind.lower(), known_devices, 1)), "")
        todo = f"did you mean {meant!r}?" if meant else "or install the package that registers it with torch"
        raise _refuse_device(name, "a device type that torch knows: " + ", ".join(known_devices), todo)
    install = f"it needs {INSTALL.get(kind, 'the package that registers it')}; or try --device cpu or {ridge.NAME}"
    if kind in PLUG_INS:
        try:
            importlib.import_module(PLUG_INS[kind])
        except Exception as error:  # a plug-in without its driver's libraries raises whatever it likes
            message = " ".join(str(error).split())[:160]
            expected_text = f"a backend that is installed: importing {PLUG_INS[kind]} failed ({message})"
            raise _refuse_device(name, expected_text, install) from error
    module = getattr(torch, kind, None) or torch.get_device_module(kind)
    available = getattr(module, "is_available", None)
    if available is not None and not available():
        raise _refuse_device(name, f"a device that torch {torch.__version__} finds on this machine", install)


def _count(module: Any) -> int | None:
    count = getattr(module, "device_count", None)
    return int(count()) if count is not None else None


def _try(name: str) -> None:
    """A first tensor: what is installed may still not work."""
    try:
        torch.ones(2, device=name).add(1).cpu()
    except Exception as error:
        message = " ".join(str(error).split())[:200]
        raise _refuse_device(name, "a device that can add two numbers", f"torch said: {message}") from error


def environment(name: str) -> dict[str, str]:
    """The device, driver and software that decide which kernels run, for whoever compares two reports."""
    kind, _, index = name.partition(":")
    environment_ = {"device": device_name(name), "torch": torch.__version__, "python": platform.python_version()}
    environment_ |= {
        key: str(value) for key, value in (("cuda", torch.version.cuda), ("hip", torch.version.hip)) if value
    }
    with contextlib.suppress(Exception):
        environment_ |= {"cudnn": str(torch.backends.cudnn.version())} if kind == "cuda" else {}
    with contextlib.suppress(Exception):
        properties = torch.get_device_module(kind).get_device_properties(int(index or 0))
        environment_ |= {
            key: str(value)
            for key in ("gcnArchName", "driver_version")
            if (value := getattr(properties, key, None)) and (key != "gcnArchName" or torch.version.hip)
        }
    for vendor, path in DRIVERS.items():
        with contextlib.suppress(OSError):
            version = re.search(r"\d+\.\d+[\d.]*", Path(path).read_text(encoding="utf-8")[:400])
            environment_ |= {f"{vendor} driver": version[0]} if version and kind == "cuda" else {}
    with contextlib.suppress(Exception):
        if kind in PLUG_INS:
            package = PLUG_INS[kind].partition(".")[0]
            environment_[package] = str(sys.modules[package].__version__)
    environment_["threads"] = str(torch.get_num_threads())
    return environment_


def device_name(name: str) -> str:
    """What the backend calls the device; the host by its processor."""
    kind, _, index = name.partition(":")
    if kind in ("cpu", ridge.NAME):
        return cpu_name() if kind == "cpu" else f"a fake device on {cpu_name()}"
    with contextlib.suppress(Exception):
        return str(torch.get_device_module(kind).get_device_name(int(index or 0)))
    return name


def likely_chip(name: str) -> str | None:
    """The catalog's chip of a device, by its name and memory; None where they do not tell."""
    kind, _, index = name.partition(":")
    if kind in ("cpu", ridge.NAME):
        return None
    memory = 0
    with contextlib.suppress(Exception):
        memory = int(torch.get_device_module(kind).mem_get_info(int(index or 0))[1])
    return chip_id(device_name(name), memory)


def settle(device: str) -> None:
    """Wait until everything asked of a device is done."""
    wait = getattr(getattr(torch, device.partition(":")[0], None), "synchronize", None)
    if wait is not None and device.partition(":")[0] != "cpu":
        wait()
