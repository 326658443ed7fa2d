"""What a device was asked for and how fast it was, as values: no torch is needed to read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ridgeline.hardware.chip import Chip


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What is possible on a chip.

    flops_per_s    by key of a peak: fp32, tf32, bf16, fp8
    bytes_per_s    of its memory; None where nobody says
    cache_bytes    what the last cache holds: smaller tensors may be faster than memory
    source         data sheet, or the profile that measured them
    """

    name: str
    flops_per_s: Mapping[str, float] = field(default_factory=dict)
    bytes_per_s: float | None = None
    cache_bytes: float = 0.0
    source: str = ""


def rates_of(chip: Chip) -> Rates:
    """The data sheet's."""
    return Rates(
        name=chip.id, flops_per_s={key: peak.value for key, peak in chip.peak.items()},
        bytes_per_s=chip.hbm.bandwidth.value if chip.hbm.bandwidth else None,
        cache_bytes=chip.cache.capacity.value if chip.cache.capacity else 0.0, source="data sheet",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureRow:
    """One op with the formats, shapes and strides of its tensors.

    module, phase   where it was called first
    calls           in the captured steps; model_calls: in as many layers as the model has
    """

    op: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    module: str
    phase: str
    calls: int
    model_calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """An op that the device runs otherwise than by a kernel of its own; `detail` says how."""

    op: str
    module: str
    phase: str
    calls: int
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All of it.

    unsupported    formats with what the device cannot do in them: hold, add, multiply
    graph_breaks   places where a compiler would leave its graph, with why; None where nobody looked
    """

    rows: tuple[SignatureRow, ...] = ()
    missing: tuple[Remark, ...] = ()
    fallback: tuple[Remark, ...] = ()
    decomposed: tuple[Remark, ...] = ()
    synchronising: tuple[Remark, ...] = ()
    unsupported: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    graph_breaks: tuple[str, ...] | None = None

    @property
    def phases(self) -> dict[str, int]:
        """Calls of the whole model by phase."""
        counts: dict[str, int] = {}
        for row in self.rows:
            counts[row.phase] = counts.get(row.phase, 0) + row.model_calls
        return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpeed:
    """One signature of an op.

    seconds    of one call, median of rounds; spread: of the rounds, over the median
    roof_s     at best; share: roof over seconds; None where the chip's rates do not say
    bound      compute, memory, cache (memory's roof, which a cache may beat) or launch
    flag       slow, impossible, or nothing
    """

    op: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    module: str
    phase: str
    calls: int
    seconds: float
    spread: float
    flops: float
    bytes: float
    bound: str = ""
    roof_s: float | None = None
    share: float | None = None
    flag: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Launch-bound ops in a row: from the module of the first to that of the last."""

    begin: str
    end: str
    phase: str
    ops: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """A step's ops, the slowest first, and the chip they are held against.

    nothing_s    an op that does nothing, as the step calls it
    step_s       all calls, one after the other
    """

    device: str
    rates: Rates | None
    tokens: tuple[int, int]
    dtype: str
    nothing_s: float
    ops: tuple[OpSpeed, ...]
    stretches: tuple[Stretch, ...]

    @property
    def step_s(self) -> float:
        return sum(op.seconds * op.calls for op in self.ops)

    @property
    def flagged(self) -> tuple[OpSpeed, ...]:
        """Those that are slow or impossible, what costs most first."""
        return tuple(op for op in self.ops if op.flag)


def join_inventories(one: Inventory, other: Inventory) -> Inventory:
    """Both, as of one run: an op that both remark on is counted once, with all its calls."""
    return Inventory(
        rows=(*one.rows, *other.rows), missing=remarks((*one.missing, *other.missing)),
        fallback=remarks((*one.fallback, *other.fallback)), decomposed=remarks((*one.decomposed, *other.decomposed)),
        synchronising=remarks((*one.synchronising, *other.synchronising)),
        unsupported={**one.unsupported, **other.unsupported},
        graph_breaks=one.graph_breaks if other.graph_breaks is None else other.graph_breaks,
    )  # fmt: skip


def remarks(found: Iterable[Remark]) -> tuple[Remark, ...]:
    """One for each op: where it was first, and how often in all."""
    first: dict[str, Remark] = {}
    for remark in found:
        previous = first.get(remark.op)
        first[remark.op] = remark if previous is None else replace(previous, calls=previous.calls + remark.calls)
    return tuple(first.values())
