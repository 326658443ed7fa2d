"""Turn a pace into a layout: stages filled in model order with as many layers as time and memory allow, then polished.

    filled      for a pace T of the slowest rank every stage takes the most layers for which some number of recomputed
                ones fits the rank's memory and all of it T; the smallest T that places all layers is looked for
    polished    layers moved between stages, recompute between stages of a rank, other policies, as long as the
                predicted step gets shorter

A rank that holds several virtual stages is filled as if those to come held what the ones so far do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import comb

import numpy as np
from numpy.typing import NDArray

from ridgeline.search.stage_layout.table import Array, Index, Layouts, LayoutTable, joined

PACES = 16  # tried at once for every policy
ALL_PAIRS = 12  # virtual stages up to which every move of a layer is tried
NEAR = 9  # layers around the mean of a stage of which every number is tried
SPREAD = 12  # numbers of recomputed layers tried of a stage
ENOUGH = 6  # paces of a policy that place all layers and are looked at
TWO_AT_ONCE = 6  # virtual stages up to which two layers move at once
TRIED = 64  # moves of a round that get their recompute worked out
MOVES = 40  # rounds of polishing at most
EVERY = 200  # placements up to which all are tried
BETTER = 1e-9  # relative gain below which two steps are the same


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layers:
    """What the layers of the model take: columns are seconds, and then those of `Table.bytes`.

    again, rest   column x policy x layer: of a layer that recomputes, and of one of the rest
    ends          column x policy x rank: what a rank holds beside layers
    work          policy x (rest, again): bytes the backward of one layer takes
    """

    again: Array
    rest: Array
    ends: Array
    work: Array


def _layers(table: LayoutTable) -> _Layers:
    many, kinds, blocks = len(table.policies), table.kinds, table.before.shape[1]
    order = np.diff(table.before, axis=0).argmax(1)
    columns = np.concatenate([table.times.busy[None], table.bytes]).reshape(-1, many, kinds)
    work = table.work.reshape(many, kinds)
    return _Layers(
        again=columns[:, :, 2 + 2 * order],
        rest=columns[:, :, 3 + 2 * order],
        ends=columns @ (table.adds @ table.fixed).T,
        work=np.stack([work[:, first : first + 2 * blocks : 2].max(1) for first in (3, 2)], axis=1),
    )


def filled(table: LayoutTable, policies: Index, budget_bytes: float) -> Layouts:
    """Layouts for the smallest paces at which each policy places all layers; none where memory never allows it."""
    layers = _layers(table)
    ends = layers.ends[0]
    low = ((layers.rest[0].sum(1) + ends.sum(1)) / table.ranks)[policies] * 0.95
    high = ((np.maximum(layers.again, layers.rest)[0].sum(1) + ends.sum(1)) / table.ranks)[policies] * 1.6
    high = np.maximum(high, ends.max(1)[policies] * 1.05)
    pace = low[:, None] * (high / low)[:, None] ** (np.arange(1, PACES + 1) / PACES)
    layouts, complete = _filled(table, layers, np.repeat(policies, PACES), pace.ravel(), budget_bytes)
    done = complete.reshape(len(policies), PACES)
    first = np.maximum.accumulate(done, axis=1).cumsum(1)  # 1 at the smallest pace that is enough, 2 at the next
    return layouts.at(np.flatnonzero(complete & (first.ravel() <= ENOUGH)))


def _filled(
    table: LayoutTable, layers: _Layers, policy: Index, pace: Array, budget_bytes: float
) -> tuple[Layouts, NDArray[np.bool_]]:
    """One layout for every policy and pace, and whether it holds all layers."""
    stages, many, rows = len(table.fixed), layers.again.shape[2], len(policy)
    most = min(many, 2 * -(-many // stages) + 2)
    pairs, choices = _choices(most)
    ahead = np.concatenate([np.pad(side, ((0, 0), (0, 0), (0, most))) for side in (layers.again, layers.rest)], axis=1)
    sides = policy[:, None] + np.array([0, len(table.policies)]).repeat(most)
    window = np.tile(np.arange(most), 2)
    taken = np.zeros((len(ahead), rows, table.ranks))
    some = np.zeros((rows, table.ranks), dtype=bool)
    start, each, own = np.zeros(rows, dtype=np.int64), np.arange(rows), policy[:, None]
    ends, (rest, runs) = layers.ends[:, policy, :, None], layers.work[policy].T[:, :, None]
    held, again = np.zeros((2, rows, stages), dtype=np.int64)
    seen = [0] * table.ranks
    for stage, rank in enumerate(table.owner.tolist()):
        seen[rank] += 1
        added = ahead[:, sides, start[:, None] + window] @ choices
        scale = len(table.stages[rank]) / seen[rank]
        whole = ends[:, :, rank] + scale * (taken[:, :, rank, None] + added)
        work = np.where(some[:, rank, None] | (pairs[:, 1] > 0), runs, rest)
        able = table.peak(np.concatenate([whole[1:], work[None]]), own, rank) <= budget_bytes
        spare = many - max(0, stages - 2 - stage)  # every inner stage to come holds a layer
        able &= (whole[0] <= pace[:, None]) & (start[:, None] + pairs[:, 0] <= spare)
        if 0 < stage < stages - 1:
            able &= pairs[:, 0] > 0
        able[:, -1] = True  # where nothing is possible the stage stays empty
        chosen = able.argmax(1)
        held[:, stage], again[:, stage] = pairs[chosen].T
        taken[:, :, rank] += added[:, each, chosen]
        some[:, rank] |= again[:, stage] > 0
        start = start + held[:, stage]
    return Layouts(held=held, again=again, policy=policy), start == many


def _choices(most: int) -> tuple[Index, Array]:
    """Layers held and recomputed, most layers and least recompute first; and which of the next layers run how.

    Of long stages not every number is tried: all around half the most, and some between.

    >>> pairs, choices = _choices(1)
    >>> pairs.tolist(), choices.T.tolist()
    ([[1, 0], [1, 1], [0, 0]], [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    >>> len(_choices(126)[0])
    339
    """
    near = range(max(0, most // 2 - NEAR), min(most, most // 2 + NEAR) + 1)
    numbers = sorted({*near, *_spread(most, NEAR)}, reverse=True)
    pairs = np.array([(held, again) for held in numbers for again in _spread(held, SPREAD)])
    place, (held, again) = np.arange(most)[:, None], pairs.T
    return pairs, np.concatenate([place < again, (place >= again) & (place < held)]).astype(np.float64)


def _spread(most: int, steps: int) -> list[int]:
    """
    >>> _spread(3, 12), _spread(40, 4)
    ([0, 1, 2, 3], [0, 10, 20, 30, 40])
    """
    return sorted({round(most * step / min(steps, most)) for step in range(min(steps, most) + 1)}) if most else [0]


def every(layers: int, stages: int) -> Index:
    """Every way to place layers, where there are few: inner stages hold at least one. None where there are many.

    >>> every(2, 3).tolist()
    [[0, 1, 1], [0, 2, 0], [1, 1, 0]]
    >>> len(every(126, 16))
    0
    """
    bars, free = stages - 1, layers - max(0, stages - 2)
    if bars == 0 or comb(free + bars, bars) > EVERY:
        return np.zeros((0, stages), dtype=np.int64)
    cuts = np.array(list(combinations(range(free + bars), bars)), dtype=np.int64)
    edges = np.pad(cuts, ((0, 0), (1, 1)), constant_values=((0, 0), (-1, free + bars)))
    held = np.diff(edges, axis=1) - 1
    held[:, 1:-1] += 1
    return held


def best(table: LayoutTable, layouts: Layouts, budget_bytes: float, most: int = 1) -> tuple[Layouts, Array]:
    """The fastest layouts that fit, fastest first, no two alike, with their steps."""
    if len(layouts):
        able = (table.peaks(layouts).max(0) <= budget_bytes) & (layouts.held[:, 1:-1] > 0).all(1)
        layouts = layouts.at(np.flatnonzero(able))
    if not len(layouts):
        return layouts, np.zeros(0)
    step = table.step_s(layouts)
    kept: list[int] = []
    for row in np.argsort(step, kind="stable"):
        same = any(
            np.array_equal(layouts.held[row], layouts.held[other]) and layouts.policy[row] == layouts.policy[other]
            for other in kept
        )
        if not same:
            kept.append(int(row))
        if len(kept) == most:
            break
    rows = np.array(kept)
    return layouts.at(rows), step[rows]


def polished(
    table: LayoutTable, one: Layouts, step_s: float, policies: Index, budget_bytes: float, *, move: bool = True
) -> Layouts:
    """One layout moved downhill until nothing makes its step shorter; `move` allows layers to change their stage."""
    for _ in range(MOVES):
        moved = neighbours(table, one) if move else one.at(np.zeros(0, dtype=np.int64))
        found, step = best(table, _around(table, one, step_s, moved, policies, budget_bytes), budget_bytes)
        if not len(found) or step[0] >= step_s * (1 - BETTER):
            break
        one, step_s = found, float(step[0])
    return one


def _around(
    table: LayoutTable, one: Layouts, step_s: float, moved: Layouts, policies: Index, budget_bytes: float
) -> Layouts:
    """Neighbours worth trying: the most promising moves and other policies, with the recompute they need."""
    if len(moved):
        guess = table.step_s(moved)
        likely = np.argsort(guess, kind="stable")[:TRIED]
        moved = moved.at(likely[guess[likely] < step_s])
    others = policies[policies != one.policy[0]]
    held = np.concatenate([moved.held, np.repeat(one.held, len(others), axis=0)])
    policy = np.concatenate([moved.policy, others])
    needed = [table.least(held, policy, budget_bytes)] if len(policy) else []
    return joined([_shifted(table, one), *needed])


def neighbours(table: LayoutTable, one: Layouts) -> Layouts:
    """One layer from a stage to another. Of few stages two layers move at once, too; of many only some are tried.

    Those are layers of the busiest rank and of the ends, to the ends and to the emptiest stage of every rank.
    """
    stages = one.held.shape[1]
    sources: Sequence[int] = range(stages)
    targets: Sequence[int] = sources
    if stages > ALL_PAIRS:
        sources = sorted({0, stages - 1, *table.stages[_busiest(table, one)]})
        targets = sorted({0, stages - 1, *(own[int(one.held[0, list(own)].argmin())] for own in table.stages)})
    moves = np.array([(a, b) for a in sources for b in targets if a != b], dtype=np.int64).reshape(-1, 2)
    change = np.eye(stages, dtype=np.int64)[moves[:, 1]] - np.eye(stages, dtype=np.int64)[moves[:, 0]]
    if stages <= TWO_AT_ONCE and len(change):
        change = np.unique(np.concatenate([change, (change[:, None] + change).reshape(-1, stages)]), axis=0)
    held = one.held + change
    least = np.ones(stages, dtype=np.int64)
    least[[0, -1]] = 0  # the ends have work of their own
    able = (held >= least).all(1)
    again = np.clip(one.again + np.minimum(change, 0), 0, np.maximum(held, 0))
    return Layouts(held=held[able], again=again[able], policy=np.repeat(one.policy, int(able.sum())))


def _busiest(table: LayoutTable, one: Layouts) -> int:
    return int(table.busy_s(one)[:, 0].argmax())


def _shifted(table: LayoutTable, one: Layouts) -> Layouts:
    """A layer of one stage recomputes instead of one of another stage of its rank; or one less does, or one more.

    Of many stages only those of the busiest rank are tried.
    """
    held, again = one.held[0], one.again[0]
    many = len(held) > ALL_PAIRS
    ranks = [table.stages[_busiest(table, one)]] if many else table.stages
    unit = np.concatenate([np.eye(len(held), dtype=np.int64), np.zeros((1, len(held)), dtype=np.int64)])
    pairs = [pair for own in ranks for pair in product((-1, *own), (-1, *own)) if pair[0] != pair[1]]
    source, target = np.array(pairs).T
    made = again - unit[source] + unit[target]
    made = made[((made >= 0) & (made <= held)).all(1)]
    return Layouts(held=np.tile(held, (len(made), 1)), again=made, policy=np.repeat(one.policy, len(made)))
