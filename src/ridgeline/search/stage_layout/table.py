"""Turn many layouts of one plan (layers by stage, layers recomputed by stage, a policy) into steps and peaks at once.

A policy says what is recomputed and what share of activations is offloaded. Its sections are priced once; a layout is a
sum of them, so that a thousand layouts cost little more than one prediction and run through the same lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.calibration import Calibration
from ridgeline.cost.machine import machines_of, parameter_columns
from ridgeline.cost.op_table import op_table
from ridgeline.cost.price import CLASSES, SectionPrices, SustainedRates, price_sections, sustained_rates
from ridgeline.ir.program import Program
from ridgeline.lowering.context import LoweringContext, lowering_context
from ridgeline.lowering.program import sections_of, stages_of
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.plan import Recompute
from ridgeline.plan.scenario import Scenario
from ridgeline.search.stage_layout.policies import MemoryPolicy, recomputes_of, shares_of
from ridgeline.sim.closed_form.grad_sync import end_of_step
from ridgeline.sim.closed_form.overlap import BUSY, BY_CLASS, beside
from ridgeline.sim.closed_form.pipeline_time import most_trained, pipeline_time, send_seconds
from ridgeline.sim.closed_form.stage_mix import (
    PlacementMix,
    StageMix,
    placement_mix,
    rank_mix,
    summed,
    virtual_stages_by_rank,
)
from ridgeline.sim.closed_form.step import step_times
from ridgeline.sim.memory.footprint import SectionFootprint, bytes_per_param, section_footprint
from ridgeline.sim.memory.peak_form import PeakForm, peak_form
from ridgeline.sim.plan_columns import PlanColumns, plan_columns

Array = NDArray[np.float64]
Index = NDArray[np.int64]
COLUMNS = BY_CLASS + CLASSES.index("kernel") + 1  # of parts: as many as it takes to tell sends and stalls apart


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


def joined(layouts: Sequence[Layouts]) -> Layouts:
    """All rows of several."""
    return Layouts(
        **{item.name: np.concatenate([getattr(one, item.name) for one in layouts]) for item in fields(Layouts)}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSections:
    """Places of the sections of distinct blocks, by block: of a layer that recomputes, and of one of the rest.

    before   layers of the model x blocks: how many of each block stand before a layer
    order    the block of every layer
    """

    recomputed: Index
    rest: Index
    before: Index
    order: Index


def block_sections(model: ModelSpec) -> BlockSections:
    """Where `lowering.sections_of` puts blocks when recompute leaves its layers open: in pairs, after the two ends."""
    blocks = np.arange(len(model.blocks))
    order = np.array(model.order, dtype=np.int64)
    before = np.zeros((len(order) + 1, len(blocks)), dtype=np.int64)
    before[1:] = np.cumsum(np.eye(len(blocks), dtype=np.int64)[order], axis=0)
    return BlockSections(recomputed=2 + 2 * blocks, rest=3 + 2 * blocks, before=before, order=order)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySections:
    """What sections take under every policy: policy after policy, `many` sections each.

    seconds     columns of `overlap.beside`
    trained     dense and expert parameters that are exchanged
    footprint   dense, expert, trained parameters and bytes saved
    workspace   bytes the backward of a section takes for itself
    """

    many: int
    seconds: Array
    trained: Array
    footprint: Array
    workspace: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutTable:
    """A scenario's sections under every policy, priced, and how stages and ranks are made of them.

    form      the linear forms of peaks, by rank and policy
    stages    virtual stages of every rank
    group     of every virtual stage: the first, the last, or those of one rank between, which are only ever added up
    fixed     groups x sections: what stands in stages whatever layers they hold
    adds      ranks x groups: what a rank holds
    pattern   how the closed form adds groups up
    """

    scenario: Scenario
    policies: tuple[MemoryPolicy, ...]
    sections: PolicySections
    blocks: BlockSections
    form: PeakForm
    plans: PlanColumns
    rates: SustainedRates
    stages: tuple[tuple[int, ...], ...]
    group: Index
    fixed: Array
    adds: Array
    pattern: PlacementMix

    @property
    def ranks(self) -> int:
        """Pipeline ranks."""
        return len(self.stages)

    @property
    def owner(self) -> Index:
        """The rank of every virtual stage."""
        found = np.zeros(len(self.group), dtype=np.int64)
        for rank, own in enumerate(self.stages):
            found[list(own)] = rank
        return found

    @property
    def fewest(self) -> Index:
        """Layers every virtual stage holds at least: the ends have work of their own."""
        least = np.ones(len(self.group), dtype=np.int64)
        least[[0, -1]] = 0
        return least

    def _places(self, layouts: Layouts) -> Index:
        return np.arange(self.sections.many)[:, None] + layouts.policy * self.sections.many

    def _counts(self, layouts: Layouts) -> Array:
        """How often each section stands in each group of virtual stages: groups x sections x layouts."""
        end = layouts.layers.cumsum(1).T
        start = end - layouts.layers.T
        order = np.argsort(self.group, kind="stable")
        firsts = np.searchsorted(self.group[order], np.arange(len(self.fixed)))
        before = self.blocks.before
        start, middle, end = (before.take(place[order], 0) for place in (start, start + layouts.recomputed.T, end))
        counts = np.repeat(self.fixed[:, :, None], len(layouts), axis=2)
        counts[:, self.blocks.recomputed] = np.add.reduceat(middle - start, firsts).swapaxes(1, 2)
        counts[:, self.blocks.rest] = np.add.reduceat(end - middle, firsts).swapaxes(1, 2)
        return counts

    def step_s(self, layouts: Layouts) -> Array:
        """The predicted step of every layout."""
        mix = StageMix(
            rows=np.arange(len(layouts)),
            counts=_added(self.pattern.counts, self._counts(layouts)),
            roles=self.pattern.roles,
            sections=self._places(layouts),
        )
        pace = pipeline_time([mix], self.sections.seconds, send_seconds(self.plans, self.rates.links), self.plans)
        ends = end_of_step(most_trained([mix], self.sections.trained), self.plans, self.rates)
        return step_times(pace, ends, self.plans, self.rates).step_s

    def busy_s(self, layouts: Layouts) -> Array:
        """Seconds of a microbatch by rank and layout, waiting for the host left out."""
        counts = _added(self.adds, self._counts(layouts))
        busy: Array = summed(counts, self.sections.seconds[BUSY : BUSY + 1, self._places(layouts)])[0]
        return busy

    def peaks(self, layouts: Layouts) -> Array:
        """Peak bytes by rank and layout."""
        counts, places = _added(self.adds, self._counts(layouts)), self._places(layouts)
        workspace = np.zeros((self.ranks, len(layouts)))
        for section, size in enumerate(self.sections.workspace[places]):
            np.maximum(workspace, np.where(counts[:, section] > 0, size, 0.0), out=workspace)
        held = np.concatenate([summed(counts, self.sections.footprint[:, places]), workspace[None]])
        return self.form.peak_bytes(held, layouts.policy)

    def least_recompute(self, layers: Index, policy: Index, budget_bytes: float) -> Layouts:
        """The least recompute with which every rank fits: a number per stage, spread evenly over a rank's stages.

        A rank with c stages goes through its layouts in order: the first t // c layers of each stage recompute, and one
        more in the first t % c of them. More recompute never needs more memory, except that the first layer brings
        the workspace for running it again. Where nothing fits all layers recompute.
        """
        chunks = len(self.stages[0])
        owner, turn = self.owner, _turns(self.stages)
        most = chunks * np.stack([layers[:, list(own)].max(1) for own in self.stages], axis=1)

        def of(level: Index) -> Layouts:
            each = level[:, owner]
            recomputed = np.minimum(layers, each // chunks + (turn < each % chunks))
            return Layouts(layers=layers, recomputed=recomputed, policy=policy)

        return of(smallest(lambda level: budget_bytes >= self.peaks(of(level)).T, most))


def smallest(fits: Callable[[Index], NDArray[np.bool_]], most: Index) -> Index:
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


def _added(adds: Array, counts: Array) -> Array:
    """Sections of virtual stages added up: lines x sections x layouts."""
    return (adds @ counts.reshape(len(counts), -1)).reshape(len(adds), *counts.shape[1:])


def _turns(stages: Sequence[Sequence[int]]) -> Index:
    """Which of its rank's stages a virtual stage is."""
    turn = np.zeros(sum(map(len, stages)), dtype=np.int64)
    for own in stages:
        turn[list(own)] = np.arange(len(own))
    return turn


