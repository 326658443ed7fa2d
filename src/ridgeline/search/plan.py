"""Turn a scenario without a plan into the best plans there are: every way to split the work, priced and ranked.

space -> cells -> sweep       all plans, time and memory              vectorised
      -> shortlist            the best by the objective, and the frontier of time against memory
      -> predict              the shortlist in full: breakdown, interval, reasons
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.errors import Problem
from ridgeline.cost.parameters import Calibration
from ridgeline.plan.plan import Plan
from ridgeline.plan.scenario import Scenario
from ridgeline.search.cells import priced_cells
from ridgeline.search.space import NO_PINS, Pins, Space, space_of
from ridgeline.search.sweep import Chunk, chunks_of
from ridgeline.sim.memory import capacity_of
from ridgeline.sim.predict import default_calibration, not_predictable, predict
from ridgeline.sim.prediction import Prediction

Array = NDArray[np.float64]
Objective = Literal["time", "memory"]
SHORTLIST = 64  # plans kept by number while the space is swept


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A plan the sweep priced: its step and the peak of its fullest rank."""

    plan: Plan
    step_s: float
    peak_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep found.

    considered, feasible   plans priced, and those among them that fit in memory
    best                   the fastest that fit, best first
    frontier               none is both faster and smaller than one of these; fastest first
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


Progress = Callable[[int, float], None]  # plans priced so far, step of the best among them


def _silent(priced: int, best_s: float) -> None:
    """Nobody watches."""


def swept(chunks: Iterator[Chunk], capacity: float, *, than_s: float = 0.0, progress: Progress = _silent) -> Swept:
    """The best of all chunks. An interrupt ends the sweep with what it has."""
    kept, front = _Kept(), _Kept()
    considered = feasible = faster = 0
    nearest: tuple[float, Entry] | None = None
    complete = True
    try:
        for chunk in chunks:
            fits = np.flatnonzero(chunk.peak_bytes <= capacity)
            considered += len(chunk.step_s)
            feasible += len(fits)
            faster += int((chunk.step_s[fits] < than_s).sum())
            if len(fits):
                kept.add(chunk, fits[np.argsort(chunk.step_s[fits], kind="stable")[:SHORTLIST]])
                front.add(chunk, fits[_front(chunk.step_s[fits], chunk.peak_bytes[fits])])
                kept.prune(SHORTLIST)
                front.settle()
            elif not feasible:
                place = int(chunk.peak_bytes.argmin())
                if nearest is None or chunk.peak_bytes[place] < nearest[0]:
                    nearest = (float(chunk.peak_bytes[place]), _entry(chunk, place))
            progress(considered, kept.best_s)
    except KeyboardInterrupt:
        complete = False
    return Swept(
        considered=considered,
        feasible=feasible,
        best=kept.entries(),
        frontier=front.entries(),
        nearest=None if feasible or nearest is None else nearest[1],
        faster=faster,
        complete=complete,
    )


class _Kept:
    """Plans worth keeping while the space is swept, by chunk and place in it."""

    def __init__(self) -> None:
        self._from: list[tuple[Chunk, int]] = []
        self._step = np.zeros(0)
        self._peak = np.zeros(0)

    @property
    def best_s(self) -> float:
        """The fastest step so far."""
        return float(self._step.min()) if len(self._step) else float("inf")

    def add(self, chunk: Chunk, places: NDArray[np.int64]) -> None:
        """Some plans of a chunk."""
        self._from += [(chunk, int(place)) for place in places]
        self._step = np.concatenate([self._step, chunk.step_s[places]])
        self._peak = np.concatenate([self._peak, chunk.peak_bytes[places]])

    def prune(self, most: int) -> None:
        """Keep the fastest; of equal ones those found first."""
        if len(self._step) > 8 * most:
            self._take(np.argsort(self._step, kind="stable")[:most])

    def settle(self) -> None:
        """Keep those that no other beats in both time and memory."""
        self._take(_front(self._step, self._peak))

    def _take(self, places: NDArray[np.int64]) -> None:
        self._from = [self._from[place] for place in places]
        self._step, self._peak = self._step[places], self._peak[places]

    def entries(self) -> tuple[Entry, ...]:
        """What is kept, fastest first."""
        order = np.lexsort((self._peak, self._step))[:SHORTLIST]
        return tuple(_entry(*self._from[place]) for place in order)


def _front(step: Array, peak: Array) -> NDArray[np.int64]:
    """Places of plans that no other beats in both.

    >>> _front(np.array([1.0, 2.0, 3.0]), np.array([5.0, 6.0, 4.0]))
    array([0, 2])
    """
    order = np.lexsort((peak, step))
    least = np.minimum.accumulate(peak[order])
    first = np.concatenate([[True], peak[order][1:] < least[:-1]])
    return np.asarray(order[first])


def _entry(chunk: Chunk, place: int) -> Entry:
    return Entry(plan=chunk.plan(place), step_s=float(chunk.step_s[place]), peak_bytes=float(chunk.peak_bytes[place]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The answer: plans in full, best first, and how it was found."""

    scenario: Scenario
    space: Space
    swept: Swept
    plans: tuple[Prediction, ...]
    seconds: float
    cpu_seconds: float
    problems: tuple[Problem, ...] = ()


def find_plan(
    scenario: Scenario, pins: Pins = NO_PINS, *, most: int = 5, calibration: Calibration | None = None,
    progress: Progress = _silent,
) -> Search:  # fmt: skip
    """The best plans for a scenario's model, system and workload; what its plan pins is kept by `pins`.

    >>> from ridgeline.plan.scenario_file import assemble
    >>> table = {"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 8192, "global_batch": 64}}
    >>> found = find_plan(assemble(table)[0])
    >>> found.swept.feasible > 0 and found.plans[0].fits
    True
    """
    used = calibration or default_calibration()
    wall, cpu = time.perf_counter(), time.process_time()
    problems = tuple(not_predictable(scenario))
    space = space_of(scenario, pins)
    chunks = chunks_of(priced_cells(scenario, space, used), space) if not problems else iter(())
    found = swept(chunks, capacity_of(scenario), progress=progress)
    plans = _predicted(scenario, found.best[:most], used)
    return Search(
        scenario=scenario,
        space=space,
        swept=found,
        plans=plans,
        seconds=time.perf_counter() - wall,
        cpu_seconds=time.process_time() - cpu,
        problems=problems,
    )


def _predicted(scenario: Scenario, entries: Sequence[Entry], calibration: Calibration) -> tuple[Prediction, ...]:
    made = (predict(replace(scenario, plan=entry.plan), calibration) for entry in entries)
    return tuple(prediction for prediction in made if isinstance(prediction, Prediction))
