"""Turn measured kernels into seconds beside what a profile, a library's published figures, or the fit says of them.

    1 profile    the chip's own profile, the same implementation             evidence measured
    2 library    the same library's figures on that chip: published rows and aiconfigurator's, in `cost/profiles`
    3 kin        the same library on another chip of its family
    4 fitted     data-sheet roof times the calibration's sustained shares

A published row is never used for itself: whatever has its chip, library and sizes is left out of what prices it. Own
H200 rows are no library's: they judge the profile, which was taken by `ridgeline characterize` on other days.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

import numpy as np

from ridgeline.calibrate.truth.csv_cells import Skipped
from ridgeline.calibrate.truth.kernel_rows import PublishedKernel, kernel_of
from ridgeline.calibrate.truth.rows import TRUTH, Row, read_table
from ridgeline.core.dtype import element_bytes
from ridgeline.core.errors import RidgelineError
from ridgeline.core.evidence import Evidence
from ridgeline.cost import Calibration, Profile, owners, read_profile
from ridgeline.cost.fitting import (
    FLASH,
    PRODUCTS,
    SHIPPED_PROFILES,
    ChipRates,
    Measurement,
    chip_rates,
    fitted_share,
    kernel_columns,
    product_state,
    roof_and_place,
    shipped_calibration,
    surface_of,
)
from ridgeline.hardware.load import CHIPS, chip
from ridgeline.ir.kernel import LEAST_OUTPUT, Kernel, product_bytes
from ridgeline.plan.engine import ENGINES

KERNELS = "kernels.csv"
LIBRARY_FOLDER = SHIPPED_PROFILES / "libraries"
FEWEST_WARM = 24  # products from the cache, below which they say little of others
FEWEST = 3  # rows that make a surface of a library's published figures
# an implementation -> those that stand in for it, the nearest first
STANDS_IN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "tuned": ("torch", "scaled_mm", "trtllm"),
        "cublaslt": ("scaled_mm",),
        "compiled": ("torch",),
        "torch": ("compiled", "trtllm"),
        "fused": ("foreach",),
        "flash-3": ("vllm", "sglang"),
        "infersim": ("flash-3", "vllm", "deepgemm"),
        "vllm": ("flash-3",),
    }
)
HEADS_FIRST = "_bhsd"  # attention on tensors whose heads lie before tokens, as benchmarks have them and models have not
CASTS, NARROW = ("trtllm",), ("fp8", "nvfp4")  # a library that times the cast of its inputs in these formats too
# which engine's calibration prices a kernel that nobody measured
ENGINE_OF: Mapping[str, str] = MappingProxyType(
    {"flash": "torchtitan", "triton": "llm-foundry", "cudnn": "torch-eager"}
)
UNFUSED = 4.0  # a flash kernel's time over, of attention whose scores go through memory
Key = tuple[str, str, str, str, int]
"""Chip, op, implementation, format, causal: what a surface is of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPrice:
    """Seconds of one kernel: where they come from, doublings to the nearest measured one, and their evidence."""

    seconds: float
    how: str
    distance: float
    evidence: Evidence


def price_kernels(
    kernels: Sequence[PublishedKernel], profiles: Mapping[str, Profile], calibration: Calibration | None = None
) -> list[KernelPrice]:
    """The price of every kernel: by profiles first, by libraries' figures without its own, by the calibration last."""
    numbers = calibration or shipped_calibration()
    tables = _Tables(profiles)
    return [_slower(kernel, _price_kernel(kernel, tables, numbers), tables, numbers) for kernel in kernels]


def _slower(one: PublishedKernel, price: KernelPrice, tables: _Tables, calibration: Calibration) -> KernelPrice:
    """A compiled kernel of our own tables, which is slower than the one `characterize` compiles for its very shape.

    By as much as the other compiled kernels of the tables are: the geometric mean of measured over priced. They were
    compiled for any number of rows, as an engine that sees many lengths does.
    """
    if one.kernel.impl != "compiled" or not is_own(one.row) or price.how != "profile":
        return price
    other_logs = [
        math.log(peer.kernel.seconds / _price_kernel(peer, tables, calibration).seconds)
        for peer in bundled_kernels()
        if peer.kernel.impl == "compiled" and peer.chip == one.chip and is_own(peer.row)
        and (peer.kernel.op, dict(peer.kernel.dims)) != (one.kernel.op, dict(one.kernel.dims))
    ]  # fmt: skip
    if len(other_logs) < FEWEST:
        return price
    ratio = math.exp(sum(other_logs) / len(other_logs))
    return replace(
        price,
        seconds=price.seconds * ratio,
        how=f"profile, times {ratio:.2f} by other kernels compiled for any length",
        evidence=Evidence.FITTED,
    )


