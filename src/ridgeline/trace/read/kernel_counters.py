"""Turn per-kernel counters into what each kernel reached: Nsight Compute's CSV, or the table of the Ascend profiler.

`ncu --csv` writes either one row a launch with a column for every metric and a row of units (`--page raw`), or one row
a metric (`--page details`). Launches of one name are put together, weighted by their duration. Profiling fixes the
clocks and repeats kernels, so durations here are not those of a run: shares of the peak are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ridgeline.core.files import read_table
from ridgeline.core.units import DECIMAL
from ridgeline.trace.read.kernel_tables import (
    DURATION,
    KERNEL_DETAILS,
    NAME,
    first,
    number,
    recognises_ascend,
    records,
    rows_of,
)
from ridgeline.trace.read.source import TraceSource, refuse

FORMAT = "Nsight Compute CSV"
MOST_NAMES = 100_000
KEYS = ("ID", "Process ID", "Kernel Name")
_TENSOR = re.compile(r"^sm__ops_path_tensor_\w+\.sum$")
_SCALAR = re.compile(r"^smsp__sass_thread_inst_executed_op_[hfd](add|mul|fma)_pred_on\.sum$")
_TIME = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_SIZES = {"": 1.0, "k": DECIMAL["k"], "m": DECIMAL["M"], "g": DECIMAL["G"], "t": DECIMAL["T"]}
_SIZE = re.compile(r"^([kmgt]?)(?:byte|b)(?:/(?:s|second))?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCounters:
    """What one kernel reached, by name; shares are of the peak, None where it was not measured."""

    name: str
    launches: int
    duration_ns: float
    """Mean of the launches."""
    compute: float | None = None
    memory: float | None = None
    dram: float | None = None
    occupancy: float | None = None
    bytes_per_s: float | None = None
    flops_per_s: float | None = None
    registers: int | None = None
    launch: str = ""
    """Grid and block of the longest launch."""

    JSON = """
        name launches duration_us compute_share=compute memory_share=memory dram_share=dram occupancy
        gbytes_per_s=bytes_per_s/G tflops_per_s=flops_per_s/T registers launch
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterFile:
    """A file of counters of kernels, read without a timeline."""

    sources: tuple[str, ...]
    format: str
    kernels: tuple[KernelCounters, ...]

    JSON = "kind='kernel-counters' sources format launches kernel_counters=kernels[:200] names"

    @property
    def launches(self) -> int:
        """Launches of all kernels."""
        return sum(kernel.launches for kernel in self.kernels)

    @property
    def names(self) -> int:
        """Kernels of different names."""
        return len(self.kernels)


@cache
def kept_metrics() -> Mapping[str, Sequence[tuple[str, str]]]:
    """By what is kept: the metrics that say it, the best first, and a mark their unit must have."""
    return read_table(Path(__file__).parent / "metrics.toml").data


def recognises(head: bytes) -> bool:
    """Whether a file is counters of Nsight Compute, messages in front of the table allowed."""
    lines = [line for line in head.decode("utf-8", "replace").splitlines()[:400] if '"Kernel Name"' in line]
    return any(word in line for line in lines for word in ('"Metric Name"', "__", '"Block Size"'))


def read_counter_file(path: Path) -> CounterFile:
    """A file of counters with its format."""
    format = KERNEL_DETAILS if recognises_ascend(TraceSource(path).head()) else FORMAT
    return CounterFile(sources=(path.name,), format=format, kernels=read_counters(path))


