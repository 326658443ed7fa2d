"""Turn many layouts of one plan (layers and layers recomputed by stage, a policy) into steps and peaks at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

import numpy as np

from ridgeline.core.arrays import Array, Index, Mask
from ridgeline.core.records import dataclass
from ridgeline.cost import Calibration
from ridgeline.plan.engine import RecomputeKind
from ridgeline.plan.plan import Recompute
from ridgeline.plan.scenario import Scenario
from ridgeline.search.choices import selective_parts
from ridgeline.sim.batches import LayoutModel, price_layouts

SHARES = tuple(eighth / 8 for eighth in range(9))  # of activations, that may be offloaded


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPolicy:
    """What the layers of a plan save: recompute with its layers left open, and the share of activations offloaded."""

    recompute: Recompute
    offload: float


def recomputes_of(scenario: Scenario) -> tuple[Recompute, ...]:
    """What layers may recompute, the plan's own way first, layers left open; also what the engine has no name for."""
    able, current = scenario.engine.supports, scenario.plan.recompute
    kinds: list[Recompute] = [replace(current, layers=0), Recompute(layers=0)]
    pairs: list[tuple[RecomputeKind, RecomputeKind]] = [("selective", "none"), ("full", "none"), ("full", "selective")]
    usual = (("attention", "activation"),) if current.parts == ("attention",) else ()
    parts = list(dict.fromkeys((current.parts, *usual, *selective_parts(scenario))))
    for kind, remainder in pairs:
        if kind in able.recompute and remainder in ("none", *able.recompute):
            all_plans = parts if "selective" in (kind, remainder) else parts[:1]
            kinds += [Recompute(kind=kind, parts=some, rest=remainder, layers=0) for some in all_plans]
    return tuple(kind for place, kind in enumerate(kinds) if kind not in kinds[:place])


def shares_of(scenario: Scenario) -> tuple[float, ...]:
    """Shares of activations the engine may offload, the plan's own first."""
    current = scenario.plan.offload.activations
    able = "activations" in scenario.engine.supports.offload
    return (current, *(share for share in SHARES if share != current)) if able else (current,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Candidates, one per row.

    layers       of each virtual stage
    recomputed   how many of them recompute, the first of each stage
    policy       its place in `LayoutTable.policies`
    """

    layers: Index
    recomputed: Index
    policy: Index

    def __len__(self) -> int:
        return len(self.policy)

    def at(self, rows: Index) -> Layouts:
        """These rows, in this order."""
        return Layouts(layers=self.layers[rows], recomputed=self.recomputed[rows], policy=self.policy[rows])


def join_layouts(layouts: Sequence[Layouts]) -> Layouts:
    """All rows of several."""
    return Layouts(
        **{item.name: np.concatenate([getattr(layout, item.name) for layout in layouts]) for item in fields(Layouts)}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutTable:
    """A scenario's layouts under every policy."""

    scenario: Scenario
    policies: tuple[MemoryPolicy, ...]
    model: LayoutModel

    @property
    def stages(self) -> tuple[tuple[int, ...], ...]:
        """Virtual stages of every rank."""
        return self.model.stages

    @property
    def ranks(self) -> int:
        """Pipeline ranks."""
        return len(self.stages)

    @property
    def virtual_stages(self) -> int:
        """Of all ranks."""
        return len(self.model.group)

    @property
    def owner(self) -> Index:
        """The rank of every virtual stage."""
        result = np.zeros(self.virtual_stages, dtype=np.int64)
        for rank, current in enumerate(self.stages):
            result[list(current)] = rank
        return result

    @property
    def fewest(self) -> Index:
        """Layers every virtual stage holds at least: the ends have work of their own."""
        least = np.ones(self.virtual_stages, dtype=np.int64)
        least[[0, -1]] = 0
        return least

    def _counts(self, layouts: Layouts) -> Array:
        """How often each section stands in each group of virtual stages: groups x sections x layouts."""
        model = self.model
        end = layouts.layers.cumsum(1).T
        start = end - layouts.layers.T
        order = np.argsort(model.group, kind="stable")
        firsts = np.searchsorted(model.group[order], np.arange(len(model.fixed)))
        before = model.blocks.before
        start, middle, end = (before.take(place[order], 0) for place in (start, start + layouts.recomputed.T, end))
        counts = np.repeat(model.fixed[:, :, None], len(layouts), axis=2)
        counts[:, model.blocks.recomputed] = np.add.reduceat(middle - start, firsts).swapaxes(1, 2)
        counts[:, model.blocks.rest] = np.add.reduceat(end - middle, firsts).swapaxes(1, 2)
        return counts

    def step_s(self, layouts: Layouts) -> Array:
        """The predicted step of every layout."""
        return self.model.step_s(self._counts(layouts), layouts.policy)

    def busy_s(self, layouts: Layouts) -> Array:
        """Seconds of a microbatch by rank and layout, waiting for the host left out."""
        return self.model.busy_s(self._counts(layouts), layouts.policy)

    def peaks(self, layouts: Layouts) -> Array:
        """Peak bytes by rank and layout."""
        return self.model.peaks(self._counts(layouts), layouts.policy)

    def least_recompute(self, layers: Index, policy: Index, budget_bytes: float) -> Layouts:
        """The least recompute with which every rank fits: a number per stage, spread evenly over a rank's stages.

        A rank with c stages goes through its layouts in order: the first t // c layers of each stage recompute, and one
        more in the first t % c of them. More recompute never needs more memory, except that the first layer brings
        the workspace for running it again. Where nothing fits all layers recompute.
        """
        chunks = len(self.stages[0])
        owner, turn = self.owner, _turns(self.stages)
        maximum = chunks * np.stack([layers[:, list(stage)].max(1) for stage in self.stages], axis=1)

        def of(level: Index) -> Layouts:
            share = level[:, owner]
            recomputed = np.minimum(layers, share // chunks + (turn < share % chunks))
            return Layouts(layers=layers, recomputed=recomputed, policy=policy)

        return of(smallest(lambda level: budget_bytes >= self.peaks(of(level)).T, maximum))


def smallest(fits: Callable[[Index], Mask], most: Index) -> Index:
    """The smallest number from 0 to `most` that fits, by halves; `most` where none does.

    What fits with some fits with more, except that 0 is asked apart.
    """
    done = fits(np.zeros_like(most))
    low, high = np.where(done, 0, np.minimum(1, most)), np.where(done, 0, most)
    while (low < high).any():
        middle = (low + high) // 2
        enough = fits(middle)
        high = np.where(enough, middle, high)
        low = np.where(enough, low, np.minimum(middle + 1, high))
    return high


def _turns(stages: Sequence[Sequence[int]]) -> Index:
    """Which of its rank's stages a virtual stage is."""
    turn = np.zeros(sum(map(len, stages)), dtype=np.int64)
    for stage in stages:
        turn[list(stage)] = np.arange(len(stage))
    return turn


def layout_table(scenario: Scenario, calibration: Calibration) -> LayoutTable:
    """The layouts of a scenario's plan, under its own policy and those its engine allows."""
    model = price_layouts(scenario, recomputes_of(scenario), shares_of(scenario), calibration)
    policies = tuple(MemoryPolicy(recompute=recompute, offload=share) for recompute, share in model.policies)
    return LayoutTable(scenario=scenario, policies=policies, model=model)
