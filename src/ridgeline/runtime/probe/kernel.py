"""Turn an op on real tensors into a row: buffers in turn, seconds, and the error against a reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ridgeline.runtime.probe.backend import Backend
from ridgeline.runtime.probe.power import Meter
from ridgeline.runtime.probe.timing import Call, time_calls

DTYPES: dict[str, Any] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": getattr(torch, "float8_e4m3fn", None),
    "int8": torch.int8,
}
TOLERANCE = {"fp64": 1e-10, "fp32": 2e-4, "tf32": 3e-3, "bf16": 2e-2, "fp16": 4e-3, "fp8": 2e-2, "int8": 0.0}
UNTRUE = 0.5  # share of disturbed runs in a median of several threads, which wait for each other, that is no time
DRAWN = 65_537  # normal numbers a CPU draws for one tensor: a prime, so that rows begin at different ones
MOST_SETS = 48  # buffer sets that are taken in turn so that the cache holds none of them


class Lacking(Exception):
    """The backend has no such kernel: reported, not an error of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where kernels are measured: device, meter, seconds a measurement may take, and the seed of its inputs."""

    backend: Backend
    meter: Meter
    seconds: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """An op ready to run.

    calls      the same op on different buffers
    set_bytes  bytes one of them touches
    check      relative error of one call against a reference in higher precision
    graph      False when a graph may not hold it
    """

    calls: Sequence[Call]
    set_bytes: float
    check: Callable[[], float]
    tolerance: float
    graph: bool = True


def sets_for(bench: Bench, set_bytes: float) -> int:
    """Buffer sets that together exceed the cache three times, as far as memory and patience allow."""
    wanted_sets = math.ceil(3 * bench.backend.cache_bytes / max(set_bytes, 1))
    fits = int(0.5 * bench.backend.free_bytes() / max(set_bytes, 1))
    return max(1, min(wanted_sets, MOST_SETS, fits))


def is_cold(bench: Bench, prepared: Prepared) -> bool:
    """Whether a call finds its inputs in main memory, not in the cache."""
    return len(prepared.calls) * prepared.set_bytes >= 2 * bench.backend.cache_bytes


def measure(prepared: Prepared, bench: Bench) -> dict[str, Any]:
    """The results of a row: seconds first, then whether the kernel computes the right thing."""
    error = prepared.check()
    if not error <= prepared.tolerance:
        return {"ok": False, "why": f"wrong result: relative error {error:.3g}"}
    timing = time_calls(
        prepared.calls, bench.backend, seconds=bench.seconds, graph=prepared.graph, clock=bench.meter.clock_mhz
    )
    if timing.waited > UNTRUE and torch.get_num_threads() > 1:
        return {"ok": False, "why": "threads waited for a core in most runs: other work has it"}
    row = {**timing.row(), "ok": True, "error": float(f"{error:.2g}"), "cold": is_cold(bench, prepared)}
    default = "graph" if bench.backend.graph is not None else "events" if bench.backend.event else "host"
    if timing.timer != default:
        row["timer"] = timing.timer
    return row


def relative_error(found: Any, reference: Any) -> float:
    """Norm of the difference over the norm of the reference, in fp64; infinite for NaN."""
    found, reference = found.double(), reference.double()
    if not bool(torch.isfinite(found).all()):
        return math.inf
    scale = float(reference.norm())
    return float((found - reference).norm()) / scale if scale > 0 else float(found.norm())


def random(bench: Bench, *shape: int, dtype: Any, scale: float = 1.0) -> Any:
    """Fresh normal numbers: zeros would hide unwritten outputs and draw less power.

    A CPU draws slowly: beyond `DRAWN` numbers it repeats them, and no two rows of a product are alike all the same.
    """
    drawn = torch.float32 if dtype.itemsize < 2 else dtype
    count = math.prod(shape)
    if bench.backend.type == "cpu" and count > DRAWN:
        values = torch.randn(DRAWN, dtype=drawn).repeat(-(-count // DRAWN))[:count].view(shape)
    else:
        values = torch.randn(shape, device=bench.backend.name, dtype=drawn)
    if scale != 1.0:
        values *= scale
    return values.to(dtype)


def some(size: int, count: int) -> Any:
    """A few indices below size, the last one among them: tails are where kernels go wrong."""
    places = torch.randperm(size)[:count] if size <= 1 << 20 else torch.randint(size, (count,))
    places[0] = size - 1
    return places


def tolerance_of(dtype: str) -> float:
    """Relative error above which a kernel counts as wrong."""
    return TOLERANCE.get(dtype, 2e-2)
