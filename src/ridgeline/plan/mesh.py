"""How ranks are laid out: the logical grid of a plan, and the groups along its axes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, get_args

from ridgeline.core.records import dataclass
from ridgeline.core.table import Count, Doc

# how ranks are numbered, the fastest axis first, in Megatron's words (--use-tp-pp-dp-mapping is the second)
Order = Literal["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]
ORDERS: tuple[Order, ...] = get_args(Order)
DP_LAST: Order = "tp-cp-ep-pp-dp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Logical grid of ranks. The last axis is the closest: tp varies fastest, then cp, then dp, then pp.

    `order` may put pp before dp: stages then stand beside each other, and the replicas of a stage far apart.
    ep and etp are folded over tp x cp x dp: a mixture-of-experts layer regroups those ranks into
    etp (fastest) x ep x edp, where edp = tp * cp * dp / (ep * etp) replicas hold the same experts.
    """

    pp: Annotated[Count, Doc("pipeline stages")] = 1
    dp: Annotated[Count, Doc("data-parallel ranks")] = 1
    cp: Annotated[Count, Doc("context-parallel ranks: each holds part of the sequence")] = 1
    tp: Annotated[Count, Doc("tensor-parallel ranks: each holds part of every matrix")] = 1
    ep: Annotated[Count, Doc("expert-parallel ranks: each holds part of the experts")] = 1
    etp: Annotated[Count, Doc("tensor-parallel ranks inside one expert")] = 1
    order: Annotated[Order, Doc("rank order: which axis lies closest on the topology, which furthest")] = ORDERS[0]

    @property
    def ranks(self) -> int:
        """All ranks of the grid.

        >>> Mesh(pp=2, dp=4, tp=8).ranks
        64
        """
        return self.pp * self.dp * self.cp * self.tp

    @property
    def split(self) -> dict[str, int]:
        """Degrees above one, by axis.

        >>> Mesh(dp=4, tp=8).split
        {'dp': 4, 'tp': 8}
        """
        degrees = {"pp": self.pp, "dp": self.dp, "cp": self.cp, "tp": self.tp, "ep": self.ep, "etp": self.etp}
        return {axis: degree for axis, degree in degrees.items() if degree > 1}

    @property
    def edp(self) -> int:
        """Replicas of one expert shard; what expert gradients are reduced over. Whole only for a possible plan."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)

    def stride(self, axis: str) -> int:
        """Distance in rank numbers between neighbours of a group along an axis.

        >>> Mesh(pp=2, dp=4, tp=8).stride("dp"), Mesh(dp=8, ep=4).stride("ep")
        (8, 1)
        >>> far = Mesh(pp=2, dp=4, tp=8, order="tp-cp-ep-pp-dp")
        >>> far.stride("pp"), far.stride("dp")
        (8, 16)
        """
        last = [("dp", self.dp), ("pp", self.pp)]
        dense = (("tp", self.tp), ("cp", self.cp), *(last[::-1] if self.order == DP_LAST else last))
        expert_axes = (("etp", self.etp), ("ep", self.ep), ("edp", self.edp))
        if axis == "edp" and self.order == DP_LAST:
            return self.etp * self.ep * self.pp
        distance = 1
        for name, size in expert_axes if axis in ("etp", "ep", "edp") else dense:
            if name == axis:
                return distance
            distance *= size
        raise KeyError(axis)

    def rank(self, stage: int, replica: int) -> int:
        """The number of a rank: `replica` counts tp fastest, then cp, then dp, within a stage.

        >>> Mesh(pp=2, dp=2, tp=2).rank(1, 0), Mesh(pp=2, dp=2, tp=2, order="tp-cp-ep-pp-dp").rank(1, 0)
        (4, 2)
        """
        inner = self.tp * self.cp
        if self.order == DP_LAST:
            outer, place = divmod(replica, inner)
            return place + inner * (stage + self.pp * outer)
        return replica + inner * self.dp * stage

    def groups(self, ranks: int, apart: int, *, stages: bool = False) -> Iterator[tuple[int, ...]]:
        """Ranks of every group: `ranks` of a stage that lie `apart` in its own count, or the stages of a pipeline.

        >>> list(Mesh(pp=2, dp=2, order="tp-cp-ep-pp-dp").groups(2, 1))
        [(0, 2), (1, 3)]
        """
        wide = self.tp * self.cp * self.dp
        if stages:
            yield from (tuple(self.rank(stage, place) for stage in range(self.pp)) for place in range(wide))
            return
        for stage in range(self.pp):
            for low in range(0, wide - ranks * apart + 1, ranks * apart):
                for place in range(apart):
                    yield tuple(self.rank(stage, low + place + apart * member) for member in range(ranks))
