"""Turn a winner into what other software would gain: the search done again, coarsely, under every engine that fits.

Tried is every engine of the catalog that runs on the chip and knows the format, on its own habits and features. Of its
space the microbatch is one step around the winner's, experts are whole, virtual stages few and switches as the engine
likes them, so a gain is at least what is told. Both sides are predictions; an engine
nobody measured is priced by common parameters, and its interval says so.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import inf
from typing import Literal

from ridgeline.core.dtype import dtype
from ridgeline.core.records import dataclass
from ridgeline.cost import Calibration
from ridgeline.plan.engine import ENGINES, OVERLAPS, Engine
from ridgeline.plan.plan import Plan
from ridgeline.plan.resolve import resolve
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.supported import unsupported_decisions
from ridgeline.search.plan_search import Search, find_plan
from ridgeline.search.progress import GoOn, always
from ridgeline.search.space import Pins, best_dispatch, neighbours, space_of
from ridgeline.search.target import ExportTarget
from ridgeline.search.what_if import EXPOSED
from ridgeline.sim import SHIPPED_RESIDUALS, Prediction, read_residuals

UNKNOWN = "generic"  # stands for software nobody described: nothing to change to
CHUNKS = (1, 2, 4, 8)  # virtual stages of a rank that are tried


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEngine:
    """Another software and the best plan that was found for it.

    gain           tokens per second per chip over the winner's, less one
    availability   whether others than its owners can run it
    runs           measured runs of it on this family of chips that took part in the fit; few: hardly more than a guess
    has            what its plan does that the winner's engine is not known to do, in words
    how            how to ask for it
    overlaps       whether the intervals overlap: the order may be the other way round
    """

    engine: Engine
    gain: float
    prediction: Prediction
    runs: int
    has: tuple[str, ...]
    overlaps: bool
    how: str

    JSON = """
        engine=engine.id name=engine.name availability how gain step_time_s=prediction.step_time_s
        tokens_per_s_per_chip=prediction.tokens_per_s_per_chip interval=prediction.interval overlaps runs has
        plan=prediction.plan_table words=prediction.plan_words
    """

    @property
    def availability(self) -> Literal["public", "closed", "retired"]:
        """As the engine's file says it."""
        return self.engine.availability


def other_engines(
    search: Search, winner: Prediction, calibration: Calibration | None = None, go_on: GoOn = always, *,
    faster: bool = False,
) -> tuple[OtherEngine, ...]:  # fmt: skip
    """Every engine that has a plan which fits, the most gain first; those tried before `go_on` answers False.

    faster   only those whose plan may be faster than the winner: plans that cannot be are not priced
    """
    below_s = winner.step_time_s if faster else inf
    engines: list[OtherEngine] = []
    target_engine_ids = search.target.engines(search.scenario.system) if search.target else ()
    for engine in able_engines(search.scenario):

        def progress(priced: int, best_s: float, id: str = engine.id) -> bool:  # noqa: ARG001
            return go_on(f"what {id} would gain")

        engine_scenario = under(search.scenario, engine)
        changed_search = find_plan(
            engine_scenario, _coarse(search, engine_scenario, winner.scenario.plan), most=1, headroom=search.headroom,
            calibration=calibration, progress=progress, below_s=below_s,
            target=search.target if engine.id in target_engine_ids else None,
        )  # fmt: skip
        if not changed_search.swept.complete:
            break
        if changed_search.plans and not unsupported_decisions(changed_search.plans[0].scenario):
            engines.append(_gain_of(engine, changed_search.plans[0], winner, search.target))
    return tuple(sorted(engines, key=lambda one: -one.gain))


def able_engines(scenario: Scenario) -> Iterator[Engine]:
    """Engines of the catalog other than the scenario's that run on its chip and know its number format."""
    vendor, format_id = scenario.system.chip.vendor, scenario.plan.precision.compute.id
    for id in (id for id in ENGINES if ENGINES[id].serves is None):
        engine = ENGINES[id]
        has_format = format_id in {dtype(name).id for name in engine.supports.precision}
        runs = not engine.supports.vendors or vendor in engine.supports.vendors
        if id not in (UNKNOWN, scenario.engine.id) and engine.availability != "retired" and has_format and runs:
            yield engine


def under(scenario: Scenario, engine: Engine) -> Scenario:
    """The scenario under another engine; switches that its plan states stay as stated."""
    return replace(scenario, engine=engine, plan=replace(scenario.plan, engine=engine.id))


def _coarse(search: Search, asked: Scenario, winner: Plan) -> Pins:
    """What of another engine's space is searched: the pins that were given, and less of the axes that rarely matter."""
    pins, space = search.pins, space_of(asked, search.pins)
    schedules = tuple(schedule for schedule in space.schedule if schedule.chunks in CHUNKS)
    plain_switches = [
        switches
        for switches in space.switches
        if switches.cp_kind == "ring" and switches.sequence_parallel is not False
    ]
    return replace(
        pins,
        etp=pins.etp or (1,),
        microbatch=pins.microbatch or neighbours(space.microbatch, winner.microbatch),
        schedule=pins.schedule or schedules,
        switches=pins.switches or tuple(plain_switches) or None,
    )


def measured_runs(engine: str, family: str) -> int:
    """Measured runs of an engine, by the id calibrations know it by, on a family of chips: what its parameters rest on.

    >>> measured_runs("megatron-core", "hopper") > measured_runs("hai-llm", "hopper")
    True
    """
    return _runs_by_engine()[engine, family]


@cache
def _runs_by_engine() -> Counter[tuple[str, str]]:
    """Measured runs by engine and family of chips."""
    rows = json.loads(SHIPPED_RESIDUALS.read_text(encoding="utf-8"))["rows"] if SHIPPED_RESIDUALS.exists() else ()
    return Counter((run.engine, run.family) for run in read_residuals(rows))


def _gain_of(engine: Engine, made: Prediction, winner: Prediction, target: ExportTarget | None) -> OtherEngine:
    runs = target is None or engine.id in target.engines(made.scenario.system)
    return OtherEngine(
        engine=engine,
        gain=made.tokens_per_s_per_chip / winner.tokens_per_s_per_chip - 1,
        prediction=made,
        runs=measured_runs(engine.fitted_id, made.scenario.system.chip.family),
        has=tuple(_has(made, winner)),
        overlaps=made.interval.high > winner.interval.low and made.interval.low < winner.interval.high,
        how=f"--engine {engine.id}" if runs else f"another target, --engine {engine.id}",
    )


def _has(made: Prediction, winner: Prediction) -> Iterator[str]:
    """What a plan under another engine does that the winner's engine is not known to do, or does not by itself."""
    winner_scenario, theirs = winner.scenario, made.scenario
    prefix = f"engine {winner_scenario.engine.id} is not known to support "
    yield from (note.removeprefix(prefix) for note in unsupported_decisions(under(theirs, winner_scenario.engine)))
    ours, their_overlap = resolve(winner_scenario).overlap, resolve(theirs).overlap
    spent = {part.name for part in winner.breakdown if part.seconds > 0}
    for word in OVERLAPS:
        if their_overlap[word] and not ours[word] and EXPOSED.get(word) in spent:
            yield f"overlap of {word}"
    dispatch = theirs.plan.switches.moe_dispatch
    if theirs.plan.mesh.ep > 1 and dispatch and best_dispatch(winner_scenario) is None:
        yield f"dispatch by {dispatch}"
