"""Turn a scenario without a plan into the best plans there are: every way to split the work, priced and ranked.

space -> degree_grid -> sweep   all plans, time and memory              vectorised
      -> shortlist              the fastest, the Pareto front of time and memory, the best at each choice of each axis
      -> predict                the fastest in full: breakdown, interval, reasons

Progress is told after every chunk of plans; where the answer is False, the search is that of the plans priced so far.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from itertools import islice, product
from types import MappingProxyType

import numpy as np

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import MissingNumber, Problem
from ridgeline.core.records import dataclass
from ridgeline.cost import Calibration
from ridgeline.hardware.load import resize_name
from ridgeline.hardware.system import System
from ridgeline.plan.capability import tellable_orders, tells_expert_overlap
from ridgeline.plan.check import check, precision
from ridgeline.plan.check import engine as known_engine
from ridgeline.plan.mesh import ORDERS
from ridgeline.plan.plan import Plan, recompute_words, sharding_words
from ridgeline.plan.scenario import Scenario
from ridgeline.search.progress import SweepProgress, silent
from ridgeline.search.target import ExportTarget, inexpressible
from ridgeline.search.training.expressible import ExpressiblePlans, expressible_space, unsupported_question
from ridgeline.search.training.shortlist import (
    EQUAL,
    BestByChoice,
    BestWithMoreMemory,
    EqualPlans,
    Fastest,
    ParetoFront,
    PricedEntry,
    first,
    in_order,
    least,
    moving_parts,
)
from ridgeline.search.training.space import NO_PINS, Pins, PinTable, Space, parts_of, space_of, widen_space
from ridgeline.search.training.sweep import DegreeGrid, Incumbent, PlanChunk, chunks_of, priced_grids
from ridgeline.sim import (
    Prediction,
    capacity_of,
    default_calibration,
    missing_number_problem,
    not_predictable,
    predict,
    scenario_headroom,
)

SHORTLIST = 64  # plans kept by number while the space is swept
SAME = 1e-9  # relative difference of times that are equal but for the order of additions
MORE_MEMORY = (1.25, 2.0)  # times the memory a chip has: what would be fastest then


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """What is kept of a sweep.

    considered, feasible   plans priced, and those among them that fit in memory
    best                   the shortlist: the fastest feasible plans, best first
    frontier               the Pareto front of time and memory: no plan is both faster and smaller; fastest first
    simplest               of plans within `EQUAL` of the fastest the one with the fewest moving parts
    nearest                the plan that comes closest to fitting, where none is feasible
    faster                 feasible plans faster than the time asked about
    complete               False where the sweep was stopped
    by_choice              axis -> the best plan at each of its choices, fastest first
    with_more_memory       the fastest plan if a chip had so many times the memory
    untold                 plans that fit and that the target cannot be told
    """

    considered: int
    feasible: int
    best: tuple[PricedEntry, ...]
    frontier: tuple[PricedEntry, ...]
    simplest: PricedEntry | None
    nearest: PricedEntry | None
    faster: int
    complete: bool
    by_choice: Mapping[str, tuple[PricedEntry, ...]] = field(default_factory=lambda: MappingProxyType({}))
    with_more_memory: Mapping[float, PricedEntry] = field(default_factory=lambda: MappingProxyType({}))
    untold: int = 0


def swept(
    chunks: Iterable[PlanChunk], capacity: float, *, than_s: float = 0.0, progress: SweepProgress = silent,
    expressible: ExpressiblePlans | None = None, incumbent: Incumbent | None = None,
) -> SweepResult:  # fmt: skip
    """The best of all chunks that a target can express, where one is given; of those until `progress` answers False.

    incumbent   the best so far, where the best alone is asked for: no front, no best by choice, none with more memory
    """
    fastest, front, equal = Fastest(SHORTLIST), ParetoFront(), EqualPlans()
    by_choice, roomier = BestByChoice(), BestWithMoreMemory(capacity, MORE_MEMORY)
    considered = feasible = faster = untold = 0
    nearest: PricedEntry | None = None
    complete = True
    for chunk in chunks:
        if not len(chunk.step_s):
            continue
        fits = chunk.peak_bytes <= capacity
        many = int(np.count_nonzero(fits))
        considered += len(fits)
        if incumbent is None:
            roomier.add(chunk)
        if many:
            able = chunk if many == len(fits) else chunk.taken(np.flatnonzero(fits))
            able = able if expressible is None else expressible.keep(able)
            feasible += len(able.step_s)
            untold += many - len(able.step_s)
            faster += int(np.count_nonzero(able.step_s < than_s))
            records = (fastest,) if incumbent else (fastest, front, by_choice, equal)
            for record in records if len(able.step_s) else ():
                record.add(able)
            if incumbent is not None:
                incumbent.step_s = min(incumbent.step_s, fastest.best_s)
        elif not feasible:
            smallest = least(chunk, chunk.peak_bytes, chunk.step_s)
            if nearest is None or smallest.peak_bytes <= nearest.peak_bytes:
                same = nearest is not None and smallest.peak_bytes == nearest.peak_bytes
                nearest = first(nearest, smallest) if nearest is not None and same else smallest
        if progress(considered, fastest.best_s) is False:
            complete = False
            break
    return SweepResult(
        considered=considered,
        feasible=feasible,
        best=fastest.entries(),
        frontier=front.entries(),
        simplest=equal.simplest(),
        nearest=None if feasible else nearest,
        faster=faster,
        complete=complete,
        by_choice=by_choice.entries(),
        with_more_memory=roomier.entries(),
        untold=untold,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What a search of one scenario's space found: plans in full, best first, and what they were chosen from.

    capacity_bytes   of a chip, less the headroom: what a plan may take
    problems         why nothing could be searched; `infeasible.why_not` says why nothing fits
    calibration      what plans were priced with; None for the shipped parameters
    target           the target of an export that every plan can be told; None: whatever the engine can
    final_prices     plans of the sweep that were predicted in full, each in its fastest rank order
    """

    scenario: Scenario
    pins: Pins
    space: Space
    swept: SweepResult
    plans: tuple[Prediction, ...]
    headroom: float
    capacity_bytes: float
    problems: tuple[Problem, ...] = ()
    calibration: Calibration | None = None
    target: ExportTarget | None = None
    final_prices: list[tuple[Plan, Prediction]] = field(default_factory=list)

    def predictions(self, entries: Iterable[PricedEntry]) -> tuple[Prediction, ...]:
        """Priced plans of it in full, each predicted once however often it is asked for."""
        full: list[Prediction] = []
        for entry in entries:
            same = [prediction for plan, prediction in self.final_prices if plan == entry.plan][:1]
            if not same:
                same = [*final_predictions(self.scenario, [entry], self.pins, self.calibration, self.target)]
                self.final_prices.extend((entry.plan, prediction) for prediction in same)
            full += same
        return tuple(full)


