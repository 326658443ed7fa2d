"""Turn a scenario and the analysis of a trace into reasons to doubt that the one is a run of the other.

Checked: the chip, the number of ranks, whether code was compiled, whether steps are marked, and the flops of matrix
products a step against those the scenario asks for.
"""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.core.units import format_quantity
from ridgeline.models.facts import training_flops_per_token
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.trace.analysis.breakdown import Breakdown
from ridgeline.trace.analysis.chip_names import chip_of
from ridgeline.trace.analyze import Analysis

GENERATED = ("triton_poi_", "triton_red_", "triton_per_", "triton_tem_")  # names torch.compile gives its kernels
KNOWN = 0.9  # of the time of matrix products must have shapes before their flops are compared
APART = 0.05  # flops that differ by more are another workload


def doubts(built: Scenario, found: Analysis) -> Iterator[str]:
    """What makes a comparison of the two unequal, in words; most decisive first."""
    about, chips = found.timeline.about, len(found.breakdown.chips)
    ran_on = chip_of(about)
    if ran_on is not None and ran_on.id != built.system.chip.id:
        yield f"the trace ran on {ran_on.id}, the scenario is about {built.system.chip.id}"
    world = about.world_size or chips
    if world != built.system.chips:
        yield f"the trace says {world} ranks, the scenario has {built.system.chips} chips"
    yield from _other_sizes(built, found)
    if not found.timeline.predicted:
        yield from _other_engine(built.plan.engine, found.breakdown)
    if not found.breakdown.steps:
        yield "the trace marks no steps: all of it counts as one"


def _other_engine(engine: str, parts: Breakdown) -> Iterator[str]:
    made, said = sum(one.spans for one in parts.names if one.name.startswith(GENERATED)), "the scenario says"
    if made and engine == "torch-eager":
        yield f"the trace has {made:,} kernels of torch.compile, {said} {engine}: --set plan.engine=torch-compile"
    if not made and engine == "torch-compile":
        yield f"the trace has no kernel of torch.compile, {said} {engine}: --set plan.engine=torch-eager"


def _other_sizes(built: Scenario, found: Analysis) -> Iterator[str]:
    """Products of a step, by recorded shapes, against 3 x forward of the scenario; one chip, nothing recomputed."""
    if built.system.chips != 1 or built.plan.recompute.kind != "none" or not isinstance(built.workload, Train):
        return
    rates = [rate for rate in found.rates if rate.class_ == "matmul"]
    time = sum(one.total_ns for one in found.breakdown.classes if one.id == "matmul")
    if not time or sum(rate.total_ns for rate in rates) < KNOWN * time:
        return
    steps = max(1, len(found.breakdown.steps)) * max(1, len(found.breakdown.chips))
    ran = sum(rate.flops * rate.calls for rate in rates) / steps
    asked = training_flops_per_token(built.model, built.workload.seq)
    wanted = (asked.total - asked.scores) * built.workload.tokens
    if abs(ran / wanted - 1) > APART:
        told = f"{format_quantity(ran, 'FLOP', 3)} of matrix products a step, the scenario asks for"
        yield f"the trace has {told} {format_quantity(wanted, 'FLOP', 3)}: another model or batch"
