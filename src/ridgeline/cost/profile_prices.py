"""Turn a profile and a table of ops into measured seconds, with how far each op is from a kernel that was timed.

    product      efficiency of the measured product nearest in shape, layout and format
    attention    the same of the engine's attention library (cuDNN, FlashAttention-2)

Efficiencies are shares of the data sheet's roof, so that a chip with another memory or clock in a what-if moves along.
What is out of reach goes over to the fitted model. Streams, links and overheads stay parameters; the share of memory's
rate that large copies reach takes the place of the fitted one (`machine.parameter_columns`).

Turn measured kernels into a Surface: efficiency over the logarithm of sizes, read between its points.

    log t(x) = log roof(x) + sum_i w_i log(t_i / roof_i) / sum_i w_i        w = exp(-(d^2 - d0^2) / 2 h^2) / (d^2 + e)

d = distance to a measured kernel in doublings of its sizes, d0 to the nearest. Weights are positive and sum to one, so
no efficiency leaves the range of its neighbours: larger work is never cheap because of a polynomial's swing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from ridgeline.core.arrays import Array, Index, Mask, at
from ridgeline.core.dtype import PEAKS, element_bytes
from ridgeline.core.errors import RidgelineError
from ridgeline.core.records import dataclass
from ridgeline.cost.kernels import (
    ChipRates,
    Units,
    attention_coordinates,
    attention_roof,
    attention_work,
    decode_coordinates,
    halvings_to_align,
    memory_coordinates,
    product_coordinates,
    product_roof,
)
from ridgeline.cost.machine import FLOOR, Machines
from ridgeline.cost.op_table import OpTable
from ridgeline.cost.profile import Measurement, Profile, profile_for
from ridgeline.hardware.load import CHIPS, chip
from ridgeline.ir.kernel import FLASH_PASSES, PRODUCTS, kernel_bytes, kernel_flops, product_bytes, product_flops
from ridgeline.ir.ops import ALIGNED
from ridgeline.ir.program import PHASES
from ridgeline.plan.resolve import attention_format
from ridgeline.plan.scenario import Scenario

NEAR = 0.5  # doublings over which neighbours share in an answer
NOTHING = -100.0  # exponents below add nothing; smaller ones make denormal numbers, which are slow
EXACT = 0.002  # squared doublings within which a measured kernel speaks for itself
BLOCK = 4_000_000  # distances worked out at once
SAME, REACH, END = 0.05, 1.5, 4.0  # doublings: the kernel itself; interpolated up to; nothing measured counts beyond
LAYOUTS: Mapping[str, tuple[float, float]] = {"torch_nn": (0.6, 0.0), "torch_nt": (0.0, 0.6)}
FROM_CACHE = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """Efficiencies of measured kernels of one op, format and implementation, in logarithms, by their coordinates."""

    points: Array
    ratios: Array
    rows: int

    def read(self, where: Array) -> tuple[Array, Array]:
        """Logarithm of seconds over roof at each place, and how far the nearest measured kernel is, in doublings."""
        ratios, distance = np.empty(len(where)), np.empty(len(where))
        step = max(1, BLOCK // max(1, len(self.points)))
        squares = (self.points**2).sum(1)
        for start in range(0, len(where), step):
            block = where[start : start + step]
            squared_distance = np.maximum((block**2).sum(1)[:, None] + squares - 2 * block @ self.points.T, 0.0)
            least = squared_distance.min(1)
            weight = (least[:, None] - squared_distance) / (2 * NEAR**2)
            np.exp(np.maximum(weight, NOTHING, out=weight), out=weight)
            squared_distance += EXACT
            weight /= squared_distance
            ratios[start : start + step] = weight @ self.ratios / weight.sum(1)
            distance[start : start + step] = np.sqrt(least)
        return ratios, distance

    @classmethod
    def of(cls, rows: Sequence[Measurement], sheet: ChipRates) -> Surface | None:
        """The surface of rows of one op and format; None where there are none, or the sheet lacks the format's peak."""
        if not rows:
            return None
        roof, place = _roof_and_state(rows, rows[0].dtype, sheet)
        ratios = np.log([row.seconds for row in rows]) - np.log(roof)
        is_finite = np.isfinite(ratios) & np.isfinite(place).all(1)
        return cls(points=place[is_finite], ratios=ratios[is_finite], rows=len(rows)) if is_finite.any() else None

    def price(self, row: Measurement, dtype: str, sheet: ChipRates) -> tuple[float, float, float]:
        """Logarithm of one kernel's seconds over its roof, doublings to the nearest measured kernel, and how much of an
        answer the fitted model gives that far from it.

        dtype   in which the rows of the surface were measured
        """
        ratio, distance = self.read(_roof_and_state([row], dtype, sheet)[1])
        return float(ratio[0]), float(distance[0]), float(fitted_share(distance)[0])


