"""Turn a profile into ceilings: the best rate of every kind that was measured, beside what the data sheet says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ridgeline.core.dtype import peak_key
from ridgeline.core.records import dataclass
from ridgeline.cost.profile import LARGE_COPY, Measurement, Profile
from ridgeline.hardware.chip import Chip

FORMATS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "nvfp4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """One rate that was measured: its best value in flops/s, bytes/s or seconds, and the data sheet's; None without.

    joules   of a flop or a byte, where the device told its power
    where    the kernel that reached it
    """

    name: str
    unit: str
    measured: float
    datasheet: float | None
    where: str
    joules: float | None = None

    @property
    def share(self) -> float | None:
        """Measured over the data sheet."""
        return self.measured / self.datasheet if self.datasheet else None


def ceilings(profile: Profile, chip: Chip | None = None) -> tuple[Ceiling, ...]:
    """The best of what a profile holds, in a fixed order."""
    return tuple(_found(profile, chip))


def _found(profile: Profile, chip: Chip | None) -> Iterator[Ceiling]:
    peaks = {key: quoted.value for key, quoted in chip.peak.items()} if chip else {}
    for dtype in FORMATS:
        rows = [row for row in profile.of("gemm") if row.dtype == dtype]
        yield from _best(f"product {dtype}", "FLOP/s", rows, peaks.get(peak_key(dtype, peaks)))
    wide = peaks.get("bf16") or peaks.get("fp16")
    for op in ("attention_forward", "attention_backward"):
        for impl in dict.fromkeys(row.impl for row in profile.of(op)):
            rows = [row for row in profile.of(op) if row.impl == impl]
            yield from _best(f"{op.replace('_', ' ')} {impl}", "FLOP/s", rows, wide)
    memory = chip.hbm.bandwidth.value if chip and chip.hbm.bandwidth else None
    for op in ("copy", "read", "write"):
        rows = [row for row in profile.of(op) if row.dims.get("bytes", 0) >= LARGE_COPY]
        yield from _best(op, "B/s", rows, memory)
    host = chip.host.bandwidth.value if chip and chip.host.bandwidth else None
    for op in ("h2d", "d2h"):
        rows = [row for row in profile.of(op) if row.dims.get("pinned", 1)]
        yield from _best(f"{op} pinned", "B/s", rows, host)
    for op in ("launch", "graph"):
        for row in profile.of(op):
            kind = f"{op} {row.kernel.words.get('kind', row.impl)}"
            yield Ceiling(name=kind, unit="s", measured=row.seconds, datasheet=None, where=row.name)


def _best(name: str, unit: str, rows: Sequence[Measurement], sheet: float | None) -> Iterator[Ceiling]:
    """The row with the highest rate, where there is any."""
    if not rows:
        return
    work = [float(row.kernel.flops if unit == "FLOP/s" else row.kernel.bytes) for row in rows]
    place = max(range(len(rows)), key=lambda row: work[row] / rows[row].seconds)
    best, amount = rows[place], work[place]
    power = best.figures.get("power_w")
    energy = best.figures.get("energy_j") or (power * best.seconds if power else None)
    joules = energy / amount if energy else None
    rate = amount / best.seconds
    yield Ceiling(name=name, unit=unit, measured=rate, datasheet=sheet, where=best.name, joules=joules)
