"""Turn a layout into the fastest ones within a budget: placements from ``placement``, priced in full, then polished.

    starts   the layout there is, layers placed evenly, and what dynamic programming finds, under every policy
    polish   single layers moved between ranks, recompute to or from an end of its rank, and other policies, as long as
             the predicted step gets shorter: only here is known what the schedule makes of first, last and slowest
             stages, of sends and of the gradient exchange

How many layers recompute follows from the placement: the least that fits, rank by rank; or, where an engine takes one
number for all stages, the least such number.
"""

from __future__ import annotations

from itertools import permutations, product

import numpy as np

from ridgeline.core.arrays import Array, Index
from ridgeline.core.records import dataclass
from ridgeline.plan.plan import Recompute
from ridgeline.plan.scenario import default_placement
from ridgeline.search.space import selective_parts
from ridgeline.search.stage_layout.placement import Rules, bound, placements
from ridgeline.search.stage_layout.table import Layouts, LayoutTable, join_layouts, smallest

FINALISTS = 6  # layouts handed on, for events to choose among
VARIED = 16  # layouts whose ends are varied, where ranks hold several stages: that of 6 misses some by 0.4 %
STARTS = 2  # layouts that are polished; one makes steps 0.04 % longer in the mean, three 0.01 % shorter
BETTER = 1e-9  # relative gain below which two steps are the same

Found = tuple[Layouts, Array]  # layouts that fit, fastest first, and their steps


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

    def recomputed(self, now: Layouts) -> Found:
        """Other recompute where the layers are."""
        return self._polish(join_layouts([now, self._under_every_policy(now.layers)]), move=False)

    def placed(self, now: Layouts) -> Found:
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

    def _rules(self, most: int) -> Rules:
        """All ways to say how many layers recompute."""
        if not self.alike:
            return Rules(policy=self.policies, each=np.full(len(self.policies), -1))
        table, layers = self.table, -(-most // len(self.table.stages[0]))
        some = table.scenario.engine.supports.recompute_layers == "each"
        rules = [
            (place, share)
            for place in self.policies
            for share in (range(layers + 1) if some and table.policies[place].recompute.kind == "full" else (0, layers))
        ]
        policy, share = np.array(rules).T
        return Rules(policy=policy, each=share)

    def _under_every_policy(self, layers: Index) -> Layouts:
        """Every one of these placements under every policy, with the recompute it needs."""
        share = np.repeat(layers, len(self.policies), axis=0)
        return self.least(share, np.tile(self.policies, len(layers)))

    def _fastest(self, layouts: Layouts, most: int = FINALISTS) -> Found:
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

    def _polish(self, layouts: Layouts, *, move: bool) -> Found:
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
            moved = self._moved(one, step_s)
            layers, policy = (
                np.concatenate([layers, moved]),
                np.concatenate([policy, np.repeat(one.policy, len(moved))]),
            )
        shifted = [] if self.alike else [self._shift_layers(one)]
        return join_layouts([one, *shifted, self.least(layers, policy)])

    def _moved(self, one: Layouts, step_s: float) -> Index:
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
