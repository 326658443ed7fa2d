"""Turn memory policies into placements: how many layers each rank holds so that the busiest has least to do.

Under one policy a rank that holds n layers needs some least number of recomputed ones to fit its memory, and with them
so many seconds for a microbatch: f(rank, n), infinite where nothing fits. For every number of layers on the first and
on the last rank, which schedules treat in their own way, dynamic programming over the ranks between finds

    T   the least  max f  with which they hold the other layers
    n   the layers of each with the least  sum f  at that T

The cells (policy, first, last) with the least bottleneck are handed on to be priced in full. The first rank's forwards
are there while the others still wait for work: of its m microbatches p - 1 forwards, a third of the time, do not count.

Exact where each rank holds one stage or all layers are alike; otherwise a rank is taken to hold a stretch of the layers
in the order in which ranks hold them when they are placed evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from ridgeline.core.arrays import Array, Index
from ridgeline.core.records import dataclass
from ridgeline.plan.scenario import default_placement
from ridgeline.search.stage_layout.table import Layouts, LayoutTable, smallest

PRICED = 128  # placements handed on; twice as many make steps 0.003 % shorter in the mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What decides how many layers recompute, one row each: a policy, and layers of every stage or -1: the least."""

    policy: Index
    each: Index

    def __len__(self) -> int:
        return len(self.policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSeconds:
    """Seconds of a microbatch: rules x ranks x starts that look alike x layers held; infinite where nothing fits.

    start   which of the alike every start is: places in the model before which a rank may begin
    fewest  layers every rank holds at least
    """

    seconds: Array
    start: Index
    fewest: Index


def placements(table: LayoutTable, rules: Rules, budget_bytes: float, within: Bound) -> tuple[Index, Index]:
    """Layers by virtual stage and rule of the placements that may be the fastest; none where memory never allows it."""
    many, layers = float(table.model.plans.microbatches[0]), len(table.model.blocks.order)
    ready = rank_seconds(table, rules, budget_bytes, within)
    last = np.full((len(rules), layers + 1), np.inf)
    remaining = np.arange(min(layers, ready.seconds.shape[3] - 1) + 1)
    last[:, layers - remaining] = ready.seconds[:, -1, ready.start[-1, layers - remaining], remaining]
    rule, first = np.nonzero(np.isfinite(ready.seconds[:, 0, 0]))
    current = ready.seconds[rule, 0, 0, first]
    between, _ = _fill_stages(ready, rule, first, np.full(len(rule), np.inf), np.maximum)
    early = current * (1 - (table.ranks - 1) / len(table.stages[0]) / (3 * many))
    guess = np.maximum(np.maximum(between, early[:, None]), last[rule])
    row, end = _best_cells(guess, rules.policy[rule], first)
    _, choices = _fill_stages(ready, rule[row], first[row], between[row, end], np.add)
    result = np.column_stack([first[row], *_back(choices, end), layers - end])
    return _by_stage(table, result), rule[row]


def _best_cells(guess: Array, policy: Index, first: Index) -> tuple[Index, Index]:
    """The smallest entries, of rows with the same policy and first rank one for each column."""
    order = np.argsort(guess, axis=None, kind="stable")
    row, end = np.unravel_index(order[np.isfinite(guess.ravel()[order])], guess.shape)
    _, once = np.unique(np.column_stack([policy[row], first[row], end]), axis=0, return_index=True)
    few = np.sort(once)[:PRICED]
    return row[few], end[few]


def rank_seconds(table: LayoutTable, rules: Rules, budget_bytes: float, within: Bound) -> RankSeconds:
    """What every rank takes with every number of layers, with the recompute that its rule says."""
    maximum = within.layers
    fewest = np.array([table.fewest[list(stage)].sum() for stage in table.stages])
    ahead, start = _stretches_ahead(_order(table), maximum, table.ranks)
    stretches = _stretches(table, rules, ahead)
    layers = np.broadcast_to(np.arange(maximum + 1)[:, None], stretches.shape)
    if (rules.each < 0).all():
        recomputed = smallest(lambda some: stretches.peaks(some) <= budget_bytes, layers)
    else:
        stages = len(table.stages[0])
        total, more = np.divmod(layers, stages)
        recomputed = (stages - more) * np.minimum(total, rules.each) + more * np.minimum(total + 1, rules.each)
    seconds = stretches.busy_s(recomputed)
    able = stretches.peaks(recomputed) <= budget_bytes
    able[1:] &= seconds[1:] <= within.seconds  # the first rank may take longer: its first forwards wait for nobody
    able &= layers >= fewest[:, None, None, None]
    seconds = np.where(able, seconds, np.inf)
    return RankSeconds(seconds=seconds.transpose(3, 0, 1, 2), start=start, fewest=fewest)


def _order(table: LayoutTable) -> Index:
    """Blocks of the layers in the order in which ranks hold them: that of the model where a rank holds one stage."""
    end = np.cumsum(default_placement(table.scenario.model, table.virtual_stages))
    start = np.concatenate([[0], end[:-1]])
    places = [np.arange(start[stage], end[stage]) for own in table.stages for stage in own]
    order: Index = table.model.blocks.order[np.concatenate(places)]
    return order


def _stretches_ahead(order: Index, most: int, ranks: int) -> tuple[Index, Index]:
    """The next `most` blocks from where ranks may begin, each different stretch once: ranks x stretches x blocks.

    Beside it which of its stretches a rank sees from every start. Near the end any will do that begins with what is
    left; a rank begins where those before can have come and those after can go on.
    """
    many = len(order)
    result = np.zeros((ranks, many + 1), dtype=np.int64)
    lists = []
    for rank in range(ranks):
        table: dict[tuple[int, ...], int] = {}
        for place in range(max(0, many - most * (ranks - rank)), min(many, most * rank) + 1):
            remaining = tuple(order[place : place + most].tolist())
            total = (
                remaining
                if len(remaining) == most
                else next((capacity for capacity in table if capacity[: len(remaining)] == remaining), None)
            )
            total = remaining + (int(order[-1]),) * (most - len(remaining)) if total is None else total
            result[rank, place] = table.setdefault(total, len(table))
        lists.append(list(table))
    longest = max(map(len, lists))
    return np.array([list + list[-1:] * (longest - len(list)) for list in lists]), result


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a rank of any layout faster than a known one stays within: seconds of a microbatch, and layers."""

    seconds: float
    layers: int


def bound(table: LayoutTable, policies: Index, budget_bytes: float, known: Layouts) -> Bound:
    """From a layout that fits, if there is one, and the budget: were all layers quick and small, so many still are."""
    order, sections = _order(table), table.model.sections
    busy = sections.times.busy.reshape(-1, sections.many)[policies]
    quick = np.minimum(busy[:, table.model.blocks.recomputed], busy[:, table.model.blocks.rest])
    seconds = np.inf
    if len(known):
        current = table.busy_s(known)[:, 0]
        spare = current.sum() - (quick @ table.model.blocks.before[-1] + busy @ table.model.fixed.sum(0)).min()
        seconds = (
            current.max()
            + (table.ranks - 1) / table.virtual_stages * max(spare, 0.0) / table.model.plans.microbatches[0]
        )
    capacity = sections.footprint.reshape(4, -1, sections.many)[:, policies]
    small = np.minimum(capacity[:, :, table.model.blocks.recomputed], capacity[:, :, table.model.blocks.rest])
    share = np.einsum("mcrp,cpb->mrpb", table.model.form.factors[:, :4, :, policies], small).min(2)
    room = budget_bytes - table.model.form.constant[:, :, policies].min(2)
    longest = [_longest(share[..., rank, :].T[order].T, room[:, rank]) for rank in range(table.ranks)]
    maximum = min(max(longest), _longest(quick.min(0)[order][None], np.array([seconds])))
    return Bound(seconds=float(seconds), layers=max(maximum, -(-len(order) // table.ranks)))


def _longest(sizes: Array, room: Array) -> int:
    """The longest stretch of layers that takes no more than there is room for, in every row.

    >>> _longest(np.array([[1.0, 1.0, 3.0, 1.0, 1.0, 1.0]]), np.array([3.0]))
    3
    """
    places = np.arange(sizes.shape[1] + 1)
    ends = [
        np.searchsorted(total, total + some, side="right") - 1 for total, some in zip(_totals(sizes), room, strict=True)
    ]
    return int(max(0, (np.min(ends, axis=0) - places).max()))


def _totals(sizes: Array) -> Array:
    return np.pad(sizes.cumsum(1), ((0, 0), (1, 0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretches:
    """Sums over the first layers of stretches: ranks x stretches x layers x rules.

    seconds, bytes   of ranks none of whose layers recompute; bytes by moment, before these four
    extra_s, freed   what the first layers add to that when they recompute
    widest, wider    workspace of layers that do not recompute, and of those that do; `factor` what a byte of it adds
    """

    seconds: Array
    extra_s: Array
    bytes: Array
    freed: Array
    widest: Array
    wider: Array
    factor: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Ranks, stretches, layers, rules."""
        return self.seconds.shape

    def busy_s(self, recomputed: Index) -> Array:
        """Seconds of a microbatch where so many layers recompute, the first."""
        result: Array = self.seconds + np.take_along_axis(self.extra_s, recomputed, axis=2)
        return result

    def peaks(self, recomputed: Index) -> Array:
        """Peak bytes, likewise."""
        workspace = np.maximum(self.widest, np.take_along_axis(self.wider, recomputed, axis=2))
        moments = zip(self.bytes, self.freed, self.factor, strict=True)
        peaks = (
            whole + np.take_along_axis(moment, recomputed, axis=2) + factor * workspace
            for whole, moment, factor in moments
        )
        return np.asarray(reduce(np.maximum, peaks))


def _stretches(table: LayoutTable, rules: Rules, ahead: Index) -> _Stretches:
    """Sums along stretches of layers, `ahead` being their blocks."""
    sections, blocks, many = table.model.sections, table.model.blocks, table.model.sections.many
    columns = np.concatenate([sections.times.busy[None], sections.footprint]).reshape(5, -1, many)
    columns = columns[:, rules.policy]
    wide = sections.workspace.reshape(-1, many)[rules.policy]
    overlap_schedules = table.model.adds @ table.model.fixed
    ends = np.einsum("rs,cps->crp", overlap_schedules, columns)[:, :, None, None]
    ends_wide = ((overlap_schedules > 0)[:, :, None] * wide.T).max(1)[:, None, None]
    factors = table.model.form.factors[..., rules.policy]

    def along(places: Index) -> tuple[Array, Array]:
        share = np.moveaxis(columns[:, :, places[ahead]], 1, -1).cumsum(3)
        widest = np.maximum.accumulate(np.moveaxis(wide[:, places[ahead]], 0, -1), axis=2)
        return np.pad(share, ((0, 0), (0, 0), (0, 0), (1, 0), (0, 0))), np.pad(widest, ((0, 0), (0, 0), (1, 0), (0, 0)))

    remainder, widest = along(blocks.rest)
    recomputed, wider = along(blocks.recomputed)
    constant = table.model.form.constant[:, :, None, None, rules.policy]
    return _Stretches(
        seconds=remainder[0] + ends[0],
        extra_s=(recomputed - remainder)[0],
        bytes=constant + np.einsum("mcrp,crxnp->mrxnp", factors[:, :4], remainder[1:] + ends[1:]),
        freed=np.einsum("mcrp,crxnp->mrxnp", factors[:, :4], (recomputed - remainder)[1:]),
        widest=np.maximum(widest, ends_wide),
        wider=wider,
        factor=factors[:, 4, :, None, None],
    )


def _fill_stages(
    ready: RankSeconds, rules: Index, first: Index, limit_s: Array, joins: np.ufunc
) -> tuple[Array, list[Index]]:
    """The least joined seconds of the ranks between the first, which holds so many layers, and the last.

    None takes longer than a limit. By row and layers placed so far, infinite where nothing fits; beside them what each
    rank holds.
    """
    ranks, maximum, layers = ready.seconds.shape[1], ready.seconds.shape[3] - 1, ready.start.shape[1] - 1
    least = np.full((len(rules), layers + 1), np.inf)
    least[np.arange(len(rules)), first] = 0.0
    choices = []
    for rank in range(1, ranks - 1):
        after = int(ready.fewest[rank + 1 :].sum())
        ends = np.arange(max(0, layers - maximum * (ranks - rank - 1)), min(layers - after, maximum * (rank + 1)) + 1)
        capacity = np.arange(ready.fewest[rank], maximum + 1)
        begin = np.maximum(ends[:, None] - capacity, 0)
        spent = ready.seconds[rules[:, None, None], rank, ready.start[rank, begin], capacity]
        able = (spent <= limit_s[:, None, None]) & (ends[:, None] >= capacity)
        result = np.where(able, joins(least[:, begin], spent), np.inf)
        pick = result.argmin(2)
        least = np.full((len(rules), layers + 1), np.inf)
        least[:, ends] = np.take_along_axis(result, pick[..., None], axis=2)[..., 0]
        choices.append(np.zeros(least.shape, dtype=np.int64))
        choices[-1][:, ends] = capacity[pick]
    return least, choices


def _back(choices: Sequence[Index], end: Index) -> list[Index]:
    """What each rank holds where so many layers are placed in the end."""
    rows, result = np.arange(len(end)), []
    for chosen in reversed(choices):
        result.append(chosen[rows, end])
        end = end - result[-1]
    return result[::-1]


def _by_stage(table: LayoutTable, layers: Index) -> Index:
    """Layers of ranks spread over their virtual stages: evenly in time, so that the ends, which do more, hold fewer."""
    result = np.zeros((len(layers), table.virtual_stages), dtype=np.int64)
    busy = table.model.sections.times.busy[: table.model.sections.many]  # under the plan's own policy
    layer_s = busy[table.model.blocks.rest] @ table.model.blocks.before[-1] / len(table.model.blocks.order)
    for rank, current in enumerate(table.stages):
        remaining, ends = layers[:, rank].copy(), [stage for stage in current if table.fewest[stage] == 0]
        more = {stage: float(busy @ table.model.fixed[table.model.group[stage]]) / layer_s for stage in ends}
        share = (layers[:, rank] + sum(more.values())) / len(current)
        for stage in ends if len(current) > len(ends) else ends[:-1]:
            result[:, stage] = np.clip(np.rint(share - more[stage]), 0, remaining - (len(current) - len(ends)))
            remaining -= result[:, stage]
        inner = [stage for stage in current if stage not in ends] or ends[-1:]
        for turn, stage in enumerate(inner):
            result[:, stage] = (remaining - turn + len(inner) - 1) // len(inner)
    return result
