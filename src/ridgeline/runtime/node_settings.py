"""Settings of a rank that slow or break a run, and how they differ between ranks.

Nothing is changed: what the environment, the driver and the kernel say is read and compared.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREFIXES = ("NCCL_", "TORCH_NCCL_", "HCCL_", "RCCL_", "GLOO_", "UCX_", "FI_", "CUDA_", "PYTORCH_", "OMP_", "MKL_")
NAMES = ("TORCH_DISTRIBUTED_DEBUG", "ONEDNN_MAX_CPU_ISA", "ASCEND_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING")
OWN = ("CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA")  # may differ between ranks of a sound system
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
SLOWING = {
    "CUDA_LAUNCH_BLOCKING": ("1", "every launch waits for its kernel"),
    "HIP_LAUNCH_BLOCKING": ("1", "every launch waits for its kernel"),
    "ASCEND_LAUNCH_BLOCKING": ("1", "every launch waits for its kernel"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "every collective is checked against all ranks first"),
    "NCCL_P2P_DISABLE": ("1", "chips of a node talk through the host"),
    "NCCL_IB_DISABLE": ("1", "nodes talk over TCP"),
    "NCCL_SHM_DISABLE": ("1", "ranks of a host talk over the network"),
    "NCCL_DEBUG": ("TRACE", "every call is logged"),
}
"""Variables that slow a run when they have this value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingProblem:
    """A setting that is wrong or differs: who has it, its value, what was expected and what to do."""

    who: str
    what: str
    value: str
    expected: str
    advice: str


def collect(facts: Mapping[str, Any], software: Mapping[str, Any], local_ranks: int) -> dict[str, str]:
    """The settings of this rank as texts: environment, versions, what the device and the host say of themselves."""
    settings = {
        f"env {name}": value for name, value in os.environ.items() if name.startswith(PREFIXES) or name in NAMES
    }
    settings |= {f"software {name}": str(value) for name, value in software.items()}
    settings |= {f"device {name}": str(value) for name, value in facts.items()}
    with contextlib.suppress(OSError):
        settings["host governor"] = GOVERNOR.read_text("ascii").strip()
    if hasattr(os, "sched_getaffinity"):
        settings["host cores a rank may use"] = str(len(os.sched_getaffinity(0)))
    settings["host kernel"] = platform.release()
    settings["host ranks"] = str(local_ranks)
    return settings


def problems(ranks: Sequence[Mapping[str, str]], hosts: Sequence[str]) -> list[SettingProblem]:
    """What differs between ranks, and what slows each of them."""
    problems_ = []
    for name in sorted({key for rank in ranks for key in rank}):
        problems_ += _differing(name, [rank.get(name, "unset") for rank in ranks], hosts)
    for name, (value, effect) in SLOWING.items():
        who = [rank for rank, settings in enumerate(ranks) if settings.get(f"env {name}", "").upper() == value]
        if who:
            problems_.append(
                SettingProblem(
                    who=_ranks(who, hosts), what=name, value=value, expected="unset", advice=f"{effect}: unset it"
                )
            )
    return problems_ + _limited_links(ranks, hosts)


def _differing(name: str, values: Sequence[str], hosts: Sequence[str]) -> list[SettingProblem]:
    """Ranks whose value is not that of the most."""
    value_counts = Counter(values)
    bare = name.partition(" ")[2]
    if len(value_counts) == 1 or bare.startswith(OWN):
        return []
    usual = value_counts.most_common(1)[0][0]
    problems_ = []
    for value in sorted(set(value_counts) - {usual}):
        who = _ranks([rank for rank, rank_value in enumerate(values) if rank_value == value], hosts)
        advice = "set it alike on all ranks" if name.startswith("env ") else "make the ranks alike"
        problems_.append(SettingProblem(who=who, what=bare, value=value, expected=usual, advice=advice))
    return problems_


def _limited_links(ranks: Sequence[Mapping[str, str]], hosts: Sequence[str]) -> list[SettingProblem]:
    """Devices held below what they were built for."""
    problems_ = []
    for current, built, what in (
        ("device power_limit_w", "device power_default_w", "power limit in W"),
        ("device pcie_width", "device pcie_width_max", "lanes of PCI Express"),
    ):
        low = [rank for rank, settings in enumerate(ranks) if 0 < _number(settings, current) < _number(settings, built)]
        if low:
            value, expected_value = ranks[low[0]][current], ranks[low[0]][built]
            who = _ranks(low, hosts)
            problems_.append(
                SettingProblem(who=who, what=what, value=value, expected=expected_value, advice="ask who set it")
            )
    return problems_


def _number(one: Mapping[str, str], key: str) -> float:
    try:
        return float(one.get(key, "0"))
    except ValueError:
        return 0.0


def warnings(ranks: Sequence[Mapping[str, str]], hosts: Sequence[str]) -> list[str]:
    """Settings worth a look that do not stop a run."""
    warnings_ = []
    for key, wrong, text in (
        ("device ecc", "False", "memory errors go unnoticed: ECC is off"),
        ("device persistence", "False", "the driver may unload between runs: persistence mode is off"),
        ("host governor", "powersave", "the host's clock follows its load: the governor is powersave"),
        ("host governor", "ondemand", "the host's clock follows its load: the governor is ondemand"),
    ):
        who = [rank for rank, settings in enumerate(ranks) if settings.get(key) == wrong]
        if who:
            warnings_.append(f"{_ranks(who, hosts)}: {text}")
    cores = "host cores a rank may use"
    few = [
        rank for rank, settings in enumerate(ranks) if 0 < _number(settings, cores) < _number(settings, "host ranks")
    ]
    if few:
        warnings_.append(f"{_ranks(few, hosts)}: fewer cores than ranks on the host")
    default_threads = [
        rank
        for rank, settings in enumerate(ranks)
        if "env OMP_NUM_THREADS" not in settings and settings.get("host ranks") != "1"
    ]
    if default_threads:
        warnings_.append(
            f"{_ranks(default_threads, hosts)}: OMP_NUM_THREADS is unset, so that each rank takes every core"
        )
    return warnings_


def _ranks(who: Sequence[int], hosts: Sequence[str]) -> str:
    """Ranks in words, with the host of a single one."""
    if len(who) == len(hosts):
        return "every rank"
    if len(who) == 1:
        return f"rank {who[0]} ({hosts[who[0]]})"
    return "ranks " + ", ".join(map(str, who[:8])) + (f" and {len(who) - 8} more" if len(who) > 8 else "")
