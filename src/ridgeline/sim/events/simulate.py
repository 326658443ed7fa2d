"""Turn a scenario into one step, event by event, and that into a Timeline.

Cost grows with distinct sections and with actions of the table, not with layers: a virtual stage is so many times the
pattern of each of its sections. A timeline has:

    process    a pipeline stage (one of its ranks; the others of the stage do the same at the same time)
    steps      the actions of the schedule
    compute    the classes of every layer in turn; it stands still while something exposed is waited for
    tp cp ep shard host pp dp   communication where it runs, overlapped with compute or exposed
    counter    bytes held

Every span says its phase, and its layer where it belongs to one; a send says the stage it goes to; the timeline says
that it is a prediction. Recomputed work and the reduction of gradients are backward, gathered weights the optimizer's.

Seconds become whole nanoseconds edge by edge: what touched still touches, nothing of a step lies outside it, and a span
of less than a nanosecond may last none; it keeps its place.

The pattern of each kind of step is drawn once and placed wherever that step runs, stretched to the time it took there.
Where that would make more than `MOST` spans, the layers of a step are drawn as one, and where that is still too many,
all its classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.errors import Problem
from ridgeline.core.records import dataclass
from ridgeline.cost import Calibration
from ridgeline.ir.program import PHASES, SectionKey, SectionRole
from ridgeline.plan.check import check
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import SCHEDULES, Action, Phase, ScheduleTable, Step, actions_of, build
from ridgeline.sim.closed_form.stage_times import StageTimes
from ridgeline.sim.events.event_loop import (
    BUCKETS,
    PipelineRun,
    SharedWork,
    Slowdown,
    StageWork,
    StepInterval,
    run_shared,
)
from ridgeline.sim.events.stream_work import (
    FORWARD,
    INPUT,
    RECOMPUTE,
    WEIGHT,
    Exchange,
    PassMix,
    PassTimelines,
    PassWork,
    StepWork,
    step_work,
)
from ridgeline.sim.memory.peak import Memory, StageMemory, peak_memory, saved_by_stage
from ridgeline.sim.predict_step import (
    Priced,
    default_calibration,
    non_finite_parts,
    not_predictable,
    price,
)
from ridgeline.sim.prediction import Impossible, unless_impossible
from ridgeline.trace import (
    NO_LAYER,
    Counter,
    StepPhase,
    Timeline,
    nanoseconds_of,
)

Stretch = tuple[float, float, float]  # of forward, input gradient and weight gradient
LARGEST = 200_000  # actions of a table that is still worth simulating
SLOTS = {
    Phase.FORWARD: (FORWARD,),
    Phase.BACKWARD: (RECOMPUTE, INPUT, WEIGHT),
    Phase.BACKWARD_INPUT: (RECOMPUTE, INPUT),
    Phase.BACKWARD_WEIGHT: (WEIGHT,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """One step of a scenario as it was executed: what the ranks had to do, and what happened."""

    scenario: Scenario
    priced: Priced
    workload: StepWork
    shared: SharedWork
    run: PipelineRun

    @property
    def step_s(self) -> float:
        """Until the last rank has ended, and the waiting for the slowest node that a prediction adds."""
        return self.run.makespan_s + self.workload.waiting_s


def simulate(
    scenario: Scenario,
    calibration: Calibration | None = None,
    *,
    slow: Slowdown | None = None,
    contention: bool = True,
) -> Simulated | Impossible:
    """One step of a scenario, event by event, or the reasons why there is none.

    slow         ranks or links that are slower than planned
    contention   whether traffic on one tier shares it; without, every message goes as if it were alone

    >>> from ridgeline.plan.scenario_file import read_scenario
    >>> found = simulate(read_scenario("examples/llama3-70b-64xh100.toml", ["workload.global_batch=32"]))
    >>> [len(row) for row in found.run.steps]      # 8 microbatches x 5 chunks x forward and backward
    [80, 80]
    """
    reasons = (*check(scenario), *not_predictable(scenario), *_too_large(scenario))
    priced = unless_impossible(scenario, reasons, lambda: price(scenario, calibration or default_calibration()))
    if isinstance(priced, Impossible):
        return priced
    wrong = non_finite_parts(priced.steps)
    if wrong:
        return Impossible(scenario=scenario, reasons=wrong)
    workload = step_work(scenario, priced)
    shared = shared_work(workload if contention else _separate_streams(workload))
    run, pace = run_shared(table_of(scenario), shared, slow=slow), priced.rates.rates.pace
    run = run if pace is None else run.at_pace(float(pace[0]))
    return Simulated(scenario=scenario, priced=priced, workload=workload, shared=shared, run=run)


def timeline(
    scenario: Scenario,
    calibration: Calibration | None = None,
    *,
    slow: Slowdown | None = None,
    contention: bool = True,
) -> Timeline | Impossible:
    """The timeline of one predicted step, or the reasons why there is none; see `simulate`."""
    found = simulate(scenario, calibration, slow=slow, contention=contention)
    if isinstance(found, Impossible):
        return found
    return unless_impossible(scenario, (), lambda: draw(found, peak_memory(scenario, found.priced.program)))


def _too_large(scenario: Scenario) -> Iterator[Problem]:
    actions = 2 * scenario.plan.virtual_stages * scenario.microbatches
    if actions > LARGEST:
        given = f"{scenario.plan.virtual_stages} virtual stages x {scenario.microbatches} microbatches"
        todo = "simulate a smaller global batch; the steady state looks the same"
        yield Problem(path="plan.microbatch", given=given, expected=f"at most {LARGEST:,} actions", todo=todo)


def table_of(scenario: Scenario) -> ScheduleTable:
    """The schedule's table; without a pipeline, forward and backward in turn."""
    plan, many = scenario.plan, scenario.microbatches
    if plan.mesh.pp == 1:
        return build("1f1b", stages=1, microbatches=many)
    return build(plan.schedule.name, stages=plan.mesh.pp, microbatches=many, chunks=plan.schedule.chunks)


