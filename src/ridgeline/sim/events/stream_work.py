"""Turn a priced scenario into what every section puts on which stream in each pass, and a pass into a timeline.

    section   embedding, head, a distinct block       pass   forward, backward input, backward weight, recompute
    compute   seconds by class                        comm   seconds alone, the share that may hide, the tiers

A comm's hidden share runs beside compute, the rest is waited for. What hides where:

    tp, ep   beside the compute of the pass, where the plan overlaps them
    cp       beside attention, where the plan overlaps it and keys travel round a ring
    shard    gathers of the next layer's weights and scatters of the last one's gradients, beside the whole pass; where
             weight gradients run apart, gathers beside input gradients and scatters beside weight gradients
    host     copies of saved activations, out beside the forward and back beside the backward, or the input gradient
             where weight gradients run apart; where the plan overlaps them

Sizes are those of the Program's ops; this is the only module of the event simulation that knows how they are priced.

A pass is small enough to be simulated event by event, and simulated once however often its section is repeated:

    shard, host   the share of their traffic that is always waited for
    memory        compute; the hidden shares of tp, ep, shard and host begin beside it
    attention     the hidden share of cp runs beside it, and the rest is waited for behind it
    matmul, kernel
    ep, tp        what of them is waited for
    end           when everything that ran beside has ended, too

Traffic that uses the same tier at the same time shares its bandwidth: where the loads of a tier add up to more than
one, all that use it go slower by that sum. A tier may carry a background from outside the pass, which takes part in
the sum; how fast that background gets on meanwhile is part of the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ridgeline.comm.closed_form import Links, Routing
from ridgeline.core.arrays import Array
from ridgeline.core.records import dataclass
from ridgeline.cost.pricing import collective_op_seconds, collective_seconds
from ridgeline.cost.step_part import AXES, COMPUTE, SECTION_PARTS, StepPart
from ridgeline.ir.ops import Collective
from ridgeline.ir.program import PHASES, SectionKey, StepOps
from ridgeline.lowering.step_ops import accumulations, trained_params
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import virtual_stages_by_rank
from ridgeline.sim.closed_form.stage_times import HIDDEN_COPY, HIDDEN_RING, tensor_share
from ridgeline.sim.closed_form.step import accumulate_seconds, embedding_seconds, send_seconds, updated_seconds
from ridgeline.sim.predict_step import Priced

Loads = tuple[float, float]
"""Share of a communication's time in which it keeps its chip's links busy: scale-up, scale-out."""
FORWARD, INPUT, WEIGHT, RECOMPUTE = range(PHASES)


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

    keys, passes    by distinct section; passes in the order forward, backward input, backward weight, recompute
    stages          for each virtual stage how often each section stands in it
    issue_s         by section, host seconds to issue the kernels of forward, input and weight gradient
    weights_apart   weight gradients run apart from input gradients
    exchange, optimizer_s   by pipeline rank; the sum of a tied embedding's gradient belongs to the optimizer step
    """

    keys: tuple[SectionKey, ...]
    passes: tuple[tuple[PassWork, PassWork, PassWork, PassWork], ...]
    stages: tuple[tuple[int, ...], ...]
    issue_s: tuple[tuple[float, float, float], ...]
    weights_apart: bool
    placement: tuple[tuple[int, ...], ...]
    send: Comm
    send_shown_s: float
    """What a rank loses to an overlapped send although it goes on computing."""
    send_blocks: bool
    exchange: tuple[Exchange, ...]
    trained: tuple[float, ...]
    """Trained parameters by virtual stage: how a rank's exchange is shared among its chunks."""
    optimizer_s: tuple[float, ...]
    waiting_s: float
    launches_wait: bool


