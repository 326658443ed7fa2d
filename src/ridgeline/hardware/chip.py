"""Turn a chip's TOML table into a Chip whose every number is quoted, and say which number is missing when it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from ridgeline.core.documents import JsonMapping
from ridgeline.core.dtype import DTYPES, DType
from ridgeline.core.errors import MissingNumber, Problem, not_among
from ridgeline.core.evidence import Evidence, Quoted, weakest
from ridgeline.core.records import dataclass
from ridgeline.core.table import Doc, QuantityUnit, QuotedBytes, QuotedBytesPerS, QuotedCount, QuotedFlopsPerS, decode

PEAK_KEYS = tuple(dict.fromkeys(item.peak for item in DTYPES.values()))
NOT_HARDWARE = ("aliases", "names")  # of a chip's table: what others call it
_UNITS = MappingProxyType(
    {"capacity": "B", "usable": "B", "bandwidth": "B/s", "domain": "", "tdp": "W", "price": "USD/h"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipMemory:
    """One level of memory. `usable` is what the driver reports where that differs from the data sheet."""

    kind: str = ""
    capacity: QuotedBytes | None = None
    usable: QuotedBytes | None = None
    bandwidth: QuotedBytesPerS | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A chip's connection to one network. Bandwidth is one direction, per chip, all its links together."""

    kind: str = ""
    bandwidth: QuotedBytesPerS | None = None
    domain: Annotated[QuotedCount | None, Doc("chips that can share one such network")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One schedulable accelerator with its memory. Peaks are dense; an absent number was not published."""

    id: str
    name: str
    vendor: str
    family: Annotated[str, Doc("architecture shared with other chips, from which unmeasured ones borrow")] = ""
    calibrated_as: Annotated[str, Doc("id its measured runs were fitted under; a copy keeps it; absent: its own")] = ""
    die: Annotated[str, Doc("id of the chip whose die, clock and power it has, and with whom its cores are fitted")] = (
        ""
    )
    collectives: Annotated[
        Literal["flat", "two-level"],
        Doc("how the vendor's library runs them: flat rings (NCCL, RCCL), or inside a domain first, then across"),
    ] = "flat"
    system: Annotated[str, Doc("id of the system this chip comes in unless said otherwise")]
    peak: Mapping[str, QuotedFlopsPerS]
    hbm: ChipMemory = ChipMemory()
    vector: Annotated[QuotedFlopsPerS | None, Doc("fp32 rate outside the matrix unit")] = None
    exponentials: Annotated[
        Quoted | None, QuantityUnit("Hz"), Doc("exponentials a second, where that is not vector / 16")
    ] = None
    cores: Annotated[QuotedCount | None, Doc("independent compute cores (SM, CU, cube core, TensorCore)")] = None
    cache: ChipMemory = ChipMemory()
    scaleup: Link = Link()
    scaleout: Link = Link()
    host: Link = Link()
    tdp: Annotated[Quoted | None, QuantityUnit("W")] = None
    price: Annotated[Quoted | None, QuantityUnit("USD/h")] = None
    notes: str = ""

    @property
    def fitted_id(self) -> str:
        """The id under which calibrations and residuals know it."""
        return self.calibrated_as or self.id

    @property
    def fitted_die(self) -> str:
        """The id under which calibrations know what its cores sustain; memory and links may be others."""
        return self.die or self.fitted_id

    def problems(self) -> Iterable[Problem]:
        for key in self.peak:
            if key not in PEAK_KEYS:
                yield not_among(f"peak.{key}", key, PEAK_KEYS)
        for key in ("vector", "exponentials", "cores", "tdp"):
            number = getattr(self, key)
            if number is not None and number.value == 0:
                yield Problem(path=key, given="0", expected="more than 0", todo="leave it out where nobody states it")

    def peak_flops_per_s(self, dtype: DType) -> Quoted:
        """Dense peak of a format; a `MissingNumber` when nobody publishes it, never another format's peak."""
        peak = self.peak.get(dtype.peak)
        if peak is None:
            raise MissingNumber(f"chip {self.id}", f"chip.peak.{dtype.peak}", "TFLOP/s")
        return peak

    def need(self, path: str) -> Quoted:
        """The number at a dotted path such as `hbm.bandwidth`, or a `MissingNumber` that names it."""
        value: Any = self
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else getattr(value, part)
        if not isinstance(value, Quoted):
            raise MissingNumber(f"chip {self.id}", f"chip.{path}", _UNITS.get(path.rsplit(".", 1)[-1], "TFLOP/s"))
        return value


def read_chip(id: str, table: JsonMapping, path: str = "") -> Chip:
    """The chip a TOML table describes, or an `InputError` with everything wrong in it."""
    hardware = {key: value for key, value in table.items() if key not in NOT_HARDWARE}
    return decode(Chip, {"id": id, **hardware}, path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A derived number and the evidence of the weakest number it rests on."""

    value: float
    evidence: Evidence


def ridge_points(chip: Chip) -> Mapping[str, Ratio]:
    """Flops per byte of main memory at which a chip turns from memory-bound to compute-bound, by peak.

        ridge = peak flops per s / memory bytes per s

    A product that does fewer flops for each byte it moves cannot reach the peak.

    >>> from ridgeline.hardware.load import chip
    >>> round(ridge_points(chip("h100-sxm"))["bf16"].value)
    295
    """
    bandwidth = chip.hbm.bandwidth
    if bandwidth is None:
        return {}
    return {
        key: Ratio(value=peak.value / bandwidth.value, evidence=weakest([peak.evidence, bandwidth.evidence]))
        for key, peak in chip.peak.items()
    }


def link_bytes_per_flop(chip: Chip, peak: str) -> Mapping[str, Ratio]:
    """Bytes each memory or link moves in the time of one flop at the named peak, one direction.

        bytes per flop = bytes per s / peak flops per s

    >>> from ridgeline.hardware.load import chip
    >>> f"{link_bytes_per_flop(chip('h100-sxm'), 'bf16')['scaleup'].value:.2e}"
    '4.55e-04'
    """
    rate = chip.peak.get(peak)
    if rate is None:
        return {}
    links = {
        "hbm": chip.hbm.bandwidth,
        "scaleup": chip.scaleup.bandwidth,
        "scaleout": chip.scaleout.bandwidth,
        "host": chip.host.bandwidth,
    }
    return {
        name: Ratio(value=link.value / rate.value, evidence=weakest([link.evidence, rate.evidence]))
        for name, link in links.items()
        if link is not None
    }