def shared_work(given: StepWork) -> SharedWork:
    """A workload by virtual stage, with the stalls of each rank's host spread over what it runs."""
    patterns = PassTimelines([item for passes in given.passes for item in passes])
    mixes = tuple(_mixes(patterns, counts) for counts in given.stages)
    stretch: list[Stretch] = [(1.0, 1.0, 1.0)] * len(mixes)
    exchange: list[Exchange] = [given.exchange[0]] * len(mixes)
    for rank, held in enumerate(given.placement):
        longer = _stretch_work(given, mixes, held)
        whole = sum(given.trained[stage] for stage in held) or 1.0
        for stage in held:
            stretch[stage] = longer
            exchange[stage] = _share(given.exchange[rank], given.trained[stage] / whole)
    return SharedWork(
        work=tuple(
            StageWork(
                forward_s=mix[Phase.FORWARD].alone_s * longer[0] + given.send_shown_s,
                backward_input_s=mix[Phase.BACKWARD_INPUT].alone_s * longer[1] + given.send_shown_s,
                backward_weight_s=mix[Phase.BACKWARD_WEIGHT].alone_s * longer[2],
                send_s=given.send.seconds,
            )
            for mix, longer in zip(mixes, stretch, strict=True)
        ),
        mixes=mixes,
        send=given.send,
        send_blocks=given.send_blocks,
        exchange=tuple(exchange),
        optimizer_s=given.optimizer_s,
        buckets=tuple(max(1, min(BUCKETS, sum(counts))) for counts in given.stages),
    )


def _stretch_work(given: StepWork, mixes: Sequence[Mapping[Phase, PassMix]], held: Sequence[int]) -> Stretch:
    """How much longer the passes of a rank take because the host has not issued their kernels yet."""
    passes = (Phase.FORWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)
    alone = np.array([[sum(mixes[stage][one].alone_s for stage in held)] for one in passes])
    counts = np.array([given.stages[stage] for stage in held], dtype=np.float64).sum(0)
    times = StageTimes.of(alone, (counts @ np.array(given.issue_s))[:, None])
    times.add_stalls(np.array([given.weights_apart]), np.array([float(given.launches_wait)]))
    one, two, three = (times.phases / np.maximum(alone, 1e-30))[:, 0].tolist()
    return one, two, three


