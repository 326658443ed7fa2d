"""Turn the border of a tensor-parallel part into its collectives: into the part and out of it, forward and backward.

                    entry                                   exit
    sequence        all-gather of tokens                    reduce-scatter of tokens
      backward      all-gather again, reduce-scatter        all-gather of gradients
    without it      nothing                                 all-reduce
      backward      all-reduce of gradients                 nothing

A parallel block has one border around mixer and feed-forward: what both read is gathered once and the sum of both is
reduced once, so that each of them leaves out what the other one does.
"""

from __future__ import annotations

from ridgeline.core.records import dataclass
from ridgeline.ir.ops import Op
from ridgeline.lowering.context import LoweringContext, tensor_collective


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Which sides of its border a part communicates at itself; the other part of a parallel block does the rest."""

    entry: bool = True
    exit: bool = True


BOTH = Sides()


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """Collectives of a part, in the order of their pass: entry and exit forward, exit and entry backward."""

    entry: tuple[Op, ...] = ()
    exit: tuple[Op, ...] = ()
    exit_gradient: tuple[Op, ...] = ()
    entry_gradient: tuple[Op, ...] = ()


def tensor_boundary(ctx: LoweringContext, sides: Sides = BOTH, width: int = 0) -> Boundary:
    """The border of one part; `width` of what enters it, or hidden. Nothing for a single tensor rank.

    With sequence parallelism the input is gathered once more in the backward, for the weight gradient, unless the
    software keeps it.
    """
    if isinstance(ctx.degrees.tp, int) and ctx.degrees.tp == 1:
        return Boundary()
    entering, leaving = ctx.tokens * (width or ctx.model.hidden), ctx.tokens * ctx.model.hidden
    if not ctx.sequence_parallel:
        return Boundary(
            exit=(tensor_collective(ctx, "sum over ranks", "all-reduce", leaving),) if sides.exit else (),
            entry_gradient=(tensor_collective(ctx, "sum gradients", "all-reduce", entering),) if sides.entry else (),
        )
    kept = ctx.frozen or ctx.engine.exchanges.inputs_kept
    again = () if kept else (tensor_collective(ctx, "gather tokens again", "all-gather", entering),)
    scatter = tensor_collective(ctx, "scatter gradients", "reduce-scatter", entering)
    return Boundary(
        entry=(tensor_collective(ctx, "gather tokens", "all-gather", entering),) if sides.entry else (),
        exit=(tensor_collective(ctx, "scatter tokens", "reduce-scatter", leaving),) if sides.exit else (),
        exit_gradient=(tensor_collective(ctx, "gather gradients", "all-gather", leaving),) if sides.exit else (),
        entry_gradient=(*again, scatter) if sides.entry else (),
    )
