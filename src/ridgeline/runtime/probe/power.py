"""Clocks, power and energy as the device's own library tells them: NVML through ctypes, RAPL for a CPU, else nothing.

Nothing is ever set: a card is measured as it is found.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
    facts: dict[str, Any] = field(default_factory=dict)


def open_meter(kind: str, module: Any, index: int) -> Meter:
    """The meter of a torch device."""
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

    def read(name: str, kind: Any = ctypes.c_uint, *inputs: int) -> int:
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


def _nvml_facts(library: Any, handle: Any, read: Callable[..., int]) -> dict[str, Any]:
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
