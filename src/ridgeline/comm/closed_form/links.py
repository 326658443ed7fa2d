"""Turn systems into columns of how their chips are wired: what a collective can use, and what each hop costs.

On a torus, ranks fill the innermost axis first, then the next. A group of r ranks at distance s spans, of an axis of a
chips with A chips on the axes inside it,

    e = min(s r, A a) / max(s, A)    chips, between 1 and a

Every axis with e > 1 carries a share of the payload at the same time. An axis that closes sends both ways round, an
open one is as slow as its last link. A group of four or more that fills no axis is laid out as a square over two of
them, as software that splits axes does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from math import prod
from types import MappingProxyType
from typing import Self

import numpy as np

from ridgeline.core.arrays import Array, Index, Mask
from ridgeline.core.records import dataclass
from ridgeline.core.units import DECIMAL
from ridgeline.hardware.system import System, Tier
from ridgeline.hardware.topology import Ethernet, FatTree, FullMesh, Ring, Switched, Torus

MICRO = DECIMAL["u"]
AXES = 3  # of the largest torus
START = 6 * MICRO  # a collective begins, where its tier states no latency: A100 7.7, Hopper 3.7, Blackwell 7.3
SCALE_UP_STEP = 1.05 * MICRO  # one hop inside a domain: 382 single-node NCCL measurements, A100 to GB300
SCALE_OUT_STEP = 9 * MICRO  # one hop between domains: NCCL on two H100 nodes over InfiniBand
IN_SWITCH_STEP = 28 * MICRO
EXITS = 8.0  # chips of a domain that NCCL sends out of at once: 400 GB/s left each of 2 and of 20 NVL72 racks


class ColumnTable:
    """Columns over rows, the last axis of each; a column that no row needs is None."""

    __slots__ = ()

    def at(self, rows: Index) -> Self:
        """The columns of these rows, in this order; one entry is the same for all rows."""
        if len(getattr(self, fields(self)[0].name)) == 1:  # type: ignore[arg-type]
            return self
        return type(self)(**{field.name: _rows(getattr(self, field.name), rows) for field in fields(self)})  # type: ignore[arg-type]


def _rows(value: Array | ColumnTable | None, rows: Index) -> Array | ColumnTable | None:
    if isinstance(value, ColumnTable):
        return value.at(rows)
    return value if value is None else value[..., rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyColumns(ColumnTable):
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
    hop, switch_step       seconds of one hop inside a domain, and until a switch that adds up has answered; None: as
                           measured, `SCALE_UP_STEP` and `IN_SWITCH_STEP`
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
    hop: Array | None = None
    switch_step: Array | None = None

    @property
    def hop_s(self) -> Array | float:
        """Seconds of one hop inside a domain."""
        return SCALE_UP_STEP if self.hop is None else self.hop

    def scaled(self, factors: Mapping[str, Array], count: int) -> TopologyColumns:
        """One row in `count` rows, columns times the factors of their names."""

        def times(name: str, column: Array) -> Array:
            return np.asarray(np.repeat(column, count, axis=-1) * factors.get(name, 1.0), dtype=np.float64)

        some = {field.name: column for field in fields(self) if (column := getattr(self, field.name)) is not None}
        latencies = {"hop": self.hop_s, "switch_step": self.switch_s}
        columns = {name: times(name, column) for name, column in some.items() if name not in REQUIRED}
        columns |= {name: np.asarray(value * factors[name]) for name, value in latencies.items() if name in factors}
        return TopologyColumns(
            start=times("start", self.start),
            scale_out_step=times("scale_out_step", self.scale_out_step),
            exits=times("exits", self.exits),
            **columns,
        )

    @property
    def switch_s(self) -> Array | float:
        """Seconds until a switch that adds up has answered."""
        return IN_SWITCH_STEP if self.switch_step is None else self.switch_step


BLANKS: Mapping[str, tuple[str, float]] = MappingProxyType(
    {name: (name, 0.0) for name in ("two_level", "in_switch", "in_fabric")}
    | dict.fromkeys(("axes", "wraps", "axis"), ("dims", 0.0))
    | {"peers": ("peers", 1.0), "reach": ("reach", np.inf), "top": ("reach", np.inf)}
)
"""Columns that are None where this number of every system has this value."""


REQUIRED = ("start", "scale_out_step", "exits")


def topology_columns(systems: Sequence[System]) -> TopologyColumns:
    """The columns of several systems; what none of them has is None."""
    rows = [_wiring(system) for system in systems]
    columns: dict[str, Array] = {}
    for field in fields(TopologyColumns):
        if field.name in ("hop", "switch_step"):  # of a what-if alone
            continue
        number, blank = BLANKS.get(field.name, (field.name, None))
        if blank is None or any(row[number] != blank for row in rows):
            values = np.array([row[field.name] for row in rows], dtype=np.float64)
            columns[field.name] = np.ascontiguousarray(values.T)
    return TopologyColumns(**columns)


def _wiring(system: System) -> dict[str, object]:
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
    wraps_round = (tier.chips > 2,) if isinstance(tier.topology, Ring) else tier.topology.wraps
    link = 1 / (2 * len(shape))
    if tier.link is not None and not ring:
        link = tier.link.value / tier.need_bandwidth().value
    sizes, wraps = [float(size) for size in reversed(shape)], [float(wrap) for wrap in reversed(wraps_round)]
    sizes = [*sizes[: AXES - 1], prod(sizes[AXES - 1 :])]  # what lies beyond the last axis is taken as part of it
    blank = AXES - len(sizes)
    return [*sizes, *[1.0] * blank], [*wraps[:AXES], *[0.0] * (AXES - len(wraps))], [link] * AXES


@dataclass(frozen=True, slots=True, kw_only=True)
class Links(ColumnTable):
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
        zero = np.zeros_like(self.scale_up)
        return replace(self, skew=zero, topology=replace(self.topology, start=zero, scale_out_step=zero))


def plain_links(scale_up: float, scale_out: float, domain: float) -> Links:
    """Links of these rates without latency: at one byte a second, seconds are bytes.

    >>> from ridgeline.cost.collectives import ALL_GATHER, collective_seconds
    >>> one = np.ones(1)
    >>> round(float(collective_seconds(ALL_GATHER, 800 * one, 8 * one, one, plain_links(1.0, 1.0, 8.0))[0]))
    700
    """
    rates = [np.array([value]) for value in (scale_up, scale_out, domain, 0.0)]
    topology = TopologyColumns(start=rates[3], scale_out_step=rates[3], exits=rates[2])
    return Links(scale_up=rates[0], scale_out=rates[1], domain=rates[2], skew=rates[3], topology=topology)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorusSpan:
    """What a group spans of its torus; rates are shares of all links of a chip.

    rate    links that carry a ring collective at once        hops    until a shard has passed every axis
    cross   payload of one rank over this = an all-to-all, as the tightest cut allows
    link    one link, which is all that two neighbours share
    """

    torus: Mask
    rate: Array
    hops: Array
    cross: Array
    link: Array


def span_of(ranks: Array, stride: Array, topology: TopologyColumns) -> TorusSpan:
    """The span of each group.

        rings         sum over spanned axes of link * (2 if closed else 1)
        all-to-all    half of every payload crosses the middle of each axis:   seconds = P e / (4 w link)

    e = chips of the group along an axis, w = 2 if closed else 1, P = what one rank sends.
    """
    axes, wraps, link = topology.axes, topology.wraps, topology.axis
    assert axes is not None
    assert wraps is not None
    assert link is not None
    below = np.ones_like(ranks)
    end = stride * ranks
    rate, hops, tight = np.zeros_like(ranks), np.zeros_like(ranks), np.zeros_like(ranks)
    square = np.sqrt(np.where((ranks >= 4) & (end < axes[0]) & (axes[1] > 1), ranks, 1.0))
    for size, wraps_axis, axis_rate in zip(axes, wraps, link, strict=True):
        above = below * np.maximum(size, 1.0)
        extent = np.clip(np.minimum(end, above) / np.maximum(stride, below), 1.0, np.maximum(size, 1.0))
        ways = 1.0 + wraps_axis * (extent >= size)
        rate = rate + (extent > 1) * axis_rate * ways
        hops = hops + (extent - 1) / ways
        tight = np.maximum(
            tight, np.where(extent > 1, extent / (4 * ways * np.where(axis_rate > 0, axis_rate, 1.0)), 0.0)
        )
        below = above
    inner_rate = link[0]
    torus = axes[0] > 0
    if (square > 1).any():
        rate = np.where(square > 1, 2 * inner_rate, rate)
        hops = np.where(square > 1, 2 * (square - 1), hops)
        tight = np.where(square > 1, square / (4 * np.where(torus, inner_rate, 1.0)), tight)
    return TorusSpan(
        torus=torus,
        rate=np.maximum(rate, np.where(torus, inner_rate, 1.0)),
        hops=hops,
        cross=1 / np.maximum(tight, 1e-12),
        link=np.where(torus, inner_rate, 1.0),
    )
