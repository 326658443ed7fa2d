"""Turn a plan into a better one that its engine can be told: layers moved, one way to recompute for all stages.

    all    every layer recomputes or none does
    each   everything in the first n layers of each virtual stage, or as above
    any    as ``refine`` likes it

The same layouts are priced by the same table as in ``refine``; only those that can be written down are left.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline.plan.plan import Recompute
from ridgeline.plan.scenario import default_placement
from ridgeline.search.space import selective_parts
from ridgeline.search.stage_layout.search import best, every, filled, neighbours
from ridgeline.search.stage_layout.table import Array, Index, Layouts, LayoutTable, joined

ROUNDS = 24  # of moving a layer
STARTS = 2  # layouts that are moved downhill
TRIED = 64  # moves of a round that get their recompute worked out


def evened(table: LayoutTable, now: Layouts, policies: Index, budget_bytes: float, most: int) -> tuple[Layouts, Array]:
    """The fastest layouts that the engine can be told, fastest first, with their steps."""
    plain = policies[[_named(table, table.policies[place].recompute) for place in policies]]
    model, stages = table.scenario.model, len(table.fixed)
    held = now.held
    if stages > 1:
        made = filled(table, plain, budget_bytes).held
        held = np.concatenate([held, [default_placement(model, stages)], every(model.layers, stages), made])
    held = np.unique(held, axis=0)
    rows = least(table, np.repeat(held, len(plain), axis=0), np.tile(plain, len(held)), budget_bytes)
    firsts, steps = best(table, rows, budget_bytes, most)
    ends = [
        _moved(table, firsts.at(np.array([row])), float(steps[row]), budget_bytes) for row in range(len(steps))[:STARTS]
    ]
    return best(table, joined([*ends, firsts]), budget_bytes, most)


def _named(table: LayoutTable, recompute: Recompute) -> bool:
    """Whether the engine has a name for what is recomputed: everything, or parts it takes together."""
    known = recompute.kind != "selective" or recompute.parts in selective_parts(table.scenario)
    return known and recompute.rest == "none"


def _moved(table: LayoutTable, one: Layouts, step_s: float, budget_bytes: float) -> Layouts:
    """A layout with single layers moved for as long as its step gets shorter."""
    for _ in range(ROUNDS):
        moves = neighbours(table, one)
        if not len(moves):
            break
        likely = np.argsort(table.step_s(moves), kind="stable")[:TRIED]
        tried = least(table, moves.held[likely], moves.policy[likely], budget_bytes)
        found, step = best(table, tried, budget_bytes)
        if not len(found) or step[0] >= step_s * (1 - 1e-9):
            break
        one, step_s = found, float(step[0])
    return one


def least(table: LayoutTable, held: Index, policy: Index, budget_bytes: float) -> Layouts:
    """The least recompute, the same in every stage, with which every rank fits; all layers where none is enough."""
    some = table.scenario.engine.supports.recompute_layers == "each"
    full = np.array([one.recompute.kind == "full" for one in table.policies])[policy]

    def of(layers: Index) -> Layouts:
        return Layouts(held=held, again=np.minimum(held, layers[:, None]), policy=policy)

    def fits(layers: Index) -> NDArray[np.bool_]:
        return np.asarray(table.peaks(of(layers)).max(0) <= budget_bytes)

    most = held.max(1)
    low = np.where(full & some, 1, most)
    high = most.copy()
    while (low < high).any():
        middle = (low + high) // 2
        enough = fits(middle)
        high = np.where(enough, middle, high)
        low = np.where(enough, low, np.minimum(middle + 1, high))
    return of(np.where(fits(np.zeros_like(most)), 0, high))
