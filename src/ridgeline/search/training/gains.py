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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from math import inf
from types import MappingProxyType
from typing import Literal, TypeVar

from ridgeline.core.documents import JsonObject
from ridgeline.core.dtype import dtype
from ridgeline.core.evidence import Evidence
from ridgeline.core.records import dataclass
from ridgeline.core.table import decode
from ridgeline.plan.capability import UnsupportedDecision, unsupported_decisions
from ridgeline.plan.engine import ENGINES, OVERLAPS, Engine
from ridgeline.plan.plan import Offload, Plan, Schedule, Switches
from ridgeline.plan.resolve import resolve
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import SCHEDULES
from ridgeline.plan.workload import Train
from ridgeline.search.choices import closest_chips, neighbours
from ridgeline.search.progress import GoOn, always
from ridgeline.search.target import ExportTarget
from ridgeline.search.training.plan_search import Search, find_plan, kinds
from ridgeline.search.training.shortlist import PricedEntry
from ridgeline.search.training.space import DEGREES, Pins, best_dispatch, space_of
from ridgeline.sim import SHIPPED_RESIDUALS, Prediction, read_residuals

WORTH = 0.005  # gains below half a per cent are not worth telling
FEATURES = ("schedule", "overlap", "graph", "moe_dispatch")  # kinds of changes that are a software's to make
EXPOSED = MappingProxyType(
    {"tp": "tp", "cp": "cp", "moe": "ep", "pp": "pp", "grad-reduce": "dp", "param-gather": "shard"}
)
GRAPHS: tuple[Literal["partial", "full"], ...] = ("partial", "full")
WAITING = 0.02  # share of a step lost to stages or reductions from which a larger batch is tried
UNKNOWN = "generic"  # stands for software nobody described: nothing to change to
CHUNKS = (1, 2, 4, 8)  # virtual stages of a rank that are tried under another engine
MOST_ASKED, MOST = 200, 3  # plans that a target is asked about, and sets of decisions that are told


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanGain:
    """A plan beyond what was searched, beside the winner of the search.

    gain    tokens per second per chip over the winner's, less one
    """

    prediction: Prediction
    winner: Prediction

    @property
    def gain(self) -> float:
        return self.prediction.tokens_per_s_per_chip / self.winner.tokens_per_s_per_chip - 1


GainT = TypeVar("GainT", bound=PlanGain)


def most_first(gains: Iterable[GainT]) -> tuple[GainT, ...]:
    return tuple(sorted(gains, key=lambda change: -change.gain))


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf(PlanGain):
    """One change and what it is predicted to gain.

    how     how to ask for it; empty where it takes another machine
    """

    kind: str
    what: str
    how: str

    JSON = """
        kind what how gain step_time_s=prediction.step_time_s tokens_per_s_per_chip=prediction.tokens_per_s_per_chip
        plan=prediction.plan_table words=prediction.plan_words
    """

    @property
    def is_feature(self) -> bool:
        """Whether it takes something of the software, not of the plan or the machine."""
        return is_feature(self.kind)


def is_feature(kind: str) -> bool:
    return kind.partition(".")[0] in FEATURES


@dataclass(frozen=True, slots=True, kw_only=True)
class _Idea:
    """A changed scenario and what of the space is left to search on it."""

    kind: str
    what: str
    how: str
    scenario: Scenario
    pins: Pins


def what_if(search: Search, winner: Prediction, go_on: GoOn = always, *, faster: bool = False) -> tuple[WhatIf, ...]:
    """Every change that was tried, the most gain first; those tried before `go_on` answers False.

    faster   only those that may gain something: plans that cannot be faster than the winner are not priced
    """
    changes: list[WhatIf] = []
    for factor, entry in search.swept.with_more_memory.items():
        what = f"{factor:g} times the memory of a chip"
        plans = search.predictions([entry])
        changes += [WhatIf(kind="memory", what=what, how="", prediction=plan, winner=winner) for plan in plans]
    for idea in _ideas(search, winner):
        work, chips = idea.scenario.workload, idea.scenario.system.chips
        # a step of the changed scenario that is as good for each chip as the winner
        below_s = work.sequences * work.seq / chips / winner.tokens_per_s_per_chip if faster else inf
        target = None if is_feature(idea.kind) else search.target
        repeated_search = _search_again(search, idea.scenario, idea.pins, partial(go_on, idea.what), target, below_s)
        if not repeated_search.swept.complete:
            break
        for plan in repeated_search.plans:
            lost = search.target and search.target.unsupported_decisions(plan.scenario)
            note = f", which {search.target.id} cannot express" if search.target and lost else ""
            changes.append(
                WhatIf(kind=idea.kind, what=f"{idea.what}{note}", how=idea.how, prediction=plan, winner=winner)
            )
    return most_first(changes)


