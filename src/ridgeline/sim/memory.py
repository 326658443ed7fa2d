"""Turn sections and their places into the bytes the fullest chip holds at its worst moment, by what they are.

A rank's peak is the largest of three moments:

    loss        first backward about to start: all activations in flight, and the loss at work on its logits
    backward    the same without logits, and the temporaries of one layer (what it recomputes among them)
    optimizer   no activations; gradients of everything

Weights and optimizer states are there all the time, and gradients too where the engine accumulates into a buffer or
runs several microbatches; otherwise they appear only as the activations go. On top come `overhead`: what the driver and
communicators take, and what a caching allocator loses to fragmentation; it is no part of `allocated`.

Columns are ranks x rows, so that one scenario and a hundred thousand plans run through the same lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.units import BINARY
from ridgeline.ir.ops import Num
from ridgeline.ir.program import Program
from ridgeline.lowering.shape import shape_of
from ridgeline.plan.scenario import Scenario
from ridgeline.sim.holding import PARTS, Held, Widths, held_of, needs_of, widths_of
from ridgeline.sim.kept import kept_of
from ridgeline.sim.lines import lines_of, scenario_pattern
from ridgeline.sim.run import NAMES, Runs, runs_of

Array = NDArray[np.float64]
KINDS = ("weights", "gradients", "optimizer", "activations", "logits", "workspace", "buffers", "overhead")
MOMENTS = ("loss", "backward", "optimizer")
FRAGMENTATION = 0.02  # of what comes and goes during a step, lost between blocks of a caching allocator
CONTEXT = 0.6 * BINARY["Gi"]  # bytes of a driver context and its loaded kernels
COMMUNICATOR = 0.25 * BINARY["Gi"]  # bytes of channels and scratch of the communicators of one rank
COMPILED = 0.3 * BINARY["Gi"]  # bytes a whole-program compiler's runtime keeps; it lays memory out without gaps


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
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

    stages: tuple[Stage, ...]
    capacity_bytes: float
    host_bytes: float = 0.0
    host_capacity_bytes: float = float("inf")

    @property
    def fits(self) -> bool:
        """Whether the fullest chip's peak is within its memory, and what is offloaded within the host's."""
        return self.headroom_bytes >= 0 and self.host_bytes <= self.host_capacity_bytes

    @property
    def fullest(self) -> Stage:
        """The rank with the highest peak; the first of equals."""
        return max(self.stages, key=lambda stage: stage.peak_bytes)

    @property
    def peak_bytes(self) -> float:
        """The highest peak of all ranks."""
        return self.fullest.peak_bytes

    @property
    def allocated_bytes(self) -> float:
        """The same without overhead: what a framework's own counter of allocated memory shows."""
        return self.peak_bytes - self.fullest.bytes_by_kind["overhead"]

    @property
    def headroom_bytes(self) -> float:
        """Capacity less peak; negative when the scenario does not fit."""
        return self.capacity_bytes - self.peak_bytes


def memory_of(scenario: Scenario, program: Program, runs: Runs | None = None) -> Memory:
    """Peak memory of every pipeline rank of a training step; `runs` where its columns are at hand."""
    shape, runs = shape_of(scenario), runs or runs_of([scenario])
    needs = needs_of(shape, program.sections, 1)
    pattern = scenario_pattern(scenario, program)
    one = np.zeros(1, dtype=np.int64)
    held = held_of(needs, one, lines_of(pattern, one, 1), pattern)
    widths = widths_of(shape, scenario)
    peaks = peaks_of(held, runs, widths)
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
    held = {
        "gpipe": microbatches * chunks,
        "1f1b": stages - rank,
        "interleaved": 2 * (stages - rank - 1) + (chunks - 1) * stages + 1,
        "zero-bubble-h1": stages,
        "zbv": np.minimum(2 * stages, microbatches + rank + 1),
        "dualpipe-v": 2 * stages + 1,
    }[schedule]
    flying: Num = np.where(np.asarray(stages) > 1, np.minimum(held, microbatches * chunks), 1.0) + 0 * rank
    return flying


def _flying(runs: Runs, rank: Array) -> Array:
    """`in_flight` of rows that each have a schedule of their own."""
    sizes = (runs.pp, runs.microbatches, runs.chunks, rank)
    found = np.zeros(1)
    for kind in np.unique(runs.schedule):
        found = np.where(runs.schedule == kind, in_flight(NAMES[int(kind)], *sizes), found)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Bytes by kind, rank and row at each rank's worst moment, which moment, the state, and what is offloaded."""

    by_kind: Array
    moment: NDArray[np.int64]
    state: Array
    flying: Array
    away: Array


def peak_bytes(held: Held, runs: Runs, widths: Widths, host: float = float("inf")) -> Array:
    """The peak of the fullest rank of every row; infinite where more is offloaded than a chip's share of its host."""
    moments = _moments(held, runs, widths)
    most = np.zeros(1)
    for gradients, *moving in moments.parts:
        passing = sum(moving, start=np.zeros(1))
        most = np.maximum(most, gradients + passing + _overhead(widths, passing))
    peak = (moments.weights + moments.optimizer + most).max(0)
    return np.where((moments.away > host).any(0), np.inf, peak)