def _mixes(patterns: PassTimelines, counts: tuple[int, ...]) -> dict[Phase, PassMix]:
    return {
        phase: patterns.mix(
            {place * PHASES + slot: count for place, count in enumerate(counts) if count for slot in slots}
        )
        for phase, slots in SLOTS.items()
    }


def _share(exchange: Exchange, share: float) -> Exchange:
    """The part of a rank's exchange that belongs to one of its chunks."""
    return Exchange(
        reduce=replace(exchange.reduce, seconds=exchange.reduce.seconds * share),
        gather=replace(exchange.gather, seconds=exchange.gather.seconds * share),
    )


def _separate_streams(given: StepWork) -> StepWork:
    """The same with links that nobody has to share."""
    idle = (0.0, 0.0)

    def clear(item: PassWork) -> PassWork:
        return replace(item, comms=tuple(replace(comm, loads=idle) for comm in item.comms))

    return replace(
        given,
        passes=tuple((clear(f), clear(i), clear(w), clear(again)) for f, i, w, again in given.passes),
        send=replace(given.send, loads=idle),
        exchange=tuple(
            Exchange(reduce=replace(item.reduce, loads=idle), gather=replace(item.gather, loads=idle))
            for item in given.exchange
        ),
    )


STREAMS = ("steps", "compute", "tp", "cp", "ep", "shard", "host", "pp", "dp")
MOST = 200_000  # spans; above, layers are drawn together
TOGETHER = "all layers"

StepKey = tuple[tuple[Phase, int], ...]


class _Piece(NamedTuple):
    """A part of a step: a class of a section on a stream, from when to when, with the phase and layer it belongs to."""

    stream: str
    section: str
    part: str
    kind: str
    start_s: float
    end_s: float
    phase: int
    layer: int = NO_LAYER


def draw(given: Simulated, memory: Memory) -> Timeline:
    """The timeline of a step."""
    columns = _Columns()
    shapes = _shapes(given, together=False)
    if _many(given, shapes) > MOST:
        shapes = _shapes(given, together=True)
    if _many(given, shapes) > MOST:
        shapes = {
            place: (_Piece("compute", TOGETHER, "and classes", "compute", 0.0, 1.0, _phase(place[1][0][0])),)
            for place in shapes
        }
    run = given.run
    for rank in range(run.table.stages):
        process = f"stage {rank}"
        for key, steps in _by_kind(run, rank).items():
            columns.place(process, shapes[rank, key], [interval for _, interval in steps])
        for step, interval in zip(run.table.rows[rank], run.steps[rank], strict=True):
            phase = _phase(_key(step)[0][0])  # of two that overlap, the first
            columns.add(process, "steps", (str(step), "annotation"), interval, phase)  # work is on the other streams
        _tails(given, rank, columns)
    for send in run.sends:
        name = f"{send.action} to stage {send.receiver}"
        interval = StepInterval(send.start_s, send.end_s)
        phase = _phase(send.action.phase)
        columns.add(f"stage {send.sender}", "pp", (name, "send"), interval, phase, receiver=send.receiver)
    for message in given.run.traffic:
        interval = StepInterval(message.start_s, message.end_s)
        phase = StepPhase.OPTIMIZER if message.gathers else StepPhase.BACKWARD
        columns.add(f"stage {message.rank}", "dp", (message.name, "overlapped"), interval, phase)
    return columns.timeline([_memory_counter(given, rank, stage) for rank, stage in enumerate(memory.stages)])


def drawn_together(line: Timeline) -> bool:
    """Whether the layers of a step were drawn as one."""
    return not (line.layer != NO_LAYER).any()


