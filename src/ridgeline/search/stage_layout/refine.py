"""Turn a complete plan into a better one on the same mesh: stage boundaries, recompute by stage, offload, in a budget.

    recompute    where the layers are, the least recompute with which every rank fits
    boundaries   layers moved to ranks that have time and memory for them, and recompute with them
    offload      a share of the activations sent to the host instead, where the engine can

Every step is kept only if `predict` says that it fits and is faster than what there was; a plan that does not fit is
first made to fit. In between hundreds of layouts are priced by the lines `predict` runs through (``table``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from ridgeline import sim  # its event loop is loaded where a plan is run event by event
from ridgeline.core.records import dataclass
from ridgeline.core.units import format_quantity
from ridgeline.cost import Calibration
from ridgeline.plan.capability import decision_words, unsupported_decisions
from ridgeline.plan.plan import Recompute, runs
from ridgeline.plan.scenario import Scenario
from ridgeline.search.choices import selective_parts
from ridgeline.search.progress import GoOn, always
from ridgeline.search.stage_layout.layouts import Layouts, LayoutTable, layout_table
from ridgeline.search.stage_layout.placement import LayoutSearch, RankedLayouts, policy_names
from ridgeline.search.target import ExportTarget
from ridgeline.sim import Impossible, Prediction, capacity_of, default_calibration, predict

REFINED = 3  # plans of a shortlist that are refined
MOST_ACTIONS = 40_000  # of a schedule's table, so that the best few are simulated within a second or two
ROUNDING = 1e-12  # relative difference that means nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One kind of change to a plan, with step and peak before and after it."""

    what: str
    before: Prediction
    after: Prediction

    @property
    def saved_s(self) -> float:
        """Seconds of a step; negative where memory was bought with time."""
        return self.before.step_time_s - self.after.step_time_s

    @property
    def freed_bytes(self) -> float:
        """Bytes of the fullest rank; negative where time was bought with memory."""
        return self.before.memory.peak_bytes - self.after.memory.peak_bytes

    def __str__(self) -> str:
        saved, freed = self.saved_s, self.freed_bytes
        time_word, size_word = "saves" if saved >= 0 else "costs", "frees" if freed >= 0 else "takes"
        return (
            f"{self.what}: {time_word} {format_quantity(abs(saved), 's', 3)}, "
            f"{size_word} {format_quantity(abs(freed), 'B', 3)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refined:
    """A plan and what became of it.

    start        the plan as it was, `prediction` as it is now: the same where nothing was better
    changes      what was changed, one after the other
    event_s      event-driven steps of `start` and `prediction`, where they were asked for and can be run
    """

    start: Prediction
    prediction: Prediction
    budget_bytes: float
    changes: tuple[Change, ...]
    event_s: tuple[float | None, float | None] = (None, None)

    @property
    def scenario(self) -> Scenario:
        """The scenario with the better plan."""
        return self.prediction.scenario

    @property
    def fits(self) -> bool:
        """Whether every rank is within the budget."""
        return self.prediction.memory.peak_bytes <= self.budget_bytes * (1 + ROUNDING)

    @property
    def saved_s(self) -> float:
        """Seconds of a step, all changes together."""
        return self.start.step_time_s - self.prediction.step_time_s


def refine(
    scenario: Scenario, calibration: Calibration | None = None, *, budget_bytes: float | None = None,
    event_driven: bool = False, event_s: float | None = None,
) -> Refined | Impossible:  # fmt: skip
    """The plan with stage boundaries, recompute by stage and offload chosen for the shortest predicted step.

    budget_bytes   of every rank; absent: what a program may take of a chip's memory
    event_driven   choose by event-driven steps among what `predict` calls faster; they tell in which order stages that
                   differ stand, which the closed form only knows as a mean and a slowest
    event_s        the event-driven step of the plan as it is, where it is known

    >>> from ridgeline.plan.scenario_file import read_scenario
    >>> found = refine(read_scenario("examples/llama3-70b-64xh100.toml"))
    >>> found.fits, found.saved_s >= 0
    (True, True)
    """
    used = calibration or default_calibration()
    first = (event_step_s(scenario, used) if event_s is None else event_s) if event_driven else None
    return _refined_scenario(scenario, used, budget_bytes, FREE_STEPS, first)


def even(
    scenario: Scenario, calibration: Calibration | None = None, *, budget_bytes: float | None = None
) -> Refined | Impossible:
    """The plan with stage boundaries and recompute chosen among what its engine can be told.

    >>> from ridgeline.plan.scenario_file import read_scenario
    >>> found = even(read_scenario("examples/llama3-70b-64xh100.toml"))
    >>> found.fits, found.saved_s >= 0, found.scenario.plan.recompute.layers is None
    (True, True, True)
    """
    return _refined_scenario(scenario, calibration or default_calibration(), budget_bytes, EVEN_STEPS)


def event_step_s(scenario: Scenario, calibration: Calibration | None = None) -> float | None:
    """The step with the schedule run event by event; None where it cannot or would take too long."""
    result = sim.simulate(scenario, calibration)
    return None if isinstance(result, Impossible) else result.step_s


def simulated_step_s(prediction: Prediction, calibration: Calibration | None = None) -> float | None:
    """Seconds of the step when it is executed event by event, links shared; None where that would take too long.

    The sweep prices pipelines by closed forms. Where the two disagree, traffic met on a tier.
    """
    scenario = prediction.scenario
    actions = 2 * scenario.microbatches * scenario.plan.mesh.pp * scenario.plan.schedule.chunks
    if actions > MOST_ACTIONS:
        return None
    return event_step_s(scenario, calibration)


def _choose_recompute(search: LayoutSearch, now: Layouts) -> RankedLayouts | None:
    """Other recompute where the layers are."""
    return search.recomputed(now)


def _choose_placement(search: LayoutSearch, now: Layouts) -> RankedLayouts | None:
    """Layers moved, and recompute with them."""
    return search.placed(now) if search.table.virtual_stages > 1 else None


def _choose_offload(search: LayoutSearch, now: Layouts) -> RankedLayouts | None:
    """Another share of activations offloaded, and recompute and layers with it."""
    policies = np.arange(len(search.table.policies))
    return replace(search, policies=policies).placed(now) if len(policies) > len(search.policies) else None


def _even_layout(search: LayoutSearch, now: Layouts) -> RankedLayouts | None:
    """Layers moved, and the recompute that fits with them the same in every stage."""
    return replace(search, policies=policy_names(search.table, search.policies), alike=True).placed(now)


_Step = Callable[[LayoutSearch, Layouts], RankedLayouts | None]


FREE_STEPS: tuple[_Step, ...] = (_choose_recompute, _choose_placement, _choose_offload)
EVEN_STEPS: tuple[_Step, ...] = (_even_layout,)


def _refined_scenario(
    scenario: Scenario, used: Calibration, budget_bytes: float | None, steps: Sequence[_Step],
    first: float | None = None,
) -> Refined | Impossible:  # fmt: skip
    """A plan that nothing is known of yet, refined by these steps."""
    start = predict(scenario, used)
    if isinstance(start, Impossible):
        return start
    budget = capacity_of(scenario) if budget_bytes is None else budget_bytes
    return _refine_layout(start, layout_table(scenario, used), used, budget, steps, first)


def _refine_layout(
    start: Prediction, table: LayoutTable, used: Calibration, budget: float, steps: Sequence[_Step],
    first: float | None = None,
) -> Refined:  # fmt: skip
    """The steps one after the other, each kept where `predict` calls it better."""
    scenario = start.scenario
    share = scenario.plan.offload.activations
    policies = np.array([place for place, policy in enumerate(table.policies) if policy.offload == share])
    search = LayoutSearch(table=table, budget_bytes=budget * (1 + ROUNDING), policies=policies)
    now, layout, seconds = start, _layout_of(scenario), first
    changes: list[Change] = []
    for step in steps:
        ranked = step(search, layout)
        chosen = None if ranked is None else _choose_layout(search, used, now, seconds, ranked)
        if chosen is not None:
            layout, after, seconds = chosen
            changes.append(Change(what=_change_words(now.scenario, after.scenario), before=now, after=after))
            now = after
    return Refined(start=start, prediction=now, budget_bytes=budget, changes=tuple(changes), event_s=(first, seconds))


def _choose_layout(
    search: LayoutSearch, calibration: Calibration, now: Prediction, event_s: float | None, ranked: RankedLayouts
) -> tuple[Layouts, Prediction, float | None] | None:
    """The first layout that is better than what there is; by event-driven steps, where there are, the best of them."""
    fits = now.memory.peak_bytes <= search.budget_bytes
    able: list[tuple[Layouts, Prediction, float | None]] = []
    layouts, steps = ranked
    for row in np.flatnonzero((steps < now.step_time_s * (1 - ROUNDING)) | (not fits)):
        item = layouts.at(np.array([row]))
        after = predict(_scenario_of(search.table, item), calibration)
        if isinstance(after, Impossible) or after.memory.peak_bytes > search.budget_bytes:
            continue
        if fits and after.step_time_s >= now.step_time_s * (1 - ROUNDING):
            continue
        seconds = None if event_s is None else event_step_s(after.scenario, calibration)
        if fits and event_s is not None and (seconds is None or seconds >= event_s):
            continue
        able.append((item, after, seconds))
        if event_s is None:
            break
    return min(able, key=lambda entry: entry[2] or 0.0) if able else None


def _layout_of(scenario: Scenario) -> Layouts:
    """The plan as it is: the first policy of its table."""
    placement = scenario.placement
    recomputed = [scenario.plan.recompute.layers_of(stage, layers) for stage, layers in enumerate(placement)]
    return Layouts(layers=np.array([placement]), recomputed=np.array([recomputed]), policy=np.zeros(1, dtype=np.int64))


def _scenario_of(table: LayoutTable, layout: Layouts) -> Scenario:
    """The scenario with this layout in its plan, written as shortly as a plan can say it."""
    scenario, policy = table.scenario, table.policies[int(layout.policy[0])]
    layers, recomputed = tuple(map(int, layout.layers[0])), tuple(map(int, layout.recomputed[0]))
    plan = replace(
        scenario.plan,
        placement=scenario.plan.placement if layers == scenario.placement else layers,
        recompute=_shortest(policy.recompute, layers, recomputed, scenario.model.mtp or scenario.model.vision),
        offload=replace(scenario.plan.offload, activations=policy.offload),
    )
    return replace(scenario, plan=plan)


def _shortest(recompute: Recompute, layers: Sequence[int], recomputed: Sequence[int], ends: object) -> Recompute:
    """All layers, none, or as many of each stage, where that says the same.

    >>> _shortest(Recompute(kind="full"), (3, 4, 3), (2, 2, 2), None).layers
    2
    >>> _shortest(Recompute(kind="full"), (3, 4, 3), (0, 0, 0), None).kind
    'none'
    """
    if recompute.kind == recompute.rest == "none" and not recompute.blocks:
        return Recompute()
    if tuple(recomputed) == tuple(layers):
        return replace(recompute, layers=None, rest="none")
    if not any(recomputed) and not ends:
        return Recompute(kind=recompute.rest, parts=recompute.parts)
    for most in range(max(recomputed) + 1):
        if all(min(most, stage) == count for stage, count in zip(layers, recomputed, strict=True)):
            return replace(recompute, layers=most)
    return replace(recompute, layers=tuple(recomputed))


def _change_words(before: Scenario, after: Scenario) -> str:
    """What differs between two plans, in words."""
    words = []
    if before.placement != after.placement:
        words.append(f"layers by stage {runs(after.placement)} instead of {runs(before.placement)}")
    if (before.plan.recompute, before.placement) != (after.plan.recompute, after.placement):
        old, new = _recompute_words(before), _recompute_words(after)
        words += [f"recompute {new} instead of {old}"] if old != new else []
    if before.plan.offload != after.plan.offload:
        old, new = (f"{plan.offload.activations:.3g}" for plan in (before.plan, after.plan))
        words.append(f"{new} of the activations offloaded instead of {old}")
    return ", ".join(words)


def _recompute_words(scenario: Scenario) -> str:
    recompute, placement = scenario.plan.recompute, scenario.placement
    count, layers = (
        sum(recompute.layers_of(stage, layers) for stage, layers in enumerate(placement)),
        sum(placement),
    )
    names = {"none": "nothing", "full": "everything", "selective": "+".join(recompute.parts)}
    others = f", {names[recompute.rest]} in the others" if recompute.rest != "none" and count < layers else ""
    if recompute.kind == "none" and not recompute.blocks:
        return "nothing" + others
    return f"{names[recompute.kind]} in {count} of {layers} layers{others}"


GAINS = 0.001  # of a step: less than this is not worth stages that differ
FINALISTS = 3  # candidates that are run event by event


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """The plan that is recommended after refinement, and how it came about.

    start       the plan of the search it was made of; `prediction` itself where nothing was better
    changes     what was changed in it
    event_s     its step run event by event, None where that was not done
    refined     the first plans with stage boundaries, recompute by stage and offload chosen freely, fastest first
    beyond      the best of these, where it is faster still but the engine cannot be told
    """

    prediction: Prediction
    start: Prediction
    changes: tuple[Change, ...] = ()
    event_s: float | None = None
    refined: tuple[Refined, ...] = ()
    beyond: Refined | None = None


def refinement(
    plans: Sequence[Prediction], winner_event_s: float | None, budget_bytes: float, go_on: GoOn = always,
    calibration: Calibration | None = None, target: ExportTarget | None = None, *, faster: bool = False,
) -> Refinement | None:  # fmt: skip
    """What to recommend of good plans, the winner first; its step event by event is given where that is known.

    faster   only plans whose layouts may be recommended are refined; otherwise all, for `Refinement.refined`

    None where `go_on` answered False before all was tried.
    """
    winner, used = plans[0], calibration or default_calibration()
    tables: dict[int, LayoutTable] = {}
    finalists = 1 if winner_event_s is None else FINALISTS
    bars = [winner.step_time_s * (1 - GAINS)] * finalists  # steps of the finalists so far, rising
    unable: set[int] = set()

    def refined_plans(places: Iterable[int], steps: Sequence[_Step], what: str) -> Iterator[Refined]:
        for place in places:
            if not go_on(what):
                return
            plan = plans[place]
            if place not in tables:
                tables[place] = layout_table(plan.scenario, used)
            if faster and tables[place].model.least_step_s >= bars[-1]:
                continue
            result = _refine_layout(plan, tables[place], used, budget_bytes, steps)
            if result.fits and result.changes:
                if lacking(result, target):
                    unable.add(id(result))
                else:
                    bars[:] = sorted((*bars, _step(result)))[:finalists]
                yield result

    places = range(len(plans))
    even_plans = [*refined_plans(places, EVEN_STEPS, "stage boundaries that the engine can be told")]
    free: list[Refined] = []
    for plan in refined_plans(places[:REFINED], FREE_STEPS, "stage boundaries, recompute by stage and offload"):
        if all(plan.scenario.plan != other.scenario.plan for other in free):
            free.append(plan)
    free.sort(key=_step)
    gaining = (plan for plan in (*even_plans, *free) if _step(plan) < winner.step_time_s * (1 - GAINS))
    better = sorted((plan for plan in gaining if id(plan) not in unable), key=_step)
    if not go_on("refined plans, event by event"):
        return None
    best, event_s = _finalist(better[:FINALISTS], winner_event_s, calibration)
    step_s = (_step(best) if best else winner.step_time_s) * (1 - GAINS)
    return Refinement(
        prediction=best.prediction if best else winner,
        start=best.start if best else winner,
        changes=best.changes if best else (),
        event_s=event_s,
        refined=tuple(free),
        beyond=next((plan for plan in free if _step(plan) < step_s), None),
    )


def _step(plan: Refined) -> float:
    return plan.prediction.step_time_s


def _finalist(
    better: Sequence[Refined], winner_event_s: float | None, calibration: Calibration | None
) -> tuple[Refined | None, float | None]:
    """The fastest event by event, None where the winner is; the first where events were not run."""
    if winner_event_s is None:
        return (better[0] if better else None), None
    best, least = None, winner_event_s
    for plan in better:
        seconds = simulated_step_s(plan.prediction, calibration)
        if seconds is not None and seconds < least:
            best, least = plan, seconds
    return best, least


def lacking(plan: Refined, target: ExportTarget | None = None) -> str:
    """What the engine is not known to do of a refined plan and was not asked before, or a target cannot be told, in
    words; nothing where all is."""
    before, recompute = unsupported_decisions(plan.start.scenario), plan.scenario.plan.recompute
    notes = [note.removeprefix("engine ") for note in unsupported_decisions(plan.scenario) if note not in before]
    if "selective" in (recompute.kind, recompute.rest) and recompute.parts not in selective_parts(plan.start.scenario):
        notes.append(f"{plan.scenario.plan.engine} is not known to recompute just {' and '.join(recompute.parts)}")
    decisions = target.unsupported_decisions(plan.scenario) if target else ()
    if target and decisions:
        notes.append(f"{target.id} cannot be told {decision_words(decisions)}: {decisions[0].why}")
    return "; ".join(notes)