def _groups(stages: Sequence[Sequence[int]]) -> Index:
    """
    >>> _groups([(0, 2), (1, 3)]).tolist()
    [0, 3, 2, 1]
    """
    found = np.empty(sum(map(len, stages)), dtype=np.int64)
    for rank, own in enumerate(stages):
        found[list(own)] = 2 + rank
    found[-1], found[0] = 1, 0
    return np.asarray(np.unique(found, return_inverse=True)[1])


def layout_table(scenario: Scenario, calibration: Calibration) -> LayoutTable:
    """The sections of a scenario under every policy."""
    plan = scenario.plan
    shape, plans = lowering_context(scenario), plan_columns([scenario])
    columns = parameter_columns(calibration, [scenario.system.chip.id], [plan.engine])
    rates = sustained_rates(machines_of([scenario.system]), columns, graph=plans.graph, xla=plans.xla)
    shares = shares_of(plan) if np.isfinite(rates.machines.host).all() else (plan.offload.activations,)
    ways = _useful_ways(scenario, shape)
    policies = tuple(MemoryPolicy(recompute=way.recompute, offload=share) for share, way in product(shares, ways))
    by_policy = replace(plans, offload=np.array([policy.offload for policy in policies]))
    needs = _side_by_side([way.needs for way in ways] * len(shares))
    priced = _repeated(price_sections(op_table([way.program for way in ways]), rates), len(shares))
    stages = virtual_stages_by_rank(plan.mesh.pp, plan.schedule.chunks, plan.schedule.name)
    many = len(ways[0].program.sections)
    bare = stages_of(replace(shape, recompute=ways[0].recompute), (0,) * plan.virtual_stages, many)
    group = _groups(stages)
    fixed = np.zeros((group.max() + 1, many))
    np.add.at(fixed, group, np.array(bare))
    each = tuple(map(tuple, np.eye(plan.virtual_stages, dtype=np.int64).tolist()))
    pattern, one = placement_mix(each, stages), np.unique(group, return_index=True)[1]
    return LayoutTable(
        scenario=scenario,
        policies=policies,
        sections=_policy_sections(priced, needs, beside(priced, by_policy, rates)[:COLUMNS]),
        blocks=block_sections(scenario.model),
        form=peak_form(needs, rank_mix(bare, stages), by_policy, bytes_per_param(shape, scenario)),
        plans=plans,
        rates=rates,
        stages=stages,
        group=group,
        fixed=fixed,
        adds=rank_mix(each, stages).counts[:, one],
        pattern=replace(pattern, counts=pattern.counts[:, one]),
    )


