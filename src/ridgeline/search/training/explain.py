"""Turn a finished search into reasons: what each alternative to the winner loses, or what bars every plan.

    lost = step of the alternative - step of the winner = sum over parts of (alternative's part - winner's part)

An alternative is the best plan of the whole space that decides one thing otherwise: another tp, another schedule. All
of them were kept by the same sweep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from ridgeline.core.documents import JsonObject
from ridgeline.core.encode import encode
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.core.units import format_gib, signed_quantity
from ridgeline.hardware.load import resize_name
from ridgeline.hardware.load import system as load_system
from ridgeline.plan.check import check
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.plan import Offload, Plan, Switches, offload_words, plan_words, recompute_words, schedule_words
from ridgeline.plan.scenario import Scenario
from ridgeline.search.progress import GoOn, always
from ridgeline.search.target import ExportTarget, inexpressible
from ridgeline.search.training.objectives import Goal, PlanOutcome, systems_without_price
from ridgeline.search.training.plan_search import SAME, Search, find_plan, ranked_kinds
from ridgeline.search.training.shortlist import EQUAL
from ridgeline.search.training.space import Pins, choice
from ridgeline.sim import Prediction, capacity_of, predict

NAMED_PARTS = 3  # parts of a difference that are named
SILENT = 0.0005  # of a step: smaller parts of a difference are not worth a word
DEGREES_PINNED = ("tp", "cp", "pp", "dp", "ep", "etp")
LARGER = (2, 4, 8, 16, 32)  # times the chips that are tried when nothing fits
# the order in which alternatives are told when they lose equally much
AXES = (
    "tp", "pp", "cp", "ep", "etp", "microbatch", "schedule", "chunks", "shard", "recompute", "offload", "precision",
    "switches",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What deciding otherwise costs.

    axis       what is decided otherwise; several where one plan is the best alternative along all of them
    parts      seconds by part of the step, the largest change first; they sum to `seconds`
    overlaps   whether the intervals of winner and alternative overlap: the order may be the other way round
    """

    axis: tuple[str, ...]
    choice: str
    prediction: Prediction
    winner: Prediction

    JSON = "axis choice loses_s=seconds to parts overlaps plan=prediction.plan_table words=prediction.plan_words"

    @property
    def seconds(self) -> float:
        return self.prediction.step_time_s - self.winner.step_time_s

    @property
    def parts(self) -> Mapping[str, float]:
        return difference(self.prediction, self.winner)

    @property
    def overlaps(self) -> bool:
        return self.prediction.interval.low < self.winner.interval.high

    @property
    def to(self) -> str:
        """The parts of the step that it loses to, in words."""
        return difference_words(self.parts, self.prediction.step_time_s - self.seconds)


def difference_words(parts: Mapping[str, float], step_s: float) -> str:
    """The largest parts of a difference in words, the rest as one; they sum to the difference.

    >>> difference_words({"tp": 1.0, "bubble": -0.25, "pp": 1e-6}, 10.0)
    'tp +1 s, bubble −250 ms'
    """
    named = [(name, seconds) for name, seconds in parts.items() if abs(seconds) > SILENT * step_s][:NAMED_PARTS]
    named = named or list(parts.items())[:1]
    rest_s = sum(parts.values()) - sum(seconds for _, seconds in named)
    words = [f"{name} {signed_quantity(seconds, 's')}" for name, seconds in named]
    return ", ".join([*words, f"rest {signed_quantity(rest_s, 's')}"] if abs(rest_s) > SILENT * step_s else words)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanExplanation:
    """Why a plan.

    losses        by axis, the best plan that decides it otherwise, the costliest last
    runner_up     the best plan of another kind; of a small plan the fastest
    doubted       plans of the shortlist, of `shortlist`, whose interval overlaps the winner's
    """

    winner: Prediction
    losses: tuple[Loss, ...]
    runner_up: Loss | None
    doubted: int
    shortlist: int

    JSON = """
        runner_up_loses_s=runner_up.seconds runner_up_overlaps=runner_up.overlaps overlapping=doubted of=shortlist
        basis=winner.interval.basis
    """


def explain(search: Search, winner: Prediction) -> PlanExplanation:
    """The reasons for a plan of a search; alternatives are told for the fastest, which a small plan need not be.

    >>> from ridgeline.plan.scenario_file import assemble
    >>> from ridgeline.search.training.plan_search import find_plan
    >>> table = {"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 8192, "global_batch": 64}}
    >>> found = find_plan(assemble(table)[0])
    >>> why = explain(found, found.plans[0])
    >>> all(abs(sum(loss.parts.values()) - loss.seconds) < 1e-9 for loss in why.losses)
    True
    """
    fastest = winner.step_time_s <= search.swept.best[0].step_s * (1 + EQUAL)
    losses = sorted(_losses(search, winner), key=lambda loss: loss.seconds) if fastest else []
    rivals = ranked_kinds(search, winner, 2)[1:] or search.plans[1:2] if fastest else search.plans[:1]
    words = "the best plan of another kind"
    runners_up = [Loss(axis=("plan",), choice=words, prediction=rival, winner=winner) for rival in rivals]
    factor = winner.interval.low / winner.step_time_s
    return PlanExplanation(
        winner=winner,
        losses=tuple(losses),
        runner_up=runners_up[0] if runners_up else None,
        doubted=sum(entry.step_s * factor < winner.interval.high for entry in search.swept.best[1:]),
        shortlist=max(0, len(search.swept.best) - 1),
    )