def _roof_and_state(rows: Sequence[Measurement], dtype: str, sheet: ChipRates) -> tuple[Array, Array]:
    """Roofs and coordinates of rows of one op; those of products with what else makes them differ."""
    roof, place = roof_and_place(rows[0].op, dtype, kernel_columns(rows), sheet)
    return roof, np.column_stack([place, product_state(rows)]) if rows[0].op == "gemm" else place


def kernel_roof(row: Measurement, sheet: ChipRates) -> float:
    """Seconds of a kernel at data-sheet rates."""
    return float(roof_and_place(row.op, row.dtype, kernel_columns([row]), sheet)[0][0])


def fitted_share(distance: Array) -> Array:
    """How much of an answer the fitted model gives: nothing up to `REACH` doublings away, all of it from `END` on."""
    return np.clip((distance - REACH) / (END - REACH), 0.0, 1.0)


def kernel_columns(rows: Sequence[Measurement]) -> dict[str, Array]:
    """Sizes of rows of one op as columns."""
    names = dict.fromkeys(name for row in rows for name in row.dims) or ("runs",)
    return {name: np.array([row.dims.get(name, 1) for row in rows], dtype=np.float64) for name in names}


def product_state(rows: Sequence[Measurement]) -> Array:
    """What makes products of one shape differ, as three more coordinates: which operand lies transposed, and whether
    operands were in the cache from the run before."""
    states = [(*LAYOUTS.get(row.impl, (0.0, 0.0)), FROM_CACHE * (row.figures.get("cold") == 0)) for row in rows]
    return np.array(states, dtype=np.float64).reshape(-1, 3)


def roof_and_place(op: str, dtype: str, dims: Mapping[str, Array], sheet: ChipRates) -> tuple[Array, Array]:
    """Seconds of kernels at data-sheet rates, and their coordinates."""
    size = element_bytes(dtype)
    peak = sheet.peak(dtype)
    count = len(next(iter(dims.values())))
    wide = np.full(count, peak or np.nan)
    memory = np.full(count, sheet.memory)
    if op in PRODUCTS:
        groups = dims.get("groups", np.ones(count))
        sizes = np.stack([dims["m"], dims["n"], dims["k"], groups])
        traffic = kernel_bytes(op, dims, size)
        roof = product_roof(sizes, traffic, wide, memory, np.full(count, sheet.cores))
        place = product_coordinates(sizes, halvings_to_align(sizes))
        return roof, place if op == "gemm" else np.column_stack([place, 0.4 * np.log2(groups)])
    if op in FLASH_PASSES:
        return _flash(FLASH_PASSES[op], dims, size, (wide, np.full(count, sheet.exponentials), memory))
    if op == "launch":
        return np.full(count, FLOOR), np.zeros((count, 1))
    traffic_bytes = kernel_bytes(op, dims, size)
    if op == "attention_latent":
        flops = kernel_flops(op, dims)
        place = np.stack([np.log2(traffic_bytes), np.log2(dims["batch"])], axis=1)
        return np.hypot(flops / wide, traffic_bytes / sheet.memory) + FLOOR, place
    rate = sheet.host if op in ("h2d", "d2h") else sheet.memory
    return traffic_bytes / rate + FLOOR, memory_coordinates(op, dims, traffic_bytes)