def step_work(scenario: Scenario, priced: Priced) -> StepWork:
    """What a priced scenario's ranks do."""
    program, step, plans, plan = priced.program, priced.program.step, priced.plans, scenario.plan
    assert step is not None
    used = [index for index, counts in enumerate(zip(*program.stages, strict=True)) if any(counts)]
    stages = tuple(tuple(counts[index] for index in used) for counts in program.stages)
    sections = [program.sections[index] for index in used]
    trained = np.array(stages, dtype=np.float64) @ np.array([trained_params(section) for section in sections])
    made = _passes(priced, step)
    placement = virtual_stages_by_rank(plan.mesh.pp, plan.schedule.chunks, plan.schedule.name)
    spent = np.asarray(updated_seconds(step.optimizer, step.optimizer_copy, plans, priced.rates))
    shared = float(np.broadcast_to(embedding_seconds(plans, priced.rates), 1)[0])
    spent = spent + np.where(np.isin(np.arange(len(spent)), (0, len(spent) - 1)), shared, 0.0)
    return StepWork(
        keys=tuple(section.key for section in sections),
        passes=tuple(made[index] for index in used),
        stages=stages,
        issue_s=tuple((one, two, three) for one, two, three in priced.sections.issue_s.T[used].tolist()),
        weights_apart=bool(plans.weights_apart[0]),
        placement=placement,
        send=_comms("pp", (step.send,), priced.rates.links, 1)[0],
        send_shown_s=float(send_seconds(plans, priced.rates).shown[0]) if plan.mesh.pp > 1 else 0.0,
        send_blocks=not plans.overlap_pp[0],
        exchange=tuple(_exchanges(priced, step, len(placement))),
        trained=tuple(trained.sum(1).tolist()),
        optimizer_s=tuple(float(seconds) for seconds in spent),
        waiting_s=float(priced.steps.parts[StepPart.WAITING][0]),
        launches_wait=bool(plans.blocking[0]),
    )


def _passes(priced: Priced, step: StepOps) -> list[tuple[PassWork, PassWork, PassWork, PassWork]]:
    """The passes of every section: compute, communication of its axes, and what runs beside all of it."""
    axes = _axis_comms(priced)
    seconds, memory = priced.sections.seconds.copy(), COMPUTE.index(StepPart.MEMORY)
    added = accumulate_seconds(priced.sections.params[2:], priced.plans, priced.rates)
    seconds[memory, WEIGHT] += added * accumulations(priced.plans) / priced.plans.microbatches  # in the mean
    bare = [
        [_bare(seconds[:, phase, place], axes[place][phase]) for phase in range(PHASES)] for place in range(len(axes))
    ]
    busy = [[_busy(item) for item in passes] for passes in bare]
    gathers, copies = _gathers(priced, step, busy), _copies(priced, step, busy)
    made = []
    for passes, gather, copy in zip(bare, gathers, copies, strict=True):
        beside = [tuple(comm for comm in pair if comm.seconds > 0) for pair in zip(gather, copy, strict=True)]
        whole = [replace(item, comms=item.comms + more) for item, more in zip(passes, beside, strict=True)]
        made.append((whole[FORWARD], whole[INPUT], whole[WEIGHT], whole[RECOMPUTE]))
    return made


def _bare(seconds: Array, comms: Sequence[Comm]) -> PassWork:
    """A pass from its seconds by part, and the communication of its axes."""
    compute = {part.value: float(seconds[place]) for place, part in enumerate(COMPUTE)}
    return PassWork(compute=MappingProxyType(compute), comms=tuple(comm for comm in comms if comm.seconds > 0))


def _busy(item: PassWork) -> float:
    """Seconds of a pass without what runs beside all of it."""
    waits = sum(comm.seconds * (1 - comm.hidden) for comm in item.comms)
    late = (comm.seconds * comm.hidden - item.compute["attention"] for comm in item.comms if comm.stream == "cp")
    return item.compute_s + waits + sum(max(0.0, over) for over in late)


def _rate(priced: Priced, name: str) -> float:
    """A fitted share, less what compute loses while communication runs beside it."""
    return float(priced.rates.rates[name][0]) * (1 - float(priced.rates.rates["contention"][0]))


