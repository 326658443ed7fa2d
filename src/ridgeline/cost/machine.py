"""Turn systems and a calibration into columns of numbers with which ops are priced: one entry per scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType

import numpy as np

from ridgeline.comm.closed_form import TopologyColumns, leaving, topology_columns
from ridgeline.core.arrays import Array, Index, at
from ridgeline.core.dtype import PEAKS
from ridgeline.core.records import dataclass
from ridgeline.core.units import DECIMAL
from ridgeline.cost.anchoring import pace_of
from ridgeline.cost.calibration import PARAMETERS, Calibration, owners
from ridgeline.cost.profile import Profile, profile_for
from ridgeline.hardware.chip import Chip
from ridgeline.hardware.load import CHIPS, rated_power
from ridgeline.hardware.system import System
from ridgeline.hardware.topology import Torus
from ridgeline.ir.ops import HostCopy
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train

WIDE = PEAKS.index("bf16")
# flops for a joule of an H100 SXM at its rated power, by peak; it has no 4-bit unit, which would halve a flop once more
FLOPS_PER_JOULE: Mapping[str, float] = MappingProxyType(
    {
        key: teras * DECIMAL["T"] / 700
        for key, teras in {
            "fp64": 67.0, "fp32": 67.0, "tf32": 494.5, "bf16": 989.0, "fp16": 989.0, "fp8": 1979.0, "int8": 1979.0,
            "fp4": 3958.0, "int4": 3958.0,
        }.items()
    }
)  # fmt: skip
BITS = {"fp8": 8, "int8": 8, "fp4": 4, "int4": 4, "nvfp4": 4}  # of formats with a unit of their own
FLOOR = 1.8e-6  # seconds of a kernel that does next to nothing
MOST_OF_MEMORY = 0.98  # of its rate, whatever a clock says
FLOPS_PER_EXPONENTIAL = 16.0  # 128 multiply-adds beside 16 exponentials a clock and core


def product_parameter(dtype: str) -> str:
    """Which parameter says what share of a format's peak products sustain."""
    return f"matmul_{BITS[dtype]}" if dtype in BITS else "matmul_wide"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """What the data sheets say, by row: flops/s by peak (0 where not published), bytes/s, cores, chips of a domain."""

    peak: Array
    memory: Array
    cores: Array
    scale_up: Array
    scale_out: Array
    domain: Array
    host: Array  # bytes/s to host memory; infinite where nobody states it
    crowding: Array  # times as long as alone that a rank takes to issue work, where ranks share few cores of a host
    topology: TopologyColumns
    exponentials: Array  # a second, of the unit that works out softmax
    density: Array  # by peak: flops for a joule of rated power, over those of an H100 SXM; 1 where no power is known
    floor: Array | None = None  # seconds of a kernel that does next to nothing; None: as measured

    @classmethod
    def of(cls, systems: Sequence[System]) -> Machines:
        """The columns of several systems; a number that is missing is named."""
        rows = [_machine_row(system) for system in systems]
        names = [field.name for field in fields(cls) if field.name not in ("floor", "topology")]
        columns = {name: np.array([row[name] for row in rows], dtype=np.float64) for name in names}
        return cls(topology=topology_columns(systems), **columns)

    @property
    def floor_s(self) -> float:
        """Seconds of a kernel that does next to nothing, of the first row."""
        return FLOOR if self.floor is None else float(self.floor[0])

    def at(self, rows: Index) -> Machines:
        """The machines of these rows, in this order."""
        names = [field.name for field in fields(self) if field.name not in ("floor", "topology")]
        columns = {name: getattr(self, name)[rows] for name in names}
        floor = None if self.floor is None else self.floor[rows]
        return Machines(topology=self.topology.at(rows), floor=floor, **columns)

    def scaled(self, factors: Mapping[str, Array], count: int) -> Machines:
        """One machine in `count` rows, its numbers times factors by row.

        memory, scale_up, scale_out, host, exponentials, cores, domain   as fields are called
        peak.FORMAT, density.FORMAT, density                             of one format, or of all
        start, scale_out_step, top, hop, switch_step                     of its links
        floor                                                            of kernels
        """
        one = np.ones(count)
        names = [field.name for field in fields(self) if field.name not in ("peak", "density", "floor", "topology")]
        columns = {name: np.repeat(getattr(self, name), count) * factors.get(name, one) for name in names}
        by_format = {
            name: np.stack(
                [getattr(self, name)[:, place] * factors.get(f"{name}.{key}", one) for place, key in enumerate(PEAKS)],
                axis=1,
            )
            for name in ("peak", "density")
        }
        by_format["density"] *= factors.get("density", one)[:, None]
        floor = FLOOR * factors["floor"] if "floor" in factors else None
        return Machines(**columns, **by_format, floor=floor, topology=self.topology.scaled(factors, count))

    def copy_seconds(self, op: HostCopy, rows: Index | slice = slice(None)) -> Array:
        """A copy over the chip's link to its host; nothing where the catalog does not state its rate."""
        return np.asarray(op.payload_bytes / at(self.host, rows), dtype=np.float64)


