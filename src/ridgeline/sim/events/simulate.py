"""Turn a scenario into one step, event by event, and that into a Timeline.

    passes      what every section does on which stream            patterns    the same in time, each once
    contention  the schedule's table, executed with patterns, sends and exchanges that share links

Cost grows with distinct sections and with actions of the table, not with layers: a virtual stage is so many times the
pattern of each of its sections.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ridgeline.core.errors import MissingNumber, Problem
from ridgeline.core.records import dataclass
from ridgeline.cost import Calibration
from ridgeline.cost.pricing import PHASES
from ridgeline.plan.check import check
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import Phase, ScheduleTable, build
from ridgeline.sim.closed_form.stage_times import StageTimes
from ridgeline.sim.events.event_loop import BUCKETS, SharedWork, StepRun, run_shared
from ridgeline.sim.events.overlap_fluid import PassMix, PassTimelines
from ridgeline.sim.events.pipeline_run import Slowdown, StageWork
from ridgeline.sim.events.stream_work import (
    AGAIN,
    FORWARD,
    INPUT,
    WEIGHT,
    Exchange,
    PassWork,
    StepWork,
    step_work,
)
from ridgeline.sim.events.to_timeline import Drawn, draw
from ridgeline.sim.memory.peak import peak_memory
from ridgeline.sim.predict_step import (
    Priced,
    default_calibration,
    missing_number_problem,
    not_predictable,
    price,
    unbelievable,
)
from ridgeline.sim.prediction import Impossible
from ridgeline.trace import Timeline

Stretch = tuple[float, float, float]  # of forward, input gradient and weight gradient
LARGEST = 200_000  # actions of a table that is still worth simulating
SLOTS = {
    Phase.FORWARD: (FORWARD,),
    Phase.BACKWARD: (AGAIN, INPUT, WEIGHT),
    Phase.BACKWARD_INPUT: (AGAIN, INPUT),
    Phase.BACKWARD_WEIGHT: (WEIGHT,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """One step of a scenario as it was executed: what the ranks had to do, and what happened."""

    scenario: Scenario
    priced: Priced
    workload: StepWork
    shared: SharedWork
    run: StepRun

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
    >>> [len(row) for row in found.run.pipeline.steps]      # 8 microbatches x 5 chunks x forward and backward
    [80, 80]
    """
    reasons = (*check(scenario), *not_predictable(scenario), *_too_large(scenario))
    if reasons:
        return Impossible(scenario=scenario, reasons=reasons)
    try:
        priced = price(scenario, calibration or default_calibration())
    except MissingNumber as missing:
        return Impossible(scenario=scenario, reasons=(missing_number_problem(missing),))
    wrong = unbelievable(priced.steps)
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
    try:
        memory = peak_memory(scenario, found.priced.program)
    except MissingNumber as missing:
        return Impossible(scenario=scenario, reasons=(missing_number_problem(missing),))
    given = Drawn(
        scenario=scenario, program=found.priced.program, workload=found.workload, run=found.run, memory=memory,
        slots=SLOTS,
    )  # fmt: skip
    return draw(given)


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
