"""Where a tensor lies on the mesh, as data: which dim is split over which axis, and over which axis it is partial.

A runtime builds from it what lowering prices: a `Split` is a DTensor `Shard(dim)` on that mesh axis, `partial` is
`Partial()`, an axis named in neither is `Replicate()`.
"""

from __future__ import annotations

from math import prod
from typing import Literal

import numpy as np

from ridgeline.core.records import dataclass
from ridgeline.ir.ops import Axis, Num


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A dim of a tensor, cut evenly over the ranks of a mesh axis.

    units   pieces it may be cut into at most, such as key-value heads; beyond them ranks hold copies. 0: any number
    """

    dim: int
    axis: Axis
    degree: Num
    units: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor of a section, whole, and how ranks share it.

    name      within its section, such as `attention.query.weight`
    dims      sizes of the whole tensor; an activation's first is tokens of one microbatch of a data-parallel rank
    splits    dims that are cut; what is not named is on every rank
    partial   axes whose ranks each hold a summand
    """

    name: str
    kind: Literal["weight", "activation"] = "weight"
    dims: tuple[Num, ...]
    splits: tuple[Split, ...] = ()
    partial: tuple[Axis, ...] = ()

    @property
    def elements(self) -> Num:
        """Of the whole tensor."""
        return prod(self.dims)

    @property
    def local_elements(self) -> Num:
        """Elements that one rank holds.

        >>> kv = Tensor(name="kv", dims=(1024, 4096), splits=(Split(dim=0, axis="tp", degree=8, units=4),))
        >>> bool(kv.local_elements == kv.elements / 4)     # four heads over eight ranks: each is held twice
        True
        """
        local: Num = self.elements
        for split in self.splits:
            local = local / (np.minimum(split.degree, split.units) if split.units else split.degree)
        return local
