"""Turn a scenario into the Timeline of one step: its schedule executed event by event with the predicted times.

    process    a pipeline stage (one of its ranks; the others of the stage do the same at the same time)
    streams    compute, then exposed communication by axis: tp, cp, ep, shard, pp, dp
    counter    bytes held, from the memory model

Every virtual stage gets the seconds its sections are priced at, scaled by class so that the rank that paces the step
spends what the prediction says. Inside a step the exposed communication of each axis is drawn behind the compute: the
order within a layer is not simulated. What is hidden behind compute is not drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.errors import MissingNumber, Problem
from ridgeline.cost.collectives import SEND, collective_seconds
from ridgeline.cost.parameters import Calibration
from ridgeline.plan.check import check
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import Action, Phase, ScheduleTable, Step, actions_of, build
from ridgeline.sim.batch import AXES
from ridgeline.sim.lines import held_by_rank
from ridgeline.sim.memory import Memory, kept_by_stage, memory_of
from ridgeline.sim.pipeline import PipelineRun, Slowdown, StageWork, Tail, run_events
from ridgeline.sim.predict import Priced, default_calibration, not_predictable, price, unbelievable, unpublished
from ridgeline.sim.prediction import Impossible
from ridgeline.sim.step import CLASSES, price_slots
from ridgeline.trace import Counter, Span, Timeline

Array = NDArray[np.float64]
STREAMS = ("compute", *AXES, "shard", "pp", "dp")
LARGEST = 400_000  # actions of a table that is still worth drawing


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Seconds of one microbatch by virtual stage, phase (forward, backward input, backward weight) and class."""

    seconds: Array
    send_s: float
    send_blocks: bool
    tail: Tail
    waiting_s: float

    def stages(self) -> list[StageWork]:
        """The work of each virtual stage as the event simulation takes it."""
        return [
            StageWork(
                forward_s=float(forward), backward_input_s=float(inputs), backward_weight_s=float(weights),
                send_s=self.send_s,
            )
            for forward, inputs, weights in self.seconds.sum(2)
        ]  # fmt: skip


def timeline(
    scenario: Scenario, calibration: Calibration | None = None, *, slow: Slowdown | None = None
) -> Timeline | Impossible:
    """The timeline of one predicted step, or the reasons why there is none; `slow` makes ranks or links slower."""
    reasons = (*check(scenario), *not_predictable(scenario), *_too_large(scenario))
    if reasons:
        return Impossible(scenario=scenario, reasons=reasons)
    try:
        priced = price(scenario, calibration or default_calibration())
        memory = memory_of(scenario, priced.program)
    except MissingNumber as missing:
        return Impossible(scenario=scenario, reasons=(unpublished(missing),))
    wrong = unbelievable(priced.steps)
    if wrong:
        return Impossible(scenario=scenario, reasons=wrong)
    work, table = work_of(scenario, priced), _table(scenario)
    run = run_events(table, work.stages(), send_blocks=work.send_blocks, slow=slow, tail=work.tail)
    spans = [span for rank in range(table.stages) for span in _spans(run, work, rank)]
    counters = [_held(scenario, priced, memory, run, rank) for rank in range(table.stages)]
    return Timeline.of(spans, counters, streams=STREAMS)


def _too_large(scenario: Scenario) -> Iterator[Problem]:
    actions = 2 * scenario.plan.virtual_stages * scenario.microbatches
    if actions > LARGEST:
        given = f"{scenario.plan.virtual_stages} virtual stages x {scenario.microbatches} microbatches"
        todo = "draw a smaller global batch; the steady state looks the same"
        yield Problem(path="plan.microbatch", given=given, expected=f"at most {LARGEST:,} actions", todo=todo)


def _table(scenario: Scenario) -> ScheduleTable:
    plan, many = scenario.plan, scenario.microbatches
    if plan.mesh.pp == 1:
        return build("1f1b", stages=1, microbatches=many)
    return build(plan.schedule.name, stages=plan.mesh.pp, microbatches=many, chunks=plan.schedule.chunks)


def work_of(scenario: Scenario, priced: Priced) -> Work:
    """Seconds by virtual stage, scaled so that the pacing rank's classes are those of the predicted step."""
    parts = {name: float(seconds[0]) for name, seconds in priced.steps.parts.items()}
    parts["shard"] += parts["host"]  # one track for what travels beside compute
    names = (*CLASSES, "shard")
    sections = price_slots(priced.batch, priced.rows)[0]
    counts = np.array(priced.program.stages, dtype=np.float64)
    phases = np.stack([sections[:, 0], sections[:, 1] + sections[:, 3], sections[:, 2]], axis=1)
    raw = np.einsum("vs,spc->vpc", counts, phases)
    raw = np.concatenate([raw, raw.sum(2, keepdims=True)], axis=2)  # shard follows the work it stands beside
    placement = held_by_rank(scenario.plan.mesh.pp, scenario.plan.schedule.chunks, scenario.plan.schedule.name)
    by_rank = np.array([raw[list(held)].sum((0, 1)) for held in placement])
    pace = by_rank[int(by_rank[:, :-1].sum(1).argmax())]
    wanted = np.array([parts.get(name, 0.0) for name in names]) / scenario.microbatches
    spread = raw[:, :, -1:] / pace[-1] * np.where(pace > 0, 0.0, wanted)
    seconds = raw * np.where(pace > 0, wanted / np.where(pace > 0, pace, 1.0), 0.0) + spread
    runs, ranks = priced.runs, scenario.plan.mesh.pp
    send = collective_seconds(SEND, runs.boundary_bytes, runs.pp, runs.tp * runs.replicas, priced.rows.links)
    return Work(
        seconds=seconds,
        send_s=float(send[0]) if ranks > 1 else 0.0,
        send_blocks=not runs.overlap_pp[0],
        tail=Tail(reduce_s=[parts.get("dp", 0.0)] * ranks, optimizer_s=[parts.get("optimizer", 0.0)] * ranks),
        waiting_s=parts.get("waiting", 0.0),
    )