def _search_again(
    search: Search, scenario: Scenario, pins: Pins, go_on: Callable[[], bool], target: ExportTarget | None,
    below_s: float,
) -> Search:  # fmt: skip
    """The best plan of a changed scenario, found as that of the search was."""
    return find_plan(
        scenario, pins, most=1, headroom=search.headroom, calibration=search.calibration, target=target,
        progress=lambda *_: go_on(), below_s=below_s,
    )  # fmt: skip


def worth(tried: Sequence[WhatIf], most: int = 3) -> tuple[WhatIf, ...]:
    """The changes worth telling: the best of each kind, as far as they gain anything."""
    best: dict[str, WhatIf] = {}
    for change in tried:
        best.setdefault(change.kind, change)
    return tuple(change for change in best.values() if change.gain >= WORTH)[:most]


def _ideas(search: Search, winner: Prediction) -> Iterator[_Idea]:
    """Every pin taken away, the others kept; then changes one step around the winner."""
    scenario, system = search.scenario, search.scenario.system
    start = _Idea(kind="", what="", how="", scenario=scenario, pins=neighbour_pins(search, winner.scenario.plan))
    for axis in search.pins.pinned:
        how = "leave out its own --set" if axis == "switches" else f"leave out --set plan.{axis}"
        yield replace(start, kind=axis, what=f"{axis} not pinned", how=how, pins=search.pins.without(axis))
    yield from _formats(search, start)
    for place, tier in enumerate(system.tiers):
        if tier.bandwidth is not None:
            bandwidth = tier.need_bandwidth()
            doubled = replace(bandwidth, value=2 * bandwidth.value, evidence=Evidence.ASSUMED, source="what if")
            tiers = (*system.tiers[:place], replace(tier, bandwidth=doubled), *system.tiers[place + 1 :])
            faster = replace(scenario, system=replace(system, tiers=tiers))
            yield replace(start, kind="link", what=f"twice the bandwidth of {tier.name}", scenario=faster)
    yield from _states(search, winner, start)
    yield from _schedules(search, winner, start)
    yield from _features(search, winner, start)
    work = scenario.workload
    if isinstance(work, Train) and _share(winner, "bubble", "dp", "shard", "optimizer") >= WAITING:
        larger = replace(work, global_batch=2 * work.sequences, tokens_per_batch=None)
        what = f"a global batch of {larger.sequences}, if the optimization allows it"
        how = f"--global-batch {larger.sequences}"
        yield replace(start, kind="batch", what=what, how=how, scenario=replace(scenario, workload=larger))


def neighbour_pins(search: Search, plan: Plan) -> Pins:
    """The space one step around a plan: its degrees and their neighbours, every choice of the rest."""
    near: JsonObject = {axis: neighbours(getattr(search.space, axis), getattr(plan.mesh, axis)) for axis in DEGREES}
    return replace(search.pins, **near, microbatch=neighbours(search.space.microbatch, plan.microbatch))


def _formats(search: Search, start: _Idea) -> Iterator[_Idea]:
    """Formats that the engine takes and the chip multiplies faster."""
    peaks = search.scenario.system.chip.peak
    computes = [formats.compute.peak for formats in search.space.precision]
    fastest = max((peaks[name].value for name in computes if name in peaks), default=0.0)
    for name in search.scenario.engine.supports.precision:
        peak = peaks.get(dtype(name).peak)
        if peak is not None and peak.value > fastest:
            pins = replace(start.pins, precision=(decode(Plan, {"precision": name}).precision,))
            how = f"--set plan.precision={name}"
            yield replace(start, kind="precision", what=f"products in {name}", how=how, pins=pins)


