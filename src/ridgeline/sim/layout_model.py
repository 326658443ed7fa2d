"""Turn one plan into step times and peaks of its stage layouts: which layers each stage holds, what they recompute.

A policy is a way to recompute and a share of activations that is offloaded. Its sections are priced once; a layout is a
sum of them, so that a thousand layouts cost little more than one prediction and run through the same lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import product

import numpy as np

from ridgeline.core.arrays import Array, Index
from ridgeline.core.records import dataclass
from ridgeline.cost import Calibration, machines_of, parameter_columns, sustained_rates
from ridgeline.cost.pricing import SectionPrices, SustainedRates, measured_ops, price_sections, tabulate_ops
from ridgeline.ir.program import Program, SectionKey, SectionRole
from ridgeline.lowering.context import LoweringContext, lowering_context
from ridgeline.lowering.plan_columns import PlanColumns, plan_columns
from ridgeline.lowering.program import section_keys, sections_of, stages_of
from ridgeline.plan.plan import Recompute
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import virtual_stages_by_rank
from ridgeline.sim.closed_form.grad_sync import end_of_step
from ridgeline.sim.closed_form.pipeline_time import most_trained, pipeline_time, send_seconds
from ridgeline.sim.closed_form.stage_mix import PlacementMix, StageMix, placement_mix, rank_mix, sum_by_count
from ridgeline.sim.closed_form.stage_times import WITH_STALLS, StageTimes, exposed_stage_times
from ridgeline.sim.closed_form.step import step_times
from ridgeline.sim.memory.footprint import SectionFootprint, bytes_per_param, section_footprint
from ridgeline.sim.memory.peak import PeakForm, peak_form


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySections:
    """What sections take under every policy: policy after policy, `many` sections each.

    times       of one microbatch
    trained     dense and expert parameters that get gradients
    footprint   dense, expert, trained parameters and bytes saved
    workspace   bytes the backward of a section takes for itself
    """

    many: int
    times: StageTimes
    trained: Array
    footprint: Array
    workspace: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutModel:
    """A plan's sections under every policy, priced, and how stages and ranks are made of them.

    policies  recompute and share of activations offloaded
    form      the linear forms of peaks, by rank and policy
    stages    virtual stages of every rank
    group     of every virtual stage: the first, the last, or those of one rank between, which are only ever added up
    fixed     groups x sections: what stands in stages whatever layers they hold
    adds      ranks x groups: what a rank holds
    mix       how the closed form adds groups up
    """

    policies: tuple[tuple[Recompute, float], ...]
    sections: PolicySections
    blocks: BlockSections
    form: PeakForm
    plans: PlanColumns
    rates: SustainedRates
    stages: tuple[tuple[int, ...], ...]
    group: Index
    fixed: Array
    adds: Array
    mix: PlacementMix

    def places(self, policy: Index) -> Index:
        """Where the sections of these policies stand."""
        return np.arange(self.sections.many)[:, None] + policy * self.sections.many

    def step_s(self, counts: Array, policy: Index) -> Array:
        """The predicted step of layouts: `counts` are groups x sections x layouts."""
        mix = StageMix(
            rows=np.arange(len(policy)),
            counts=_add_counts(self.mix.counts, counts),
            roles=self.mix.roles,
            sections=self.places(policy),
        )
        sends = send_seconds(self.plans, self.rates)
        pipeline = pipeline_time([mix], self.sections.times, sends, self.plans)
        ends = end_of_step(most_trained([mix], self.sections.trained), self.plans, self.rates)
        return step_times(pipeline, ends, self.plans, self.rates).step_s

    def busy_s(self, counts: Array, policy: Index) -> Array:
        """Seconds of a microbatch by rank and layout, waiting for the host left out."""
        busy: Array = sum_by_count(_add_counts(self.adds, counts), self.sections.times.busy[None, self.places(policy)])[
            0
        ]
        return busy

    def peaks(self, counts: Array, policy: Index) -> Array:
        """Peak bytes by rank and layout."""
        held, places = _add_counts(self.adds, counts), self.places(policy)
        workspace = np.zeros((len(self.stages), len(policy)))
        for section, size in enumerate(self.sections.workspace[places]):
            np.maximum(workspace, np.where(held[:, section] > 0, size, 0.0), out=workspace)
        sums = np.concatenate([sum_by_count(held, self.sections.footprint[:, places]), workspace[None]])
        return self.form.peak_bytes(sums, policy)


def price_layouts(
    scenario: Scenario, recomputes: Sequence[Recompute], shares: Sequence[float], calibration: Calibration
) -> LayoutModel:
    """The layouts of a plan under its own way to recompute and those of `recomputes` that save anything.

    shares   of activations offloaded; the plan's own alone where no rate to the host is published
    """
    plan, context, plans = scenario.plan, lowering_context(scenario), plan_columns([scenario])
    parameters = parameter_columns(calibration, [scenario])
    rates = sustained_rates(machines_of([scenario.system]), parameters, plans=plans)
    shares = shares if np.isfinite(rates.machines.host).all() else (plan.offload.activations,)
    ways = _useful_ways(context, recomputes)
    policies = tuple((way.recompute, share) for share, way in product(shares, ways))
    by_policy = replace(plans, offload=np.array([share for _, share in policies]))
    needs = _side_by_side([way.needs for way in ways] * len(shares))
    table = tabulate_ops([way.program for way in ways])
    measured = measured_ops(table, rates.machines, [scenario], calibration.profiles)
    priced = _repeat_sections(price_sections(table, rates, measured=measured), len(shares))
    stages = virtual_stages_by_rank(plan.mesh.pp, plan.schedule.chunks, plan.schedule.name)
    bare = stages_of(replace(context, recompute=ways[0].recompute), (0,) * plan.virtual_stages)
    group = _groups(stages)
    fixed = np.zeros((group.max() + 1, len(bare[0])))
    np.add.at(fixed, group, np.array(bare))
    each = tuple(map(tuple, np.eye(plan.virtual_stages, dtype=np.int64).tolist()))
    mix, one = placement_mix(each, stages), np.unique(group, return_index=True)[1]
    times = exposed_stage_times(priced, by_policy, rates).first(WITH_STALLS)
    return LayoutModel(
        policies=policies,
        sections=_policy_sections(priced, needs, times),
        blocks=block_sections(replace(context, recompute=ways[0].recompute)),
        form=peak_form(needs, rank_mix(bare, stages), by_policy, bytes_per_param(context, scenario)),
        plans=plans,
        rates=rates,
        stages=stages,
        group=group,
        fixed=fixed,
        adds=rank_mix(each, stages).counts[:, one],
        mix=replace(mix, counts=mix.counts[:, one]),
    )


def block_sections(context: LoweringContext) -> BlockSections:
    """Where the sections of blocks stand when recompute leaves its layers open."""
    place = {key: index for index, key in enumerate(section_keys(context))}
    blocks = range(len(context.model.blocks))
    recomputed, rest = (
        np.array([place[SectionKey(SectionRole.BLOCK, block, other)] for block in blocks]) for other in (False, True)
    )
    order = np.array(context.model.order, dtype=np.int64)
    before = np.zeros((len(order) + 1, len(blocks)), dtype=np.int64)
    before[1:] = np.cumsum(np.eye(len(blocks), dtype=np.int64)[order], axis=0)
    return BlockSections(recomputed=recomputed, rest=rest, before=before, order=order)


def _add_counts(adds: Array, counts: Array) -> Array:
    """Sections of virtual stages added up: mixes x sections x layouts."""
    return (adds @ counts.reshape(len(counts), -1)).reshape(len(adds), *counts.shape[1:])


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


def _policy_sections(priced: SectionPrices, needs: SectionFootprint, times: StageTimes) -> PolicySections:
    """Footprints are sections x policies; here they stand policy after policy."""
    footprint = np.concatenate([needs.columns[:3], needs.columns[3:].sum(0, keepdims=True)])
    return PolicySections(
        many=footprint.shape[1],
        times=times,
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


def _useful_ways(context: LoweringContext, recomputes: Sequence[Recompute]) -> tuple[_Way, ...]:
    """The first way to recompute, and those whose layers save less than the rest, and the rest less than all."""
    ways = []
    for recompute in recomputes:
        own = replace(context, recompute=recompute)
        sections = sections_of(own)
        needs = section_footprint(own, sections, 1)
        ways.append(_Way(recompute=recompute, program=Program(sections=sections, stages=()), needs=needs))
    blocks = block_sections(replace(context, recompute=recomputes[0]))
    everything = next(way for way in ways if way.recompute.rest == "none").saved(blocks.rest)

    def useful(way: _Way) -> bool:
        rest = way.saved(blocks.rest)
        less = way.recompute.rest == "none" or bool((rest < everything).any())
        return less and bool((way.saved(blocks.recomputed) < rest).any())

    return (ways[0], *filter(useful, ways[1:]))


def _side_by_side(needs: Sequence[SectionFootprint]) -> SectionFootprint:
    """Footprints of one cell each as cells of one."""
    names = (item.name for item in fields(SectionFootprint) if item.name != "norm")
    columns = {name: np.concatenate([getattr(need, name) for need in needs], axis=-1) for name in names}
    return SectionFootprint(norm=needs[0].norm, **columns)


def _repeat_sections(priced: SectionPrices, times: int) -> SectionPrices:
    """The same sections for every share of activations offloaded."""
    cells = int(priced.cell.max()) + 1
    return SectionPrices(
        cell=np.concatenate([priced.cell + cells * time for time in range(times)]),
        params=np.tile(priced.params, times),
        offloadable=np.tile(priced.offloadable, times),
        seconds=np.tile(priced.seconds, times),
        issue_s=np.tile(priced.issue_s, times),
    )
