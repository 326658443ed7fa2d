"""Turn a chip into the ratios an architect reads first: ridge points and bytes per flop of each link."""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.core.evidence import Evidence, weakest
from ridgeline.core.records import dataclass
from ridgeline.hardware.chip import Chip


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