def _states(search: Search, winner: Prediction, start: _Idea) -> Iterator[_Idea]:
    """State elsewhere: in host memory, or sharded within a domain and replicated over the rest."""
    system, plan = search.scenario.system, winner.scenario.plan
    if search.pins.offload is None and system.chip.host.bandwidth is not None:
        for what in search.scenario.engine.supports.offload:
            pins, how = replace(start.pins, offload=(Offload(**{what: 1.0}),)), f"--set plan.offload={what}"
            yield replace(start, kind="offload", what=f"{what} in host memory", how=how, pins=pins)
    inner = max(1, closest_chips(system) // (plan.mesh.tp * plan.mesh.cp))
    if search.pins.shard_degree is None and plan.sharding.shard != "none" and 1 < inner < plan.mesh.dp:
        degree = inner * plan.mesh.cp
        pins, how = replace(start.pins, shard_degree=(degree,)), f"--set plan.shard_degree={degree}"
        yield replace(start, kind="shard_degree", what="sharding within a domain", how=how, pins=pins)


def _share(prediction: Prediction, *names: str) -> float:
    return sum(part.seconds for part in prediction.breakdown if part.name in names) / prediction.step_time_s


def _schedules(search: Search, winner: Prediction, start: _Idea) -> Iterator[_Idea]:
    """Schedules that the engine is not known to have, where stages wait."""
    if search.pins.schedule is not None or _share(winner, "bubble") < WAITING:
        return
    engine = search.scenario.engine
    for name, kind in SCHEDULES.items():
        if name not in engine.supports.schedules and name != "gpipe":
            pins = replace(start.pins, schedule=(Schedule(name=name, chunks=kind.fewest_chunks),))
            what = f"schedule {name}, which {engine.id} is not known to have"
            yield replace(start, kind="schedule", what=what, how=f"--set plan.schedule={name}", pins=pins)


def _features(search: Search, winner: Prediction, start: _Idea) -> Iterator[_Idea]:
    """Switches thrown where that would hide or shorten something: communication that is exposed and could overlap,
    kernels that the host issues and that CUDA graphs would replay, experts that DeepEP would send a token once to."""
    engine, own, resolved = search.scenario.engine, winner.scenario.plan.switches, resolve(winner.scenario)
    features, nvidia = engine.supports.features, search.scenario.system.chip.vendor == "NVIDIA"
    kind = own.sequence_parallel, own.cp_kind
    peers = [peer for peer in search.space.switches if (peer.sequence_parallel, peer.cp_kind) == kind] or [own]

    def throw(kind: str, what: str, how: str, switches: Iterable[Switches], *, is_known: bool) -> _Idea:
        what = what if is_known else f"{what}, which {engine.id} is not known to have"
        pins = replace(start.pins, switches=tuple(switches))
        return replace(start, kind=kind, what=what, how=f"--set plan.{how}", pins=pins)

    for word, part in EXPOSED.items():
        if not resolved.overlap[word] and word not in own.overlap and _share(winner, part) >= WORTH:
            overlapped = [replace(peer, overlap=MappingProxyType({**peer.overlap, word: True})) for peer in peers]
            what, how = f"overlap of {word}", f"overlap.{word}=true"
            yield throw(f"overlap.{word}", what, how, overlapped, is_known=word in features.overlaps)
    issued = resolved.graph == "none" and resolved.launch in ("eager", "compiled")
    if nvidia and issued and winner.bounds.get("host", 0.0) / winner.step_time_s >= WORTH:
        for graph in GRAPHS:
            # a graph of the whole iteration fixes the order of streams, between which dispatch would overlap
            idle = {"moe"} if graph == "full" else set()
            overlaps = [{word: on for word, on in peer.overlap.items() if word not in idle} for peer in peers]
            graphed = [
                replace(peer, graph=graph, overlap=MappingProxyType(overlap))
                for peer, overlap in zip(peers, overlaps, strict=True)
            ]
            yield throw("graph", f"{graph} CUDA graphs", f"graph={graph}", graphed, is_known=graph in features.graph)
    if nvidia and resolved.moe_dispatch == "all-to-all" and _share(winner, "ep") >= WORTH:
        dispatched = [replace(peer, moe_dispatch="deepep") for peer in peers]
        what, is_known = "experts reached by DeepEP", "deepep" in features.moe_dispatch
        yield throw("moe_dispatch", what, "moe_dispatch=deepep", dispatched, is_known=is_known)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEngine(PlanGain):
    """Another software and the best plan that was found for it.

    availability   whether others than its owners can run it
    runs           measured runs of it on this family of chips that took part in the fit; few: hardly more than a guess
    has            what its plan does that the winner's engine is not known to do, in words
    how            how to ask for it
    overlaps       whether the intervals overlap: the order may be the other way round
    """

    engine: Engine
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

    @property
    def runs(self) -> int:
        return measured_runs(self.engine.fitted_id, self.prediction.scenario.system.chip.family)

    @property
    def overlaps(self) -> bool:
        theirs, ours = self.prediction.interval, self.winner.interval
        return theirs.high > ours.low and theirs.low < ours.high

    @property
    def has(self) -> tuple[str, ...]:
        ours, theirs = self.winner.scenario, self.prediction.scenario
        prefix = f"engine {ours.engine.id} is not known to support "
        words = [note.removeprefix(prefix) for note in unsupported_decisions(under(theirs, ours.engine))]
        our_overlap, their_overlap = resolve(ours).overlap, resolve(theirs).overlap
        spent = {part.name for part in self.winner.breakdown if part.seconds > 0}
        gained = (word for word in OVERLAPS if their_overlap[word] and not our_overlap[word])
        words += [f"overlap of {word}" for word in gained if EXPOSED.get(word) in spent]
        dispatch = theirs.plan.switches.moe_dispatch
        if theirs.plan.mesh.ep > 1 and dispatch and best_dispatch(ours) is None:
            words.append(f"dispatch by {dispatch}")
        return tuple(words)


def other_engines(
    search: Search, winner: Prediction, go_on: GoOn = always, *, faster: bool = False
) -> tuple[OtherEngine, ...]:
    """Every engine that has a plan which fits, the most gain first; those tried before `go_on` answers False.

    faster   only those whose plan may be faster than the winner: plans that cannot be are not priced
    """
    below_s = winner.step_time_s if faster else inf
    engines: list[OtherEngine] = []
    target_engines = search.target.engines(search.scenario.system) if search.target else ()
    for engine in able_engines(search.scenario):
        scenario = under(search.scenario, engine)
        target = search.target if engine.id in target_engines else None
        pins, go_on_with = (
            _coarse(search, scenario, winner.scenario.plan),
            partial(go_on, f"what {engine.id} would gain"),
        )
        repeated_search = _search_again(search, scenario, pins, go_on_with, target, below_s)
        if not repeated_search.swept.complete:
            break
        if repeated_search.plans and not unsupported_decisions(repeated_search.plans[0].scenario):
            how = f"--engine {engine.id}" if target or not search.target else f"another target, --engine {engine.id}"
            engines.append(OtherEngine(engine=engine, prediction=repeated_search.plans[0], winner=winner, how=how))
    return most_first(engines)


def able_engines(scenario: Scenario) -> Iterator[Engine]:
    """Engines of the catalog other than the scenario's that run on its chip and know its number format."""
    vendor, format_id = scenario.system.chip.vendor, scenario.plan.precision.compute.id
    for id in (id for id in ENGINES if ENGINES[id].serves is None):
        engine = ENGINES[id]
        has_format = format_id in {dtype(name).id for name in engine.supports.precision}
        runs = not engine.supports.vendors or vendor in engine.supports.vendors
        runs = runs and (not engine.supports.one_node or scenario.system.chips <= scenario.system.node)
        if id not in (UNKNOWN, scenario.engine.id) and engine.availability != "retired" and has_format and runs:
            yield engine


def under(scenario: Scenario, engine: Engine) -> Scenario:
    """The scenario under another engine; switches that its plan states stay as stated."""
    return replace(scenario, engine=engine, plan=replace(scenario.plan, engine=engine.id))


def _coarse(search: Search, scenario: Scenario, winner: Plan) -> Pins:
    """What of another engine's space is searched: the pins that were given, and less of the axes that rarely matter."""
    pins, space = search.pins, space_of(scenario, search.pins)
    plain_switches = tuple(
        switches
        for switches in space.switches
        if switches.cp_kind == "ring" and switches.sequence_parallel is not False
    )
    return replace(
        pins,
        etp=pins.etp or (1,),
        microbatch=pins.microbatch or neighbours(space.microbatch, winner.microbatch),
        schedule=pins.schedule or tuple(schedule for schedule in space.schedule if schedule.chunks in CHUNKS),
        switches=pins.switches or plain_switches or None,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetGain(PlanGain):
    """A plan that the target cannot express.

    untold   the decisions that stand against it
    """

    untold: tuple[UnsupportedDecision, ...]

    JSON = """
        untold gain step_time_s=prediction.step_time_s tokens_per_s_per_chip=prediction.tokens_per_s_per_chip
        plan=prediction.plan_table words=prediction.plan_words
    """


def target_gains(search: Search, winner: Prediction, go_on: GoOn = always) -> tuple[TargetGain, ...]:
    """What the target keeps from the plan, the most gain first; nothing where `go_on` answered False."""
    free = find_plan(
        search.scenario, search.pins, most=0, headroom=search.headroom, calibration=search.calibration,
        progress=lambda *_: go_on("what it cannot be told"),
    )  # fmt: skip
    if not free.swept.complete:
        return ()
    gains = [
        TargetGain(untold=untold, prediction=plan, winner=winner)
        for entry, untold in _inexpressible_plans(search, winner, free)
        for plan in search.predictions([entry])
    ]
    return most_first(gain for gain in gains if gain.gain >= WORTH)[:MOST]


def _inexpressible_plans(
    search: Search, winner: Prediction, free: Search
) -> Iterator[tuple[PricedEntry, tuple[UnsupportedDecision, ...]]]:
    """The fastest plan for each set of decisions; a set that holds a faster one's says nothing new."""
    told_paths: list[frozenset[str]] = []
    target = search.target
    assert target is not None
    for entry in kinds(free.swept, MOST_ASKED):
        if entry.step_s > winner.step_time_s:
            return
        scenario = replace(search.scenario, plan=entry.plan)
        if not target.capability.unsupported_decisions(scenario):
            continue
        untold = target.unsupported_decisions(scenario)
        paths = frozenset(decision.path for decision in untold)
        if untold and not any(fewer <= paths for fewer in told_paths):
            told_paths.append(paths)
            yield entry, untold