def _gathers(priced: Priced, step: StepOps, busy: Sequence[Sequence[float]]) -> list[list[Comm]]:
    """zero3: gathers before the forward; gathers and scatters of the backward."""
    many, links = len(busy), priced.rates.links
    if not step.layer_gather:
        return [[Comm(stream="shard", seconds=0.0)] * PHASES] * many
    hidden = _rate(priced, "hidden_shard") * (1 - float(priced.plans.blocking[0]))
    forward = _comms("shard", step.layer_gather, links, many, hidden)
    if priced.plans.weights_apart[0]:
        scatters = _comms("shard", step.layer_scatter, links, many, hidden)
        spread = [_spread_comm(gather, own, (INPUT, RECOMPUTE)) for gather, own in zip(forward, busy, strict=True)]
        rows = zip(forward, spread, scatters, strict=True)
        return [[gather, inputs, scatter, again] for gather, (inputs, again), scatter in rows]
    backward = _comms("shard", (*step.layer_gather, *step.layer_scatter), links, many, hidden)
    return [
        [gather, *_spread_comm(back, own, (INPUT, WEIGHT, RECOMPUTE))]
        for gather, back, own in zip(forward, backward, busy, strict=True)
    ]


def _spread_comm(comm: Comm, busy: Sequence[float], phases: Sequence[int]) -> list[Comm]:
    """A communication over some phases, by their length."""
    whole = sum(busy[phase] for phase in phases) or 1.0
    return [replace(comm, seconds=comm.seconds * busy[phase] / whole) for phase in phases]


def _copies(priced: Priced, step: StepOps, busy: Sequence[Sequence[float]]) -> list[list[Comm]]:
    """Saved activations on their way to the host and back."""
    made, hidden = [], HIDDEN_COPY * float(priced.plans.overlap_offload[0])
    for spent, own in zip(priced.rates.machines.copy_seconds(step.offload).tolist(), busy, strict=True):
        out = Comm(stream="host", seconds=spent, hidden=hidden)
        if priced.plans.weights_apart[0]:
            inputs, again = _spread_comm(out, own, (INPUT, RECOMPUTE))
            made.append([out, inputs, replace(out, seconds=0.0), again])
        else:
            made.append([out, *_spread_comm(out, own, (INPUT, WEIGHT, RECOMPUTE))])
    return made


def _exchanges(priced: Priced, step: StepOps, ranks: int) -> list[Exchange]:
    """Gradients and weights of every pipeline rank, as its sharding moves them."""
    plans, hidden, links = priced.plans, _rate(priced, "hidden_dp"), priced.rates.links
    reduce = _comms("dp", step.grad_reduce, links, ranks, hidden * float(plans.overlap_grad[0] > 0))
    gather = _comms("dp", step.param_gather, links, ranks, hidden * float(plans.overlap_gather[0] > 0))
    return [Exchange(reduce=one, gather=other) for one, other in zip(reduce, gather, strict=True)]


def _comms(stream: str, ops: Sequence[Collective], links: Links, many: int, hidden: float = 0.0) -> list[Comm]:
    """Collectives of one stream one after the other, for each of `many` sizes."""
    spent = [np.broadcast_to(collective_op_seconds(ops, each), many) for each in _tiers(links)]
    busy = np.stack([spent[0], spent[1] - spent[3], spent[2] - spent[3]], axis=1)
    return [Comm(stream=stream, seconds=float(own[0]), hidden=hidden, loads=_loads(own)) for own in busy]


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


