"""Turn a scenario and its step time into goodput: the share of wall time that trains, and so the days a run takes.

    days = tokens / (tokens/s * useful share)

The share follows from failures, checkpoint and restart times of published runs (`reliability.toml`) by an exact formula
(`interruptions`), at the best interval between checkpoints. Not counted: slow nodes and silent corruption (a step
predicted for a healthy machine is taken for every step), planned stops, loss spikes that send a run back by choice,
queueing before the start.

    chip mtbf = chips * period / interruptions        job mtbf = chip mtbf / chips of the job

A job stops when any of its chips does, or what hangs on it: host, cable, software. Runs count different things:
`faults` are unexpected stops, `all` adds planned and manual ones, `nodes` are machines that failed whether or not a job
ran there. One cluster's jobs of 1024 chips end 3.7 times as often as its node failures explain. So the figure of a
family is the geometric mean of its runs, and the spread is part of the answer. The rate is taken as steady; machines in
their first weeks, and machines nobody screened, fail more often.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from ridgeline.core.errors import Problem
from ridgeline.core.evidence import Dissent, Evidence, Quoted, weakest
from ridgeline.core.records import dataclass
from ridgeline.core.table import AtLeast, Count, Doc, QuantityUnit, QuotedBytesPerS, QuotedCount, QuotedSeconds, decode
from ridgeline.core.units import format_quantity, parse_quantity
from ridgeline.hardware.system import System
from ridgeline.ir.ops import Num
from ridgeline.lowering.program import lower
from ridgeline.models.params import count
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.search.interruptions import Interruptions, Shares, best_interval, failures_per_s, shares, useful_share

SHIPPED = Path(__file__).parent / "reliability.toml"
DAY = parse_quantity("1 d", "s")
ENOUGH = 3  # runs of a family from which its own spread is believed


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityRun:
    """One published run or rate: in `period` seconds, `chips` chips saw that many interruptions."""

    id: str
    family: str
    chips: Count
    period: Annotated[float, QuantityUnit("s")]
    interruptions: Annotated[float, AtLeast(0)]
    counts: Literal["faults", "all", "nodes"]
    evidence: Evidence
    source: str
    pooled: bool = False
    note: str = ""

    @property
    def chip_mtbf_s(self) -> float:
        """Chip-seconds per interruption."""
        return self.chips * self.period / self.interruptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """From a failure to running again: `schedule` holds at `chips` chips and below, and grows with every doubling."""

    chips: Count
    detect: QuotedSeconds
    schedule: QuotedSeconds
    per_doubling: QuotedSeconds

    def schedule_s(self, chips: Num) -> Num:
        """Seconds until machines are there.

        >>> [round(float(published_figures().recovery["requeue"].schedule_s(chips))) for chips in (64, 2048, 16384)]
        [454, 454, 768]
        """
        doublings = np.log2(np.maximum(np.asarray(chips, dtype=np.float64) / self.chips, 1.0))
        return self.schedule.value + self.per_doubling.value * doublings


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Checkpoints: bytes/s a node and the whole storage take, the share that blocks, a load over a save in time."""

    node: QuotedBytesPerS
    system: QuotedBytesPerS
    blocking: QuotedCount
    load_per_save: QuotedCount


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """All of the evidence."""

    run: tuple[ReliabilityRun, ...]
    recovery: Mapping[str, Recovery]
    checkpoint: Saving


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipMtbf:
    """Mean chip-seconds between interruptions, with the shortest and longest that published runs show."""

    figure: Quoted
    low_s: float
    high_s: float


@cache
def published_figures() -> Published:
    """The evidence that ships with Ridgeline."""
    with SHIPPED.open("rb") as stream:
        return decode(Published, tomllib.load(stream))


def chip_mtbf(family: str) -> ChipMtbf:
    """How long a chip of a family goes without stopping its job; of all families where none of its runs is published.

    >>> hopper = chip_mtbf("hopper")
    >>> [round(seconds / DAY) for seconds in (hopper.figure.value, hopper.low_s, hopper.high_s)]
    [2411, 937, 5574]
    >>> chip_mtbf("cdna3").figure.evidence.label
    'assumed'
    """
    runs = published_figures().run
    catalog_entry = [run for run in runs if family and run.family == family]
    pooled = [run for run in catalog_entry if run.pooled]
    share_of_all = catalog_entry if len(catalog_entry) >= ENOUGH else runs
    if not pooled:
        pooled = [run for run in runs if run.pooled and run.evidence > Evidence.ASSUMED]
    value = _geometric_mean([run.chip_mtbf_s for run in pooled])
    names = ", ".join(run.id for run in pooled)
    grade = min(Evidence.ANALYTIC, *(run.evidence for run in pooled)) if catalog_entry else Evidence.ASSUMED
    whose = f"of {family}" if catalog_entry else f"of all families: none published for {family or 'this chip'}"
    many = f"geometric mean of {len(pooled)} runs" if len(pooled) > 1 else "one run"
    note = f"{many} {whose}"
    alternatives = tuple(
        Dissent(value=run.chip_mtbf_s, source=run.source, note=f"{run.id}, {run.counts}") for run in catalog_entry
    )
    seen = [run.chip_mtbf_s for run in share_of_all]
    figure = Quoted(value=value, evidence=grade, source=names, note=note, conflicts=alternatives)
    return ChipMtbf(figure=figure, low_s=min(seen), high_s=max(seen))