def _policy_sections(priced: SectionPrices, needs: SectionFootprint, seconds: Array) -> PolicySections:
    """Footprints are sections x policies; here they stand policy after policy."""
    footprint = np.concatenate([needs.columns[:3], needs.columns[3:].sum(0, keepdims=True)])
    return PolicySections(
        many=footprint.shape[1],
        seconds=seconds,
        trained=priced.params[2:],
        footprint=footprint.swapaxes(1, 2).reshape(len(footprint), -1),
        workspace=needs.layer.T.ravel(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """One way to recompute: the sections it makes, and what they need of memory."""

    recompute: Recompute
    program: Program
    needs: SectionFootprint

    def saved(self, sections: Index) -> Array:
        """Bytes some sections save for their backward."""
        saved: Array = self.needs.columns[3:, :, 0].sum(0)[sections]
        return saved


def _useful_ways(scenario: Scenario, shape: LoweringContext) -> tuple[_Way, ...]:
    """The plan's own way to recompute, and those whose layers save less than the rest, and the rest less than all."""
    ways = []
    for recompute in recomputes_of(scenario):
        own = replace(shape, recompute=recompute)
        sections = sections_of(own)
        needs = section_footprint(own, sections, 1)
        ways.append(_Way(recompute=recompute, program=Program(sections=sections, stages=()), needs=needs))
    blocks = block_sections(scenario.model)
    everything = next(way for way in ways if way.recompute.rest == "none").saved(blocks.rest)

    def useful(way: _Way) -> bool:
        rest = way.saved(blocks.rest)
        less = way.recompute.rest == "none" or bool((rest < everything).any())
        return less and bool((way.saved(blocks.recomputed) < rest).any())

    return (ways[0], *filter(useful, ways[1:]))


def _side_by_side(needs: Sequence[SectionFootprint]) -> SectionFootprint:
    """Footprints of one cell each as cells of one."""
    names = (item.name for item in fields(SectionFootprint) if item.name != "norm")
    joined_columns = {name: np.concatenate([getattr(need, name) for need in needs], axis=-1) for name in names}
    return SectionFootprint(norm=needs[0].norm, **joined_columns)


def _repeated(priced: SectionPrices, times: int) -> SectionPrices:
    """The same sections for every share of activations offloaded."""
    cells = int(priced.cell.max()) + 1
    return SectionPrices(
        cell=np.concatenate([priced.cell + cells * time for time in range(times)]),
        params=np.tile(priced.params, times),
        away=np.tile(priced.away, times),
        seconds=np.tile(priced.seconds, times),
        issue_s=np.tile(priced.issue_s, times),
    )
