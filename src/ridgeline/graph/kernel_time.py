"""Price the kernels of a graph on a chip: seconds of a device, by how each goes through memory.

    t = sum over rates of  work x rate            rate = what a unit of that work costs, fitted once for all regions

    bytes over the memory's rate      1 / the share of it that such kernels reach (1.1: 91 %)
    elements over the vector rate     operations an element costs where it is not memory that binds
    launches                          microseconds that a kernel takes beside its work
    seconds of a product              as measured or predicted for its sizes

`RATES` says what each rate is, what it was before any fit, and how far a fit may move it. `kernel_rates.json` has the
fitted ones. Another chip has the same rates against its own data sheet, with a wider interval.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from ridgeline.core.dtype import peak_key
from ridgeline.core.errors import MissingNumber
from ridgeline.cost import default_calibration, fitting, owners, profile_for, shipped_profiles
from ridgeline.graph.joined_kernels import GraphKernel, eager_kernels, joined_kernels
from ridgeline.hardware.chip import Chip
from ridgeline.ir.kernel import Kernel
from ridgeline.ir.op_graph import GraphOp, OpGraph, OpPhase
from ridgeline.plan.engine import ENGINES

SHIPPED = Path(__file__).with_name("kernel_rates.json")
US = 1e-6
FITTED_CHIP = "h200-sxm"  # the chip that every rate was fitted on
WARP_ROW = 1024  # elements of a row that one warp holds: such a softmax reads its row once
SHARED_SUM = 4096  # elements of a row up to which a compiler sums over rows while it goes through them anyway
FULL_ROWS = (
    4096  # rows from which on all cores hold a partial sum of every column; fewer by the root, as rows are split
)
STRANGER = 1.6  # times as wide, in logarithms, as the interval of the chip that the rates were fitted on
VECTOR_PER_BYTE = 67e12 / 4.8e12  # flops/s outside the matrix unit for a byte/s, where nobody states them

Variant = Literal["apart", "joined"]
"""Each op a kernel of its own, or what a compiler joins."""


class Rate(NamedTuple):
    """A rate before the fit, how far a fit may move it as a share, and what it is."""

    start: float
    freedom: float
    meaning: str


RATES: Mapping[str, Rate] = MappingProxyType(
    {
        "product": Rate(1.0, 0.05, "a product against what is known of its sizes"),
        "apart kernel": Rate(2.0, 0.15, "us of a kernel of its own"),
        "apart norm kernel": Rate(4.0, 0.3, "us of the forward of a library's norm or softmax"),
        "joined kernel": Rate(1.6, 0.15, "us of a compiled kernel"),
        "stream": Rate(1.12, 0.1, "bytes of whole tensors side by side, whoever wrote the kernel"),
        "apart strided": Rate(170.0, 0.3, "operations of an element whose operands are stretched or cut"),
        "apart rows": Rate(1.8, 0.4, "bytes of a sum within rows"),
        "apart columns": Rate(1.7, 0.4, "bytes of a sum over rows"),
        "apart norm": Rate(1.5, 0.2, "bytes of a library's norm"),
        "apart norm backward": Rate(1.6, 0.2, "bytes of its backward"),
        "apart softmax": Rate(210.0, 0.25, "operations of an element of a softmax whose row the chip holds"),
        "apart wide softmax": Rate(340.0, 0.25, "the same where the row is read again from memory"),
        "apart softmax backward": Rate(1.6, 0.3, "bytes of its backward"),
        "apart random": Rate(1.5, 0.2, "bytes of a library's dropout"),
        "apart gather": Rate(1.2, 0.2, "bytes of rows that are picked"),
        "apart scatter": Rate(2.5, 0.4, "bytes of rows that are added to picked ones"),
        "topk": Rate(10.0, 0.5, "us of picking the largest"),
        "topk elements": Rate(3550.0, 0.3, "operations of an element that is picked from"),
        "sort": Rate(80.0, 0.4, "us of sorting"),
        "sort elements": Rate(20000.0, 0.5, "operations of an element that is sorted"),
        "joined rows": Rate(1.2, 0.15, "bytes of a compiled chain with a sum within rows"),
        "joined columns": Rate(1.4, 0.3, "bytes of a compiled sum over rows"),
        "joined shared columns": Rate(6.0, 0.4, "us for 1024 columns summed beside sums within 4096 rows or more"),
        "joined softmax": Rate(2.8, 0.3, "bytes of a compiled softmax or loss"),
        "joined softmax backward": Rate(1.4, 0.3, "bytes of its backward"),
        "joined random": Rate(220.0, 0.2, "operations of a random number of a compiled dropout"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRates:
    """Fitted rates, and where nine of ten measurements lie around a prediction of 1, for regions no fit has seen."""

    values: Mapping[str, float]
    low: float = 0.6
    high: float = 1.6
    source: str = ""

    def span(self, chip: Chip, wider: float = 1.0) -> tuple[float, float]:
        """Low and high around 1, so many times as wide in logarithms; wider on a chip that nothing was fitted on."""
        wider *= 1.0 if chip.fitted_id == FITTED_CHIP else STRANGER
        return math.exp(math.log(self.low) * wider), math.exp(math.log(self.high) * wider)


@cache
def shipped_rates() -> KernelRates:
    """The rates that ship with Ridgeline."""
    table = json.loads(SHIPPED.read_text(encoding="utf-8"))
    return KernelRates(**{**table, "values": MappingProxyType(table["values"])})


IMPLS: Mapping[str, str] = MappingProxyType({"gemm": "torch", "grouped_gemm": "grouped_mm"})


def _dense_groups(kernel: Kernel) -> Kernel:
    """Rows of all groups as so many rows of each: what a profile measures."""
    groups = max(1, kernel.dims.get("groups", 1))
    dims = {"groups": groups, "m": max(1, kernel.dims["rows"] / groups), "n": kernel.dims["n"], "k": kernel.dims["k"]}
    return replace(kernel, dims=dims)


@dataclass(frozen=True, kw_only=True)
class GraphChip:
    """A chip as kernels of graphs see it."""

    chip: Chip

    @cached_property
    def memory(self) -> float:
        """Bytes/s of its memory; `MissingNumber` where nobody states them."""
        return self.chip.need("hbm.bandwidth").value

    @cached_property
    def vector(self) -> float:
        """Flops/s outside the matrix unit."""
        return self.chip.vector.value if self.chip.vector else self.memory * VECTOR_PER_BYTE

    @cached_property
    def sheet(self) -> fitting.ChipRates:
        """Its data sheet."""
        return fitting.ChipRates.of(self.chip)

    @cached_property
    def surfaces(self) -> dict[tuple[str, str], fitting.Surface | None]:
        """Surfaces of measured kernels by op and format, as far as they were asked for."""
        return {}

    def product_seconds(self, kernel: Kernel) -> float:
        """A product or attention: measured ones of the chip's profile, else its roof at the calibration's share."""
        kernel = _dense_groups(kernel) if "rows" in kernel.dims else kernel
        size = {**({"batch": 1, "kv_heads": kernel.dims["heads"]} if "heads" in kernel.dims else {}), **kernel.dims}
        impl = IMPLS.get(kernel.op, "cudnn")
        dims = {name: value for name, value in size.items() if name != "value_dim"}
        row = fitting.Measurement(kernel=Kernel(op=kernel.op, impl=impl, dtype=kernel.dtype, dims=dims), seconds=1.0)
        roof = fitting.kernel_roof(row, self.sheet)
        if not math.isfinite(roof):
            raise MissingNumber(f"chip {self.chip.id}", f"chip.peak.{peak_key(kernel.dtype)}", "TFLOP/s")
        fitted_s = roof / self._share(kernel)
        surface = self._surface(kernel.op, kernel.dtype, impl)
        if surface is None:
            return fitted_s
        ratio, _, far = surface.price(row, kernel.dtype, self.sheet)
        return math.exp((1 - far) * (math.log(roof) + ratio) + far * math.log(fitted_s))

    def _share(self, kernel: Kernel) -> float:
        names = owners(self.chip, ENGINES["torch-eager"])
        parameter = "attention" if kernel.op.startswith("attention") else fitting.product_parameter(kernel.dtype)
        return default_calibration().owner_value(parameter, names)

    def _surface(self, op: str, dtype: str, impl: str) -> fitting.Surface | None:
        key = (op, dtype)
        if key not in self.surfaces:
            profile = profile_for(shipped_profiles(), self.chip.fitted_id)
            rows = [
                row
                for row in (profile.rows if profile else ())
                if row.op == op and row.dtype == dtype and row.impl == impl and row.ok
            ]
            self.surfaces[key] = fitting.Surface.of(rows, self.sheet)
        return self.surfaces[key]


def kernel_work(graph: OpGraph, kernel: GraphKernel, variant: Variant, on: GraphChip) -> dict[str, float]:
    """What a kernel asks of each rate, in seconds of a rate of 1."""
    op = graph.ops[kernel.ops[0]]
    through, elements = kernel.bytes / on.memory, kernel.elements / on.vector
    if kernel.access in ("product", "attention"):
        return {"product": on.product_seconds(op.kernel)} if op.kernel is not None else {"stream": through}
    if kernel.access == "collective":
        return {}
    if kernel.access == "sort":
        name = "topk" if op.name.endswith("topk") else "sort"
        return {name: US, f"{name} elements": elements}
    if variant == "apart" or kernel.access in ("scatter", "gather", "norm"):
        return _apart_work(op, kernel, through, elements)
    launches = {"joined kernel": kernel.launches * US}
    backward = " backward" if op.phase == "backward" else ""
    match kernel.access:
        case "columns" if kernel.shares_rows and kernel.width <= SHARED_SUM:
            blocks = min(1.0, math.sqrt(kernel.elements / kernel.width / FULL_ROWS))
            return launches | {"joined shared columns": US * blocks * kernel.width / 1024}
        case "columns" | "rows":
            return launches | {f"joined {kernel.access}": through}
        case "softmax" | "wide softmax":
            return launches | {f"joined softmax{backward}": through}
        case "random":
            return launches | {"joined random": elements}
        case _:
            return launches | {"stream": through}


def _apart_work(op: GraphOp, kernel: GraphKernel, through: float, elements: float) -> dict[str, float]:
    """Of a kernel that runs one op of a library."""
    backward = " backward" if op.phase == "backward" else ""
    match kernel.access:
        case "norm":
            start = {"apart kernel": US} if backward else {"apart norm kernel": US}
            return start | {f"apart norm{backward}": through}
        case "columns" if op.name.endswith("norm_backward_weights"):
            return {"apart kernel": US, "apart norm backward": through}
        case "softmax" if kernel.width <= WARP_ROW:
            return {"apart kernel": US, "apart norm": through}
        case "softmax" | "wide softmax":
            work = {"apart softmax backward": through} if backward else {f"apart {kernel.access}": elements}
            return {"apart norm kernel": US} | work
        case "strided":
            return {"apart kernel": US, "apart strided": elements}
        case "stream":
            return {"apart kernel": US, "stream": through}
        case "unknown":
            return {"apart kernel": US, "apart rows": through}
        case access:
            return {"apart kernel": US, f"apart {access}": through}


def kernels_of(graph: OpGraph, variant: Variant, phase: OpPhase | Literal[""] = "") -> tuple[GraphKernel, ...]:
    """The kernels of a graph, each op apart or joined by a compiler."""
    return eager_kernels(graph, phase) if variant == "apart" else joined_kernels(graph, phase)


def graph_work(graph: OpGraph, variant: Variant, phase: OpPhase | Literal[""], on: GraphChip) -> dict[str, float]:
    """What all kernels of a phase ask of each rate."""
    return sum_work(kernel_work(graph, kernel, variant, on) for kernel in kernels_of(graph, variant, phase))


def sum_work(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Work of several kernels together."""
    total: dict[str, float] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0.0) + amount
    return total


def work_seconds(work: Mapping[str, float], rates: KernelRates) -> float:
    """Seconds of work on a device, without its host."""
    return sum(amount * rates.values[name] for name, amount in work.items())


def kernel_seconds(
    graph: OpGraph, kernel: GraphKernel, variant: Variant, on: GraphChip, rates: KernelRates | None = None
) -> float:
    """Seconds of one kernel.

    >>> from ridgeline.graph.region_table import region
    >>> from ridgeline.hardware.load import chip
    >>> gate = region("swiglu", 8192, 8192).graph
    >>> [kernel] = kernels_of(gate, "joined", "forward")
    >>> round(kernel_seconds(gate, kernel, "joined", GraphChip(chip=chip("h200-sxm"))) * 1e6)  # measured: 95
    94
    """
    return work_seconds(kernel_work(graph, kernel, variant, on), rates or shipped_rates())