def _price_kernel(one: PublishedKernel, tables: _Tables, calibration: Calibration) -> KernelPrice:
    kernel = one.kernel
    roof = _roof(kernel, _sheet(one.chip))
    fitted_s = roof / _share(kernel, one.chip, calibration)
    for how, rows, sheet in tables.candidates(one):
        surface = surface_of(rows, sheet)
        if surface is None:
            continue
        _, place = roof_and_place(kernel.op, rows[0].dtype, kernel_columns([kernel]), sheet)
        place = np.column_stack([place, product_state([_as_run(one, rows)])]) if kernel.op == "gemm" else place
        ratio, distance = surface.read(place)
        nearest = float(distance[0])
        far = float(fitted_share(distance)[0])
        if far >= 1:
            continue
        seconds = float(np.exp((1 - far) * (np.log(roof) + ratio[0]) + far * np.log(fitted_s)))
        evidence = Evidence.MEASURED if how == "profile" and far == 0 else Evidence.FITTED
        return KernelPrice(seconds=seconds, how=how, distance=nearest, evidence=evidence)
    return KernelPrice(seconds=fitted_s, how="fitted", distance=float("inf"), evidence=Evidence.FITTED)


def _as_run(one: PublishedKernel, rows: Sequence[Measurement]) -> Measurement:
    """The kernel with what its benchmark does to it: replays of one graph find small operands in the cache.

    Told only where enough of the rows that price it were measured so.
    """
    kernel, cache_capacity = one.kernel, chip(one.chip).cache.capacity
    m, n, k = (kernel.dims[side] for side in "mnk")
    size = product_bytes((m, n, k), 1, element_bytes(kernel.dtype), LEAST_OUTPUT)
    has_warm_rows = sum(row.figures.get("cold") == 0 for row in rows) >= FEWEST_WARM
    warm = has_warm_rows and is_own(one.row) and cache_capacity is not None and size < cache_capacity.value
    return replace(kernel, figures={"cold": 0.0}) if warm else kernel


class _Tables:
    """Measured rows by what a surface is of."""

    def __init__(self, profiles: Mapping[str, Profile]) -> None:
        self.own: dict[Key, list[Measurement]] = {}
        for id, profile in profiles.items():
            for row in _without_warm(profile):
                self.own.setdefault(_key(id, row), []).append(row)
        self.library = _library_rows()

    def candidates(self, one: PublishedKernel) -> Iterable[tuple[str, list[Measurement], ChipRates]]:
        """Rows that can price a kernel, best first, each with the data sheet they are shares of."""
        chips = [one.chip, *_kin(one.chip)]
        impl_name, substitutes = one.kernel.impl, STANDS_IN.get(one.kernel.impl, ())
        impls = (
            f"{impl_name}{HEADS_FIRST}",
            impl_name,
            *(name for name in substitutes if name not in CASTS or one.kernel.dtype not in NARROW),
        )
        for impl in impls:
            rows = self.own.get(_key(one.chip, one.kernel, impl), [])
            if one.kernel.op == "launch":  # of the same kind of call
                rows = [row for row in rows if row.kernel.words.get("kind", "") in one.row["kernel"]]
            if rows:
                yield "profile", rows, _sheet(one.chip)
        for impl in impls:
            for place, id in enumerate(chips):
                rows = [row for row in self.library.get(_key(id, one.kernel, impl), ()) if not _same(row, one, id)]
                if len(rows) >= FEWEST:
                    yield "library" if not place else f"library on {id}", rows, _sheet(id)


def _key(id: str, row: Measurement, impl: str = "") -> Key:
    dtype = "bf16" if row.dtype == "fp16" and row.op in FLASH else row.dtype
    dtype = "" if row.op in ("copy", "read", "write", "h2d", "d2h", "launch") else dtype
    name = impl or row.impl
    layout = {"torch_nn": "torch", "torch_nt": "torch"}.get(name, name) if row.op == "gemm" else name
    return id, row.op, layout, dtype, int(row.dims.get("causal", 0)) if row.op in FLASH else 0


def _same(row: Measurement, one: PublishedKernel, id: str) -> bool:
    """Whether a row has the sizes of the kernel that is priced, on its chip or one of its family."""
    return dict(row.dims) == dict(one.kernel.dims) and (id == one.chip or row.impl == one.kernel.impl)


def _without_warm(profile: Profile) -> Iterable[Measurement]:
    """Rows that ran; of copies in the cache only those smaller than any that was kept out of it."""
    cold = [row.dims.get("bytes", 0) for row in profile.rows if row.ok and row.figures.get("cold") == 1]
    least = min(cold, default=0)
    for row in profile.rows:
        warm = row.figures.get("cold") == 0 and row.op in ("copy", "read", "write")
        if row.ok and not (warm and least and row.dims.get("bytes", 0) >= least):
            yield row


