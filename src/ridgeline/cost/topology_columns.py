"""Turn systems into columns of how their chips are wired: what a collective can use, and what each hop costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from math import prod
from typing import Self

import numpy as np

from ridgeline.core.arrays import Array, Index
from ridgeline.core.records import dataclass
from ridgeline.core.units import DECIMAL
from ridgeline.hardware.system import System, Tier
from ridgeline.hardware.topology import Ethernet, FatTree, FullMesh, Ring, Switched, Torus

MICRO = DECIMAL["u"]
AXES = 3  # of the largest torus
START = 6 * MICRO  # a collective begins, where its tier states no latency: A100 7.7, Hopper 3.7, Blackwell 7.3
SCALE_UP_STEP = 1.05 * MICRO  # one hop inside a domain: 382 single-node NCCL measurements, A100 to GB300
SCALE_OUT_STEP = 9 * MICRO  # one hop between domains: NCCL on two H100 nodes over InfiniBand
EXITS = 8.0  # chips of a domain that NCCL sends out of at once: 400 GB/s left each of 2 and of 20 NVL72 racks


class Columns:
    """Columns over rows, the last axis of each; a column that no row needs is None."""

    __slots__ = ()

    def at(self, rows: Index) -> Self:
        """The columns of these rows, in this order; one entry is the same for all rows."""
        if len(getattr(self, fields(self)[0].name)) == 1:  # type: ignore[arg-type]
            return self
        return type(self)(**{field.name: _rows(getattr(self, field.name), rows) for field in fields(self)})  # type: ignore[arg-type]


def _rows(value: Array | Columns | None, rows: Index) -> Array | Columns | None:
    if isinstance(value, Columns):
        return value.at(rows)
    return value if value is None else value[..., rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyColumns(Columns):
    """How chips are joined, one entry per row.

    start, scale_out_step      seconds until a collective begins, and of one hop between domains
    exits                  chips of a domain that one collective sends out of at once
    two_level              1: software goes through the domain first, then across
    in_switch              1: switches inside the domain add up what passes (NVLS)
    in_fabric              1: switches between domains do (SHARP)
    peers                  other chips of a full mesh, over which a chip's rate is split; 1 behind a switch
    axes, wraps            chips along each axis of a torus, innermost first, and whether it closes; 0 without a torus
    axis                   rate of one link of each axis, one way, over all links of a chip
    reach, top             chips inside the second tier, and the rate beyond it over the rate inside it
    """

    start: Array
    scale_out_step: Array
    exits: Array
    two_level: Array | None = None
    in_switch: Array | None = None
    in_fabric: Array | None = None
    peers: Array | None = None
    axes: Array | None = None
    wraps: Array | None = None
    axis: Array | None = None
    reach: Array | None = None
    top: Array | None = None


def topology_columns(systems: Sequence[System]) -> TopologyColumns:
    """The columns of several systems; what none of them has is None."""
    rows = [_one(system) for system in systems]

    def needed(name: str) -> Array:
        return np.ascontiguousarray(np.array([row[name] for row in rows], dtype=np.float64).T)

    def column(name: str, blank: float, of: str = "") -> Array | None:
        return needed(name) if any(row[of or name] != blank for row in rows) else None

    return TopologyColumns(
        start=needed("start"),
        scale_out_step=needed("scale_out_step"),
        exits=needed("exits"),
        two_level=column("two_level", 0.0),
        in_switch=column("in_switch", 0.0),
        in_fabric=column("in_fabric", 0.0),
        peers=column("peers", 1.0),
        axes=column("axes", 0.0, of="dims"),
        wraps=column("wraps", 0.0, of="dims"),
        axis=column("axis", 0.0, of="dims"),
        reach=column("reach", np.inf),
        top=column("top", np.inf, of="reach"),
    )


def _one(system: System) -> dict[str, object]:
    tiers = system.tiers
    inner = tiers[0] if tiers else None
    outer = tiers[1] if len(tiers) > 1 else None
    beyond = tiers[2:]
    two_level = system.chip.collectives == "two-level"
    shape = inner.topology if inner else Switched()
    axes, wraps, axis = _axes(inner)
    top = min(leaving(tier) for tier in beyond) / leaving(outer) if beyond and outer else 1.0
    return {
        "start": inner.latency.value if inner and inner.latency else START,
        "scale_out_step": outer.latency.value if outer and outer.latency else SCALE_OUT_STEP,
        "exits": np.inf if two_level else EXITS,
        "two_level": float(two_level),
        "in_switch": float(isinstance(shape, Switched) and shape.reduces),
        "in_fabric": float(outer is not None and isinstance(outer.topology, FatTree) and outer.topology.reduces),
        "peers": float(inner.chips - 1) if inner and isinstance(shape, FullMesh) else 1.0,
        "dims": axes[0],
        "axes": axes,
        "wraps": wraps,
        "axis": axis,
        "reach": float(outer.chips) if outer and beyond else np.inf,
        "top": top,
    }


def leaving(tier: Tier) -> float:
    """Bytes/s that a chip can send through a tier when all do: its rate over the oversubscription of the switches."""
    over = tier.topology.oversubscription if isinstance(tier.topology, (FatTree, Ethernet)) else 1.0
    return tier.need_bandwidth().value / over


def _axes(tier: Tier | None) -> tuple[list[float], list[float], list[float]]:
    """Sizes, wraps and link rates of a torus, innermost first; a ring is a torus of one axis."""
    if tier is None or not isinstance(tier.topology, (Torus, Ring)):
        return [0.0] * AXES, [0.0] * AXES, [0.0] * AXES
    ring = isinstance(tier.topology, Ring)
    shape = (tier.chips,) if isinstance(tier.topology, Ring) else tier.topology.shape
    closed = (tier.chips > 2,) if isinstance(tier.topology, Ring) else tier.topology.wraps
    link = 1 / (2 * len(shape))
    if tier.link is not None and not ring:
        link = tier.link.value / tier.need_bandwidth().value
    sizes, wraps = [float(size) for size in reversed(shape)], [float(wrap) for wrap in reversed(closed)]
    sizes = [*sizes[: AXES - 1], prod(sizes[AXES - 1 :])]  # what lies beyond the last axis is taken as part of it
    blank = AXES - len(sizes)
    return [*sizes, *[1.0] * blank], [*wraps[:AXES], *[0.0] * (AXES - len(wraps))], [link] * AXES