def find_plan(
    scenario: Scenario, pins: Pins | PinTable = NO_PINS, *, most: int = 5, headroom: float | None = None,
    calibration: Calibration | None = None, progress: SweepProgress = silent, given: bool = False,
    target: ExportTarget | None = None, below_s: float = np.inf,
) -> Search:  # fmt: skip
    """The best plans for a scenario's model, system and workload.

    pins       the choices left along an axis; the others take all that the engine supports
    headroom   share of a chip's memory that a plan must leave free; None: as measured peaks ask for
    progress   told after every chunk: plans priced, step of the best; False stops, and `swept.complete` is False
    given      whether the scenario's plan is somebody's own: its choices are then among those of every free axis
    target     only plans that this target of an export can express
    below_s    where given, only the best plan is asked for, and only if its step takes less than this

    Of the scenario's own plan the engine, the precision and the switches are kept; the rest is searched.

    >>> from ridgeline.plan.scenario_file import assemble
    >>> table = {"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 8192, "global_batch": 64}}
    >>> found = find_plan(assemble(table)[0])
    >>> found.swept.feasible > 0 and found.plans[0].fits
    True
    """
    used, pin_values = calibration or default_calibration(), Pins.of(pins)
    space = space_of(scenario, pin_values)
    if given:
        wider = widen_space(space, [scenario.plan])
        free_axes: JsonObject = {
            axis: getattr(wider, axis) for axis in Space.__slots__ if axis not in pin_values.pinned
        }
        space = replace(space, **free_axes)
    space = expressible_space(space, scenario, pin_values, target.capability) if target else space
    problems = tuple(_problems(scenario, space))
    if target and not problems and (decisions := unsupported_question(scenario, space, target)):
        problems = (inexpressible(scenario, target, decisions, scenario.model.id),)
    free = scenario_headroom(scenario).share if headroom is None else headroom
    capacity, result = 0.0, NOTHING
    try:
        if not problems:
            capacity = capacity_of(scenario) * (1 - free)
            grids = priced_grids(place_layers(scenario, pin_values), space, used)
            expressible = ExpressiblePlans(target.capability, scenario) if target else None
            incumbent = Incumbent(step_s=below_s, capacity_bytes=capacity) if np.isfinite(below_s) else None
            chunks = supported_chunks(grids, scenario, space, pin_values, incumbent)
            own_step = None if incumbent else predict(scenario, used)
            step_s = own_step.step_time_s if isinstance(own_step, Prediction) else 0.0  # faster plans are counted
            result = swept(
                chunks, capacity, than_s=step_s, progress=progress, expressible=expressible, incumbent=incumbent
            )
            result = normalize_result(result, expressible) if expressible else result
    except MissingNumber as missing:
        problems = (missing_number_problem(missing),)
    search = Search(
        scenario=scenario,
        pins=pin_values,
        space=space,
        swept=result,
        plans=(),
        headroom=free,
        capacity_bytes=capacity,
        problems=problems,
        calibration=calibration,
        target=target,
    )
    return replace(search, plans=best_plans(search, most, below_s))