def _losses(search: Search, winner: Prediction) -> Iterator[Loss]:
    """The best plan that decides otherwise, for each axis; axes with the same one are told together.

    A choice that takes the same time makes no difference: sharding over one rank, a switch that the engine does not
    heed. The best is that of the sweep, or another plan that was priced in full.
    """
    winner_plan = winner.scenario.plan
    swept_plans = {axis: _other_choice(search, axis, winner) for axis in AXES}
    alternatives: dict[int, tuple[Prediction, list[str]]] = {}
    for axis, swept_plan in swept_plans.items():
        if swept_plan is None:
            continue
        plans = (plan for _, plan in search.final_prices if _differs(axis, plan.scenario.plan, winner_plan))
        rivals = (plan for plan in plans if abs(plan.step_time_s / winner.step_time_s - 1) > SAME)
        best = min((swept_plan, *rivals), key=lambda plan: plan.step_time_s)
        alternatives.setdefault(id(best), (best, []))[1].append(axis)
    for best, axes in alternatives.values():
        what = ", ".join(choice_words(best.scenario.plan, axis, winner_plan) for axis in axes)
        yield Loss(axis=tuple(axes), choice=what, prediction=best, winner=winner)


def _other_choice(search: Search, axis: str, winner: Prediction) -> Prediction | None:
    """The fastest plan of the sweep at another choice than the winner's, as far as the choice has an effect."""
    for entry in search.swept.by_choice.get("schedule" if axis == "chunks" else axis, ()):
        if not _differs(axis, entry.plan, winner.scenario.plan):
            continue
        for prediction in search.predictions([entry]):
            if abs(prediction.step_time_s / winner.step_time_s - 1) > SAME:
                return prediction
    return None


def _differs(axis: str, plan: Plan, own: Plan) -> bool:
    """Whether two plans decide otherwise along an axis, and the choice has an effect."""
    if axis in ("schedule", "chunks"):
        same = plan.schedule.name == own.schedule.name
        return plan.mesh.pp > 1 < own.mesh.pp and same == (axis == "chunks") and plan.schedule != own.schedule
    if axis == "switches":
        return plan.switches != own.switches and _effect(plan) != _effect(own)
    return choice(plan, axis) != choice(own, axis)


def _effect(plan: Plan) -> tuple[bool, str, Switches]:
    """What the switches of a plan do."""
    switches = plan.switches
    kind = switches.cp_kind if plan.mesh.cp > 1 else ""
    return plan.sequence_parallel and plan.mesh.tp > 1, kind, _without_axes(switches)


def _without_axes(switches: Switches) -> Switches:
    return replace(switches, sequence_parallel=None, cp_kind="ring")


def difference(other: Prediction, winner: Prediction) -> Mapping[str, float]:
    """Seconds by part that one step takes longer than another, the largest change first; they sum to the difference."""
    ours = {part.name: part.seconds for part in winner.breakdown}
    theirs = {part.name: part.seconds for part in other.breakdown}
    parts = {name: theirs.get(name, 0.0) - ours.get(name, 0.0) for name in {**ours, **theirs}}
    return MappingProxyType(dict(sorted(parts.items(), key=lambda part: -abs(part[1]))))


def choice_words(plan: Plan, axis: str, own: Plan) -> str:
    """A plan's choice along an axis, in words; of switches those that differ from the winner's."""
    match axis:
        case "schedule" | "chunks":
            return schedule_words(plan)
        case "recompute":
            return f"recompute {recompute_words(plan)}"
        case "offload":
            return f"offload {offload_words(plan)}"
        case "precision":
            return plan.precision.compute.id
        case "shard":
            return "no sharding" if plan.sharding.shard == "none" else plan.sharding.shard
        case "switches":
            return _switch_words(plan, own)
        case "microbatch":
            return f"microbatch {plan.microbatch}"
        case _:
            return f"{axis} {getattr(plan.mesh, axis)}"


