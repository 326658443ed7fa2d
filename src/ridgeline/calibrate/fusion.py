"""Turn measured regions into rates of kernels, and into predictions that never saw the region they are of.

    minimise   sum_i ((t_i(r) - T_i) / (noise T_i))^2  +  sum_k ((r_k / start_k - 1) / spread_k)^2

t = predicted and T = measured seconds of a device, r = `graph.RATES`. The host's floor (kernels x a launch) is stated
beside each case and is no part of it. A region whose base is among the bundled rows is predicted by a fit without any
row of that base: rms norms in one kernel and in eight are left out together.

Rows of an own H200 profile (norms, softmax, rotary, loss: forward alone) take part at half their weight, under the same
rule. The rates' starting values were chosen with both tables in view; what a fit moves is what cross-validation tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Literal

import numpy as np

from ridgeline.calibrate.truth.rows import TRUTH, Row, RowCells, Skipped, Unusable, read_or_skip, read_table
from ridgeline.calibrate.validation import Pair, Validation, ValidationCase, quantile_span
from ridgeline.core.arrays import Array
from ridgeline.core.dtype import dtype
from ridgeline.cost import fitting, read_profile
from ridgeline.graph import (
    RATES,
    GraphChip,
    KernelRates,
    Variant,
    graph_work,
    kernels_of,
    region,
    region_base,
    shipped_rates,
    work_seconds,
)
from ridgeline.hardware.load import chip
from ridgeline.ir.op_graph import OpPhase

US = 1e-6
NOISE = 0.15  # of a measurement, as far as this model can say
HALF = 0.5  # weight of a row that another table measured
FEWEST_ROWS = 256  # of a profile's row, below which it is the kernel's start alone
LAUNCH_US = 6.7  # that a host takes to launch a kernel in eager PyTorch, measured on that machine (kernels.csv)
UNSEEN = 1.5  # times as wide, in logarithms, as left-out regions: of a make that no bundled row or start looked at
DIFFERENT = 0.05  # by which two variants differ that a sign is asked of
FITTED_CHIP = "h200-sxm"
METRIC = "device_us"
VARIANTS: Mapping[str, str] = MappingProxyType({"eager": "apart", "inductor": "joined", "compiled": "joined"})
DIRECTIONS: Mapping[str, str] = MappingProxyType(
    {"fwd": "forward", "bwd": "backward", "forward": "forward", "backward": "backward", "fwd+bwd": "both"}
)
PHASES: Mapping[str, OpPhase | Literal[""]] = MappingProxyType(
    {"forward": "forward", "backward": "backward", "both": ""}
)
PROFILED: Mapping[str, str] = MappingProxyType(
    {
        "rmsnorm": "rmsnorm-fused", "layernorm": "layernorm", "add_rmsnorm": "residual+rmsnorm-fused",
        "swiglu": "swiglu", "rope": "rotary", "softmax": "softmax", "add": "residual", "cross_entropy": "cross-entropy",
    }
)  # fmt: skip
"""Ops of a profile that are regions; its norms are the library's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRegion:
    """A measured region: what its kernels ask of each rate, and the seconds that the device took.

    base      its words without what changes them, by which it is left out of fits
    kernels   that it was priced as
    """

    base: str
    chip: str
    seconds: float
    work: Mapping[str, float]
    kernels: int = 0
    weight: float = 1.0
    notes: tuple[str, ...] = ()


def _read(cells: RowCells) -> MeasuredRegion:
    """A row as a region of the table; whatever is wrong with it ends the reading with its reason."""
    variant, direction = cells.word("variant", VARIANTS), cells.word("direction", DIRECTIONS)
    seconds = cells.number(METRIC)
    if variant is None or direction is None or seconds is None:
        blank = next(name for name in ("variant", "direction", METRIC) if not cells.text(name))
        raise Unusable(blank, "blank, and it cannot be guessed; fill the column in")
    name, tokens, width = cells.text("region"), cells.need("tokens"), cells.need("width")
    on = chip(cells.text("chip") or cells.row.chip)
    built = region(name, tokens, width, dtype(cells.text("dtype") or "bf16").id)
    joins: Variant = "apart" if variant == "apart" else "joined"
    graph, phase = built.graph, PHASES[direction]
    return MeasuredRegion(
        base=region_base(name), chip=on.id, seconds=seconds * US, notes=(*cells.notes, *built.notes),
        work=MappingProxyType(graph_work(graph, joins, phase, GraphChip(chip=on))),
        kernels=sum(kernel.launches for kernel in kernels_of(graph, joins, phase)),
    )  # fmt: skip