def best_plans(search: Search, count: int, below_s: float = np.inf) -> tuple[Prediction, ...]:
    """So many of a search's plans by their final price: of the equally fast the simplest, then the fastest others.

    The space is swept in one rank order, in which a plan may stand last that is first in its own. So the best of every
    kind and at every choice are priced again where their ranks can stand otherwise.
    """
    result = search.swept
    entries = [*islice((item for item in distinct(result.best) if item.step_s < below_s), count)]
    if entries and result.simplest is not None:
        entries = [*distinct((result.simplest, *entries))]
    rivals = (*kinds(result, count), *(entry for entries in result.by_choice.values() for entry in entries[:2]))
    if count > 1:
        entries += [entry for entry in rivals if _has_other_orders(search, entry)]
    plans = sorted({id(plan): plan for plan in search.predictions(entries)}.values(), key=lambda plan: plan.step_time_s)
    equal = [plan for plan in plans if plan.step_time_s <= plans[0].step_time_s * (1 + EQUAL)]
    first_plans = sorted(equal, key=lambda plan: (moving_parts(plan.scenario.plan), plan.step_time_s))[:1]
    return tuple([*first_plans, *(plan for plan in plans if plan not in first_plans)][:count])


def _has_other_orders(search: Search, entry: PricedEntry) -> bool:
    return any(True for _ in other_orders(replace(search.scenario, plan=entry.plan), search.pins))


def normalize_result(found: SweepResult, expressible: ExpressiblePlans) -> SweepResult:
    """What a sweep kept, in the plainest words that the target can express."""

    def plain(entries: Iterable[PricedEntry]) -> tuple[PricedEntry, ...]:
        return tuple(expressible.plainest(entry) for entry in entries)

    axes = {axis: plain(some) for axis, some in found.by_choice.items()}
    roomier = {factor: entry for factor, entry in found.with_more_memory.items() if expressible.can(entry)}
    return replace(
        found,
        best=plain(found.best),
        frontier=plain(found.frontier),
        simplest=found.simplest and expressible.plainest(found.simplest),
        by_choice=MappingProxyType(axes),
        with_more_memory=MappingProxyType(roomier),
    )


NOTHING = SweepResult(
    considered=0, feasible=0, best=(), frontier=(), simplest=None, nearest=None, faster=0, complete=True
)


def _problems(scenario: Scenario, space: Space) -> Iterator[Problem]:
    """What no plan of the space can mend: an unknown engine, a format the chip does not have, no way to its host."""
    yield from known_engine(scenario)
    for choice, offload in product(space.precision, space.offload):
        attempt = replace(scenario, plan=replace(scenario.plan, precision=choice, offload=offload))
        yield from dict.fromkeys((*precision(attempt), *not_predictable(attempt)))


def place_layers(scenario: Scenario, pins: Pins) -> Scenario:
    """The scenario with its layers placed as pinned, or else as evenly as they go, and its ranks in the first order."""
    (placement,) = pins.placement or ((),)
    mesh = replace(scenario.plan.mesh, order=(pins.order or ORDERS)[0])
    return replace(scenario, plan=replace(scenario.plan, placement=placement, mesh=mesh))


