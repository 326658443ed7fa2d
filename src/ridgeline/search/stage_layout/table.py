"""Turn many layouts of one plan (layers by stage, layers recomputed by stage, a policy) into steps and peaks at once.

A policy says what is recomputed and what share of activations is offloaded. Its sections are priced once; a layout is a
sum of them, so that a thousand layouts cost little more than one prediction and run through the same lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.units import BINARY
from ridgeline.cost.calibration import Calibration
from ridgeline.cost.machine import machines_of, parameter_columns
from ridgeline.cost.op_table import op_table
from ridgeline.cost.price import SectionPrices, SustainedRates, price_sections, sustained_rates
from ridgeline.ir.program import Program
from ridgeline.lowering.context import LoweringContext, lowering_context
from ridgeline.lowering.plan_columns import PlanColumns, plan_columns
from ridgeline.lowering.program import sections_of, stages_of
from ridgeline.plan.engine import ENGINES, RecomputeKind
from ridgeline.plan.plan import Plan, Recompute
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import virtual_stages_by_rank
from ridgeline.search.space import selective_parts
from ridgeline.sim.closed_form.grad_sync import end_of_step
from ridgeline.sim.closed_form.overlap import exposed_stage_times
from ridgeline.sim.closed_form.pipeline_time import most_trained, pipeline_time, send_seconds
from ridgeline.sim.closed_form.stage_mix import (
    PlacementMix,
    RankMix,
    StageMix,
    placement_mix,
    rank_mix,
    summed,
    undominated,
)
from ridgeline.sim.closed_form.stage_times import WITH_STALLS, StageTimes
from ridgeline.sim.closed_form.step import step_times
from ridgeline.sim.memory.footprint import (
    BytesPerParam,
    RankFootprint,
    RankParams,
    SectionFootprint,
    bytes_per_param,
    section_footprint,
)
from ridgeline.sim.memory.peak import model_state, moment_bytes, transient

Array = NDArray[np.float64]
Index = NDArray[np.int64]
SHARES = tuple(eighth / 8 for eighth in range(9))  # of activations, that may be offloaded


PROBE = float(BINARY["Ti"])  # bytes and parameters with which memory is asked for its slopes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPolicy:
    """What the layers of a plan keep: recompute with its layers left open, and the share of activations offloaded."""

    recompute: Recompute
    offload: float


def recomputes_of(scenario: Scenario) -> tuple[Recompute, ...]:
    """What layers may recompute, the plan's own way first, layers left open; also what the engine has no name for."""
    able, own = scenario.engine.supports, scenario.plan.recompute
    kinds: list[Recompute] = [replace(own, layers=0), Recompute(layers=0)]
    pairs: list[tuple[RecomputeKind, RecomputeKind]] = [("selective", "none"), ("full", "none"), ("full", "selective")]
    usual = (("attention", "activation"),) if own.parts == ("attention",) else ()
    parts = list(dict.fromkeys((own.parts, *usual, *selective_parts(scenario))))
    for kind, rest in pairs:
        if kind in able.recompute and rest in ("none", *able.recompute):
            every = parts if "selective" in (kind, rest) else parts[:1]
            kinds += [Recompute(kind=kind, parts=some, rest=rest, layers=0) for some in every]
    return tuple(kind for place, kind in enumerate(kinds) if kind not in kinds[:place])


