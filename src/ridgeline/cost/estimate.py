"""Turn a priced table of ops back into the ops: each with its seconds, what bounds it, and what the price rests on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

from ridgeline.core.evidence import Evidence
from ridgeline.cost.price import OpPrices
from ridgeline.cost.step_part import Bound
from ridgeline.ir.ops import Attend, Collective, MatMul, Op, Stream
from ridgeline.ir.program import Section

PASSES = ("forward", "backward_input", "backward_weight", "recompute")  # of a section, in the order of an op table


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The price of one op: seconds alone on its stream, what limits it, and how well that is known."""

    seconds: float
    bound: Bound
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class OpEstimate:
    """One op of one pass of a section, priced for one microbatch."""

    section: str
    phase: str
    op: Op
    estimate: Estimate


def estimates(sections: Sequence[Section], prices: OpPrices, evidence: Evidence) -> Iterator[OpEstimate]:
    """Every op of sections whose table was priced as one cell, in the order of its section and pass."""
    products = zip(prices.matmul_s.tolist(), prices.matmul_memory_bound.tolist(), strict=True)
    attention = zip(prices.attend_s.tolist(), prices.attend_memory_bound.tolist(), strict=True)
    streams, collectives = iter(prices.stream_s.tolist()), iter(prices.collective_s.tolist())
    for section in sections:
        for phase in PASSES:
            for op in getattr(section, phase):
                seconds, bound = _next(op, products, attention, streams, collectives)
                made = Estimate(seconds=seconds, bound=bound, evidence=evidence)
                yield OpEstimate(section=section.name, phase=phase.replace("_", "-"), op=op, estimate=made)


def _next(
    op: Op,
    products: Iterator[tuple[float, bool]],
    attention: Iterator[tuple[float, bool]],
    streams: Iterator[float],
    collectives: Iterator[float],
) -> tuple[float, Bound]:
    match op:
        case MatMul():
            seconds, memory = next(products)
            return seconds, "memory" if memory else "compute"
        case Attend():
            seconds, memory = next(attention)
            return seconds, "memory" if memory else "compute"
        case Stream():
            return next(streams), "memory"
        case Collective():
            return next(collectives), "network"
        case _:
            assert_never(op)