def _kin(id: str) -> tuple[str, ...]:
    """Other chips of the family, whose cores are alike."""
    catalog_chip = CHIPS[id]
    return tuple(
        relative.id
        for relative in CHIPS.values()
        if relative.family == catalog_chip.family and catalog_chip.family and relative.id != id
    )


@cache
def _sheet(id: str) -> ChipRates:
    return chip_rates(chip(id))


@cache
def bundled_kernels() -> tuple[PublishedKernel, ...]:
    """The bundled rows that can be predicted."""
    read = (kernel_of(row) for row in read_table(TRUTH / KERNELS, ("kernels",))[1])
    return tuple(item for item in read if not isinstance(item, Skipped))


@cache
def _library_rows() -> Mapping[Key, tuple[Measurement, ...]]:
    """What libraries published, by what a surface is of: bundled rows but our own, and aiconfigurator's."""
    rows_by_key: dict[Key, list[Measurement]] = {}
    for kernel_row in bundled_kernels():
        if not is_own(kernel_row.row):
            rows_by_key.setdefault(_key(kernel_row.chip, kernel_row.kernel), []).append(kernel_row.kernel)
    for path in sorted(LIBRARY_FOLDER.glob("*.json")):
        profile = read_profile(path)
        for row in profile.rows:
            if row.ok:
                rows_by_key.setdefault(_key(profile.chip, row), []).append(row)
    return MappingProxyType({key: tuple(rows) for key, rows in rows_by_key.items()})


def is_own(row: Row) -> bool:
    """Whether a row was measured for this project: it judges profiles and prices nothing."""
    return row["source"].startswith("own measurement")


def _roof(kernel: Measurement, sheet: ChipRates) -> float:
    return float(roof_and_place(kernel.op, kernel.dtype, kernel_columns([kernel]), sheet)[0][0])


def is_priceable(one: PublishedKernel) -> bool:
    """Whether the catalog has the rates that a kernel's roof needs."""
    try:
        return math.isfinite(_roof(one.kernel, _sheet(one.chip)))
    except RidgelineError:
        return False


def unpriceable(one: PublishedKernel) -> str:
    """Why a kernel has no roof."""
    return f"precision: {one.chip} has no published rate for {one.kernel.dtype}, or for its memory"


def _share(kernel: Measurement, id: str, calibration: Calibration) -> float:
    """What the calibration says is sustained of a kernel's roof."""
    owner_names = owners(chip(id), ENGINES[ENGINE_OF.get(kernel.impl, "torch-eager")])
    if kernel.op in PRODUCTS:
        name = {"fp8": "matmul_8", "int8": "matmul_8", "nvfp4": "matmul_4"}.get(kernel.dtype, "matmul_wide")
        return calibration.owner_value(name, owner_names)
    if kernel.op in FLASH:
        share = calibration.owner_value("attention", owner_names)
        share *= 1.0 if kernel.op == "attention_forward" else calibration.owner_value("attention_back", owner_names)
        return share / (UNFUSED if kernel.impl in ("math", "xformers") else 1.0)
    return calibration.owner_value("memory", owner_names) if kernel.op not in ("h2d", "d2h", "launch") else 0.85


def group_of(kernel: Kernel | Measurement) -> str:
    """What kernels are reported by: product, attention, or memory.

    >>> group_of(Kernel(op="gemm", dims={}))
    'product'
    """
    if kernel.op in PRODUCTS:
        return "product"
    return "attention" if kernel.op.startswith("attention") else "memory"


@cache
def _bundled_log_ratios() -> Mapping[tuple[str, bool], tuple[tuple[str, float], ...]]:
    """By group and whether fitted, id and log(measured / predicted) of bundled kernels."""
    from ridgeline.cost import shipped_profiles

    kernels = bundled_kernels()
    logs_by_group: dict[tuple[str, bool], list[tuple[str, float]]] = {}
    for kernel, price in zip(kernels, price_kernels(kernels, shipped_profiles()), strict=True):
        log = float(np.log(kernel.kernel.seconds / price.seconds))
        logs_by_group.setdefault((group_of(kernel.kernel), price.how == "fitted"), []).append((kernel.row.id, log))
    return MappingProxyType({key: tuple(pairs) for key, pairs in logs_by_group.items()})


def kernel_interval(one: PublishedKernel, price: KernelPrice) -> tuple[float, float]:
    """Where nine of ten measurements lie around a price of 1 s: bundled kernels of that group priced alike, not it."""
    pairs = _bundled_log_ratios().get((group_of(one.kernel), price.how == "fitted"), ())
    logs = [log for id, log in pairs if id != one.row.id]
    if len(logs) < 10:
        return 0.5, 2.0
    low, high = np.exp(np.quantile(logs, [0.05, 0.95]))
    return float(low), float(high)
