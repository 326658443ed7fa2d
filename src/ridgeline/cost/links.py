"""Turn machines and a calibration into the Links that collectives run over, as columns over rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ridgeline.cost.rates import Machines, Rates
from ridgeline.cost.wiring import Array, Columns, Wiring


@dataclass(frozen=True, slots=True, kw_only=True)
class Links(Columns):
    """What connects the chips, one entry per row.

    near, far    bytes/s one chip sustains over all its links inside the innermost domain, and beyond it
    domain       chips of the innermost domain
    meet         seconds lost at each doubling of ranks because they do not arrive together
    """

    near: Array
    far: Array
    domain: Array
    meet: Array
    wiring: Wiring

    def without_latency(self) -> Links:
        """The same with nothing to wait for but bytes, and hops inside a domain."""
        still = np.zeros_like(self.near)
        return replace(self, meet=still, wiring=replace(self.wiring, start=still, far_step=still))


def links_of(machines: Machines, rates: Rates) -> Links:
    """What the links sustain."""
    return Links(
        near=machines.near * rates["near"],
        far=machines.far * rates["far"],
        domain=machines.domain,
        meet=rates["meet"],
        wiring=machines.wiring,
    )


# shares of the data sheet's rate that large collectives reach where nothing else runs: inside a domain A100 0.76,
# Hopper 0.82, Blackwell 0.78; between domains 0.96 and 1.0 of 400 Gbit/s a chip
BARE_NEAR, BARE_FAR = 0.79, 0.95


def bare_links(machines: Machines) -> Links:
    """What the links sustain in a benchmark: nothing else runs, and ranks arrive together."""
    return Links(
        near=machines.near * BARE_NEAR,
        far=machines.far * BARE_FAR,
        domain=machines.domain,
        meet=np.zeros_like(machines.near),
        wiring=machines.wiring,
    )


def plain_links(near: float, far: float, domain: float) -> Links:
    """Links of these rates without latency: at one byte a second, seconds are bytes.

    >>> from ridgeline.cost.collectives import ALL_GATHER, collective_seconds
    >>> one = np.ones(1)
    >>> round(float(collective_seconds(ALL_GATHER, 800 * one, 8 * one, one, plain_links(1.0, 1.0, 8.0))[0]))
    700
    """
    rates = [np.array([value]) for value in (near, far, domain, 0.0)]
    wiring = Wiring(start=rates[3], far_step=rates[3], exits=rates[2])
    return Links(near=rates[0], far=rates[1], domain=rates[2], meet=rates[3], wiring=wiring)
