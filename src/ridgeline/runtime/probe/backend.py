"""Turn a torch device string into what measuring needs: synchronisation, events, graphs, streams, cache and memory.

A new accelerator is a plug-in: whatever torch package registers the device (`torch_npu` for `npu`) is imported by
name, and `torch.get_device_module` finds its functions. What such a module lacks is None here, and is done without.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

PLUG_INS = {"npu": "torch_npu", "hpu": "habana_frameworks.torch.core", "xla": "torch_xla", "mlu": "torch_mlu"}
PLUG_INS |= {"musa": "torch_musa", "gcu": "torch_gcu"}
"""The package that registers a device type which torch itself does not know."""
DEFAULT_CACHE = 64 << 20  # bytes assumed of the last-level cache where the backend does not tell it
GRAPHS = ("CUDAGraph", "NPUGraph", "XPUGraph", "MUSAGraph", "MLUGraph")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One device of torch, and what its module offers.

    stream   the stream everything runs on, so that a graph captures forward and backward alike; None: no streams
    """

    name: str
    type: str
    index: int
    module: Any
    stream: Any
    event: Callable[[], Any] | None
    graph: Any
    cache_bytes: int

    def synchronize(self) -> None:
        """Wait for everything that was enqueued."""
        wait = getattr(self.module, "synchronize", None)
        if wait is not None and self.type != "cpu":
            wait()

    def free_bytes(self) -> int:
        """Memory that may still be taken."""
        info = getattr(self.module, "mem_get_info", None)
        if info is not None and self.type != "cpu":
            return int(info(self.index)[0])
        return host_free_bytes()

    def memory_bytes(self) -> int:
        """Memory in all, 0 where nobody says."""
        info = getattr(self.module, "mem_get_info", None)
        if info is not None and self.type != "cpu":
            return int(info(self.index)[1])
        return host_memory("MemTotal")

    def empty_cache(self) -> None:
        """Give unused memory back to the device."""
        give = getattr(self.module, "empty_cache", None)
        if give is not None and self.type != "cpu":
            give()


def open_backend(name: str, imports: Iterable[str] = ()) -> Backend:
    """The backend of a device string such as `cuda`, `cuda:1`, `npu`, `cpu`.

    Raises RuntimeError with one sentence when torch has no such device here.
    """
    for package in imports:
        importlib.import_module(package)
    kind = name.partition(":")[0]
    if kind in PLUG_INS:
        with contextlib.suppress(ImportError):
            importlib.import_module(PLUG_INS[kind])
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
        module = torch.get_device_module(device)
    except Exception as wrong:
        raise RuntimeError(f"torch {torch.__version__} cannot use {name!r}: {str(wrong).splitlines()[0]}") from None
    index = device.index or 0
    if kind != "cpu" and hasattr(module, "set_device"):
        module.set_device(index)
    stream = None
    if kind != "cpu" and hasattr(module, "Stream") and hasattr(module, "set_stream"):
        stream = module.Stream()
        module.set_stream(stream)
    graph = next((getattr(module, graph_name) for graph_name in GRAPHS if hasattr(module, graph_name)), None)
    return Backend(
        name=name,
        type=kind,
        index=index,
        module=module,
        stream=stream,
        event=_event_maker(module, kind),
        graph=graph if stream is not None and hasattr(module, "graph") else None,
        cache_bytes=_cache_bytes(module, kind, index),
    )


def _event_maker(module: Any, kind: str) -> Callable[[], Any] | None:
    if kind == "cpu" or not hasattr(module, "Event"):
        return None
    try:
        first, second = module.Event(enable_timing=True), module.Event(enable_timing=True)
        first.record()
        second.record()
        module.synchronize()
        first.elapsed_time(second)
    except Exception:  # a backend whose events do not time is timed by the host's clock
        return None
    return lambda: module.Event(enable_timing=True)


def _cache_bytes(module: Any, kind: str, index: int) -> int:
    with contextlib.suppress(Exception):
        cache_bytes = getattr(module.get_device_properties(index), "L2_cache_size", 0)
        if cache_bytes:
            return int(cache_bytes)
    if kind == "cpu":
        with contextlib.suppress(OSError, ValueError), open("/sys/devices/system/cpu/cpu0/cache/index3/size") as file:
            return int(file.read().strip().rstrip("K")) << 10
    return DEFAULT_CACHE


def host_memory(field: str) -> int:
    """A field of /proc/meminfo in bytes, 0 where there is none."""
    with contextlib.suppress(OSError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) << 10
    return 0


def host_free_bytes() -> int:
    """Memory of the host that may still be taken; 8 GiB where nobody says."""
    return host_memory("MemAvailable") or 8 << 30