def _flash(passes: tuple[bool, ...], dims: Mapping[str, Array], size: float, units: Units) -> tuple[Array, Array]:
    """Roof of the passes of flash attention one after the other; coordinates of the first."""
    works = [attention_work(dims, backward, size) for backward in passes]
    width = dims["head_dim"]
    backs = [np.full(len(width), float(backward)) for backward in passes]
    roof = sum(
        (attention_roof(*work, width, back, units) for work, back in zip(works, backs, strict=True)),
        start=np.zeros(len(width)),
    )
    return roof, attention_coordinates(*works[0], width)


PLAIN = ("torch", "torch_nn", "torch_nt", "scaled_mm", "int_mm")  # products as frameworks call the vendor's library
LIBRARY: Mapping[str, str] = MappingProxyType({"cudnn": "cudnn", "flash-2": "flash"})
"""Implementation of attention in a profile, by an engine's attention library."""
DECODED = "cudnn"  # implementation whose rows price a decode's attention: engines that serve have kernels as good
FORMATS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "bf16": ("bf16", "fp16"),
        "fp16": ("fp16", "bf16"),
        "fp8": ("fp8",),
        "int8": ("int8",),
        "tf32": ("tf32",),
        "fp32": ("fp32",),
        "fp4": ("nvfp4",),
    }
)
"""Formats of measured products that price a peak, the first that was measured."""
MOST_SHARED = 16  # query heads of a cached head beyond which a decode's products count: latent attention
# coordinates of products by phase beside their shape: layout, and operands from main memory
BETWEEN = 0.5  # the same of attention between products: on an H200 1.15 to 1.24 of what it takes by itself
STEADY = 0.75  # of what clocks lose under load, in logarithms: memory-bound kernels between products give power back

PHASE_STATE = np.array([(*LAYOUTS.get(name, (0.0, 0.0)), 0.0) for name in ("torch", "torch_nn", "torch_nt", "torch")])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelPrices:
    """Surfaces of a profile: products by peak, attention by implementation and direction, attention of a decode."""

    products: Mapping[str, Surface]
    attention: Mapping[tuple[str, bool], Surface]
    decode: Surface | None = None
    steady: float = 1.0  # time of products in a step over that of the rows they were measured in


@lru_cache(maxsize=64)
def kernel_prices(profile: Profile, sheet: ChipRates) -> KernelPrices:
    """The surfaces of a profile over a chip's data sheet."""
    products = {key: Surface.of(_products(profile, names), sheet) for key, names in FORMATS.items()}
    attention = {
        (impl, backward): Surface.of(_between_products(profile, op, impl), sheet)
        for impl in LIBRARY.values()
        for op, backward in (("attention_forward", False), ("attention_backward", True))
    }
    cold, load = profile.clocks
    return KernelPrices(
        products=MappingProxyType({key: surface for key, surface in products.items() if surface}),
        attention=MappingProxyType({key: surface for key, surface in attention.items() if surface}),
        decode=Surface.of([row for row in profile.of("attention_decode") if row.impl == DECODED], sheet),
        steady=cold ** (1 - STEADY) * load**STEADY,
    )


def _between_products(profile: Profile, op: str, impl: str) -> list[Measurement]:
    """Attention as it runs in a step: the clock that products pull down does not come back for it at once.

    seconds x (its clock / the clock of products under load) ** 1/2
    """
    rows = [row for row in profile.of(op) if row.impl == impl and row.dtype == "bf16"]
    load = profile.clock_under_load
    if load is None:
        return rows
    ahead = [max(row.figures.get("clock_mhz", load) / load, 1.0) for row in rows]
    return [
        replace(row, seconds=row.seconds * clock_ratio**BETWEEN) for row, clock_ratio in zip(rows, ahead, strict=True)
    ]


def _products(profile: Profile, names: Sequence[str]) -> list[Measurement]:
    """The products of the first of these formats that was measured, as frameworks call them, else as most were."""
    for name in names:
        rows = [row for row in profile.of("gemm") if row.dtype == name]
        plain = [row for row in rows if row.impl in PLAIN]
        if rows and not plain:
            impls = [row.impl for row in rows]
            commonest = max(dict.fromkeys(impls), key=impls.count)
            plain = [row for row in rows if row.impl == commonest]
        if plain:
            return plain
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredKernels:
    """The kernel prices of some scenarios: by row, which of `prices` is its own (-1: none), and its attention."""

    prices: tuple[KernelPrices, ...]
    own: Index
    attention: tuple[str, ...]