def _phase(phase: Phase) -> int:
    return StepPhase.FORWARD if phase is Phase.FORWARD else StepPhase.BACKWARD


class _Columns:
    """Spans as columns while they are collected: times are starts and ends, marks phases and layers."""

    def __init__(self) -> None:
        self.tables: list[dict[str, int]] = [{}, {text: code for code, text in enumerate(STREAMS)}, {}, {}]
        self.times: list[NDArray[np.int64]] = []
        self.codes: list[NDArray[np.int32]] = []
        self.marks: list[NDArray[np.int16]] = []
        self.single: list[tuple[StepInterval, tuple[int, ...], int]] = []
        self.receivers: dict[int, int] = {}

    def _code(self, *texts: str) -> tuple[int, ...]:
        return tuple(table.setdefault(text, len(table)) for table, text in zip(self.tables, texts, strict=True))

    def add(
        self,
        process: str,
        stream: str,
        name: tuple[str, str],
        interval: StepInterval,
        phase: int,
        receiver: int | None = None,
    ) -> None:
        """One span; nothing of no length. A send has a receiver."""
        if interval.duration_s > 0:
            if receiver is not None:
                self.receivers[len(self.single)] = receiver
            self.single.append((interval, self._code(process, stream, *name), phase))

    def place(self, process: str, shape: Sequence[_Piece], intervals: Sequence[StepInterval]) -> None:
        """A shape of length one, stretched into each of the intervals."""
        if not shape:
            return
        begin, end = np.array(intervals).T[:, :, None]
        edges = np.array([(item.start_s, item.end_s) for item in shape]).T[:, None, :]
        times = np.where(edges < 1.0, begin + (end - begin) * edges, end)  # the last ends with its step, to the bit
        self.times.append(nanoseconds_of(np.minimum(times, end)).reshape(2, -1))
        codes = [self._code(process, item.stream, f"{item.section} {item.part}", item.kind) for item in shape]
        self.codes.append(np.tile(np.array(codes, dtype=np.int32), (len(intervals), 1)))
        marks = np.array([(item.phase, item.layer) for item in shape], np.int16).T
        self.marks.append(np.tile(marks, (1, len(intervals))))

    def timeline(self, counters: Sequence[Counter]) -> Timeline:
        """All of it, in the order of a timeline."""
        intervals, codes, phases = zip(*self.single, strict=True)
        single = nanoseconds_of([(interval.start_s, interval.end_s) for interval in intervals]).T
        start, end = np.concatenate([single, *self.times], axis=1)
        marks = np.array([phases, [NO_LAYER] * len(phases)], np.int16)
        phase, layer = np.concatenate([marks, *self.marks], axis=1)
        return Timeline.of_columns(
            start_ns=start,
            end_ns=end,
            codes=np.concatenate([np.array(codes, dtype=np.int32), *self.codes]),
            phase=phase.astype(np.int8),
            layer=layer,
            tables=tuple(tuple(table) for table in self.tables),
            counters=tuple(counters),
            sends=self.receivers,
            predicted=True,
        )


def _by_kind(run: PipelineRun, rank: int) -> dict[StepKey, list[tuple[Step, StepInterval]]]:
    found: dict[StepKey, list[tuple[Step, StepInterval]]] = {}
    for step, interval in zip(run.table.rows[rank], run.steps[rank], strict=True):
        found.setdefault(_key(step), []).append((step, interval))
    return found


def _key(step: Step) -> StepKey:
    return tuple((action.phase, action.chunk) for action in actions_of(step))


def _many(given: Simulated, shapes: Mapping[tuple[int, StepKey], Sequence[_Piece]]) -> int:
    run = given.run
    return sum(
        len(steps) * (1 + len(shapes[rank, key]))
        for rank in range(run.table.stages)
        for key, steps in _by_kind(run, rank).items()
    )