def _geometric_mean(values: Sequence[float]) -> float:
    """Runs differ by factors, not by amounts, and far more than their counts explain: each has one vote."""
    return math.exp(sum(map(math.log, values)) / len(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOperation:
    """How a run is kept going; what is absent is taken from published runs.

    recovery   requeue: a stopped job waits for machines and starts anew; spares: processes stay and warm spares step in
    blocking   share of saving during which training stands still: 1 for a synchronous checkpoint
    restart    from the begin of a restart to training again, loading included
    interval   of work between checkpoints, at least a step and the writing beside it; absent: the best
    """

    chip_mtbf: Annotated[QuotedSeconds | None, Doc("chip-seconds between interruptions of a job")] = None
    recovery: Annotated[Literal["requeue", "spares"], Doc("how a stopped job gets machines")] = "requeue"
    detect: Annotated[QuotedSeconds | None, Doc("from a failure to the begin of a restart")] = None
    restart: Annotated[QuotedSeconds | None, Doc("from there to training again")] = None
    storage: Annotated[QuotedBytesPerS | None, Doc("bytes/s all nodes together write to storage")] = None
    blocking: Annotated[QuotedCount | None, Doc("share of saving that stops training")] = None
    interval: Annotated[QuotedSeconds | None, Doc("work between checkpoints")] = None

    def problems(self) -> Iterable[Problem]:
        if self.blocking is not None and self.blocking.value > 1:
            yield Problem(path="blocking", given=f"{self.blocking.value:g}", expected="a share between 0 and 1")
        for key in ("chip_mtbf", "storage", "interval"):
            number: Quoted | None = getattr(self, key)
            if number is not None and number.value <= 0:
                yield Problem(path=key, given=f"{number.value:g}", expected="a number above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """What becomes of a run's wall time.

    low, high         the useful share at the shortest and longest time between failures that published runs show
    interval_s        work between checkpoints
    failures_per_day  expected, in a day of wall time
    """

    useful: float
    low: float
    high: float
    shares: Shares
    interval_s: float
    failures_per_day: float
    chip_mtbf: ChipMtbf
    checkpoint_bytes: float
    interruptions: Interruptions
    evidence: Evidence
    assumptions: tuple[str, ...] = ()


def goodput(scenario: Scenario, step_time_s: float, operation: ClusterOperation | None = None) -> Goodput:
    """What becomes of the wall time of a long run of this scenario.

    >>> from ridgeline.plan.scenario_file import read_scenario
    >>> found = goodput(read_scenario("examples/llama3-70b-64xh100.toml"), step_time_s=77.0)
    >>> found.useful > 0.99, round(found.failures_per_day, 3)
    (True, 0.027)
    """
    operation = operation or ClusterOperation()
    size, family = checkpoint_bytes(scenario), chip_mtbf(scenario.system.chip.family)
    if operation.chip_mtbf is not None:
        got = operation.chip_mtbf
        family = ChipMtbf(figure=got, low_s=got.value, high_s=got.value)
    what = interruptions_of(scenario.system, operation, scenario.system.chips, size, step_time_s)
    interval = _interval(what, operation)
    parts = shares(what, interval)
    ends = [replace(what, mtbf_s=seconds / scenario.system.chips) for seconds in (family.low_s, family.high_s)]
    low, high = (float(useful_share(end, _interval(end, operation))) for end in ends)
    return Goodput(
        useful=float(parts.useful),
        low=low,
        high=high,
        shares=parts,
        interval_s=interval,
        failures_per_day=float(failures_per_s(what)) * DAY,
        chip_mtbf=family,
        checkpoint_bytes=size,
        interruptions=what,
        evidence=weakest(number.evidence for number in _rests_on(family, operation)),
        assumptions=tuple(_goodput_assumptions(scenario, family, operation, what)),
    )


def days_to_train(tokens: Num, tokens_per_s: Num, useful: Num = 1.0) -> Num:
    """Days of wall time for so many tokens at a speed between failures; infinite when nothing useful gets done.

        days = tokens / (tokens/s * useful) / 86400

    >>> round(float(days_to_train(2e12, 845 * 1024, 0.97)), 1)
    27.6
    """
    speed = np.asarray(tokens_per_s, dtype=np.float64) * useful
    result = np.where(speed > 0, np.asarray(tokens, dtype=np.float64) / np.where(speed > 0, speed, 1.0) / DAY, np.inf)
    return float(result) if result.ndim == 0 else result


def checkpoint_bytes(scenario: Scenario) -> float:
    """Bytes of one checkpoint: weights as stored and optimizer states, one copy whatever the sharding.

        parameters * (weight + states + master)        bf16 with Adam in fp32: 2 + 8 + 4 = 14 bytes

    Adapters are saved without the frozen weights. Data positions and random states are not counted.

    >>> from ridgeline.plan.scenario_file import read_scenario
    >>> round(checkpoint_bytes(read_scenario("examples/llama3-70b-64xh100.toml")) / 1e9)
    988
    """
    work, plan = scenario.workload, scenario.plan
    share = plan.precision.weights.bytes_per_element
    if not isinstance(work, Train):
        return count(scenario.model).total * share
    share += work.optimizer.bytes_per_param
    if work.task != "lora":
        return count(scenario.model).total_with_mtp * share
    program = lower(scenario)
    adapters = sum(
        count * float(section.trained)
        for stage in program.stages
        for section, count in zip(program.sections, stage, strict=True)
    )
    return adapters * plan.mesh.tp * share


def interruptions_of(
    system: System, operation: ClusterOperation, chips: Num, checkpoint_bytes: Num, step_time_s: Num
) -> Interruptions:
    """What stops a run on so many of a system's chips; numbers, or arrays over plans and sizes.

    job mtbf = chip mtbf / chips        save = bytes / min(nodes * rate of a node, rate of the storage)
    block = blocking * save             restart = schedule(chips) + load per save * save
    """
    catalog_entry, recovery = published_figures(), _recovery(operation)
    share = operation.chip_mtbf or chip_mtbf(system.chip.family).figure
    nodes = np.ceil(np.asarray(chips, dtype=np.float64) / system.node)
    if operation.storage is not None:
        save = np.asarray(checkpoint_bytes) / operation.storage.value
    else:
        rate = np.minimum(nodes * catalog_entry.checkpoint.node.value, catalog_entry.checkpoint.system.value)
        save = np.asarray(checkpoint_bytes) / rate
    blocking = (operation.blocking or catalog_entry.checkpoint.blocking).value
    loading = save * catalog_entry.checkpoint.load_per_save.value
    restart = operation.restart.value if operation.restart else recovery.schedule_s(chips) + loading
    return Interruptions(
        mtbf_s=share.value / np.asarray(chips, dtype=np.float64),
        block_s=save * blocking,
        write_s=save * (1 - blocking),
        detect_s=(operation.detect or recovery.detect).value,
        restart_s=restart,
        shortest_s=step_time_s,
    )


def _interval(what: Interruptions, operation: ClusterOperation) -> float:
    """Work between checkpoints: the best, or what was asked for as far as steps and writing allow."""
    if operation.interval is None:
        return float(best_interval(what))
    return max(operation.interval.value, float(what.write_s), float(what.shortest_s))


def _recovery(operation: ClusterOperation) -> Recovery:
    return published_figures().recovery[operation.recovery]


def _rests_on(family: ChipMtbf, operation: ClusterOperation) -> Iterable[Quoted]:
    catalog_entry, recovery = published_figures().checkpoint, _recovery(operation)
    yield family.figure
    yield operation.blocking or catalog_entry.blocking
    yield operation.detect or recovery.detect
    yield from (operation.storage,) if operation.storage else (catalog_entry.node, catalog_entry.system)
    yield from (operation.restart,) if operation.restart else (recovery.schedule, recovery.per_doubling)


def _goodput_assumptions(
    scenario: Scenario, family: ChipMtbf, operation: ClusterOperation, what: Interruptions
) -> Iterable[str]:
    """What had to be assumed, a line each; what the caller gave is not."""
    days = [f"{seconds / DAY:.0f}" for seconds in (family.figure.value, family.low_s, family.high_s)]
    if operation.chip_mtbf is None:
        yield f"failures: one in {days[0]} chip-days, {days[1]} to {days[2]} published; {family.figure.note}"
    saving = what.block_s + what.write_s
    if operation.storage is None:
        yield f"checkpoint: written by all nodes in {format_quantity(float(saving), 's', 3)}"
    if operation.blocking is None:
        blocking = published_figures().checkpoint.blocking.value
        yield f"checkpoint: {blocking:.1%} of it stops training, the rest runs beside it"
    if operation.restart is None:
        seconds = float(what.restart_s)
        yield f"restart: {operation.recovery}, {format_quantity(seconds, 's', 3)} loading included"
    if operation.detect is None:
        yield f"restart: a failure is noticed after {format_quantity(float(what.detect_s), 's', 3)}"
    if isinstance(scenario.workload, Train):
        yield "goodput: slow nodes, planned stops and returns to an older checkpoint by choice not counted"
