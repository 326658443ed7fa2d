"""Turn a scenario whose row does not say what it recomputed into the least recompute with which it fits in memory.

The run happened, so it fitted. Where the usual choice of its software does not fit by the memory model, more must have
been recomputed: norms and activations, then attention with its projections, then whole layers, of which only what the
engine can be asked for counts. Nothing is changed where even that does not fit, or where the chip's memory is not
published.
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.calibrate.truth.row_recompute import UNSTATED
from ridgeline.core.errors import MissingNumber
from ridgeline.lowering.program import lower
from ridgeline.plan.plan import Recompute
from ridgeline.plan.scenario import Scenario
from ridgeline.sim import peak_memory

# from little to much
STEPS = (
    Recompute(kind="selective", parts=("norm", "activation")),
    Recompute(kind="selective", parts=("norm", "activation", "mixer")),
    Recompute(kind="full"),
)


def fitting(scenario: Scenario) -> Scenario:
    """The scenario, with more recompute where its row leaves that open and it would not fit otherwise."""
    noted = next((note for note in scenario.assumptions if note.startswith(UNSTATED)), None)
    if noted is None or scenario.plan.recompute.kind == "full" or _fits(scenario):
        return scenario
    for recompute in STEPS:
        if not _offered(scenario, recompute):
            continue
        tried = replace(scenario, plan=replace(scenario.plan, recompute=recompute))
        if _fits(tried):
            what = recompute.kind if recompute.kind == "full" else ", ".join(recompute.parts)
            told = f"{UNSTATED} {what}: unknown in the table, and with less the run would not have fitted in memory"
            return replace(tried, assumptions=tuple(told if note == noted else note for note in scenario.assumptions))
    return scenario


def _offered(scenario: Scenario, recompute: Recompute) -> bool:
    """Whether the scenario's engine can be asked for it: a kind it has, and only parts it names."""
    supports = scenario.engine.supports
    parts = {part for together in supports.selective for part in together}
    return recompute.kind in supports.recompute and (recompute.kind == "full" or parts.issuperset(recompute.parts))


def _fits(scenario: Scenario) -> bool:
    try:
        return peak_memory(scenario, lower(scenario)).headroom_bytes >= 0
    except MissingNumber:
        return True
