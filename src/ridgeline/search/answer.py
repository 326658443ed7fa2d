"""Turn a question into its answer: every system and size searched, the best chosen, the rest beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ridgeline.core.errors import InputError, Problem
from ridgeline.hardware.load import resized
from ridgeline.plan.plan_table import plan_words
from ridgeline.search.find_plan import find_plan
from ridgeline.search.infeasible import why_not
from ridgeline.search.objectives import Outcome, chosen, outcome, quarters, unpriced
from ridgeline.search.request import Case, PlanRequest, cases, engines

Watch = Callable[[str, int, float], None]  # system, plans priced so far on it, step of the best among them


def unwatched(system: str, priced: int, best_s: float) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was found.

    outcomes   of every system and size that was searched, in that order
    chosen     the one the goal prefers, with its case; None where none qualifies
    skipped    sizes that were left out, and why
    complete   False where the search was stopped
    """

    ask: PlanRequest
    outcomes: tuple[Outcome, ...]
    cases: tuple[Case, ...]
    chosen: Outcome | None
    skipped: tuple[str, ...]
    complete: bool
    seconds: float
    cpu_seconds: float

    @property
    def case(self) -> Case:
        """The case of the chosen outcome."""
        return next(case for case, one in zip(self.cases, self.outcomes, strict=True) if one is self.chosen)

    @property
    def considered(self) -> int:
        """Plans priced on all systems."""
        return sum(one.search.swept.considered for one in self.outcomes)

    @property
    def feasible(self) -> int:
        """Those among them that fit."""
        return sum(one.search.swept.feasible for one in self.outcomes)


def answer(ask: PlanRequest, watch: Watch = unwatched) -> Answer:
    """Search every case of a question and choose."""
    wall, cpu = time.perf_counter(), time.process_time()
    if problems := tuple(ask.goal.problems()):
        raise InputError(problems)
    skipped: list[str] = []
    found: list[tuple[Case, Outcome]] = []
    complete = True
    for case in _all_cases(ask, skipped, found):
        made = _searched(case, ask, watch)
        found.append((case, made))
        if not made.search.swept.complete:
            complete = False
            break
    outcomes = [one for _, one in found]
    return Answer(
        ask=ask,
        outcomes=tuple(outcomes),
        cases=tuple(case for case, _ in found),
        chosen=chosen(outcomes, ask.goal),
        skipped=tuple(skipped),
        complete=complete,
        seconds=time.perf_counter() - wall,
        cpu_seconds=time.process_time() - cpu,
    )


def _searched(case: Case, ask: PlanRequest, watch: Watch) -> Outcome:
    name = case.scenario.system.name

    def progress(priced: int, best_s: float) -> None:
        watch(name, priced, best_s)

    search = find_plan(case.scenario, case.pins, most=ask.top, headroom=ask.headroom, progress=progress)
    return outcome(search, ask.goal)


def _all_cases(ask: PlanRequest, skipped: list[str], found: Sequence[tuple[Case, Outcome]]) -> Iterator[Case]:
    """The cases asked for; for the fewest chips only until the deadline is met, and then sizes just below that."""
    if ask.goal.objective != "chips" or ask.chips is not None:
        yield from cases(ask, skipped)
        return
    for ref in ask.systems or (ask.table.get("system"),):
        below = 0
        for case in cases(_only(ask, ref), skipped):
            yield case
            if chosen([found[-1][1]], ask.goal) is None:
                below = case.scenario.system.chips
                continue
            yield from _between(ask, str(ref), below, case.scenario.system.chips)
            break


def _only(ask: PlanRequest, ref: object) -> PlanRequest:
    return replace(ask, systems=(str(ref),))


def _between(ask: PlanRequest, ref: str, below: int, above: int) -> Iterator[Case]:
    for chips in quarters(below, above):
        try:
            yield from engines(ask, resized(ref, chips))
        except InputError:
            continue  # a size that the system does not come in


def refusal(answer: Answer) -> tuple[Problem, ...]:
    """Why nothing was chosen; empty where something was."""
    if answer.chosen is not None:
        return ()
    able = [one for one in answer.outcomes if one.best is not None]
    goal = answer.ask.goal
    reasons = [] if able else [problem for one in answer.outcomes for problem in why_not(one.search)]
    lacking = unpriced([one.scenario.system for one in able], goal.objective)
    if lacking:
        key, unit = ("price", "2.5 USD/h") if goal.objective == "cost" else ("tdp", "700 W")
        todo = f'set it with --set chip.{key}="{unit}"'
        given = f"nothing published for {', '.join(lacking)}"
        reasons.append(Problem(path=f"chip.{key}", given=given, expected=f"a {key}", todo=todo))
    late = [one for one in able if one.run is not None]
    if goal.days is not None and late:
        best = min(late, key=lambda one: one.run.days if one.run else 0.0)
        days = best.run.days if best.run else 0.0
        system = best.scenario.system
        plan = f" by {plan_words(best.best.scenario.plan)}" if best.best else ""
        given = f"{days:.1f} days at best, on {system.chips} chips of {system.chip.id}{plan}"
        todo = "allow more days, or more chips with --chips and a larger --global-batch"
        reasons.append(Problem(path="--days", given=given, expected=f"at most {goal.days:g} days", todo=todo))
    return tuple(dict.fromkeys(reasons)) or (Problem(path="plan", given="nothing found", expected="a plan that fits"),)