def _shapes(given: Simulated, together: bool) -> dict[tuple[int, StepKey], tuple[_Piece, ...]]:
    """For every kind of step of every rank, its pieces in a step of length one."""
    patterns = PassTimelines([item for passes in given.workload.passes for item in passes])
    table = given.run.table
    layers = _layers(given)
    found: dict[tuple[int, StepKey], tuple[_Piece, ...]] = {}
    for rank in range(table.stages):
        for key in dict.fromkeys(map(_key, table.rows[rank])):
            pieces: list[_Piece] = []
            for phase, chunk in key:
                held = layers[table.placement[rank][chunk]]
                at = max((item.end_s for item in pieces), default=0.0)
                order = held if phase is Phase.FORWARD else held[::-1]
                pieces += _chain(patterns, order, SLOTS[phase], at, _phase(phase))
            found[rank, key] = _unit(_join_pieces(pieces) if together else pieces)
    return found


def _chain(
    patterns: PassTimelines, layers: Sequence[tuple[str, int, int]], slots: Sequence[int], at: float, phase: int
) -> Iterator[_Piece]:
    """The patterns of layers one after the other, from a time on."""
    for name, place, layer in layers:
        for slot in slots:
            pattern = patterns.at(place * PHASES + slot)
            for item in pattern.segments:
                times = at + item.start_s, at + item.end_s
                yield _Piece(item.stream, name, item.name, item.kind, *times, phase, layer)
            at += pattern.seconds


def _unit(pieces: Sequence[_Piece]) -> tuple[_Piece, ...]:
    whole = max((item.end_s for item in pieces), default=0.0) or 1.0
    return tuple(item._replace(start_s=item.start_s / whole, end_s=item.end_s / whole) for item in pieces)


