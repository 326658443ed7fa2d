"""Turn columns of questions into the protocol that NCCL takes for each: short waits at part of the rate, or Simple.

    ring        by the tuner's own costs (`comm.libraries.nccl.toml`):  launch + steps hop + size steps / (R rate)
                LL at half of a link's rate, LL128 at 0.92 of it, Simple at all of it
    exchange    LL up to 16 KiB for a peer (NCCL_P2P_LL_THRESHOLD), Simple beyond

The tuner's costs decide, not the time that really passes: near the crossing a library may be slower with the protocol
it takes than it would have been with the other. R = ranks, steps = R-1, twice for an all-reduce.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ridgeline.comm.libraries.nccl import PCI_SHARE, constants
from ridgeline.core.arrays import Array, Mask
from ridgeline.core.units import BINARY, DECIMAL
from ridgeline.cost.library_times.question import FAMILIES, Columns

MICRO, GIGA = DECIMAL["u"], DECIMAL["G"]
PEER_LOW = 16 * BINARY["Ki"]  # bytes to a peer: NCCL_P2P_LL_THRESHOLD
LL_SHARE, LL128_SHARE = 0.5, 0.92  # of a ring's rate, as the tuner has them
UNKNOWN = "ampere"  # generation whose constants the tuner takes for chips that it does not know


def ring_is_simple(columns: Columns, times: Array) -> Mask:
    """Whether the tuner takes protocol Simple for a ring inside one domain; `times` its steps are 2 or 1 times R-1.

    Between domains rings are priced by their ports and hops alone: False.
    """
    low, wide, simple = _tuner_costs(columns, times)
    found: Mask = (simple < np.minimum(low, wide)) & (columns.domains == 1)
    return found


def exchange_is_simple(columns: Columns) -> Mask:
    """Whether an all-to-all's messages are too long for LL."""
    found: Mask = columns.size / columns.ranks > PEER_LOW
    return found


def _tuner_costs(columns: Columns, times: Array) -> tuple[Array, Array, Array]:
    """What the tuner expects of LL, LL128 and Simple, in seconds."""
    launch = constants()["launch_us"]["ring"]
    steps = times * (columns.ranks - 1)
    share, cap, hops = (table[columns.family] for table in _by_family())
    rate = columns.link * share
    rates = (np.minimum(cap, rate * LL_SHARE), rate * LL128_SHARE, rate)
    low, wide, simple = (
        (launch[index] + steps * hops[:, index]) * MICRO + columns.size * steps / (columns.ranks * rates[index])
        for index in range(3)
    )
    return low, np.where(columns.family == FAMILIES.index("pcie"), np.inf, wide), simple


@cache
def _by_family() -> tuple[Array, Array, Array]:
    """Of each family: NCCL's rate of a link over the data sheet's, the most that LL reaches, hops by protocol."""
    known = constants()
    generations = [known["generation"][name if name in known["generation"] else UNKNOWN] for name in FAMILIES]
    pci = np.array([name == "pcie" for name in FAMILIES])
    shares = np.where(pci, PCI_SHARE, [each["link_share"] for each in generations])
    caps = np.array([each["ll_one_node"] for each in generations]) * GIGA
    hops = np.array([known["hop_us"]["pci" if is_pci else "nvlink"]["ring"] for is_pci in pci])
    return shares, caps, hops
