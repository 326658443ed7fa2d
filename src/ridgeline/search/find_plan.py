"""Turn a scenario without a plan into the best plans there are: every way to split the work, priced and ranked.

space -> cells -> sweep       all plans, time and memory              vectorised
      -> kept                 the fastest, the frontier of time against memory, the best of every family
      -> predict              the fastest in full: breakdown, interval, reasons
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from ridgeline.core.errors import MissingNumber, Problem
from ridgeline.cost.calibration import Calibration
from ridgeline.plan.check import engine as known_engine
from ridgeline.plan.check import precision
from ridgeline.plan.scenario import Scenario
from ridgeline.search.degree_grid import DegreeGrid, priced_grids
from ridgeline.search.shortlist import BestByChoice, BestWithMoreMemory, Entry, Fastest, ParetoFront, first, least
from ridgeline.search.space import NO_PINS, Pins, Space, parts_of, space_of
from ridgeline.search.sweep import Chunk, chunks_of
from ridgeline.sim.memory.peak import capacity_of
from ridgeline.sim.predict import default_calibration, not_predictable, predict, unpublished
from ridgeline.sim.prediction import Prediction

SHORTLIST = 64  # plans kept by number while the space is swept
HEADROOM = 0.03  # share of a chip's memory kept free: peaks are predicted to a few per cent
ROOMIER = (1.25, 2.0)  # times the memory a chip has: what would be fastest then


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep found.

    considered, feasible   plans priced, and those among them that fit in memory
    best                   the fastest that fit, best first
    frontier               none is both faster and smaller than one of these; fastest first
    families               by axis, the best plan at each of its choices
    roomier                the fastest if a chip had so many times the memory
    nearest                the plan that comes closest to fitting, where none fits
    faster                 feasible plans faster than the time asked about
    complete               False where the sweep was stopped
    """

    considered: int
    feasible: int
    best: tuple[Entry, ...]
    frontier: tuple[Entry, ...]
    nearest: Entry | None
    faster: int
    complete: bool
    families: Mapping[str, tuple[Entry, ...]] = field(default_factory=lambda: MappingProxyType({}))
    roomier: Mapping[float, Entry] = field(default_factory=lambda: MappingProxyType({}))


Progress = Callable[[int, float], None]  # plans priced so far, step of the best among them


def _silent(priced: int, best_s: float) -> None:
    """Nobody watches."""


def swept(chunks: Iterable[Chunk], capacity: float, *, than_s: float = 0.0, progress: Progress = _silent) -> Swept:
    """The best of all chunks. An interrupt ends the sweep with what it has."""
    fastest, edge, families, roomier = (
        Fastest(SHORTLIST),
        ParetoFront(),
        BestByChoice(),
        BestWithMoreMemory(capacity, ROOMIER),
    )
    considered = feasible = faster = 0
    nearest: Entry | None = None
    complete = True
    try:
        for chunk in chunks:
            if not len(chunk.step_s):
                continue
            fits = chunk.peak_bytes <= capacity
            many = int(np.count_nonzero(fits))
            considered += len(fits)
            feasible += many
            roomier.add(chunk)
            if many:
                able = chunk if many == len(fits) else chunk.taken(np.flatnonzero(fits))
                faster += int(np.count_nonzero(able.step_s < than_s))
                fastest.add(able)
                edge.add(able)
                families.add(able)
            elif not feasible:
                nearest = _nearer(nearest, least(chunk, chunk.peak_bytes, chunk.step_s))
            progress(considered, fastest.best_s)
    except KeyboardInterrupt:
        complete = False
    return Swept(
        considered=considered,
        feasible=feasible,
        best=fastest.entries(),
        frontier=edge.entries(),
        nearest=None if feasible else nearest,
        faster=faster,
        complete=complete,
        families=families.entries(),
        roomier=roomier.entries(),
    )


