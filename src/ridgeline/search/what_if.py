"""Turn a winner into what would beat it: the search done again on a changed scenario, one change at a time.

Tried are formats the chip multiplies faster, more memory, faster links, offload and hybrid sharding, a larger batch
where stages or reductions wait, and every pin taken away; and features of software, whether the engine has them or not:
schedules beyond its own, overlap of communication that is exposed, CUDA graphs, dispatchers of experts. Each but a pin
is searched one step around the winner along every axis, so a gain is at least what is told. More memory is answered by
the first sweep itself, since capacity only decides which plans are left. Stopped, it is the changes tried so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf
from types import MappingProxyType
from typing import Literal

from ridgeline.core.dtype import dtype
from ridgeline.core.evidence import Evidence
from ridgeline.core.records import dataclass
from ridgeline.core.table import decode
from ridgeline.cost import Calibration
from ridgeline.hardware.system import System, Tier
from ridgeline.plan.plan import Offload, Plan, Precision, Schedule, Switches
from ridgeline.plan.resolve import resolve
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import SCHEDULES
from ridgeline.plan.workload import Train
from ridgeline.search.plan_search import Search, find_plan, predict_entries
from ridgeline.search.progress import GoOn, always
from ridgeline.search.space import Pins, neighbours
from ridgeline.sim import Prediction

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
            tiers = (*system.tiers[:index], _faster(tier), *system.tiers[index + 1 :])
            yield tier.name, replace(system, tiers=tiers)


def _faster(tier: Tier) -> Tier:
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
    domain = scenario.system.tiers[0].chips if scenario.system.tiers else 1
    inner = max(1, domain // (plan.mesh.tp * plan.mesh.cp))
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
