"""Turn searches that found nothing feasible into reasons: what bars every plan, by how much, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.units import format_gib
from ridgeline.hardware.load import resize_name
from ridgeline.hardware.load import system as load_system
from ridgeline.plan.check import check
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.plan import Offload
from ridgeline.plan.plan_table import plan_words
from ridgeline.plan.scenario import Scenario
from ridgeline.search.objectives import Goal, Outcome, systems_without_price
from ridgeline.search.plan_search import Search, find_plan
from ridgeline.search.progress import GoOn, always
from ridgeline.search.space import Pins
from ridgeline.search.target import ExportTarget, inexpressible
from ridgeline.sim import capacity_of

DEGREES = ("tp", "cp", "pp", "dp", "ep", "etp")
LARGER = (2, 4, 8, 16, 32)  # times the chips that are tried when nothing fits


def refusal(outcomes: Sequence[Outcome], goal: Goal, go_on: GoOn = always) -> tuple[Problem, ...]:
    """Why none of the outcomes qualifies: nothing fits, a price is not known, or the deadline is missed.

    What would help is tried until `go_on` answers False.
    """
    able = [outcome for outcome in outcomes if outcome.best is not None]
    reasons = [] if able else [problem for outcome in outcomes for problem in why_not(outcome.search, go_on)]
    lacking = systems_without_price([outcome.scenario.system for outcome in able], goal.objective)
    if lacking:
        key, unit = ("price", "2.5 USD/h") if goal.objective == "cost" else ("tdp", "700 W")
        todo = f'set it with --set chip.{key}="{unit}"'
        got = f"nothing published for {', '.join(lacking)}"
        reasons.append(Problem(path=f"chip.{key}", given=got, expected=f"a {key}", todo=todo))
    reasons += _late(able, goal)
    return tuple(dict.fromkeys(reasons)) or (Problem(path="plan", given="nothing found", expected="a plan that fits"),)


def _late(able: Sequence[Outcome], goal: Goal) -> Iterator[Problem]:
    """By how much the deadline is missed at best."""
    runs = [
        (outcome.run.days, outcome.best) for outcome in able if outcome.run is not None and outcome.best is not None
    ]
    if goal.days is None or not runs:
        return
    days, best = min(runs, key=lambda run: run[0])
    system = best.scenario.system
    got = f"{days:.1f} days at best, on {system.chips} chips of {system.chip.id} by {plan_words(best.scenario.plan)}"
    todo = "allow more days, or more chips with --chips and a larger --global-batch"
    yield Problem(path="--days", given=got, expected=f"at most {goal.days:g} days", todo=todo)


def why_not(search: Search, go_on: GoOn = always) -> tuple[Problem, ...]:
    """The reasons why a search has no plan to offer; empty where it has one."""
    if search.problems:
        return search.problems
    result = search.swept
    if result.feasible or not result.complete:
        return ()
    if search.target is not None and (result.untold or _fits(search, search.scenario, search.pins, with_target=False)):
        return (_nothing_expressible(search, search.target),)
    return (_too_large(search, go_on),) if result.considered else tuple(_impossible_degrees(search))


def _nothing_expressible(search: Search, target: ExportTarget) -> Problem:
    """Plans fit, and the target can express none: the fastest of them, and what stands against it."""
    space: JsonObject = {item.name: getattr(search.space, item.name) for item in fields(search.space)}
    for pins in (replace(search.pins, **space), search.pins):  # at first within the choices that are supported
        free = find_plan(search.scenario, pins, most=1, headroom=search.headroom, calibration=search.calibration)
        if free.plans:
            break
    decisions = target.unsupported_decisions(free.plans[0].scenario) if free.plans else ()
    best = plan_words(free.plans[0].scenario.plan) if free.plans else "none"
    got = f"{free.swept.feasible:,} plans that fit, the fastest {best}"
    return inexpressible(search.scenario, target, decisions, got)


def _too_large(search: Search, go_on: GoOn) -> Problem:
    """Nothing fits: the plan that comes nearest, and what would make room."""
    nearest, limit = search.swept.nearest, search.capacity_bytes
    if nearest is None:
        return Problem(path="memory", given="no plan", expected="one that fits")
    missing = nearest.peak_bytes - limit
    got = (
        f"{format_gib(nearest.peak_bytes)} on the fullest chip of the nearest of {search.swept.considered:,} plans "
        f"({plan_words(nearest.plan)})"
    )
    chip_capacity = capacity_of(search.scenario)
    room = f"at most {format_gib(limit)}, {search.headroom:.0%} of {format_gib(chip_capacity)} kept free"
    expectation = f"{room}: {format_gib(missing)} too much"
    helps = list(_helps(search, nearest.peak_bytes <= chip_capacity, go_on))
    return Problem(
        path="memory", given=got, expected=expectation, todo=f"what helps: {', or '.join(helps) or 'a smaller model'}"
    )


def _helps(search: Search, narrowly: bool, go_on: GoOn) -> Iterator[str]:
    """What was tried and makes room."""
    scenario, pins = search.scenario, search.pins
    if narrowly:
        yield "--headroom 0% would take it"
    for axis in pins.pinned:
        if go_on(f"{axis} not pinned") and _fits(search, scenario, pins.without(axis)):
            yield f"leave {axis} free"
    if pins.offload is None:
        for what in scenario.engine.supports.offload:
            offload_pins = replace(pins, offload=(Offload(**{what: 1.0}),))
            if go_on(f"{what} in host memory") and _fits(search, scenario, offload_pins):
                yield f"--set plan.offload={what}"
    for times in LARGER:
        try:
            larger = load_system(resize_name(scenario.system.name, times * scenario.system.chips))
            larger = replace(larger, chip=scenario.system.chip)
        except InputError:
            return
        if go_on(f"{larger.chips} chips") and _fits(search, replace(scenario, system=larger), pins):
            yield f"use {larger.chips} chips"
            return


def _fits(search: Search, scenario: Scenario, pins: Pins, *, with_target: bool = True) -> bool:
    search_result = find_plan(
        scenario, pins, most=1, headroom=search.headroom, calibration=search.calibration,
        target=search.target if with_target else None,
    )  # fmt: skip
    return bool(search_result.swept.feasible)


def _impossible_degrees(search: Search) -> Iterator[Problem]:
    """No plan can even be laid out: degrees that divide nothing, or sizes that leave no plan."""
    scenario, problems = search.scenario, []
    for axis in DEGREES:
        for degree in getattr(search.pins, axis) or ():
            problems += _degree_problems(scenario, axis, degree)
    if problems:
        yield from dict.fromkeys(problems)
        return
    chips, work = scenario.system.chips, scenario.workload
    got = f"{chips} chips and {work.sequences} sequences a step" + (" with these pins" if search.pins.pinned else "")
    todo = "free a pin" if search.pins.pinned else "use a global batch that is a multiple of a power of two"
    yield Problem(path="plan", given=got, expected="degrees that divide both", todo=todo)


def _degree_problems(scenario: Scenario, axis: str, degree: int) -> list[Problem]:
    """What bars a degree whatever the others are."""
    chips = scenario.system.chips
    if axis not in ("ep", "etp") and chips % degree:
        return [Problem(path=f"plan.{axis}", given=str(degree), expected=f"a divisor of the chips ({chips})")]
    degrees: JsonObject = {"dp": chips, axis: degree} if axis in ("ep", "etp") else {axis: degree}
    mesh = Mesh(**degrees)
    single = replace(scenario, plan=replace(scenario.plan, mesh=mesh, microbatch=1, placement=()))
    return [problem for problem in check(single) if problem.path == f"plan.{axis}"]