def read_counters(path: Path | str) -> tuple[KernelCounters, ...]:
    """Counters of every kernel name, the one with most time first; an `InputError` when the file holds none."""
    source = TraceSource(Path(path))
    if not source.path.is_file():
        raise refuse(source.path, "no such file", FORMAT, "check the path")
    head = source.head()
    if recognises_ascend(head):
        launches = _ascend(source)
    elif recognises(head):
        launches = _ncu(source)
    else:
        raise refuse(
            source.path, "a file without counters of kernels", f"{FORMAT} or {KERNEL_DETAILS}",
            "write it with: ncu --csv --page raw -o, or ncu --import REPORT --csv --page raw",
        )  # fmt: skip
    groups: dict[str, _Sum] = {}
    for launch in launches:
        if launch.name in groups or len(groups) < MOST_NAMES:
            groups.setdefault(launch.name, _Sum()).add(launch)
    if not groups:
        raise refuse(
            source.path, "a table without kernels", FORMAT, source.damage or "did any kernel match the filter?"
        )
    kernels = (_together(name, launches) for name, launches in groups.items())
    return tuple(sorted(kernels, key=lambda one: -one.duration_ns * one.launches))


@dataclass(slots=True)
class _Launch:
    name: str
    shape: str
    values: dict[str, float]
    """By the keys of `kept_metrics`, and flops; base units, shares as fractions."""


class _Sum:
    """Launches of one name, added up: each value weighted by the duration of its launch."""

    def __init__(self) -> None:
        self.count, self.duration, self.longest = 0, 0.0, -1.0
        self.shape, self.registers = "", 0.0
        self.sums: dict[str, tuple[float, float]] = {}

    def add(self, launch: _Launch) -> None:
        duration = launch.values.get("duration", 0.0)
        self.count += 1
        self.duration += duration
        if duration > self.longest:
            self.longest, self.shape = duration, launch.shape
            self.registers = launch.values.get("registers", 0.0)
        weight = duration or 1.0
        for key, value in launch.values.items():
            total, weights = self.sums.get(key, (0.0, 0.0))
            self.sums[key] = total + value * weight, weights + weight

    def mean(self, key: str) -> float | None:
        total, weights = self.sums.get(key, (0.0, 0.0))
        return total / weights if weights > 0 else None


def _together(name: str, found: _Sum) -> KernelCounters:
    return KernelCounters(
        name=name,
        launches=found.count,
        duration_ns=found.duration / found.count,
        compute=found.mean("compute"),
        memory=found.mean("memory"),
        dram=found.mean("dram"),
        occupancy=found.mean("occupancy"),
        bytes_per_s=found.mean("rate"),
        flops_per_s=found.mean("flops"),
        registers=int(found.registers) if 0 < found.registers < 2**31 else None,
        launch=found.shape,
    )


# -- Nsight Compute ---------------------------------------------------------------------------------------------------


def _ncu(source: TraceSource) -> Iterator[_Launch]:
    header: list[str] = []
    units: list[str] = []
    current: tuple[tuple[str, ...], dict[str, str], dict[str, tuple[float, str]]] | None = None
    for row in rows_of(source):
        if "Kernel Name" in row and ("ID" in row or "Metric Name" in row):
            header, units = row, []
        # rows of metrics end where columns about advice begin
        needed_columns = header.index("Metric Value") + 1 if "Metric Value" in header else len(header)
        if not header or row == header or not needed_columns <= len(row) <= len(header):
            continue
        cells = dict(zip(header, row, strict=False))
        if "Metric Name" not in cells:
            if not units and not cells["Kernel Name"].strip():
                units = row
            else:
                yield _launch(cells, _wide(header, row, units))
            continue
        key = tuple(cells.get(column, "") for column in KEYS)
        if current is None or current[0] != key:
            if current is not None:
                yield _launch(current[1], current[2])
            current = key, cells, {}
        value = number(cells.get("Metric Value", ""))
        if value is not None:
            name, unit = cells["Metric Name"], cells.get("Metric Unit", "")
            current[2].setdefault(f"{name}\t{unit}", (value, unit))
    if current is not None:
        yield _launch(current[1], current[2])


def _wide(header: list[str], row: list[str], units: list[str]) -> dict[str, tuple[float, str]]:
    units = units or [""] * len(header)
    rows = {}
    for name, text, unit in zip(header, row, units, strict=True):
        value = number(text)
        if value is not None:
            rows[f"{name}\t{unit}"] = value, unit
    return rows


