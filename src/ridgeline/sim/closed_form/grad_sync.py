"""Turn what a rank trains into the seconds of its gradient exchange and its optimizer, and what of it shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.collectives.links import Links
from ridgeline.cost.collectives.price import ALL_GATHER, ALL_REDUCE, collective_seconds
from ridgeline.cost.machine import ParameterColumns, at
from ridgeline.cost.price import SustainedRates
from ridgeline.sim.plan_columns import NAMES, PlanColumns

Array = NDArray[np.float64]
SPLIT = [NAMES.index(name) for name in ("zero-bubble-h1", "zbv", "dualpipe-v")]  # weight gradients come when they can
_LOOPED = NAMES.index("interleaved")


def optimizer_seconds(plans: PlanColumns, memory: Array, host: Array, dense: Array, expert: Array) -> Array:
    """States read and written at the rate of memory by ranks that hold them; those on the host go there and back."""
    degree = np.where(plans.shard > 0, plans.shard_degree, 1.0)
    expert_degree = np.where(plans.shard > 0, np.minimum(plans.edp, plans.shard_degree), 1.0)
    states = (dense / degree + expert / expert_degree) * plans.optimizer_bytes
    away = states * plans.offload_optimizer
    return (states - away) / memory + 2 * away / host


def exposed(spent: Array, window: Array, hidden: Array | float, contention: Array) -> Array:
    """What is left of communication beside compute.

        (1 - h) t  +  max(c h t, h t - w)

    t = spent, h = share that can hide, w = compute it can hide behind, c = what compute loses while both run. Compute
    that is slowed by 1 - c gets h t (1 - c) done meanwhile: the rest of it is late by c h t, unless the communication
    is later still.
    """
    able = hidden * spent
    return spent - able + np.maximum(contention * able, able - window)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfStep:
    """What is left when all microbatches are done, in seconds by row, nothing hidden yet.

    reduce_s, gather_s   gradient reduction and weight gathering of the data-parallel ranks
    optimizer_s          the optimizer
    """

    reduce_s: Array
    gather_s: Array
    optimizer_s: Array

    def at(self, rows: NDArray[np.int64]) -> EndOfStep:
        """These rows, in this order; a column of one entry stays as it is."""
        return EndOfStep(**{field.name: at(getattr(self, field.name), rows) for field in fields(self)})


def end_of_step(trained: Array, plans: PlanColumns, rows: SustainedRates) -> EndOfStep:
    """Exchange and optimizer of so many dense and expert parameters."""
    reduce, gather = (sum(parts, start=np.zeros(1)) for parts in exchanged(plans, rows.links, *trained))
    spent = optimizer_seconds(plans, rows.memory, rows.machines.host, *trained)
    return EndOfStep(reduce_s=reduce, gather_s=gather, optimizer_s=spent)


def exchange_seconds(settling: EndOfStep, plans: PlanColumns, rates: ParameterColumns, phases: Array) -> Array:
    """Gradient reduction and weight gathering beyond what compute hides.

    phases = seconds of forward, input and weight gradient of a microbatch.
    """
    # a chunk's exchange begins when its last gradient is made: the last one's hides behind its own gradients, that of
    # the others behind the chunks that follow, which interleaved runs for p microbatches each
    chunk, after = 1 / plans.chunks, 1 - 1 / plans.chunks
    often = np.where(plans.schedule == _LOOPED, plans.pp, 1.0) * after
    split = np.isin(plans.schedule, SPLIT)
    forward, inputs, weights = phases
    backward = inputs + weights
    own = np.where(split, weights, backward) if split.any() else backward

    def left(spent: Array, own: Array, others: Array, overlapped: Array) -> Array:
        if not spent.any() or not overlapped.any():
            return spent
        able = rates["hidden_dp"] * spent
        late = np.maximum((able - own) * chunk, able - own * chunk - others * often)
        shown = spent - able + np.maximum(rates["contention"] * able, late)
        return shown if overlapped.all() else np.where(overlapped > 0, shown, spent)

    return left(settling.reduce_s, own, backward, plans.overlap_grad) + left(
        settling.gather_s, forward, forward, plans.overlap_gather
    )


def exchanged(
    plans: PlanColumns, links: Links, dense: Array, expert: Array
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Seconds of the collectives that reduce gradients, and of those that gather weights, nothing hidden.

    none            all-reduce of gradients
    zero1, zero2    reduce-scatter of gradients, all-gather of weights
    zero3           all-reduce of sharded gradients among the replicas of a shard; the rest happens layer by layer
    """
    found: list[list[Array]] = [[], []]

    def add(place: int, mine: NDArray[np.bool_], seconds: Array) -> None:
        found[place].append(seconds if mine.all() else np.where(mine, seconds, 0.0))

    def over(kind: int, size: Array) -> Iterator[Array]:
        yield collective_seconds(kind, dense * size, plans.replicas, plans.tp, links)
        if expert.any():
            yield collective_seconds(kind, expert * size, plans.edp, plans.expert_stride, links)

    plain, sharded, three = plans.shard == 0, (plans.shard == 1) | (plans.shard == 2), plans.shard == 3
    if plain.any():
        for seconds in over(ALL_REDUCE, plans.gradient_bytes):
            add(0, plain, seconds)
    if sharded.any():
        for place, size in enumerate((plans.gradient_bytes, plans.weight_bytes)):
            for seconds in over(ALL_GATHER, size):
                add(place, sharded, seconds)
    if three.any():
        outside = (plans.replicas / plans.shard_degree, plans.tp * plans.shard_degree)
        size = dense * plans.gradient_bytes / plans.shard_degree
        add(0, three, collective_seconds(ALL_REDUCE, size, *outside, links))
        if expert.any():
            few = np.minimum(plans.edp, plans.shard_degree)
            size = expert * plans.gradient_bytes / few
            add(0, three, collective_seconds(ALL_REDUCE, size, plans.edp / few, plans.expert_stride * few, links))
    return tuple(found[0]), tuple(found[1])
