"""How ranks are laid out: the logical grid of a plan, and the groups along its axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ridgeline.core.table import Count, Doc


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Logical grid of ranks. The last axis is the closest: tp varies fastest, then cp, then dp, then pp.

    ep and etp are folded over tp x cp x dp: a mixture-of-experts layer regroups those ranks into
    etp (fastest) x ep x edp, where edp = tp * cp * dp / (ep * etp) replicas hold the same experts.
    """

    pp: Annotated[Count, Doc("pipeline stages")] = 1
    dp: Annotated[Count, Doc("data-parallel ranks")] = 1
    cp: Annotated[Count, Doc("context-parallel ranks: each holds part of the sequence")] = 1
    tp: Annotated[Count, Doc("tensor-parallel ranks: each holds part of every matrix")] = 1
    ep: Annotated[Count, Doc("expert-parallel ranks: each holds part of the experts")] = 1
    etp: Annotated[Count, Doc("tensor-parallel ranks inside one expert")] = 1

    @property
    def ranks(self) -> int:
        """All ranks of the grid.

        >>> Mesh(pp=2, dp=4, tp=8).ranks
        64
        """
        return self.pp * self.dp * self.cp * self.tp

    @property
    def edp(self) -> int:
        """Replicas of one expert shard; what expert gradients are reduced over. Whole only for a possible plan."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)

    def stride(self, axis: str) -> int:
        """Distance in rank numbers between neighbours of a group along an axis.

        >>> Mesh(pp=2, dp=4, tp=8).stride("dp"), Mesh(dp=8, ep=4).stride("ep")
        (8, 1)
        """
        dense = (("tp", self.tp), ("cp", self.cp), ("dp", self.dp), ("pp", self.pp))
        folded = (("etp", self.etp), ("ep", self.ep), ("edp", self.edp))
        distance = 1
        for name, size in folded if axis in ("etp", "ep", "edp") else dense:
            if name == axis:
                return distance
            distance *= size
        raise KeyError(axis)