def _launch(cells: Mapping[str, str], metrics: Mapping[str, tuple[float, str]]) -> _Launch:
    values: dict[str, float] = {}
    values_of: dict[str, list[tuple[float, str]]] = {}
    for key, metric in metrics.items():
        values_of.setdefault(key.split("\t", 1)[0], []).append(metric)
    for what, choices in kept_metrics().items():
        for name, mark in choices:
            value = next((value for value, unit in values_of.get(name, ()) if mark in unit), None)
            unit = next((unit for _, unit in values_of.get(name, ()) if mark in unit), "")
            if value is not None and what not in values:
                values[what] = _base(what, value, unit)
    seconds = values.get("duration", 0.0) / DECIMAL["G"]
    traffic_bytes = values.get("bytes", values.get("read", 0.0) + values.get("written", 0.0))
    if "rate" not in values and traffic_bytes and seconds:
        values["rate"] = traffic_bytes / seconds
    flops = sum(_flops(name, samples[0][0]) for name, samples in values_of.items())
    if flops and seconds:
        values["flops"] = flops / seconds
    grid, block = cells.get("Grid Size", "").strip(), cells.get("Block Size", "").strip()
    return _Launch(
        name=cells["Kernel Name"][:4096], shape=f"{grid} x {block}"[:100] if grid or block else "", values=values
    )


def _base(what: str, value: float, unit: str) -> float:
    """A value in base units: durations in nanoseconds, shares as fractions, bytes as bytes."""
    if what == "duration":
        short = unit.lower().replace("second", "s").strip()
        return value * _TIME.get(short, 1.0)
    if what in ("compute", "memory", "dram", "occupancy"):
        return value / 100
    if what in ("rate", "bytes", "read", "written"):
        match = _SIZE.match(unit.strip().lower())
        return value * _SIZES[match[1]] if match else value
    return value


def _flops(name: str, count: float) -> float:
    if _TENSOR.match(name):
        return count
    return count * (2 if "fma_" in name else 1) if _SCALAR.match(name) else 0.0


# -- Ascend -----------------------------------------------------------------------------------------------------------


def _ascend(source: TraceSource) -> Iterator[_Launch]:
    for row in records(source):
        duration = number(first(row, DURATION))
        name = first(row, NAME)
        if not name or duration is None or duration < 0:
            continue
        values = {"duration": duration * 1e3}
        shares = [_ratio(row, "aic_mac"), _ratio(row, "aiv_vec")]
        cube_share = number(row.get("cube_utilization( %)", row.get("cube_utilization(%)", "")))
        shares.append(cube_share / 100 if cube_share is not None else None)
        memory_shares = [_ratio(row, "aic_mte2"), _ratio(row, "aiv_mte2")]
        for what, shares_of in (("compute", shares), ("memory", memory_shares)):
            there = [share for share in shares_of if share is not None]
            if there:
                values[what] = max(there)
        flops = sum(number(row.get(f"{core}_fops", "")) or 0.0 for core in _CORES)
        if flops and duration:
            values["flops"] = flops / (duration * 1e-6)
        if len(values) > 1:  # collectives have no counters
            yield _Launch(name=name[:4096], shape=f"{row.get('Block Dim', '')} cores".strip(), values=values)


_CORES = ("aic_cube", "aic_vector", "aiv_cube", "aiv_vector")


def _ratio(row: Mapping[str, str], prefix: str) -> float | None:
    """Share of the time a unit was busy: the column itself, or the sum over its formats."""
    ratio = number(row.get(f"{prefix}_ratio", ""))
    if ratio is not None:
        return ratio
    parts = [number(text) for name, text in row.items() if name.startswith(f"{prefix}_") and name.endswith("_ratio")]
    known_parts = [part for part in parts if part is not None]
    return sum(known_parts) if known_parts else None