def _axis_comms(priced: Priced) -> list[list[list[Comm]]]:
    """By section and pass, the communication of each axis as priced, with the tiers it loads."""
    table, rates = priced.table, priced.rates
    slots = len(table.cell) * PHASES
    busy = np.zeros((slots, len(AXES), 3))
    if table.collectives.size:
        kind, payload, ranks, stride, axis, *routing, _, aligned = table.collectives
        links = rates.links.at(np.zeros(len(kind), dtype=np.int64))
        sizes = (kind.astype(np.int64), payload, ranks, stride)
        together = aligned * links.skew * np.log2(ranks)  # ranks that have just met do not wait again
        spent = [collective_seconds(*sizes, each, Routing(*routing)) for each in _tiers(links)]
        spent[0] = spent[0] - together
        for place, seconds in enumerate((spent[0], spent[1] - spent[3], spent[2] - spent[3])):
            np.add.at(busy[:, :, place], (table.collective_slot, axis.astype(np.int64)), seconds)
    alike = np.ones((PHASES, len(table.cell)))
    hidden = {
        StepPart.TP: tensor_share(priced.sections, priced.plans) * _rate(priced, "hidden_tp") * alike,
        StepPart.EP: float(priced.plans.overlap_moe[0]) * _rate(priced, "hidden_moe") * alike,
        StepPart.CP: float(priced.plans.overlap_cp[0]) * HIDDEN_RING * (1 - rates.rates["contention"][0]) * alike,
    }
    seconds = priced.sections.seconds
    made = [
        [
            Comm(
                stream=name.value,
                seconds=float(seconds[SECTION_PARTS.index(name), slot % PHASES, slot // PHASES]),
                hidden=float(hidden[name][slot % PHASES, slot // PHASES]),
                loads=_loads(busy[slot, place]),
            )
            for place, name in enumerate(AXES)
        ]
        for slot in range(slots)
    ]
    return [made[first : first + PHASES] for first in range(0, slots, PHASES)]


NOTHING: Loads = (0.0, 0.0)
ORDER = ("memory", "attention", "matmul", "kernel")


class Segment(NamedTuple):
    """Something on a stream: its name, whether compute waits for it, and from when to when."""

    stream: str
    name: str
    kind: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimeline:
    """What a pass does beside a background: how long it takes, and how fast the background moves meanwhile, by tier."""

    seconds: float
    segments: tuple[Segment, ...]
    pace: Loads


class Task(NamedTuple):
    """Work for the fluid simulation: seconds alone, loads by tier, and the tasks that must have ended before."""

    stream: str
    name: str
    kind: str
    seconds: float
    loads: Loads = NOTHING
    after: tuple[int, ...] = ()


def slowdown(loads: Loads, totals: Sequence[float]) -> float:
    """How much slower traffic with these loads is where the loads of all add up to these totals.

    >>> slowdown((1.0, 0.0), (2.0, 3.0)), slowdown((0.0, 0.0), (2.0, 3.0)), slowdown((0.5, 0.5), (0.9, 1.5))
    (2.0, 1.0, 1.5)
    """
    near, far = loads
    return max(1.0, totals[0] if near > 0 else 1.0, totals[1] if far > 0 else 1.0)


def flow(tasks: Sequence[Task], background: Loads = NOTHING) -> PassTimeline:
    """Run the tasks: each starts when those before it on its stream and those it names have ended.

    Two equal collectives on one tier take twice as long, on two tiers they do not:

    >>> near, far = (1.0, 0.0), (0.0, 1.0)
    >>> flow([Task("tp", "a", "", 1.0, near), Task("ep", "b", "", 1.0, near)]).seconds
    2.0
    >>> flow([Task("tp", "a", "", 1.0, near), Task("dp", "b", "", 1.0, far)]).seconds
    1.0
    """
    before = [_before(tasks, place) for place in range(len(tasks))]
    left = [task.seconds for task in tasks]
    starts: dict[int, float] = {}
    ends: dict[int, float] = {}
    now, moved = 0.0, [0.0, 0.0]
    while len(ends) < len(tasks):
        for place in range(len(tasks)):
            if place not in starts and all(other in ends for other in before[place]):
                starts[place] = now
        active = [place for place in starts if place not in ends]
        totals = [base + sum(tasks[place].loads[tier] for place in active) for tier, base in enumerate(background)]
        rates = {place: 1 / slowdown(tasks[place].loads, totals) for place in active}
        step = min(left[place] / rates[place] for place in active)
        for tier in range(2):
            moved[tier] += step / max(1.0, totals[tier])
        now += step
        for place in active:
            left[place] -= step * rates[place]
            if left[place] <= 1e-12 * tasks[place].seconds:
                ends[place] = now
    segments = (
        Segment(task.stream, task.name, task.kind, starts[place], ends[place])
        for place, task in enumerate(tasks)
        if ends[place] > starts[place]
    )
    pace = (moved[0] / now, moved[1] / now) if now > 0 else (1.0, 1.0)
    return PassTimeline(seconds=now, segments=tuple(sorted(segments, key=lambda item: item.start_s)), pace=pace)


def _before(tasks: Sequence[Task], place: int) -> tuple[int, ...]:
    same = [other for other in range(place) if tasks[other].stream == tasks[place].stream]
    return (*tasks[place].after, *same[-1:])


def tasks_of(item: PassWork) -> list[Task]:
    """The tasks of a pass, in the order of this module's head."""
    made: list[Task] = []
    comms = {comm.stream: comm for comm in item.comms}

    def add(comm: Comm | None, hidden: bool, after: tuple[int, ...]) -> tuple[int, ...]:
        if comm is None or comm.seconds <= 0:
            return after
        share = comm.hidden if hidden else 1 - comm.hidden
        kind = "overlapped" if hidden else "exposed"
        made.append(Task(comm.stream, comm.stream, kind, comm.seconds * share, comm.loads, after))
        return after if hidden else (len(made) - 1,)

    last: tuple[int, ...] = ()
    for stream in ("shard", "host"):
        last = add(comms.get(stream), False, last)
    for stream in ("tp", "ep", "shard", "host"):
        add(comms.get(stream), True, last)
    for name in ORDER:
        if name == "attention":
            add(comms.get("cp"), True, last)
        kind = "per-kernel" if name == "kernel" else name  # a timeline's kernels are measured ones
        made.append(Task("compute", name, kind, item.compute[name], NOTHING, last))
        last = (len(made) - 1,)
        if name == "attention":
            last = add(comms.get("cp"), False, last)
    for stream in ("ep", "tp"):
        last = add(comms.get(stream), False, last)
    return made


class PassMix:
    """Passes that a step runs one after the other, each so many times, as one: its length beside any background.

    Filled as backgrounds appear; there are few.
    """

    __slots__ = ("_found", "_parts", "_patterns", "alone_s", "uses")

    def __init__(self, parts: Mapping[int, float], tasks: Sequence[Sequence[Task]], patterns: PassTimelines) -> None:
        self._parts = dict(parts)
        self._patterns = patterns
        self._found: dict[Loads, tuple[float, Loads]] = {}
        self.uses = tuple(
            any(task.loads[tier] > 0 and task.seconds > 0 for place in parts for task in tasks[place])
            for tier in range(2)
        )
        self.alone_s = self._length(NOTHING)[0]

    def beside(self, background: Loads) -> tuple[float, Loads]:
        """How much longer it takes beside a background, and how fast that moves meanwhile, by tier."""
        if background not in self._found:
            seen: Loads = (
                background[0] if self.uses[0] else 0.0,
                background[1] if self.uses[1] else 0.0,
            )
            seconds, pace = self._length(seen)
            longer = seconds / self.alone_s if self.alone_s > 0 else 1.0
            clear = tuple(1 / max(1.0, load) for load in background)
            mixed = (pace[0] if seen[0] else clear[0], pace[1] if seen[1] else clear[1])
            self._found[background] = longer, mixed
        return self._found[background]

    def __add__(self, other: PassMix) -> PassMix:
        parts = dict(self._parts)
        for place, count in other._parts.items():
            parts[place] = parts.get(place, 0.0) + count
        return PassMix(parts, self._patterns.tasks, self._patterns)

    def _length(self, background: Loads) -> tuple[float, Loads]:
        total, near, far = 0.0, 0.0, 0.0
        for place, count in self._parts.items():
            pattern = self._patterns.at(place, background)
            total += count * pattern.seconds
            near += count * pattern.seconds * pattern.pace[0]
            far += count * pattern.seconds * pattern.pace[1]
        return total, (near / total, far / total) if total > 0 else (1.0, 1.0)


class PassTimelines:
    """Patterns of all passes, by background, each made once."""

    def __init__(self, passes: Sequence[PassWork]) -> None:
        self.tasks = [tasks_of(item) for item in passes]
        self._made: dict[tuple[int, Loads], PassTimeline] = {}

    def at(self, place: int, background: Loads = NOTHING) -> PassTimeline:
        """The pattern of one pass beside a background."""
        key = place, background
        if key not in self._made:
            self._made[key] = flow(self.tasks[place], background)
        return self._made[key]

    def mix(self, parts: Mapping[int, float]) -> PassMix:
        """Passes run one after the other, each so many times."""
        return PassMix(parts, self.tasks, self)
