"""Turn a priced table of ops back into the ops: each with its seconds, what bounds it, and what the price rests on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from ridgeline.core.arrays import Array, Mask
from ridgeline.core.evidence import Evidence
from ridgeline.core.records import dataclass
from ridgeline.cost.price import OpPrices
from ridgeline.cost.profile_prices import MeasuredOps
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


def estimates(
    sections: Sequence[Section], prices: OpPrices, evidence: Evidence, measured: MeasuredOps | None = None
) -> Iterator[OpEstimate]:
    """Every op of sections whose table was priced as one cell, in the order of its section and pass.

    evidence   of what no profile prices
    """
    away = (None, None) if measured is None else (measured.matmul_fitted, measured.attend_fitted)
    products = _each(prices.matmul_s, prices.matmul_memory_bound, away[0])
    attention = _each(prices.attend_s, prices.attend_memory_bound, away[1])
    streams, collectives = iter(prices.stream_s.tolist()), iter(prices.collective_s.tolist())
    for section in sections:
        for phase in PASSES:
            for op in getattr(section, phase):
                seconds, bound, timed = _next(op, products, attention, streams, collectives)
                made = Estimate(seconds=seconds, bound=bound, evidence=Evidence.MEASURED if timed else evidence)
                yield OpEstimate(section=section.name, phase=phase.replace("_", "-"), op=op, estimate=made)


Kernels = Iterator[tuple[float, bool, bool]]
"""Seconds, whether memory limits it, whether it was measured."""


def _each(seconds: Array, memory: Mask, fitted: Array | None) -> Kernels:
    timed = [False] * len(seconds) if fitted is None else (fitted == 0).tolist()
    return zip(seconds.tolist(), memory.tolist(), timed, strict=True)


def _next(
    op: Op, products: Kernels, attention: Kernels, streams: Iterator[float], collectives: Iterator[float]
) -> tuple[float, Bound, bool]:
    match op:
        case MatMul():
            seconds, memory, timed = next(products)
            return seconds, "memory" if memory else "compute", timed
        case Attend():
            seconds, memory, timed = next(attention)
            return seconds, "memory" if memory else "compute", timed
        case Stream():
            return next(streams), "memory", False
        case Collective():
            return next(collectives), "network", False
        case _:
            assert_never(op)
