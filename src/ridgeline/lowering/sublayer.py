"""What the passes of one layer are made of: ops of forward, input gradient and weight gradient, and bytes kept."""

from __future__ import annotations

from ridgeline.core.records import dataclass
from ridgeline.ir.ops import Num, Op


@dataclass(frozen=True, slots=True, kw_only=True)
class SublayerOps:
    """Ops of one part of a layer for one microbatch on one rank.

    again   the forward ops that selective recompute of this part runs a second time
    saved   bytes saved for the backward; `saved_selective` when the part is recomputed selectively
    up      products out of a latent that recompute of `latent-up` runs a second time; `saved_up` the bytes it frees
    """

    forward: tuple[Op, ...] = ()
    backward_input: tuple[Op, ...] = ()
    backward_weight: tuple[Op, ...] = ()
    again: tuple[Op, ...] = ()
    saved: Num = 0
    saved_selective: Num = 0
    up: tuple[Op, ...] = ()
    saved_up: Num = 0
    params: Num = 0
    expert_params: Num = 0
    adapters: Num = 0


def together(*parts: SublayerOps) -> SublayerOps:
    """Parts that run one after the other; the backward runs them in reverse."""
    back = parts[::-1]
    return SublayerOps(
        forward=tuple(op for part in parts for op in part.forward),
        backward_input=tuple(op for part in back for op in part.backward_input),
        backward_weight=tuple(op for part in back for op in part.backward_weight),
        again=tuple(op for part in parts for op in part.again),
        saved=sum(part.saved for part in parts),
        saved_selective=sum(part.saved_selective for part in parts),
        up=tuple(op for part in parts for op in part.up),
        saved_up=sum(part.saved_up for part in parts),
        params=sum(part.params for part in parts),
        expert_params=sum(part.expert_params for part in parts),
        adapters=sum(part.adapters for part in parts),
    )