def _spans(run: PipelineRun, work: Work, rank: int) -> Iterator[Span]:
    """What one pipeline stage does, on its streams."""
    process = f"stage {rank}"
    shares = _shares(run.table, work, rank)
    for step, interval in zip(run.table.rows[rank], run.steps[rank], strict=True):
        kind = "-".join(action.phase.name.lower().replace("_", "-") for action in actions_of(step))
        at = interval.start_s
        for stream, share in shares[_key(step)]:
            length = share * interval.duration_s
            if length > 0:
                yield Span(process=process, stream=stream, name=str(step), kind=kind, start_s=at, duration_s=length)
            at += length
    for send in run.sends:
        if send.sender == rank:
            name = f"{send.action} to stage {send.receiver}"
            yield Span(
                process=process, stream="pp", name=name, kind="send", start_s=send.start_s,
                duration_s=send.end_s - send.start_s,
            )  # fmt: skip
    reduce, optimizer = run.reduce[rank], run.optimizer[rank]
    tail = (("dp", "reduce", reduce), ("compute", "optimizer", optimizer))
    for stream, name, interval in tail:
        if interval.duration_s > 0:
            yield Span(
                process=process, stream=stream, name=name, kind=name, start_s=interval.start_s,
                duration_s=interval.duration_s,
            )  # fmt: skip
    if work.waiting_s > 0:
        yield Span(
            process=process, stream="compute", name="waiting", kind="waiting", start_s=optimizer.end_s,
            duration_s=work.waiting_s,
        )  # fmt: skip


StepKey = tuple[tuple[Phase, int], ...]


def _key(step: Step) -> StepKey:
    return tuple((action.phase, action.chunk) for action in actions_of(step))


def _shares(table: ScheduleTable, work: Work, rank: int) -> Mapping[StepKey, Sequence[tuple[str, float]]]:
    """For each kind of step of a rank, the share of its time that each stream takes, in the order drawn."""
    found: dict[StepKey, Sequence[tuple[str, float]]] = {}
    for step in table.rows[rank]:
        if _key(step) in found:
            continue
        total = np.sum([_classes(table, work, rank, action) for action in actions_of(step)], axis=0)
        whole = float(np.sum(total)) or 1.0
        compute = float(np.sum(total[: len(CLASSES) - len(AXES)])) / whole
        rest = [(axis, float(total[len(CLASSES) - len(AXES) + place]) / whole) for place, axis in enumerate(AXES)]
        found[_key(step)] = (("compute", compute), *rest, ("shard", float(total[-1]) / whole))
    return found


def _classes(table: ScheduleTable, work: Work, rank: int, action: Action) -> Array:
    """Seconds by class of one action."""
    phases = {
        Phase.FORWARD: slice(0, 1),
        Phase.BACKWARD: slice(1, 3),
        Phase.BACKWARD_INPUT: slice(1, 2),
        Phase.BACKWARD_WEIGHT: slice(2, 3),
    }
    stage = table.placement[rank][action.chunk]
    return np.asarray(work.seconds[stage, phases[action.phase]].sum(0), dtype=np.float64)


def _held(scenario: Scenario, priced: Priced, memory: Memory, run: PipelineRun, rank: int) -> Counter:
    """Bytes a stage holds: state throughout, activations from a forward's start to the end of its last backward."""
    kept = kept_by_stage(scenario, priced.program)
    stage = memory.stages[rank]
    flying = stage.bytes_by_kind["activations"] + stage.bytes_by_kind["logits"] + stage.bytes_by_kind["workspace"]
    base = stage.peak_bytes - flying
    changes: list[tuple[float, float]] = []
    for step, interval in zip(run.table.rows[rank], run.steps[rank], strict=True):
        for action in actions_of(step):
            size = kept[run.table.placement[rank][action.chunk]]
            if action.phase is Phase.FORWARD:
                changes.append((interval.start_s, size))
            elif action.phase is not Phase.BACKWARD_INPUT:
                changes.append((interval.end_s, -size))
    changes.sort(key=lambda change: (change[0], change[1]))
    times = np.array([0.0, *(time for time, _ in changes)])
    values = base + np.cumsum(np.array([0.0, *(size for _, size in changes)]))
    return Counter(process=f"stage {rank}", name="memory", times_s=times, values=np.maximum(values, 0.0))
