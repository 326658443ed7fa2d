"""Turn a torch device string into what measuring needs: synchronisation, events, graphs, memory, meter, description.

A new accelerator is a plug-in: whatever torch package registers the device (`torch_npu` for `npu`) is imported by
name, and `torch.get_device_module` finds its functions. What such a module lacks is None here, and is done without.
Clocks, power and energy are as the device's own library tells them: NVML through ctypes, RAPL for a CPU, else nothing.
Nothing is ever set: a card is measured as it is found.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import importlib
import os
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import ModuleType

import torch

from ridgeline.core.documents import JsonObject
from ridgeline.hardware.device_names import chip_id

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
    module: ModuleType
    stream: torch.Stream | None
    event: Callable[[], torch.Event] | None
    graph: Callable[[], torch.cuda.CUDAGraph] | None
    cache_bytes: int

    def synchronize(self) -> None:
        self._call("synchronize")

    def empty_cache(self) -> None:
        self._call("empty_cache")

    def _call(self, name: str) -> None:
        if self.type != "cpu" and hasattr(self.module, name):
            getattr(self.module, name)()

    def free_bytes(self) -> int:
        """Memory that may still be taken."""
        return self._memory()[0]

    def memory_bytes(self) -> int:
        """Memory in all, 0 where nobody says."""
        return self._memory()[1]

    def _memory(self) -> tuple[int, int]:
        """Free bytes and all of them; of the host where the module does not tell."""
        if self.type != "cpu" and hasattr(self.module, "mem_get_info"):
            free, total = self.module.mem_get_info(self.index)
            return int(free), int(total)
        return host_memory("MemAvailable") or 8 << 30, host_memory("MemTotal")


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
    graph = graph if stream is not None and hasattr(module, "graph") else None
    cache_bytes = _cache_bytes(module, kind, index)
    handles = {"module": module, "stream": stream, "event": _event_maker(module, kind), "graph": graph}
    return Backend(name=name, type=kind, index=index, cache_bytes=cache_bytes, **handles)


def _event_maker(module: ModuleType, kind: str) -> Callable[[], torch.Event] | None:
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


def _cache_bytes(module: ModuleType, kind: str, index: int) -> int:
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


SM_CLOCK, MEMORY_CLOCK = 1, 2  # nvmlClockType_t
ENERGY_FILES = "/sys/class/powercap/intel-rapl:?/energy_uj"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """What can be read while something runs; each answers 0 where nobody tells.

    clock_mhz   clock of the multiprocessors now
    power_w     power drawn now
    energy_j    joules since some moment: differences count
    facts       what does not change: driver, power limit, clocks, ECC and the like
    """

    clock_mhz: Callable[[], int] = lambda: 0
    power_w: Callable[[], float] = lambda: 0.0
    energy_j: Callable[[], float] = lambda: 0.0
    facts: JsonObject = field(default_factory=dict)


def open_meter(kind: str, module: ModuleType, index: int) -> Meter:
    if kind == "cuda":
        with contextlib.suppress(Exception):
            uuid = str(module.get_device_properties(index).uuid)
            return _nvml(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
    if kind == "cpu":
        return _rapl()
    return Meter()


def _nvml(uuid: str) -> Meter:
    library = ctypes.CDLL("libnvidia-ml.so.1")
    if library.nvmlInit_v2() != 0:
        return Meter()
    handle = ctypes.c_void_p()
    if library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) != 0 and (
        library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) != 0
    ):
        return Meter()

    def read(name: str, kind: type[ctypes.c_uint | ctypes.c_ulonglong] = ctypes.c_uint, *inputs: int) -> int:
        value = kind()
        function = getattr(library, name, None)
        if function is None or function(handle, *inputs, ctypes.byref(value)) != 0:
            return 0
        return int(value.value)

    return Meter(
        clock_mhz=lambda: read("nvmlDeviceGetClockInfo", ctypes.c_uint, SM_CLOCK),
        power_w=lambda: read("nvmlDeviceGetPowerUsage") / 1e3,
        energy_j=lambda: read("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong) / 1e3,
        facts=_nvml_facts(library, handle, read),
    )


def _nvml_facts(library: ctypes.CDLL, handle: ctypes.c_void_p, read: Callable[..., int]) -> JsonObject:
    text = ctypes.create_string_buffer(96)
    driver = text.value.decode() if library.nvmlSystemGetDriverVersion(text, 96) == 0 else ""
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    has_ecc = library.nvmlDeviceGetEccMode(handle, ctypes.byref(current), ctypes.byref(pending)) == 0
    return {
        "driver": driver,
        "power_limit_w": read("nvmlDeviceGetEnforcedPowerLimit") / 1e3,
        "power_default_w": read("nvmlDeviceGetPowerManagementDefaultLimit") / 1e3,
        "clock_mhz": read("nvmlDeviceGetMaxClockInfo", ctypes.c_uint, SM_CLOCK),
        "memory_clock_mhz": read("nvmlDeviceGetMaxClockInfo", ctypes.c_uint, MEMORY_CLOCK),
        "ecc": bool(current.value) if has_ecc else None,
        "persistence": bool(read("nvmlDeviceGetPersistenceMode")),
        "pcie_generation": read("nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie_generation_max": read("nvmlDeviceGetMaxPcieLinkGeneration"),
        "pcie_width": read("nvmlDeviceGetCurrPcieLinkWidth"),
        "pcie_width_max": read("nvmlDeviceGetMaxPcieLinkWidth"),
    }


def _rapl() -> Meter:
    paths = sorted(glob.glob(ENERGY_FILES))

    def joules() -> float:
        total = 0.0
        for path in paths:
            with contextlib.suppress(OSError, ValueError), open(path) as file:
                total += int(file.read()) / 1e6
        return total

    return Meter(energy_j=joules)


def describe(backend: Backend, meter: Meter) -> JsonObject:
    """The keys `chip`, `device`, `host` and `software` of a profile."""
    name, memory = device_name(backend), backend.memory_bytes()
    count = getattr(backend.module, "device_count", lambda: 1)
    facts = {key: value for key, value in meter.facts.items() if value not in (0, "", None)}
    device = {"type": backend.type, "name": name, "memory_bytes": memory, "count": int(count()), **facts}
    host = {"cpu": cpu_name(), "cores": os.cpu_count() or 0, "node": platform.node(), "system": platform.platform()}
    return {"chip": chip_id(name, memory), "device": device, "host": host, "software": software(backend)}


def device_name(backend: Backend) -> str:
    if backend.type == "cpu":
        return cpu_name()
    with contextlib.suppress(Exception):
        return str(backend.module.get_device_name(backend.index))
    return backend.name


def cpu_name() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def software(backend: Backend) -> JsonObject:
    """Versions that decide which kernels run."""
    versions: JsonObject = {"torch": torch.__version__, "python": platform.python_version()}
    built = {"cuda": torch.version.cuda, "hip": getattr(torch.version, "hip", None)}
    versions |= {key: value for key, value in built.items() if value}
    with contextlib.suppress(Exception):
        if backend.type == "cuda" and torch.backends.cudnn.is_available():
            versions["cudnn"] = torch.backends.cudnn.version()
    with contextlib.suppress(Exception):
        versions["triton"] = __import__("triton").__version__
    versions["threads"] = torch.get_num_threads()
    return versions