@cache
def bundled_regions() -> tuple[MeasuredRegion, ...]:
    """Rows that ship with Ridgeline, and those of the profile of the same chip that are regions."""
    bundled_items = [read_or_skip(row, _read) for row in read_table(TRUTH / "fusion.csv", ("fusion",))[1]]
    measured_regions = [item for item in bundled_items if isinstance(item, MeasuredRegion)]
    on = GraphChip(chip=chip(FITTED_CHIP))
    for row in read_profile(fitting.SHIPPED_PROFILES / f"{FITTED_CHIP}.json").rows:
        impl = {"torch": "apart", "compiled": "joined"}.get(row.impl)
        is_region = row.op in PROFILED and row.dtype == "bf16" and row.ok and impl is not None
        if not is_region or row.dims["rows"] < FEWEST_ROWS:
            continue
        name, joins = PROFILED[row.op], "apart" if impl == "apart" else "joined"
        graph = region(name, int(row.dims["rows"]), int(row.dims["columns"])).graph
        work = graph_work(graph, "apart" if joins == "apart" else "joined", "forward", on)
        measured_regions.append(
            MeasuredRegion(
                base=region_base(name), chip=FITTED_CHIP, seconds=row.seconds, work=MappingProxyType(work), weight=HALF
            )
        )
    return tuple(measured_regions)


def fit_rates(measured_regions: Sequence[MeasuredRegion]) -> dict[str, float]:
    """Rates of least squares around their starting values."""
    from scipy.optimize import lsq_linear

    start = np.array([rate.start for rate in RATES.values()])
    freedom = np.array([rate.freedom for rate in RATES.values()])
    weights = np.array([item.weight / NOISE for item in measured_regions])
    shares = _columns(measured_regions) * (weights / [item.seconds for item in measured_regions])[:, None]
    matrix = np.vstack([shares * start, np.diag(1 / freedom)])
    target = np.concatenate([weights - shares @ start, np.zeros(len(start))])
    moves: Array = lsq_linear(matrix, target, bounds=(-0.9, 5.0)).x
    return dict(zip(RATES, (start * (1 + moves)).tolist(), strict=True))


def _columns(measured_regions: Sequence[MeasuredRegion]) -> Array:
    """Work by region and rate."""
    return np.array([[item.work.get(name, 0.0) for name in RATES] for item in measured_regions]).reshape(-1, len(RATES))


@cache
def rates_without(base: str) -> KernelRates:
    """Rates of a fit that saw no row of a base, and the interval of such predictions."""
    values = fit_rates([item for item in bundled_regions() if item.base != base])
    low, high = quantile_span(_left_out_logs())
    return KernelRates(values=MappingProxyType(values), low=low, high=high, source=f"without {base}")


@cache
def _left_out_logs() -> tuple[float, ...]:
    """Logarithms of measured over predicted of every bundled row, without its base."""
    logs: list[float] = []
    for base in dict.fromkeys(item.base for item in bundled_regions()):
        values = fit_rates([item for item in bundled_regions() if item.base != base])
        rates = KernelRates(values=values)
        own_items = [item for item in bundled_regions() if item.base == base and item.weight == 1]
        logs += [float(np.log(item.seconds / work_seconds(item.work, rates))) for item in own_items]
    return tuple(logs)


def fitted_rates() -> KernelRates:
    """Rates of all bundled rows: what ships."""
    low, high = quantile_span(_left_out_logs())
    values = MappingProxyType(fit_rates(bundled_regions()))
    return KernelRates(values=values, low=low, high=high, source="fusion.csv and the profile of h200-sxm")


def validate_fusion(rows: Iterable[Row]) -> Validation:
    """The cases of a table of regions, each predicted without its own base."""
    bases = {item.base for item in bundled_regions()}
    cases: list[ValidationCase] = []
    skipped_rows: list[Skipped] = []
    for row in rows:
        item = read_or_skip(row, _read)
        if isinstance(item, Skipped):
            skipped_rows.append(item)
            continue
        is_left_out = item.base in bases
        rates = rates_without(item.base) if is_left_out else shipped_rates()
        span = rates.span(chip(item.chip), 1.0 if is_left_out else UNSEEN)
        note = (
            f"host: {item.kernels} kernels x {LAUNCH_US} us = {item.kernels * LAUNCH_US:.0f} us where it launches each"
        )
        cases.append(
            ValidationCase.of(
                row, item.seconds / US, work_seconds(item.work, rates) / US, span,
                part=row["region"], chip=item.chip, engine=row["variant"], cross_validated=is_left_out,
                assumptions=(note, *item.notes), metric=METRIC,
            )
        )  # fmt: skip
    return Validation(kind="fusion", cases=tuple(cases), skipped=tuple(skipped_rows), pairs=_pairs(cases))


def _pairs(cases: Sequence[ValidationCase]) -> tuple[Pair, ...]:
    """Both variants of a region, size and direction where they differ: time of the compiled one over the eager one."""
    by_place: dict[tuple[str, ...], dict[str, ValidationCase]] = {}
    for case in cases:
        place = (*(case.row[name] for name in ("region", "tokens", "width", "dtype", "direction")), case.chip)
        by_place.setdefault(place, {})[VARIANTS[case.row["variant"].lower()]] = case
    pairs = []
    for place, variants in by_place.items():
        if len(variants) < 2:
            continue
        eager_case, compiled_case = variants["apart"], variants["joined"]
        ratio = compiled_case.measured_s / eager_case.measured_s
        if abs(ratio - 1) > DIFFERENT:
            pairs.append(
                Pair(
                    pair=" ".join(place[:5]), sync=eager_case.row.id, other=compiled_case.row.id, measured_ratio=ratio,
                    predicted_ratio=compiled_case.predicted_s / eager_case.predicted_s,
                )
            )  # fmt: skip
    return tuple(pairs)