def supported_chunks(
    cells: Iterable[DegreeGrid], scenario: Scenario, space: Space, pins: Pins = NO_PINS,
    incumbent: Incumbent | None = None,
) -> Iterator[PlanChunk]:  # fmt: skip
    """The plans of a space that the engine is known to run, of the dp that is pinned.

    zero2 with several microbatches keeps its gradients whole until the last one, which is zero1, or reduces them after
    each, which is not what zero2 is priced as: where the engine has zero1, that stands for it unless zero2 is pinned.
    Expert dispatch is told to overlap under the schedules that the engine names for it, unless others are pinned.
    """
    parts = parts_of(scenario, space, pins)
    prefers_zero1 = "zero1" in space.shard and pins.shard is None
    overlap_schedules = scenario.engine.supports.features.moe_beside
    if not any(schedule.name in overlap_schedules for schedule in space.schedule):
        overlap_schedules = ()
    for group in cells:
        asks_overlap = np.array([tells_expert_overlap(scenario) for scenario in group.scenarios])
        for part in parts:
            for chunk in chunks_of([group], part, incumbent):
                all_plans = np.ones(len(chunk.dp), dtype=np.bool_)
                mask = all_plans if pins.dp is None else np.isin(chunk.dp, pins.dp)
                if prefers_zero1 and chunk.shard == "zero2":
                    mask &= chunk.dp * chunk.microbatch >= scenario.workload.sequences
                if overlap_schedules and chunk.pp > 1 and chunk.schedule.name not in overlap_schedules:
                    mask &= ~asks_overlap[group.structure[chunk.cell]]
                yield chunk if mask.all() else chunk.taken(np.flatnonzero(mask))


def distinct(entries: Iterable[PricedEntry]) -> Iterator[PricedEntry]:
    """The entries without those that take the same time and memory as an earlier one: a switch without effect."""

    def same(first: float, second: float) -> bool:
        return abs(first - second) <= SAME * abs(second)

    distinct_entries: list[PricedEntry] = []
    for entry in entries:
        if not any(
            same(entry.step_s, item.step_s) and same(entry.peak_bytes, item.peak_bytes) for item in distinct_entries
        ):
            distinct_entries.append(entry)
            yield entry


def predict_entries(
    scenario: Scenario, entries: Iterable[PricedEntry], calibration: Calibration | None = None
) -> tuple[Prediction, ...]:
    """Plans in full."""
    predictions = (predict(replace(scenario, plan=entry.plan), calibration) for entry in entries)
    return tuple(prediction for prediction in predictions if isinstance(prediction, Prediction))


def final_predictions(
    scenario: Scenario, entries: Iterable[PricedEntry], pins: Pins, calibration: Calibration | None,
    target: ExportTarget | None = None,
) -> Iterator[Prediction]:  # fmt: skip
    """Plans in full, each in its fastest rank order.

    Which axes stay inside a domain and which cross it is another question than how the work is split, so a plan is
    priced again in each other order that is pinned, or that its engine can be told.
    """
    for best in predict_entries(scenario, entries, calibration):
        fastest = best
        for alternative in other_orders(best.scenario, pins):
            if target is not None and target.unsupported_decisions(alternative):
                continue
            prediction = predict(alternative, calibration)
            if isinstance(prediction, Prediction) and prediction.step_time_s < fastest.step_time_s * (1 - EQUAL):
                fastest = prediction
        yield fastest


def other_orders(scenario: Scenario, pins: Pins) -> Iterator[Scenario]:
    """The scenario in every other order that is pinned, or that its engine can be told, and that can run."""
    plan = scenario.plan
    if plan.mesh.pp == 1 or plan.mesh.dp == 1:
        return
    for order in pins.order or tuple(order for order in ORDERS if order in tellable_orders(scenario)):
        alternative = replace(scenario, plan=replace(plan, mesh=replace(plan.mesh, order=order)))
        if order != plan.mesh.order and not check(alternative):
            yield alternative


def kind_of(plan: Plan) -> Hashable:
    """What plans of one kind share: all but the schedule, the microbatch, dp and the switches."""
    mesh = plan.mesh
    return mesh.pp, mesh.cp, mesh.tp, mesh.ep, mesh.etp, plan.sharding, str(plan.recompute), plan.recompute.parts