def _machine_row(system: System) -> dict[str, float | list[float]]:
    chip, tiers = system.chip, system.tiers
    inner = tiers[0] if tiers else None
    torus = inner is not None and isinstance(inner.topology, Torus)
    scale_up = inner.need_bandwidth().value if inner else 1.0
    peaks = [chip.peak[key].value if key in chip.peak else 0.0 for key in PEAKS]
    peaks[WIDE] = peaks[WIDE] or peaks[PEAKS.index("fp16")]
    return {
        "peak": peaks,
        "memory": chip.need("hbm.bandwidth").value,
        "cores": 1.0 if torus or chip.cores is None else chip.cores.value,
        "scale_up": scale_up,
        "scale_out": leaving(tiers[1]) if len(tiers) > 1 else scale_up,
        "domain": float(inner.chips) if inner else 1.0,
        "host": chip.host.bandwidth.value if chip.host.bandwidth else float("inf"),
        "crowding": crowding_of(system),
        "exponentials": exponentials_per_s(chip),
        "density": [density_of(chip, key) for key in PEAKS],
    }


def crowding_of(system: System) -> float:
    """How much longer a rank takes to issue its kernels because the ranks of a node share its host's cores.

        max(1, ranks of a node / cores)

    A rank keeps one core busy: Python's lock lets its threads take turns. Eight eager layers took as long on one core
    as on sixteen (11 and 12 ms), and 18 ms where four ranks had two cores. One chip is one rank, and a host whose
    cores nobody states has enough of them; threads that load data are not counted, so state the cores they leave.

    >>> from dataclasses import replace
    >>> from ridgeline.core.evidence import Evidence, Quoted
    >>> from ridgeline.hardware.load import system
    >>> four = Quoted(value=4.0, evidence=Evidence.ASSUMED, source="a container's share")
    >>> crowding_of(system("16xh100-sxm")), crowding_of(replace(system("16xh100-sxm"), host_cores=four))
    (1.0, 2.0)
    """
    return max(1.0, system.node / system.host_cores.value) if system.host_cores else 1.0


def density_of(chip: Chip, key: str = "bf16") -> float:
    """A peak over rated power, an H100 SXM being 1: the denser, the further clocks fall when all units work.

    By each format's own peak, so that a faster unit for one never slows another.

    >>> from ridgeline.hardware.load import chip
    >>> [round(density_of(chip(name)), 2) for name in ("a100-80-sxm", "h100-sxm", "b200-sxm", "tpu-v5p")]
    [0.55, 1.0, 1.59, 1.0]
    """
    peak, power = chip.peak.get(key), rated_power(chip)
    if key == "bf16":
        peak = peak or chip.peak.get("fp16")
    return peak.value / power.value / FLOPS_PER_JOULE[key] if peak and power and peak.value else 1.0