def shares_of(plan: Plan) -> tuple[float, ...]:
    """Shares of activations the engine may offload, the plan's own first."""
    own = plan.offload.activations
    able = "activations" in ENGINES[plan.engine].supports.offload
    return (own, *(share for share in SHARES if share != own)) if able else (own,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Candidates, one per row.

    held     layers of each virtual stage
    again    how many of them recompute
    policy   its place in `Table.policies`
    """

    held: Index
    again: Index
    policy: Index

    def __len__(self) -> int:
        return len(self.policy)

    def at(self, rows: Index) -> Layouts:
        """These rows, in this order."""
        return Layouts(held=self.held[rows], again=self.again[rows], policy=self.policy[rows])


def joined(layouts: Sequence[Layouts]) -> Layouts:
    """All rows of several."""
    return Layouts(
        **{item.name: np.concatenate([getattr(one, item.name) for one in layouts]) for item in fields(Layouts)}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutTable:
    """A scenario's sections under every policy, priced, and how stages and ranks are made of them.

    parts, trained, bytes   what `sim.step` and `sim.memory` add up: policy after policy, `kinds` sections each
    work       bytes the backward of a section takes for itself
    slopes     moments x (columns of `bytes`, work, always) x ranks x policies: a peak is the largest of linear forms
    before     how many layers of each distinct block stand before a layer of the model
    fixed      sections that stand in a virtual stage whatever layers it holds
    adds       ranks x virtual stages: what a rank holds
    pattern    how `sim.lines` adds stages up, of virtual stages that are sections themselves
    """

    scenario: Scenario
    policies: tuple[MemoryPolicy, ...]
    times: StageTimes
    trained: Array
    bytes: Array
    work: Array
    slopes: Array
    plans: PlanColumns
    rows: SustainedRates
    kinds: int
    before: Index
    fixed: Array
    adds: Array
    pattern: PlacementMix
    stages: tuple[tuple[int, ...], ...]

    @property
    def ranks(self) -> int:
        """Pipeline ranks."""
        return len(self.stages)

    @property
    def owner(self) -> Index:
        """The rank of every virtual stage."""
        found = np.zeros(len(self.fixed), dtype=np.int64)
        for rank, own in enumerate(self.stages):
            found[list(own)] = rank
        return found

    @property
    def offload(self) -> Array:
        """Share of activations offloaded, by policy."""
        return np.array([policy.offload for policy in self.policies])

    def lines(self, layouts: Layouts) -> StageMix:
        """The lines of layouts."""
        return StageMix(
            rows=np.arange(len(layouts)),
            counts=_added(self.pattern.counts, self._counts(layouts)),
            roles=self.pattern.roles,
            sections=self._sections(layouts),
        )

    def _sections(self, layouts: Layouts) -> Index:
        return np.arange(self.kinds)[:, None] + layouts.policy * self.kinds

    def _counts(self, layouts: Layouts) -> Array:
        """How often each section stands in each virtual stage: stages x sections x layouts."""
        end = layouts.held.cumsum(1).T
        start = end - layouts.held.T
        middle = start + layouts.again.T
        counts = np.repeat(self.fixed[:, :, None], len(layouts), axis=2)
        blocks = self.before.shape[1]
        before = self.before
        counts[:, 2 : 2 + 2 * blocks : 2] = (before[middle] - before[start]).swapaxes(1, 2)
        counts[:, 3 : 3 + 2 * blocks : 2] = (before[end] - before[middle]).swapaxes(1, 2)
        return counts

    def step_s(self, layouts: Layouts) -> Array:
        """The predicted step of every layout."""
        lines = [self.lines(layouts)]
        pace = pipeline_time(lines, self.times, send_seconds(self.plans, self.rows.links), self.plans)
        settling = end_of_step(most_trained(lines, self.trained), self.plans, self.rows)
        return step_times(pace, settling, self.plans, self.rows).step_s

    def busy_s(self, layouts: Layouts) -> Array:
        """Seconds of a microbatch by rank and layout, waiting for the host left out."""
        counts = _added(self.adds, self._counts(layouts))
        busy: Array = summed(counts, self.times.busy[None, self._sections(layouts)])[0]
        return busy

    def peaks(self, layouts: Layouts) -> Array:
        """Peak bytes by rank and layout."""
        counts, sections = _added(self.adds, self._counts(layouts)), self._sections(layouts)
        work = np.zeros((self.ranks, len(layouts)))
        for section, size in enumerate(self.work[sections]):
            np.maximum(work, np.where(counts[:, section] > 0, size, 0.0), out=work)
        sums = np.concatenate([summed(counts, self.bytes[:, sections]), work[None]])
        return self.peak(sums, layouts.policy)

    def peak(self, sums: Array, policy: Index, rank: int | slice = slice(None)) -> Array:
        """Peak bytes of ranks that hold so much: `sums` are the columns of `bytes` and then work, by rank and row."""
        slopes = self.slopes[:, :, rank][..., policy]
        most: Array = slopes[0, -1] + np.einsum("c...,c...->...", slopes[0, :-1], sums)
        for other in slopes[1:]:
            np.maximum(most, other[-1] + np.einsum("c...,c...->...", other[:-1], sums), out=most)
        return most

    def least(self, held: Index, policy: Index, budget_bytes: float) -> Layouts:
        """The least recompute with which every rank fits: a number per stage, spread evenly over a rank's stages.

        A rank with c stages goes through its layouts in order: the first t // c layers of each stage recompute, and one
        more in the first t % c of them. More recompute never needs more memory, except that the first layer brings
        the workspace for running it again. Where nothing fits all layers recompute.
        """
        chunks = len(self.stages[0])
        owner, turn = self.owner, _turns(self.stages)
        most = chunks * np.stack([held[:, list(own)].max(1) for own in self.stages], axis=1)

        def of(level: Index) -> Layouts:
            each = level[:, owner]
            again = np.minimum(held, each // chunks + (turn < each % chunks))
            return Layouts(held=held, again=again, policy=policy)

        def fits(level: Index) -> NDArray[np.bool_]:
            return np.asarray(budget_bytes >= self.peaks(of(level)).T)

        low = np.zeros_like(most)
        done = fits(low)
        low = np.where(done, 0, 1)
        high = np.where(done, 0, most)
        while (low < high).any():
            middle = (low + high) // 2
            enough = fits(middle)
            high = np.where(enough, middle, high)
            low = np.where(enough, low, np.minimum(middle + 1, high))
        return of(high)


def _added(adds: Array, counts: Array) -> Array:
    """Sections of virtual stages added up: lines x sections x layouts."""
    return (adds @ counts.reshape(len(counts), -1)).reshape(len(adds), *counts.shape[1:])


def _turns(stages: Sequence[Sequence[int]]) -> Index:
    """Which of its rank's stages a virtual stage is."""
    turn = np.zeros(sum(map(len, stages)), dtype=np.int64)
    for own in stages:
        turn[list(own)] = np.arange(len(own))
    return turn


def layout_table(scenario: Scenario, calibration: Calibration) -> LayoutTable:
    """The sections of a scenario under every policy."""
    plan, model = scenario.plan, scenario.model
    shape, plans = lowering_context(scenario), plan_columns([scenario])
    rates = parameter_columns(calibration, [scenario])
    rows = sustained_rates(machines_of([scenario.system]), rates, graph=plans.graph, xla=plans.xla)
    shapes = [replace(shape, recompute=recompute) for recompute in recomputes_of(scenario)]
    programs = [Program(sections=sections_of(own), stages=()) for own in shapes]
    kinds = len(programs[0].sections)
    needs = [section_footprint(own, program.sections, 1) for own, program in zip(shapes, programs, strict=True)]
    plainest = needs[[own.recompute.rest for own in shapes].index("none")]
    useful = [0, *(place for place in range(1, len(shapes)) if _useful(shapes[place], needs[place], plainest))]
    priced = price_sections(op_table([programs[place] for place in useful]), rows)
    shares = shares_of(plan) if np.isfinite(rows.machines.host).all() else (plan.offload.activations,)
    policies = tuple(
        MemoryPolicy(recompute=shapes[place].recompute, offload=share) for share, place in product(shares, useful)
    )
    sections = _repeated(priced, len(shares), kinds)
    needs = [needs[place] for _, place in product(shares, useful)]
    by_policy = replace(plans, offload=np.array([policy.offload for policy in policies]))
    stages = virtual_stages_by_rank(plan.mesh.pp, plan.schedule.chunks, plan.schedule.name)
    bare = stages_of(shapes[0], (0,) * plan.virtual_stages)
    empty, each = np.array(bare, dtype=np.float64), _each(plan.virtual_stages)
    return LayoutTable(
        scenario=scenario,
        policies=policies,
        times=exposed_stage_times(sections, by_policy, rows).first(WITH_STALLS),
        trained=sections.params[2:],
        bytes=np.concatenate([np.vstack([need.columns[:3, :, 0], _kept(need)]) for need in needs], axis=1),
        work=np.concatenate([need.layer[:, 0] for need in needs]),
        slopes=_slopes(needs, rank_mix(bare, stages), by_policy, bytes_per_param(shape, scenario)),
        plans=plans,
        rows=rows,
        kinds=kinds,
        before=_before(model.order, len(model.blocks)),
        fixed=empty,
        adds=rank_mix(each, stages).counts,
        pattern=placement_mix(each, stages),
        stages=stages,
    )


def _kept(needs: SectionFootprint) -> Array:
    """Bytes kept by section, all parts together."""
    kept: Array = needs.columns[3:, :, 0].sum(0)
    return kept


def _useful(shape: LoweringContext, needs: SectionFootprint, plainest: SectionFootprint) -> bool:
    """Whether layers that recompute keep less than the rest, and the rest less than with nothing recomputed."""
    blocks = len(shape.model.blocks)
    again, rest = (_kept(needs)[first : first + 2 * blocks : 2] for first in (2, 3))
    nothing = _kept(plainest)[3 : 3 + 2 * blocks : 2]
    none = shape.recompute.rest == "none"
    return bool((again < rest).any()) and (none or bool((rest < nothing).any()))


def _slopes(needs: Sequence[SectionFootprint], ranks: RankMix, plans: PlanColumns, widths: BytesPerParam) -> Array:
    """The linear forms of memory, found by asking `sim.memory` for nothing and for some of each.

    A moment that never needs more than another one is left out: nothing has fewer than zero bytes.
    """
    many, probes = len(needs), np.eye(6)[:, :5]
    units = np.concatenate([probes[5:], probes[:5]]) * PROBE  # nothing, then some of each
    first, last, number = ranks.first[:, None], ranks.last[:, None], ranks.number[:, None].astype(np.float64)

    def columns(*names: str) -> dict[str, Array]:
        return {name: np.tile(np.concatenate([getattr(need, name) for need in needs]), len(units)) for name in names}

    dense, expert, trained, kept, layer = np.broadcast_to(
        np.repeat(units, many, axis=0).T[:, None], (5, len(number), many * len(units))
    )
    dense = dense + last * (needs[0].norm + ~first * columns("shared")["shared"])
    ends = columns("head", "widest")
    params = RankParams(dense=dense, expert=expert, trained=trained, head=ends["head"] * last, widest=ends["widest"])
    held = RankFootprint(
        number=number, last=last, saved=kept[None], layer=layer, **columns("loss", "sends", "crossing")
    )
    wide = replace(plans, offload=np.tile(plans.offload, len(units)))
    found = moment_bytes(model_state(params, wide, widths), transient(held, wide, widths), widths)
    found = found.reshape(-1, len(number), len(units), many).swapaxes(1, 2)
    slopes = np.concatenate([(found[:, 1:] - found[:, :1]) / PROBE, found[:, :1]], axis=1)
    return slopes[undominated(slopes.reshape(len(slopes), -1))]


def _before(order: Sequence[int], blocks: int) -> Index:
    """
    >>> _before([0, 1, 1], 2).tolist()
    [[0, 0], [1, 0], [1, 1], [1, 2]]
    """
    found = np.zeros((len(order) + 1, blocks), dtype=np.int64)
    found[1:] = np.cumsum(np.eye(blocks, dtype=np.int64)[list(order)], axis=0)
    return found


def _each(many: int) -> tuple[tuple[int, ...], ...]:
    """Virtual stages that hold one thing each: what `sim.lines` makes of them it makes of all stages."""
    return tuple(map(tuple, np.eye(many, dtype=np.int64).tolist()))


def _repeated(priced: SectionPrices, times: int, kinds: int) -> SectionPrices:
    """The same sections for every share of activations offloaded."""
    many = len(priced.cell) // kinds
    return SectionPrices(
        cell=np.repeat(np.arange(times * many), kinds),
        params=np.tile(priced.params, times),
        offloadable=np.tile(priced.offloadable, times),
        seconds=np.tile(priced.seconds, times),
        issue_s=np.tile(priced.issue_s, times),
    )