def kind_words(plan: Plan) -> str:
    """A kind in words.

    >>> from ridgeline.plan.mesh import Mesh
    >>> kind_words(Plan(mesh=Mesh(tp=8, pp=2, dp=4)))
    'pp=2 tp=8, no sharding, recompute none'
    """
    mesh = plan.mesh
    degrees = [f"{axis}={getattr(mesh, axis)}" for axis in ("pp", "cp", "tp", "ep", "etp") if getattr(mesh, axis) > 1]
    shard = "no sharding" if plan.sharding.shard == "none" else sharding_words(plan)
    return f"{' '.join(degrees) or 'data-parallel'}, {shard}, recompute {recompute_words(plan)}"


def kinds(swept: SweepResult, most: int) -> tuple[PricedEntry, ...]:
    """The best plan of each kind among all that were kept, fastest first.

    The fastest plans of a space are often one plan at several numbers of chunks. The best plan of another kind than the
    winner's is exact, since it is the best at another choice along some axis, all of which the sweep kept.
    """
    best: dict[Hashable, PricedEntry] = {}
    for entry in in_order((*swept.best, *(entry for entries in swept.by_choice.values() for entry in entries))):
        best.setdefault(kind_of(entry.plan), entry)
    return tuple(islice(distinct(best.values()), most))


def ranked_kinds(search: Search, winner: Prediction, count: int) -> tuple[Prediction, ...]:
    """The winner and the best plans of other kinds, by their final price."""
    kind = kind_of(winner.scenario.plan)
    rivals = search.predictions(entry for entry in kinds(search.swept, count + 1) if kind_of(entry.plan) != kind)
    by_step = sorted(rivals, key=lambda plan: plan.step_time_s)
    return (winner, *(plan for plan in by_step if not _takes_the_same(plan, winner)))[:count]


def _takes_the_same(plan: Prediction, winner: Prediction) -> bool:
    """Whether two plans differ in what has no effect."""
    pairs = (plan.step_time_s, winner.step_time_s), (plan.memory.peak_bytes, winner.memory.peak_bytes)
    return all(abs(first - second) <= SAME * abs(second) for first, second in pairs)


TRIED = 6  # numbers of chips
SMOOTH = (2 * 3 * 5 * 7) ** 32  # every number of chips below 2^32 without other prime factors divides it


def fit_to(scenario: Scenario, chips: int, accept: Callable[[Scenario], bool] | None = None) -> Scenario | None:
    """The scenario with its fastest plan on at most so many chips, for elastic runs; None where nothing fits in memory.

    The model, the workload (so the global batch and the order of its data), the engine and the precision stay. Not
    every number of chips can be used: dp must divide the global batch, tp the heads. So the largest numbers without
    large prime factors are tried.

    accept   whether whoever will run a plan can; of the search's best, the first that it takes is taken

    >>> from ridgeline.plan.scenario_file import assemble
    >>> table = {"model": "llama3-8b", "system": "16xh100-sxm", "workload": {"seq": 4096, "global_batch": 32}}
    >>> fit_to(assemble(table)[0], 9).plan.mesh.ranks
    8
    """
    best: list[tuple[float, Scenario]] = []
    for count in usable(chips):
        fewer = replace(scenario, system=on_fewer(scenario.system, count))
        for entry in find_plan(fewer, most=0).swept.best:
            candidate = replace(fewer, plan=entry.plan)
            if not check(candidate) and (accept is None or accept(candidate)):
                best.append((entry.step_s, candidate))
                break
    return min(best, key=lambda pair: pair[0])[1] if best else None


def usable(chips: int) -> tuple[int, ...]:
    """Numbers of chips worth a search, at most `chips`: the largest smooth ones, and a power of two.

    >>> usable(9), usable(1023)
    ((9, 8, 7, 6, 5, 4), (1008, 1000, 980, 972, 960, 945, 512))
    """
    smooth = tuple(islice((count for count in range(chips, 0, -1) if SMOOTH % count == 0), TRIED))
    power = 1 << (chips.bit_length() - 1)
    return smooth if power in smooth else (*smooth, power)


def on_fewer(system: System, chips: int) -> System:
    """The machine with some of its chips left: networks as they were, a tier that would join one chip left out."""
    tiers, chips_below = [], 1
    for tier in system.tiers:
        if min(tier.chips, chips) > chips_below:
            chips_below = min(tier.chips, chips)
            tiers.append(replace(tier, chips=chips_below))
    resized = resize_name(system.name, chips)
    name = resized if isinstance(resized, str) else f"{chips} chips of {system.name}"
    return replace(system, name=name, chips=chips, node=min(system.node, chips), tiers=tuple(tiers))