def measured_kernels(scenarios: Sequence[Scenario], profiles: Mapping[str, Profile]) -> MeasuredKernels | None:
    """Which measured prices each scenario's chip has; None where none has any."""
    if not profiles:
        return None
    places: dict[int, int] = {}
    prices: list[KernelPrices] = []
    price_index = np.full(len(scenarios), -1, dtype=np.int64)
    for row, scenario in enumerate(scenarios):
        profile = profile_for(profiles, scenario.system.chip.fitted_id)
        if profile is None:
            continue
        prices_of_chip = kernel_prices(profile, measured_rates(profile, scenario))
        if id(prices_of_chip) not in places:
            places[id(prices_of_chip)] = len(prices)
            prices.append(prices_of_chip)
        price_index[row] = places[id(prices_of_chip)]
    impls = tuple(_flash_kernel(scenario) for scenario in scenarios)
    return MeasuredKernels(prices=tuple(prices), own=price_index, attention=impls) if prices else None


def _flash_kernel(scenario: Scenario) -> str:
    """Which of the measured flash kernels a scenario's attention runs: they are of 16 bits, none for wider formats."""
    narrow = attention_format(scenario.plan.precision).bits <= 16
    return LIBRARY.get(scenario.engine.kernel, "") if narrow else ""


def measured_rates(profile: Profile, scenario: Scenario) -> ChipRates:
    """The data sheet that efficiencies are shares of: the catalog's chip, else the scenario's own."""
    if profile.chip in CHIPS:
        try:
            return ChipRates.of(chip(profile.chip))
        except RidgelineError:
            pass
    return ChipRates.of(scenario.system.chip)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOps:
    """Measured seconds of products and attention in the order of a table, 1 s where nothing was measured.

    fitted     how much of each price the fitted model gives: 1 where nothing was measured
    distance   doublings to the nearest measured kernel; infinite where there is none
    """

    matmul_s: Array
    matmul_fitted: Array
    matmul_distance: Array
    attend_s: Array
    attend_fitted: Array
    attend_distance: Array

    @property
    def timed_themselves(self) -> tuple[Mask, Mask]:
        """Which products, and which attention kernels, were themselves measured."""
        return self.matmul_distance <= SAME, self.attend_distance <= SAME

    @classmethod
    def of(
        cls, table: OpTable, machines: Machines, scenarios: Sequence[Scenario], profiles: Mapping[str, Profile]
    ) -> MeasuredOps | None:
        """What profiles of the scenarios' chips say of every op of a table; None without any."""
        kernels = measured_kernels(scenarios, profiles)
        if kernels is None:
            return None
        products = _matmuls(table, machines, kernels)
        attends = _attends(table, machines, kernels)
        return cls(
            matmul_s=products[0],
            matmul_fitted=fitted_share(products[1]),
            matmul_distance=products[1],
            attend_s=attends[0],
            attend_fitted=fitted_share(attends[1]),
            attend_distance=attends[1],
        )


def _matmuls(table: OpTable, machines: Machines, kernels: MeasuredKernels) -> tuple[Array, Array]:
    """Measured seconds and distances of products."""
    cell = table.slot_cell[table.matmul_slot]
    seconds, distance = np.ones(len(cell)), np.full(len(cell), np.inf)
    owner, phase = at(kernels.own, cell), table.matmul_slot % PHASES
    owner = np.broadcast_to(owner, cell.shape)
    for place, prices in enumerate(kernels.prices):
        for key, surface in prices.products.items():
            indices = np.flatnonzero((owner == place) & (table.matmul_peak == PEAKS.index(key)))
            if not len(indices):
                continue
            shape_rows = [*range(7), 8, *([] if (table.matmuls[9] == 1).all() else [9])]
            shapes = table.matmuls[np.ix_(shape_rows, indices)]
            first, inverse = _distinct(np.vstack([shapes, phase[indices], cell[indices]]), len(machines.peak))
            mine_first = indices[first]
            m, n, k, groups, size_in, size_out, alignment, _, share, weights = table.matmuls[:, mine_first]
            traffic = product_bytes((m, n, k), groups, size_in, size_out, weights)
            rows = cell[mine_first]
            peak = machines.peak[rows if len(machines.peak) > 1 else 0, PEAKS.index(key)]
            sizes = np.stack([m, n, k, groups])
            roof = product_roof(
                sizes, traffic, np.broadcast_to(peak, m.shape), at(machines.memory, rows), at(machines.cores, rows),
                floor_of(machines, rows),
            )  # fmt: skip
            halvings = np.log2(ALIGNED / alignment)
            where = np.column_stack([product_coordinates(sizes, halvings), PHASE_STATE[phase[mine_first]]])
            ratio, distances = _read_distinct(surface, where) if len(machines.peak) > 1 else surface.read(where)
            least = product_flops(m, n, k, groups) / peak  # no product beats its data sheet
            seconds[indices] = np.maximum(np.exp(ratio) * roof * prices.steady / share, least)[inverse]
            distance[indices] = distances[inverse]
    return seconds, distance