def _nearer(one: Entry | None, other: Entry) -> Entry:
    """The plan that takes less memory; of equal ones the first in order."""
    if one is None or one.peak_bytes != other.peak_bytes:
        return other if one is None or other.peak_bytes < one.peak_bytes else one
    return first(one, other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The answer: plans in full, best first, and how it was found.

    capacity_bytes   of a chip, less the headroom: what a plan may take
    """

    scenario: Scenario
    pins: Pins
    space: Space
    swept: Swept
    plans: tuple[Prediction, ...]
    headroom: float
    capacity_bytes: float
    seconds: float
    cpu_seconds: float
    problems: tuple[Problem, ...] = ()


def find_plan(
    scenario: Scenario, pins: Pins = NO_PINS, *, most: int = 5, headroom: float = HEADROOM,
    calibration: Calibration | None = None, progress: Progress = _silent,
) -> Search:  # fmt: skip
    """The best plans for a scenario's model, system and workload.

    pins       the choices left along an axis; the others take all that the engine supports
    headroom   share of a chip's memory that a plan must leave free

    Of the scenario's own plan the engine, the precision and the switches are kept; the rest is searched.

    >>> from ridgeline.plan.scenario_file import assemble
    >>> table = {"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 8192, "global_batch": 64}}
    >>> found = find_plan(assemble(table)[0])
    >>> found.swept.feasible > 0 and found.plans[0].fits
    True
    """
    used = calibration or default_calibration()
    wall, cpu = time.perf_counter(), time.process_time()
    space = space_of(scenario, pins)
    problems = tuple(_problems(scenario, space))
    capacity, found = 0.0, NOTHING
    try:
        if not problems:
            capacity = capacity_of(scenario) * (1 - headroom)
            chunks = offered(priced_grids(placed(scenario, pins), space, used), scenario, space, pins)
            found = swept(chunks, capacity, than_s=_own_step(scenario, used), progress=progress)
    except MissingNumber as missing:
        problems = (unpublished(missing),)
    return Search(
        scenario=scenario,
        pins=pins,
        space=space,
        swept=found,
        plans=predicted(scenario, distinct(found.best)[:most], used),
        headroom=headroom,
        capacity_bytes=capacity,
        seconds=time.perf_counter() - wall,
        cpu_seconds=time.process_time() - cpu,
        problems=problems,
    )


NOTHING = Swept(considered=0, feasible=0, best=(), frontier=(), nearest=None, faster=0, complete=True)


def _problems(scenario: Scenario, space: Space) -> Iterator[Problem]:
    """What no plan of the space can mend: an unknown engine, a format the chip does not have."""
    yield from known_engine(scenario)
    for choice in space.precision:
        asked = replace(scenario, plan=replace(scenario.plan, precision=choice))
        yield from dict.fromkeys((*precision(asked), *not_predictable(asked)))


def placed(scenario: Scenario, pins: Pins) -> Scenario:
    """The scenario with its layers placed as pinned, or else as evenly as they go."""
    (placement,) = pins.get("placement", ((),))
    return replace(scenario, plan=replace(scenario.plan, placement=placement))


def offered(cells: Iterable[DegreeGrid], scenario: Scenario, space: Space, pins: Pins = NO_PINS) -> Iterator[Chunk]:
    """The plans of a space that the engine is known to run, of the dp that is pinned.

    zero2 with several microbatches keeps its gradients whole until the last one, which is zero1, or reduces them after
    each, which is not what zero2 is priced as: where the engine has zero1, that stands for it unless zero2 is pinned.
    """
    parts = parts_of(scenario, space, pins)
    whole = "zero1" in space.shard and "shard" not in pins
    for group in cells:
        for part in parts:
            for chunk in chunks_of([group], part):
                mine = np.isin(chunk.dp, pins["dp"]) if "dp" in pins else np.ones(len(chunk.dp), dtype=np.bool_)
                if whole and chunk.shard == "zero2":
                    mine &= chunk.dp * chunk.microbatch >= scenario.workload.sequences
                yield chunk if mine.all() else chunk.taken(np.flatnonzero(mine))


def _own_step(scenario: Scenario, calibration: Calibration) -> float:
    """Seconds of the scenario's own plan, so that faster ones can be counted; 0 where it cannot run."""
    own = predict(scenario, calibration)
    return own.step_time_s if isinstance(own, Prediction) else 0.0


def distinct(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """The entries without those that take the same time and memory as an earlier one: a switch without effect."""
    return tuple({(entry.step_s, entry.peak_bytes): entry for entry in reversed(tuple(entries))}.values())[::-1]


def predicted(
    scenario: Scenario, entries: Iterable[Entry], calibration: Calibration | None = None
) -> tuple[Prediction, ...]:
    """Plans in full."""
    made = (predict(replace(scenario, plan=entry.plan), calibration) for entry in entries)
    return tuple(prediction for prediction in made if isinstance(prediction, Prediction))
