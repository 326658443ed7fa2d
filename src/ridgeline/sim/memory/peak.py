"""Turn sections and their places into the bytes the fullest chip holds at its worst moment, by what they are.

A rank's peak is the largest of three moments:

    loss        first backward about to start: all activations in flight, and the loss at work on its logits
    backward    the same without logits, and the temporaries of one layer (what it recomputes among them)
    optimizer   no activations; gradients of everything

Weights and optimizer states are there all the time, and gradients too where the engine accumulates into a buffer or
runs several microbatches; otherwise they appear only as the activations go. On top come `overhead`: what the driver and
communicators take, and what a caching allocator loses to fragmentation; it is no part of `allocated`.

Columns are ranks x rows, so that one scenario and a hundred thousand plans run through the same lines.
`peak_form` makes linear forms of them for a search that moves layers between ranks, `headroom` says what to leave free.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import isfinite
from pathlib import Path

import numpy as np

from ridgeline.core.arrays import Array, Index, Mask, distinct
from ridgeline.core.records import dataclass
from ridgeline.core.units import BINARY
from ridgeline.ir.ops import Num
from ridgeline.ir.program import Program
from ridgeline.lowering.context import lowering_context
from ridgeline.lowering.plan_columns import NAMES, PlanColumns, facts_of, plan_columns
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import SCHEDULES
from ridgeline.sim.closed_form.stage_mix import RankMix, scenario_rank_mix, undominated_rows
from ridgeline.sim.memory.footprint import (
    PARTS,
    BytesPerParam,
    RankFootprint,
    RankParams,
    SectionFootprint,
    bytes_per_param,
    rank_footprint,
    rank_params,
    saved_activations,
    section_footprint,
)

KINDS = ("weights", "gradients", "optimizer", "activations", "logits", "workspace", "buffers", "overhead")
MOMENTS = ("loss", "backward", "optimizer")
FRAGMENTATION = 0.02  # of what comes and goes during a step, lost between blocks of a caching allocator
CONTEXT = 0.6 * BINARY["Gi"]  # bytes of a driver context and its loaded kernels
COMMUNICATOR = 0.25 * BINARY["Gi"]  # bytes of channels and scratch of the communicators of one rank
COMPILED = 0.3 * BINARY["Gi"]  # bytes a whole-program compiler's runtime keeps; it lays memory out without gaps


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """One pipeline rank at its peak.

    bytes_by_kind   what it holds then, and `moment` when that is
    activations     the activations among it by the part of a layer that keeps them
    in_flight       chunk activations it holds
    state           weights, gradients and optimizer states by bytes, whether at that moment or not
    """

    rank: int
    bytes_by_kind: Mapping[str, float]
    activations: Mapping[str, float]
    in_flight: int
    moment: str
    state: Mapping[str, float]

    JSON = "stage=rank peak_bytes in_flight moment"

    @property
    def peak_bytes(self) -> float:
        """All kinds."""
        return sum(self.bytes_by_kind.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Peaks of all pipeline ranks, and the capacity of a chip.

    host_bytes            what the chips of one host offload to it, at most
    host_capacity_bytes   memory of a host; infinite where the catalog does not say
    """

    stages: tuple[StageMemory, ...]
    capacity_bytes: float
    host_bytes: float = 0.0
    host_capacity_bytes: float = float("inf")

    @property
    def fits(self) -> bool:
        """Whether the fullest chip's peak is within its memory, and what is offloaded within the host's."""
        return self.headroom_bytes >= 0 and self.host_bytes <= self.host_capacity_bytes

    @property
    def fullest(self) -> StageMemory:
        """The rank with the highest peak; the first of equals."""
        return max(self.stages, key=lambda stage: stage.peak_bytes)

    @property
    def peak_bytes(self) -> float:
        """The highest peak of all ranks."""
        return self.fullest.peak_bytes

    @property
    def known_host_capacity_bytes(self) -> float | None:
        """Memory of a host; None where the catalog does not say."""
        return self.host_capacity_bytes if isfinite(self.host_capacity_bytes) else None

    @property
    def allocated_bytes(self) -> float:
        """The same without overhead: what a framework's own counter of allocated memory shows."""
        return self.peak_bytes - self.fullest.bytes_by_kind["overhead"]

    @property
    def headroom_bytes(self) -> float:
        """Capacity less peak; negative when the scenario does not fit."""
        return self.capacity_bytes - self.peak_bytes