def moment_bytes(held: Held, runs: Runs, widths: Widths) -> Array:
    """Bytes at each moment, moments x ranks x rows; linear in parameters, activations and workspace of `held`."""
    moments = _moments(held, runs, widths)
    there = []
    for gradients, *moving in moments.parts:
        passing = sum(moving, start=np.zeros(1))
        there.append(gradients + passing + _overhead(widths, passing))
    return np.asarray(moments.weights + moments.optimizer + np.array(np.broadcast_arrays(*there)))


def peaks_of(held: Held, runs: Runs, widths: Widths) -> Peaks:
    """The worst moment of every rank, by kind."""
    moments = _moments(held, runs, widths)
    parts = np.empty((len(MOMENTS), len(moments.parts[0]), *moments.weights.shape))
    for place, sizes in enumerate(moments.parts):
        for row, size in enumerate(sizes):
            parts[place, row] = size
    moment = parts.sum(1).argmax(0)
    chosen = np.take_along_axis(parts, moment[None, None], axis=0)[0]
    overhead = _overhead(widths, chosen[1:].sum(0))
    by_kind = np.stack([moments.weights, chosen[0], moments.optimizer, *chosen[1:], overhead])
    state = np.stack([moments.weights, moments.gradients, moments.optimizer])
    return Peaks(by_kind=by_kind, moment=moment, state=state, flying=moments.flying, away=moments.away)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moments:
    """What is there all the time, what is offloaded, and what each moment adds: gradients, activations and the rest."""

    weights: Array
    gradients: Array
    optimizer: Array
    flying: Array
    away: Array
    parts: tuple[tuple[Array, ...], ...]


def _moments(held: Held, runs: Runs, widths: Widths) -> _Moments:
    """Bytes of every rank at each moment.

        none  w + g + o        zero1  w + g + o/d        zero2  w + (g + o)/d        zero3  (w + g + o)/d

    w, g, o = weights, gradients, optimizer states; d = shard degree. Experts are sharded over their own replicas, at
    most edp.
    """
    by = {name: getattr(runs, name) for name in _COLUMNS}
    shard, degree = by["shard"], by["shard_degree"]
    few = np.minimum(by["edp"], degree)

    def over(level: int, dense: Array, expert: Array) -> Array:
        sharded = shard >= level
        if not sharded.any():
            return dense + expert
        return dense / np.where(sharded, degree, 1.0) + expert / np.where(sharded, few, 1.0)

    trained = (held.trained, np.zeros(1)) if widths.frozen else (held.dense, held.expert)
    weights = over(3, held.dense, held.expert) * widths.weights
    gradients = over(2, *trained) * widths.gradients
    states = over(1, *trained) * widths.optimizer
    optimizer = states * (1 - by["offload_optimizer"])
    flying = _flying(runs, held.rank)
    kept = held.kept.sum(0) * (flying / by["chunks"])
    activations = kept * (1 - by["offload"])
    gpipe = (by["schedule"] == NAMES.index("gpipe")) & (by["pp"] > 1)
    logits = held.loss * held.last * np.where(gpipe, by["microbatches"], 1.0)
    stay = widths.buffered | (by["microbatches"] > 1) | (by["pp"] > 1)
    early = np.where(stay, gradients, 0.0)
    gathers = degree > 1
    whole = np.where(gathers & (shard == 3), widths.gathered, 0.0)
    whole = whole + np.where(gathers & (shard >= 2), widths.reduced, 0.0)
    sends = held.sends + np.where(by["pp"] > 1, held.crossing, 0.0)
    none = np.zeros(1)
    return _Moments(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        flying=flying,
        away=states * by["offload_optimizer"] + kept * by["offload"],
        parts=(
            (early, activations, logits, none, sends + held.head * held.last * whole),
            (early, activations, none, held.layer, sends + held.widest * whole),
            (gradients, none, none, none, none),
        ),
    )


_COLUMNS = (
    "shard", "shard_degree", "edp", "schedule", "pp", "microbatches", "chunks", "offload", "offload_optimizer",
)  # fmt: skip


def _overhead(widths: Widths, moving: Array) -> Array:
    """What is taken beside tensors: driver, communicators, and gaps between `moving` bytes that come and go."""
    if widths.compiled:
        return np.full_like(moving, COMPILED)
    return CONTEXT + (0.0 if widths.alone else COMMUNICATOR) + FRAGMENTATION * moving


def _stages(held: Held, peaks: Peaks) -> tuple[Stage, ...]:
    """The first row, rank by rank."""
    made = []
    for rank in range(len(held.rank)):
        found = dict(zip(KINDS, map(float, peaks.by_kind[:, rank, 0]), strict=True))
        kept = held.kept[:, rank, 0]
        shares = kept / (kept.sum() or 1.0) * found["activations"]
        made.append(
            Stage(
                rank=rank,
                bytes_by_kind=found,
                activations=dict(zip(PARTS, map(float, shares), strict=True)),
                in_flight=int(peaks.flying[rank, 0]),
                moment=MOMENTS[int(peaks.moment[rank, 0])],
                state=dict(zip(KINDS, map(float, peaks.state[:, rank, 0]), strict=False)),
            )
        )
    return tuple(made)


def kept_by_stage(scenario: Scenario, program: Program) -> tuple[float, ...]:
    """Bytes each virtual stage keeps on the chip between forward and backward of one microbatch, logits apart."""
    shape = shape_of(scenario)
    kept = np.array([float(kept_of(shape, section).total) for section in program.sections])
    stays = 1 - scenario.plan.offload.activations
    return tuple(float(size) for size in np.array(program.stages, dtype=np.float64) @ kept * stays)
