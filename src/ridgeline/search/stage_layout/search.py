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
from ridgeline.search.stage_layout.table import Layouts, LayoutTable, joined, smallest

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
        return self._polished(joined([now, self._under_every_policy(now.layers)]), move=False)

    def placed(self, now: Layouts) -> Found:
        """Layers moved, and recompute with them."""
        table = self.table
        even = np.array([default_placement(table.scenario.model, table.virtual_stages)])
        starts = joined([now, self._under_every_policy(np.unique(np.concatenate([now.layers, even]), axis=0))])
        if table.virtual_stages > 1:
            starts = self._with_other_placements(starts)
        return self._polished(starts, move=table.virtual_stages > 1)

    def _with_other_placements(self, starts: Layouts) -> Layouts:
        """Some layouts, and those that may be faster than the fastest of them."""
        known, _ = self._fastest(starts, 1)
        within = bound(self.table, self.policies, self.budget_bytes, known)
        rules = self._rules(within.layers)
        layers, rule = placements(self.table, rules, self.budget_bytes, within)
        found = joined([starts, self.least(layers, rules.policy[rule])])
        if len(self.table.stages[0]) == 1:
            return found
        found, _ = self._fastest(found, VARIED)
        return joined([found, self._with_other_ends(found)])

    def least(self, layers: Index, policy: Index) -> Layouts:
        """The least recompute with which every rank fits; all layers where none is enough."""
        if not self.alike:
            return self.table.least_recompute(layers, policy, self.budget_bytes)
        some = self.table.scenario.engine.supports.recompute_layers == "each"
        full = np.array([one.recompute.kind == "full" for one in self.table.policies])[policy]
        step = np.where(full & some, 1, layers.max(1))  # layers of a stage: any number, or all

        def of(steps: Index) -> Layouts:
            return Layouts(layers=layers, recomputed=np.minimum(layers, (steps * step)[:, None]), policy=policy)

        most = -(-layers.max(1) // step)
        return of(smallest(lambda steps: self.table.peaks(of(steps)).max(0) <= self.budget_bytes, most))

    def _rules(self, most: int) -> Rules:
        """All ways to say how many layers recompute."""
        if not self.alike:
            return Rules(policy=self.policies, each=np.full(len(self.policies), -1))
        table, layers = self.table, -(-most // len(self.table.stages[0]))
        some = table.scenario.engine.supports.recompute_layers == "each"
        rules = [
            (place, each)
            for place in self.policies
            for each in (range(layers + 1) if some and table.policies[place].recompute.kind == "full" else (0, layers))
        ]
        policy, each = np.array(rules).T
        return Rules(policy=policy, each=each)

    def _under_every_policy(self, layers: Index) -> Layouts:
        """Every one of these placements under every policy, with the recompute it needs."""
        each = np.repeat(layers, len(self.policies), axis=0)
        return self.least(each, np.tile(self.policies, len(layers)))

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

    def _polished(self, layouts: Layouts, *, move: bool) -> Found:
        """The fastest of some layouts moved downhill until nothing makes their steps shorter, and the others behind."""
        firsts, steps = self._fastest(layouts)
        ends = [firsts]
        for row in range(len(firsts))[: STARTS if move else 1]:
            one, step_s = firsts.at(np.array([row])), float(steps[row])
            while True:
                found, step = self._fastest(self._neighbours(one, step_s, move=move), 1)
                if not len(found) or step[0] >= step_s * (1 - BETTER):
                    break
                one, step_s = found, float(step[0])
            ends.append(one)
        return self._fastest(joined(ends)) if len(firsts) else (firsts, steps)

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
        shifted = [] if self.alike else [self._shifted(one)]
        return joined([one, *shifted, self.least(layers, policy)])

    def _moved(self, one: Layouts, step_s: float) -> Index:
        """Placements with one layer on another rank, or at an end instead of between, that may have a shorter step.

        Of a rank's inner stages the one with most layers gives, the one with fewest takes: schedules see their sum. At
        best the rank that gives need not recompute any more.
        """
        layers, ends, stages = one.layers[0], {0, len(one.layers[0]) - 1}, self.table.stages
        inner = [[stage for stage in own if stage not in ends] for own in stages]
        gives = sorted(ends | {max(own, key=layers.__getitem__) for own in inner if own})
        takes = sorted(ends | {min(own, key=layers.__getitem__) for own in inner if own})
        source, target = np.array([pair for pair in product(gives, takes) if pair[0] != pair[1]]).T
        unit, owner = np.eye(len(layers), dtype=np.int64), self.table.owner
        moved: Index = layers - unit[source] + unit[target]
        able = np.asarray((moved >= self.table.fewest).all(1))
        if not self.alike:
            least = np.where(owner[source][:, None] == owner, 0, np.minimum(one.recomputed, np.maximum(moved, 0)))
            made = Layouts(layers=moved[able], recomputed=least[able], policy=np.repeat(one.policy, able.sum()))
            able[able] = self.table.step_s(made) < step_s
        return moved[able]

    def _with_other_ends(self, layouts: Layouts) -> Layouts:
        """Layouts with a layer more or less at the ends, and less or more in other stages of their ranks."""
        ends = (0, layouts.layers.shape[1] - 1)
        inner = [[stage for stage in self.table.stages[self.table.owner[end]] if stage not in ends] for end in ends]
        made = []
        for changes in product((-1, 0, 1), repeat=2):
            layers, rows = layouts.layers.copy(), np.arange(len(layouts))
            for end, own, more in zip(ends, map(np.array, inner), changes, strict=True):
                if more and len(own):
                    layers[:, end] += more
                    layers[rows, own[(more * layers[:, own]).argmax(1)]] -= more
            made.append(layers)
        layers, policy = np.concatenate(made), np.tile(layouts.policy, len(made))
        able = np.flatnonzero((layers >= self.table.fewest).all(1))
        return self.least(layers[able], policy[able])

    def _shifted(self, one: Layouts) -> Layouts:
        """One layer less of a stage recomputes, or one more, or one at an end instead of one between on its rank."""
        layers, now = one.layers[0], one.recomputed[0]
        unit = np.concatenate([np.eye(len(layers), dtype=np.int64), np.zeros((1, len(layers)), dtype=np.int64)])
        told_apart = {-1, 0, len(layers) - 1}
        pairs = [
            pair for own in self.table.stages for pair in permutations((-1, *own), 2) if told_apart.intersection(pair)
        ]
        source, target = np.array(pairs).T
        made = now - unit[source] + unit[target]
        made = made[((made >= 0) & (made <= layers)).all(1)]
        return Layouts(layers=np.tile(layers, (len(made), 1)), recomputed=made, policy=np.repeat(one.policy, len(made)))


def told(table: LayoutTable, policies: Index) -> Index:
    """Policies the engine has a name for: nothing, everything, or parts it takes together."""

    def named(recompute: Recompute) -> bool:
        known = recompute.kind != "selective" or recompute.parts in selective_parts(table.scenario)
        return known and recompute.rest == "none"

    return policies[[named(table.policies[place].recompute) for place in policies]]