def peak_memory(scenario: Scenario, program: Program, plans: PlanColumns | None = None) -> Memory:
    """Peak memory of every pipeline rank of a training step; `runs` where its columns are at hand."""
    ctx, plans = lowering_context(scenario), plans or plan_columns([scenario])
    needs, ranks = section_footprint(ctx, program.sections, 1), scenario_rank_mix(scenario, program)
    held, widths = rank_footprint(needs, ranks), bytes_per_param(ctx, scenario)
    peaks = peak_by_kind(model_state(rank_params(needs, ranks), plans, widths), transient(held, plans, widths), widths)
    node = scenario.system.node
    return Memory(
        stages=_stages(held, peaks),
        capacity_bytes=capacity_of(scenario),
        host_bytes=float(peaks.away.max()) * node,
        host_capacity_bytes=host_share(scenario) * node,
    )


def capacity_of(scenario: Scenario) -> float:
    """Bytes of a chip's memory that a program may take."""
    hbm = scenario.system.chip.hbm
    return (hbm.usable or hbm.capacity or scenario.system.chip.need("hbm.capacity")).value


def host_share(scenario: Scenario) -> float:
    """Bytes of host memory for each chip; infinite where the catalog does not say."""
    memory = scenario.system.host_memory
    return memory.value / scenario.system.node if memory else float("inf")


def in_flight(schedule: str, stages: Num, microbatches: Num, chunks: Num, rank: Num) -> Num:
    """Chunk activations a rank holds at its worst moment, each 1/chunks of its stage.

        gpipe  m v      1f1b  p - r      zero-bubble-h1  p      interleaved  2 (p - r - 1) + (v - 1) p + 1
        zbv  2 p, at most m + r + 1                dualpipe-v  2 p + 1      none above m v;  without a pipeline 1

    p = stages, r = rank, v = chunks, m = microbatches; numbers, or arrays over plans.

    >>> [int(in_flight("1f1b", 4, 8, 1, rank)) for rank in range(4)]
    [4, 3, 2, 1]
    """
    held = SCHEDULES[schedule].in_flight(stages, microbatches, chunks, rank)
    flying: Num = np.where(np.asarray(stages) > 1, np.minimum(held, microbatches * chunks), 1.0) + 0 * rank
    return flying


def _in_flight(plans: PlanColumns, rank: Array) -> Array:
    """`in_flight` of rows that each have a schedule of their own."""
    sizes = (plans.pp, plans.microbatches, plans.chunks, rank)
    microbatches = np.zeros(1)
    for kind in distinct(plans.schedule):
        microbatches = np.where(plans.schedule == kind, in_flight(NAMES[kind], *sizes), microbatches)
    return microbatches


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """Bytes of what is trained, ranks x rows, as sharding leaves it.

    hosted         optimizer states that live on the host; `optimizer` those on the chip
    head, widest   what is gathered or reduced whole beside: the output matrix on the last rank, and the largest layer
    """

    weights: Array
    gradients: Array
    optimizer: Array
    hosted: Array
    head: Array
    widest: Array

    def at(self, rows: Index) -> ModelState:
        """These rows, in this order."""
        taken = {name: getattr(self, name) for name in ModelState.__slots__}
        return ModelState(**{name: own if own.shape[-1] == 1 else own.take(rows, -1) for name, own in taken.items()})


