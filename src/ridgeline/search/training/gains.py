"""Turn a winner into what would beat it: the search done again on a changed scenario, one change at a time.

Tried are formats the chip multiplies faster, more memory, faster links, offload and hybrid sharding, a larger batch
where stages or reductions wait, and every pin taken away; and features of software, whether the engine has them or not:
schedules beyond its own, overlap of communication that is exposed, CUDA graphs, dispatchers of experts. Each but a pin
is searched one step around the winner along every axis, so a gain is at least what is told. More memory is answered by
the first sweep itself, since capacity only decides which plans are left. Stopped, it is the changes tried so far.

Other software (`other_engines`): the search done again, coarsely, under every engine of the catalog that runs on the
chip and knows the format, on its own habits and features. An engine nobody measured is priced by common parameters, and
its interval says so. A target of an export (`target_gains`): faster plans of the engine that the target cannot express.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import inf
from types import MappingProxyType
from typing import Literal

from ridgeline.core.dtype import dtype
from ridgeline.core.evidence import Evidence
from ridgeline.core.records import dataclass
from ridgeline.core.table import decode
from ridgeline.cost import Calibration
from ridgeline.hardware.system import System, Tier
from ridgeline.plan.capability import UnsupportedDecision
from ridgeline.plan.engine import ENGINES, OVERLAPS, Engine
from ridgeline.plan.plan import Offload, Plan, Precision, Schedule, Switches
from ridgeline.plan.resolve import resolve
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import SCHEDULES
from ridgeline.plan.supported import unsupported_decisions
from ridgeline.plan.workload import Train
from ridgeline.search.choices import closest_chips, neighbours
from ridgeline.search.progress import GoOn, always
from ridgeline.search.target import ExportTarget
from ridgeline.search.training.plan_search import Search, find_plan, kinds, predict_entries
from ridgeline.search.training.shortlist import Entry
from ridgeline.search.training.space import Pins, best_dispatch, space_of
from ridgeline.sim import SHIPPED_RESIDUALS, Prediction, read_residuals

WORTH = 0.005  # gains below half a per cent are not worth telling
FEATURES = ("schedule", "overlap", "graph", "moe_dispatch")  # kinds of changes that are a software's to make
EXPOSED = MappingProxyType(
    {"tp": "tp", "cp": "cp", "moe": "ep", "pp": "pp", "grad-reduce": "dp", "param-gather": "shard"}
)
GRAPHS: tuple[Literal["partial", "full"], ...] = ("partial", "full")
WAITING = 0.02  # share of a step lost to stages or reductions from which a larger batch is tried


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """One change and what it is predicted to gain.

    gain    tokens per second per chip over the winner's, less one
    how     how to ask for it; empty where it takes another machine
    """

    kind: str
    what: str
    how: str
    gain: float
    prediction: Prediction

    JSON = """
        kind what how gain step_time_s=prediction.step_time_s tokens_per_s_per_chip=prediction.tokens_per_s_per_chip
        plan=prediction.plan_table words=prediction.plan_words
    """

    @property
    def is_feature(self) -> bool:
        """Whether it takes something of the software, not of the plan or the machine."""
        return is_feature(self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Idea:
    """A changed scenario and what of the space is left to search on it."""

    kind: str
    what: str
    how: str
    scenario: Scenario
    pins: Pins


def what_if(
    search: Search, winner: Prediction, calibration: Calibration | None = None, go_on: GoOn = always, *,
    faster: bool = False,
) -> tuple[WhatIf, ...]:  # fmt: skip
    """Every change that was tried, the most gain first; those tried before `go_on` answers False.

    faster   only those that may gain something: plans that cannot be faster than the winner are not priced
    """
    changes: list[WhatIf] = [*_more_memory(search, winner, calibration)]
    for idea in _ideas(search, winner):

        def progress(priced: int, best_s: float, what: str = idea.what) -> bool:  # noqa: ARG001
            return go_on(what)

        changed_search = find_plan(
            idea.scenario, idea.pins, most=1, headroom=search.headroom, calibration=calibration, progress=progress,
            target=None if is_feature(idea.kind) else search.target,
            below_s=_winning_seconds(idea.scenario, winner) if faster else inf,
        )  # fmt: skip
        if not changed_search.swept.complete:
            break
        if changed_search.plans:
            what = f"{idea.what}{_target_note(search, changed_search.plans[0])}"
            changes.append(_change_of(idea.kind, what, idea.how, changed_search.plans[0], winner))
    return tuple(sorted(changes, key=lambda change: -change.gain))


def _winning_seconds(scenario: Scenario, winner: Prediction) -> float:
    """Seconds a step of a changed scenario may take and still be as good for each chip as the winner."""
    work = scenario.workload
    return work.sequences * work.seq / scenario.system.chips / winner.tokens_per_s_per_chip


def is_feature(kind: str) -> bool:
    """Whether a kind of change takes something of the software, not of the plan or the machine."""
    return kind.partition(".")[0] in FEATURES


def _target_note(search: Search, made: Prediction) -> str:
    """What a target has to do with it: words to add where it cannot express the plan."""
    return (
        f", which {search.target.id} cannot express"
        if search.target and search.target.unsupported_decisions(made.scenario)
        else ""
    )


def worth(tried: Sequence[WhatIf], most: int = 3) -> tuple[WhatIf, ...]:
    """The changes worth telling: the best of each kind, as far as they gain anything."""
    best: dict[str, WhatIf] = {}
    for change in tried:
        best.setdefault(change.kind, change)
    return tuple(change for change in best.values() if change.gain >= WORTH)[:most]


def _change_of(kind: str, what: str, how: str, made: Prediction, winner: Prediction) -> WhatIf:
    gain = made.tokens_per_s_per_chip / winner.tokens_per_s_per_chip - 1
    return WhatIf(kind=kind, what=what, how=how, gain=gain, prediction=made)


def _more_memory(search: Search, winner: Prediction, calibration: Calibration | None) -> Iterator[WhatIf]:
    for factor, entry in search.swept.with_more_memory.items():
        for candidate_value in predict_entries(search.scenario, [entry], calibration):
            yield _change_of("memory", f"{factor:g} times the memory of a chip", "", candidate_value, winner)


def _ideas(search: Search, winner: Prediction) -> Iterator[_Idea]:
    scenario, near = search.scenario, neighbour_pins(search, winner.scenario.plan)
    yield from _unpinned_ideas(search)
    yield from _formats(search, near)
    for name, system in _links(scenario.system):
        what = f"twice the bandwidth of {name}"
        yield _Idea(kind="link", what=what, how="", scenario=replace(scenario, system=system), pins=near)
    yield from _states(search, winner, near)
    yield from _schedules(search, winner, near)
    yield from _features(search, winner, near)
    yield from _batch(search, winner, near)


def neighbour_pins(search: Search, plan: Plan) -> Pins:
    """The space one step around a plan: its degrees and their neighbours, every choice of the rest."""
    space, mesh = search.space, plan.mesh
    return replace(
        search.pins,
        tp=neighbours(space.tp, mesh.tp),
        cp=neighbours(space.cp, mesh.cp),
        pp=neighbours(space.pp, mesh.pp),
        ep=neighbours(space.ep, mesh.ep),
        etp=neighbours(space.etp, mesh.etp),
        microbatch=neighbours(space.microbatch, plan.microbatch),
    )


def _unpinned_ideas(search: Search) -> Iterator[_Idea]:
    """Every pin taken away, the others kept."""
    for axis in search.pins.pinned:
        how = "leave out its own --set" if axis == "switches" else f"leave out --set plan.{axis}"
        pins = search.pins.without(axis)
        yield _Idea(kind=axis, what=f"{axis} not pinned", how=how, scenario=search.scenario, pins=pins)


def _formats(search: Search, near: Pins) -> Iterator[_Idea]:
    """Formats that the engine takes and the chip multiplies faster."""
    scenario, chip = search.scenario, search.scenario.system.chip
    peaks = [
        chip.peak[formats.compute.peak].value for formats in search.space.precision if formats.compute.peak in chip.peak
    ]
    for name in scenario.engine.supports.precision:
        peak = chip.peak.get(dtype(name).peak)
        if peak is not None and peak.value > max(peaks, default=0.0):
            candidate_value: Precision = decode(Plan, {"precision": name}).precision
            pins = replace(near, precision=(candidate_value,))
            how = f"--set plan.precision={name}"
            yield _Idea(kind="precision", what=f"products in {name}", how=how, scenario=scenario, pins=pins)


def _links(system: System) -> Iterator[tuple[str, System]]:
    """The system with one tier of its network twice as fast."""
    for index, tier in enumerate(system.tiers):
        if tier.bandwidth is not None:
            tiers = (*system.tiers[:index], _double_tier(tier), *system.tiers[index + 1 :])
            yield tier.name, replace(system, tiers=tiers)


def _double_tier(tier: Tier) -> Tier:
    got = tier.need_bandwidth()
    return replace(tier, bandwidth=replace(got, value=2 * got.value, evidence=Evidence.ASSUMED, source="what if"))


def _states(search: Search, winner: Prediction, near: Pins) -> Iterator[_Idea]:
    """State elsewhere: in host memory, or sharded within a domain and replicated over the rest."""
    scenario = search.scenario
    able = scenario.engine.supports
    if search.pins.offload is None and scenario.system.chip.host.bandwidth is not None:
        for what in able.offload:
            pins = replace(near, offload=(Offload(**{what: 1.0}),))
            how = f"--set plan.offload={what}"
            yield _Idea(kind="offload", what=f"{what} in host memory", how=how, scenario=scenario, pins=pins)
    plan = winner.scenario.plan
    inner = max(1, closest_chips(scenario.system) // (plan.mesh.tp * plan.mesh.cp))
    if search.pins.shard_degree is None and plan.sharding.shard != "none" and 1 < inner < plan.mesh.dp:
        pins = replace(near, shard_degree=(inner * plan.mesh.cp,))
        how = f"--set plan.shard_degree={inner * plan.mesh.cp}"
        yield _Idea(kind="shard_degree", what="sharding within a domain", how=how, scenario=scenario, pins=pins)


def _share(prediction: Prediction, *names: str) -> float:
    return sum(part.seconds for part in prediction.breakdown if part.name in names) / prediction.step_time_s


def _schedules(search: Search, winner: Prediction, near: Pins) -> Iterator[_Idea]:
    """Schedules that the engine is not known to have, where stages wait."""
    if search.pins.schedule is not None or _share(winner, "bubble") < WAITING:
        return
    engine = search.scenario.engine
    for name, kind in SCHEDULES.items():
        if name not in engine.supports.schedules and name != "gpipe":
            pins = replace(near, schedule=(Schedule(name=name, chunks=kind.fewest_chunks),))
            what = f"schedule {name}, which {engine.id} is not known to have"
            how = f"--set plan.schedule={name}"
            yield _Idea(kind="schedule", what=what, how=how, scenario=search.scenario, pins=pins)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Feature:
    """A switch to throw: words, the setting that throws it, what it makes of switches, whether the engine has it."""

    kind: str
    what: str
    how: str
    thrown: Callable[[Switches], Switches]
    known: bool


def _features(search: Search, winner: Prediction, near: Pins) -> Iterator[_Idea]:
    """Switches thrown where that would hide or shorten something: overlaps, CUDA graphs, dispatchers of experts."""
    engine, switches = search.scenario.engine, winner.scenario.plan.switches
    order, kind = switches.sequence_parallel, switches.cp_kind
    peers = [
        switches
        for switches in search.space.switches
        if (switches.sequence_parallel, switches.cp_kind) == (order, kind)
    ] or [switches]
    for item in (*_overlaps(search, winner), *_graphs(search, winner), *_dispatchers(search, winner)):
        what = item.what if item.known else f"{item.what}, which {engine.id} is not known to have"
        pins = replace(near, switches=tuple(item.thrown(switches) for switches in peers))
        how = f"--set plan.{item.how}"
        yield _Idea(kind=item.kind, what=what, how=how, scenario=search.scenario, pins=pins)


def _overlaps(search: Search, winner: Prediction) -> Iterator[_Feature]:
    """Communication that is exposed and could run beside compute."""
    now, progress_words = resolve(winner.scenario).overlap, winner.scenario.plan.switches.overlap
    for word, part in EXPOSED.items():
        if now[word] or word in progress_words or _share(winner, part) < WORTH:
            continue

        def thrown(switches: Switches, word: str = word) -> Switches:
            return replace(switches, overlap=MappingProxyType({**switches.overlap, word: True}))

        catalog_entry = word in search.scenario.engine.supports.features.overlaps
        how = f"overlap.{word}=true"
        yield _Feature(kind=f"overlap.{word}", what=f"overlap of {word}", how=how, thrown=thrown, known=catalog_entry)


def _graphs(search: Search, winner: Prediction) -> Iterator[_Feature]:
    """Kernels replayed from CUDA graphs, where the host issues them and holds a share of the step up."""
    resolved, host = resolve(winner.scenario), winner.bounds.get("host", 0.0) / winner.step_time_s
    issued = resolved.graph == "none" and resolved.launch in ("eager", "compiled")
    if search.scenario.system.chip.vendor != "NVIDIA" or not issued or host < WORTH:
        return
    for graph in GRAPHS:

        def thrown(switches: Switches, graph: Literal["partial", "full"] = graph) -> Switches:
            # a graph of the whole iteration fixes the order of streams, between which dispatch would overlap
            selection = {word: on for word, on in switches.overlap.items() if (graph, word) != ("full", "moe")}
            return replace(switches, graph=graph, overlap=MappingProxyType(selection))

        catalog_entry = graph in search.scenario.engine.supports.features.graph
        yield _Feature(
            kind="graph", what=f"{graph} CUDA graphs", how=f"graph={graph}", thrown=thrown, known=catalog_entry
        )


def _dispatchers(search: Search, winner: Prediction) -> Iterator[_Feature]:
    """Experts reached by kernels that send a token once, where an engine is not known to have them."""
    plain = resolve(winner.scenario).moe_dispatch == "all-to-all"
    if search.scenario.system.chip.vendor == "NVIDIA" and plain and _share(winner, "ep") >= WORTH:
        yield _Feature(
            kind="moe_dispatch",
            what="experts reached by DeepEP",
            how="moe_dispatch=deepep",
            thrown=lambda switches: replace(switches, moe_dispatch="deepep"),
            known="deepep" in search.scenario.engine.supports.features.moe_dispatch,
        )


def _batch(search: Search, winner: Prediction, near: Pins) -> Iterator[_Idea]:
    """A batch of twice as many sequences, where stages, reductions or the optimizer cost a share of every step."""
    work = search.scenario.workload
    if not isinstance(work, Train) or _share(winner, "bubble", "dp", "shard", "optimizer") < WAITING:
        return
    larger = replace(work, global_batch=2 * work.sequences, tokens_per_batch=None)
    what = f"a global batch of {larger.sequences}, if the optimization allows it"
    how = f"--global-batch {larger.sequences}"
    scenario = replace(search.scenario, workload=larger)
    yield _Idea(kind="batch", what=what, how=how, scenario=scenario, pins=near)


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


MOST_ASKED = 200  # plans
MOST = 3  # sets of decisions that are told


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetGain:
    """A plan that the target cannot express.

    untold   the decisions that stand against it
    gain     tokens per second per chip over the winner's, less one
    """

    untold: tuple[UnsupportedDecision, ...]
    gain: float
    prediction: Prediction

    JSON = """
        untold gain step_time_s=prediction.step_time_s tokens_per_s_per_chip=prediction.tokens_per_s_per_chip
        plan=prediction.plan_table words=prediction.plan_words
    """


def target_gains(search: Search, winner: Prediction, go_on: GoOn = always) -> tuple[TargetGain, ...]:
    """What the target keeps from the plan, the most gain first; nothing where `go_on` answered False."""

    def progress(priced: int, best_s: float) -> bool:  # noqa: ARG001
        return go_on("what it cannot be told")

    free = find_plan(
        search.scenario, search.pins, most=0, headroom=search.headroom, calibration=search.calibration,
        progress=progress,
    )  # fmt: skip
    if not free.swept.complete:
        return ()
    gains: list[TargetGain] = []
    for entry, untold in _faster_plans(search, winner, free):
        for candidate_value in predict_entries(search.scenario, [entry], search.calibration):
            gain = candidate_value.tokens_per_s_per_chip / winner.tokens_per_s_per_chip - 1
            if gain >= WORTH:
                gains.append(TargetGain(untold=untold, gain=gain, prediction=candidate_value))
    return tuple(sorted(gains, key=lambda one: -one.gain)[:MOST])


def _faster_plans(
    search: Search, winner: Prediction, free: Search
) -> Iterator[tuple[Entry, tuple[UnsupportedDecision, ...]]]:
    """The fastest plan for each set of decisions; a set that holds a faster one's says nothing new."""
    items: list[frozenset[str]] = []
    target = search.target
    assert target is not None
    for entry in kinds(free.swept, MOST_ASKED):
        if entry.step_s > winner.step_time_s:
            return
        attempt = replace(search.scenario, plan=entry.plan)
        if not target.capability.unsupported_decisions(attempt):
            continue
        untold = target.unsupported_decisions(attempt)
        paths = frozenset(decision.path for decision in untold)
        if untold and not any(capacity <= paths for capacity in items):
            items.append(paths)
            yield entry, untold