def _switch_words(plan: Plan, own: Plan) -> str:
    """The switches in which a plan differs from another."""
    words = []
    if plan.sequence_parallel != own.sequence_parallel and plan.mesh.tp > 1:
        words.append("sequence parallel" if plan.sequence_parallel else "no sequence parallelism")
    if plan.switches.cp_kind != own.switches.cp_kind and plan.mesh.cp > 1:
        words.append("heads exchanged over cp" if plan.switches.cp_kind == "all-to-all" else "a ring over cp")
    theirs, ours = encode(_without_axes(plan.switches)), encode(_without_axes(own.switches))
    words += [f"{key} {theirs.get(key, 'as usual')}" for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
    return ", ".join(words) or "other switches"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenPlan:
    """A plan that came with the question, among all that were searched.

    faster   feasible plans of the space that take less time
    loss     what it loses to the best
    """

    prediction: Prediction
    faster: int
    loss: Loss

    JSON = """
        plan=prediction.plan_table words=prediction.plan_words step_time_s=prediction.step_time_s
        peak_memory_bytes=prediction.memory.peak_bytes fits=prediction.fits faster loses_s=loss.seconds to=loss.to
    """


def given_plan(search: Search, given: Scenario, winner: Prediction) -> GivenPlan | None:
    """The rank of the scenario's own plan and what it loses to the winner; None where it cannot run."""
    prediction = predict(given, search.calibration)
    if not isinstance(prediction, Prediction):
        return None
    loss = Loss(axis=("plan",), choice="the plan given", prediction=prediction, winner=winner)
    return GivenPlan(prediction=prediction, faster=search.swept.faster, loss=loss)


def refusal(outcomes: Sequence[PlanOutcome], goal: Goal, go_on: GoOn = always) -> tuple[Problem, ...]:
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


def _late(able: Sequence[PlanOutcome], goal: Goal) -> Iterator[Problem]:
    """By how much the deadline is missed at best."""
    runs = [(outcome.run.days, outcome.best) for outcome in able if outcome.run is not None]
    days, best = min(runs, key=lambda run: run[0], default=(0.0, None))
    if goal.days is None or best is None:
        return
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
    return (_too_large(search, go_on),) if result.considered else _impossible_degrees(search)


def _nothing_expressible(search: Search, target: ExportTarget) -> Problem:
    """Plans fit, and the target can express none: the fastest of them, and what stands against it."""
    space: JsonObject = {axis: getattr(search.space, axis) for axis in search.space.__slots__}
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
    got = (
        f"{format_gib(nearest.peak_bytes)} on the fullest chip of the nearest of {search.swept.considered:,} plans "
        f"({plan_words(nearest.plan)})"
    )
    chip_capacity = capacity_of(search.scenario)
    room = f"at most {format_gib(limit)}, {search.headroom:.0%} of {format_gib(chip_capacity)} kept free"
    expectation = f"{room}: {format_gib(nearest.peak_bytes - limit)} too much"
    helps = ["--headroom 0% would take it"] if nearest.peak_bytes <= chip_capacity else []
    helps += _helps(search, go_on)
    todo = f"what helps: {', or '.join(helps) or 'a smaller model'}"
    return Problem(path="memory", given=got, expected=expectation, todo=todo)


def _helps(search: Search, go_on: GoOn) -> Iterator[str]:
    """What was tried and makes room."""
    scenario, pins = search.scenario, search.pins
    for axis in pins.pinned:
        if go_on(f"{axis} not pinned") and _fits(search, scenario, pins.without(axis)):
            yield f"leave {axis} free"
    for what in scenario.engine.supports.offload if pins.offload is None else ():
        offload_pins = replace(pins, offload=(Offload(**{what: 1.0}),))
        if go_on(f"{what} in host memory") and _fits(search, scenario, offload_pins):
            yield f"--set plan.offload={what}"
    for times in LARGER:
        try:
            larger = load_system(resize_name(scenario.system.name, times * scenario.system.chips))
        except InputError:
            return
        larger = replace(larger, chip=scenario.system.chip)
        if go_on(f"{larger.chips} chips") and _fits(search, replace(scenario, system=larger), pins):
            yield f"use {larger.chips} chips"
            return


def _fits(search: Search, scenario: Scenario, pins: Pins, *, with_target: bool = True) -> bool:
    target = search.target if with_target else None
    result = find_plan(scenario, pins, most=1, headroom=search.headroom, calibration=search.calibration, target=target)
    return bool(result.swept.feasible)


def _impossible_degrees(search: Search) -> tuple[Problem, ...]:
    """No plan can even be laid out: degrees that divide nothing, or sizes that leave no plan."""
    scenario, pins = search.scenario, search.pins
    pinned = [(axis, degree) for axis in DEGREES_PINNED for degree in getattr(pins, axis) or ()]
    problems = [problem for axis, degree in pinned for problem in _degree_problems(scenario, axis, degree)]
    if problems:
        return tuple(dict.fromkeys(problems))
    got = f"{scenario.system.chips} chips and {scenario.workload.sequences} sequences a step"
    got, todo = (
        (f"{got} with these pins", "free a pin")
        if pins.pinned
        else (got, "use a global batch that is a multiple of a power of two")
    )
    return (Problem(path="plan", given=got, expected="degrees that divide both", todo=todo),)


def _degree_problems(scenario: Scenario, axis: str, degree: int) -> list[Problem]:
    """What bars a degree whatever the others are."""
    chips = scenario.system.chips
    if axis not in ("ep", "etp") and chips % degree:
        return [Problem(path=f"plan.{axis}", given=str(degree), expected=f"a divisor of the chips ({chips})")]
    degrees: JsonObject = {"dp": chips, axis: degree} if axis in ("ep", "etp") else {axis: degree}
    mesh = Mesh(**degrees)
    single = replace(scenario, plan=replace(scenario.plan, mesh=mesh, microbatch=1, placement=()))
    return [problem for problem in check(single) if problem.path == f"plan.{axis}"]