def model_state(params: RankParams, plans: PlanColumns, widths: BytesPerParam) -> ModelState:
    """State of every rank.

        none  w + g + o        zero1  w + g + o/d        zero2  w + (g + o)/d        zero3  (w + g + o)/d

    w, g, o = weights, gradients, optimizer states; d = shard degree. Experts are sharded over their own replicas, at
    most edp.
    """
    shard, degree = plans.shard, plans.shard_degree

    def over(level: int, dense: Array, expert: Array) -> Array:
        if not (shard >= level).any():
            return dense + expert
        whole, few = shard_degrees(plans, level)
        return dense / whole + expert / few

    trained = (params.trained, np.zeros(1)) if widths.frozen else (params.dense, params.expert)
    weights, optimizer = resting_widths(plans, widths)
    states = over(1, *trained) * optimizer
    hosted = states * plans.offload_optimizer
    whole = np.where((degree > 1) & (shard == 3), widths.gathered, 0.0)
    whole = whole + np.where((degree > 1) & (shard >= 2), widths.reduced, 0.0)
    return ModelState(
        weights=over(3, params.dense, params.expert) * weights,
        gradients=over(2, *trained) * widths.gradients,
        optimizer=states - hosted,
        hosted=hosted,
        head=params.head * whole,
        widest=params.widest * whole,
    )


def resting_widths(plans: PlanColumns, widths: BytesPerParam) -> tuple[Num, Num]:
    """Bytes of a parameter at rest, as weights and as optimizer states; a master copy that is cast where it is used is
    the weights, unless it is sharded (zero1, zero2) and they are not."""
    if not np.any(widths.master):
        return widths.weights, widths.optimizer
    apart = (plans.shard == 1) | (plans.shard == 2)
    return (
        np.where(apart, widths.weights, widths.master),
        np.where(apart, widths.optimizer, widths.optimizer - widths.master),
    )


