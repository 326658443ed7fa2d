"""Turn a scenario whose row leaves open what saves memory into the least of it with which the run fits.

The run happened, so it fitted. Where it does not fit by the memory model as the row stands, what the row does not say
must have been done, in this order and only as far as the engine can be asked for it:

    recompute   norms and activations, then attention with its projections, then whole layers; a selective recompute
                without detail stays selective
    sharding    optimizer states (zero1), where the row's sharding is blank
    experts     split over tensor ranks too (etp = tp, as Megatron does unless told otherwise)

Where a run without pipeline stages does not state its microbatch, it is the largest that fits: whoever publishes a
rate has raised it until memory was full, and nothing there asks for small ones.

Nothing is changed where even that does not fit, or where the chip's memory is not published.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ridgeline.calibrate.truth.row_recompute import SHARE_UNSTATED, UNSTATED
from ridgeline.core.errors import MissingNumber
from ridgeline.lowering.program import lower
from ridgeline.models.spec import Moe
from ridgeline.plan.plan import Plan, Recompute
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.sim import peak_memory

# from little to much
STEPS = (
    Recompute(kind="selective", parts=("norm", "activation")),
    Recompute(kind="selective", parts=("norm", "activation", "mixer")),
    Recompute(kind="full"),
)
BLANK_SHARD = "shard = none: blank"  # how the note on a blank sharding begins
MEANT = "means by selective"  # how the note on a selective recompute without detail ends
BLANK_MICROBATCH = "micro_batch = 1: blank"  # how the note on a blank microbatch begins
WHY = "and without it the run would not have fitted in memory"


def fitting(scenario: Scenario) -> Scenario:
    """The scenario, with what its row leaves open and it would not fit without."""
    tried = scenario
    for amend in (_as_stated, _states_sharded, _experts_split):
        made = amend(tried)
        if made is tried and amend is not _as_stated:
            continue
        tried = made
        found = next((one for one in (tried, *_recomputing(tried)) if _fits(one)), None)
        if found is not None:
            return _largest_microbatch(found)
    return scenario


def _largest_microbatch(scenario: Scenario) -> Scenario:
    """The scenario with its microbatch doubled as often as batch and memory allow, where the row has none and no
    pipeline asks for small ones."""
    plan, workload = scenario.plan, scenario.workload
    noted = next((note for note in scenario.assumptions if note.startswith(BLANK_MICROBATCH)), None)
    if noted is None or plan.mesh.pp > 1 or not isinstance(workload, Train) or workload.global_batch is None:
        return scenario
    best, size = scenario, 2
    while workload.global_batch % (plan.mesh.dp * size) == 0:
        note = f"micro_batch = {size}: blank in the table; the largest that divides the batch and fits in memory"
        tried = _amended(scenario, replace(plan, microbatch=size), noted, note)
        if not _fits(tried, unknown=False):
            break
        best, size = tried, size * 2
    return best


def _as_stated(scenario: Scenario) -> Scenario:
    return scenario


def _experts_split(scenario: Scenario) -> Scenario:
    """Experts over the tensor ranks: no column of a table holds etp."""
    plan, mesh = scenario.plan, scenario.plan.mesh
    experts = any(isinstance(block.ffn, Moe) for block in scenario.model.blocks)
    able = "etp" in scenario.engine.supports.axes and mesh.etp == 1 and mesh.tp > 1 and mesh.cp * mesh.dp % mesh.ep == 0
    if not (experts and able):
        return scenario
    note = f"etp = {mesh.tp}: no column holds it, {WHY}"
    return _amended(scenario, replace(plan, mesh=replace(mesh, etp=mesh.tp)), "", note)


def _states_sharded(scenario: Scenario) -> Scenario:
    """Optimizer states over the data-parallel ranks where the row's sharding is blank."""
    noted = next((note for note in scenario.assumptions if note.startswith(BLANK_SHARD)), None)
    plan, able = scenario.plan, scenario.engine.supports
    if noted is None or "zero1" not in (able.pipelined_shard if plan.mesh.pp > 1 else able.shard):
        return scenario
    note = f"shard = zero1: blank in the table, {WHY}"
    return _amended(scenario, replace(plan, sharding=replace(plan.sharding, shard="zero1")), noted, note)


def _recomputing(scenario: Scenario) -> Iterator[Scenario]:
    """The scenario under ever more recompute, where its row does not say how much."""
    plan, notes = scenario.plan, scenario.assumptions
    noted = next((note for note in notes if note.startswith((UNSTATED, SHARE_UNSTATED))), None)
    meant = next((note for note in notes if note.endswith(MEANT)), None)
    whole = plan.recompute.kind == "full" and plan.recompute.layers is None
    if whole or (noted is None and meant is None):
        return
    for recompute in STEPS:
        if not _offered(scenario, recompute) or (noted is None and recompute.kind == "full"):
            continue
        if plan.recompute.kind == "full" and recompute.kind != "full":
            continue
        what = recompute.kind if recompute.kind == "full" else ", ".join(recompute.parts)
        told = f"{UNSTATED} {what}: unknown in the table, and with less the run would not have fitted in memory"
        yield _amended(scenario, replace(plan, recompute=recompute), noted or meant or "", told)


def _amended(scenario: Scenario, plan: Plan, old: str, told: str) -> Scenario:
    """Under another plan, with a note in place of the one it makes void."""
    notes = tuple(told if note == old else note for note in scenario.assumptions)
    return replace(scenario, plan=plan, assumptions=notes if old in scenario.assumptions else (*notes, told))


def _offered(scenario: Scenario, recompute: Recompute) -> bool:
    """Whether the scenario's engine can be asked for it: a kind it has, and only parts it names."""
    supports = scenario.engine.supports
    parts = {part for together in supports.selective for part in together}
    return recompute.kind in supports.recompute and (recompute.kind == "full" or parts.issuperset(recompute.parts))


def _fits(scenario: Scenario, *, unknown: bool = True) -> bool:
    """Whether its memory is enough; `unknown` where nobody publishes how much there is."""
    try:
        return peak_memory(scenario, lower(scenario, tensors=False)).headroom_bytes >= 0
    except MissingNumber:
        return unknown