def _distinct(columns: Array, machines: int) -> tuple[Index, Index]:
    """Places of distinct columns, and for every column which of them it is; cells matter where machines differ."""
    used = columns if machines > 1 else columns[:-1]
    odd = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], dtype=np.uint64)
    key = np.zeros(columns.shape[1], dtype=np.uint64)
    for place, column in enumerate(used):
        key = (key ^ np.ascontiguousarray(column).view(np.uint64)) * odd[place % len(odd)]
        key ^= key >> np.uint64(29)
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return first, inverse


def _attends(table: OpTable, machines: Machines, kernels: MeasuredKernels) -> tuple[Array, Array]:
    """Measured seconds and distances of flash attention; what is unfused or a scan was not measured."""
    flops, traffic, width, back, flash, _, scan, caches, sharing = table.attends
    cell = table.slot_cell[table.attend_slot]
    seconds, distance = np.ones(len(cell)), np.full(len(cell), np.inf)
    owner = np.broadcast_to(at(kernels.own, cell), cell.shape)
    impls = np.array(kernels.attention)
    impl = np.broadcast_to(at(impls, cell), cell.shape)
    for place, prices in enumerate(kernels.prices):
        for (name, backward), surface in prices.attention.items():
            is_tiled = (flash > 0) & (scan == 0) & (flops > 0) & (traffic > 0) & (caches == 0)
            indices = np.flatnonzero(is_tiled & (owner == place) & (impl == name) & ((back > 0) == backward))
            if not len(indices):
                continue
            rows = cell[indices]
            wide = np.broadcast_to(at(machines.peak[:, PEAKS.index("bf16")], rows), indices.shape)
            units = (wide, at(machines.exponentials, rows), at(machines.memory, rows))
            work = flops[indices], traffic[indices], width[indices]
            roof = attention_roof(*work, back[indices], units, floor_of(machines, rows))
            ratio, distance[indices] = _read_distinct(surface, attention_coordinates(*work))
            seconds[indices] = np.exp(ratio) * roof
        indices = np.flatnonzero((caches > 0) & (traffic > 0) & (owner == place) & (sharing <= MOST_SHARED))
        if prices.decode is not None and len(indices):
            place_of = decode_coordinates(traffic[indices], caches[indices], sharing[indices], width[indices])
            ratio, distance[indices] = _read_distinct(prices.decode, place_of)
            rows = cell[indices]
            read_s = traffic[indices] / at(machines.memory, rows) + floor_of(machines, rows)
            seconds[indices] = np.exp(ratio) * read_s
    return seconds, distance


def _read_distinct(surface: Surface, places: Array) -> tuple[Array, Array]:
    """A surface read once at every distinct place: machines that differ in rates alone run kernels of one shape."""
    first, inverse = _distinct(np.ascontiguousarray(places.T), len(places) + 1)
    ratio, distance = surface.read(places[first])
    return ratio[inverse], distance[inverse]


def floor_of(machines: Machines, rows: Index) -> Array | float:
    """Seconds of a kernel that does next to nothing, by row."""
    return FLOOR if machines.floor is None else at(machines.floor, rows)
