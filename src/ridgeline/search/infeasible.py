"""Turn a search that found nothing into reasons: which number bars every plan, by how much, and what would help."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.units import format_gib
from ridgeline.hardware.load import resized
from ridgeline.hardware.load import system as load_system
from ridgeline.plan.check import check
from ridgeline.plan.engine import ENGINES
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.plan import Offload
from ridgeline.plan.plan_table import plan_words
from ridgeline.plan.scenario import Scenario
from ridgeline.search.find_plan import Search, find_plan
from ridgeline.search.space import Pins
from ridgeline.sim.memory.peak import capacity_of

DEGREES = ("tp", "cp", "pp", "dp", "ep", "etp")
LARGER = (2, 4, 8, 16, 32)  # times the chips that are tried when nothing fits


def why_not(search: Search) -> tuple[Problem, ...]:
    """The reasons why a search has no plan to offer; empty where it has one."""
    if search.problems:
        return search.problems
    found = search.swept
    if found.feasible or not found.complete:
        return ()
    return (_too_large(search),) if found.considered else tuple(_barred(search))


def _too_large(search: Search) -> Problem:
    """Nothing fits: the plan that comes nearest, and what would make room."""
    nearest, limit = search.swept.nearest, search.capacity_bytes
    if nearest is None:
        return Problem(path="memory", given="no plan", expected="one that fits")
    missing = nearest.peak_bytes - limit
    given = (
        f"{format_gib(nearest.peak_bytes)} on the fullest chip of the nearest of {search.swept.considered:,} plans "
        f"({plan_words(nearest.plan)})"
    )
    whole = capacity_of(search.scenario)
    room = f"at most {format_gib(limit)}, {search.headroom:.0%} of {format_gib(whole)} kept free"
    expected = f"{room}: {format_gib(missing)} too much"
    helps = list(_helps(search, nearest.peak_bytes <= whole))
    return Problem(
        path="memory", given=given, expected=expected, todo=f"what helps: {', or '.join(helps) or 'a smaller model'}"
    )


def _helps(search: Search, narrowly: bool) -> Iterator[str]:
    """What was tried and makes room."""
    scenario, pins = search.scenario, search.pins
    if narrowly:
        yield "--headroom 0% would take it"
    for axis in pins:
        rest = {name: choices for name, choices in pins.items() if name != axis}
        if _fits(search, scenario, rest):
            yield f"leave {axis} free"
    if "offload" not in pins:
        for what in ENGINES[scenario.plan.engine].supports.offload:
            if _fits(search, scenario, {**pins, "offload": (Offload(**{what: 1.0}),)}):
                yield f"--set plan.offload={what}"
    for times in LARGER:
        try:
            larger = load_system(resized(scenario.system.name, times * scenario.system.chips))
            larger = replace(larger, chip=scenario.system.chip)
        except InputError:
            return
        if _fits(search, replace(scenario, system=larger), pins):
            yield f"use {larger.chips} chips"
            return


def _fits(search: Search, scenario: Scenario, pins: Pins) -> bool:
    found = find_plan(scenario, pins, most=1, headroom=search.headroom)
    return bool(found.swept.feasible)


def _barred(search: Search) -> Iterator[Problem]:
    """No plan can even be laid out: degrees that divide nothing, or sizes that leave no plan."""
    scenario, found = search.scenario, []
    for axis in DEGREES:
        for degree in search.pins.get(axis, ()):
            found += _alone(scenario, axis, degree)
    if found:
        yield from dict.fromkeys(found)
        return
    chips, work = scenario.system.chips, scenario.workload
    given = f"{chips} chips and {work.sequences} sequences a step" + (" with these pins" if search.pins else "")
    todo = "free a pin" if search.pins else "use a global batch that is a multiple of a power of two"
    yield Problem(path="plan", given=given, expected="degrees that divide both", todo=todo)


def _alone(scenario: Scenario, axis: str, degree: int) -> list[Problem]:
    """What bars a degree whatever the others are."""
    chips = scenario.system.chips
    if axis not in ("ep", "etp") and chips % degree:
        return [Problem(path=f"plan.{axis}", given=str(degree), expected=f"a divisor of the chips ({chips})")]
    mesh = Mesh(dp=chips, **{axis: degree}) if axis in ("ep", "etp") else Mesh(**{axis: degree})
    alone = replace(scenario, plan=replace(scenario.plan, mesh=mesh, microbatch=1, placement=()))
    return [problem for problem in check(alone) if problem.path == f"plan.{axis}"]
