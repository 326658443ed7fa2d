"""How the chips of one tier are joined, as a closed union of shapes, and what a shape implies.

Switched    every chip reaches every other through switches at its full rate
FullMesh    a direct link between each pair; a chip's rate is split over its peers
Ring        two neighbours each
Torus       a grid whose axes may wrap; one link per direction and axis
FatTree     rails of switches; `oversubscription` 2 means half the rate leaves a leaf
Ethernet    one flat routed network
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Annotated, Literal, assert_never

from ridgeline.core.errors import Problem
from ridgeline.core.records import dataclass
from ridgeline.core.table import AtLeast, Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Switched:
    """`reduces`: the switches add up what passes through them, as NVLS does."""

    kind: Literal["switched"] = "switched"
    reduces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FullMesh:
    kind: Literal["full-mesh"] = "full-mesh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    kind: Literal["ring"] = "ring"


@dataclass(frozen=True, slots=True, kw_only=True)
class Torus:
    """A slice of a torus: its shape and which axes wrap around."""

    kind: Literal["torus"] = "torus"
    shape: tuple[Count, ...]
    wraps: tuple[bool, ...]

    def problems(self) -> Iterable[Problem]:
        if len(self.shape) != len(self.wraps):
            yield Problem(path="wraps", given=str(len(self.wraps)), expected=f"one per axis ({len(self.shape)})")


@dataclass(frozen=True, slots=True, kw_only=True)
class FatTree:
    """`reduces`: the switches add up what passes through them, as SHARP does."""

    kind: Literal["fat-tree"] = "fat-tree"
    rails: Count = 1
    oversubscription: Annotated[float, AtLeast(1)] = 1.0
    reduces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ethernet:
    kind: Literal["ethernet"] = "ethernet"
    oversubscription: Annotated[float, AtLeast(1)] = 1.0


Topology = Switched | FullMesh | Ring | Torus | FatTree | Ethernet
Wrap = Literal["always", "never", "multiple-of-4", "full-only"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorusRule:
    """How slices of a torus may be cut: number of axes, the largest shape, and when an axis wraps."""

    kind: Literal["torus"] = "torus"
    dims: Count
    max: tuple[Count, ...]
    wrap: Wrap = "always"

    def problems(self) -> Iterable[Problem]:
        if len(self.max) != self.dims:
            yield Problem(path="max", given=str(self.max), expected=f"{self.dims} sizes, one per axis")

    def slice(self, shape: tuple[int, ...]) -> Torus:
        """The slice of that shape; sizes are matched with the largest shape in ascending order."""
        limits = dict(zip(sorted(range(len(shape)), key=shape.__getitem__), sorted(self.max), strict=True))
        return Torus(shape=shape, wraps=tuple(self._wraps(size, limits[axis]) for axis, size in enumerate(shape)))

    def _wraps(self, size: int, limit: int) -> bool:
        if size <= 2:
            return False  # the two directions are the same pair of chips
        match self.wrap:
            case "always":
                return True
            case "never":
                return False
            case "multiple-of-4":
                return size % 4 == 0
            case "full-only":
                return size == limit
            case _:
                assert_never(self.wrap)

    def shape_for(self, chips: int) -> tuple[int, ...] | None:
        """The most cubic shape of that many chips that fits the largest one; None when there is none.

        >>> TorusRule(dims=3, max=(16, 20, 28)).shape_for(512), TorusRule(dims=2, max=(16, 16)).shape_for(128)
        ((8, 8, 8), (8, 16))
        """
        limits = sorted(self.max)
        shapes = [
            shape for shape in _factors(chips, self.dims) if all(a <= b for a, b in zip(shape, limits, strict=True))
        ]
        return min(shapes, key=lambda shape: (shape[-1] / shape[0], shape), default=None)


def _factors(number: int, parts: int) -> list[tuple[int, ...]]:
    """Every ascending way to write the number as a product of that many factors."""
    if parts == 1:
        return [(number,)]
    return [
        (first, *factors)
        for first in range(1, round(number ** (1 / parts)) + 1)
        if number % first == 0
        for factors in _factors(number // first, parts - 1)
        if factors[0] >= first
    ]


def diameter(topology: Topology, chips: int) -> int:
    """Largest number of chip-to-chip hops; through switches every pair is one hop.

    >>> diameter(Torus(shape=(8, 8, 8), wraps=(True, True, True)), 512), diameter(Ring(), 8)
    (12, 4)
    """
    match topology:
        case Switched() | FullMesh() | FatTree() | Ethernet():
            return 1 if chips > 1 else 0
        case Ring():
            return chips // 2
        case Torus():
            return sum(
                size // 2 if wraps else size - 1 for size, wraps in zip(topology.shape, topology.wraps, strict=True)
            )
        case _:
            assert_never(topology)


def bisection_bytes_per_s(topology: Topology, chips: int, bandwidth_bytes_per_s: float) -> float:
    """Bytes per second, one way, between two halves of the tier when every chip sends at `bandwidth_bytes_per_s`.

        switched, fat tree, flat:  n/2 * bw / oversubscription
        full mesh:                 (n/2)^2 links of bw/(n-1)
        ring, torus:               links cut across the longest axis, twice when it wraps; a link is bw / (2 * axes)

    n = chips, bw = one direction, all links of a chip. Protocol overhead is not counted.

    >>> bisection_bytes_per_s(Switched(), 8, 450e9) / 1e12
    1.8
    >>> bisection_bytes_per_s(Torus(shape=(8, 8, 8), wraps=(True,) * 3), 512, 600e9) / 1e12
    12.8
    """
    if chips < 2:
        return 0.0
    half = chips // 2
    match topology:
        case Switched():
            return half * bandwidth_bytes_per_s
        case FatTree() | Ethernet():
            return half * bandwidth_bytes_per_s / topology.oversubscription
        case FullMesh():
            return half * (chips - half) * bandwidth_bytes_per_s / (chips - 1)
        case Ring():
            return 2 * bandwidth_bytes_per_s / 2 if chips > 2 else bandwidth_bytes_per_s
        case Torus():
            longest = max(range(len(topology.shape)), key=topology.shape.__getitem__)
            cut = prod(topology.shape) // topology.shape[longest] * (2 if topology.wraps[longest] else 1)
            return cut * bandwidth_bytes_per_s / (2 * len(topology.shape))
        case _:
            assert_never(topology)


def label(topology: Topology) -> str:
    """The topology in a few words.

    >>> label(Torus(shape=(4, 8), wraps=(False, True)))
    'torus 4x8 (axis 2 wraps)'
    """
    match topology:
        case Torus():
            wrapped_axes = [str(axis + 1) for axis, wraps in enumerate(topology.wraps) if wraps]
            size = "x".join(str(size) for size in topology.shape)
            many = len(wrapped_axes) > 1
            wrap = (
                f"ax{'es' if many else 'is'} {', '.join(wrapped_axes)} wrap{'' if many else 's'}"
                if wrapped_axes
                else "no wrap"
            )
            return f"torus {size} ({wrap})"
        case FatTree():
            return f"fat tree, {topology.rails} rail{'s' * (topology.rails > 1)}, {topology.oversubscription:g}:1"
        case Ethernet():
            return f"flat Ethernet, {topology.oversubscription:g}:1"
        case FullMesh():
            return "full mesh"
        case Switched() | Ring():
            return topology.kind
        case _:
            assert_never(topology)
