"""Turn a priced scenario into what every section puts on which stream in each of its passes.

    section   embedding, head, a distinct block       pass   forward, backward input, backward weight, recompute
    compute   seconds by class                        comm   seconds alone, the share that may hide, the tiers

A comm's hidden share runs beside compute, the rest is waited for. What hides where:

    tp, ep   beside the compute of the pass, where the plan overlaps them
    cp       beside attention
    shard    gathers of the next layer's weights and scatters of the last one's gradients, beside the whole pass
    host     copies of kept activations out and back, spread evenly over the passes of a section

This is the only module of the event simulation that knows how a step is priced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.collectives.links import Links
from ridgeline.cost.collectives.price import ALL_GATHER, SEND, collective_seconds
from ridgeline.cost.op_table import AXES, PHASES, OpTable, op_table
from ridgeline.cost.price import CLASSES, SustainedRates, price_sections
from ridgeline.ir.program import Section
from ridgeline.plan.scenario import Scenario
from ridgeline.sim.closed_form.grad_sync import exchanged, optimizer_seconds
from ridgeline.sim.closed_form.overlap import HIDDEN_COPY, RING
from ridgeline.sim.closed_form.pipeline_time import SMOOTH
from ridgeline.sim.closed_form.stage_mix import virtual_stages_by_rank
from ridgeline.sim.plan_columns import PlanColumns
from ridgeline.sim.predict import Priced

Array = NDArray[np.float64]
Loads = tuple[float, float]
"""Share of a communication's time in which it keeps its chip's links busy: near (the innermost domain), far."""
COMPUTE = tuple(name for name in CLASSES if name not in AXES)
FORWARD, INPUT, WEIGHT, AGAIN = range(PHASES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comm:
    """One stream's communication within a pass, or one message: seconds alone, and the share that may be hidden."""

    stream: str
    seconds: float
    hidden: float = 0.0
    loads: Loads = (0.0, 0.0)

    def part(self, share: float) -> Comm:
        """A share of it, none of which is hidden from whoever waits."""
        return Comm(stream=self.stream, seconds=self.seconds * share, loads=self.loads)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassWork:
    """One section in one pass, for one microbatch."""

    compute: Mapping[str, float]
    comms: tuple[Comm, ...] = ()

    @property
    def compute_s(self) -> float:
        """All classes."""
        return sum(self.compute.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What a pipeline rank exchanges with its replicas in a step: gradients, and weights where they are sharded.

    hidden of `reduce` runs while the last gradients are made, hidden of `gather` beside the first forward.
    """

    reduce: Comm
    gather: Comm


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """A scenario as the event simulation takes it.

    names, passes   by distinct section; passes in the order forward, backward input, backward weight, recompute
    stages          for each virtual stage how often each section stands in it
    issue_s         by section, host seconds to issue the kernels of all its passes
    exchange, optimizer_s   by pipeline rank
    """

    names: tuple[str, ...]
    passes: tuple[tuple[PassWork, PassWork, PassWork, PassWork], ...]
    stages: tuple[tuple[int, ...], ...]
    issue_s: tuple[float, ...]
    placement: tuple[tuple[int, ...], ...]
    send: Comm
    send_blocks: bool
    exchange: tuple[Exchange, ...]
    trained: tuple[float, ...]
    """Trained parameters by virtual stage: how a rank's exchange is shared among its chunks."""
    optimizer_s: tuple[float, ...]
    waiting_s: float
    launches_wait: bool


def step_work(scenario: Scenario, priced: Priced) -> StepWork:
    """What a priced scenario's ranks do."""
    used = [index for index, counts in enumerate(zip(*priced.program.stages, strict=True)) if any(counts)]
    sections = [priced.program.sections[index] for index in used]
    stages = tuple(tuple(counts[index] for index in used) for counts in priced.program.stages)
    small = replace(priced.program, sections=tuple(sections), stages=stages)
    batch, plans, rows = op_table([small]), priced.plans, priced.rows
    found = price_sections(batch, rows)
    seconds = np.ascontiguousarray(found.seconds.transpose(2, 1, 0))  # by section, phase and class
    axes = _axes(batch, rows, seconds)
    made = [_passes(plans, rows, section, seconds[place], axes[place]) for place, section in enumerate(sections)]
    placement = virtual_stages_by_rank(
        scenario.plan.mesh.pp, scenario.plan.schedule.chunks, scenario.plan.schedule.name
    )
    held = np.array(stages, dtype=np.float64) @ np.array([_trained(section) for section in sections])
    by_rank = [held[list(own)].sum(0) for own in placement]
    send = _comm("pp", rows.links, [(SEND, float(plans.boundary_bytes[0]), plans.pp, plans.tp * plans.replicas)])
    return StepWork(
        names=tuple(section.name for section in sections),
        passes=tuple(made),
        stages=stages,
        issue_s=tuple(found.issue_s.tolist()),
        placement=placement,
        send=send,
        send_blocks=not plans.overlap_pp[0],
        exchange=tuple(_exchange(plans, rows, dense, expert) for dense, expert in by_rank),
        trained=tuple(held.sum(1).tolist()),
        optimizer_s=tuple(_optimizer(plans, rows, dense, expert) for dense, expert in by_rank),
        waiting_s=float(priced.steps.parts["waiting"][0]),
        launches_wait=bool(plans.blocking[0]),
    )


def stalled(running_s: float, issue_s: float, launches_wait: bool) -> float:
    """Seconds the chip waits because the host has not issued its kernels yet.

    >>> stalled(2.0, 1.0, True), round(stalled(1.0, 3.0, False), 3)
    (1.0, 2.0)
    """
    if launches_wait:
        return issue_s
    longest = max(running_s, issue_s)
    if longest <= 0:
        return 0.0
    return (
        float(longest * ((running_s / longest) ** SMOOTH + (issue_s / longest) ** SMOOTH) ** (1 / SMOOTH)) - running_s
    )


def _trained(section: Section) -> tuple[float, float]:
    """Dense and expert parameters that get gradients: experts where everything is trained."""
    dense, expert, trained = float(section.params), float(section.expert_params), float(section.trained)
    return trained, expert if trained >= dense else 0.0


def _passes(
    plans: PlanColumns, rows: SustainedRates, section: Section, seconds: Array, axes: Sequence[Sequence[Comm]]
) -> tuple[PassWork, PassWork, PassWork, PassWork]:
    rates = {name: float(values[0]) for name, values in rows.rates.values.items()}
    free = 1 - rates["contention"]
    hidden = {
        "tp": float(plans.overlap_tp[0]) * rates["hidden_tp"] * free,
        "ep": float(plans.overlap_moe[0]) * rates["hidden_moe"] * free,
        "cp": RING * free,
    }
    bare = [
        PassWork(
            compute=MappingProxyType({name: float(seconds[phase, CLASSES.index(name)]) for name in COMPUTE}),
            comms=tuple(replace(comm, hidden=hidden[comm.stream]) for comm in axes[phase] if comm.seconds > 0),
        )
        for phase in range(PHASES)
    ]
    busy = [_busy(item) for item in bare]
    beside = [_sharded(plans, rows, section, busy), _copied(plans, rows, section, busy)]
    made = [
        replace(item, comms=item.comms + tuple(comms[phase] for comms in beside if comms[phase].seconds > 0))
        for phase, item in enumerate(bare)
    ]
    return made[FORWARD], made[INPUT], made[WEIGHT], made[AGAIN]


def _busy(item: PassWork) -> float:
    """Seconds of a pass without what runs beside all of it."""
    waits = sum(comm.seconds * (1 - comm.hidden) for comm in item.comms)
    late = (comm.seconds * comm.hidden - item.compute["attention"] for comm in item.comms if comm.stream == "cp")
    return item.compute_s + waits + sum(max(0.0, over) for over in late)


def _sharded(plans: PlanColumns, rows: SustainedRates, section: Section, busy: Sequence[float]) -> list[Comm]:
    """Gathers before the forward; gathers and scatters of the backward, spread over its passes by their length."""
    nothing = Comm(stream="shard", seconds=0.0)
    if plans.shard[0] != 3:
        return [nothing] * PHASES
    dense, expert = float(section.params), float(section.expert_params)
    ranks = np.minimum(plans.edp, plans.shard_degree)

    def over(*sizes: Array) -> Comm:
        parts = [(ALL_GATHER, float(dense * size[0]), plans.shard_degree, plans.tp) for size in sizes]
        if expert > 0:
            parts += [(ALL_GATHER, float(expert * size[0]), ranks, plans.expert_stride) for size in sizes]
        return replace(
            _comm("shard", rows.links, parts),
            hidden=float(rows.rates["hidden_shard"][0] * (1 - rows.rates["contention"][0])),
        )

    forward, backward = over(plans.weight_bytes), over(plans.weight_bytes, plans.gradient_bytes)
    whole = sum(busy[1:]) or 1.0
    return [forward, *(replace(backward, seconds=backward.seconds * part / whole) for part in busy[1:])]


def _copied(plans: PlanColumns, rows: SustainedRates, section: Section, busy: Sequence[float]) -> list[Comm]:
    """Kept activations on their way to the host and back."""
    away = float(section.saved.total - section.saved.logits) * float(plans.offload[0]) / float(rows.machines.host[0])
    whole, hidden = sum(busy) or 1.0, float(HIDDEN_COPY)
    return [Comm(stream="host", seconds=2 * away * part / whole, hidden=hidden) for part in busy]


def _exchange(plans: PlanColumns, rows: SustainedRates, dense: float, expert: float) -> Exchange:
    """Gradients and weights of one pipeline rank, as its sharding moves them."""
    hidden = float(rows.rates["hidden_dp"][0] * (1 - rows.rates["contention"][0]))
    trained = np.array([dense]), np.array([expert])
    spent = [exchanged(plans, links, *trained) for links in _tiers(rows.links)]
    made = []
    for place, switch in enumerate((plans.overlap_grad, plans.overlap_gather)):
        alone, near, far, idle = (sum(float(np.ravel(part)[0]) for part in found[place]) for found in spent)
        loads = _loads(np.array([alone, near - idle, far - idle]))
        made.append(Comm(stream="dp", seconds=alone, hidden=hidden * float(switch[0] > 0), loads=loads))
    return Exchange(reduce=made[0], gather=made[1])


def _optimizer(plans: PlanColumns, rows: SustainedRates, dense: float, expert: float) -> float:
    return float(optimizer_seconds(plans, rows.memory, rows.machines.host, np.array([dense]), np.array([expert]))[0])


def _comm(stream: str, links: Links, parts: Sequence[tuple[int, float, Array, Array]]) -> Comm:
    """Collectives of one stream one after the other: kind, payload, ranks, stride."""
    whole = np.zeros(3)
    for kind, payload, ranks, stride in parts:
        whole += [float(spent[0]) for spent in _spent(kind, np.array([payload]), ranks, stride, links)]
    return Comm(stream=stream, seconds=float(whole[0]), loads=_loads(whole))


def _spent(
    kind: NDArray[np.int64] | int,
    payload: Array,
    ranks: Array,
    stride: Array,
    links: Links,
    spread: Array | float = 0.0,
) -> tuple[Array, Array, Array]:
    """Seconds of collectives, and those in which each tier is at work."""
    spent = [collective_seconds(kind, payload, ranks, stride, each, spread) for each in _tiers(links)]
    return spent[0], spent[1] - spent[3], spent[2] - spent[3]


def _tiers(links: Links) -> tuple[Links, ...]:
    """Links as they are, those of each tier alone (the other infinitely fast), and those of none: hops and no bytes."""
    never, bare = np.full_like(links.scale_up, np.inf), links.without_latency()
    return (
        links,
        replace(bare, scale_out=never),
        replace(bare, scale_up=never),
        replace(bare, scale_up=never, scale_out=never),
    )


def _loads(whole: Array) -> Loads:
    """Share of the time in which each tier is at work; latency keeps nothing busy."""
    total = float(whole[0]) or 1.0
    return min(1.0, float(whole[1]) / total), min(1.0, float(whole[2]) / total)


def _axes(batch: OpTable, rows: SustainedRates, seconds: Array) -> list[list[list[Comm]]]:
    """By section and pass, the communication of each axis as priced, with the tiers it loads."""
    slots = len(seconds) * PHASES
    busy = np.zeros((slots, len(AXES), 3))
    if batch.collectives.size:
        kind, payload, ranks, stride, axis, spread = batch.collectives
        links = rows.links.at(np.zeros(len(kind), dtype=np.int64))
        found = _spent(kind.astype(np.int64), payload, ranks, stride, links, spread)
        for place, spent in enumerate(found):
            np.add.at(busy[:, :, place], (batch.collective_slot, axis.astype(np.int64)), spent)
    flat = seconds.reshape(slots, -1)
    made = [
        [
            Comm(stream=name, seconds=float(flat[slot, CLASSES.index(name)]), loads=_loads(busy[slot, place]))
            for place, name in enumerate(AXES)
        ]
        for slot in range(slots)
    ]
    return [made[first : first + PHASES] for first in range(0, slots, PHASES)]