def shard_degrees(plans: PlanColumns, level: int) -> tuple[Array, Array]:
    """Over how many ranks what ZeRO shards from this level on is sharded: dense, and of experts."""
    sharded = plans.shard >= level
    few = np.minimum(plans.edp, plans.shard_degree)
    return np.where(sharded, plans.shard_degree, 1.0), np.where(sharded, few, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transient:
    """Bytes of what comes and goes, ranks x rows.

    hosted   activations that travel to the host
    stay     whether gradients are there while activations are
    """

    activations: Array
    logits: Array
    layer: Array
    sends: Array
    in_flight: Array
    hosted: Array
    stay: Mask


def transient(held: RankFootprint, plans: PlanColumns, widths: BytesPerParam) -> Transient:
    """What the schedule makes of what ranks hold for a microbatch."""
    flying = _in_flight(plans, held.number)
    saved = held.saved.sum(0) * (flying / plans.chunks)
    if held.freed.any():
        saved = saved - np.where(plans.pp > 1, held.freed * flying, 0.0)
    gpipe = facts_of(plans.schedule, "all_forwards_first") & (plans.pp > 1)
    hosted = saved * plans.offload
    return Transient(
        activations=saved - hosted,
        logits=held.loss * held.last * np.where(gpipe, plans.microbatches, 1.0),
        layer=held.layer,
        sends=held.sends + np.where(plans.pp > 1, held.crossing, 0.0),
        in_flight=flying,
        hosted=hosted,
        stay=widths.buffered | (plans.microbatches > 1) | (plans.pp > 1),
    )


def peak_bytes(state: ModelState, moving: Transient, widths: BytesPerParam, host: float = float("inf")) -> Array:
    """The peak of the fullest rank of every row; infinite where more is offloaded than a chip's share of its host.

    `moment_bytes` summed over kinds, its largest over moments and ranks, without the kinds apart: a search asks for it
    a hundred thousand times.
    """
    passing = np.maximum(moving.logits + state.head, moving.layer + state.widest)
    passing += moving.activations
    passing += moving.sends
    passing += _overhead(widths, passing)
    passing += np.where(moving.stay, state.gradients, 0.0)
    if not moving.stay.all():
        passing = np.maximum(passing, state.gradients + _overhead(widths, np.zeros(1)))
    passing += state.weights
    passing += state.optimizer
    peak: Array = passing.max(0)
    if np.isinf(host) or not (state.hosted.any() or moving.hosted.any()):
        return peak
    return np.where((state.hosted + moving.hosted > host).any(0), np.inf, peak)


def moment_bytes(state: ModelState, moving: Transient, widths: BytesPerParam) -> Array:
    """Bytes at each moment: moments x kinds x ranks x rows. A rank's peak is the largest of its sums over kinds."""
    early, none = np.where(moving.stay, state.gradients, 0.0), np.zeros(1)
    comes_and_goes = (
        (early, moving.activations, moving.logits, none, moving.sends + state.head),
        (early, moving.activations, none, moving.layer, moving.sends + state.widest),
        (state.gradients, none, none, none, none),
    )
    found = np.empty((len(MOMENTS), len(KINDS), *state.weights.shape))
    for moment, (gradients, *passing) in zip(found, comes_and_goes, strict=True):
        for kind, size in enumerate((state.weights, gradients, state.optimizer, *passing)):
            moment[kind] = size
        moment[-1] = _overhead(widths, moment[3:-1].sum(0))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakByKind:
    """Bytes by kind, rank and row at each rank's worst moment, which moment, the state, and what is offloaded."""

    by_kind: Array
    moment: Index
    state: Array
    in_flight: Array
    away: Array


def peak_by_kind(state: ModelState, moving: Transient, widths: BytesPerParam) -> PeakByKind:
    """The worst moment of every rank, by kind."""
    moments = moment_bytes(state, moving, widths)
    moment = moments.sum(1).argmax(0)
    return PeakByKind(
        by_kind=np.take_along_axis(moments, moment[None, None], axis=0)[0],
        moment=moment,
        state=np.stack([state.weights, state.gradients, state.optimizer]),
        in_flight=moving.in_flight,
        away=state.hosted + moving.hosted,
    )


def _overhead(widths: BytesPerParam, moving: Array) -> Array:
    """What is taken beside tensors: driver, communicators, and gaps between `moving` bytes that come and go."""
    if widths.compiled:
        return np.full_like(moving, COMPILED)
    return CONTEXT + (0.0 if widths.alone else COMMUNICATOR) + FRAGMENTATION * moving


def _stages(held: RankFootprint, peaks: PeakByKind) -> tuple[StageMemory, ...]:
    """The first row, rank by rank."""
    made = []
    for rank in range(len(held.number)):
        found = dict(zip(KINDS, map(float, peaks.by_kind[:, rank, 0]), strict=True))
        saved = held.saved[:, rank, 0]
        shares = saved / (saved.sum() or 1.0) * found["activations"]
        made.append(
            StageMemory(
                rank=rank,
                bytes_by_kind=found,
                activations=dict(zip(PARTS, map(float, shares), strict=True)),
                in_flight=int(peaks.in_flight[rank, 0]),
                moment=MOMENTS[int(peaks.moment[rank, 0])],
                state=dict(zip(KINDS, map(float, peaks.state[:, rank, 0]), strict=False)),
            )
        )
    return tuple(made)


def saved_by_stage(scenario: Scenario, program: Program) -> tuple[float, ...]:
    """Bytes each virtual stage keeps on the chip between forward and backward of one microbatch, logits apart."""
    ctx = lowering_context(scenario)
    saved = np.array([float(saved_activations(ctx, section).total) for section in program.sections])
    stays = 1 - scenario.plan.offload.activations
    return tuple(float(size) for size in np.array(program.stages, dtype=np.float64) @ saved * stays)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakForm:
    """A rank's peak as the largest of linear forms, one for each moment.

        peak = max over moments of  constant + dense D + expert E + trained T + saved S + workspace W

    factors    moments x (dense, expert, trained, saved, workspace) x ranks x rows: bytes of the peak for each
               D, E   parameter the rank holds, dense or of experts; T those trained, where the others are frozen
               S      byte its layers save for the backward of one microbatch: microbatches in flight, less offloaded
               W      byte the backward of its widest layer takes for itself
    constant   moments x ranks x rows: bytes of a rank that holds no section; last norm, logits, buffers, overhead
    """

    factors: Array
    constant: Array

    def peak_bytes(self, held: Array, rows: Index, rank: int | slice = slice(None)) -> Array:
        """Peaks of ranks that hold so much: `held` is (D, E, T, S, W) x ranks x `rows`, or of one rank."""
        peak: Array | None = None
        for factors, constant in zip(
            self.factors[:, :, rank][..., rows], self.constant[:, rank][..., rows], strict=True
        ):
            here = constant + np.einsum("c...,c...->...", factors, held)
            peak = here if peak is None else np.maximum(peak, here, out=here)
        assert peak is not None
        return peak


def peak_form(needs: SectionFootprint, ranks: RankMix, plans: PlanColumns, widths: BytesPerParam) -> PeakForm:
    """The linear forms of ranks, whatever sections they hold, for every row of `needs` and `plans`.

    A moment that never needs more than another one is left out.
    """
    bare = replace(ranks, counts=np.zeros_like(ranks.counts))
    moving = transient(rank_footprint(needs, bare), plans, widths)
    constant = moment_bytes(model_state(rank_params(needs, bare), plans, widths), moving, widths).sum(1)
    held, kept = resting_widths(plans, widths)
    weights, gradients, states = (  # bytes of a dense parameter and of one of experts on one rank
        [width / degree for degree in shard_degrees(plans, level)]
        for level, width in ((3, held), (2, widths.gradients), (1, kept))
    )
    on_chip, early = 1 - plans.offload_optimizer, np.where(moving.stay, 1.0, 0.0)
    passing = 1.0 if widths.compiled else 1 + FRAGMENTATION
    trained = ((2, 0),) if widths.frozen else ((0, 0), (1, 1))  # (column of the form, dense or of experts)
    factors = np.zeros((len(MOMENTS), 5, *constant.shape[1:]))
    for moment, name in zip(factors, MOMENTS, strict=True):
        moment[0] += weights[0]
        moment[1] += weights[1]
        for column, kind in trained:
            moment[column] += gradients[kind] * (1.0 if name == "optimizer" else early) + states[kind] * on_chip
        if name != "optimizer":
            moment[3] = moving.in_flight / plans.chunks * (1 - plans.offload) * passing
        if name == "backward":
            moment[4] = passing
    whole = np.concatenate([factors, constant[:, None]], axis=1)
    some = undominated_rows(whole.reshape(len(whole), -1))  # nothing has fewer than zero bytes
    return PeakForm(factors=factors[some], constant=constant[some])


SHIPPED_SHORTFALLS = Path(__file__).parent / "shortfalls.json"
COVERAGE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """By how much a measured peak exceeds the predicted one, and what it ran on."""

    family: str
    engine: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """The share of memory to leave free, and what says so."""

    share: float
    origin: str


def headroom(family: str, engine: str, runs: Sequence[Shortfall]) -> Headroom:
    """What runs of an engine on a family of chips ask for; what all ask for where those were never measured.

    >>> runs = [Shortfall(family="hopper", engine="torch-eager", share=number / 100) for number in range(9)]
    >>> round(headroom("hopper", "torch-eager", runs).share, 3), headroom("hopper", "nemo", runs[:2]).origin
    (0.074, 'the largest shortfall of 2 measured peaks, none of nemo on hopper')
    """
    known = {(run.family, run.engine) for run in runs}
    highest = sorted(run.share for run in runs)
    if not runs:
        return Headroom(share=0.0, origin="no measured peak at hand")
    if (family, engine) in known:
        place = min(math.ceil(COVERAGE * (len(runs) + 1)), len(runs))
        share, told = highest[place - 1], f"{place} of {len(runs)} measured peaks fell short by less"
    else:
        share = highest[-1]
        told = f"the largest shortfall of {len(runs)} measured peaks, none of {engine} on {family or 'such a chip'}"
    return Headroom(share=max(0.0, share / (1 + share)), origin=told)


@cache
def shipped_shortfalls() -> tuple[Shortfall, ...]:
    """The measured peaks that come with Ridgeline."""
    rows = json.loads(SHIPPED_SHORTFALLS.read_text(encoding="utf-8"))["rows"]
    return tuple(Shortfall(family=row["family"], engine=row["engine"], share=row["shortfall"]) for row in rows)


def scenario_headroom(scenario: Scenario) -> Headroom:
    """The headroom of a scenario's chip under its engine, from the measured peaks that come with Ridgeline."""
    return headroom(scenario.system.chip.family, scenario.engine.fitted_id, shipped_shortfalls())