def _join_pieces(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Compute of a step one class after the other, behind it what is exposed; overlapped traffic from the start."""
    totals: dict[tuple[str, str, str, int], float] = {}
    for item in pieces:
        key = item.stream, item.part, item.kind, item.phase
        totals[key] = totals.get(key, 0.0) + item.end_s - item.start_s
    made, at = [], 0.0
    for (stream, part, kind, phase), seconds in sorted(totals.items(), key=lambda entry: STREAMS.index(entry[0][0])):
        if kind != "overlapped":
            made.append(_Piece(stream, TOGETHER, part, kind, at, at + seconds, phase))
            at += seconds
    whole = max((item.end_s for item in pieces), default=at)
    taken = {item.stream: item.start_s for item in reversed(made)}
    reached: dict[str, float] = {}
    for (stream, part, kind, phase), seconds in totals.items():
        if kind == "overlapped":
            begin = reached.get(stream, 0.0)
            reached[stream] = min(begin + seconds, max(begin, taken.get(stream, whole)))
            made.append(_Piece(stream, TOGETHER, part, kind, begin, reached[stream], phase))
    return made


BEFORE = (
    SectionRole.EMBEDDING, SectionRole.VISION_ENDS, SectionRole.VISION, SectionRole.VISION_WINDOWED,
    SectionRole.AUDIO_ENDS, SectionRole.AUDIO, SectionRole.ENCODER_ENDS, SectionRole.ENCODER,
)  # fmt: skip


def _layers(given: Simulated) -> list[list[tuple[str, int, int]]]:
    """By virtual stage, its sections in the order they run: name, place among the distinct ones, layer."""
    keys, model = given.workload.keys, given.scenario.model
    place = {key: index for index, key in enumerate(keys)}
    found, layer = [], 0
    for counts, held in zip(given.workload.stages, given.scenario.placement, strict=True):
        left = {key: count for key, count in zip(keys, counts, strict=True) if count}
        first = [key for key in keys if key.role in BEFORE]
        made = [(str(key), place[key], NO_LAYER) for key in first for _ in range(left.pop(key, 0))]
        for _ in range(held):
            block = SectionKey(SectionRole.BLOCK, model.order[layer])
            block = block if left.get(block) else block._replace(rest=True)
            left[block] -= 1
            made.append((f"layer {layer}", place[block], layer))
            layer += 1
        behind = sorted(left, key=lambda key: key.role is SectionRole.HEAD)  # the head comes last
        made += [(str(key), place[key], NO_LAYER) for key in behind for _ in range(left[key])]
        found.append(made)
    return found


def _tails(given: Simulated, rank: int, columns: _Columns) -> None:
    run, process = given.run, f"stage {rank}"
    hidden = max((message.end_s for message in given.run.traffic if message.rank == rank), default=0.0)
    reduce = run.reduce[rank]
    reduce = StepInterval(max(reduce.start_s, min(hidden, reduce.end_s)), reduce.end_s)
    columns.add(process, "dp", ("gradients", "exposed"), reduce, StepPhase.BACKWARD)
    columns.add(process, "compute", ("optimizer", "optimizer"), run.optimizer[rank], StepPhase.OPTIMIZER)
    columns.add(process, "dp", ("weights", "exposed"), run.gather[rank], StepPhase.OPTIMIZER)
    end = given.run.makespan_s
    columns.add(
        process, "compute", ("waiting", "waiting"), StepInterval(end, end + given.workload.waiting_s), StepPhase.OTHER
    )


def _memory_counter(given: Simulated, rank: int, stage: StageMemory) -> Counter:
    """Bytes a rank holds: state, activations from a forward's start to the end of its last backward, and what the
    moment of the peak takes for a while; gradients throughout, or once they are whole where they do not stay."""
    kinds = stage.bytes_by_kind
    whole = stage.state["gradients"]
    early = kinds["gradients"] if stage.moment != "optimizer" else 0.0
    base = kinds["weights"] + kinds["optimizer"] + kinds["overhead"] + early
    changes = [
        *_activations(given, rank),
        *_passing(given.run, rank, stage),
        (given.run.reduce[rank].start_s, whole - early),
    ]
    changes.sort(key=lambda change: (change[0], change[1]))
    times = [0.0]
    values = [base]
    for time, group in groupby(changes, key=lambda change: change[0]):
        times.append(time)
        values.append(values[-1] + sum(size for _, size in group))
    held = np.maximum(values, 0.0)
    return Counter(process=f"stage {rank}", name="memory", times_ns=nanoseconds_of(times), values=held)


def _activations(given: Simulated, rank: int) -> Iterator[tuple[float, float]]:
    run = given.run
    saved = saved_by_stage(given.scenario, given.priced.program)
    for action, interval in _actions(run, rank):
        size = saved[run.table.placement[rank][action.chunk]]
        if action.phase is Phase.FORWARD:
            yield interval.start_s, size
        elif action.phase is not Phase.BACKWARD_INPUT:
            yield interval.end_s, -size


def _actions(run: PipelineRun, rank: int) -> Iterator[tuple[Action, StepInterval]]:
    """Every action of a rank with the interval of its step."""
    for step, interval in zip(run.table.rows[rank], run.steps[rank], strict=True):
        yield from ((action, interval) for action in actions_of(step))


def _passing(run: PipelineRun, rank: int, stage: StageMemory) -> Iterator[tuple[float, float]]:
    """What comes and goes: logits from a forward of the last stage to its backward, the rest during backwards."""
    kinds, table = stage.bytes_by_kind, run.table
    last = table.stages * table.chunks - 1
    loss = stage.moment == "loss" and last in table.placement[rank]
    many = table.microbatches if SCHEDULES[table.name].all_forwards_first and table.stages > 1 else 1
    for action, interval in _actions(run, rank):
        at_end = loss and table.placement[rank][action.chunk] == last
        backward = action.phase in (Phase.BACKWARD, Phase.BACKWARD_INPUT)
        if at_end and action.phase is not Phase.BACKWARD_WEIGHT:
            logits = kinds["logits"] / many
            yield (interval.end_s, -logits) if backward else (interval.start_s, logits)
        if backward and (at_end or not loss) and stage.moment != "optimizer":
            yield interval.start_s, kinds["workspace"] + kinds["buffers"]
            yield interval.end_s, -kinds["workspace"] - kinds["buffers"]