def exponentials_per_s(chip: Chip) -> float:
    """Exponentials a second: as the catalog states, else one for 16 flops outside the matrix unit, as GPUs are built.

    Where neither is published, twice what the matrix unit asks for at head size 128, so that it does not limit there.

    >>> from ridgeline.hardware.load import chip
    >>> f"{exponentials_per_s(chip('h100-sxm')):.3g} {exponentials_per_s(chip('b300-sxm')):.3g}"
    '4.19e+12 1e+13'
    """
    if chip.exponentials is not None:
        return chip.exponentials.value
    if chip.vector is not None:
        return chip.vector.value / FLOPS_PER_EXPONENTIAL
    wide = chip.peak.get("bf16") or chip.peak.get("fp16")
    return wide.value / (4 * 128) * 2 if wide else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterColumns:
    """Values of every parameter by row, under the parameter's name.

    pace   what a step takes longer than these values say, as anchoring found; None where nothing was anchored
    """

    values: dict[str, Array]
    pace: Array | None = None

    @classmethod
    def of(cls, calibration: Calibration, scenarios: Sequence[Scenario]) -> ParameterColumns:
        """The parameters of several scenarios under one calibration: by the chip and the engine that each carries.

        Where a profile of the chip has large copies, the share of memory's rate is theirs.
        """
        owner_rows = [owners(scenario.system.chip, scenario.engine) for scenario in scenarios]
        values_of = {
            owner: {name: calibration.owner_value(name, owner) for name in PARAMETERS}
            for owner in dict.fromkeys(owner_rows)
        }
        values = {name: np.array([values_of[owner][name] for owner in owner_rows]) for name in PARAMETERS}
        if calibration.profiles:
            values["memory"] = measured_memory(scenarios, calibration.profiles, values["memory"])
            values["update"] = measured_updates(scenarios, calibration.profiles, values["memory"])
        if calibration.anchored is None:
            return cls(values=values)
        return cls(values=values, pace=np.array([pace_of(calibration, scenario) for scenario in scenarios]))

    def __getitem__(self, name: str) -> Array:
        return self.values[name]

    @property
    def update(self) -> Array:
        """The share of memory's rate that an optimizer gets: that of copies where nobody measured one."""
        return self.values.get("update", self.values["memory"])


def measured_updates(scenarios: Sequence[Scenario], profiles: Mapping[str, Profile], fitted: Array) -> Array:
    """Shares of memory's rate that fused AdamW of a chip's profile reaches, by the format of its states; that of copies
    where an engine's own kernel streams."""
    shares = fitted.copy()
    for row, scenario in enumerate(scenarios):
        profile = profile_for(profiles, scenario.system.chip.fitted_id)
        sheet = scenario.system.chip.hbm.bandwidth
        if profile is None or sheet is None or not isinstance(scenario.workload, Train):
            continue
        if scenario.engine.update_kernel == "streaming":
            continue
        update_rate = profile.update_bytes_per_s(scenario.workload.optimizer.states.id)
        if update_rate is not None:
            shares[row] = min(update_rate / sheet.value, MOST_OF_MEMORY)
    return shares


def measured_memory(scenarios: Sequence[Scenario], profiles: Mapping[str, Profile], fitted: Array) -> Array:
    """Shares of memory's rate: what large copies of a chip's profile reach of the data sheet's, else the fitted one."""
    shares = fitted.copy()
    for row, scenario in enumerate(scenarios):
        profile = profile_for(profiles, scenario.system.chip.fitted_id)
        copy_rate = profile.copy_bytes_per_s if profile else None
        sheet = (CHIPS.get(profile.chip) if profile else None) or scenario.system.chip
        if copy_rate is not None and sheet.hbm.bandwidth is not None:
            shares[row] = min(copy_rate / sheet.hbm.bandwidth.value, MOST_OF_MEMORY)
    return shares
