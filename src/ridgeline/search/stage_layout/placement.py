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
from itertools import permutations, product

import numpy as np

from ridgeline.core.arrays import Array, Index
from ridgeline.core.records import dataclass
from ridgeline.plan.plan import Recompute
from ridgeline.plan.scenario import default_placement
from ridgeline.search.choices import selective_parts
from ridgeline.search.stage_layout.layouts import Layouts, LayoutTable, join_layouts, smallest

PRICED = 128  # placements handed on; twice as many make steps 0.003 % shorter in the mean


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeRules:
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


def placements(
    table: LayoutTable, rules: RecomputeRules, budget_bytes: float, within: LayoutBound
) -> tuple[Index, Index]:
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


def rank_seconds(table: LayoutTable, rules: RecomputeRules, budget_bytes: float, within: LayoutBound) -> RankSeconds:
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
    places = [np.arange(start[stage], end[stage]) for stage_places in table.stages for stage in stage_places]
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
class LayoutBound:
    """What a rank of any layout faster than a known one stays within: seconds of a microbatch, and layers."""

    seconds: float
    layers: int


def bound(table: LayoutTable, policies: Index, budget_bytes: float, known: Layouts) -> LayoutBound:
    """From a layout that fits, if there is one, and the budget: were all layers quick and small, so many still are."""
    order, sections = _order(table), table.model.sections
    busy = sections.times.busy.reshape(-1, sections.many)[policies]
    quick = table.model.quickest_s(policies)
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
    return LayoutBound(seconds=float(seconds), layers=max(maximum, -(-len(order) // table.ranks)))


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


def _stretches(table: LayoutTable, rules: RecomputeRules, ahead: Index) -> _Stretches:
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


FINALISTS = 6  # layouts handed on, for events to choose among
VARIED = 16  # layouts whose ends are varied, where ranks hold several stages: that of 6 misses some by 0.4 %
STARTS = 2  # layouts that are polished; one makes steps 0.04 % longer in the mean, three 0.01 % shorter
BETTER = 1e-9  # relative gain below which two steps are the same

RankedLayouts = tuple[Layouts, Array]  # layouts that fit, fastest first, and their steps


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSearch:
    """Layouts of one plan within a budget.

    policies   places of those that may be used
    alike      whether the same number of layers recomputes in every virtual stage
    """

    table: LayoutTable
    budget_bytes: float
    policies: Index
    alike: bool = False

    def recomputed(self, now: Layouts) -> RankedLayouts:
        """Other recompute where the layers are."""
        return self._polish(join_layouts([now, self._under_every_policy(now.layers)]), move=False)

    def placed(self, now: Layouts) -> RankedLayouts:
        """Layers moved, and recompute with them."""
        table = self.table
        even = np.array([default_placement(table.scenario.model, table.virtual_stages)])
        starts = join_layouts([now, self._under_every_policy(np.unique(np.concatenate([now.layers, even]), axis=0))])
        if table.virtual_stages > 1:
            starts = self._with_other_placements(starts)
        return self._polish(starts, move=table.virtual_stages > 1)

    def _with_other_placements(self, starts: Layouts) -> Layouts:
        """Some layouts, and those that may be faster than the fastest of them."""
        catalog_entry, _ = self._fastest(starts, 1)
        within = bound(self.table, self.policies, self.budget_bytes, catalog_entry)
        rules = self._rules(within.layers)
        layers, rule = placements(self.table, rules, self.budget_bytes, within)
        result = join_layouts([starts, self.least(layers, rules.policy[rule])])
        if len(self.table.stages[0]) == 1:
            return result
        result, _ = self._fastest(result, VARIED)
        return join_layouts([result, self._with_other_ends(result)])

    def least(self, layers: Index, policy: Index) -> Layouts:
        """The least recompute with which every rank fits; all layers where none is enough."""
        if not self.alike:
            return self.table.least_recompute(layers, policy, self.budget_bytes)
        some = self.table.scenario.engine.supports.recompute_layers == "each"
        full = np.array([policy.recompute.kind == "full" for policy in self.table.policies])[policy]
        step = np.where(full & some, 1, layers.max(1))  # layers of a stage: any number, or all

        def of(steps: Index) -> Layouts:
            return Layouts(layers=layers, recomputed=np.minimum(layers, (steps * step)[:, None]), policy=policy)

        maximum = -(-layers.max(1) // step)
        return of(smallest(lambda steps: self.table.peaks(of(steps)).max(0) <= self.budget_bytes, maximum))

    def _rules(self, most: int) -> RecomputeRules:
        """All ways to say how many layers recompute."""
        if not self.alike:
            return RecomputeRules(policy=self.policies, each=np.full(len(self.policies), -1))
        table, layers = self.table, -(-most // len(self.table.stages[0]))
        some = table.scenario.engine.supports.recompute_layers == "each"
        rules = [
            (place, share)
            for place in self.policies
            for share in (range(layers + 1) if some and table.policies[place].recompute.kind == "full" else (0, layers))
        ]
        policy, share = np.array(rules).T
        return RecomputeRules(policy=policy, each=share)

    def _under_every_policy(self, layers: Index) -> Layouts:
        """Every one of these placements under every policy, with the recompute it needs."""
        share = np.repeat(layers, len(self.policies), axis=0)
        return self.least(share, np.tile(self.policies, len(layers)))

    def _fastest(self, layouts: Layouts, most: int = FINALISTS) -> RankedLayouts:
        """The fastest layouts that fit, fastest first, no two alike in placement and policy."""
        able = (self.table.peaks(layouts).max(0) <= self.budget_bytes) & (layouts.layers >= self.table.fewest).all(1)
        layouts = layouts.at(np.flatnonzero(able))
        if not len(layouts):
            return layouts, np.zeros(0)
        steps = self.table.step_s(layouts)
        order = np.argsort(steps, kind="stable")
        _, first = np.unique(np.column_stack([layouts.policy, layouts.layers])[order], axis=0, return_index=True)
        rows = order[np.sort(first)[:most]]
        return layouts.at(rows), steps[rows]

    def _polish(self, layouts: Layouts, *, move: bool) -> RankedLayouts:
        """The fastest of some layouts moved downhill until nothing makes their steps shorter, and the others behind."""
        firsts, steps = self._fastest(layouts)
        ends = [firsts]
        for row in range(len(firsts))[: STARTS if move else 1]:
            item, step_s = firsts.at(np.array([row])), float(steps[row])
            while True:
                result, step = self._fastest(self._neighbours(item, step_s, move=move), 1)
                if not len(result) or step[0] >= step_s * (1 - BETTER):
                    break
                item, step_s = result, float(step[0])
            ends.append(item)
        return self._fastest(join_layouts(ends)) if len(firsts) else (firsts, steps)

    def _neighbours(self, one: Layouts, step_s: float, *, move: bool) -> Layouts:
        """Layouts one change away from one with this step, each with the recompute it needs."""
        layers, policy = one.layers, self.policies[self.policies != one.policy[0]]
        layers = np.repeat(layers, len(policy), axis=0)
        if move:
            moved = self._moved_layers(one, step_s)
            layers, policy = (
                np.concatenate([layers, moved]),
                np.concatenate([policy, np.repeat(one.policy, len(moved))]),
            )
        shifted = [] if self.alike else [self._shift_layers(one)]
        return join_layouts([one, *shifted, self.least(layers, policy)])

    def _moved_layers(self, one: Layouts, step_s: float) -> Index:
        """Placements with one layer on another rank, or at an end instead of between, that may have a shorter step.

        Of a rank's inner stages the one with most layers gives, the one with fewest takes: schedules see their sum. At
        best the rank that gives need not recompute any more.
        """
        layers, ends, stages = one.layers[0], {0, len(one.layers[0]) - 1}, self.table.stages
        inner = [[stage for stage in stage if stage not in ends] for stage in stages]
        gives = sorted(ends | {max(current, key=layers.__getitem__) for current in inner if current})
        takes = sorted(ends | {min(current, key=layers.__getitem__) for current in inner if current})
        source, target = np.array([pair for pair in product(gives, takes) if pair[0] != pair[1]]).T
        unit, owner = np.eye(len(layers), dtype=np.int64), self.table.owner
        moved: Index = layers - unit[source] + unit[target]
        able = np.asarray((moved >= self.table.fewest).all(1))
        if not self.alike:
            least = np.where(owner[source][:, None] == owner, 0, np.minimum(one.recomputed, np.maximum(moved, 0)))
            candidate_value = Layouts(
                layers=moved[able], recomputed=least[able], policy=np.repeat(one.policy, able.sum())
            )
            able[able] = self.table.step_s(candidate_value) < step_s
        return moved[able]

    def _with_other_ends(self, layouts: Layouts) -> Layouts:
        """Layouts with a layer more or less at the ends, and less or more in other stages of their ranks."""
        ends = (0, layouts.layers.shape[1] - 1)
        inner = [[stage for stage in self.table.stages[self.table.owner[end]] if stage not in ends] for end in ends]
        candidate_value = []
        for changes in product((-1, 0, 1), repeat=2):
            layers, rows = layouts.layers.copy(), np.arange(len(layouts))
            for end, current, more in zip(ends, map(np.array, inner), changes, strict=True):
                if more and len(current):
                    layers[:, end] += more
                    layers[rows, current[(more * layers[:, current]).argmax(1)]] -= more
            candidate_value.append(layers)
        layers, policy = np.concatenate(candidate_value), np.tile(layouts.policy, len(candidate_value))
        able = np.flatnonzero((layers >= self.table.fewest).all(1))
        return self.least(layers[able], policy[able])

    def _shift_layers(self, one: Layouts) -> Layouts:
        """One layer less of a stage recomputes, or one more, or one at an end instead of one between on its rank."""
        layers, now = one.layers[0], one.recomputed[0]
        unit = np.concatenate([np.eye(len(layers), dtype=np.int64), np.zeros((1, len(layers)), dtype=np.int64)])
        told_apart = {-1, 0, len(layers) - 1}
        pairs = [
            pair
            for stage in self.table.stages
            for pair in permutations((-1, *stage), 2)
            if told_apart.intersection(pair)
        ]
        source, target = np.array(pairs).T
        candidate_value = now - unit[source] + unit[target]
        candidate_value = candidate_value[((candidate_value >= 0) & (candidate_value <= layers)).all(1)]
        return Layouts(
            layers=np.tile(layers, (len(candidate_value), 1)),
            recomputed=candidate_value,
            policy=np.repeat(one.policy, len(candidate_value)),
        )


def policy_names(table: LayoutTable, policies: Index) -> Index:
    """Policies the engine has a name for: nothing, everything, or parts it takes together."""

    def name_words(recompute: Recompute) -> bool:
        catalog_entry = recompute.kind != "selective" or recompute.parts in selective_parts(table.scenario)
        return catalog_entry and recompute.rest == "none"

    return policies[[name_words(table.policies[place].recompute) for place in policies]]
