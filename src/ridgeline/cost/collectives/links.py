"""Turn machines and a calibration into the Links that collectives run over, as columns over rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.records import dataclass
from ridgeline.cost.machine import Machines, ParameterColumns
from ridgeline.cost.topology_columns import Columns, TopologyColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class Links(Columns):
    """What connects the chips, one entry per row.

    scale_up, scale_out   bytes/s one chip sustains over all its links inside the innermost domain, and beyond it
    domain                chips of the innermost domain
    skew                  seconds lost at each doubling of ranks because they do not arrive together
    """

    scale_up: Array
    scale_out: Array
    domain: Array
    skew: Array
    topology: TopologyColumns

    def without_latency(self) -> Links:
        """The same with nothing to wait for but bytes, and hops inside a domain."""
        still = np.zeros_like(self.scale_up)
        return replace(self, skew=still, topology=replace(self.topology, start=still, scale_out_step=still))


def links_of(machines: Machines, rates: ParameterColumns) -> Links:
    """What the links sustain."""
    return Links(
        scale_up=machines.scale_up * rates["near"],
        scale_out=machines.scale_out * rates["far"],
        domain=machines.domain,
        skew=rates["meet"],
        topology=machines.topology,
    )


# shares of the data sheet's rate that large collectives reach where nothing else runs: inside a domain A100 0.76,
# Hopper 0.82, Blackwell 0.78; between domains 0.96 and 1.0 of 400 Gbit/s a chip
BARE_SCALE_UP, BARE_SCALE_OUT = 0.79, 0.95


def bare_links(machines: Machines) -> Links:
    """What the links sustain in a benchmark: nothing else runs, and ranks arrive together."""
    return Links(
        scale_up=machines.scale_up * BARE_SCALE_UP,
        scale_out=machines.scale_out * BARE_SCALE_OUT,
        domain=machines.domain,
        skew=np.zeros_like(machines.scale_up),
        topology=machines.topology,
    )


def plain_links(scale_up: float, scale_out: float, domain: float) -> Links:
    """Links of these rates without latency: at one byte a second, seconds are bytes.

    >>> from ridgeline.cost.collectives.price import ALL_GATHER, collective_seconds
    >>> one = np.ones(1)
    >>> round(float(collective_seconds(ALL_GATHER, 800 * one, 8 * one, one, plain_links(1.0, 1.0, 8.0))[0]))
    700
    """
    rates = [np.array([value]) for value in (scale_up, scale_out, domain, 0.0)]
    topology = TopologyColumns(start=rates[3], scale_out_step=rates[3], exits=rates[2])
    return Links(scale_up=rates[0], scale_out=rates[1], domain=rates[2], skew=rates[3], topology=topology)
