"""Turn systems and a calibration into columns of numbers with which ops are priced: one entry per scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.dtype import DTYPES
from ridgeline.cost.parameters import PARAMETERS, Calibration
from ridgeline.cost.wiring import Wiring, leaving, wiring_of
from ridgeline.hardware.system import System
from ridgeline.hardware.topology import Torus

Array = NDArray[np.float64]
PEAKS = tuple(dict.fromkeys(item.peak for item in DTYPES.values()))
WIDE = PEAKS.index("bf16")
# which parameter says what share of a peak is sustained
SHARE = {"fp8": "matmul_8", "int8": "matmul_8", "fp4": "matmul_4", "int4": "matmul_4"}


def at(column: Array, rows: NDArray[np.int64]) -> Array:
    """Entries of a column by row; a column of one entry is the same for all rows."""
    return column if len(column) == 1 else column[rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """What the data sheets say, by row: flops/s by peak (0 where not published), bytes/s, cores, chips of a domain."""

    peak: Array
    memory: Array
    cores: Array
    near: Array
    far: Array
    domain: Array
    host: Array  # bytes/s to host memory; infinite where nobody states it
    wiring: Wiring


def machines_of(systems: Sequence[System]) -> Machines:
    """The columns of several systems; a number that is missing is named."""
    rows = [_one(system) for system in systems]
    columns = [np.array([row[index] for row in rows], dtype=np.float64) for index in range(1, 7)]
    return Machines(
        peak=np.array([row[0] for row in rows], dtype=np.float64),
        memory=columns[0],
        cores=columns[1],
        near=columns[2],
        far=columns[3],
        domain=columns[4],
        host=columns[5],
        wiring=wiring_of(systems),
    )


def _one(system: System) -> tuple[list[float], float, float, float, float, float, float]:
    chip = system.chip
    inner = system.tiers[0] if system.tiers else None
    outer = system.tiers[1] if len(system.tiers) > 1 else None
    torus = inner is not None and isinstance(inner.topology, Torus)
    near = inner.need_bandwidth().value if inner else 1.0
    peaks = [chip.peak[key].value if key in chip.peak else 0.0 for key in PEAKS]
    peaks[WIDE] = peaks[WIDE] or peaks[PEAKS.index("fp16")]
    return (
        peaks,
        chip.need("hbm.bandwidth").value,
        1.0 if torus or chip.cores is None else chip.cores.value,
        near,
        leaving(outer) if outer else near,
        float(inner.chips) if inner else 1.0,
        chip.host.bandwidth.value if chip.host.bandwidth else float("inf"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Values of every parameter by row, under the parameter's name."""

    values: dict[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.values[name]


def rates_of(calibration: Calibration, chips: Sequence[str], engines: Sequence[str]) -> Rates:
    """The parameters of several scenarios under one calibration."""
    pairs = list(zip(chips, engines, strict=True))
    known = {pair: {name: calibration.value(name, *pair) for name in PARAMETERS} for pair in dict.fromkeys(pairs)}
    return Rates(values={name: np.array([known[pair][name] for pair in pairs]) for name in PARAMETERS})
